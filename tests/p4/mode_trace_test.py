#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Table sums (THC) and sparse blocks (OmniReduce) on the v1model program, with the aggregator in software as
oracle: replies are compared to the last bit."""
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support/p4"))
import harness  # noqa: E402
from harness import FIRST_ADDRESS, fields_of, lanes, lanes_of, packet  # noqa: E402

COOKIE = 0xFEDCBA9876543210
COMMON = {"lease": 9, "epoch": 3, "cookie": COOKIE}
NO_BLOCK = 0xFFFFFFFF
LEVELS = [0, 1, 3, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 17]


class ModeTraceTest(unittest.TestCase):
    def pair(self, **lease):
        pair = harness.Pair()
        self.addCleanup(pair.close)
        self.lease = {**COMMON, "workers": 3, "slots": 2, **lease}
        pair.grant(self.lease)
        return pair

    def table_packet(self, indices, **fields):
        octets = bytes(indices[i] << 4 | indices[i + 1] for i in range(0, len(indices), 2))
        return packet(octets, mode=3, lanes=len(indices), detail=self.lease["sum_bits"], **{**COMMON, **fields})

    def test_every_shape_of_table_sums(self):
        source = random.Random(1)
        for bits, per_group in ((8, 64), (16, 32)):
            for groups in (1, 2, 3, 4):
                with self.subTest(bits=bits, groups=groups):
                    count = per_group * groups
                    pair = self.pair(mode="table", lanes=count, sum_bits=bits, levels=LEVELS)
                    for round_ in range(3):
                        sent = [[source.randrange(16) for _ in range(count)] for _ in range(3)]
                        for worker, indices in enumerate(sent):
                            replies = pair.send(FIRST_ADDRESS + worker,
                                                self.table_packet(indices, round=round_))
                        payload = replies[0][1][48:]
                        self.assertEqual(payload[:8], (7).to_bytes(8, "big"))
                        size = bits // 8
                        sums = [int.from_bytes(payload[8 + i * size:8 + (i + 1) * size], "big")
                                for i in range(count)]
                        self.assertEqual(sums, [sum(LEVELS[x[i]] for x in sent) for i in range(count)])
                        again = pair.send(FIRST_ADDRESS + 1, self.table_packet(sent[1], round=round_))
                        self.assertEqual(again[0][1], replies[0][1])
                    pair.check_counters()

    def test_packed_sums_fill_their_lanes_and_carry_nowhere(self):
        levels = [0] * 14 + [200, 255]
        pair = self.pair(mode="table", lanes=64, sum_bits=8, levels=levels, workers=1)
        replies = pair.send(FIRST_ADDRESS, self.table_packet([15, 14] * 32))
        self.assertEqual(replies[0][1][56:58], bytes([255, 200]))
        pair = self.pair(mode="table", lanes=32, sum_bits=16, levels=[0] * 15 + [255], workers=64)
        for worker in range(64):
            replies = pair.send(FIRST_ADDRESS + worker, self.table_packet([15, 0] * 16))
        self.assertEqual(int.from_bytes(replies[0][1][56:58], "big"), 255 * 64)
        self.assertEqual(fields_of(replies[0][1])["flags"], harness.REPLY)

    def test_table_packets_of_other_shapes_are_dropped(self):
        pair = self.pair(mode="table", lanes=64, sum_bits=8, levels=LEVELS)
        good = self.table_packet([1] * 64)
        for wrong in (good[:-1], good + b"\0", self.table_packet([1] * 128), good[:40] + b"\0\0\0\x10" + good[44:],
                      packet(lanes([1] * 16), lanes=16, **COMMON)):
            self.assertEqual(pair.send(FIRST_ADDRESS, wrong), [])
        pair.check_counters()
        self.assertEqual(pair.oracle.counters()["added"], 0)

    def sparse_packet(self, nexts, blocks, **fields):
        """blocks: by column, None where there is none."""
        detail = sum(1 << column for column, block in enumerate(blocks) if block is not None)
        payload = lanes(nexts) + b"".join(lanes(block) for block in blocks if block is not None)
        return packet(payload, mode=4, columns=len(nexts), lanes=16, detail=detail, **{**COMMON, **fields})

    def test_sparse_rounds_jump_to_the_least_next_block(self):
        pair = self.pair(mode="sparse", lanes=16, columns=2, workers=2)
        one, two = [1] * 16, [10] * 16
        self.assertEqual(pair.send(1000, self.sparse_packet([8, NO_BLOCK], [one, None])), [])
        replies = pair.send(1001, self.sparse_packet([4, 7], [two, None]))
        self.assertEqual(fields_of(replies[0][1])["detail"], 1)
        self.assertEqual(lanes_of(replies[0][1][48:]), [4, 7] + [11] * 16)
        # Now one worker sends the other column; the other worker acknowledges with its next blocks.
        pair.send(1000, self.sparse_packet([8, NO_BLOCK], [None, None], round=1, offset=4))
        replies = pair.send(1001, self.sparse_packet([NO_BLOCK, NO_BLOCK], [one, two], round=1, offset=4))
        self.assertEqual(lanes_of(replies[0][1][48:]), [8, NO_BLOCK] + [1] * 16 + [10] * 16)
        # A repeated acknowledgement gets the same answer, without a block of its own.
        again = pair.send(1000, self.sparse_packet([8, NO_BLOCK], [None, None], round=1, offset=4))
        self.assertEqual(again[0][1], replies[0][1])
        # If no worker has a block, the reply has only the next blocks.
        pair.send(1000, self.sparse_packet([9, 9], [None, None], round=2, offset=8))
        replies = pair.send(1001, self.sparse_packet([NO_BLOCK, 5], [None, None], round=2, offset=8))
        self.assertEqual(lanes_of(replies[0][1][48:]), [9, 5])
        pair.check_counters()

    def test_random_sparse_rounds(self):
        source = random.Random(2)
        for columns in (1, 2, 3, 4):
            pair = self.pair(mode="sparse", lanes=16, columns=columns, workers=4)
            for round_ in range(12):
                order = source.sample(range(4), 4)
                for worker in order:
                    nexts = [source.choice([NO_BLOCK, source.randrange(100)]) for _ in range(columns)]
                    blocks = [[source.getrandbits(32) for _ in range(16)] if source.random() < 0.5 else None
                              for _ in range(columns)]
                    one = self.sparse_packet(nexts, blocks, round=round_, slot=1)
                    pair.send(FIRST_ADDRESS + worker, one)
                    pair.send(FIRST_ADDRESS + worker, one)
            self.assertEqual(pair.oracle.counters()["completed"], 12)
            pair.check_counters()

    def test_sparse_packets_that_contradict_themselves_are_dropped(self):
        pair = self.pair(mode="sparse", lanes=16, columns=2, workers=2)
        good = self.sparse_packet([1, 2], [[1] * 16, None])
        beyond = good[:40] + (5).to_bytes(4, "big") + good[44:]
        for wrong in (good[:-4], good + bytes(64), beyond, beyond + bytes(64), self.sparse_packet([1, 2, 3], [None] * 3)):
            self.assertEqual(pair.send(1000, wrong), [])
        pair.check_counters()
        self.assertEqual(pair.oracle.counters()["added"], 0)


if __name__ == "__main__":
    unittest.main()
