# SPDX-License-Identifier: Apache-2.0
"""The emulated network: namespaces as hosts, a router namespace that shapes and delays.

    h0 -- p0 [router] p1 -- h1 ...        c -- ctl: the control host, not shaped on its own port
                                          pa -- agg: where asked for, likewise

Every training host has full-duplex `rate`: a token bucket on the router's egress towards it, and
one on an intermediate device behind the router's ingress from it. Delay and loss sit between the
two, one way, between training hosts only: netem where the kernel has it, else weir-delay-relay.
With neither delay nor loss packets pass neither. An aggregator's host is as far away as any other,
but its port has room for all of them at once, as a switch between them would have.

Namespaces carry the pid of the process that made them; those whose process is gone are removed.
"""
import json
import os
import re
import select
import shutil
import subprocess

PREFIX = "weirdemo"
# Packets are large, which saves most of the work of the cores that carry all hosts, unless a token bucket has to
# cut them or some are lost: a bucket of 64 KiB would pass the whole of a compressed gradient at once on a slow
# link.
PACKET_BYTES_MIN, PACKET_BYTES_MAX = 14600, 65536
BURST_BYTES_MIN = 16384
BURST_S = 0.001
QUEUE_S = 0.020
QUEUE_NUMBER = 1
AGGREGATOR_SUBNET = 200   # hosts have 1 to 64
CONGESTION_CONTROL = "cubic"
TBF_RATE_MBPS_MAX = 32000.0


class NetworkError(RuntimeError):
    """A namespace, qdisc or relay could not be set up; the message holds the kernel's words."""


def run(*command, text=None):
    """Runs a command and returns its output; NetworkError with its words if it fails."""
    done = subprocess.run(command, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        words = (done.stderr or done.stdout).strip()
        raise NetworkError(f"{' '.join(command)}: {words or 'exit ' + str(done.returncode)}")
    return done.stdout


def namespaces_refused():
    """Why namespaces cannot be used here; an empty string where they can."""
    for tool in ("ip", "tc"):
        if shutil.which(tool) is None:
            return f"{tool} is not installed (package iproute2)"
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    name = f"{PREFIX}-{os.getpid()}-probe"
    try:
        run("ip", "netns", "add", name)
        run("ip", "-n", name, "link", "add", "name", "x0", "type", "veth", "peer", "name", "x1")
        run("tc", "-n", name, "qdisc", "add", "dev", "x0", "root", "tbf", "rate", "100mbit",
            "burst", "16kb", "latency", "20ms")
    except NetworkError as error:
        return str(error)
    finally:
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return ""


def remove_stale():
    """Removes namespaces of demos whose process is gone. Returns their names."""
    stale = []
    for name in namespaces():
        match = re.fullmatch(PREFIX + r"-(\d+)-\w+", name)
        if match and not os.path.exists(f"/proc/{match.group(1)}"):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
            stale.append(name)
    return stale


def namespaces():
    """All named network namespaces of this machine."""
    try:
        return sorted(os.listdir("/var/run/netns"))
    except FileNotFoundError:
        return []


def burst_bytes(rate_mbps):
    """The size of a token bucket with this rate: a millisecond's worth."""
    return max(BURST_BYTES_MIN, int(rate_mbps * 1e6 / 8 * BURST_S))


class LoopbackNetwork:
    """All hosts on this machine's loopback, for where namespaces are not permitted.

    The rate holds per connection, by the kernel's pacing of each rank's sockets (libweir-pace.so in
    the ranks); there is neither delay nor loss.
    """
    control = None
    control_address = "127.0.0.1"
    aggregator = None
    interface = "lo"

    def __init__(self, pace_library, directory):
        self._file = os.path.join(directory, "pace")
        # Ranks on emulated hosts must not discover that they share memory.
        self.environment = {"WEIR_TRANSPORT": "tcp"}
        self._paced = bool(pace_library)
        if pace_library:
            self.environment |= {"LD_PRELOAD": os.path.abspath(pace_library),
                                 "WEIR_PACE_FILE": self._file}
        self.shape(0.0)

    @staticmethod
    def host(unused_index):
        """No namespace."""
        return None

    @staticmethod
    def address(unused_index):
        """Every host is this machine."""
        return "127.0.0.1"

    def shape(self, rate_mbps, unused_delay_ms=0.0, unused_loss_ratio=0.0):
        """Paces every connection of the ranks at this rate; 0: unlimited."""
        temporary = self._file + ".next"
        with open(temporary, "w", encoding="ascii") as out:
            out.write(f"{int(rate_mbps * 1e6 / 8)}\n")
        os.rename(temporary, self._file)

    def describe(self):
        """The substitutes for rate and delay, for the report."""
        return {"rate": "sockets paced per connection on loopback" if self._paced else "none",
                "delay": "none", "congestion_control": "the system's", "relay": None}

    def close(self):
        """Nothing is held."""


class EmulatedNetwork:
    """`hosts` training hosts, one control host and, if asked for, one for an aggregator.

    A context manager; close() removes all.
    """

    interface = "e0"
    environment = {}

    def __init__(self, hosts, relay_binary, aggregator=False):
        if not 1 <= hosts <= 64:
            raise NetworkError(f"hosts: expected 1 to 64, found {hosts}")
        self.hosts = hosts
        self._relay_binary = relay_binary
        self._relay = None
        self._delay_device = None   # "netem" or "relay" once a delay was set
        self._impaired = False
        self._shaped = False
        self._packet_bytes = PACKET_BYTES_MAX   # the kernel's own
        stem = f"{PREFIX}-{os.getpid()}-"
        self._stem = stem
        self.router = stem + "r"
        self.control = stem + "ctl"
        self.aggregator = stem + "agg" if aggregator else None
        # (namespace, the router's port to it, subnet)
        self._names = [(self.host(i), f"p{i}", i + 1) for i in range(hosts)]
        self._names.append((self.control, "c", 0))
        if aggregator:
            # The relay's rule for training hosts also matches this name of its port.
            self._names.append((self.aggregator, "pa", AGGREGATOR_SUBNET))
        self.rate_mbps = 0.0
        self.delay_ms = 0.0
        self.loss_ratio = 0.0

    def __enter__(self):
        try:
            self.open()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *unused):
        self.close()

    def host(self, index):
        """Namespace of training host `index`."""
        return f"{self._stem}h{index}"

    @staticmethod
    def address(index):
        """IPv4 address of training host `index`."""
        return f"10.77.{index + 1}.2"

    @property
    def control_address(self):
        """IPv4 address of the control host."""
        return "10.77.0.2"

    @property
    def aggregator_address(self):
        """IPv4 address of the aggregator's host."""
        return f"10.77.{AGGREGATOR_SUBNET}.2"

    def open(self):
        """Builds namespaces, links and routes; unshaped and without delay."""
        run("ip", "netns", "add", self.router)
        for name, _, _ in self._names:
            run("ip", "netns", "add", name)
        run("ip", "-n", self.router, "link", "set", "lo", "up")
        for name, port, subnet in self._names:
            self._connect(name, port, subnet)
        run("ip", "netns", "exec", self.router, "sh", "-c",
            "echo 1 > /proc/sys/net/ipv4/ip_forward")
        for i in range(self.hosts):
            run("ip", "-n", self.router, "link", "add", "name", f"u{i}", "type", "ifb")
            run("ip", "-n", self.router, "link", "set", f"u{i}", "up")
            run("tc", "-n", self.router, "qdisc", "add", "dev", f"p{i}", "ingress")
            run("tc", "-n", self.router, "filter", "add", "dev", f"p{i}", "parent", "ffff:",
                "protocol", "ip", "u32", "match", "u32", "0", "0",
                "action", "mirred", "egress", "redirect", "dev", f"u{i}")

    def _connect(self, name, port, subnet):
        ip = ["ip", "-n", name]
        run("ip", "-n", self.router, "link", "add", "name", port, "type", "veth",
            "peer", "name", "e0", "netns", name)
        run("ip", "-n", self.router, "addr", "add", f"10.77.{subnet}.1/24", "dev", port)
        run("ip", "-n", self.router, "link", "set", port, "up")
        run(*ip, "addr", "add", f"10.77.{subnet}.2/24", "dev", "e0")
        run(*ip, "link", "set", "e0", "up")
        run(*ip, "link", "set", "lo", "up")
        # The congestion control is set per route, because a namespace may not name one that the
        # machine's administrator has not allowed, and this program must not change the machine's
        # own setting.
        run(*ip, "route", "add", "default", "via", f"10.77.{subnet}.1", "congctl",
            CONGESTION_CONTROL)
        # A training step leaves connections idle for longer than a retransmission timeout.
        # Operators of long-haul links switch off the restart from ten packets that would follow.
        run("ip", "netns", "exec", name, "sh", "-c",
            "echo 0 > /proc/sys/net/ipv4/tcp_slow_start_after_idle; "
            "echo 1 > /proc/sys/net/ipv4/tcp_no_metrics_save")

    def shape(self, rate_mbps, delay_ms=0.0, loss_ratio=0.0):
        """Sets every training host's rate (0: unshaped), and delay and loss, one way, between hosts."""
        small = loss_ratio > 0 or (rate_mbps and burst_bytes(rate_mbps) < PACKET_BYTES_MAX)
        self._set_packets(PACKET_BYTES_MIN if small else PACKET_BYTES_MAX)
        if rate_mbps != self.rate_mbps:
            self._set_rate(rate_mbps)
        if (delay_ms, loss_ratio) != (self.delay_ms, self.loss_ratio):
            self._impair(delay_ms, loss_ratio)
        self.rate_mbps, self.delay_ms, self.loss_ratio = rate_mbps, delay_ms, loss_ratio

    def shape_host(self, index, rate_mbps):
        """Gives one host of a shaped network another rate, until the next shape()."""
        if not self._shaped:
            raise NetworkError(f"shape_host: host {index} of a network without a rate")
        lines = [f"qdisc change dev {kind}{index} root tbf rate {rate_mbps:g}mbit "
                 f"burst {burst_bytes(rate_mbps)}b latency {QUEUE_S * 1000:g}ms" for kind in "pu"]
        run("tc", "-n", self.router, "-batch", "-", text="\n".join(lines) + "\n")
        self.rate_mbps = None   # so that the next shape() sets every host

    def _set_packets(self, size):
        """The largest packet on any link; connections made before may go on with theirs."""
        if size == self._packet_bytes:
            return
        for name, port, _ in self._names:
            for place, device in ((self.router, port), (name, self.interface)):
                run("ip", "-n", place, "link", "set", device, "gso_max_size", str(size))
        self._packet_bytes = size

    def _set_rate(self, rate_mbps):
        if rate_mbps and not 0.1 <= rate_mbps <= TBF_RATE_MBPS_MAX:
            raise NetworkError(f"rate_mbps: expected 0 or 0.1 to {TBF_RATE_MBPS_MAX}, "
                               f"found {rate_mbps}")
        devices = [f"{kind}{i}" for i in range(self.hosts) for kind in "pu"]
        if not rate_mbps:
            lines = [f"qdisc del dev {d} root" for d in devices] if self._shaped else []
        else:
            burst = burst_bytes(rate_mbps)
            verb = "change" if self._shaped else "replace"
            lines = [f"qdisc {verb} dev {d} root tbf rate {rate_mbps:g}mbit burst {burst}b "
                     f"latency {QUEUE_S * 1000:g}ms" for d in devices]
        if lines:
            run("tc", "-n", self.router, "-batch", "-", text="\n".join(lines) + "\n")
        self._shaped = bool(rate_mbps)

    def _impair(self, delay_ms, loss_ratio):
        if not 0 <= delay_ms <= 10000:
            raise NetworkError(f"delay_ms: expected 0 to 10000, found {delay_ms}")
        if not 0 <= loss_ratio <= 1:
            raise NetworkError(f"loss_ratio: expected 0 to 1, found {loss_ratio}")
        impaired = delay_ms > 0 or loss_ratio > 0
        if self._delay_device is None:
            self._delay_device = "netem" if self._netem_works() else "relay"
        if self._delay_device == "netem":
            self._netem(delay_ms, loss_ratio)
            return
        if self._relay is None:
            self._start_relay()
        self._command(f"delay {round(delay_ms * 1000)}")
        self._command(f"loss {round(loss_ratio * 1e6)}")
        if impaired != self._impaired:
            iptables = "iptables-legacy" if shutil.which("iptables-legacy") else "iptables"
            run("ip", "netns", "exec", self.router, iptables, "-A" if impaired else "-D",
                "FORWARD", "-i", "p+", "-o", "p+", "-j", "NFQUEUE",
                "--queue-num", str(QUEUE_NUMBER))
            self._impaired = impaired

    def _netem_works(self):
        probe = subprocess.run(["tc", "-n", self.router, "qdisc", "add", "dev", "c", "root",
                                "netem", "delay", "1ms"], capture_output=True, check=False)
        if probe.returncode == 0:
            run("tc", "-n", self.router, "qdisc", "del", "dev", "c", "root")
        return probe.returncode == 0

    def _netem(self, delay_ms, loss_ratio):
        # The delay is on the hosts' side of the uplink, where there is no token bucket. Unlike with
        # the relay, it also affects a host's control traffic.
        impaired = delay_ms > 0 or loss_ratio > 0
        hosts = [self.host(i) for i in range(self.hosts)]
        for name in hosts + ([self.aggregator] if self.aggregator else []):
            if impaired:
                run("tc", "-n", name, "qdisc", "replace", "dev", "e0", "root", "netem",
                    "delay", f"{delay_ms:g}ms", "loss", f"{100 * loss_ratio:g}%",
                    "limit", "100000")
            elif self._impaired:
                run("tc", "-n", name, "qdisc", "del", "dev", "e0", "root")
        self._impaired = impaired

    def _start_relay(self):
        if not self._relay_binary or not os.access(self._relay_binary, os.X_OK):
            raise NetworkError("this kernel has no netem and weir-delay-relay is not built: "
                               "build the target weir-delay-relay, or use a schedule without delay "
                               "and loss")
        self._relay = subprocess.Popen(
            ["ip", "netns", "exec", self.router, str(self._relay_binary),
             "--queue", str(QUEUE_NUMBER)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, bufsize=0,
            start_new_session=True)
        line = self._answer()
        if not line.startswith("ready"):
            raise NetworkError(f"weir-delay-relay did not start: {line}")

    def _answer(self, deadline_s=10.0):
        if not select.select([self._relay.stdout], [], [], deadline_s)[0]:
            raise NetworkError(f"weir-delay-relay did not answer within {deadline_s:g} s")
        line = self._relay.stdout.readline().decode().strip()
        if not line:
            line = self._relay.stderr.read().decode().strip() or "it has ended"
        return line

    def _command(self, text):
        try:
            self._relay.stdin.write((text + "\n").encode())
        except BrokenPipeError as error:
            raise NetworkError("weir-delay-relay has ended") from error
        answer = self._answer()
        if answer != "ok" and not answer.startswith("{"):
            raise NetworkError(f"weir-delay-relay: {text}: {answer}")
        return answer

    def describe(self):
        """The means that emulate rate, delay and loss, for the report."""
        delay = {None: "none set", "netem": "netem",
                 "relay": "weir-delay-relay (no netem in this kernel)"}[self._delay_device]
        return {"rate": "tbf on both directions of every training host", "delay": delay,
                "congestion_control": CONGESTION_CONTROL,
                "relay": self.relay_stats()}

    def relay_stats(self):
        """The relay's counters and lateness; None while it does not run."""
        return json.loads(self._command("stats")) if self._relay is not None else None

    def close(self):
        """Ends the relay and removes the namespaces. Safe to call twice."""
        if self._relay is not None:
            self._relay.stdin.close()
            try:
                self._relay.wait(timeout=2)
            except subprocess.TimeoutExpired:
                self._relay.kill()
                self._relay.wait()
            self._relay.stdout.close()
            self._relay.stderr.close()
            self._relay = None
        for name in namespaces():
            if name.startswith(self._stem):
                subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
