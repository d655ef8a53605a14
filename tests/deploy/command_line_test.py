# SPDX-License-Identifier: Apache-2.0
"""Man pages under mandoc and groff, and the completion scripts in the shells they are for, asking the
built programs and a running controller."""
import os
import pathlib
import pty
import re
import select
import shutil
import signal
import subprocess
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
PROGRAMS = {"weirctl": BUILD / "controller" / "cli" / "weirctl",
            "weir-controller": BUILD / "controller" / "server" / "weir-controller",
            "weir-agent": BUILD / "agent" / "weir-agent",
            "weir-aggregator": BUILD / "deploy" / "aggregator" / "weir-aggregator"}
PATIENCE_S = 20
# A page with mistakes that descriptions may introduce.
BROKEN_PAGE = ".Dd January 1, 2026\n.Dt X 1\n.Os\n.Sh NAME\n.Nm x\n.Nd y\n.Bl -tag\n.It Fl a\n"


def ask(*command, **more):
    return subprocess.run([str(part) for part in command], timeout=PATIENCE_S, text=True,
                          capture_output=True, check=False, **more)


def need(tool):
    return unittest.skipIf(shutil.which(tool) is None, f"{tool} is not installed")


class CommandLineTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(
            tempfile.TemporaryDirectory(prefix="weir-cli-")))
        cls.environment = dict(os.environ, HOME=str(cls.directory), TERM="dumb",
                               PATH=os.pathsep.join([*(str(p.parent) for p in PROGRAMS.values()),
                                                     os.environ["PATH"]]))
        cls.environment.pop("WEIR_CONTROLLER", None)
        for name, program in PROGRAMS.items():
            (cls.directory / f"{name}.1").write_text(
                ask(program, "__man", "January 31, 2026").stdout, encoding="utf-8")
            for shell in ("bash", "zsh", "fish"):
                (cls.directory / f"{name}.{shell}").write_text(
                    ask(program, "__completion", shell).stdout, encoding="utf-8")

    def start(self, name, *arguments):
        log = self.directory / f"{name}.log"
        with open(log, "wb") as out:
            child = subprocess.Popen([PROGRAMS[name], *arguments], stdout=out, stderr=out)
        self.addCleanup(child.wait, PATIENCE_S)
        self.addCleanup(child.send_signal, signal.SIGTERM)
        return log

    def until(self, condition, what):
        end = time.monotonic() + PATIENCE_S
        while not (value := condition()):
            self.assertLess(time.monotonic(), end, what() if callable(what) else what)
            time.sleep(0.05)
        return value

    def controller_with_node(self):
        log = self.start("weir-controller", "--listen-grpc", "127.0.0.1:0", "--listen-http",
                         "127.0.0.1:0", "--state", ":memory:")
        found = self.until(lambda: re.search(r"gRPC on ([\d.:]+)", log.read_text()), log.read_text)
        address = found[1]
        self.start("weir-agent", "--node", "node-alpha", "--controller", address, "--probe-port", "0",
                   "--iperf-port", "0", "--socket", str(self.directory / "agent.sock"))
        self.until(lambda: "node-alpha" in ask(PROGRAMS["weirctl"], "--controller", address, "get",
                                               "nodes").stdout, "no node")
        return address

    def bash(self, line, program="weirctl"):
        """COMPREPLY for a line with the cursor at its end."""
        script = (f"source {self.directory}/{program}.bash; COMP_LINE=$1; COMP_POINT=${{#1}}; "
                  f"compopt() {{ echo \"compopt $2\"; }}; _{program.replace('-', '_')}; "
                  'printf "%s\\n" "${COMPREPLY[@]}"')
        done = ask("bash", "--norc", "-c", script, "bash", line, env=self.environment)
        self.assertEqual(done.stderr, "")
        return done.stdout.split("\n")[:-1]

    @need("mandoc")
    def test_pages_pass_mandoc(self):
        for name in PROGRAMS:
            page = self.directory / f"{name}.1"
            self.assertGreater(page.stat().st_size, 1000)
            done = ask("mandoc", "-T", "lint", "-W", "warning", page)
            self.assertEqual((done.returncode, done.stdout), (0, ""))
        broken = self.directory / "broken.1"
        broken.write_text(BROKEN_PAGE, encoding="ascii")
        self.assertNotEqual(ask("mandoc", "-T", "lint", "-W", "warning", broken).returncode, 0)

    @need("man")
    def test_pages_are_shown_by_man_without_warnings(self):
        for name, program in PROGRAMS.items():
            done = ask("man", "--warnings", "-P", "cat", "-l", self.directory / f"{name}.1",
                       env=dict(self.environment, MANWIDTH="200", LC_ALL="C.UTF-8"))
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            shown = re.sub(r".\x08", "", done.stdout)
            # The page lists every flag that --help lists.
            flags = set(re.findall(r"--[a-z-]+", ask(program, "--help").stdout))
            self.assertGreater(len(flags), 5)
            self.assertEqual([flag for flag in flags if flag not in shown], [])
        self.assertNotEqual(ask("man", "--warnings", "-l", "/nonexistent.1").returncode, 0)

    def test_bash_completes_commands_flags_and_values(self):
        self.assertEqual(self.bash("weirctl ge"), ["get"])
        self.assertIn("simulate", self.bash("weirctl "))
        self.assertEqual(self.bash("weirctl pin j --rea"), ["--reason"])
        self.assertEqual(self.bash("weirctl get nodes -o "), ["table", "json", "yaml"])
        self.assertEqual(self.bash("weirctl --output=j"), ["json"])
        self.assertIn("top_k", self.bash("weirctl pin j --codec "))
        self.assertIn("compopt default", self.bash("weirctl validate -f "))
        self.assertEqual(self.bash("weir-controller --log-level d", "weir-controller"), ["debug"])
        self.assertIn("compopt dirnames", self.bash("weir-controller --policy ", "weir-controller"))
        self.assertEqual(self.bash("weir-agent --pro", "weir-agent"),
                         ["--probe-port", "--probe-share", "--probe-budget-mib"])

    def test_names_come_from_the_controller(self):
        address = self.controller_with_node()
        self.assertEqual(self.bash(f"weirctl --controller {address} get nodes "), ["node-alpha"])
        self.assertEqual(self.bash(f"weirctl get policies --controller={address} d"), ["default"])
        self.assertEqual(self.bash(f"weirctl --controller {address} pin "), [""])
        self.assertEqual(self.typed_in_bash(f"weirctl --controller {address} describe node node-a\t"),
                         f"weirctl --controller {address} describe node node-alpha")

    def test_without_a_controller_nobody_waits(self):
        begin = time.monotonic()
        self.assertEqual(self.bash("weirctl --controller 127.0.0.1:1 get nodes "), [""])
        self.assertLess(time.monotonic() - begin, 5)

    def typed_in_bash(self, keys):
        """The line of an interactive bash after `keys`."""
        child, terminal = pty.fork()
        if child == 0:
            os.execvpe("bash", ["bash", "--norc", "--noprofile", "-i"],
                       dict(self.environment, PS1="ready>", COLUMNS="300"))
        try:
            heard = [""]

            def wait_for(word):
                end = time.monotonic() + PATIENCE_S
                while word not in heard[0]:
                    self.assertLess(time.monotonic(), end, heard[0])
                    if select.select([terminal], [], [], 0.1)[0]:
                        heard[0] += os.read(terminal, 65536).decode(errors="replace")
            wait_for("ready>")
            heard[0] = ""
            os.write(terminal, f"source {self.directory}/weirctl.bash; stty cols 300\n".encode())
            wait_for("ready>")
            heard[0] = ""
            os.write(terminal, keys.encode())
            wait_for(keys.strip().split()[-1])
            end = time.monotonic() + PATIENCE_S
            while not heard[0].endswith(" ") and time.monotonic() < end:
                if select.select([terminal], [], [], 0.1)[0]:
                    heard[0] += os.read(terminal, 65536).decode(errors="replace")
            return heard[0].strip()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            os.close(terminal)

    def test_top_fits_its_terminal(self):
        address = self.controller_with_node()
        child, terminal = pty.fork()
        if child == 0:
            os.execvpe("sh", ["sh", "-c", f"stty cols 40; exec weirctl --controller {address} top "
                              "--iterations 2 --interval 0.1"], self.environment)
        heard = b""
        try:
            end = time.monotonic() + PATIENCE_S
            while time.monotonic() < end and select.select([terminal], [], [], PATIENCE_S)[0]:
                heard += os.read(terminal, 65536)
        except OSError:   # the other end is closed
            pass
        finally:
            self.assertEqual(os.waitpid(child, 0)[1], 0, heard)
            os.close(terminal)
        text = heard.decode()
        self.assertEqual(text.count("\x1b[H"), 2)
        shown = re.sub(r"\x1b\[[A-Z]", "", text).splitlines()
        self.assertIn("no job is attached", shown)
        self.assertEqual(max(map(len, shown)), 40)

    @need("zsh")
    def test_zsh_accepts_the_scripts(self):
        for name in PROGRAMS:
            done = ask("zsh", "-n", self.directory / f"{name}.zsh")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
        # Loaded as zsh loads it, with what _describe would show printed instead.
        script = ("autoload -Uz compinit; compinit -D -u; _describe() { print -l \"${(@P)4}\" }; "
                  f"source {self.directory}/weirctl.zsh; words=(weirctl get nodes -o ''); CURRENT=5; "
                  "_weirctl; print ${_comps[weirctl]}")
        done = ask("zsh", "-f", "-c", script, env=self.environment)
        self.assertEqual(done.stdout.split("\n")[:-1], ["table:", "json:", "yaml:", "_weirctl"],
                         done.stderr)

    @need("fish")
    def test_fish_completes(self):
        for line, expected in (("weirctl ge", "get\tlist resources, or show one\n"),
                               ("weirctl get nodes -o y", "yaml\n")):
            done = ask("fish", "--no-config", "-c",
                       f"source {self.directory}/weirctl.fish; complete -C '{line}'",
                       env=self.environment)
            self.assertEqual(done.stdout.replace("yaml\t\n", "yaml\n"), expected, done.stderr)


if __name__ == "__main__":
    unittest.main()
