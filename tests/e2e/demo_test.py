# SPDX-License-Identifier: Apache-2.0
"""deploy/demo, shortened: a training that meets a slow network, its report, and its end by Ctrl-C."""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import unittest

from cluster import BUILD, OUT, REFUSED, ROOT, SKIP_REASON
from demo_job import network
from network_test import children_of, running, wait_until as holds_soon

PHASES = [{"name": "fast", "steps": 50, "rate_mbps": 1000, "delay_ms": 0},
          {"name": "slow", "steps": 24, "rate_mbps": 10, "delay_ms": 5},
          {"name": "recovering", "steps": 40, "rate_mbps": 500, "delay_ms": 1}]
STEPS = sum(phase["steps"] for phase in PHASES)
RUNS = ["dense", "static 0.01", "adaptive"]
OPTIONAL = (type(None),)
FIGURE = (int, float)


def start_demo(directory, *arguments):
    """The driver without deploy/demo's shell part, which installs and builds."""
    directory.mkdir(parents=True, exist_ok=True)
    schedule = directory / "schedule.json"
    schedule.write_text(json.dumps(PHASES))
    return subprocess.Popen(
        [sys.executable, "-u", "-m", "demo_job", "--hosts", "2", "--model-params", "600000",
         "--schedule", schedule, "--out", directory, "--build", BUILD, *map(str, arguments)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT / "deploy")}, start_new_session=True)


@unittest.skipIf(REFUSED, SKIP_REASON)
class ReportTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.directory = OUT / "demo"   # files of an earlier test there must not matter
        file = cls.directory / "asked-for.json"
        # The target is met early, because this tests the report and not the quality of training.
        demo = start_demo(cls.directory, "--quick", "--runs", ",".join(RUNS), "--target", 3.5,
                          "--json", file)
        cls.addClassCleanup(demo.kill)
        cls.output = demo.communicate(timeout=340)[0]
        (cls.directory / "output.txt").write_text(cls.output)
        if demo.returncode != 0:
            raise AssertionError(f"the demo ended with {demo.returncode}: {cls.output[-2000:]}")
        cls.report = json.loads(file.read_text())

    def typed(self, value, types, where):
        self.assertIsInstance(value, types, where)
        self.assertNotIsInstance(value, bool, where)
        return value

    def test_every_run_completes_and_loses_no_step(self):
        for run in RUNS:
            lines = [json.loads(line) for line in (
                self.directory / f"{run.replace(' ', '-')}.jsonl").read_text().splitlines()]
            steps = [line for line in lines if line["kind"] == "step"]
            self.assertEqual([line["step"] for line in steps], list(range(1, STEPS + 1)), run)
            self.assertFalse(any(line["skipped"] for line in steps), run)
        for name in ("adaptive", "fast-network"):
            for rank in (0, 1):
                log = (self.directory / f"{name}-rank{rank}.log").read_text()
                self.assertNotIn("Traceback", log)

    def test_schedule_and_machine(self):
        found = [{key: phase[key] for key in PHASES[0]} for phase in self.report["schedule"]]
        self.assertEqual(found, PHASES)
        self.assertEqual(self.report["target_validation_loss"], 3.5)
        machine = self.report["machine"]
        for key in ("processor", "kernel", "torch", "rate_emulation", "delay_emulation"):
            self.assertNotEqual(self.typed(machine[key], str, key), "", key)
        self.assertEqual((machine["hosts"], machine["cores"]), (2, os.cpu_count()))

    def test_runs(self):
        runs = self.report["runs"]
        self.assertEqual([run["name"] for run in runs], RUNS)
        for run in runs:
            where = run["name"]
            self.assertEqual((run["steps"], run["steps_skipped"]), (STEPS, 0), where)
            total = self.typed(run["training_time_s"], FIGURE, where)
            self.assertGreater(self.typed(run["time_to_target_s"], FIGURE, where), 0)
            self.assertLessEqual(run["time_to_target_s"], total)
            self.assertTrue(0.5 < self.typed(run["final_validation_loss"], float, where) < 3.5)
            self.assertGreater(self.typed(run["bytes_sent"], int, where), 1_000_000)
            phases = run["step_time_s"]
            self.assertEqual([(p["phase"], p["steps"]) for p in phases],
                             [(p["name"], p["steps"]) for p in PHASES])
            for phase in phases:
                self.assertTrue(0 < self.typed(phase["median"], float, where)
                                <= self.typed(phase["p99"], float, where) < 60)
        dense, adaptive = runs[0], runs[-1]
        self.assertLess(adaptive["bytes_sent"], dense["bytes_sent"])
        self.assertLess(adaptive["step_time_s"][1]["median"], dense["step_time_s"][1]["median"],
                        "on the slow network adaptive steps are faster than dense ones")

    def test_ratios_are_those_of_the_runs(self):
        ratios = self.report["ratios"]
        times = {run["name"]: run["time_to_target_s"] for run in self.report["runs"]}
        self.assertAlmostEqual(ratios["adaptive_over_dense"], times["adaptive"] / times["dense"])
        self.assertAlmostEqual(ratios["adaptive_over_best_static"],
                               times["adaptive"] / times["static 0.01"])
        self.assertTrue(0.2 < self.typed(ratios["fast_network_step_ratio"], float, "ratio") < 5)
        error = self.report["prediction_median_abs_error"]
        self.assertTrue(0 <= self.typed(error, float, "prediction error") < 10)

    def test_decisions_say_what_changed_and_why(self):
        decisions = self.report["decisions"]
        self.assertGreaterEqual(len(decisions), 1)
        for decision in decisions:
            for key in ("step", "trigger_step"):
                self.assertTrue(0 <= self.typed(decision[key], int, key) <= STEPS, decision)
            self.assertLessEqual(decision["trigger_step"], decision["step"])
            for key in ("to", "reason", "trigger", "outcome"):
                self.assertNotEqual(self.typed(decision[key], str, key), "", decision)
            self.typed(decision["from"], str, "from")
            self.assertNotEqual(decision["from"], decision["to"])
        steps = [decision["step"] for decision in decisions]
        self.assertEqual(steps, sorted(steps), "of this run, in order")
        slow = range(PHASES[0]["steps"], PHASES[0]["steps"] + PHASES[1]["steps"])
        self.assertTrue(any(decision["step"] in slow for decision in decisions),
                        f"no plan in the slow phase: {decisions}")
        adaptive = (self.directory / "adaptive.jsonl").read_text().splitlines()
        self.assertGreaterEqual(len({json.loads(line).get("plan_version") for line in adaptive}), 3,
                                "ranks ran more than one plan")

    def test_html_report_and_output(self):
        page = (self.directory / "report.html").read_text()
        for run in RUNS:
            self.assertIn(run, page)
        self.assertIn("Weir reached the validation loss 3.5 in", self.output)
        self.assertRegex(self.output, r"round 1/4 weir: [0-9.]+ s a step")
        self.assertIn("</svg>", (self.directory / "loss.svg").read_text())
        self.assertRegex((self.directory / "explain.txt").read_text(), r"\ndecision \d+ at step \d+ ")
        self.assertRegex(self.output, r"controller: http://127\.0\.0\.1:\d+ ")
        self.assertIn("decision at step", self.output)


@unittest.skipIf(REFUSED, SKIP_REASON)
class InterruptTest(unittest.TestCase):
    """With controller and agents; tests/deploy/network_test.py interrupts a dense run."""

    def test_interrupt_of_an_adaptive_run_leaves_nothing(self):
        demo = start_demo(OUT / "interrupt", "--runs", "adaptive")
        self.addCleanup(demo.stdout.close)
        self.addCleanup(demo.wait)
        self.addCleanup(demo.kill)
        for line in demo.stdout:
            if re.search(r"step +\d+/", line):
                break
        children = children_of(demo.pid)
        self.assertGreaterEqual(len(children), 5, "controller, two agents, two ranks")
        demo.send_signal(signal.SIGINT)
        demo.stdout.read()
        self.assertEqual(demo.wait(timeout=30), 130)
        self.assertEqual([n for n in network.namespaces() if f"-{demo.pid}-" in n], [])
        self.assertTrue(holds_soon(lambda: not any(map(running, children))))
        left = [entry.name for entry in pathlib.Path("/proc").iterdir() if entry.name.isdigit()
                and str(OUT / "interrupt") in _command_line(entry)]
        self.assertEqual(left, [])


def _command_line(process):
    try:
        return (process / "cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


if __name__ == "__main__":
    unittest.main()
