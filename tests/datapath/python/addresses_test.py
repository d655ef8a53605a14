# SPDX-License-Identifier: Apache-2.0
"""The addresses at which ranks listen, on two hosts that are network namespaces joined by veth pairs.

Every case runs the same job over gloo beside it, which must pass where the network permits it.
"""
import contextlib
import ctypes
import faulthandler
import json
import os
import pathlib
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
from unittest import mock

import torch
import torch.distributed as dist

import ranks
import weir
from weir import addresses
from weir import interfaces
from weir import probe

DEADLINE_S = 25.0
NEEDS_IPTABLES = unittest.skipUnless(shutil.which("iptables-legacy"), "needs iptables-legacy")
CLONE_NEWNS, CLONE_NEWNET = 0x20000, 0x40000000
WARNED_S = 4.0  # of the warning before it: 1.5 s, and a busy machine
SOON_S = 8.0  # of a message that a rank cannot be reached: 4.5 s, and a busy machine


def run(*command):
    done = subprocess.run(command, capture_output=True, text=True, timeout=20, check=False)
    if done.returncode:
        raise AssertionError(f"{' '.join(command)}: {done.stderr}")
    return done.stdout


class Network:
    """Two hosts with one veth pair per entry of `pairs`: ((address of host 0, of host 1), MTU)."""

    def __init__(self, pairs):
        self.names = [f"weir{os.getpid()}-{i}" for i in range(2)]
        self._pairs = pairs

    def __enter__(self):
        try:
            for name in self.names:
                run("ip", "netns", "add", name)
                run("ip", "-n", name, "link", "set", "lo", "up")
            for n, (hosts, mtu) in enumerate(self._pairs):
                run("ip", "-n", self.names[0], "link", "add", f"nic{n}", "mtu", str(mtu), "type", "veth",
                    "peer", "name", f"nic{n}", "mtu", str(mtu), "netns", self.names[1])
                for name, host in zip(self.names, hosts):
                    size = ["/64", "nodad"] if ":" in host else ["/24"]
                    run("ip", "-n", name, "addr", "add", host + size[0], "dev", f"nic{n}", *size[1:])
                    run("ip", "-n", name, "link", "set", f"nic{n}", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *unused):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", name], capture_output=True, timeout=20, check=False)

    def inside(self, host, *command):
        return run("ip", "netns", "exec", self.names[host], *command)


@contextlib.contextmanager
def processes(commands):
    """Starts [(command, environment)] in sessions of their own, which end with the block."""
    started = []
    try:
        for command, environment in commands:
            started.append(subprocess.Popen(
                command, env={**os.environ, **environment}, text=True, stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT, start_new_session=True))
        yield started
    finally:
        for child in started:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
            child.stdout.close()


def enter(namespace, hosts_file):
    """Moves this process to a network namespace, and lets it see a file as its /etc/hosts."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{namespace}", encoding="ascii") as network:
        if libc.setns(network.fileno(), CLONE_NEWNET) or libc.unshare(CLONE_NEWNS):
            raise OSError(ctypes.get_errno(), f"cannot enter {namespace}")
    run("mount", "--make-rprivate", "/")
    run("mount", "-t", "sysfs", "sysfs", "/sys")  # it shows the interfaces of the namespace in which it was mounted
    if hosts_file:
        run("mount", "--bind", hosts_file, "/etc/hosts")


def job(network, master, how, environments=({}, {}), hosts_file=None, hosts=(0, 1)):
    """Runs `how` as a rank on each of `hosts`. Returns [(what the rank found, its stderr)]."""
    def begin(rank):
        enter(network.names[hosts[rank]], hosts_file and hosts_file[rank])
        os.environ.update({"MASTER_ADDR": master, "WEIR_TRANSPORT": "tcp", "GLOO_SOCKET_IFNAME": "nic0",
                           **environments[rank]})
    return ranks.run(len(hosts), as_rank, how, enter=begin, deadline_s=DEADLINE_S)


def as_rank(rank, unused_world, how):
    """One all-reduce on a rank. Returns its result and the addresses."""
    faulthandler.dump_traceback_later(DEADLINE_S - 5.0)  # says where a rank waits
    began, found = time.monotonic(), {}

    def warn(text):
        found.update(warning=text, warned_after_s=time.monotonic() - began)
    addresses.warn = warn
    tensor = torch.ones(1000) * (rank + 1)
    try:
        if how == "gloo":
            dist.all_reduce(tensor)
        elif how == "group":
            group = dist.new_group(backend="weir")
            dist.all_reduce(tensor, group=group)
            found["address"] = group._communicator.address
        else:
            model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(100, 1))
            state = weir.attach(model)
            model(torch.ones(2, 100)).sum().backward()
            found["address"] = state.session.address
        found["sum"] = float(tensor.sum())
    except weir.WeirError as error:
        found["error"] = str(error)
    found["seconds"] = time.monotonic() - began
    return found


def can_make_namespaces():
    if not shutil.which("ip") or os.geteuid() != 0:
        return False
    probe = f"weir{os.getpid()}-probe"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode:
        return False
    return subprocess.run(["ip", "netns", "del", probe], capture_output=True, check=False).returncode == 0


class ChoiceTest(unittest.TestCase):
    """The choice among what the probers found, without a network."""

    @staticmethod
    def entries(*hosts):
        return [{"identity": host, "name": host, "said": "", "port": 1, "preferred": [], "serves": [],
                 "candidates": [["10.0.0.1", "a", False], ["10.1.0.1", "b", False]]} for host in hosts]

    def test_probers_are_higher_ranks_on_other_hosts_and_few(self):
        entries = self.entries("x", "x", "y", "x", *"zzzzz")
        self.assertEqual(addresses._probers(entries, 0), [2, 4, 5, 6])
        self.assertEqual(addresses._probers(entries, 2), [3, 4, 5, 6])
        self.assertEqual(addresses._probers(entries, 8), [])

    def test_only_an_address_that_all_reach_is_taken(self):
        votes = {1: {"10.0.0.1": 0.001, "10.1.0.1": 0.5},
                 2: {"10.0.0.1": "connection refused", "10.1.0.1": 0.5}}
        self.assertEqual(addresses._pick(self.entries(*"xyz"), 0, votes), "10.1.0.1")
        votes[1]["10.1.0.1"] = "no route"
        with self.assertRaisesRegex(addresses.WeirError, "no address that all other hosts reach.*"
                                    "10.1.0.1:1 .interface b.: no route.*10.0.0.1:1 .*refused"):
            addresses._pick(self.entries(*"xyz"), 0, votes)

    def test_route_to_the_store_is_left_only_for_twice_the_speed(self):
        entries = self.entries(*"xy")
        entries[0]["preferred"] = ["10.1.0.1"]
        for seconds, taken in ((0.9, "10.1.0.1"), (1.9, "10.1.0.1"), (2.1, "10.0.0.1")):
            votes = {1: {"10.0.0.1": 1.0, "10.1.0.1": seconds}}
            self.assertEqual(addresses._pick(entries, 0, votes), taken)
        entries[0]["preferred"], entries[1]["serves"] = [], ["10.1.0.1"]  # where peers see the store
        self.assertEqual(addresses._pick(entries, 0, {1: {"10.0.0.1": 1.0,
                                                          "10.1.0.1": 1.1}}), "10.1.0.1")

    def vote(self, port):
        """The result of rank 1 on another host about the addresses of rank 0."""
        entries = self.entries(*"xy")
        entries[0].update(port=port, token="t", candidates=[["127.0.0.1", "a", False]])
        entries[1]["candidates"] = []
        meeting = mock.Mock(rank=1)
        addresses._vote(meeting, entries)
        return json.loads(meeting.set.call_args[0][1])["0"]["127.0.0.1"]

    def test_a_rank_that_answers_late_is_tried_again_for_longer(self):
        def late(answer):
            def answering(*arguments):
                time.sleep(probe.PROBE_S + 0.5)
                answer(*arguments)
            return answering
        with mock.patch.object(probe.Responder, "_answer", late(probe.Responder._answer)):
            responder = probe.Responder("t")
            try:
                self.assertGreater(self.vote(responder.port), probe.PROBE_S)
            finally:
                responder.close()

    def test_a_rank_that_never_answers_is_not_said_to_have_an_mtu(self):
        with socket.create_server(("127.0.0.1", 0)) as silent:
            with self.assertRaisesRegex(addresses.WeirError, "did not answer within 3.0 s") as raised:
                self.vote(silent.getsockname()[1])
        self.assertNotIn("MTU", str(raised.exception))

    def test_hosts_that_continue_from_one_image_are_told_apart(self):
        with mock.patch("socket.gethostname", side_effect=["a", "b"]):
            self.assertNotEqual(interfaces.identity(), interfaces.identity())

    def test_texts_of_addresses(self):
        for text, found in (("eth0", ("eth0", 0)), ("10.0.0.1:7", ("10.0.0.1", 7)), ("[::1]:7", ("::1", 7)),
                            ("[::1]", ("::1", 0)), ("::1", ("::1", 0)), (":7", ("", 7))):
            self.assertEqual(interfaces.split(text), found)
        for text in ("a:65536", "a:b"):
            self.assertRaises(ValueError, interfaces.split, text)
        self.assertEqual(interfaces.join("::1", 7), "[::1]:7")


@unittest.skipUnless(can_make_namespaces(), "needs ip and the right to make network namespaces")
class AddressesTest(unittest.TestCase):
    def expect_sum(self, network, master, address, environments=({}, {}), hosts_file=None,
                   control=({}, {})):
        """Gloo, the hook and the process group must pass; ranks must listen at `address` of theirs."""
        for found, output in job(network, master, "gloo", control, hosts_file):
            self.assertEqual(found.get("sum"), 3000.0, output)
        for how in ("group", "hook"):
            for rank, (found, output) in enumerate(job(network, master, how, environments, hosts_file)):
                self.assertIn(address[rank], found.get("address", found.get("error", output)))

    def expect_refusal(self, network, master, words, environments=({}, {}), how="hook"):
        results = job(network, master, how, environments)
        for found, output in results:
            for word in words:
                self.assertIn(word, found.get("error", output))
            self.assertLess(found["seconds"], SOON_S)
        return [found for found, _ in results]

    def test_ipv6_only(self):
        with Network([(("fd77::1", "fd77::2"), 1500)]) as network:
            self.expect_sum(network, "fd77::1", ("[fd77::1]:", "[fd77::2]:"))

    @unittest.skipUnless(shutil.which("mount"), "needs mount")
    def test_host_name_that_the_host_itself_maps_to_127_0_1_1(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network, \
                tempfile.TemporaryDirectory() as directory:
            own, other = pathlib.Path(directory, "own"), pathlib.Path(directory, "other")
            own.write_text("127.0.0.1 localhost\n127.0.1.1 head\n", encoding="ascii")
            other.write_text("127.0.0.1 localhost\n10.77.0.1 head\n", encoding="ascii")
            self.expect_sum(network, "head", ("10.77.0.1:", "10.77.0.2:"), hosts_file=(own, other))

    def test_two_ranks_on_one_of_the_hosts(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            for how in ("gloo", "group", "hook"):
                for rank, (found, output) in enumerate(
                        job(network, "10.77.0.1", how, ({}, {}, {}), hosts=(0, 1, 0))):
                    if how != "hook":
                        self.assertEqual(found.get("sum"), 6000.0, output)
                    if how != "gloo":
                        self.assertIn(("10.77.0.1:", "10.77.0.2:", "10.77.0.1:")[rank], found["address"])

    def test_small_mtu(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1280)]) as network:
            self.expect_sum(network, "10.77.0.1", ("10.77.0.1:", "10.77.0.2:"))

    def test_interface_is_prescribed(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500), (("10.78.0.1", "10.78.0.2"), 1500)]) as network:
            self.expect_sum(network, "10.77.0.1", ("10.78.0.1:", "10.78.0.2:"),
                            [{"WEIR_INTERFACE": "nic1"}, {"WEIR_LISTEN": "nic1:0"}],
                            control=[{"GLOO_SOCKET_IFNAME": "nic1"}] * 2)

    def test_the_faster_of_two_interfaces_is_taken(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500), (("10.78.0.1", "10.78.0.2"), 1500)]) as network:
            for host in range(2):
                network.inside(host, "tc", "qdisc", "add", "dev", "nic0", "root", "tbf", "rate", "20mbit",
                               "burst", "4kb", "latency", "200ms")
            # Nobody connects to the last rank, so its addresses are not measured.
            self.expect_sum(network, "10.77.0.1", ("10.78.0.1:", ".0.2:"))

    def test_an_interface_that_nobody_reaches_is_left_out(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            network.inside(0, "ip", "link", "add", "idle", "type", "veth", "peer", "name", "end")
            network.inside(0, "ip", "addr", "add", "10.1.0.1/24", "dev", "idle")
            network.inside(0, "ip", "link", "set", "idle", "up")
            self.expect_sum(network, "10.77.0.1", ("10.77.0.1:", "10.77.0.2:"))

    def test_loopback_is_refused_at_once(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            self.expect_refusal(network, "10.77.0.1", ["127.0.0.1", "(interface lo)", "WEIR_LISTEN"],
                                [{"WEIR_LISTEN": "127.0.0.1:0"}, {}])

    def test_unknown_interface_is_refused_at_once(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            self.expect_refusal(network, "10.77.0.1", ["eth7", "WEIR_INTERFACE", "lo, nic0"],
                                [{"WEIR_INTERFACE": "eth7"}, {}])

    @NEEDS_IPTABLES
    def test_dropped_port_is_named(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            network.inside(0, "iptables-legacy", "-A", "INPUT", "-i", "nic0", "-p", "tcp", "--dport", "7007",
                           "-j", "DROP")
            words = ["10.77.0.1:7007", "interface nic0", "WEIR_LISTEN", "firewall"]
            results = self.expect_refusal(network, "10.77.0.1", words,
                                          [{"WEIR_LISTEN": "10.77.0.1:7007"}, {}])
            for word in words:
                self.assertIn(word, results[1]["warning"])
            self.assertLess(results[1]["warned_after_s"], WARNED_S)

    def expect_check(self, network, peers, words, statuses):
        """`weir check --peers` on both hosts; `words`: what it prints on host 0 and on host 1."""
        commands = [(["ip", "netns", "exec", name, sys.executable, "-m", "weir", "check", "--wait", "6",
                      "--peers", peers], {}) for name in network.names]
        with processes(commands) as children:
            for child, wanted, status in zip(children, words, statuses):
                output, _ = child.communicate(timeout=DEADLINE_S)
                self.assertRegex(output, wanted)
                self.assertEqual(child.returncode, status, output)

    def test_check_of_hosts_that_reach_each_other(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            self.expect_check(network, "10.77.0.1,10.77.0.2:29601", [r"ok +peer 10.77.0.2:29601: answers",
                                                                     r"ok +peer 10.77.0.1:29600"], (0, 0))

    def test_check_names_a_small_mtu(self):
        with Network([(("fd77::1", "fd77::2"), 1280)]) as network:
            self.expect_check(network, "[fd77::1],[fd77::2]", ["MTU 1280"] * 2, (0, 0))

    @NEEDS_IPTABLES
    def test_check_names_packets_that_are_lost_for_their_size(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            for host in range(2):
                network.inside(host, "iptables-legacy", "-A", "INPUT", "-m", "length", "--length",
                               "1281:65535", "-j", "DROP")
            self.expect_check(network, "10.77.0.1,10.77.0.2", ["full-size packets.*MTU"] * 2, (1, 1))

    @NEEDS_IPTABLES
    def test_check_names_a_dropped_port(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            network.inside(0, "iptables-legacy", "-A", "INPUT", "-p", "tcp", "--dport", "29600", "-j", "DROP")
            self.expect_check(network, "10.77.0.1,10.77.0.2", ["is the port closed", "firewall"], (1, 1))

    @NEEDS_IPTABLES
    def test_check_names_a_closed_port(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            network.inside(0, "iptables-legacy", "-A", "INPUT", "-p", "tcp", "--dport", "29600", "-j",
                           "REJECT", "--reject-with", "tcp-reset")
            self.expect_check(network, "10.77.0.1,10.77.0.2", ["is the port closed", "port is closed there"],
                              (1, 1))

    @NEEDS_IPTABLES
    def test_check_names_a_nat(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            network.inside(1, "ip", "addr", "add", "10.77.0.9/24", "dev", "nic0")
            network.inside(1, "iptables-legacy", "-t", "nat", "-A", "POSTROUTING", "-o", "nic0", "-p", "tcp",
                           "--dport", "29600", "-j", "SNAT", "--to-source", "10.77.0.9")
            self.expect_check(network, "10.77.0.1,10.77.0.2",
                              ["ok +peer", "NAT.*10.77.0.2 arrives there as 10.77.0.9"], (0, 1))


if __name__ == "__main__":
    unittest.main()
