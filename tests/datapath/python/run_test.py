# SPDX-License-Identifier: Apache-2.0
"""`weir run` with two ranks on loopback: a decision, a crash of the job, SIGINT, several nodes."""
import contextlib
import io
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import textwrap
import time
import unittest
import urllib.error
import urllib.request
from unittest import mock

import torch.distributed as dist
import weir.interfaces
import weir.run

from addresses_test import Network, can_make_namespaces

DEADLINE_S = 60.0
# A script without a line of Weir's.
TRAIN = """
    import os, sys, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(2000, 10, bias=False))
    for step in range(int(sys.argv[1])):
        model(torch.randn(8, 2000)).square().sum().backward()
        time.sleep(0.002)  # as much as a step, so that the controller has seconds to decide
        if step == 3:
            print("stepping", flush=True)
    assert dist.get_world_size() == 2
    if dist.get_rank() == 0:
        weir = sys.modules.get("weir.steps")
        print("attached" if weir and weir.attached else "plain", os.environ["WEIR_AGENT"], flush=True)
    sys.exit(int(sys.argv[2]) if len(sys.argv) > 2 else 0)
"""

# In place of torchrun, where the torch at hand cannot start it.
LAUNCH = """
    import os, subprocess, sys
    ranks = [subprocess.Popen([sys.executable, *sys.argv[2:]], env={
        **os.environ, "RANK": str(r), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": sys.argv[1]}) for r in range(2)]
    statuses = [rank.wait() for rank in ranks]
    print("exitcode  :", max(statuses), flush=True)
    sys.exit(1 if any(statuses) else 0)
"""


def torchrun_starts():
    """Debian's torch 2.6 lacks libuv, which its torchrun requests in any case."""
    try:
        dist.TCPStore("127.0.0.1", free_port(), 1, True, use_libuv=True)
    except TypeError:
        return True  # older than the option
    except RuntimeError:
        return False
    return True


def descendants(pid):
    found = []
    for task in pathlib.Path(f"/proc/{pid}/task").glob("*/children"):
        with contextlib.suppress(OSError):
            for child in map(int, task.read_text(encoding="ascii").split()):
                found += [child, *descendants(child)]
    return found


def is_alive(pid):
    try:
        stat = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] != "Z"


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


class RunTest(unittest.TestCase):
    def setUp(self):
        made = tempfile.TemporaryDirectory()
        self.addCleanup(made.cleanup)
        self.directory = pathlib.Path(made.name)
        self.script = self.directory / "train.py"
        self.script.write_text(textwrap.dedent(TRAIN), encoding="ascii")

    def start(self, *arguments, flags=(), environment=None):
        """Starts `weir run` on two ranks of the script, in a process group of its own."""
        if torchrun_starts():
            launcher = ["-m", "torch.distributed.run", "--nproc_per_node=2", "--redirects=9:1", "--tee=9:1",
                        f"--master_port={free_port()}"]
        else:
            script = self.directory / "launch.py"
            script.write_text(textwrap.dedent(LAUNCH), encoding="ascii")
            launcher = [str(script), str(free_port())]
        return self.start_command([sys.executable, *launcher, str(self.script), *arguments], flags,
                                  environment)

    def start_command(self, command, flags=(), environment=None, before=()):
        child = subprocess.Popen(
            [*before, sys.executable, "-m", "weir", "run", *flags, "--", *command], text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
            env={**os.environ, "OMP_NUM_THREADS": "1", **(environment or {})})
        self.addCleanup(self.end, child)
        return child

    def end(self, child):
        for pid in descendants(child.pid) + [child.pid]:
            with contextlib.suppress(ProcessLookupError):
                if child.poll() is None or pid != child.pid:
                    os.kill(pid, signal.SIGKILL)
        child.wait()
        child.stdout.close()

    def finish(self, child):
        output, _ = child.communicate(timeout=DEADLINE_S)
        return child.returncode, output

    def test_an_address_without_a_port_is_refused_at_once(self):
        for flag, text in (("--rendezvous", "node0"), ("--rendezvous", "node0:0"), ("--rendezvous", "node0:abc"),
                           ("--rendezvous", ":7700"), ("--page-port", "99999"), ("--page-port", "x")):
            with self.subTest(text), contextlib.redirect_stderr(io.StringIO()) as words:
                with self.assertRaises(SystemExit):
                    weir.run.main([flag, text, "--", "true"])
                self.assertIn(f"argument {flag}: '{text}': expected ", words.getvalue())

    def test_script_without_a_weir_line_gets_a_decision(self):
        state = self.directory / "state"
        status, output = self.finish(self.start("2500", flags=["--auto", "--directory", str(state)]))
        self.assertEqual(status, 0, output)
        self.assertIn("attached", output)
        self.assertRegex(output, r"page http://127\.0\.0\.1:\d+")
        self.assertRegex(output, r"job training: [1-9]\d* steps on 2 ranks; [1-9]\d* decisions")
        self.assertRegex(output, r"step \d+: .* -> .+ \(\w+; active\)")
        self.assertRegex(output, r"(saves|costs) .*of the time|runs dense|not compared with dense yet")
        self.assertFalse((state / "agent.sock").exists())
        self.assertEqual(state.stat().st_mode & 0o777, 0o700)
        modes = {path.name: path.stat().st_mode & 0o777 for path in state.iterdir() if path.is_file()}
        self.assertEqual(set(modes.values()), {0o600}, modes)
        self.assertIn("controller.db", modes)

    def test_status_is_that_of_a_crashed_job(self):
        status, output = self.finish(self.start("2", "7"))
        self.assertEqual(status, 1, output)  # torchrun's own, whatever its ranks ended with
        self.assertIn("exitcode  : 7", output)
        self.assertIn("plain", output)
        status, output = self.finish(self.start_command(["sh", "-c", "exit 5"]))
        self.assertEqual(status, 5, output)
        status, output = self.finish(self.start_command(["sh", "-c", "kill -9 $$"]))
        self.assertEqual(status, 128 + signal.SIGKILL, output)

    def test_sigint_leaves_no_process(self):
        child = self.start("100000000", flags=["--auto"])
        self.lines_until(child, "stepping")
        began = descendants(child.pid)
        self.assertGreaterEqual(len(began), 5)  # controller, agent, torchrun and two ranks
        child.send_signal(signal.SIGINT)
        status, output = self.finish(child)
        self.assertNotEqual(status, 0, output)
        deadline = time.monotonic() + 2.0
        while any(map(is_alive, began)) and time.monotonic() < deadline:
            time.sleep(0.05)
        self.assertEqual([pid for pid in began if is_alive(pid)], [])

    def lines_until(self, child, word):
        """The lines that `child` prints, up to one that begins with `word`."""
        lines = []
        for line in child.stdout:
            lines.append(line)
            if line.startswith(word):
                return "".join(lines)
        raise AssertionError(f"no '{word}': {lines}")

    def test_every_signal_that_ends_programs_cleans_up(self):
        for number in (signal.SIGHUP, signal.SIGQUIT, signal.SIGTERM):
            with self.subTest(number), tempfile.TemporaryDirectory(dir=self.directory) as temporary:
                child = self.start_command(["sh", "-c", "echo up; sleep 100"],
                                           environment={"TMPDIR": temporary})
                self.lines_until(child, "up")
                began = descendants(child.pid)
                self.assertGreaterEqual(len(began), 3)
                child.send_signal(number)
                status, output = self.finish(child)
                self.assertEqual(status, 128 + number, output)
                self.assertEqual([pid for pid in began if is_alive(pid)], [])
                self.assertEqual(os.listdir(temporary), [])

    def test_sighup_that_nohup_ignores_is_ignored(self):
        child = self.start_command(["sh", "-c", "echo up; sleep 1; exit 4"], before=["nohup"])
        self.lines_until(child, "up")
        child.send_signal(signal.SIGHUP)
        status, output = self.finish(child)
        self.assertEqual(status, 4, output)

    def test_what_the_command_leaves_in_its_process_group_is_ended(self):
        status, output = self.finish(self.start_command(
            ["sh", "-c", "trap '' TERM; sleep 100 & echo deaf $!; trap - TERM; sleep 100 & echo left $!; exit 3"]))
        self.assertEqual(status, 3, output)
        left = [int(pid) for pid in re.findall(r"(?:deaf|left) (\d+)", output)]
        self.assertEqual([len(left), *filter(is_alive, left)], [2])

    def test_orphans_that_end_are_waited_for(self):
        child = self.start_command(["sh", "-c", "for i in 1 2 3; do sh -c 'sleep 0.1 &'; done; sleep 1.5; "
                                                "echo up; sleep 100"])
        self.lines_until(child, "up")
        self.assertEqual([pid for pid in descendants(child.pid) if not is_alive(pid)], [])

    def test_directories_that_others_can_change_are_refused(self):
        link, other, own = (self.directory / name for name in ("link", "other", "own"))
        own.mkdir()
        link.symlink_to(own)
        self.assertEqual(weir.run.private_directory(own), own)
        own.chmod(0o777)
        other.mkdir()
        refused = [(link, "it is a link"), (own, "others can write to it .mode 0777."),
                   (self.script, "file exists"), (self.directory / ("long" * 30), "longer than 107 bytes")]
        if os.geteuid() == 0:
            os.chown(other, 65534, 65534)
            refused.append((other, "belongs to user 65534"))
        for path, why in refused:
            with self.assertRaisesRegex(weir.run.RunError, f"{path}: .*{why}"):
                weir.run.private_directory(path)
        status, output = self.finish(self.start_command(["true"], ["--directory", str(link)]))
        self.assertEqual((status, os.listdir(own)), (1, []), output)

    def test_a_directory_may_have_a_space_in_its_name(self):
        state = self.directory / "run 1 of ü"
        status, output = self.finish(self.start_command(
            [sys.executable, "-c", "import weir; print(weir.__file__)"], ["--directory", str(state)]))
        self.assertEqual(status, 0, output)
        self.assertIn(f"{state}/path/weir/__init__.py", output)
        self.assertIn("page http://127.0.0.1:", output)

    def test_a_directory_whose_path_is_not_taken_as_it_is_elsewhere_is_refused(self):
        for sign in ":%#?,":
            with self.assertRaisesRegex(weir.run.RunError, f"its path has a '[{sign}]'"):
                weir.run.private_directory(self.directory / f"a{sign}b")

    def test_other_users_of_the_host_reach_neither_grpc_nor_the_page(self):
        state = self.directory / "state"
        child = self.start_command(["sh", "-c", "echo up; sleep 100"], ["--directory", str(state)])
        said = self.lines_until(child, "up")
        self.assertIn(f"controller unix:{state}/controller.sock", said)
        page, _, code = re.search(r"page (\S+) ", said)[1].partition("/#code=")
        self.assertRegex(code, "^[0-9a-f]{64}$")
        request = urllib.request.Request(page + "/v1/jobs")
        with self.assertRaises(urllib.error.HTTPError) as refused:
            urllib.request.urlopen(request, timeout=10)
        self.assertEqual(refused.exception.code, 401)
        refused.exception.close()
        request.add_header("Authorization", f"Bearer {(state / 'token').read_text(encoding='ascii').strip()}")
        with urllib.request.urlopen(request, timeout=10) as answer:
            self.assertEqual(answer.status, 200)

    def test_controller_that_does_not_answer_is_named_within_the_start_time(self):
        nowhere = f"127.0.0.1:{free_port()}"
        options = weir.run.parser().parse_args(["--controller", nowhere])
        with mock.patch("weir.run.START_S", 0.5), mock.patch("weir.run._say") as say:
            weir.run.ControlPlane(self.directory, options).watch_for_controller()
            deadline = time.monotonic() + DEADLINE_S
            while not say.called and time.monotonic() < deadline:
                time.sleep(0.01)
        self.assertRegex(say.call_args[0][0],
                         f"no controller at {nowhere} .*within 0.5 s: connection refused.*This node has ")

    def test_rendezvous_is_here_or_elsewhere(self):
        own = {"own": ["10.0.0.1"], "debian": ["127.0.1.1"], "other": ["10.0.0.2"], "10.0.0.1": ["10.0.0.1"],
               "10.0.0.2": ["10.0.0.2"], "127.0.0.2": ["127.0.0.2"], "::1": ["::1"],
               "localhost": ["::1", "127.0.0.1"]}
        wildcard = "::" if socket.has_dualstack_ipv6() else "0.0.0.0"
        with mock.patch("weir.interfaces.resolve", lambda host: own.get(host, [])), mock.patch(
                "weir.interfaces.addresses",
                return_value=[weir.interfaces.Address("10.0.0.1", "eth0", False, False)]):
            for host, here in (("own", "own"), ("debian", wildcard), ("other", None), ("10.0.0.1", "10.0.0.1"),
                               ("10.0.0.2", None), ("127.0.0.2", "127.0.0.2"), ("::1", "::1"),
                               ("localhost", "localhost")):
                self.assertEqual(weir.run.rendezvous_here(host), here, host)
            with self.assertRaisesRegex(weir.run.RunError, "cannot resolve 'typo'"):
                weir.run.rendezvous_here("typo")

    def test_command_that_ignores_signals_is_killed(self):
        child = self.start_command(["sh", "-c", "trap '' INT TERM; echo deaf; while :; do sleep 1; done"])
        self.lines_until(child, "deaf")
        began = descendants(child.pid)
        child.send_signal(signal.SIGTERM)
        time.sleep(0.5)  # so that both arrive
        child.send_signal(signal.SIGTERM)
        status, output = self.finish(child)
        self.assertEqual(status, 128 + signal.SIGKILL, output)
        self.assertEqual([pid for pid in began if is_alive(pid)], [])

    def test_second_node_uses_the_controller_of_the_first(self):
        rendezvous = f"127.0.0.1:{free_port()}"
        first = self.start_command(["sh", "-c", "echo up; sleep 40"],
                                   ["--rendezvous", rendezvous, "--directory",
                                    str(self.directory / "first")])
        self.lines_until(first, "up")
        second = self.start("300", flags=["--auto", "--controller", rendezvous])
        status, output = self.finish(second)
        self.assertEqual(status, 0, output)
        self.assertRegex(output, r"job training: \d+ steps on 2 ranks")

    @unittest.skipUnless(can_make_namespaces() and shutil.which("mount"), "needs ip, mount and root")
    def test_rendezvous_by_a_name_that_its_own_host_maps_to_127_0_1_1(self):
        weirctl = f"{weir.run.find_program('weirctl')} --controller head:7700 get nodes"
        wait = f"until [ $({weirctl} 2>&1 | grep -c connected) = 2 ]; do sleep 0.2; done; {weirctl}; sleep 3"
        children = []
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            for name, head in zip(network.names, ("127.0.1.1", "10.77.0.1")):
                hosts = self.directory / head
                hosts.write_text(f"127.0.0.1 localhost\n{head} head\n", encoding="ascii")
                children.append(self.start_command(
                    ["timeout", "20", "sh", "-c", wait], ["--insecure", "--rendezvous", "head:7700"],
                    before=["ip", "netns", "exec", name, "unshare", "-m", "sh", "-c",
                            f"mount --bind {hosts} /etc/hosts && exec \"$@\"", "sh"]))
            for status, output in map(self.finish, children):
                self.assertEqual(status, 0, output)
                for address in ("10.77.0.1", "10.77.0.2"):
                    self.assertRegex(output, rf"{address} +connected")

    @unittest.skipUnless(can_make_namespaces(), "needs ip and the right to make network namespaces")
    def test_two_nodes_meet_at_the_controller_of_the_first(self):
        with Network([(("10.77.0.1", "10.77.0.2"), 1500)]) as network:
            children = []
            for rank, name in enumerate(network.names):
                child = subprocess.Popen(
                    ["ip", "netns", "exec", name, sys.executable, "-m", "weir", "run", "--auto", "--insecure",
                     "--rendezvous", "10.77.0.1:7700", "--", sys.executable, str(self.script), "2500"],
                    text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True,
                    env={**os.environ, "RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "10.77.0.1",
                         "MASTER_PORT": "29612", "GLOO_SOCKET_IFNAME": "nic0", "OMP_NUM_THREADS": "1"})
                self.addCleanup(self.end, child)
                children.append(child)
            (first, said), (second, also_said) = map(self.finish, children)
        self.assertEqual((first, second), (0, 0), said + also_said)
        self.assertRegex(said, r"page http://127\.0\.0\.1:\d+, controller 10\.77\.0\.1:7700")
        self.assertIn("page at the controller", also_said)
        self.assertRegex(said, r"job training: \d+ steps on 2 ranks; [1-9]\d* decisions")

    def test_a_directory_of_policies_that_is_not_there_is_named(self):
        for path, found in (("/nonexistent", "nothing"), (__file__, "a file")):
            status, output = self.finish(self.start_command(["true"], ["--policy", path]))
            self.assertEqual(status, 1, output)
            self.assertIn(f"--policy {path}: expected a directory, found {found}", output)

    def test_missing_program_is_named(self):
        status, output = self.finish(self.start_command(["no-such-program"]))
        self.assertEqual(status, 1, output)
        self.assertTrue(re.search("cannot run no-such-program: no such file", output), output)


if __name__ == "__main__":
    unittest.main()
