#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""How tests/bench/aggregation_bench converts collective_bench's rows, and which missing fields it reports."""
import importlib.machinery
import importlib.util
import pathlib
import sys
import unittest

sys.dont_write_bytecode = True
SCRIPT = pathlib.Path(__file__).resolve().parent / "aggregation_bench"
LOADER = importlib.machinery.SourceFileLoader("aggregation_bench", str(SCRIPT))
bench = importlib.util.module_from_spec(importlib.util.spec_from_loader(LOADER.name, LOADER))
LOADER.exec_module(bench)

CELL = {"network": "hosts", "ranks": 4, "bytes": 4096, "rate_mbps": 1000.0, "delay_ms": 0.0,
        "density": 1.0, "loss": 0.01}


def collective_rows(medians, error=0.0):
    """Rows as collective_bench makes them, from {algorithm: seconds}."""
    class Group:
        name = "weir"
    contestants = [(Group, number, "tcp", name) for number, name in enumerate(medians)]
    samples = [([(wall, wall, 0)] * 5, error if name == "thc_table" else 0.0)
               for name, wall in medians.items()]
    return bench.load_collective_bench().rows(contestants, samples, CELL)


class AggregationBenchTest(unittest.TestCase):
    def rows(self, medians, error=0.0):
        return {row["protocol"]: row for row in
                (bench.link_row(row, "software") for row in collective_rows(medians, error))}

    def test_row_has_every_field_and_throughput_over_both_rings(self):
        row = self.rows({"ring": 0.4, "gloo_ring": 0.8, "switchml": 0.1})["switchml"]
        self.assertEqual(tuple(row)[:len(bench.FIELDS)], bench.FIELDS)
        self.assertEqual((row["plane"], row["workers"], row["loss"], row["elements"]),
                         ("software", 4, 0.01, 1024))
        self.assertEqual((row["over_ring"], row["over_gloo"]), (4, 8))
        self.assertIsNone(row["ns_per_packet"])
        self.assertTrue(row["exact"])

    def test_rings_have_no_plane_and_no_loss(self):
        row = self.rows({"ring": 0.4, "gloo_ring": 0.8})["gloo_ring"]
        self.assertIsNone(row["plane"])
        self.assertEqual((row["loss"], row["cell_loss"], row["over_ring"]), (0, 0.01, 0.5))

    def test_sum_with_an_error_is_not_exact(self):
        row = self.rows({"ring": 0.4, "gloo_ring": 0.8, "thc_table": 0.1}, error=0.02)["thc"]
        self.assertFalse(row["exact"])
        self.assertEqual(row["error_squared"], 0.02)

    def test_ceiling_is_what_the_links_allow(self):
        # Four hosts: the ring sends 1.5 vectors. SwitchML sends one, a packet of 1114 octets for 1024.
        self.assertEqual(bench.over_ring_ceiling("ring", 4, 0.9), 1.0)
        self.assertAlmostEqual(bench.over_ring_ceiling("switchml", 4, 1.0), 1.5 * 1024 / 1114)
        self.assertAlmostEqual(bench.over_ring_ceiling("switchml", 4, 0.5), 3.0 * 1024 / 1114)
        # THC receives an octet for each element of four, beside the set of contributors.
        self.assertAlmostEqual(bench.over_ring_ceiling("thc_table", 4, 1.0), 1.5 * 4096 / 1122)
        self.assertIsNone(bench.over_ring_ceiling("omnireduce", 4, 1.0))

    def test_row_without_a_field_is_reported(self):
        row = self.rows({"ring": 0.4, "gloo_ring": 0.8})["ring"]
        self.assertEqual(bench.incomplete([row]), [])
        self.assertEqual(bench.incomplete([row | {"goodput_gbps": None}]), ["ring: no goodput_gbps"])
        del row["over_gloo"]
        self.assertEqual(bench.incomplete([row]), ["ring: no over_gloo"])

    def test_missing_row_is_reported(self):
        wanted = [(("ring", "gloo_ring", "thc_table"), 0.01, 1.0)]
        rows = list(self.rows({"ring": 0.4, "gloo_ring": 0.8, "thc_table": 0.1}).values())
        self.assertEqual(bench.missing_links(rows, wanted), [])
        self.assertEqual(bench.missing_links(rows[:2], wanted), ["thc at loss 0.01 and density 1.0"])
        self.assertEqual(len(bench.missing_links(rows, [(("thc_table",), 0.05, 1.0)])), 1)

    def test_row_without_its_peer_is_missing(self):
        rows = list(self.rows({"ring": 0.4, "switchml": 0.1}).values())
        self.assertEqual(bench.missing_links(rows, [(("switchml",), 0.01, 1.0)]),
                         ["switchml at loss 0.01 and density 1.0"])


if __name__ == "__main__":
    unittest.main()
