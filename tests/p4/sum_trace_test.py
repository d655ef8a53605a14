#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The trace suite of every data plane on the v1model program, with the aggregator in software as oracle: replies
are compared to the last bit, and so is what was counted."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support/p4"))
import harness  # noqa: E402
from harness import FIRST_ADDRESS, LEAD, fields_of, lanes, packet  # noqa: E402

COOKIE = 0xC00C1E
LANES = 16
# A world takes time in proportion to its square, so only powers of two, their neighbours and a few others
# run.
WORLDS = {1, 2, 3, 4, 5, 7, 8, 9, 15, 16, 17, 31, 32, 33, 48, 63, 64}


class SumTraceTest(unittest.TestCase):
    def pair(self, seed=1):
        pair = harness.Pair(seed)
        self.addCleanup(pair.close)
        return pair

    def test_suite(self):
        ran = 0
        for trace in harness.traces():
            if trace[0].startswith("a world of") and trace[1] not in WORLDS:
                continue
            with self.subTest(trace=trace[0]):
                harness.run_trace(self.pair(), trace, LANES)
                ran += 1
        self.assertGreater(ran, 25 + len(WORLDS) - 10)

    def test_every_number_of_groups(self):
        suite = {trace[0]: trace for trace in harness.traces()}
        for count in (16, 32, 48, 64):
            for name in ("both sets", "bad lengths", "a late duplicate after the flip", "sums wrap modulo 2^32"):
                with self.subTest(trace=name, lanes=count):
                    harness.run_trace(self.pair(), suite[name], count)

    def test_leads_carry_exponents_only(self):
        pair = self.pair()
        pair.grant(harness.trace_lease(2, 1, 1, LANES))
        common = {"lease": 5, "epoch": 1, "cookie": COOKIE, "lanes": LANES}
        self.assertEqual(pair.send(1000, packet(flags=LEAD, exponent=7, **common)), [])
        replies = pair.send(1001, packet(flags=LEAD, exponent=9, **common))
        self.assertEqual(len(replies), 2)
        self.assertEqual(fields_of(replies[0][1])["exponent"], 9)
        self.assertEqual(len(replies[0][1]), 48)
        # The same round without the lead bit is another contribution; the next round has lanes.
        self.assertEqual(len(pair.send(1000, packet(lanes([1] * LANES), **common))), 1)
        self.assertEqual(pair.send(1000, packet(lanes([1] * LANES), round=1, **common)), [])
        self.assertEqual(len(pair.send(1001, packet(lanes([2] * LANES), round=1, **common))), 2)

    def test_leases_share_nothing(self):
        pair = self.pair()
        one = harness.trace_lease(2, 2, 1, LANES)
        other = {**one, "first_slot": 2, "lease": 6, "cookie": 77}
        pair.grant(one)
        pair.grant(other)
        for worker, value in ((1000, 1), (1001, 2)):
            for lease in (one, other):
                for slot in (0, 1):
                    pair.send(worker, packet(lanes([value * lease["lease"]] * LANES), lanes=LANES, slot=slot,
                                             lease=lease["lease"], epoch=1, cookie=lease["cookie"]))
        self.assertEqual(pair.oracle.counters()["completed"], 4)
        pair.check_counters()

    def test_slots_pass_to_another_lease_of_the_same_epoch(self):
        """State that the first lease left behind counts for nothing, though nobody clears it."""
        pair = self.pair()
        one = harness.trace_lease(2, 2, 1, LANES)
        other = {**one, "lease": 6}
        for lease in (one, other):
            pair.grant(lease)
            for round_ in range(3):
                for worker in (1000, 1001):
                    for slot in (0, 1):
                        whole = packet(lanes([worker] * LANES), lanes=LANES, slot=slot, round=round_,
                                       lease=lease["lease"], epoch=1, cookie=COOKIE)
                        pair.send(worker, whole)
            pair.plane.control.remove(f"job-{lease['lease']}")
        self.assertEqual(pair.oracle.counters()["completed"], 12)
        pair.check_counters()

    def test_greatest(self):
        pair = self.pair()
        pair.grant({**harness.trace_lease(3, 1, 1, LANES), "mode": "max"})
        common = {"mode": 2, "lease": 5, "epoch": 1, "cookie": COOKIE, "lanes": LANES}
        values = ([5, 0x80000000] * 8, [7, 1] * 8, [6, 0xFFFFFFFF] + [0] * 14)
        for round_ in range(3):
            for worker, value in enumerate(values):
                replies = pair.send(1000 + worker, packet(lanes(value), round=round_, **common))
        self.assertEqual(harness.lanes_of(replies[0][1][48:])[:4], [7, 0xFFFFFFFF, 7, 0x80000000])
        self.assertEqual(len(pair.send(1001, packet(lanes(values[1]), round=2, **common))), 1)


if __name__ == "__main__":
    unittest.main()
