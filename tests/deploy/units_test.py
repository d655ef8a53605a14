# SPDX-License-Identifier: Apache-2.0
"""The packages and their units on a Debian that systemd has booted: started, confined, killed, upgraded, purged.

systemd-nspawn boots it in a container without a network, over a root that is not written to. The container and all
that it mounts end with the test. Needs root.
"""
import pathlib
import shutil
import subprocess
import tempfile
import time
import unittest

import debian_test
import engine
import packages_test

PATIENCE_S = 60
UNITS = ["weir-controller", "weir-agent", "weir-aggregator"]
BOOTED = ["systemd", "systemd-sysv", "dbus", "iproute2"]
# Prints what a program is refused and what it keeps within the sandbox of its unit: one "NAME yes" or "NAME no" a line.
PROBES = r"""
try() { name=$1; shift; if "$@" >/dev/null 2>&1; then echo "$name yes"; else echo "$name no"; fi; }
try write-usr touch /usr/probe
try write-etc touch /etc/weir/probe
try write-var touch /var/probe
try see-home test -e /home/somebody/secret
try user-namespace unshare --user true
try mount mount -t tmpfs tmpfs /tmp
try set-host-name hostname changed
try raw-device test -e /dev/probe
try packet-socket ip link set lo mtu 1500
try kernel-setting sh -c "echo 1 > /proc/sys/kernel/sysrq"
try signal-others kill -0 1
try own-tmp touch /tmp/probe
[ -z "$STATE_DIRECTORY" ] || try own-state touch "$STATE_DIRECTORY/probe"
[ -z "$RUNTIME_DIRECTORY" ] || try own-runtime touch "$RUNTIME_DIRECTORY/probe"
grep -E '^(CapEff|CapBnd|NoNewPrivs|Seccomp):' /proc/self/status
"""
REFUSED = ["write-usr", "write-etc", "write-var", "see-home", "user-namespace", "mount", "set-host-name", "raw-device",
           "packet-socket", "kernel-setting", "signal-others"]


def refused():
    """Why no Debian boots here; empty where one does."""
    if reason := engine.namespaces_refused():
        return reason
    missing = [name for name in ("systemd-nspawn", "mmdebstrap", "nsenter") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


class Machine:
    """A booted Debian."""

    def __init__(self, root, packages, directory):
        self.log = directory / "console"
        layer = directory / "layer"
        layer.mkdir()
        merged = layer / "merged"
        subprocess.run(["sh", "-euc", """
            mount -t tmpfs tmpfs "$0"
            mkdir "$0/upper" "$0/work" "$0/merged"
            mount -t overlay overlay -o "lowerdir=$1,upperdir=$0/upper,workdir=$0/work" "$0/merged"
            """, layer, root], check=True, timeout=PATIENCE_S)
        with open(self.log, "wb") as out:
            self.process = subprocess.Popen(
                ["systemd-nspawn", "--quiet", "--directory", merged, "--machine", "weir-units", "--register=no",
                 "--keep-unit", "--boot", "--private-network", "--console=pipe",
                 f"--bind-ro={packages}:/packages"],
                stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        self.leader = None

    def close(self):
        self.process.kill()
        self.process.wait()

    def run(self, *words, check=True):
        """Runs a command in there; all that it said."""
        done = subprocess.run(["nsenter", "--target", str(self.leader), "--all", "env", "-i", "LC_ALL=C",
                               "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", *words],
                              timeout=PATIENCE_S, check=False, text=True, stdin=subprocess.DEVNULL,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if check and done.returncode != 0:
            raise AssertionError(f"{' '.join(words)}: exit {done.returncode}: {done.stdout}")
        return done.stdout

    def until(self, command, expected, limit_s=20):
        """Runs a shell command until it says what is expected; the seconds that took."""
        began = time.monotonic()
        while expected not in (said := self.run("sh", "-c", command, check=False)):
            if time.monotonic() - began > limit_s:
                raise AssertionError(f"{command}: expected {expected} within {limit_s} s, found {said}")
            time.sleep(0.05)
        return time.monotonic() - began

    def until_booted(self):
        end = time.monotonic() + PATIENCE_S
        children = pathlib.Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children")
        while time.monotonic() < end and self.process.poll() is None:
            self.leader = next(iter(children.read_text(encoding="ascii").split()), None)
            if self.leader and self.run("systemctl", "is-system-running", check=False).strip() == "running":
                return
            time.sleep(0.1)
        raise AssertionError(f"not booted: {self.log.read_text(errors='replace')[-3000:]}")

    def show(self, unit, *names):
        """Values of a unit's properties."""
        said = self.run("systemctl", "show", unit, *[f"--property={name}" for name in names])
        found = dict(line.split("=", 1) for line in said.splitlines())
        return [found[name] for name in names]


class UnitsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        if reason := refused():
            raise unittest.SkipTest(f"no booted Debian: {reason}")
        directory = pathlib.Path(cls.enterClassContext(tempfile.TemporaryDirectory(
            prefix="weir-units-", ignore_cleanup_errors=True)))
        cls.packages = directory / "packages"
        (cls.packages / "later").mkdir(parents=True)
        made = packages_test.make_packages(cls.packages)
        for name in ("python3-weir", "libweir0", "libweir-dev"):   # deploy/images installs them, with torch
            made.pop(name).unlink()
        for path in made.values():
            later(path, cls.packages / "later")
        try:
            root = debian_test.make_root("bookworm", packages_test.needs(made, BOOTED), "units")
        except debian_test.Refused as reason:
            raise unittest.SkipTest(f"no booted Debian: {reason}") from reason
        cls.machine = Machine(root, cls.packages, directory)
        cls.addClassCleanup(cls.machine.close)
        began = time.monotonic()
        cls.machine.until_booted()
        print(f"booted in {time.monotonic() - began:.1f} s", flush=True)

    def setUp(self):
        self.run_there = self.machine.run
        self.install("/packages")
        self.addCleanup(self.forget)

    def forget(self):
        """Stops everything, so that the next test finds units that never ran."""
        self.run_there("sh", "-c", f"systemctl disable --now {' '.join(UNITS)}; rm -rf /etc/systemd/system/weir-*.service.d;"
                       " systemctl daemon-reload; systemctl reset-failed", check=False)

    def install(self, directory):
        """Installs the packages of a directory, without a question and without a network."""
        self.run_there("sh", "-c", f"dpkg --force-confold --install {directory}/*.deb")

    def drop_in(self, unit, text):
        self.run_there("sh", "-ec", 'mkdir -p "$0" && printf "%s" "$1" > "$0/test.conf" && systemctl daemon-reload',
                       f"/etc/systemd/system/{unit}.service.d", text)

    def processes(self):
        return {unit: self.machine.show(unit, "MainPID")[0] for unit in UNITS}

    def test_nothing_starts_before_it_is_configured(self):
        for unit in UNITS:
            self.assertEqual(self.machine.show(unit, "ActiveState", "UnitFileState"), ["inactive", "disabled"], unit)
        self.assertEqual(self.run_there("stat", "-c", "%a %U %G", "/etc/weir/policies").strip(), "750 root weir")

    def test_what_was_started_serves(self):
        for _ in range(5):
            self.run_there("systemctl", "restart", "weir-agent")
            self.run_there("test", "-S", "/run/weir/agent.sock")
            self.run_there("systemctl", "restart", "weir-controller")
            self.assertIn("default", self.run_there("weirctl", "get", "policies"))
            self.run_there("systemctl", "restart", "weir-aggregator")
            self.run_there("bash", "-c", "exec 3<>/dev/tcp/127.0.0.1/9466; printf 'GET /healthz HTTP/1.0\\r\\n\\r\\n' >&3;"
                           " grep -q ok <&3")
        self.machine.until("weirctl get nodes", " connected ")

    def test_the_agent_starts_after_the_controller_of_its_machine(self):
        self.run_there("systemctl", "enable", "weir-agent", "weir-controller")
        self.run_there("systemctl", "start", "multi-user.target")   # one transaction, as when the machine boots
        began = self.machine.show("weir-agent", "ExecMainStartTimestampMonotonic")[0]
        ready = self.machine.show("weir-controller", "ActiveEnterTimestampMonotonic")[0]
        self.assertGreaterEqual(int(began), int(ready))

    def test_a_program_that_cannot_start_fails_the_start(self):
        for unit in UNITS:
            name = unit.replace("-", "_").upper() + "_FLAGS"
            self.drop_in(unit, f"[Service]\nEnvironment={name}=--log-level=nonsense\nEnvironmentFile=\nRestart=no\n")
            self.assertIn("failed", self.run_there("systemctl", "start", unit, check=False), unit)

    def test_a_killed_program_comes_back(self):
        self.run_there("systemctl", "start", *UNITS)
        before = self.processes()
        for unit in UNITS:
            self.run_there("systemctl", "kill", "--signal=KILL", unit)
        for unit in UNITS:
            self.machine.until(f"systemctl show {unit} --property=NRestarts,ActiveState; systemctl is-active {unit}",
                               "NRestarts=1\nActiveState=active")
            self.assertNotEqual(self.processes()[unit], before[unit], unit)
        self.run_there("test", "-S", "/run/weir/agent.sock")
        self.machine.until("weirctl get nodes", " connected ")
        for unit in UNITS:
            began = time.monotonic()
            self.run_there("systemctl", "stop", unit)
            self.assertLess(time.monotonic() - began, 5, unit)
            self.assertEqual(self.machine.show(unit, "ActiveState", "Result"), ["inactive", "success"], unit)

    def test_units_are_confined(self):
        self.run_there("sh", "-ec", "mkdir -p /home/somebody && touch /home/somebody/secret && mknod -m 666 /dev/probe p")
        unconfined = self.run_there("systemd-run", "--wait", "--pipe", "--quiet", "sh", "-c", PROBES)
        for name in REFUSED:
            if name not in ("kernel-setting", "set-host-name", "user-namespace"):   # nspawn refuses some to root, too
                self.assertIn(f"{name} yes", unconfined)
        for unit in UNITS:
            self.drop_in(unit, "[Service]\nType=oneshot\nRestart=no\nExecStart=\nStandardOutput=file:/run/probes\n"
                         "StandardError=file:/run/probes\nExecStart=/bin/sh /probes.sh\n")
            self.run_there("sh", "-c", 'printf "%s" "$0" > /probes.sh; rm -f /run/probes', PROBES)
            self.run_there("systemctl", "start", unit)
            said = self.run_there("cat", "/run/probes").splitlines()
            self.assertEqual([f"{name} no" for name in REFUSED if f"{name} no" not in said], [], f"{unit}: {said}")
            kept = ["own-tmp"] + {"weir-controller": ["own-state"], "weir-agent": ["own-runtime"]}.get(unit, [])
            self.assertEqual([line for line in said if line.endswith(" yes")], [f"{name} yes" for name in kept], unit)
            status = dict(line.split(":\t") for line in said if ":\t" in line)
            self.assertEqual((int(status["CapEff"], 16), int(status["CapBnd"], 16)), (0, 0), unit)
            self.assertEqual((status["NoNewPrivs"], status["Seccomp"]), ("1", "2"), unit)

    def test_an_upgrade_restarts_what_ran_and_keeps_state_and_configuration(self):
        self.run_there("sh", "-c", "echo '# mine' >> /etc/weir/agent.env")
        self.run_there("systemctl", "start", "weir-controller", "weir-agent")
        self.machine.until("weirctl get nodes", " connected ")
        for directory, version in (("/packages/later", "0.1.1"), ("/packages", "0.1.0")):   # and the way back
            before = self.processes()
            self.install(directory)
            self.assertEqual(self.run_there("dpkg-query", "-W", "-f", "${Version}", "weir-agent"), version)
            after = self.processes()
            for unit in ("weir-controller", "weir-agent"):
                self.assertNotIn(after[unit], ("0", before[unit]), unit)
            self.assertEqual(after["weir-aggregator"], "0")   # it did not run before
            self.run_there("test", "-S", "/run/weir/agent.sock")
            self.machine.until("weirctl get nodes", " connected ")
        self.assertIn("# mine", self.run_there("cat", "/etc/weir/agent.env"))
        said = self.run_there("journalctl", "--no-pager", "--unit", "weir-controller")
        self.assertIn("recovered 1 nodes", said)

    def test_a_purge_leaves_nothing(self):
        self.run_there("systemctl", "start", *UNITS)
        self.run_there("sh", "-ec", "dpkg --purge $(dpkg-query -W -f '${Package}\\n' | grep '^weir')")
        for left in ("/etc/weir", "/usr/share/weir", "/var/lib/weir", "/run/weir", "/usr/bin/weirctl"):
            self.run_there("test", "!", "-e", left)
        self.assertEqual(self.run_there("sh", "-c", "cat /proc/[0-9]*/comm | grep ^weir", check=False), "")


def later(package, directory):
    """The same package as 0.1.1."""
    with tempfile.TemporaryDirectory() as name:
        for words in (["dpkg-deb", "--raw-extract", package, f"{name}/tree"],
                      ["sed", "-i", r"s/\b0\.1\.0\b/0.1.1/", f"{name}/tree/DEBIAN/control"],
                      ["dpkg-deb", "-Znone", "--root-owner-group", "--build", f"{name}/tree", directory]):
            subprocess.run(words, check=True, timeout=PATIENCE_S, stdout=subprocess.DEVNULL)


if __name__ == "__main__":
    engine.enter(refused())
    unittest.main()
