# SPDX-License-Identifier: Apache-2.0
"""podman for tests: images, containers, volumes, networks and processes that it makes end with the test.

A test calls enter() first, which runs it again in mount and process namespaces of its own, so that nothing runs on or
stays mounted even if it is killed. Files that a killed test left are removed by the next one. Containers and their published ports live in a network that only the test sees; only builds
use the machine's network, where the package mirror is.
"""
import fcntl
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import time

import debian_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
DOCKERFILE = ROOT / "deploy" / "images" / "Dockerfile"
PREFIX = pathlib.Path("/var/tmp/weir-engine-")
INSIDE = "WEIR_ENGINE_INSIDE"   # set in the namespaces
NETAVARK = pathlib.Path("/usr/lib/podman/netavark")
BASE = "docker.io/library/debian:bookworm-slim"
# podman keeps its locks and the names of its networks outside of its own directories.
ENTER = """
mount -t tmpfs tmpfs /dev/shm
mkdir -p /run/netns
mount -t tmpfs tmpfs /run/netns
exec "$@"
"""
CONFIGURATION = """
[containers]
default_ulimits = ["nofile=20000:20000", "nproc=4096:4096"]
[network]
network_backend = "netavark"
network_config_dir = "{0}/networks"
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
runtime = "runc"
"""
# The options of every container of Weir.
CONFINED = ["--read-only", "--cap-drop=all", "--security-opt=no-new-privileges", "--health-interval=disable"]


def namespaces_refused():
    """Why a test may make no namespaces and groups of processes here, as within many containers; empty where it may."""
    if os.geteuid() != 0:
        return "needs root"
    done = subprocess.run(["unshare", "--mount", "--pid", "--net", "--fork", "--mount-proc", "true"], check=False, text=True,
                          timeout=30, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    if done.returncode != 0:
        return done.stdout.strip()
    return "" if os.access("/sys/fs/cgroup", os.W_OK) else "/sys/fs/cgroup is read-only"


def refused():
    """Why no container runs here; empty where they do."""
    if reason := namespaces_refused():
        return reason
    missing = [name for name in ("podman", "runc", "mmdebstrap", "ip", "ss") if shutil.which(name) is None]
    if not NETAVARK.exists():
        missing.append("netavark")
    return f"not installed: {', '.join(missing)}" if missing else ""


def enter(reason):
    """Runs this program again where its processes and mounts end with it, unless there is a reason not to."""
    if INSIDE not in os.environ and not reason:
        os.environ[INSIDE] = "1"
        os.execvp("unshare", ["unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-euc",
                              ENTER, "enter", sys.executable, *sys.argv])


def owner_of(directory):
    """The open lock of an engine's directory; None while another process has it."""
    lock = open(directory / "owner", "a", encoding="ascii")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        return None
    return lock


def remove_what_was_left():
    """Removes the directories of tests that were killed."""
    for directory in PREFIX.parent.glob(PREFIX.name + "*"):
        if lock := owner_of(directory):
            shutil.rmtree(directory, ignore_errors=True)
            lock.close()


class Engine:
    """podman with storage of its own. Not thread-safe."""

    def __init__(self):
        assert INSIDE in os.environ, "enter() first"
        # Not /tmp, which may be in memory; a short path, because sockets are below it.
        with open(PREFIX.parent / "weir-engines", "a", encoding="ascii") as turn:
            fcntl.flock(turn, fcntl.LOCK_EX)
            remove_what_was_left()
            self.directory = pathlib.Path(tempfile.mkdtemp(prefix=PREFIX.name, dir=PREFIX.parent))
            self.owned = owner_of(self.directory)
        configuration = self.directory / "containers.conf"
        configuration.write_text(CONFIGURATION.format(self.directory), encoding="ascii")
        self.environment = os.environ | {"CONTAINERS_CONF": str(configuration), "TMPDIR": str(self.directory)}
        self.network = subprocess.Popen(["unshare", "--net", "sh", "-c", "ip link set lo up; echo; exec sleep 86400"],
                                        stdout=subprocess.PIPE)
        self.network.stdout.readline()
        self.digest = ""

    def close(self):
        self.podman("rm", "--all", "--force", "--time", "0", check=False)
        self.network.kill()
        self.network.wait()
        self.network.stdout.close()
        storage = self.directory / "root" / "overlay"
        while storage.is_mount():   # podman mounts it over itself, sometimes more than once
            subprocess.run(["umount", "--recursive", "--lazy", storage], check=True, timeout=60)
        shutil.rmtree(self.directory)
        self.owned.close()

    def here(self, *words, limit_s=60, check=True, **more):
        """Runs a command in the network that containers publish their ports in; what it said is in stdout."""
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True, **more}
        done = subprocess.run(["nsenter", f"--net=/proc/{self.network.pid}/ns/net", *map(str, words)], check=False,
                              timeout=limit_s, env=self.environment, **more)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(map(str, words[:12]))}: exit {done.returncode}: {done.stdout}")
        return done

    def words(self, *words):
        """A command line of podman."""
        return ["podman", "--root", self.directory / "root", "--runroot", self.directory / "run", "--tmpdir",
                self.directory / "tmp", "--storage-driver", "overlay", "--log-level", "error", *words]

    def podman(self, *words, **more):
        return self.here(*self.words(*words), **more)

    def make_base(self):
        """Imports a fresh Debian as the image that the Dockerfile names. Raises debian_test.Refused without one."""
        root = debian_test.make_root("bookworm", ["apt"], "slim")
        with subprocess.Popen(["tar", "--one-file-system", "-C", root, "-c", "."], stdout=subprocess.PIPE) as child:
            self.podman("import", "--quiet", "-", BASE, stdin=child.stdout, limit_s=120)
        self.digest = self.podman("image", "inspect", BASE, "--format", "{{.Digest}}").stdout.strip()

    def build(self, target, *options, limit_s=120, name=None):
        """Builds a target of the Dockerfile as weir-TARGET:0.1.0, and prints what that took."""
        name = name or f"weir-{target}:0.1.0"
        began = time.monotonic()
        done = subprocess.run([*map(str, self.words("build", "--format", "docker", "--network", "host", "--file",
                                                    DOCKERFILE, "--target", target, "--build-arg",
                                                    f"BASE_DIGEST={self.digest}", "--tag", name, *options, ROOT))],
                              check=False, timeout=limit_s, env=self.environment, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT)
        if done.returncode != 0:
            raise AssertionError(f"build of {target}: exit {done.returncode}: {done.stdout[-4000:]}")
        size = int(self.podman("image", "inspect", name, "--format", "{{.Size}}").stdout)
        print(f"image {target}: built in {time.monotonic() - began:.0f} s, {size / 1e6:.0f} MB", flush=True)

    def start(self, name, image, *words, options=()):
        """Starts a confined container in the background."""
        self.podman("run", "--detach", "--name", name, *CONFINED, *options, f"weir-{image}:0.1.0", *words)

    def state(self, name, what):
        return self.podman("inspect", name, "--format", "{{" + what + "}}").stdout.strip()

    def logs(self, name):
        return self.podman("logs", name, check=False).stdout

    def until_healthy(self, name, limit_s=20):
        """Waits until the image's own health check agrees."""
        end = time.monotonic() + limit_s
        while self.podman("healthcheck", "run", name, check=False).returncode != 0:
            if self.state(name, ".State.Running") != "true" or time.monotonic() > end:
                raise AssertionError(f"{name} is not healthy: {self.logs(name)}")
            time.sleep(0.2)

    def port(self, name, port):
        """The port of 127.0.0.1 at which a container's port is published."""
        return int(self.podman("port", name, str(port)).stdout.split(":")[-1])

    def listening(self, name):
        """{"port/protocol"} of what listens in a container, but for loopback."""
        found = set()
        pid = self.state(name, ".State.Pid")
        for line in self.here("nsenter", f"--net=/proc/{pid}/ns/net", "ss", "-Hlntu").stdout.splitlines():
            protocol, _, _, _, local = line.split()[:5]
            address, _, port = local.rpartition(":")
            if not address.startswith(("127.", "[::1]", "[::ffff:127.")):
                found.add(f"{port}/{protocol}")
        return found
