# SPDX-License-Identifier: Apache-2.0
"""The emulated network against its nominal rates and delays, and that nothing outlives a demo.

Needs root and network namespaces; otherwise every test is skipped with the kernel's reason.
"""
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy"))

from demo_job import network

RELAY = os.environ.get("WEIR_DELAY_RELAY", "")
BUILD = os.environ.get("WEIR_BUILD", str(ROOT / "build"))
REFUSED = network.namespaces_refused()
ETHERNET_SHARE = 1448 / 1514  # payload of a full segment over its bytes on the line

RECEIVER = """
import socket, sys, time
server = socket.create_server(("0.0.0.0", 5000)); print("ready", flush=True)
peer, _ = server.accept()
total, begin, mark = 0, None, 0
while chunk := peer.recv(1 << 18):
    now = time.monotonic()
    begin = begin or now
    total += len(chunk)
    if now - begin < float(sys.argv[1]):   # slow start and the first burst do not count
        mark, mark_at = total, now
print((total - mark) * 8 / (now - mark_at) / 1e6, flush=True)
"""
SENDER = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 5000)); end = time.monotonic() + float(sys.argv[2])
while time.monotonic() < end: peer.sendall(bytes(1 << 16))
"""
ECHO = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5001))
print("ready", flush=True)
while True:
    data, peer = s.recvfrom(100)
    s.sendto(data, peer)
"""
COUNTER = """
import socket
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.bind(("0.0.0.0", 5002))
s.settimeout(20); print("ready", flush=True)
got = 0
while True:
    data = s.recv(100)
    s.settimeout(1)
    if data == b"end": break
    got += 1
print(got, flush=True)
"""
BLAST = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.connect((sys.argv[1], 5002))
for i in range(int(sys.argv[2])):
    s.send(b"x" * 64)
    if i % 20 == 19: time.sleep(0.005)
time.sleep(0.05)
for _ in range(50): s.send(b"end")
"""
PING = """
import socket, sys, time
s = socket.socket(socket.AF_INET, socket.SOCK_DGRAM); s.settimeout(2)
s.connect((sys.argv[1], 5001))
times = []
for _ in range(60):
    t = time.monotonic(); s.send(b"x" * 64); s.recv(100); times.append(time.monotonic() - t)
    time.sleep(0.005)
print(sorted(times)[6])  # a busy machine delays many packets and advances none
"""


@unittest.skipIf(REFUSED, f"no network namespaces: {REFUSED}")
class NetworkTest(unittest.TestCase):

    def setUp(self):
        self.network = network.EmulatedNetwork(3, RELAY)
        self.addCleanup(self.network.close)
        self.network.open()

    def start(self, host, script, *arguments):
        child = subprocess.Popen(["nice", "-n", "-15", "ip", "netns", "exec",
                                  self.network.host(host), sys.executable,
                                  "-c", script, *map(str, arguments)], stdout=subprocess.PIPE,
                                 text=True)

        def end():
            child.kill()
            child.wait()
            child.stdout.close()
        self.addCleanup(end)
        return child

    def goodput_mbps(self, source, target):
        receiver = self.start(target, RECEIVER, 0.5)
        receiver.stdout.readline()
        sender = self.start(source, SENDER, self.network.address(target), 2.0)
        return sender, receiver

    def round_trip_s(self):
        echo = self.start(1, ECHO)
        echo.stdout.readline()
        found = float(self.start(0, PING, self.network.address(1)).communicate(timeout=60)[0])
        echo.kill()
        echo.wait()
        return found

    def lost_ratio(self, sender, receiver, count):
        """Share of `count` datagrams that do not arrive."""
        counter = self.start(receiver, COUNTER)
        self.assertEqual(counter.stdout.readline().strip(), "ready")
        self.start(sender, BLAST, self.network.address(receiver), count)
        return 1 - int(counter.stdout.readline()) / count

    def assert_measured(self, measure, expected, tolerance, what=""):
        """Other work on the machine can spoil a measurement, but hardly six in a row."""
        found = []
        for _ in range(6):
            found.append(measure())
            if abs(found[-1] - expected) <= tolerance:
                return
        self.fail(f"{what}: expected {expected} within {tolerance}, found {found}")

    def test_rate_is_within_five_percent(self):
        def share():
            _, receiver = self.goodput_mbps(0, 1)
            return float(receiver.stdout.readline()) / (rate * ETHERNET_SHARE)
        for rate in (50, 200, 1000):
            self.network.shape(rate, 0)
            self.assert_measured(share, 1, 0.05, f"{rate} Mb/s")

    def test_packets_are_large_only_where_no_bucket_cuts_them_and_none_is_lost(self):
        def largest():
            found = set()
            for place, device in (("router", "p0"), ("host", "e0")):
                name = self.network.router if place == "router" else self.network.host(0)
                link = subprocess.run(["ip", "-n", name, "-d", "-j", "link", "show", "dev", device],
                                      capture_output=True, check=True, timeout=20).stdout
                found.add(json.loads(link)[0]["gso_max_size"])
            return found
        for rate, loss, expected in ((0, 0, 65536), (1000, 0, 65536), (100, 0, 14600), (0, 0.01, 14600),
                                     (0, 0, 65536)):
            self.network.shape(rate, 0, loss)
            self.assertEqual(largest(), {expected}, f"{rate} Mb/s, loss {loss}")

    def test_uplink_is_shared_by_its_receivers(self):
        def share():
            receivers = [self.start(host, RECEIVER, 0.7) for host in (1, 2)]
            for receiver in receivers:
                receiver.stdout.readline()
            senders = [self.start(0, SENDER, self.network.address(host), 3.0) for host in (1, 2)]
            total = sum(float(r.stdout.readline()) for r in receivers)
            for process in senders + receivers:
                process.kill()
                process.wait()
            return total / (100 * ETHERNET_SHARE)
        self.network.shape(100, 0)
        self.assert_measured(share, 1, 0.10)

    def test_both_directions_have_the_full_rate(self):
        def lesser_share():
            receivers = [self.goodput_mbps(0, 1)[1], self.goodput_mbps(1, 0)[1]]
            return min(float(r.stdout.readline()) for r in receivers) / (100 * ETHERNET_SHARE)
        self.network.shape(100, 0)
        self.assert_measured(lesser_share, 1, 0.08)

    def test_delay_is_within_three_tenths_of_a_millisecond_and_changes_live(self):
        base = self.round_trip_s()
        for delay_ms in (2, 25, 5, 0):
            self.network.shape(0, delay_ms)
            self.assert_measured(lambda: (self.round_trip_s() - base) / 2 * 1000, delay_ms, 0.3,
                                 "one way, ms")

    def test_loss_is_as_requested_and_changes_live(self):
        for loss, delay_ms in ((0.05, 0), (0.2, 2), (0.0, 2)):
            self.network.shape(0, delay_ms, loss)
            # The tolerance is four standard deviations of a binomial.
            self.assert_measured(lambda: self.lost_ratio(0, 1, 4000), loss,
                                 4 * (loss * (1 - loss) / 4000) ** 0.5, "loss")

    def test_change_under_load_loses_no_connection(self):
        self.network.shape(100, 20)
        sender, receiver = self.goodput_mbps(0, 1)
        for rate, delay in ((1000, 1), (50, 30), (500, 0), (100, 5)):
            time.sleep(0.4)  # the load goes on meanwhile
            self.network.shape(rate, delay)
        self.assertEqual(sender.wait(timeout=30), 0)
        self.assertGreater(float(receiver.stdout.readline()), 10)

    def test_congestion_control_is_named_not_the_machines(self):
        found = subprocess.run(
            ["ip", "netns", "exec", self.network.host(0), "ip", "route", "show", "default"],
            capture_output=True, text=True, check=True).stdout
        self.assertIn(f"congctl {network.CONGESTION_CONTROL}", found)

    def test_bad_values_are_refused(self):
        for bad in ((-5, 0), (0.01, 0), (10, -1), (10, 1e9), (10, 0, -0.1), (10, 0, 1.5)):
            with self.assertRaises(network.NetworkError):
                self.network.shape(*bad)

    def test_close_removes_every_namespace(self):
        mine = [n for n in network.namespaces() if f"-{os.getpid()}-" in n]
        self.assertEqual(len(mine), 5)
        self.network.close()
        self.network.close()
        self.assertEqual([n for n in network.namespaces() if f"-{os.getpid()}-" in n], [])


def children_of(pid):
    """Direct children of a process."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                stat = (entry / "stat").read_text()
            except OSError:
                continue
            if int(stat.rpartition(")")[2].split()[1]) == pid:
                found.append(int(entry.name))
    return found


def running(pid):
    """Whether the process still runs (zombies do not)."""
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def wait_until(condition, deadline_s=20.0):
    end = time.monotonic() + deadline_s
    while not condition() and time.monotonic() < end:
        time.sleep(0.05)
    return condition()


@unittest.skipIf(REFUSED, f"no network namespaces: {REFUSED}")
class CleanUpTest(unittest.TestCase):

    def setUp(self):
        directory = tempfile.TemporaryDirectory()
        self.addCleanup(directory.cleanup)
        schedule = pathlib.Path(directory.name) / "schedule.json"
        schedule.write_text(json.dumps([{"steps": 5000, "rate_mbps": 1000, "delay_ms": 1}]))
        self.driver = subprocess.Popen(
            [sys.executable, "-u", "-m", "demo_job", "--runs", "dense", "--hosts", "2",
             "--model-params", "100000", "--schedule", schedule, "--out", directory.name,
             "--build", BUILD], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
            env={**os.environ, "PYTHONPATH": str(ROOT / "deploy")}, start_new_session=True)
        self.addCleanup(self.driver.stdout.close)
        self.addCleanup(self.driver.wait)
        self.addCleanup(self.driver.kill)
        for line in self.driver.stdout:
            if re.search(r"step +\d+/5000", line):
                break
        self.children = children_of(self.driver.pid)
        self.assertGreaterEqual(len(self.children), 3, "two ranks and the relay")
        self.assertEqual(len(self.namespaces()), 4)

    def namespaces(self):
        return [n for n in network.namespaces() if f"-{self.driver.pid}-" in n]

    def assert_children_gone(self):
        self.assertTrue(wait_until(lambda: not any(map(running, self.children))))

    def test_interrupt_leaves_no_namespace_and_no_process(self):
        self.driver.send_signal(signal.SIGINT)
        self.assertEqual(self.driver.wait(timeout=30), 130)
        self.assertEqual(self.namespaces(), [])
        self.assert_children_gone()

    def test_killed_driver_leaves_no_process_and_the_next_removes_its_namespaces(self):
        self.driver.kill()
        self.driver.wait(timeout=10)
        self.assert_children_gone()
        self.assertEqual(len(self.namespaces()), 4)
        network.remove_stale()
        self.assertEqual(self.namespaces(), [])


if __name__ == "__main__":
    unittest.main()
