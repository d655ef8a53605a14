#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The switch programs with the real tools, where they are installed: p4c compiles both (TNA if it has that target),
BMv2 runs the v1model program in a network namespace, and the traces of tests/p4 go through it, with the aggregator in
software as oracle. Without p4c, simple_switch and simple_switch_CLI on the PATH, or without the right to make
namespaces, it says so and ends with 77: skipped.
"""
import os
import pathlib
import random
import select
import shutil
import socket
import subprocess
import sys
import tempfile
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support/p4"))
import harness  # noqa: E402
import weir_p4_control  # noqa: E402

SKIPPED = 77
TOOLS = ("p4c", "simple_switch", "simple_switch_CLI", "ip")
WORKERS_MAX = 4
PORTS = (*range(1, WORKERS_MAX + 1), harness.STRANGER_PORT)
THRIFT_PORT = 9090  # in a namespace of its own
PATIENCE_S = 20
QUIET_S = 0.03
LANES = 16


def run(*command, timeout=120):
    return subprocess.run(command, capture_output=True, text=True, timeout=timeout, check=False)


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(SKIPPED)


def compile_programs(directory):
    """The v1model program's JSON; a program that does not compile ends the test."""
    done = run("p4c", "--target", "bmv2", "--arch", "v1model", "-o", directory, str(harness.PROGRAM), timeout=300)
    if done.returncode != 0:
        sys.exit(f"p4c, v1model:\n{done.stdout}{done.stderr}")
    print("compiled: v1model")
    tna = str(ROOT / "p4/tna/aggregator.p4")
    targets = run("p4c", "--target-help").stdout
    compiler = ["bf-p4c"] if shutil.which("bf-p4c") else ["p4c", "--target", "tofino", "--arch", "tna"]
    if compiler[0] == "p4c" and "tofino" not in targets:
        print("not compiled: TNA; this p4c has no target tofino")
    else:
        done = run(*compiler, "-o", f"{directory}/tna", tna, timeout=600)
        if done.returncode != 0:
            sys.exit(f"{compiler[0]}, TNA:\n{done.stdout}{done.stderr}")
        print("compiled: TNA")
    return f"{directory}/aggregator.json"


class Bmv2Plane:
    """simple_switch between veth pairs of this network namespace; worker w is at port w + 1."""

    def __init__(self, json, directory):
        self.expected = 0
        self.directory = directory
        self.sockets = {}
        command = ["simple_switch", "--thrift-port", str(THRIFT_PORT)]
        for port in PORTS:
            for line in (f"link add s{port} type veth peer name h{port}", f"link set s{port} up",
                         f"link set h{port} up"):
                done = run("ip", *line.split())
                if done.returncode != 0:
                    sys.exit(f"ip {line}: {done.stderr}")
            command += ["-i", f"{port}@s{port}"]
            end = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(0x0800))
            end.bind((f"h{port}", 0))
            self.sockets[port] = end
        self.process = subprocess.Popen([*command, json], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.cli = weir_p4_control.CommandLine(f"simple_switch_CLI --thrift-port {THRIFT_PORT}")
        self.leases = 0
        self.wait()

    def wait(self):
        """Until the control interface answers."""
        deadline = time.monotonic() + PATIENCE_S
        while True:
            try:
                if "WeirIngress.terms" in self.cli(["show_tables"]):
                    return
            except weir_p4_control.ControlError:
                pass
            if self.process.poll() is not None or time.monotonic() > deadline:
                sys.exit(f"simple_switch did not come up within {PATIENCE_S} s, status {self.process.poll()}")
            time.sleep(0.2)

    def fresh(self):
        """All state of earlier traces away; their replies, too."""
        self.cli(["reset_state"])
        self.leases += 1
        self.control = weir_p4_control.Control(self.cli, pathlib.Path(self.directory, f"state-{self.leases}.json"))
        while self.received(0):
            pass

    def grant(self, lease, job=None):
        self.control.add(weir_p4_control.Lease(*harness.documents(lease, job), harness.hosts()))

    def received(self, seconds):
        ready = select.select(list(self.sockets.values()), [], [], seconds)[0]
        found = []
        for port, end in self.sockets.items():
            if end in ready:
                frame, address = end.recvfrom(65536)
                if address[2] != socket.PACKET_OUTGOING:
                    found.append((port, frame))
        return found

    def send(self, source, datagram):
        place = harness.Place(source)
        self.sockets[place.port].send(harness.frame_of(place, datagram))
        found, deadline = [], time.monotonic() + PATIENCE_S
        while len(found) < self.expected and time.monotonic() < deadline:
            found += self.received(0.1)
        while extra := self.received(QUIET_S):  # what nobody expects
            found += extra
        return [harness.datagram_of(port, frame) for port, frame in found]

    def close(self):
        self.process.terminate()
        self.process.wait(timeout=10)
        for end in self.sockets.values():
            end.close()


class Bmv2Pair(harness.Pair):
    """Counters of BMv2 are read by the command line, once for a trace, where the oracle starts afresh."""

    def check_counters(self):
        expected = self.oracle.counters()
        lines = [f"counter_read WeirIngress.by_lease {number}" for number in range(len(weir_p4_control.VERDICTS))]
        output = self.plane.cli(lines)
        for number, name in enumerate(weir_p4_control.VERDICTS):
            assert f"by_lease[{number}]= (" in output, output
            line = next(line for line in output.splitlines() if f"by_lease[{number}]= (" in line)
            assert f" {expected[name]} packets" in line, f"{name}: {line}, not {expected[name]}"


def modes(plane):
    """Table sums and sparse blocks, three rounds each, every packet twice."""
    source = random.Random(1)
    common = {"lease": 9, "epoch": 1, "cookie": 7, "workers": 3, "slots": 2}
    leases = ({**common, "mode": "table", "lanes": 128, "sum_bits": 8, "levels": list(range(16))},
              {**common, "mode": "table", "lanes": 32, "sum_bits": 16, "levels": list(range(240, 256))},
              {**common, "mode": "sparse", "lanes": 16, "columns": 3})
    for lease in leases:
        plane.fresh()
        pair = Bmv2Pair(plane=plane)
        pair.grant(lease)
        fields = {"mode": harness.MODES[lease["mode"]], "lanes": lease["lanes"], "columns": lease.get("columns", 0),
                  "lease": 9, "epoch": 1, "cookie": 7, "slot": 1}
        for round_ in range(3):
            for worker in source.sample(range(3), 3):
                detail, payload = lease.get("sum_bits"), source.randbytes(lease["lanes"] // 2)
                if lease["mode"] == "sparse":
                    detail = source.randrange(8)
                    payload = source.randbytes(3 * 4 + detail.bit_count() * 64)
                one = harness.packet(payload, detail=detail, round=round_, **fields)
                pair.send(harness.FIRST_ADDRESS + worker, one)
                pair.send(harness.FIRST_ADDRESS + worker, one)
        pair.check_counters()
        pair.oracle.close()
    print(f"{len(leases)} leases of other modes as the aggregator in software")


def inside(json, directory):
    """The part that runs in the namespace."""
    plane = Bmv2Plane(json, directory)
    ran = 0
    try:
        for trace in harness.traces():
            if trace[1] > WORKERS_MAX:
                continue
            plane.fresh()
            pair = Bmv2Pair(plane=plane)
            try:
                harness.run_trace(pair, trace, LANES)
            except AssertionError as error:
                sys.exit(f"{trace[0]}: {error}")
            finally:
                pair.oracle.close()
            ran += 1
        modes(plane)
    finally:
        plane.close()
    print(f"{ran} traces as the aggregator in software")
    if ran == 0:
        sys.exit("no trace ran")


def main():
    if sys.argv[1:2] == ["--inside"]:
        return inside(*sys.argv[2:4])
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        skip(f"not on the PATH: {', '.join(missing)}")
    namespace = f"weir-p4-{os.getpid()}"
    with tempfile.TemporaryDirectory() as directory:
        json = compile_programs(directory)
        done = run("ip", "netns", "add", namespace)
        if done.returncode != 0:
            skip(f"ip netns add: {done.stderr.strip()}")
        try:
            for setting in ("all", "default"):  # no neighbour discovery between the frames
                run("ip", "netns", "exec", namespace, "sysctl", "-q", f"net.ipv6.conf.{setting}.disable_ipv6=1")
            run("ip", "-n", namespace, "link", "set", "lo", "up")
            done = subprocess.run(["ip", "netns", "exec", namespace, sys.executable, __file__, "--inside", json,
                                   directory], timeout=400, check=False)
            sys.exit(done.returncode)
        finally:
            run("ip", "netns", "del", namespace)


if __name__ == "__main__":
    main()
