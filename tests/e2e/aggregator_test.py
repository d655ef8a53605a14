# SPDX-License-Identifier: Apache-2.0
"""A training with an aggregator in its network: when it is chosen, what says why, and its death.

Speeds are of the emulated links, which are so slow that the machine's own hardly matters. Where a
slow machine makes ranks give a lease up, the controller grants the next one; the tests wait for it.
"""
import json
import re
import subprocess
import unittest

from cluster import BUILD, JOB, REFUSED, SKIP_REASON, Cluster, number, wait_until
from demo_job import offload
from demo_job.control_plane import AGGREGATOR_NAME

WEIRCTL = BUILD / "controller" / "cli" / "weirctl"
HOSTS = 4               # without an aggregator ranks send 1.5 times their data
LINK_MBPS = 20.0
GOODPUT_GBIT_S = 0.1    # of all ranks: a little more than these links carry together
# The first lease is tried if it is more likely than not to be better.
POLICY = offload.POLICY + """switching:
  dwell_min_s: 1
  improvement_min: 0.02
  confidence: 0.55
  flaps_max: 100
"""
PATIENCE_S = 150.0
# After this many steps the model knows the measured time of sums on the aggregator. With fewer it has only the
# predicted time, which on these links is close to that of the ranks alone, so it would return to the aggregator
# late.
STEPS_TO_KNOW = 20


@unittest.skipIf(REFUSED, SKIP_REASON)
class AggregatorTest(unittest.TestCase):
    """One training. The tests build on each other, in the order of their names."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster(
            "aggregator", HOSTS, 150_000, aggregator=True, policy=POLICY,
            goodput_gbit_s=GOODPUT_GBIT_S))
        cls.cluster.network.shape(LINK_MBPS, 0.0)
        cls.cluster.start_ranks()
        cls.port = cls.cluster.controller_port()

    def weirctl(self, *arguments):
        done = subprocess.run([WEIRCTL, "--controller", f"127.0.0.1:{self.port}", *arguments],
                              timeout=30, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, f"weirctl {' '.join(arguments)}: {done.stderr}")
        return done.stdout

    def wait_for_line(self, command, pattern):
        """Waits until weirctl prints such a line: decisions go on meanwhile."""
        wait_until(lambda: re.search(pattern, self.weirctl(*command.split()), re.MULTILINE),
                   f"weirctl {command} to say '{pattern}'", PATIENCE_S, self.cluster.failed_rank)

    def assert_no_step_was_lost(self):
        self.assertIsNone(self.cluster.failed_rank())
        lines = self.cluster.steps()
        self.assertEqual([line["step"] for line in lines], list(range(1, len(lines) + 1)))
        self.assertFalse(any(line["skipped"] for line in lines))

    def summed(self):
        """Packets that the aggregator has summed."""
        return offload.summed_packets(self.cluster.controls.aggregator_metrics()) or 0

    def lease(self):
        """The job's lease as the aggregator lists it, read through the controller; None without."""
        said = self.cluster.controls.aggregator()
        leases = said.get("leases", []) if said.get("reachable") else []  # otherwise it is an earlier report
        return next((lease for lease in leases if lease["job"] == JOB), None)

    def wait_until_it_sums(self):
        """Waits for steps on the aggregator; the lease that they use."""
        lease = wait_until(self.lease, "a lease", PATIENCE_S, self.cluster.failed_rank)
        before = self.summed()
        wait_until(lambda: self.summed() > before + 1000, "sums of the aggregator", PATIENCE_S,
                   self.cluster.failed_rank)
        return lease

    def wait_until_it_is_known(self):
        """Waits for steps on the aggregator, one after the other."""
        def known():
            last = self.cluster.steps()[-STEPS_TO_KNOW:]
            return all(offload.is_offloaded(line["choice"]) for line in last)
        wait_until(known, f"{STEPS_TO_KNOW} steps on the aggregator", PATIENCE_S,
                   self.cluster.failed_rank)

    def test_1_it_is_chosen_where_ranks_alone_would_send_more(self):
        lease = self.wait_until_it_sums()
        self.assertGreaterEqual(lease["slots"], 64)
        self.assertEqual(len(lease["workers"]), HOSTS)
        switch = wait_until(lambda: next(
            (d for d in self.cluster.decisions(switched=True, candidates=True)
             if offload.is_offloaded(d["to"])),
            None), "the decision for it", PATIENCE_S)
        self.assertIn("predicts", switch["reason"])
        chosen = next(c for c in switch["candidates"] if c.get("chosen"))
        self.assertTrue(offload.is_offloaded(chosen["label"]), chosen)
        self.assertLess(chosen["step_s"], offload.best(switch["candidates"], False)["step_s"])
        self.wait_until_it_is_known()
        self.assert_no_step_was_lost()

    def test_2_weirctl_tells_lease_slots_and_reason(self):
        held = self.wait_until_it_sums()
        self.wait_for_line("get aggregators",
                           rf"^{AGGREGATOR_NAME} +reachable .* {JOB}:{held['slots']}\b")
        document = json.loads(self.weirctl("get", "aggregators", AGGREGATOR_NAME, "-o", "json"))
        self.assertEqual(document["slots"] - document["slots_free"],
                         sum(lease["slots"] for lease in document["leases"]))
        self.assertNotIn("cookie", json.dumps(document))
        self.wait_for_line(f"explain {JOB}", r"^Why: .*over switchml")
        self.wait_for_line(f"explain {JOB}", r"^Aggregator: .*over switchml.* take.* per step")

    def test_3_killed_under_a_step_it_costs_no_step_and_ranks_sum_alone(self):
        cluster = self.cluster
        self.wait_until_it_sums()
        known = {d["id"] for d in cluster.decisions()}
        step = cluster.step()
        cluster.controls.kill("weir-aggregator")   # nearly all of a step is spent on its sums
        cluster.wait_for_steps(3, PATIENCE_S)
        self.assertGreater(cluster.step(), step)
        told = wait_until(lambda: next(
            (d for d in cluster.decisions() if d["id"] not in known
             and d["trigger"] == "aggregator"), None), "a decision because of it", PATIENCE_S)
        self.assertRegex(told["reason"],
                         rf"offload failed on rank \d|{AGGREGATOR_NAME} does not answer")
        wait_until(lambda: not offload.is_offloaded(cluster.steps()[-1]["choice"]),
                   "a plan without it", PATIENCE_S, cluster.failed_rank)
        self.wait_for_line("get aggregators", rf"^{AGGREGATOR_NAME} +cannot connect")
        self.wait_for_line(f"explain {JOB}",
                           r"^Aggregator: \w+: .*(offload failed|does not answer|reachable)")
        wait_until(lambda: (cluster.controls.series(JOB)[-1]["collective"]
                            not in offload.COLLECTIVES),
                   "steps that ranks sum alone", PATIENCE_S, cluster.failed_rank)
        cluster.wait_for_steps(3, PATIENCE_S)
        self.assert_no_step_was_lost()

    def test_4_started_again_it_is_chosen_again_by_another_lease(self):
        self.cluster.controls.restart("weir-aggregator")
        self.wait_until_it_sums()
        self.assert_no_step_was_lost()
        self.assertGreater(number(self.cluster.job()["active_plan"]["version"]), 2)

    def test_5_a_link_as_fast_as_its_share_makes_ranks_do_without_it(self):
        self.wait_until_it_sums()
        known = {d["id"] for d in self.cluster.decisions()}
        self.cluster.network.shape(1000.0, 0.0)

        def refused():
            for decision in self.cluster.decisions(candidates=True):
                there, here = (offload.best(decision["candidates"], where)
                               for where in (True, False))
                if (decision["id"] not in known and not offload.is_offloaded(decision["to"])
                        and not there.get("excluded_by", "").startswith("switchml: ")):
                    return there["step_s"] > here["step_s"]
            return False
        wait_until(refused, "a decision that it is too slow", PATIENCE_S, self.cluster.failed_rank)
        wait_until(lambda: self.lease() is None, "the lease to be given back", PATIENCE_S)
        self.assert_no_step_was_lost()


if __name__ == "__main__":
    unittest.main()
