# SPDX-License-Identifier: Apache-2.0
"""The systemd units: accepted by systemd's own checks, and their command lines start the programs."""
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
UNITS = ROOT / "deploy" / "systemd"
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
PROGRAMS = {"weir-controller": BUILD / "controller" / "server" / "weir-controller",
            "weir-agent": BUILD / "agent" / "weir-agent",
            "weir-aggregator": BUILD / "deploy" / "aggregator" / "weir-aggregator"}
EXPOSURE_MAX = 2.5   # of 10, as systemd-analyze counts; its own word for up to 2.9 is "OK"


def value(unit, key):
    """All values of a key of a unit."""
    return re.findall(rf"(?m)^{key}=(.*)$", (UNITS / f"{unit}.service").read_text(encoding="utf-8"))


@unittest.skipIf(shutil.which("systemd-analyze") is None, "systemd-analyze is not installed")
class SystemdTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(
            tempfile.TemporaryDirectory(prefix="weir-systemd-")))

    def analyze(self, *arguments):
        done = subprocess.run(["systemd-analyze", *map(str, arguments)], timeout=60, text=True,
                              capture_output=True, check=False)
        return done.returncode, done.stdout + done.stderr

    def with_built_program(self, unit, change=lambda text: text):
        """The unit as a file that runs the program of this build."""
        text = (UNITS / f"{unit}.service").read_text(encoding="utf-8")
        path = self.directory / f"{unit}.service"
        path.write_text(change(text.replace(f"/usr/bin/{unit}", str(PROGRAMS[unit]))),
                        encoding="utf-8")
        return path

    def test_units_are_accepted(self):
        for unit in PROGRAMS:
            code, words = self.analyze("verify", "--man=no", self.with_built_program(unit))
            ours = [line for line in words.splitlines() if unit in line]
            self.assertEqual((code, ours), (0, []), words)
            wrong = self.with_built_program(unit, lambda t: t.replace("Restart=on-failure",
                                                                      "Restart=perhaps"))
            _, words = self.analyze("verify", "--man=no", wrong)
            self.assertIn("perhaps", words)

    def test_units_are_confined(self):
        for unit in PROGRAMS:
            code, words = self.analyze("security", "--offline=true", "--no-pager",
                                       f"--threshold={EXPOSURE_MAX * 10:g}", self.with_built_program(unit))
            self.assertEqual(code, 0, words[-300:])
            open_wide = self.with_built_program(
                unit, lambda t: re.sub(r"(?m)^(Protect|Private|Restrict|SystemCall|Capability).*\n", "", t))
            code, _ = self.analyze("security", "--offline=true", "--no-pager",
                                   f"--threshold={EXPOSURE_MAX * 10:g}", open_wide)
            self.assertNotEqual(code, 0)

    def test_users_and_directories_are_accepted(self):
        root = self.directory / "root"
        (root / "etc").mkdir(parents=True)
        for tool, name in (("systemd-sysusers", "weir.sysusers"), ("systemd-tmpfiles", "weir.tmpfiles")):
            command = [tool, f"--root={root}", str(UNITS / name)]
            if tool == "systemd-tmpfiles":
                command.insert(1, "--create")
            done = subprocess.run(command, timeout=60, text=True, capture_output=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex((root / "etc" / "passwd").read_text(encoding="ascii"), r"(?m)^weir:")
        self.assertTrue((root / "etc" / "weir" / "policies").is_dir())

    def test_command_lines_start_the_programs(self):
        for unit, program in PROGRAMS.items():
            places = {key: self.directory / unit / key for key in
                      ("STATE_DIRECTORY", "CONFIGURATION_DIRECTORY", "RUNTIME_DIRECTORY")}
            for place in places.values():
                place.mkdir(parents=True)
            (places["CONFIGURATION_DIRECTORY"] / "policies").mkdir()
            command = value(unit, "ExecStart")[0].replace(f"/usr/bin/{unit}", str(program))
            for key, place in places.items():
                command = command.replace("${" + key + "}", str(place))
            flags = {"weir-controller": "--listen-grpc 127.0.0.1:0 --listen-http 127.0.0.1:0",
                     "weir-agent": "--node a --probe-port 0",
                     "weir-aggregator": "--port 0 --http 127.0.0.1:0"}[unit]
            command = re.sub(r"\$WEIR_\w+_FLAGS", flags, command)
            self.assertNotIn("$", command)
            log = self.directory / f"{unit}.log"
            with open(log, "wb") as out:
                child = subprocess.Popen(shlex.split(command), stdout=out, stderr=out)
            try:
                ready, size_min = {"weir-controller": (places["STATE_DIRECTORY"] / "state.db", 0),
                                   "weir-agent": (places["RUNTIME_DIRECTORY"] / "agent.sock", 0),
                                   "weir-aggregator": (log, 1)}[unit]   # it says where it listens
                end = time.monotonic() + 20
                while not ready.exists() or ready.stat().st_size < size_min:
                    self.assertIsNone(child.poll(), log.read_text(errors="replace"))
                    self.assertLess(time.monotonic(), end, f"{unit} made no {ready.name}")
                    time.sleep(0.05)
            finally:
                if child.poll() is None:
                    child.send_signal(signal.SIGTERM)
                status = child.wait(10)
            self.assertEqual(status, 0, log.read_text(errors="replace"))


if __name__ == "__main__":
    unittest.main()
