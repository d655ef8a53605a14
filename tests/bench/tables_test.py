# SPDX-License-Identifier: Apache-2.0
"""Tables of recorded benchmarks: what they show, what is bold, and what stands beside it."""
import json
import pathlib
import tempfile
import unittest
import unittest.mock

import device_tables
import tables

ORIGIN = {"benchmark": "loopback", "command": "collective_bench --x", "date": "2026-11-27", "processor": "P",
          "cores": 2, "kernel": "6", "commit": "abc", "load_average_1min": 0.1}


def row(implementation, algorithm, median_us, count=1 << 20):
    return {"impl": implementation, "algorithm": algorithm, "transport": "tcp", "ranks": 2, "bytes": count,
            "median_us": median_us, "rate_mbps": 0.0, "delay_ms": 0.0, "bound_us": None}


class PagesTest(unittest.TestCase):

    def test_pages_show_the_recorded_results(self):
        for page in tables.PAGES:
            with self.subTest(page.name):
                self.assertEqual(tables.rendered(page), page.read_text(), "run tests/bench/tables.py")

    def test_every_table_has_a_section(self):
        pages = "".join(page.read_text() for page in tables.PAGES)
        for name in tables.TABLES:
            self.assertEqual(pages.count(f"<!-- measured: {name} -->"), 1, name)


class TablesTest(unittest.TestCase):

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.results = pathlib.Path(directory.name)
        patched = unittest.mock.patch.object(tables, "RESULTS", self.results)
        patched.start()
        self.addCleanup(patched.stop)

    def record(self, *rows):
        tables.record("loopback", [json.dumps(line) for line in (ORIGIN, *rows)])

    def test_sections_without_a_record_name_the_command(self):
        self.assertIn("tests/bench/run --record loopback", tables.CONTEST.render("loopback"))

    def test_best_algorithms_are_compared_and_a_missed_goal_is_bold(self):
        self.record(row("weir", "ring", 500), row("weir", "mesh", 400), row("gloo", "gloo_ring", 900),
                    row("open_mpi", "open_mpi", 480))
        text = tables.CONTEST.render("loopback")
        self.assertIn("`collective_bench --x`. 2026-11-27, 2 cores of P, commit abc.", text)
        self.assertIn("| tcp | 2 | 1 MiB | 400 us | 480 us | 900 us | **1.20** | 1.25 |", text)
        self.assertNotIn("before", text)

    def test_the_previous_run_stands_beside_the_last(self):
        self.record(row("weir", "ring", 300), row("open_mpi", "open_mpi", 600))
        self.record(row("weir", "ring", 400), row("open_mpi", "open_mpi", 600),
                    row("weir", "ring", 10, 64), row("open_mpi", "open_mpi", 20, 64))
        lines = tables.CONTEST.render("loopback").splitlines()
        self.assertTrue(any(line.endswith("| 1.50 | 1.25 | 2.00 |") for line in lines), lines)
        self.assertTrue(any(line.endswith("| 2.00 | 1 | - |") for line in lines), lines)

    def test_convergence_takes_medians_over_seeds_and_the_best_static(self):
        def run(method, seed, time_s, over=1.0):
            return {"task": "cnn", "schedule": "c1", "seed": seed, "method": method, "time_to_target_s": time_s,
                    "loss_over_dense": over}
        rows = [run("dense", s, 10.0 * s) for s in (1, 2, 3)] + [run("top_k 0.1", s, 8.0) for s in (1, 2, 3)]
        rows += [run("top_k 0.01", s, None if s == 2 else 1.0) for s in (1, 2, 3)]   # one seed missed the target
        rows += [run("weir", s, 6.0, 1.02) for s in (1, 2, 3)]
        (key, values), = tables.trained(rows).items()
        self.assertEqual(key, ("cnn", "c1"))
        cells = [column(values) for _, column in tables.CONVERGENCE.columns]
        self.assertEqual(cells, ["3", "20.0 s", "-", "top_k 0.1: 8.0 s", "-", "-", "6.0 s", "0.75", "-", "**1.02**"])

    def test_only_what_is_between_the_comments_changes(self):
        page = self.results / "page.md"
        page.write_text("before\n<!-- measured: loopback -->\nold\n<!-- end -->\nafter\n")
        made = tables.rendered(page)
        self.assertTrue(made.startswith("before\n<!-- measured: loopback -->\nNot recorded"))
        self.assertTrue(made.endswith("<!-- end -->\nafter\n"))
        page.write_text(made)
        self.assertEqual(tables.rendered(page), made)


class DeviceTablesTest(unittest.TestCase):

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        self.results = pathlib.Path(directory.name)
        patched = unittest.mock.patch.object(device_tables, "RESULTS", self.results)
        patched.start()
        self.addCleanup(patched.stop)

    def keep(self, name, *rows, device="NVIDIA X, 1.2, 3 MiB", rehearsal=False, date="2026-12-01T10:00:00+00:00"):
        machine = {"part": "machine", "date": date, "rehearsal": rehearsal, "device": device, "commit": "0123456789"}
        with (self.results / name).open("a") as file:
            file.writelines(json.dumps(line) + "\n" for line in (machine, *rows))

    def lines(self, name):
        return tables.TABLES[name].render(name).splitlines()

    @staticmethod
    def codec(operation, times_floor, us=10.0, **more):
        return {"part": "device_bench", "row": {
            "benchmark": operation, "codec": "top_k", "bits": 8, "ratio": 0.01, "elements": 25_000_000,
            "payload_bytes": 7, "us": us, "floor_us": us / times_floor, "times_floor": times_floor, "goal": 1.5,
            **more}}

    def test_without_a_file_no_gpu_has_run_it(self):
        for name in device_tables.DEVICE_TABLES:
            self.assertEqual(self.lines(name), ["Not run yet: no GPU has run `tests/device/run`."])

    def test_the_newest_file_is_shown_with_its_device_and_date(self):
        self.keep("2026-12-01-x.jsonl", {"part": "codecs", "status": "passed", "seconds": 3.0})
        self.keep("2026-12-09-y.jsonl", {"part": "python", "status": "timeout", "seconds": 60.2}, device="NVIDIA Y",
                  date="2026-12-09T10:00:00+00:00")
        lines = self.lines("device_parts")
        self.assertEqual(lines[0], "`tests/device/results/2026-12-09-y.jsonl`: NVIDIA Y, 2026-12-09, commit 01234567.")
        self.assertEqual(lines[2:], ["| part | end | time |", "|---|---|---|", "| python | **timeout** | 60 s |"])
        self.assertEqual(len(self.lines("device_codecs")), 1)  # it says that there are no such rows
        self.assertIn("no such rows", self.lines("device_codecs")[0])

    def test_a_part_that_ran_again_counts_once_and_a_rehearsal_not_at_all(self):
        self.keep("2026-12-01-x.jsonl", {"part": "codecs", "status": "failed", "seconds": 1.0})
        self.keep("2026-12-01-x.jsonl", {"part": "codecs", "status": "passed", "seconds": 3.0})
        self.keep("2026-12-01-x.jsonl", {"part": "python", "status": "passed", "seconds": 9.0},
                  self.codec("encode", 1.2), device="", rehearsal=True)
        self.assertEqual(self.lines("device_parts")[4:], ["| codecs | passed | 3 s |"])
        self.assertIn("NVIDIA X", self.lines("device_parts")[0])
        self.assertIn("no such rows", self.lines("device_codecs")[0])

    def test_codecs_stand_beside_their_floors_goals_and_peers(self):
        self.keep("2026-12-01-x.jsonl", {"part": "device_bench", "row": {"benchmark": "copy", "elements": 9, "us": 1}},
                  self.codec("encode", 1.6, 50.0), self.codec("decode", 1.25),
                  {**self.codec("encode", 1.4, elements=250_000_000), "part": "device_bench_large"},
                  self.codec("accumulate", 1.1, codec="thc", goal=2.0),
                  {"part": "device_peers", "row": {"benchmark": "peer", "codec": "top_k", "elements": 25_000_000,
                                                   "us": 150.0}})
        self.assertEqual(self.lines("device_codecs")[4:], [
            "| `top_k` | 8 bits | 25 M | 50 us | **1.60** | 1.25 | - | 1.5 | 3.00 |",
            "| `top_k` | 8 bits | 250 M | 10 us | 1.40 | - | - | 1.5 | - |",
            "| `thc` | 8 bits | 25 M | - | - | - | 1.10 | 2 | - |"])

    def test_steps_backward_passes_training_and_nccl(self):
        def step(part, variant, us, **more):
            return {"part": part, "row": {"model": "gpt", "rate_mbps": 1000.0, "variant": variant, "us": us,
                                          "floor_us": 900, **more}}
        self.keep(
            "2026-12-01-x.jsonl", step("hook_overhead", "nothing", 900),
            step("hook_overhead", "weir_dense", 1100, over_plain=1.03, goal=1.01),
            step("hook_overhead", "weir_best", 950, over_plain=0.5, **{"is": "weir_top_k"}),
            {"part": "hook_overhead", "row": {"model": "gpt", "rate_mbps": 1000.0, "variant": "bf16", "error": "x"}},
            step("hook_overhead_full", "weir_dense", 1000, over_plain=1.004, goal=1.01),
            step("hook_overhead", "weir_qsgd", 1000, left_out="no program"),
            {"part": "backward", "row": {"model": "gpt", "variant": "weir_bf16", "us": 700, "over_nothing": 1.04,
                                         "goal": 1.03}},
            {"part": "training", "row": {"rate_mbps": 0.0, "variant": "weir_qsgd", "loss": 4.18642, "target": 4.2,
                                         "seconds": 2.0, "seconds_to_target": None}},
            {"part": "training_full", "row": {"rate_mbps": 1000.0, "variant": "weir_adaptive", "is": "eden",
                                              "loss": 4.1, "target": 4.2, "seconds": 2.0, "seconds_to_target": 1.5}},
            # A second call may decide otherwise; the later row counts.
            {"part": "training", "row": {"rate_mbps": 1000.0, "variant": "weir_adaptive", "is": "top_k", "loss": 9.0,
                                         "target": 4.2, "seconds": 3.0, "seconds_to_target": None}},
            {"part": "training", "row": {"rate_mbps": 1000.0, "variant": "weir_adaptive", "is": "eden", "loss": 4.1,
                                         "target": 4.2, "seconds": 2.0, "seconds_to_target": 1.5}},
            {"part": "nccl_plugin", "row": {"phase": "plain", "seconds": {"4096": 2e-5}}},
            {"part": "nccl_plugin", "row": {"phase": "sampled", "seconds": {"4096": 2.1e-5}}},
            {"part": "nccl_plugin", "row": {"phase": "agent", "wrong": [0, 0]}})
        self.assertEqual(self.lines("device_steps")[4:], [
            "| gpt | 1000 Mb/s | `nothing` | - | 900 us | 900 us | - |  |",
            "| gpt | 1000 Mb/s | `weir_dense` | - | 1 ms | 900 us | 1.00 | 1.01 |",
            "| gpt | 1000 Mb/s | `weir_best` | `weir_top_k` | 950 us | 900 us | 0.50 |  |"])
        self.assertEqual(self.lines("device_backward")[4:], ["| gpt | `weir_bf16` | 700 us | **1.04** | 1.03 |"])
        self.assertEqual(self.lines("device_training")[4:], [
            "| unpaced | `weir_qsgd` | - | 4.186 | 2.00 s | - |",
            "| 1000 Mb/s | `weir_adaptive` | `eden` | 4.100 | 2.00 s | 1.50 s |"])
        self.assertEqual(self.lines("device_nccl")[4:], ["| 4 KiB | 20 us | - | 21 us | - |"])


if __name__ == "__main__":
    unittest.main()
