#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Workers of the protocol over a network that loses, repeats and reorders packets, and packets that no worker would
send: whatever comes, the v1model program answers what the aggregator in software answers."""
import os
import pathlib
import random
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support/p4"))
import harness  # noqa: E402
from harness import FIRST_ADDRESS, fields_of, lanes, lanes_of, packet  # noqa: E402

SEED = int(os.environ.get("WEIR_SEED", "1"))
COMMON = {"lease": 3, "epoch": 1, "cookie": 0x1234}


class Worker:
    """Sends round after round of one slot, and again until there is an answer."""

    def __init__(self, number, rounds):
        self.number, self.rounds, self.round = number, rounds, 0
        self.results = []

    def packet(self):
        value = (self.number + 1) * 1000 + self.round
        return packet(lanes([value] * 16), round=self.round, operation=self.round // 4, offset=self.round % 4,
                      exponent=self.number, lanes=16, **COMMON)

    def take(self, datagram):
        header = fields_of(datagram)
        if self.round < self.rounds and header["round"] == self.round:
            self.results.append(lanes_of(datagram[48:])[0])
            self.round += 1


class RandomTraceTest(unittest.TestCase):
    def pair(self, **lease):
        pair = harness.Pair(SEED)
        self.addCleanup(pair.close)
        pair.grant({**COMMON, "mode": "sum", "workers": 3, "slots": 2, "lanes": 16, **lease})
        return pair

    def test_a_network_that_loses_repeats_and_reorders(self):
        source = random.Random(SEED)
        pair = self.pair()
        workers = [Worker(number, 40) for number in range(3)]
        under_way, steps = [], 0
        while any(worker.round < worker.rounds for worker in workers):
            steps += 1
            self.assertLess(steps, 20_000, "no progress")
            for worker in workers:
                if worker.round < worker.rounds and source.random() < 0.5:
                    under_way.append((worker.number, worker.packet()))
            if not under_way:
                continue
            number, datagram = under_way.pop(source.randrange(len(under_way)))
            if source.random() < 0.2:
                continue  # lost
            if source.random() < 0.3 and len(under_way) < 30:
                under_way.append((number, datagram))  # and once more, much later
            for to, reply in pair.send(FIRST_ADDRESS + number, datagram):
                if source.random() < 0.8:
                    workers[to - FIRST_ADDRESS].take(reply)
        expected = [6000 + 3 * round_ for round_ in range(40)]
        for worker in workers:
            self.assertEqual(worker.results, expected)
        pair.check_counters()
        self.assertGreater(pair.oracle.counters()["stale"], 0)
        self.assertGreater(pair.oracle.counters()["served"], 0)

    def test_every_packet_is_lost_once(self):
        """Each packet and each reply of three workers and two rounds is lost in turn."""
        for lost in range(12):
            pair = self.pair()
            workers = [Worker(number, 2) for number in range(3)]
            event = 0
            for _ in range(12):
                for worker in workers:
                    if worker.round == worker.rounds:
                        continue
                    event += 1
                    if event == lost:
                        continue
                    for to, reply in pair.send(FIRST_ADDRESS + worker.number, worker.packet()):
                        event += 1
                        if event != lost:
                            workers[to - FIRST_ADDRESS].take(reply)
            with self.subTest(lost=lost):
                self.assertEqual([worker.results for worker in workers], [[6000, 6003]] * 3)

    def test_packets_that_no_worker_sends(self):
        source = random.Random(SEED + 1)
        pair = self.pair()
        epoch = 1
        for _ in range(3000):
            if source.random() < 0.003:
                epoch += 1
                pair.grant({**COMMON, "epoch": epoch, "mode": "sum", "workers": 3, "slots": 2, "lanes": 16})
            values = {**COMMON, "epoch": epoch, "slot": source.randrange(2), "round": source.randrange(4),
                      "operation": source.choice((0, 0, 0, 1)), "exponent": source.randrange(4), "lanes": 16,
                      "flags": source.choice((0, 0, 0, 0, harness.LEAD))}
            if source.random() < 0.1:
                name = source.choice(("lease", "epoch", "cookie", "slot", "lanes", "flags", "columns", "detail",
                                      "contributions", "mode", "version", "magic", "round", "checksum"))
                values[name] = source.choice((0, 1, 2, 3, 255))
            lead = values["flags"] & harness.LEAD
            payload = b"" if lead else lanes([source.getrandbits(32) for _ in range(16)])
            whole = packet(payload, **values)
            if source.random() < 0.02:
                whole = whole[:source.randrange(len(whole))]
            if values["flags"] & 4 or values["flags"] & 2:
                continue  # checksums and little-endian lanes are for aggregators that can do them
            pair.send(FIRST_ADDRESS + source.randrange(4), whole)
        pair.check_counters()
        self.assertGreater(pair.oracle.counters()["completed"], 20)
        self.assertGreater(pair.oracle.counters()["noticed"], 20)


if __name__ == "__main__":
    unittest.main()
