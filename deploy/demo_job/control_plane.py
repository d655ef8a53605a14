# SPDX-License-Identifier: Apache-2.0
"""Controller, agents and aggregator of a demo run, and what the driver reads from them."""
import json
import os
import pathlib
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request

from demo_job.forward import Forwarder

GRPC_PORT = 7700
HTTP_PORT = 7780
AGENT_METRICS_PORT = 9465
AGGREGATOR_HTTP_PORT = 9466
AGGREGATOR_NAME = "tor"
AGGREGATOR_SLOTS = 64   # of a KiB: what the emulated links' queues hold at 50 Mb/s
PROBE_PORT = 7446
IPERF_PORT = 5201
# The budget is small, so that no bandwidth probe fills a slow link for seconds; the measurements of
# the ranks' own connections are worth more.
PROBE_BUDGET_MIB = 1
REQUEST_TIMEOUT_S = 5.0
EXPLAIN_TIMEOUT_S = 10.0
START_TIMEOUT_S = 15.0


class ControlPlaneError(RuntimeError):
    """Controller or agent did not come up; the message holds the end of its log."""


class ControlPlane:
    """One controller on the control host and one agent per training host.

    Where the network has a host for it, an aggregator runs there and the controller may lease its
    slots to jobs. goodput_gbit_s is what it states that it takes in; 0: it states nothing.
    aggregator_flags are further ones of its.
    """

    def __init__(self, children, binaries, directory, network, hosts, policy=None, port=0,
                 goodput_gbit_s=0.0, aggregator_flags=()):
        self._children = children
        self._binaries = binaries
        self._directory = pathlib.Path(directory)
        self._network = network
        self._hosts = hosts
        self._policy = policy
        self._port = port
        self._goodput_gbit_s = goodput_gbit_s
        self._aggregator_flags = aggregator_flags
        self._started = []
        self._forwarder = None
        self._aggregator_forwarder = None
        self.url = ""

    def start(self):
        """Starts all and waits until every agent is connected. ControlPlaneError otherwise."""
        self._directory.mkdir(parents=True, exist_ok=True)
        policies = self._directory / "policy"
        policies.mkdir(exist_ok=True)
        # Files of an earlier run with the same --out: its decisions and its policy must not affect
        # this run.
        for stale in (*self._directory.glob("controller.db*"), *policies.iterdir()):
            stale.unlink()
        if self._policy:
            target = policies / pathlib.Path(self._policy).name
            target.write_bytes(pathlib.Path(self._policy).read_bytes())
        inside = self._network.control is not None
        host = self._network.control_address
        self._start("weir-controller", self._network.control, [
            "--listen-grpc", f"{host}:{GRPC_PORT}", "--listen-http", f"{host}:{HTTP_PORT}",
            "--state", self._directory / "controller.db", "--policy", policies, "--insecure",
            *self._start_aggregator()])
        if inside:
            self._forwarder = Forwarder(self._network.control, (host, HTTP_PORT), self._port)
            self.url = f"http://127.0.0.1:{self._forwarder.port}"
        else:
            self.url = f"http://{host}:{HTTP_PORT}"
        self._wait("the controller to answer", lambda: self.get("/v1/nodes") is not None)
        for i in range(self._hosts):
            address = self._network.address(i)
            self._start("weir-agent", self._network.host(i), [
                "--node", f"h{i}", "--address", address, "--controller", f"{host}:{GRPC_PORT}",
                "--socket", self.socket(i), "--insecure",
                "--probe-port", PROBE_PORT if inside else 0,
                "--iperf-port", IPERF_PORT if inside else 0,
                "--probe-budget-mib", PROBE_BUDGET_MIB,
                "--metrics", f"{address}:{AGENT_METRICS_PORT + (0 if inside else i)}",
                "--unprotected", "probes,metrics"], f"-h{i}")
        self._wait(f"{self._hosts} agents to connect", self._agents_connected)
        if self._network.aggregator:
            self._wait("the aggregator to answer the controller", self._aggregator_answers)

    def _start_aggregator(self):
        """The controller's flags for it; none where the network has no place for it."""
        if not self._network.aggregator:
            return []
        address = self._network.aggregator_address
        http = f"{address}:{AGGREGATOR_HTTP_PORT}"
        self._start("weir-aggregator", self._network.aggregator, [
            "--listen", address, "--http", http, "--insecure",
            "--goodput-gbit-s", self._goodput_gbit_s,
            "--slots-per-job", AGGREGATOR_SLOTS, *self._aggregator_flags])
        self._aggregator_forwarder = Forwarder(self._network.control,
                                               (address, AGGREGATOR_HTTP_PORT))
        return ["--aggregator", f"{AGGREGATOR_NAME}=http://{http}"]

    def aggregator(self):
        """The aggregator (weir.v1.Aggregator) as the controller knows it; empty: not at all."""
        found = (self.get("/v1/aggregators") or {}).get("aggregators", [])
        return found[0] if found else {}

    def aggregator_metrics(self):
        """The /metrics text of the aggregator; None while it does not answer."""
        if self._aggregator_forwarder is None:
            return None
        url = f"http://127.0.0.1:{self._aggregator_forwarder.port}/metrics"
        try:
            with urllib.request.urlopen(url, timeout=REQUEST_TIMEOUT_S) as answer:
                return answer.read().decode()
        except (OSError, ValueError):
            return None

    def _aggregator_answers(self):
        return bool(self.aggregator().get("reachable"))

    def socket(self, index):
        """Unix socket of the agent of host `index`."""
        return self._directory / f"h{index}.sock"

    def _start(self, name, namespace, arguments, suffix=""):
        log = open(self._directory / f"{name}{suffix}.log", "wb")
        with log:
            child = self._children.start([self._binaries[name], *arguments], namespace,
                                         stdout=log, stderr=log)
        child.log_path = log.name
        self._started.append(child)

    def _agents_connected(self):
        nodes = (self.get("/v1/nodes") or {}).get("nodes", [])
        return sum(bool(n.get("connected")) for n in nodes) >= self._hosts

    def _wait(self, what, condition):
        deadline = time.monotonic() + START_TIMEOUT_S
        while not condition():
            for child in self._started:
                if child.poll() is not None:
                    raise ControlPlaneError(f"{child.log_path}: ended with status "
                                            f"{child.returncode}: {_tail(child.log_path)}")
            if time.monotonic() > deadline:
                raise ControlPlaneError(f"waited {START_TIMEOUT_S:g} s for {what}; "
                                        f"logs are in {self._directory}")
            time.sleep(0.05)

    def get(self, path, **query):
        """JSON answer of the controller; None while it does not answer."""
        if query:
            path += "?" + urllib.parse.urlencode(query)
        try:
            with urllib.request.urlopen(self.url + path, timeout=REQUEST_TIMEOUT_S) as answer:
                return json.load(answer)
        except (OSError, ValueError):
            return None

    def decisions(self, job, candidates=False):
        """All decisions of the job, oldest first; with their candidates if asked, which takes a request each."""
        found, token = [], ""
        while True:
            page = self.get("/v1/decisions", job=job, page_size=200,
                            **({"page_token": token} if token else {}))
            if page is None:
                break
            found += page.get("decisions", [])
            token = page.get("next_page_token", "")
            if not token:
                break
        if candidates:
            found = [self.get(f"/v1/decisions/{d['id']}") or d for d in found]
        return sorted(found, key=lambda d: float(d.get("unix_s", 0)))

    def series(self, job):
        """The job's recent history (weir.v1.SeriesPoint), oldest first."""
        answer = self.get(f"/v1/jobs/{urllib.parse.quote(job)}/series") or {}
        return answer.get("points", [])

    def explain(self, job, decision):
        """The output of `weirctl explain` for a decision; empty where it cannot be had."""
        path = self._directory / f"explain-{decision}.txt"
        with open(path, "wb") as out:
            child = self._children.start(
                [self._binaries["weirctl"], "--controller", f"{self._network.control_address}:{GRPC_PORT}", "explain",
                 job, "--decision", decision], self._network.control, {"NO_COLOR": "1"}, stdout=out,
                stderr=subprocess.STDOUT)
        try:
            failed = child.wait(EXPLAIN_TIMEOUT_S) != 0
        except subprocess.TimeoutExpired:
            failed = True
        self._children.stop([child])
        return "" if failed else path.read_text(encoding="utf-8")

    def stop(self):
        """Ends controller, agents, aggregator and the forwarded ports."""
        for forwarder in filter(None, (self._forwarder, self._aggregator_forwarder)):
            forwarder.close()
        self._forwarder = self._aggregator_forwarder = None
        self._children.stop(self._started)
        self._started = []


def _tail(path, lines=5):
    text = pathlib.Path(path).read_text(errors="replace").strip().splitlines()
    return " | ".join(text[-lines:]) or "it wrote nothing"


def find_binaries(build):
    """Paths of what a run needs below the build directory; names what is missing."""
    wanted = {"weir-controller", "weir-agent", "weir-aggregator", "weir-delay-relay", "weirctl",
              "libweir-pace.so", "libweir.so"}
    found = {}
    for directory, _, files in os.walk(build):
        for name in wanted & set(files):
            path = os.path.join(directory, name)
            if os.access(path, os.X_OK):  # shell completions have the programs' names, too
                found.setdefault(name, path)
    return found, sorted(wanted - set(found))
