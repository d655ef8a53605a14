# SPDX-License-Identifier: Apache-2.0
"""Tables of recorded benchmarks: what they show, what is bold, and what stands beside it."""
import json
import pathlib
import tempfile
import unittest
import unittest.mock

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


if __name__ == "__main__":
    unittest.main()
