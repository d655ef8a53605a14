# SPDX-License-Identifier: Apache-2.0
"""Training and operators when controller, agent or a rank is killed (kill -9)."""
import re
import time
import unittest

from cluster import REFUSED, SKIP_REASON, SLOW_MBPS, Cluster, number, wait_until

DEADLINE_S = 10.0   # of one collective, here
MARGIN_S = 8.0      # for a busy machine to end a process


@unittest.skipIf(REFUSED, SKIP_REASON)
class ControlPlaneLossTest(unittest.TestCase):
    """One training; first the controller is killed, then an agent."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster("recovery"))
        cls.cluster.start_ranks()

    def assert_training_undisturbed(self):
        self.assertIsNone(self.cluster.failed_rank())
        lines = self.cluster.steps()
        self.assertEqual([line["step"] for line in lines], list(range(1, len(lines) + 1)))
        self.assertFalse(any(line["skipped"] for line in lines))

    def test_1_killed_controller_disturbs_nothing_and_recovers_from_its_state_file(self):
        cluster = self.cluster
        cluster.wait_for_switch()
        cluster.wait_for_steps(40)
        wait_until(lambda: cluster.job().get("rollout_state") == "stable", "the rollout to end")
        before, job = cluster.decisions(), cluster.job()
        paths = [cluster.connections(rank) for rank in range(cluster.hosts)]
        self.assertTrue(all(paths))

        cluster.controls.kill("weir-controller")
        killed_at = cluster.step() + 1
        self.assertIsNone(cluster.controls.get("/v1/nodes"), "it is dead")
        cluster.wait_for_steps(20)
        versions = {line["plan_version"] for line in cluster.steps()[killed_at:]}
        self.assertEqual(versions, {number(job["active_plan"]["version"])}, "the plan is kept")

        cluster.controls.restart("weir-controller")
        wait_until(lambda: cluster.controls._agents_connected(), "the agents to come back")
        wait_until(lambda: cluster.job().get("state") == "running", "the job to be known again")
        nodes = {node["name"] for node in cluster.controls.get("/v1/nodes")["nodes"]}
        self.assertEqual(nodes, {"h0", "h1"})
        ids = [decision["id"] for decision in before]
        self.assertEqual([d["id"] for d in cluster.decisions()][:len(ids)], ids)
        recovered = cluster.job()
        self.assertEqual(recovered["world"], 2)
        self.assertGreaterEqual(number(recovered["active_plan"]["version"]),
                                number(job["active_plan"]["version"]))

        cluster.wait_for_steps(40)  # of measuring
        known = {d["id"] for d in cluster.decisions()}
        cluster.network.shape(SLOW_MBPS, 0.0)
        switch = cluster.wait_for_switch(known, "bandwidth")
        self.assertGreater(number(switch["step"]), max(number(d.get("step")) for d in before))
        for rank, old in enumerate(paths):
            self.assertLessEqual(old, cluster.connections(rank), f"rank {rank} reconnected")
        self.assert_training_undisturbed()

    def test_2_killed_agent_leaves_the_plan_active_and_is_attached_to_again(self):
        cluster = self.cluster
        cluster.controls.kill("weir-agent-h1")
        said = wait_until(lambda: re.search(r"rank 1: lost the agent at .*: keeping plan (\d+)",
                                            cluster.rank_log(1)), "rank 1 to say so", 10)
        since = cluster.step() + 1   # the step that was under way may have been the plan's first
        wait_until(lambda: not self.rank_of_job(1).get("connected"), "the controller to notice")
        cluster.wait_for_steps(20)
        self.assertEqual({line["plan_version"] for line in cluster.steps()[since:]},
                         {int(said.group(1))}, "the plan is kept")
        self.assertEqual(cluster.rank_log(1).count("lost the agent"), 1, "it says so once")

        cluster.controls.restart("weir-agent-h1")
        wait_until(lambda: "connected again" in cluster.rank_log(1), "rank 1 to attach again")
        wait_until(lambda: self.rank_of_job(1).get("connected"), "the controller to see rank 1")
        cluster.wait_for_steps(5)
        self.assertNotIn("connected again", cluster.rank_log(0))
        self.assert_training_undisturbed()

    def rank_of_job(self, number_of_rank):
        return next((r for r in self.cluster.job().get("ranks", [])
                     if r.get("rank", 0) == number_of_rank), {})


@unittest.skipIf(REFUSED, SKIP_REASON)
class RankLossTest(unittest.TestCase):

    def test_every_other_rank_names_the_killed_one_and_ends(self):
        with Cluster("rank-loss", hosts=3, model_params=100_000) as cluster:
            cluster.start_ranks(WEIR_TIMEOUT_S=str(DEADLINE_S))
            cluster.wait_for_steps(5)
            cluster.ranks[2].kill()
            killed = time.monotonic()
            for rank in (0, 1):
                left = killed + DEADLINE_S + MARGIN_S - time.monotonic()
                self.assertNotEqual(cluster.ranks[rank].wait(timeout=left), 0)
                self.assertRegex(cluster.rank_log(rank), r"RankLost: .*rank 2\b", f"rank {rank}")
            print(f"ranks 0 and 1 ended {time.monotonic() - killed:.1f} s after rank 2 was killed")


if __name__ == "__main__":
    unittest.main()
