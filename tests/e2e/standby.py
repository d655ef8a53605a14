# SPDX-License-Identifier: Apache-2.0
"""Two controllers over a real etcd of three members, and a training, on emulated hosts.

Members and controllers are in the control host's namespace, so their ports are this test's own. The
two controllers reach etcd by different addresses of its loopback, so that either can be cut off.
"""
import json
import os
import pathlib
import signal
import shutil
import subprocess
import time
import urllib.error
import urllib.request

from cluster import BUILD, JOB, Cluster, Controls, number, wait_until
from demo_job import network
from demo_job.forward import Forwarder

MEMBERS = 3
ETCD_CLIENT_PORT, ETCD_PEER_PORT = 12379, 12479   # and the next ones
GRPC_PORTS, HTTP_PORTS = (7700, 7701), (7780, 7781)
LOOPBACK = ("127.0.0.1", "127.0.0.2")             # of etcd, for controller 0 and 1
MISSING = "" if shutil.which("etcd") else "no etcd: it is not installed (deploy/install-deps)"
ASK_S = 1.0


def alive(child):
    return child is not None and child.poll() is None


class Etcd:
    """The members, which can be killed, stopped and started again; their files are kept."""

    def __init__(self, children, namespace, directory):
        self._children, self._namespace = children, namespace
        self._directory = pathlib.Path(directory)
        shutil.rmtree(self._directory, ignore_errors=True)
        self._directory.mkdir(parents=True)
        self.members = [None] * MEMBERS

    @staticmethod
    def address(controller):
        """--store of one of the controllers."""
        return "etcd://" + ",".join(f"{LOOPBACK[controller]}:{ETCD_CLIENT_PORT + i}"
                                    for i in range(MEMBERS)) + "/weir"

    def start(self, member):
        peers = ",".join(f"m{i}=http://127.0.0.1:{ETCD_PEER_PORT + i}" for i in range(MEMBERS))
        listen = ",".join(f"http://{host}:{ETCD_CLIENT_PORT + member}" for host in LOOPBACK)
        own = f"http://127.0.0.1:{ETCD_PEER_PORT + member}"
        with open(self._directory / f"m{member}.log", "ab") as log:
            self.members[member] = self._children.start(
                ["etcd", f"--name=m{member}", f"--data-dir={self._directory}/m{member}",
                 f"--listen-client-urls={listen}", f"--advertise-client-urls={listen}",
                 f"--listen-peer-urls={own}", f"--initial-advertise-peer-urls={own}",
                 f"--initial-cluster={peers}", "--logger=zap", "--log-level=error"],
                self._namespace, stdout=log, stderr=log)

    def signal(self, member, number_):
        os.kill(self.members[member].pid, number_)

    def kill(self, member):
        self.members[member].kill()
        self.members[member].wait(timeout=10)

    def leader(self):
        """The member that leads the others."""
        endpoints = ",".join(f"127.0.0.1:{ETCD_CLIENT_PORT + i}" for i in range(MEMBERS))
        said = network.run("ip", "netns", "exec", self._namespace, "env", "ETCDCTL_API=3", "etcdctl",
                           f"--endpoints={endpoints}", "endpoint", "status", "-w", "json")
        for i, one in enumerate(json.loads(said)):
            status = one["Status"]
            if status["leader"] == status["header"]["member_id"]:
                return i
        raise AssertionError("no member of etcd leads")


class StandbyControls(Controls):
    """etcd, two controllers, and agents that know both."""

    def start(self):
        self._directory.mkdir(parents=True, exist_ok=True)
        inside, host = self._network.control, self._network.control_address
        self.etcd = Etcd(self._children, inside, self._directory / "etcd")
        for member in range(MEMBERS):
            self.etcd.start(member)
        self.urls = []
        for i in range(2):
            self.start_controller(i)
            forwarder = Forwarder(inside, (host, HTTP_PORTS[i]), 0)
            self._forwarders_of_both = getattr(self, "_forwarders_of_both", []) + [forwarder]
            self.urls.append(f"http://127.0.0.1:{forwarder.port}")
        self.url = self.urls[0]
        wait_until(lambda: self.leader() is not None, "one of the controllers to lead")
        both = ",".join(f"{host}:{port}" for port in GRPC_PORTS)
        for i in range(self._hosts):
            address = self._network.address(i)
            self._start("weir-agent", self._network.host(i), [
                "--node", f"h{i}", "--address", address, "--controller", both,
                "--socket", self.socket(i), "--insecure", "--probe-port", 7446,
                "--unprotected", "probes"], f"-h{i}")
        wait_until(self._agents_connected, "the agents to connect")

    def start_controller(self, i):
        host = self._network.control_address
        name, suffix = "weir-controller", f"-{i}"
        if name + suffix in self._parts:
            self.restart(name + suffix)
            return
        self._start(name, self._network.control, [
            "--listen-grpc", f"{host}:{GRPC_PORTS[i]}", "--listen-http", f"{host}:{HTTP_PORTS[i]}",
            "--store", Etcd.address(i), "--insecure"], suffix)

    def stop(self):
        for forwarder in getattr(self, "_forwarders_of_both", []):
            forwarder.close()
        self._forwarders_of_both = []
        super().stop()

    def controller(self, i):
        """The process of a controller; None once it was killed."""
        child = self._parts[f"weir-controller-{i}"][0]
        return child if alive(child) else None

    def ask(self, i, path, body=None, method=None):
        """(status, headers, JSON or text) of one controller; (0, {}, "") where it does not answer."""
        request = urllib.request.Request(
            self.urls[i] + path, data=None if body is None else json.dumps(body).encode(),
            method=method, headers={} if body is None else {"Content-Type": "application/json"})
        try:
            with urllib.request.urlopen(request, timeout=ASK_S) as answer:
                status, headers, text = answer.status, answer.headers, answer.read()
        except urllib.error.HTTPError as error:
            with error:
                status, headers, text = error.code, error.headers, error.read()
        except OSError:
            return 0, {}, ""
        try:
            return status, headers, json.loads(text)
        except ValueError:
            return status, headers, text.decode(errors="replace")

    def metric(self, i, name):
        """One figure of a controller's /metrics; None where it does not answer."""
        for line in str(self.ask(i, "/metrics")[2]).splitlines():
            if line.startswith(name + " "):
                return float(line.split()[1])
        return None

    def leader(self):
        """The controller that leads; None: none does. AssertionError where both say so."""
        leads = [i for i in range(2) if self.metric(i, "weir_leader") == 1]
        assert len(leads) < 2, "both controllers lead"
        if leads:
            self.url = self.urls[leads[0]]
        return leads[0] if leads else None

    def partition(self, i, cut):
        """Cuts controller i off etcd, or ends that."""
        network.run("ip", "netns", "exec", self._network.control, "iptables", "-A" if cut else "-D",
                    "OUTPUT", "-d", LOOPBACK[i], "-p", "tcp", "--dport",
                    f"{ETCD_CLIENT_PORT}:{ETCD_CLIENT_PORT + MEMBERS - 1}", "-j", "DROP")


class StandbyCluster(Cluster):
    """A training under two controllers."""

    def __init__(self, name, **options):
        super().__init__(name, **options)
        self.controls = StandbyControls(self.children, self.binaries, self.directory / "control",
                                        self.network, self.hosts)

    def ready(self):
        """Whether a controller leads whose agents and ranks are all there again."""
        leader = self.controls.leader()
        if leader is None:
            return False
        nodes = self.controls.ask(leader, "/v1/nodes")[2]
        if not isinstance(nodes, dict) or sum(
                bool(node.get("connected")) for node in nodes.get("nodes", [])) < self.hosts:
            return False
        if not self.ranks:
            return True
        job = self.controls.ask(leader, f"/v1/jobs/{JOB}")[2]
        return (isinstance(job, dict) and job.get("state") == "running" and
                sum(bool(rank.get("connected")) for rank in job.get("ranks", [])) == self.hosts)

    def wait_ready(self, deadline_s=30.0):
        """Waits for that; returns how long it took."""
        begin = time.monotonic()
        wait_until(self.ready, "a leader with all agents and ranks", deadline_s, self.failed_rank)
        return time.monotonic() - begin

    def versions(self):
        """The plan versions of all decisions that offered one. AssertionError: one was given twice."""
        given = [number(decision["plan_version"]) for decision in self.decisions(switched=True)]
        assert given, "no decision has offered a plan"
        twice = {version for version in given if given.count(version) > 1}
        assert not twice, f"given twice: plans {sorted(twice)}"
        return set(given)

    def pin(self, **choice):
        """Pins the job at the leader, when there is one that takes it; returns its answer."""
        def pinned():
            leader = self.controls.leader()
            if leader is None:
                return None
            status, _, answer = self.controls.ask(leader, f"/v1/jobs/{JOB}:pin",
                                                  {"reason": "a test", **choice}, "POST")
            return answer if status == 200 else None
        return wait_until(pinned, "a pin", 20, self.failed_rank)
