#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The trace suite on the TNA program, with the aggregator in software as oracle. What tests/support/p4 runs is the
program's text; whether it fits a Tofino is for that compiler to say."""
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support/p4"))
import harness  # noqa: E402
import tna  # noqa: E402
from harness import FIRST_ADDRESS, LEAD, OVERFLOW, fields_of, lanes, lanes_of, packet  # noqa: E402

LANES = 16
WORKERS_MAX = 32
WORLDS = {1, 2, 3, 4, 7, 8, 9, 15, 16, 17, 31, 32}
COMMON = {"lease": 5, "epoch": 1, "cookie": 0xC00C1E, "lanes": LANES}


class TnaTraceTest(unittest.TestCase):
    def pair(self, **lease):
        """Sums that wrap are not marked: that takes a second look at each register."""
        pair = harness.Pair(plane=harness.TnaPlane(), ignored_flags=OVERFLOW)
        self.addCleanup(pair.close)
        if lease:
            pair.grant({**harness.trace_lease(2, 1, 1, LANES), **lease})
        return pair

    def test_suite(self):
        ran = 0
        for trace in harness.traces():
            if trace[1] > WORKERS_MAX or trace[0].startswith("a world of") and trace[1] not in WORLDS:
                continue
            with self.subTest(trace=trace[0]):
                harness.run_trace(self.pair(), trace, LANES)
                ran += 1
        self.assertGreater(ran, 25 + len(WORLDS) - 10)

    def test_leads_and_greatest(self):
        pair = self.pair(mode="sum")
        self.assertEqual(pair.send(1000, packet(flags=LEAD, exponent=7, **COMMON)), [])
        replies = pair.send(1001, packet(flags=LEAD, exponent=3, **COMMON))
        self.assertEqual([(len(one), fields_of(one)["exponent"]) for _, one in replies], [(48, 7)] * 2)
        self.assertEqual(len(pair.send(1001, packet(flags=LEAD, exponent=3, **COMMON))), 1)
        self.assertEqual(len(pair.send(1001, packet(lanes([1] * LANES), **COMMON))), 1)
        pair = self.pair(mode="max")
        for round_ in range(3):
            pair.send(1000, packet(lanes([5, 0x80000000] * 8), mode=2, round=round_, **COMMON))
            replies = pair.send(1001, packet(lanes([7, 1] * 8), mode=2, round=round_, **COMMON))
            self.assertEqual(lanes_of(replies[0][1][48:])[:2], [7, 0x80000000])
        pair.check_counters()

    def test_a_result_that_is_lost_inside_the_switch_is_made_again(self):
        plane = harness.TnaPlane()
        plane.grant(harness.trace_lease(2, 1, 1, LANES))
        one, two = (packet(lanes([value] * LANES), exponent=value, **COMMON) for value in (1, 2))
        self.assertEqual(plane.send(1000, one), [])
        plane.switch.lose_recirculated = 1
        self.assertEqual(plane.send(1001, two), [])
        # The round is not complete, so the next one may not begin.
        self.assertEqual(plane.send(1000, packet(lanes([9] * LANES), round=1, **COMMON)), [])
        replies = plane.send(1000, one)
        self.assertEqual(sorted(to for to, _ in replies), [1000, 1001])
        for _, reply in replies:
            self.assertEqual(lanes_of(reply[48:]), [3] * LANES)
            self.assertEqual((fields_of(reply)["exponent"], fields_of(reply)["contributions"]), (2, 2))
        self.assertEqual([to for to, _ in plane.send(1001, two)], [1001])
        # The packet was only late: all workers get the result once more, and the slot does not
        # advance again.
        late = plane.switch.send(tna.RECIRCULATION_PORT, plane.switch.lost[0])
        self.assertEqual([harness.datagram_of(*one)[1] for one in late], [reply] * 2)
        self.assertEqual(plane.send(1000, packet(lanes([9] * LANES), round=1, **COMMON)), [])
        self.assertEqual(len(plane.send(1001, packet(lanes([9] * LANES), round=1, **COMMON))), 2)

    def test_packets_that_no_worker_sends(self):
        source = random.Random(3)
        pair = self.pair(workers=3, slots=2)
        for _ in range(3000):
            values = {**COMMON, "slot": source.randrange(2), "round": source.randrange(4),
                      "operation": source.choice((0, 0, 0, 1)), "exponent": source.randrange(4),
                      "flags": source.choice((0, 0, 0, 0, LEAD))}
            if source.random() < 0.1:
                name = source.choice(("lease", "epoch", "cookie", "slot", "lanes", "columns", "detail", "mode",
                                      "contributions", "version", "magic", "round", "checksum"))
                values[name] = source.choice((0, 1, 2, 3, 255))
            payload = b"" if values["flags"] else lanes([source.getrandbits(32) for _ in range(LANES)])
            whole = packet(payload, **values)
            if source.random() < 0.02:
                whole = whole[:source.randrange(len(whole))]
            pair.send(FIRST_ADDRESS + source.randrange(4), whole)
        pair.check_counters()
        self.assertEqual(pair.oracle.counters()["completed"], 8)  # all rounds of both slots

    def test_table_sums(self):
        source = random.Random(4)
        levels = [0, 1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 255]
        pair = self.pair(mode="table", lanes=32, sum_bits=16, levels=levels, workers=32)
        for round_ in range(3):
            sent = [[source.randrange(16) for _ in range(32)] for _ in range(32)]
            for worker, indices in enumerate(sent):
                octets = bytes(indices[i] << 4 | indices[i + 1] for i in range(0, 32, 2))
                one = packet(octets, mode=3, detail=16, round=round_, **{**COMMON, "lanes": 32})
                replies = pair.send(FIRST_ADDRESS + worker, one)
            sums = [int.from_bytes(replies[0][1][56 + 2 * i:58 + 2 * i], "big") for i in range(32)]
            self.assertEqual(sums, [sum(levels[indices[i]] for indices in sent) for i in range(32)])
            self.assertEqual(len(pair.send(1031, one)), 1)
            self.assertEqual(len(pair.send(1031, one[:28] + b"\0\0\0\1" + one[32:])), 1)  # a notice
        pair.check_counters()

    def test_sparse_rounds(self):
        source = random.Random(5)
        pair = self.pair(mode="sparse", columns=1, workers=4)
        for round_ in range(40):
            for worker in source.sample(range(4), 4):
                block = [source.getrandbits(32) for _ in range(LANES)] if source.random() < 0.4 else []
                one = packet(lanes([source.randrange(1000)] + block), mode=4, columns=1, round=round_,
                             detail=1 if block else 0, **COMMON)
                for _ in range(source.choice((1, 2))):
                    pair.send(FIRST_ADDRESS + worker, one)
                pair.send(FIRST_ADDRESS + source.randrange(4), one)
        self.assertEqual(pair.oracle.counters()["completed"], 40)
        pair.check_counters()

    def test_other_traffic_passes_unchanged(self):
        plane = harness.TnaPlane()
        plane.grant(harness.trace_lease(2, 1, 1, LANES))
        one, two = harness.Place(1000), harness.Place(1001)
        plane.switch.entries["WeirIngress.forward"][harness.number_of(harness.mac_bytes(two.mac)),] = ("to_port", (2,))
        whole = packet(lanes([1] * LANES), **COMMON)
        for frame in (harness.frame_of(one, b"hello", to_ip="10.1.0.2"), harness.frame_of(one, whole, to_port=53),
                      harness.frame_of(one, whole, fragment=0x2000),
                      harness.frame_of(one, b"", to_ip="10.1.0.2", checksum_error=1)):
            frame = harness.mac_bytes(two.mac) + frame[6:]
            self.assertEqual(plane.switch.send(1, frame), [(2, frame)])


if __name__ == "__main__":
    unittest.main()
