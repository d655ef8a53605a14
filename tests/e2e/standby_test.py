# SPDX-License-Identifier: Apache-2.0
"""Two controllers over a real etcd while one job trains: leaders that die, stop and are cut off."""
import json
import signal
import subprocess
import time
import unittest
import unittest.mock

from cluster import BUILD, JOB, REFUSED, SKIP_REASON, number, wait_until
from standby import GRPC_PORTS, MISSING, StandbyCluster

WEIRCTL = BUILD / "controller" / "cli" / "weirctl"
POLICY = "name: kept\njobs: [\"nobody-*\"]\n"
FAIL_OVER_S = 5.0
BUSY_S = 5.0            # more, of a machine that does other things beside
FP16 = {"codec": "fp16", "collective": "ring"}
DENSE = {"codec": "identity", "collective": "ring"}


@unittest.skipIf(REFUSED or MISSING, SKIP_REASON if REFUSED else MISSING)
class StandbyTest(unittest.TestCase):
    """In order of names: each begins with a leader and ends with one."""

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(StandbyCluster("standby"))
        cls.controls = cls.cluster.controls
        cls.cluster.start_ranks()
        cls.cluster.wait_ready()
        cls.cluster.wait_for_steps(20)

    def setUp(self):
        self.cluster.wait_ready()

    def tearDown(self):
        self.assertIsNone(self.cluster.failed_rank())
        lines = self.cluster.steps()
        self.assertEqual([line["step"] for line in lines], list(range(1, len(lines) + 1)))
        self.assertFalse(any(line["skipped"] for line in lines))

    def ask(self, controller, path, body=None, method=None):
        return self.controls.ask(controller, path, body, method)

    def weirctl(self, *arguments):
        """(exit code, output) of weirctl, which is told of both controllers, on their host."""
        host = self.cluster.network.control_address
        both = ",".join(f"{host}:{port}" for port in GRPC_PORTS)
        done = subprocess.run(
            ["ip", "netns", "exec", self.cluster.network.control, WEIRCTL, "--controller", both, *arguments],
            timeout=30, capture_output=True, text=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def kept(self, leader):
        """The things that must outlive a leader: policies, the pin, and what history and trail hold so far."""
        def told(path):
            def answered():
                status, _, answer = self.ask(leader, path)
                return answer if status == 200 else None
            return wait_until(answered, f"an answer to {path}", 20)
        policies = told("/v1/policies")["policies"]
        job = told(f"/v1/jobs/{JOB}")
        trail = told("/v1/audit?page_size=1000").get("records", [])
        return {"policies": sorted((p["name"], p.get("source", "")) for p in policies),
                "pinned": job.get("pinned", ""),
                "version": number(job["active_plan"]["version"]),
                "decisions": {d["id"] for d in self.cluster.decisions()},
                "trail": {record["id"] for record in trail}}

    def fail_over(self, what, to=None):
        """Waits for a leader, for controller `to` if it is given, with all agents and ranks."""
        begin = time.monotonic()
        if to is not None:
            wait_until(lambda: self.controls.metric(to, "weir_leader") == 1, "the other to lead", 20)
        self.cluster.wait_ready()
        took = time.monotonic() - begin
        print(f"{what}: agents and ranks at another leader after {took:.1f} s")
        self.assertLess(took, FAIL_OVER_S + BUSY_S)
        self.cluster.versions()

    def assert_kept(self, before, leader):
        after = self.kept(leader)
        self.assertEqual(after["policies"], before["policies"])
        self.assertEqual(after["pinned"], before["pinned"])
        self.assertGreaterEqual(after["version"], before["version"])
        self.assertLessEqual(before["decisions"], after["decisions"])
        self.assertLessEqual(before["trail"], after["trail"])

    def pin_and_wait(self, choice):
        """Pins, and waits until ranks run that plan: decisions are made and carried out."""
        self.cluster.pin(choice=choice)

        def runs():
            leader = self.controls.leader()
            job = self.ask(leader, f"/v1/jobs/{JOB}")[2] if leader is not None else {}
            plan = job.get("active_plan", {}) if isinstance(job, dict) else {}
            choices = [b.get("choice", {}).get("codec") for b in plan.get("buckets", [])]
            return job.get("rollout_state") == "stable" and choices and set(choices) == {choice["codec"]}
        wait_until(runs, f"the ranks to run {choice}", 30, self.cluster.failed_rank)

    def test_1_a_standby_answers_questions_and_names_the_leader(self):
        leader = self.controls.leader()
        standby = 1 - leader
        status, _, _ = self.ask(leader, "/v1/policies/kept", {"source": POLICY}, "PUT")
        self.assertEqual(status, 200)
        self.pin_and_wait(FP16)
        wait_until(lambda: self.ask(standby, f"/v1/jobs/{JOB}")[2].get("pinned"), "the standby's copy")
        names = [p["name"] for p in self.ask(standby, "/v1/policies")[2]["policies"]]
        self.assertIn("kept", names)
        decisions = self.ask(standby, "/v1/decisions")[2]["decisions"]
        self.assertEqual(self.ask(standby, f"/v1/decisions/{decisions[0]['id']}")[0], 200)
        status, headers, answer = self.ask(standby, f"/v1/jobs/{JOB}:pin",
                                           {"choice": DENSE, "reason": "no"}, "POST")
        self.assertEqual(status, 503)
        self.assertIn("stands by; the leader is at", json.dumps(answer))
        self.assertIn(":778", headers["Weir-Leader"])
        self.assertEqual(self.ask(standby, "/readyz"), (200, unittest.mock.ANY, "ok, standing by\n"))
        code, said = self.weirctl("pin", JOB, "--codec", "fp16", "--collective", "ring", "--reason",
                                  "by weirctl")
        self.assertEqual(code, 0, said)
        code, said = self.weirctl("doctor")
        self.assertIn("it leads, and the shared store answers", said)

    def test_2_a_killed_leader_is_followed_and_nothing_is_lost(self):
        leader = self.controls.leader()
        before = self.kept(leader)
        self.assertIn("kept", [name for name, _ in before["policies"]])
        self.assertTrue(before["pinned"])
        self.controls.kill(f"weir-controller-{leader}")
        self.fail_over("killed", 1 - leader)
        self.assertEqual(self.controls.leader(), 1 - leader)
        self.assert_kept(before, 1 - leader)
        self.controls.start_controller(leader)
        wait_until(lambda: self.ask(leader, "/readyz")[0] == 200, "it to stand by")
        self.pin_and_wait(DENSE)

    def test_3_a_stopped_leader_does_not_act_when_it_wakes(self):
        leader = self.controls.leader()
        before = self.kept(leader)
        child = self.controls.controller(leader)
        child.send_signal(signal.SIGSTOP)
        try:
            self.fail_over("stopped", 1 - leader)
            self.assertEqual(self.controls.leader(), 1 - leader)
            self.pin_and_wait(FP16)
            version = self.kept(1 - leader)["version"]
        finally:
            child.send_signal(signal.SIGCONT)
        wait_until(lambda: self.ask(leader, "/readyz")[0] == 200, "it to stand by")
        status, _, answer = self.ask(leader, f"/v1/jobs/{JOB}:pin", {"choice": DENSE, "reason": "no"},
                                     "POST")
        self.assertEqual(status, 503, answer)
        self.cluster.wait_for_steps(20)
        self.assert_kept(dict(before, pinned=self.kept(1 - leader)["pinned"]), 1 - leader)
        self.assertEqual(self.kept(1 - leader)["version"], version, "the woken one changed the plan")
        self.assertEqual({line["plan_version"] for line in self.cluster.steps()[-10:]}, {version})

    def test_4_a_leader_cut_off_from_etcd_is_followed(self):
        leader = self.controls.leader()
        before = self.kept(leader)
        self.controls.partition(leader, True)
        try:
            self.fail_over("cut off", 1 - leader)
            self.assertEqual(self.controls.leader(), 1 - leader)
            self.assert_kept(before, 1 - leader)
            wait_until(lambda: self.ask(leader, "/readyz")[0] == 503, "it to say so")
            self.assertIn("shared store cannot be used", json.dumps(self.ask(leader, "/readyz")[2]))
            self.pin_and_wait(DENSE)
        finally:
            self.controls.partition(leader, False)
        wait_until(lambda: self.ask(leader, "/readyz")[0] == 200, "it to stand by")

    def test_5_without_a_quorum_training_goes_on_and_everybody_says_so(self):
        leader = self.controls.leader()
        before = self.kept(leader)
        for member in (0, 1):
            self.controls.etcd.kill(member)
        try:
            for controller in (0, 1):
                wait_until(lambda c=controller: self.ask(c, "/readyz")[0] == 503, "it to say so", 15)
                self.assertEqual(self.controls.metric(controller, "weir_store_available"), 0)
                self.assertEqual(self.controls.metric(controller, "weir_leader"), 0)
                self.assertEqual(self.ask(controller, "/healthz")[0], 200)
                status, _, answer = self.ask(controller, f"/v1/jobs/{JOB}:pin",
                                             {"choice": FP16, "reason": "no"}, "POST")
                self.assertEqual(status, 503)
                self.assertIn("shared store cannot be used", json.dumps(answer))
            code, said = self.weirctl("doctor")
            self.assertEqual(code, 1)
            self.assertRegex(said, r"FAIL  the shared store cannot be used: .*jobs go on")
            self.cluster.wait_for_steps(20)
            self.assertEqual({line["plan_version"] for line in self.cluster.steps()[-10:]},
                             {before["version"]}, "the plan is kept")
            self.assertEqual(self.ask(leader, f"/v1/jobs/{JOB}")[0], 200, "what is known is told")
        finally:
            for member in (0, 1):
                self.controls.etcd.start(member)
        self.fail_over("etcd back")
        self.assert_kept(before, self.controls.leader())
        self.pin_and_wait(FP16)

    def test_6_a_slow_etcd_delays_and_loses_nothing(self):
        """The member that leads the others is stopped in bursts, as one is whose disk blocks."""
        before = self.kept(self.controls.leader())
        member = self.controls.etcd.leader()
        end = time.monotonic() + 6
        while time.monotonic() < end:
            self.controls.etcd.signal(member, signal.SIGSTOP)
            time.sleep(0.35)
            self.controls.etcd.signal(member, signal.SIGCONT)
            time.sleep(0.15)
        self.cluster.wait_ready()
        self.assert_kept(before, self.controls.leader())
        self.pin_and_wait(DENSE)
        self.cluster.versions()

    def test_7_an_ended_leader_is_followed_at_once(self):
        leader = self.controls.leader()
        child = self.controls.controller(leader)
        child.send_signal(signal.SIGTERM)
        child.wait(timeout=10)
        took = self.cluster.wait_ready()
        print(f"ended: agents and ranks at another leader after {took:.1f} s")
        self.assertLess(took, FAIL_OVER_S + BUSY_S)


if __name__ == "__main__":
    unittest.main()
