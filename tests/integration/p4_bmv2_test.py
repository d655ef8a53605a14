#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The switch programs with the real tools, where they are installed: p4c compiles both (TNA if it has that target, else
p4test checks it), BMv2 runs the v1model program in a network namespace, and the traces of tests/p4 go through it, with
the aggregator in software as oracle. Then real workers in namespaces of their own run every mode through leases that
weir_p4.py installs: without loss, with 1 and 5 %, with the interfaces' default offloads and without, with more slots
than the switch holds, and over a restart of the switch. Without p4c, simple_switch and simple_switch_CLI on the PATH, or
without the right to make namespaces, it says so and ends with 77: skipped.

    p4_bmv2_test.py [--only traces|workers]
"""
import json
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
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/support/p4"))
import harness  # noqa: E402
import weir_p4_control  # noqa: E402

SKIPPED = 77
TOOLS = ("p4c", "simple_switch", "simple_switch_CLI", "ip")
WORKERS_MAX = 64
PORTS = (*range(1, WORKERS_MAX + 1), harness.STRANGER_PORT)
REAL_WORKERS = 8
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
        if shutil.which("p4test") is None:
            print("not compiled: TNA; this p4c has no target tofino, and there is no p4test")
        else:
            done = run("p4test", tna, timeout=300)
            if done.returncode != 0:
                sys.exit(f"p4test, TNA:\n{done.stdout}{done.stderr}")
            print("checked by p4test: TNA; this p4c has no target tofino")
    else:
        done = run(*compiler, "-o", f"{directory}/tna", tna, timeout=600)
        if done.returncode != 0:
            sys.exit(f"{compiler[0]}, TNA:\n{done.stdout}{done.stderr}")
        print("compiled: TNA")
    return f"{directory}/aggregator.json"


class Bmv2Plane:
    """simple_switch between veth pairs of this network namespace; worker w is at port w + 1."""

    def __init__(self, program, directory):
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
        self.process = subprocess.Popen([*command, program], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
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


def traces(program, directory):
    """Every trace of the suite, and the other modes."""
    plane = Bmv2Plane(program, directory)
    ran, left = 0, []
    try:
        for trace in harness.traces():
            if trace[1] > WORKERS_MAX:
                left.append(trace[0])
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
    print(f"{ran} traces as the aggregator in software; left out: {', '.join(left) or 'none'}", flush=True)
    if ran == 0:
        sys.exit("no trace ran")


def must(*command):
    done = run(*command)
    if done.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: {done.stdout}{done.stderr}")
    return done.stdout


MODES = {"sum": {"lanes": 64}, "max": {"lanes": 64}, "sparse": {"lanes": 16, "columns": 4},
         "table": {"lanes": 256, "sum_bits": 8, "levels": list(range(0, 32, 2))}}


class RealNetwork:
    """A switch in this namespace, and workers' hosts in others."""

    def __init__(self, program, directory, namespace):
        self.program, self.directory, self.namespace = program, pathlib.Path(directory), namespace
        self.epoch, self.command, self.process = 0, ["simple_switch", "--thrift-port", str(THRIFT_PORT)], None
        for number in range(1, REAL_WORKERS + 1):
            place, host = harness.Place(harness.FIRST_ADDRESS + number - 1), f"{namespace}-{number}"
            must("ip", "netns", "add", host)
            must("ip", "link", "add", f"s{number}", "type", "veth", "peer", "name", "h0", "netns", host)
            must("ip", "link", "set", f"s{number}", "up")
            for line in (f"link set h0 address {place.mac}", "link set h0 up", "link set lo up",
                         f"addr add {place.ip}/16 dev h0",
                         f"neigh add {harness.SWITCH_IP} lladdr {harness.SWITCH_MAC} dev h0"):
                must("ip", "-n", host, *line.split())
            self.command += ["-i", f"{number}@s{number}"]
        self.file("hosts.json", harness.hosts())
        self.start()

    def file(self, name, content):
        path = self.directory / name
        path.write_text(json.dumps(content))
        return str(path)

    def start(self):
        """Starts the switch, again if it runs."""
        self.stop()
        self.process = subprocess.Popen([*self.command, self.program], stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        deadline = time.monotonic() + PATIENCE_S
        while run("simple_switch_CLI", "--thrift-port", str(THRIFT_PORT), timeout=30).returncode != 0:
            if time.monotonic() > deadline:
                sys.exit("simple_switch did not come up")
            time.sleep(0.2)

    def stop(self):
        if self.process is not None:
            self.process.terminate()
            self.process.wait(timeout=10)

    def close(self):
        self.stop()
        for number in range(1, REAL_WORKERS + 1):
            run("ip", "netns", "del", f"{self.namespace}-{number}")

    def control(self, *arguments):
        done = run(sys.executable, str(ROOT / "p4/control/weir_p4.py"), "--state", str(self.directory / "real.json"),
                   "--cli", f"simple_switch_CLI --thrift-port {THRIFT_PORT}", *arguments)
        if done.returncode != 0:
            sys.exit(f"weir_p4.py {' '.join(arguments)}: {done.stderr}")
        return done.stdout, done.stderr

    def lease(self, mode, workers, slots):
        """The file of a grant of the next epoch, installed."""
        self.epoch += 1
        lease = {"lease": 1, "epoch": self.epoch, "cookie": 0xABCDEF, "mode": mode, "workers": workers, "slots": slots,
                 **MODES[mode]}
        request, grant = harness.documents(lease, "job")
        grant |= {key: lease[key] for key in ("columns", "sum_bits", "levels") if key in lease}
        path = self.file("grant.json", grant)
        _, self.warning = self.control("add", "--hosts", str(self.directory / "hosts.json"), "--request",
                                       self.file("request.json", request), "--grant", path)
        return path

    def work(self, grant, workers, elements, operations):
        """Runs all workers at once; what each printed."""
        program = str(pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"), "tests/p4/switch_worker"))
        processes = [subprocess.Popen(["ip", "netns", "exec", f"{self.namespace}-{rank + 1}", program, grant, str(rank),
                                       str(elements), str(operations)], stdout=subprocess.PIPE, text=True)
                     for rank in range(workers)]
        return [json.loads(process.communicate(timeout=150)[0]) for process in processes]

    def offloads(self, state):
        for number in range(1, REAL_WORKERS + 1):
            must("ip", "netns", "exec", f"{self.namespace}-{number}", "ethtool", "-K", "h0", "tx-udp-segmentation", state)

    def malformed(self):
        return json.loads(self.control("show")[0])["switch"]["malformed"]


def check(what, found):
    wrong = [one for one in found if not one["ok"]]
    if wrong:
        sys.exit(f"{what}: {wrong[0]}")
    seconds = max(one["seconds"] for one in found)
    print(f"{what}: {len(found)} workers in {seconds:.2f} s, {sum(one['resent'] for one in found)} of "
          f"{sum(one['sent'] for one in found)} packets sent again, 0 wrong elements", flush=True)


def workers(program, directory, namespace):
    network = RealNetwork(program, directory, namespace)
    try:
        network.control("hosts", "--hosts", str(network.directory / "hosts.json"))
        grant = network.lease("sum", 2, 16)
        check("sum, offloads as they are", network.work(grant, 2, 64 * 64, 5))
        rows = network.malformed()
        print(f"refused as malformed: {rows}", flush=True)
        if rows == 0:
            sys.exit("the interfaces of this kernel do not hand over rows: default offloads were not tested")
        network.offloads("off")
        for mode in MODES:
            for share in (0, 0.01, 0.05):
                for port in range(1, 5):
                    network.control("loss", "--port", str(port), "--share", str(share))
                    network.control("loss", "--port", str(port), "--share", str(share), "--replies")
                grant = network.lease(mode, 4, 32)
                check(f"{mode}, {share:.0%} lost each way", network.work(grant, 4, 64 * 200, 3))
        if network.malformed() != rows:
            sys.exit(f"{network.malformed() - rows} packets refused as malformed without offloads")
        for port in range(1, 5):
            network.control("loss", "--port", str(port), "--share", "0")
            network.control("loss", "--port", str(port), "--share", "0", "--replies")
        grant = network.lease("sum", REAL_WORKERS, 64)
        if "32 slots fit" not in network.warning:
            sys.exit(f"more slots than the switch holds: expected a warning, found {network.warning!r}")
        check("sum, more slots than the switch holds", network.work(grant, REAL_WORKERS, 64 * 500, 2))
        network.control("remove", "--job", "job")
        network.start()
        grant = network.lease("sum", 2, 32)
        if "had lost its entries" not in network.warning:
            sys.exit(f"restarted switch: expected that it is noticed, found {network.warning!r}")
        check("sum, after a restart of the switch", network.work(grant, 2, 64 * 64, 2))
        serve(network)
    finally:
        network.close()


def serve(network):
    """A lease by HTTP, a restart of the switch below it, and the next epoch."""
    process = subprocess.Popen(
        [sys.executable, ROOT / "p4/control/weir_p4.py", "serve", "--state", network.directory / "served.json", "--cli",
         f"simple_switch_CLI --thrift-port {THRIFT_PORT}", "--hosts", network.directory / "hosts.json", "--address",
         f"{harness.SWITCH_IP}:{harness.SWITCH_UDP}", "--http", "127.0.0.1:0"], stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL, text=True)
    try:
        network.start()  # without the entries of the other state file
        place = process.stdout.readline().split()[1]
        ask = {"job": "served", "mode": "sum", "slots": 32, "lanes": 64, "checked": False, "owner": "o" * 32,
               "workers": [f"10.1.0.{rank + 1}:{40000 + rank}" for rank in range(2)]}
        for what in ("by HTTP", "by HTTP, after another restart"):
            with urllib.request.urlopen(f"http://{place}/v1/leases", json.dumps(ask).encode(), timeout=30) as answer:
                grant = network.file("grant.json", json.load(answer))
            check(f"sum, a lease {what}", network.work(grant, 2, 64 * 64, 2))
            network.start()
    finally:
        process.terminate()
        process.wait(timeout=10)


def inside(part, program, directory, namespace):
    """The part that runs in the switch's namespace."""
    if part == "traces":
        traces(program, directory)
    else:
        workers(program, directory, namespace)


def main():
    if sys.argv[1:2] == ["--inside"]:
        return inside(*sys.argv[2:6])
    parts = [sys.argv[2]] if sys.argv[1:2] == ["--only"] else ["traces", "workers"]
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        skip(f"not on the PATH: {', '.join(missing)}")
    with tempfile.TemporaryDirectory() as directory:
        program = compile_programs(directory)
        for part in parts:
            namespace = f"weir-p4-{os.getpid()}"
            done = run("ip", "netns", "add", namespace)
            if done.returncode != 0:
                skip(f"ip netns add: {done.stderr.strip()}")
            try:
                for setting in ("all", "default"):  # no neighbour discovery between the frames
                    run("ip", "netns", "exec", namespace, "sysctl", "-q", f"net.ipv6.conf.{setting}.disable_ipv6=1")
                run("ip", "-n", namespace, "link", "set", "lo", "up")
                done = subprocess.run(["ip", "netns", "exec", namespace, sys.executable, __file__, "--inside", part, program,
                                       directory, namespace], timeout=900, check=False)
                if done.returncode != 0:
                    sys.exit(done.returncode)
            finally:
                run("ip", "netns", "del", namespace)


if __name__ == "__main__":
    main()
