# SPDX-License-Identifier: Apache-2.0
"""An operator's requests during a training: REST, metrics, weirctl."""
import json
import signal
import subprocess
import sys
import unittest

import jsonschema
import yaml

from cluster import (BUILD, JOB, REFUSED, ROOT, SKIP_REASON, SLOW_MBPS, Cluster, http, wait_until)

WEIRCTL = BUILD / "controller" / "cli" / "weirctl"
OK, FAILURE, USAGE, NOT_FOUND, UNREACHABLE, REFUSED_OR_INVALID = range(6)   # client.h


@unittest.skipIf(REFUSED, SKIP_REASON)
class OperateTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster("operate"))
        cls.cluster.start_ranks()
        cls.port = cls.cluster.controller_port()
        cls.cluster.wait_for_steps(40)
        known = {d["id"] for d in cls.cluster.decisions()}
        cls.cluster.network.shape(SLOW_MBPS, 0.0)
        cls.cluster.wait_for_switch(known, "bandwidth")

    def weirctl(self, *arguments, code=OK, controller=None):
        """Runs weirctl; its output, standard error behind."""
        controller = controller or f"127.0.0.1:{self.port}"
        done = subprocess.run([WEIRCTL, "--controller", controller, *arguments], timeout=30,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, code, f"weirctl {' '.join(map(str, arguments))}: {done.stderr}")
        if code not in (OK, USAGE):
            self.assertIn("weirctl: ", done.stderr)
        return done.stdout if code == OK else done.stdout + done.stderr

    # REST.

    def test_every_answer_matches_the_served_document(self):
        _, port = self.cluster.controls.url.rsplit(":", 1)
        done = subprocess.run(
            [sys.executable, ROOT / "tests/controller/server/rest_check.py", port, JOB],
            timeout=60, capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout[-2000:] + done.stderr[-2000:])
        for name in ("ListLinks", "Explain", "GetSeries", "the error"):
            self.assertIn(f"{name} matches its schema", done.stdout)

    def test_all_decisions_match_one_by_one_and_replay_identically(self):
        url = self.cluster.controls.url
        document = json.loads(http(url + "/openapi.json")[1])
        schema = {"$ref": "#/components/schemas/Decision", "components": document["components"]}
        decisions = self.cluster.decisions()
        self.assertGreaterEqual(len(decisions), 2)
        for known in decisions[-10:]:
            status, body = http(f"{url}/v1/decisions/{known['id']}")
            self.assertEqual(status, 200)
            decision = json.loads(body)
            jsonschema.Draft7Validator(schema).validate(decision)
            self.assertEqual(decision["reason"], known["reason"])
            self.assertIn("latency", decision["snapshot_json"])

    # Metrics.

    def lint(self, text):
        done = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True,
                              timeout=30, check=False)
        self.assertEqual((done.returncode, done.stdout + done.stderr), (0, b""))
        return text.decode()

    def test_metrics_of_controller_and_agents_are_clean(self):
        status, text = http(self.cluster.controls.url + "/metrics")
        self.assertEqual(status, 200)
        found = self.lint(text)
        for name in ("weir_prediction_error_ratio", "weir_"):
            self.assertRegex(found, rf"(?m)^{name}")
        for host in range(self.cluster.hosts):
            found = self.lint(self.cluster.agent_metrics(host))
            self.assertRegex(found, r"(?m)^weir_agent_controller_connected(\{.*\})? 1$")
            self.assertRegex(found, r"(?m)^weir_agent_ranks(\{.*\})? 1$")

    # Who the ranks are.

    def test_the_key_of_the_ranks_is_shown(self):
        job = json.loads(self.weirctl("get", "jobs", JOB, "-o", "json"))
        self.assertRegex(job["key_id"], r"^[0-9a-f]{16}$")
        self.assertEqual(job["frame_protection"], "FRAME_PROTECTION_AUTHENTICATED")
        self.assertEqual(job["unauthenticated_peers"], 0)
        self.assertRegex(self.weirctl("get", "jobs"), r"(?m)^demo .* authenticated$")
        found = http(self.cluster.controls.url + "/metrics")[1].decode()
        self.assertIn(f'weir_job_identity_info{{training_job="{JOB}",frames="authenticated",'
                      f'key_id="{job["key_id"]}"}} 1', found)
        self.assertIn(f'weir_job_unauthenticated_peers{{training_job="{JOB}"}} 0', found)

    # weirctl.

    def test_get_prints_tables_json_and_yaml(self):
        keys = {"nodes": "h0", "links": "h0", "jobs": JOB, "decisions": JOB, "policies": "default"}
        for kind, expected in keys.items():
            table = self.weirctl("get", kind).splitlines()
            self.assertRegex(table[0], r"^[A-Z][A-Z -]+$", kind)
            self.assertTrue(any(expected in line for line in table[1:]), (kind, table))
            self.assertTrue(all(line == line.rstrip() for line in table), kind)
            document = json.loads(self.weirctl("get", kind, "-o", "json"))
            self.assertEqual(list(document)[0], kind)
            self.assertGreaterEqual(len(document[kind]), 1)
            from_yaml = yaml.safe_load(self.weirctl("get", kind, "-o", "yaml"))
            # The training runs on: a decision or a link may have been added between the two calls.
            self.assertGreaterEqual(len(from_yaml[kind]), len(document[kind]))
        self.assertEqual(json.loads(self.weirctl("get", "jobs", JOB, "-o", "json"))["world"], 2)

    def test_describe_shows_everything_of_one(self):
        job = yaml.safe_load(self.weirctl("describe", "jobs", JOB, "-o", "yaml"))
        self.assertEqual(len(job["ranks"]), 2)
        self.assertTrue(job["active_plan"]["buckets"])
        node = yaml.safe_load(self.weirctl("describe", "nodes", "h1", "-o", "yaml"))
        self.assertEqual(node["jobs"], [JOB])
        decision = self.cluster.decisions()[-1]["id"]
        self.assertTrue(yaml.safe_load(
            self.weirctl("describe", "decisions", decision, "-o", "yaml"))["candidates"])

    def test_explain_tells_and_replays(self):
        done = subprocess.run([WEIRCTL, "--controller", f"127.0.0.1:{self.port}", "explain", JOB,
                               "--replay"], timeout=30, capture_output=True, text=True, check=True)
        self.assertRegex(done.stderr, r"replay: identical \([0-9a-f]+\)")
        self.assertRegex(done.stdout, r"decision \d+ at step \d+ \(\w+\), outcome \w+")
        self.assertRegex(done.stdout, r"(?m)^ +\* +\S+ .*over ")
        self.assertRegex(done.stdout, r"Dense would take +[\d.]+ ?m?s per step")
        document = json.loads(self.weirctl("explain", JOB, "-o", "json"))
        self.assertEqual(sum(c.get("chosen", False) for c in document["decision"]["candidates"]), 1)

    def test_watch_prints_events_until_ended(self):
        watch = subprocess.Popen([WEIRCTL, "--controller", f"127.0.0.1:{self.port}", "watch",
                                  "jobs", "-o", "json"], stdout=subprocess.PIPE, text=True)
        self.addCleanup(watch.stdout.close)
        self.addCleanup(watch.wait)
        self.addCleanup(watch.kill)
        event = json.loads(watch.stdout.readline())
        self.assertEqual((event["kind"], event["job"]), ("job", JOB))
        watch.send_signal(signal.SIGINT)
        self.assertEqual(watch.wait(timeout=10), -signal.SIGINT)

    def test_exit_codes_are_those_of_the_help(self):
        self.assertRegex(self.weirctl("--help"), r"(?s)exit status:\s+0 +ok\b.*\b1 +failure.*\b2 .*"
                         r"\b3 +not found.*\b4 .*controller.*\b5 +refused")
        self.weirctl("get", code=USAGE)
        self.weirctl("bogus", code=USAGE)
        self.weirctl("get", "jobs", "absent", code=NOT_FOUND)
        self.weirctl("explain", "absent", code=NOT_FOUND)
        self.weirctl("get", "nodes", code=UNREACHABLE, controller="127.0.0.1:1")
        policy = self.cluster.directory / "bogus.yaml"
        policy.write_text("name: x\nbogus: 1\n")
        self.weirctl("apply", "-f", policy, code=REFUSED_OR_INVALID)
        self.weirctl("pin", JOB, "--codec", "absent", "--reason", "test", code=NOT_FOUND)

    def test_pin_holds_until_unpinned(self):
        self.weirctl("pin", JOB, "--codec", "fp16", "--collective", "ring", "--actor", "tester",
                     "--reason", "to see")
        wait_until(lambda: "fp16" in self.cluster.steps()[-1]["choice"], "ranks to run fp16")
        job = json.loads(self.weirctl("get", "jobs", JOB, "-o", "json"))
        self.assertIn("tester", job["pinned"])
        self.weirctl("unpin", JOB, "--actor", "tester")
        self.assertFalse(json.loads(self.weirctl("get", "jobs", JOB, "-o", "json")).get("pinned"))

    def test_z_doctor_finds_a_missing_agent(self):
        wait_until(lambda: self.cluster.job().get("rollout_state") == "stable", "no rollout")
        report = self.weirctl("doctor")
        self.assertIn("ok    agent on h0", report)
        self.assertIn(f"ok    job {JOB}: 2 of 2 ranks attached", report)
        self.cluster.controls.kill("weir-agent-h1")
        wait_until(lambda: sum(n.get("connected", False) for n in self.cluster.controls.get(
            "/v1/nodes")["nodes"]) == 1, "the controller to notice")
        report = self.weirctl("doctor", code=FAILURE)
        self.assertIn("FAIL  agent on h1", report)
        self.assertIn(f"FAIL  job {JOB}: 1 of 2 ranks attached", report)


@unittest.skipIf(REFUSED, SKIP_REASON)
class UnauthenticatedTest(unittest.TestCase):
    """Ranks that were told to run without a key, over a network."""

    def test_weirctl_and_metrics_of_agent_and_controller_say_so(self):
        cluster = self.enterContext(Cluster("unauthenticated"))
        cluster.start_ranks(WEIR_UNAUTHENTICATED="1")
        port = cluster.controller_port()
        wait_until(lambda: cluster.job().get("state") == "running", "both ranks at the controller")

        def weirctl(*arguments):
            return subprocess.run([WEIRCTL, "--controller", f"127.0.0.1:{port}", *arguments], timeout=30,
                                  capture_output=True, text=True, check=False).stdout

        job = json.loads(weirctl("get", "jobs", JOB, "-o", "json"))
        self.assertEqual((job["key_id"], job["frame_protection"], job["unauthenticated_peers"]),
                         ("", "FRAME_PROTECTION_CHECKED", 1))
        self.assertRegex(weirctl("get", "jobs"), r"(?m)^demo .* unauthenticated$")
        self.assertIn("a rank reaches 1 peers over a network without any proof", weirctl("doctor"))
        self.assertIn(f'weir_job_unauthenticated_peers{{training_job="{JOB}"}} 1',
                      http(cluster.controls.url + "/metrics")[1].decode())
        for host in range(cluster.hosts):
            wait_until(lambda: "weir_agent_unauthenticated_ranks 1" in
                       cluster.agent_metrics(host).decode(), f"the metrics of the agent on h{host}")


if __name__ == "__main__":
    unittest.main()
