#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""Frames around the datagrams: frames that are not for the aggregator, frames with wrong lengths, senders
that are somewhere else, and loss that is injected."""
import pathlib
import sys
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).parents[1] / "support/p4"))
import harness  # noqa: E402
from harness import Place, frame_of, lanes, packet  # noqa: E402

LEASE = {"lease": 3, "epoch": 1, "cookie": 0x1234, "mode": "sum", "workers": 2, "slots": 1, "lanes": 16}
COMMON = {"lease": 3, "epoch": 1, "cookie": 0x1234, "lanes": 16}
MALFORMED, FOREIGN, INJECTED = 0, 1, 2


class FrameTest(unittest.TestCase):
    def setUp(self):
        self.plane = harness.Plane()
        self.addCleanup(self.plane.close)
        self.plane.grant(LEASE)
        self.first = packet(lanes([1] * 16), **COMMON)
        self.plane.control.add_hosts(self.plane.hosts)

    def refused(self, kind):
        return self.plane.count("WeirIngress.refused", kind)

    def test_other_traffic_passes_unchanged(self):
        one, two = Place(1000), Place(1001)
        other = harness.mac_bytes(two.mac)
        frames = [
            other + harness.mac_bytes(one.mac) + b"\x08\x06" + bytes(46),                     # ARP
            other + frame_of(one, b"hello", to_ip="10.1.0.2")[6:],                             # UDP
            other + frame_of(one, self.first, to_ip="10.1.0.2")[6:],                           # somebody else's
            other + frame_of(one, self.first, to_port=53)[6:],
            other + frame_of(one, self.first, fragment=0x2000)[6:],                            # a fragment
            other + frame_of(one, bytes(4) + self.first, version_ihl=0x46)[6:],                # options
            other + frame_of(one, b"x", to_ip="10.1.0.2", checksum_error=1, trailer=b"pad")[6:],
        ]
        for frame in frames:
            self.assertEqual(self.plane.switch.send(1, frame), [(2, frame)])
        self.assertEqual(self.plane.switch.send(1, bytes(6) + frames[0][6:]), [])
        self.assertEqual([self.refused(kind) for kind in range(3)], [0, 0, 0])

    def test_lengths_agree_to_the_last_octet(self):
        whole = 28 + len(self.first)
        changes = [{"udp_length": 8 + len(self.first) + 4}, {"udp_length": 8 + len(self.first) - 4},
                   {"total_length": whole + 4}, {"total_length": whole - 4}, {"trailer": b"\0"},
                   {"trailer": bytes(64)}, {"total_length": whole + 4, "trailer": bytes(4)},
                   {"checksum_error": 0x0100}]
        for change in changes:
            with self.subTest(**{key: str(value) for key, value in change.items()}):
                self.assertEqual(self.plane.send(1000, self.first, **change), [])
        self.assertEqual(self.refused(MALFORMED), len(changes))
        self.assertEqual(self.plane.send(1001, self.first), [])
        self.assertEqual(len(self.plane.send(1000, self.first)), 2)

    def test_datagrams_of_every_length(self):
        for length in range(len(self.first)):
            self.assertEqual(self.plane.send(1000, self.first[:length]), [])
        self.assertEqual(self.refused(MALFORMED), len(self.first))

    def test_a_worker_is_where_its_lease_says(self):
        self.assertEqual(self.plane.send(1000, self.first, port=2), [])
        self.assertEqual(self.plane.send(1000, self.first, port=STRANGE_PORT), [])
        self.assertEqual(self.refused(FOREIGN), 2)
        self.assertEqual(self.plane.send(1000, self.first), [])
        self.assertEqual(len(self.plane.send(1001, self.first)), 2)

    def test_loss_is_injected_and_counted(self):
        self.plane.control.inject_loss(1, 1.0, False)
        for _ in range(20):
            self.assertEqual(self.plane.send(1000, self.first), [])
        self.assertGreaterEqual(self.refused(INJECTED), 19)
        self.plane.control.inject_loss(1, 0, False)
        self.assertEqual(self.plane.send(1000, self.first), [])
        self.plane.control.inject_loss(2, 1.0, True)
        replies = self.plane.send(1001, self.first)
        self.assertEqual([to for to, _ in replies], [1000])
        self.assertEqual(self.plane.count("WeirEgress.lost"), 1)

    def test_loss_has_about_the_share_that_was_asked_for(self):
        self.plane.control.inject_loss(1, 0.25, False)
        for _ in range(2000):
            self.plane.send(1000, self.first)
        self.assertTrue(400 < self.refused(INJECTED) < 600, self.refused(INJECTED))


STRANGE_PORT = 17

if __name__ == "__main__":
    unittest.main()
