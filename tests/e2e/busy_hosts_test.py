# SPDX-License-Identifier: Apache-2.0
"""Busy loops take the cores of training hosts: that is said, and it is no slow link."""
import os
import subprocess
import sys
import unittest

from cluster import BUILD, JOB, REFUSED, SKIP_REASON, Cluster, wait_until

WEIRCTL = BUILD / "controller" / "cli" / "weirctl"
LOOPS = 4
RATE_MBPS, DELAY_MS = 100.0, 5.0


def wait_ratio(rank):
    return float(rank.get("cores", {}).get("wait_ratio") or 0)


@unittest.skipIf(REFUSED, SKIP_REASON)
class BusyHostsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        # Ranks and loops share one core, so that the test means the same on every machine.
        cores = os.sched_getaffinity(0)
        cls.addClassCleanup(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {max(cores)})
        cls.cluster = cls.enterClassContext(Cluster("busy-hosts"))
        cls.cluster.network.shape(RATE_MBPS, DELAY_MS)
        cls.cluster.start_ranks(OMP_NUM_THREADS="1")

    def believed(self):
        """Bandwidth in Mb/s and the text of the controller's explanation."""
        found = self.cluster.controls.get(f"/v1/jobs/{JOB}:explain")
        return float(found["bandwidth_bytes_per_s"]["value"]) * 8e-6, found["text"]

    def test_the_host_is_named_and_the_link_is_believed_as_before(self):
        cluster = self.cluster
        cluster.wait_for_steps(60, deadline_s=90)
        ranks = wait_until(lambda: [r for r in cluster.job().get("ranks", []) if "cores" in r],
                           "an agent that says how long its rank waits for cores", 20, cluster.failed_rank)
        self.assertEqual(len(ranks), cluster.hosts)
        before, _ = self.believed()
        known = {d["id"] for d in cluster.decisions()}
        loops = [cluster.children.start([sys.executable, "-c", "while True: pass"]) for _ in range(LOOPS)]
        try:
            wait_until(lambda: min(map(wait_ratio, cluster.job()["ranks"])) > 0.4, "ranks that wait", 40,
                       cluster.failed_rank)
            cluster.wait_for_steps(15, deadline_s=120)
            during, text = self.believed()
            self.assertRegex(text, r"Late: the cores of \S+ are taken \(.*rank \d waits for one for \d+ %")
            doctor = subprocess.run([WEIRCTL, "--controller", f"127.0.0.1:{cluster.controller_port()}", "doctor"],
                                    capture_output=True, text=True, timeout=60, check=False).stdout
            self.assertRegex(doctor, r"the cores of \S+ are taken")
        finally:
            cluster.children.stop(loops)
        self.assertGreater(during, before / 2)
        slow = [d["reason"] for d in cluster.decisions(switched=True) if d["id"] not in known
                and any(c.get("of") == "OF_BANDWIDTH" and float(c["after"]) < float(c["before"]) / 2
                        for c in d.get("changes", []))]
        self.assertEqual(slow, [], "plans for a slower network")


if __name__ == "__main__":
    unittest.main()
