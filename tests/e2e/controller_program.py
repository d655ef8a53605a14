# SPDX-License-Identifier: Apache-2.0
"""The real controller program for tests: started with flags, asked over HTTP and by weirctl."""
import hashlib
import http.client
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "deploy"))
from demo_job.control_plane import find_binaries  # noqa: E402  pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
PROGRAMS, _ = find_binaries(BUILD)
WEIRCTL = PROGRAMS.get("weirctl") or BUILD / "controller/cli/weirctl"
START_S = 20.0
ANSWER_S = 3.0   # of a controller that is well, on a busy machine
JSON = {"Content-Type": "application/json"}


def token_file(directory, **roles):
    """A token file with a principal of each name; its token is the name, repeated. Returns flags."""
    path = pathlib.Path(directory) / "tokens"
    path.write_text("".join(f"{name} {role} sha256:{hashlib.sha256((name * 3).encode()).hexdigest()}\n"
                            for name, role in roles.items()), encoding="ascii")
    return ["--token-file", str(path)]


def bearer(name):
    return {"Authorization": f"Bearer {name * 3}"}


class ControllerCase(unittest.TestCase):
    """Starts what a test needs, and ends it."""

    def setUp(self):
        self.directory = self.enterContext(tempfile.TemporaryDirectory(prefix="weir-controller-"))
        self.log = pathlib.Path(self.directory) / "log"

    def start(self, *flags, state=":memory:"):
        with open(self.log, "wb") as log:
            child = subprocess.Popen([PROGRAMS["weir-controller"], "--listen-grpc", "127.0.0.1:0", "--listen-http",
                                      "127.0.0.1:0", "--state", state, *flags], stderr=log)
        self.addCleanup(child.wait, 20)
        self.addCleanup(child.kill)
        end = time.monotonic() + START_S
        while not (found := re.search(r"gRPC on (\S+), HTTP on 127\.0\.0\.1:(\d+)", self.said())):
            self.assertIsNone(child.poll(), self.said())
            self.assertLess(time.monotonic(), end, self.said())
            time.sleep(0.02)
        self.grpc, self.port = found[1], int(found[2])
        self.child = child

    def said(self):
        return self.log.read_text(encoding="utf-8", errors="replace")

    def ask(self, method, path, body=None, headers=None, timeout=ANSWER_S):
        """Status, headers and text of an answer."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            connection.request(method, path, body if body is None else json.dumps(body), headers or {})
            answer = connection.getresponse()
            return answer.status, answer.headers, answer.read().decode()
        finally:
            connection.close()

    def weirctl(self, *words):
        done = subprocess.run([WEIRCTL, "--controller", self.grpc, *words], capture_output=True, text=True,
                              timeout=20, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout
