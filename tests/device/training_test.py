# SPDX-License-Identifier: Apache-2.0
"""The controller and agents that tests/device/training.py starts: that they run and end with the training, and that a
program which does not start here is a reason to leave its variant out. Needs torch, and WEIR_LIBRARY and PYTHONPATH as
training.py does."""
import argparse
import contextlib
import io
import json
import os
import pathlib
import socket
import sys
import tempfile
import unittest
from unittest import mock

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))
import training  # noqa: E402

ROW = {"part": "training", "variant": "weir_adaptive"}


class ControlPlaneTest(unittest.TestCase):

    def setUp(self):
        folder = tempfile.TemporaryDirectory(prefix="weir-training-test-")
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.options = argparse.Namespace(rank=0, folder=folder.name, measure="training")
        patched = mock.patch.object(training, "agree", lambda options, value: float(value))  # the only rank
        patched.start()
        self.addCleanup(patched.stop)

    def start(self, stack):
        """The agent's address and the rows that were said."""
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            agent = training.start_control_plane(self.options, stack, ROW)
        return agent, [json.loads(line) for line in said.getvalue().splitlines()]

    def test_programs_run_until_the_training_ends(self):
        with contextlib.ExitStack() as stack:
            agent, rows = self.start(stack)
            self.assertEqual(rows, [])
            path = agent.removeprefix("unix:")
            with socket.socket(socket.AF_UNIX) as rank:
                rank.connect(path)
        with socket.socket(socket.AF_UNIX) as rank, self.assertRaises(OSError):
            rank.connect(path)

    def test_a_program_that_does_not_start_here_leaves_the_variant_out(self):
        for name in ("weir-controller", "weir-agent"):
            program = self.folder / name
            program.write_text("#!/bin/sh\necho \"$0: /lib/libc.so.6: version 'GLIBC_2.99' not found\" >&2\nexit 1\n")
            program.chmod(0o755)
        with mock.patch.dict(os.environ, WEIR_BIN=str(self.folder)), contextlib.ExitStack() as stack:
            agent, rows = self.start(stack)
        self.assertIsNone(agent)
        self.assertEqual([row["variant"] for row in rows], ["weir_adaptive"])
        self.assertRegex(rows[0]["left_out"], "weir-controller ended with status 1: .*GLIBC_2.99")


if __name__ == "__main__":
    unittest.main()
