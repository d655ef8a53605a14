# SPDX-License-Identifier: Apache-2.0
"""The demo's driver without network and training: schedules, options, arithmetic, reports."""
import io
import json
import math
import pathlib
import sys
import tempfile
import time
import unittest
import unittest.mock
import xml.etree.ElementTree
from contextlib import redirect_stderr, redirect_stdout

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "deploy"))

from demo_job import __main__ as driver
from demo_job import offload, plots, report, schedule, stats
from demo_job.children import Children
from demo_job.schedule import ScheduleError
from demo_job.training import Result, TrainingError

PHASE = {"name": "slow", "steps": 10, "rate_mbps": 50, "delay_ms": 2}


class ScheduleTest(unittest.TestCase):

    def parse(self, document):
        return schedule.parse(json.dumps(document), "s.json", 1.5)

    def test_list_and_object_forms(self):
        self.assertEqual(self.parse([PHASE]).target, 1.5)
        full = self.parse({"phases": [PHASE, {"steps": 5, "rate_mbps": 0}],
                           "target_validation_loss": 2})
        self.assertEqual((full.steps, full.target), (15, 2.0))
        self.assertEqual(full.phases[1].name, "phase 2")
        self.assertEqual(full.phases[1].describe(), "unshaped, 0 ms")

    def test_phase_of_each_step(self):
        found = self.parse([PHASE, {**PHASE, "steps": 3}, PHASE])
        self.assertEqual(found.boundaries(), [0, 10, 13])
        self.assertEqual([found.phase_index(s) for s in (0, 9, 10, 12, 13, 22, 23, 99)],
                         [0, 0, 1, 1, 2, 2, 2, 2])

    def test_errors_name_phase_key_and_expectation(self):
        cases = [
            ("nonsense", "not JSON"),
            ('[{"steps":1,"steps":2,"rate_mbps":1}]', "appears twice"),
            ("[]", "at least one phase"),
            ("{}", "at least one phase"),
            ('{"phase": []}', "unknown key 'phase'"),
            ("[3]", "phase 0: expected an object"),
            (json.dumps([{"rate_mbps": 5}]), "'steps' is missing"),
            (json.dumps([{"steps": 5}]), "'rate_mbps' is missing"),
            (json.dumps([{**PHASE, "steps": 0}]), "steps: expected an integer"),
            (json.dumps([{**PHASE, "steps": 1.5}]), "steps: expected an integer"),
            (json.dumps([{**PHASE, "steps": True}]), "steps: expected an integer"),
            (json.dumps([PHASE, {**PHASE, "rate_mbps": -1}]), "phase 1: rate_mbps"),
            (json.dumps([{**PHASE, "rate_mbps": 0.01}]), "at least 0.1"),
            (json.dumps([{**PHASE, "delay_ms": "2"}]), "delay_ms: expected a number"),
            (json.dumps([{**PHASE, "bandwidth": 2}]), "unknown key 'bandwidth'"),
            (json.dumps([{**PHASE, "loss": 0.01}]), "unknown key 'loss'"),
            (json.dumps([{**PHASE, "loss_ratio": 0.6}]), "loss_ratio: expected a number from 0"),
            ('[{"steps": 2, "rate_mbps": NaN}]', "rate_mbps: expected a number"),
        ]
        for text, expected in cases:
            with self.assertRaises(ScheduleError) as caught:
                schedule.parse(text, "s.json", 1.5)
            self.assertIn("s.json", str(caught.exception))
            self.assertIn(expected, str(caught.exception), text)


class OptionsTest(unittest.TestCase):

    def test_runs_are_selected_in_their_order(self):
        self.assertEqual(driver.selected_runs("adaptive,dense", False), ["dense", "adaptive"])
        self.assertEqual(driver.selected_runs("static", False),
                         ["static 0.1", "static 0.01", "static 0.001"])
        self.assertEqual(driver.selected_runs(None, True), ["dense", "adaptive"])
        self.assertEqual(len(driver.selected_runs(None, False)), 5)

    def test_unknown_run_lists_the_known(self):
        with self.assertRaisesRegex(ValueError, "unknown run 'fast'; known: dense, static 0.1"):
            driver.selected_runs("dense,fast", False)

    def test_schedule_file_and_target(self):
        with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
            json.dump([PHASE], file)
            file.flush()
            options = driver.parse(["--schedule", file.name, "--target", "2.5"])
        self.assertEqual((options.schedule.steps, options.schedule.target), (10, 2.5))

    def test_aggregator_has_its_own_schedule_and_leaves_the_others_alone(self):
        options = driver.parse(["--aggregator"])
        self.assertEqual(options.runs, ["dense", "adaptive"])
        self.assertIs(options.schedule, schedule.AGGREGATOR)
        self.assertTrue(options.no_fast_network)
        plain, quick = driver.parse([]), driver.parse(["--quick"])
        self.assertEqual((plain.schedule, quick.schedule), (schedule.FULL, schedule.QUICK))
        self.assertFalse(plain.no_fast_network or quick.no_fast_network or plain.aggregator)
        with redirect_stderr(io.StringIO()) as said, self.assertRaises(SystemExit):
            driver.parse(["--aggregator", "--hosts", "1"])
        self.assertIn("--aggregator: expected at least 2 hosts, found 1", said.getvalue())

    def test_validation_interval_is_bounded(self):
        self.assertEqual([driver.validation_interval(n) for n in (10, 250, 10000)], [5, 10, 20])


class StatsTest(unittest.TestCase):

    def test_percentiles_by_hand(self):
        self.assertEqual(stats.median([3, 1, 2]), 2)
        self.assertEqual(stats.median([1, 2, 3, 4]), 2.5)
        self.assertAlmostEqual(stats.percentile(range(101), 0.99), 99)
        self.assertIsNone(stats.median([]))

    def run_of(self, name, time, loss=1.0):
        return {"name": name, "time_to_target_s": time, "final_validation_loss": loss}

    def test_ratios_use_the_best_static_that_reached_the_target(self):
        runs = [self.run_of("dense", 100.0, 2.0), self.run_of("static 0.1", 60.0),
                self.run_of("static 0.01", 50.0), self.run_of("static 0.001", None),
                self.run_of("adaptive", 40.0, 2.02)]
        found = stats.ratios(runs, 1.01)
        self.assertAlmostEqual(found["adaptive_over_dense"], 0.4)
        self.assertAlmostEqual(found["adaptive_over_best_static"], 0.8)
        self.assertEqual(found["fast_network_step_ratio"], 1.01)
        self.assertAlmostEqual(found["final_loss_adaptive_over_dense"], 1.01)

    def test_ratios_without_both_runs_are_unknown(self):
        found = stats.ratios([self.run_of("adaptive", None)], None)
        self.assertEqual(set(found.values()), {None})

    def test_prediction_errors_need_both_sides(self):
        points = [{"predicted_network_s": 1.1, "measured_network_s": 1.0},
                  {"predicted_network_s": 0.5, "measured_network_s": 1.0},
                  {"measured_network_s": 1.0}, {"predicted_network_s": 1.0}]
        self.assertEqual([round(e, 6) for e in stats.prediction_errors(points)], [0.1, 0.5])

    def test_steps_until_the_first_event_of_the_phase(self):
        self.assertEqual(stats.steps_until([101, 201], [50, 108, 150]), [7, None])


def sample_report():
    phases = schedule.parse(json.dumps([PHASE, {**PHASE, "name": "<fast>", "steps": 5}]), "s", 1.5)
    result = Result("dense", [])
    result.steps = [{"step": s, "step_s": 0.1 * s, "time_s": 1.0 * s} for s in range(1, 19)]
    result.validations = [{"step": 5, "time_s": 5.0, "loss": 2.0},
                          {"step": 10, "time_s": 10.0, "loss": 1.4}]
    result.end = {"steps": 18, "time_s": 18.0, "time_to_target_s": 10.0, "bytes_sent": 5_000_000,
                  "final_validation_loss": 1.4, "steps_skipped": 0}
    found = [
        {"step": "11", "activation_step": "12", "trigger_step": "11", "switched": True,
         "trigger": "bandwidth_change", "outcome": "active", "from": "dense over ring", "to": "top_k 0.1 <b>",
         "reason": "bandwidth fell 20 x"},
        {"step": "14", "switched": False, "from": "a", "to": "a"}]
    decisions = report.decisions_of(found)
    runs = [result.summary(phases)]
    document = {"schedule": [p.__dict__ for p in phases.phases], "target_validation_loss": 1.5,
                "runs": runs, "ratios": stats.ratios(runs, None), "decisions": decisions,
                "reactions": report.reactions(phases, found), "fast_network": None, "offload": None,
                "prediction_median_abs_error": 0.1, "machine": {"hosts": 4, "cores": 2},
                "model_parameters": 2_500_000, "started": "now", "notes": ["a <note>"]}
    return document, [result]


class ReportTest(unittest.TestCase):

    def test_summary_cuts_phases_and_counts_the_extension_in_the_last(self):
        run = sample_report()[0]["runs"][0]
        self.assertEqual([p["steps"] for p in run["step_time_s"]], [10, 8])
        self.assertAlmostEqual(run["step_time_s"][0]["median"], 0.55)
        self.assertAlmostEqual(run["step_time_s"][1]["median"], 1.45)

    def test_only_switches_are_decisions_and_step_is_where_they_took_effect(self):
        document, _ = sample_report()
        self.assertEqual([d["step"] for d in document["decisions"]], [12])
        self.assertEqual(document["decisions"][0]["trigger_step"], 11)
        self.assertEqual(document["reactions"], [{"phase": "<fast>", "decision_steps": 1,
                                                   "plan_steps": 2}])

    def test_switch_that_never_took_effect_has_the_step_of_its_decision(self):
        found = report.decisions_of([{"step": "118", "activation_step": "0", "trigger_step": "117",
                                      "switched": True, "outcome": "withdrawn"}])
        self.assertEqual([(d["step"], d["outcome"]) for d in found], [(118, "withdrawn")])

    def test_terminal_table_is_aligned(self):
        lines = report.terminal_table(sample_report()[0]).splitlines()
        self.assertEqual(len(lines), 2)
        self.assertEqual(len(lines[0]), len(lines[1]))
        self.assertIn("5 MB", lines[1])

    def test_page_loads_nothing_and_escapes(self):
        document, results = sample_report()
        points = [{"step": s, "ratio": 0.1, "predicted_network_s": 1.0, "measured_network_s": 1.1,
                   "bandwidth_bytes_per_s": 1e6} for s in range(1, 15)]
        page = report.html_page(document, results, points)
        for forbidden in ("http://", "https://", "<script", "src=", "<note>", "<fast>", "0.1 <b>"):
            self.assertNotIn(forbidden, page)
        self.assertEqual(page.count("<svg"), 6)
        body = page[page.index("<body>"):page.index("</html>")]
        xml.etree.ElementTree.fromstring(body)  # well-formed

    def test_the_sentence_says_who_reached_the_target(self):
        document, _ = sample_report()
        self.assertEqual(report.sentence(document), "")  # no adaptive run to speak of
        dense = document["runs"][0]
        for adaptive_s, dense_s, words in (
                (5.0, 10.0, "Weir reached the validation loss 1.5 in 5.0 s; dense needed 10.0 s."),
                (5.0, None, "Weir reached the validation loss 1.5 in 5.0 s; dense did not reach it."),
                (None, 10.0, "Weir did not reach the validation loss 1.5; dense did in 10.0 s."),
                (None, None, "Neither Weir nor dense reached the validation loss 1.5.")):
            document["runs"] = [{**dense, "time_to_target_s": dense_s},
                                {**dense, "name": "adaptive", "time_to_target_s": adaptive_s}]
            self.assertEqual(report.sentence(document), words)
            self.assertTrue(report.terminal_headline(document).startswith(words))

    def test_claims_are_ticked_crossed_or_left_open(self):
        marks = [report.Claim("c", value, 15).mark() for value in (15, 15.1, None)]
        self.assertEqual(marks, ["\u2713", "\u2717", "-"])
        self.assertEqual(report.Claim("c", None, 15, optional=True).mark(), "\u2713")

    def test_picture_of_the_loss_stands_alone(self):
        document, results = sample_report()
        drawn = report.loss_picture(document, results)
        root = xml.etree.ElementTree.fromstring(drawn)
        self.assertEqual(root.tag, "{http://www.w3.org/2000/svg}svg")
        self.assertIn("dense", "".join(root.itertext()))
        self.assertEqual(drawn.count("http"), 1)  # the name space alone
        results[0].validations = []
        document["target_validation_loss"] = 1.5
        self.assertEqual(report.loss_picture(document, results), "")


class FailedStageTest(unittest.TestCase):

    def test_runs_before_a_failure_are_reported(self):
        _, results = sample_report()

        def run(demo):
            demo.results.extend(results)
            raise TrainingError("rank 0 said nothing for 240 s")
        network = unittest.mock.Mock()
        network.describe.return_value = {"rate": "r", "delay": "d", "congestion_control": "c"}
        options = driver.parse(["--quick", "--runs", "dense"])
        with tempfile.TemporaryDirectory() as directory, \
                unittest.mock.patch.object(driver.Demo, "run", run), \
                redirect_stdout(io.StringIO()) as said:
            with self.assertRaises(TrainingError):
                driver.drive(options, network, {}, pathlib.Path(directory), [])
            found = json.loads((pathlib.Path(directory) / "report.json").read_text())
            page = (pathlib.Path(directory) / "report.html").read_text()
        self.assertEqual([run["name"] for run in found["runs"]], ["dense"])
        self.assertEqual(found["notes"],
                         ["This demo did not end: rank 0 said nothing for 240 s"])
        self.assertIn("did not end: rank 0 said nothing", page)
        self.assertIn("report.html", said.getvalue())


METRICS = """# HELP weir_aggregator_packets_total Packets received, by what became of them.
weir_aggregator_packets_total{shard="0",outcome="added"} %d
weir_aggregator_packets_total{shard="0",outcome="completed"} %d
weir_aggregator_packets_total{shard="0",outcome="duplicate"} 7
"""


def candidate(label, step_s, excluded_by=""):
    return {"label": label, "step_s": step_s, "feasible": not excluded_by,
            "excluded_by": excluded_by}


class OffloadTest(unittest.TestCase):
    """Two phases of 10 and 5 steps; the second one runs on an aggregator until that is lost."""

    def setUp(self):
        self.schedule = schedule.parse(json.dumps([PHASE, {**PHASE, "name": "b", "steps": 5}]), "s", 1)
        self.result = Result("adaptive", [])
        self.result.changed_at = [(1, 0)]
        self.said, self.metrics = {}, METRICS % (0, 0)
        self.log = offload.LeaseLog(2, lambda: self.said, lambda: self.metrics)

    def step(self, choice):
        step = len(self.result.steps) + 1
        line = {"kind": "step", "step": step, "choice": choice}
        self.result.steps.append(line)
        if step == 10:   # as Training does: the phase ends with this step
            self.result.changed_at.append((11, 1))
        self.log(self.result, line)

    def run_all(self):
        for _ in range(10):
            self.step("dense over ring")
        self.metrics = METRICS % (900, 300)
        lease = {"job": "demo", "epoch": 3, "slots": 64, "workers": ["a", "b"]}
        self.said = {"name": "tor", "slots": 1024, "goodput_bits_per_s": 8e8, "leases": [lease]}
        for _ in range(4):
            self.step("dense over switchml")
        self.said = {**self.said, "leases": []}
        self.step("dense over ring")
        self.log(self.result, {"kind": "end"})
        ring = candidate("dense over ring", 0.3)
        return offload.report_of(self.schedule, self.result, [
            {"step": "4", "reason": "nothing predicts better", "candidates": [
                candidate("dense over switchml", 0.2, "switchml: no aggregator is reachable"),
                ring, candidate("dense over tree", 0.5)]},
            {"step": "11", "reason": "30 % better", "candidates": [
                candidate("dense over switchml", 0.25), ring]},
            {"step": "14", "trigger": "aggregator", "reason": "offload failed on rank 1"}], self.log)

    def test_phases_say_what_ran_and_what_was_predicted(self):
        first, second = self.run_all()["phases"]
        self.assertEqual((first["steps"], first["steps_on_aggregator"], first["packets_summed"]),
                         (10, 0, 0))
        self.assertEqual((first["predicted_step_s_with"], first["predicted_step_s_without"]),
                         (0.2, 0.3))
        self.assertEqual(first["excluded_by"], "switchml: no aggregator is reachable")
        self.assertEqual((second["steps"], second["steps_on_aggregator"], second["packets_summed"]),
                         (5, 4, 1200))
        self.assertEqual((second["predicted_step_s_with"], second["why"]),
                         (None, "offload failed on rank 1"))

    def test_leases_and_failures(self):
        found = self.run_all()
        self.assertEqual(found["leases"], [{"job": "demo", "epoch": 3, "slots": 64, "workers": 2,
                                            "first_step": 11, "last_step": 14}])
        self.assertEqual(found["failures"], ["offload failed on rank 1"])
        self.assertEqual(found["aggregator"], {"name": "tor", "slots": 1024, "goodput_gbit_s": 0.8})

    def test_restarted_or_silent_aggregator_counts_nothing(self):
        self.metrics = METRICS % (50, 50)
        self.log(self.result, {"kind": "end"})
        self.metrics = METRICS % (10, 0)   # it has restarted
        self.log(self.result, {"kind": "end"})
        self.metrics = None
        self.log(self.result, {"kind": "end"})
        self.assertEqual(self.log.packets(), [100, None])

    def test_reports_show_it(self):
        document, results = sample_report()
        document["offload"] = self.run_all()
        text = report.terminal_offload(document)
        self.assertIn("lease of 64 slots on tor, epoch 3: seen from step 11 to 14, 2 ranks", text)
        self.assertIn("given up: offload failed on rank 1", text)
        self.assertIn("slow: switchml: no aggregator is reachable", text)
        page = report.html_page(document, results, [])
        self.assertIn("<h2>Aggregator</h2>", page)
        body = page[page.index("<body>"):page.index("</html>")]
        xml.etree.ElementTree.fromstring(body)


class PlotTest(unittest.TestCase):

    def test_values_land_where_the_axes_say(self):
        chart = plots.Chart("x", "y", [plots.Line("a", [(0, 0.0), (10, 1.0)])])
        figure = xml.etree.ElementTree.fromstring(plots.figure(chart))
        path = next(e for e in figure.iter("path")).attrib["d"]
        self.assertTrue(path.startswith(f"M{plots.LEFT}.0"))
        self.assertIn(f"L{plots.WIDTH - plots.RIGHT}.0", path)

    def test_an_empty_chart_says_so(self):
        nan = plots.Chart("x", "y", [plots.Line("a", [(0, math.nan), (1, None)])])
        self.assertIn("No data", plots.figure(nan))
        zero = plots.Chart("x", "y", [plots.Line("a", [(0, 0.0)])], log_y=True)
        self.assertIn("No data", plots.figure(zero))

    def test_one_value_and_logarithms_have_finite_axes(self):
        for log_y in (False, True):
            chart = plots.Chart("x", "y", [plots.Line("a", [(3, 5.0)])], log_y=log_y)
            self.assertNotIn("nan", plots.figure(chart))
            self.assertNotIn("inf", plots.figure(chart))


def running(pid):
    """Whether the process still runs (zombies do not)."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


class ChildrenTest(unittest.TestCase):

    def test_stop_ends_a_child_that_ignores_the_polite_signal_and_its_own_child(self):
        children = Children()
        script = ("import signal,subprocess,sys,time;signal.signal(signal.SIGTERM,signal.SIG_IGN);"
                  "c=subprocess.Popen(['sleep','60']);print(c.pid,flush=True);time.sleep(60)")
        with tempfile.NamedTemporaryFile() as out:
            child = children.start([sys.executable, "-c", script], stdout=out)
            while True:  # bounded by the test's deadline in CTest
                # The file is opened again, because a shared descriptor would share its offset with
                # the child.
                words = pathlib.Path(out.name).read_bytes()
                if words.endswith(b"\n"):
                    break
                time.sleep(0.01)
            children.stop()
        self.assertIsNotNone(child.returncode)
        deadline = time.monotonic() + 10
        while running(int(words)) and time.monotonic() < deadline:
            time.sleep(0.01)
        self.assertFalse(running(int(words)))


if __name__ == "__main__":
    unittest.main()
