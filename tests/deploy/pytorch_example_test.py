# SPDX-License-Identifier: Apache-2.0
"""deploy/examples/pytorch/train.py as its first lines say it is started: two ranks under an agent and a
controller, by itself and by torch's launcher; and without an agent."""
import json
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
TRAIN = ROOT / "deploy" / "examples" / "pytorch" / "train.py"
CONTROLLER = BUILD / "controller" / "server" / "weir-controller"
AGENT = BUILD / "agent" / "weir-agent"
PATIENCE_S = 60
STEPS = 1000  # seconds: time for the controller to decide
# torch 1.13 cannot switch off redirection under Python 3.11, so only rank 9, which does not exist,
# is redirected.
LAUNCHER = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--redirects=9:1",
            "--tee=9:1"]


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


class PytorchExampleTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weir-ex-")))
        self.environment = {key: value for key, value in os.environ.items() if not key.startswith("WEIR_")}
        self.environment.update(
            PYTHONPATH=str(ROOT / "datapath/python"), OMP_NUM_THREADS="1",
            WEIR_LIBRARY=str(BUILD / "datapath/api/libweir.so"))

    def start(self, name, *arguments):
        """A program that ends with the test; its log."""
        log = self.directory / f"{name}.log"
        with open(log, "wb") as output:
            child = subprocess.Popen([str(part) for part in arguments], stdout=output, stderr=output,
                                     stdin=subprocess.DEVNULL)
        self.addCleanup(child.wait, timeout=10)
        self.addCleanup(child.terminate)
        return log

    def wait_for(self, log, pattern):
        end = time.monotonic() + PATIENCE_S
        while not (found := re.search(pattern, log.read_text(errors="replace"))):
            self.assertLess(time.monotonic(), end, f"no {pattern} in\n{log.read_text(errors='replace')}")
            time.sleep(0.05)
        return found

    def start_control_plane(self):
        """Controller and agent on free ports; the controller's REST address."""
        log = self.start("controller", CONTROLLER, "--state", ":memory:", "--listen-grpc", "127.0.0.1:0",
                         "--listen-http", "127.0.0.1:0")
        grpc, rest = self.wait_for(log, r"gRPC on (\S+), HTTP on ([^,\s]+)").groups()
        agent = self.directory / "agent.sock"
        log = self.start("agent", AGENT, "--node", "here", "--controller", grpc, "--socket", agent,
                         "--probe-port", "0")
        self.wait_for(log, "controller .* reached")
        self.environment["WEIR_AGENT"] = f"unix:{agent}"
        return f"http://{rest}"

    def train(self, launcher, job):
        """The job's output on both streams."""
        self.environment.update(WEIR_JOB=job, MASTER_PORT=str(free_port()))
        # It runs in its own session, so that ranks end together with a launcher that is killed at
        # its deadline.
        child = subprocess.Popen([*launcher, TRAIN, "--steps", str(STEPS)], env=self.environment, text=True,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                                 cwd=self.directory, start_new_session=True)
        try:
            printed, _ = child.communicate(timeout=PATIENCE_S)
        finally:
            try:
                os.killpg(child.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            child.wait()
        self.assertEqual(child.returncode, 0, printed[-3000:])
        losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", printed)]
        self.assertEqual(len(losses), STEPS // 50, printed)
        self.assertLess(losses[-1], losses[0] / 2, printed)
        return printed

    def check_job(self, rest, job):
        """The controller saw both ranks to their end, and gave them a plan."""
        with urllib.request.urlopen(f"{rest}/v1/jobs/{job}", timeout=10) as answer:
            found = json.load(answer)
        self.assertEqual(found["world"], 2, found)
        self.assertGreaterEqual(int(found["step"]), STEPS - 5, found)   # the last report may be lost
        self.assertGreaterEqual(int(found["active_plan"]["version"]), 1, found)
        self.assertEqual(len(found["ranks"]), 2, found)

    def test_it_trains_under_agent_and_controller(self):
        rest = self.start_control_plane()
        self.train([sys.executable], "spawned")
        self.check_job(rest, "spawned")
        printed = self.train(LAUNCHER + ["--master_port", str(free_port())], "launched")
        self.check_job(rest, "launched")
        self.assertNotIn("running dense", printed)

    def test_it_trains_without_an_agent_and_says_so(self):
        printed = self.train([sys.executable], "alone")
        self.assertRegex(printed, r"(?i)weir.*dense")


if __name__ == "__main__":
    unittest.main()
