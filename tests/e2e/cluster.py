# SPDX-License-Identifier: Apache-2.0
"""A training with agents and controller on emulated hosts, for tests that reach into it.

Everything is the demo's own: its network, its control plane, its ranks. Added here is what a test
needs beyond a demo: ranks that go on until told to end, programs that can be killed and started
again, and ways to look at both.
"""
import json
import os
import pathlib
import re
import subprocess
import sys
import time
import urllib.error
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
for part in ("deploy", "tests/deploy"):
    sys.path.insert(0, str(ROOT / part))

from demo_job import network, schedule, training
from demo_job.children import Children
from demo_job.control_plane import AGENT_METRICS_PORT, GRPC_PORT, ControlPlane, find_binaries
from demo_job.forward import Forwarder

BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
OUT = pathlib.Path(os.environ.get("WEIR_E2E_OUT", BUILD / "tests" / "e2e" / "out"))
REFUSED = network.namespaces_refused()
SKIP_REASON = f"no network namespaces: {REFUSED}"
JOB = "demo"
FOR_EVER = 1_000_000
TCP_ESTABLISHED = "01"
# The slow rate is so low that even the sparsest plan of a fast network should be replaced.
FAST_MBPS, SLOW_MBPS = 1000.0, 5.0


def wait_until(condition, what, deadline_s=30.0, failed=None):
    """The first true result of condition(); AssertionError naming `what` after deadline_s.

    failed() returns a reason to stop waiting, or None.
    """
    end = time.monotonic() + deadline_s
    while True:
        found = condition()
        if found:
            return found
        reason = failed() if failed else None
        if reason:
            raise AssertionError(f"while waiting for {what}: {reason}")
        if time.monotonic() > end:
            raise AssertionError(f"waited {deadline_s:g} s for {what}")
        time.sleep(0.05)


class Controls(ControlPlane):
    """The demo's control plane, whose programs can be killed and started again."""

    def __init__(self, *arguments, **options):
        super().__init__(*arguments, **options)
        self._parts = {}    # "weir-agent-h1" -> [child, what _start was given]

    def _start(self, name, namespace, arguments, suffix=""):
        super()._start(name, namespace, arguments, suffix)
        self._parts[name + suffix] = (self._started[-1], (name, namespace, arguments, suffix))

    def kill(self, part):
        """Ends a program as a crash does, without a shutdown notice."""
        child, _ = self._parts[part]
        child.kill()
        child.wait(timeout=10)
        self._started.remove(child)

    def restart(self, part):
        """Starts a killed program with the same flags; its log goes on in "<part>-again.log"."""
        name, namespace, arguments, suffix = self._parts[part][1]
        super()._start(name, namespace, arguments, suffix + "-again")
        self._parts[part] = (self._started[-1], (name, namespace, arguments, suffix))

    def log(self, part):
        """The program's log since its last start."""
        return pathlib.Path(self._parts[part][0].log_path).read_text(errors="replace")


class Cluster:
    """A context manager: hosts, agents, controller, and a training once start_ranks was called."""

    def __init__(self, name, hosts=2, model_params=300_000, *, aggregator=False, policy=None,
                 goodput_gbit_s=0.0, aggregator_flags=()):
        self.directory = OUT / name
        self.directory.mkdir(parents=True, exist_ok=True)
        binaries, missing = find_binaries(BUILD)
        if set(missing) - (set() if aggregator else {"weir-aggregator"}):
            raise AssertionError(f"not built below {BUILD}: {', '.join(missing)}")
        self.binaries = binaries
        self.hosts = hosts
        self.model_params = model_params
        self.children = Children()
        self.network = network.EmulatedNetwork(hosts, binaries["weir-delay-relay"], aggregator)
        if policy:
            (self.directory / "policy.yaml").write_text(policy, encoding="utf-8")
            policy = self.directory / "policy.yaml"
        self.controls = Controls(self.children, binaries, self.directory / "control", self.network,
                                 hosts, policy, goodput_gbit_s=goodput_gbit_s,
                                 aggregator_flags=aggregator_flags)
        self.ranks = []
        self._forwarders = []

    def __enter__(self):
        try:
            self.network.open()
            self.network.shape(FAST_MBPS, 0.0)
            self.controls.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *unused):
        self.close()

    def close(self):
        """Ends every process and removes the hosts."""
        for forwarder in self._forwarders:
            forwarder.close()
        self._forwarders = []
        self.controls.stop()
        self.children.stop()
        self.network.close()

    # The training.

    def start_ranks(self, steps=FOR_EVER, **environment):
        """Starts one rank per host and waits until they train."""
        run = training.Training(
            self.children, self.network, schedule.QUICK, self.directory, world=self.hosts,
            model_params=0, seed=0, validate_every=1, steps_max=1)
        arguments = ["--backend", "weir", "--steps", steps, "--validate-every", FOR_EVER,
                     "--model-params", self.model_params]
        with open(self.directory / "steps.jsonl", "wb") as steps_file:
            for rank in range(self.hosts):
                self.ranks.append(run.start(
                    "demo_job.train", arguments, rank,
                    {"WEIR_LIBRARY": self.binaries["libweir.so"], "WEIR_JOB": JOB,
                     "WEIR_AGENT": f"unix:{self.controls.socket(rank)}", **environment},
                    "training", steps_file if rank == 0 else subprocess.DEVNULL))
        self.wait_for_steps(1, deadline_s=60)

    def steps(self):
        """Rank 0's line of every step so far."""
        text = (self.directory / "steps.jsonl").read_text(encoding="utf-8")
        lines = [json.loads(line) for line in text.splitlines(keepends=True)
                 if line.endswith("\n")]
        return [line for line in lines if line["kind"] == "step"]

    def step(self):
        """Steps done so far."""
        return len(self.steps())

    def wait_for_steps(self, more, deadline_s=30.0):
        """Waits until `more` further steps are done."""
        target = self.step() + more
        wait_until(lambda: self.step() >= target, f"step {target}", deadline_s, self.failed_rank)

    def failed_rank(self):
        """Which rank has ended and what it said; None while all run."""
        try:
            training.failed_rank("training", self.ranks)
        except training.TrainingError as error:
            return str(error)
        return None

    def rank_log(self, rank):
        """The rank's standard error so far."""
        return pathlib.Path(self.ranks[rank].log_path).read_text(errors="replace")

    def connections(self, rank):
        """The rank's established TCP connections as (inode, local, remote)."""
        process = pathlib.Path("/proc") / str(self.ranks[rank].pid)
        mine = set()
        for descriptor in (process / "fd").iterdir():
            try:
                match = re.fullmatch(r"socket:\[(\d+)\]", os.readlink(descriptor))
            except OSError:
                continue
            if match:
                mine.add(match.group(1))
        found = set()
        for table in ("tcp", "tcp6"):
            for line in (process / "net" / table).read_text().splitlines()[1:]:
                words = line.split()
                if words[3] == TCP_ESTABLISHED and words[9] in mine:
                    found.add((words[9], words[1], words[2]))
        return found

    # The control plane.

    def port_of(self, address, port):
        """A port of this machine's loopback that leads to address:port on the emulated network."""
        forwarder = Forwarder(self.network.control, (address, port))
        self._forwarders.append(forwarder)
        return forwarder.port

    def controller_port(self):
        """The controller's gRPC port, for weirctl."""
        return self.port_of(self.network.control_address, GRPC_PORT)

    def agent_metrics(self, host):
        """The /metrics text of one agent."""
        port = self.port_of(self.network.address(host), AGENT_METRICS_PORT)
        return http(f"http://127.0.0.1:{port}/metrics")[1]

    def job(self):
        """The job as the controller knows it; an empty dictionary where it does not."""
        return self.controls.get(f"/v1/jobs/{JOB}") or {}

    def decisions(self, switched=False, candidates=False):
        """All decisions, oldest first; only those that switched, and with their candidates, if asked."""
        found = self.controls.decisions(JOB, candidates)
        return [d for d in found if d.get("switched")] if switched else found

    def wait_for_switch(self, after=(), because="", deadline_s=60.0):
        """The first switch that took effect, is not in `after` (ids) and has `because` as reason."""
        def found():
            return next((d for d in self.decisions(switched=True) if d["id"] not in after
                         and d.get("outcome") == "active" and because in d["reason"]), None)
        return wait_until(found, "a decision that switches the plan", deadline_s, self.failed_rank)


def http(url, token=None):
    """(status, body) of a GET, whatever the status."""
    request = urllib.request.Request(url)
    if token:
        request.add_header("Authorization", f"Bearer {token}")
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        with error:
            return error.code, error.read()


def number(value):
    """A figure of proto3 JSON: 64-bit integers are strings there, zeros are left out."""
    return float(value or 0)
