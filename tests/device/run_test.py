#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/device/run over a build folder of small scripts in place of the programs: what it writes, how it goes on after
a failure, and that it keeps deadlines. With --build DIR it rehearses the real programs there instead."""

import json
import pathlib
import subprocess
import sys
import tempfile
import time
import unittest

RUN = pathlib.Path(__file__).resolve().parent / "run"
TIMEOUT_S = 60
REHEARSAL_S = 280
REHEARSED = ("codecs", "device_bench", "hook_overhead", "backward", "training")


class RunTest(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.build = pathlib.Path(self.folder.name) / "build"
        self.out = pathlib.Path(self.folder.name) / "out"

    def program(self, path, script):
        file = self.build / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text("#!/bin/sh\n" + script)
        file.chmod(0o755)

    def run_parts(self, *arguments):
        return subprocess.run([sys.executable, str(RUN), "--rehearse", "--no-build", "--build", str(self.build),
                               "--out", str(self.out), *arguments],
                              capture_output=True, text=True, timeout=2 * TIMEOUT_S, check=False)

    def rows(self):
        return [json.loads(line) for line in (self.out / "results.jsonl").read_text().splitlines()]

    def ends(self):
        return [(row["part"], row["status"]) for row in self.rows() if "status" in row]

    def test_writes_rows_and_ends_and_resumes_by_part(self):
        self.program("tests/datapath_cuda_test", "echo '{\"benchmark\": \"x\", \"us\": 3}'; echo text\n")
        self.program("tests/bench/device_bench_host", "echo broken; exit 3\n")
        found = self.run_parts("--part", "codecs", "--part", "device_bench")
        self.assertEqual(found.returncode, 1, found.stderr)
        self.assertEqual(self.ends(), [("codecs", "passed"), ("device_bench", "failed")])
        self.assertIn({"part": "codecs", "row": {"benchmark": "x", "us": 3}}, self.rows())
        self.assertEqual(self.rows()[0]["part"], "machine")
        self.assertIn("broken", self.rows()[-1]["detail"])
        self.assertIn("text\n", (self.out / "log").read_text())

        # Another call continues where this one stopped, also with another output folder.
        self.program("tests/bench/device_bench_host", "exit 0\n")
        self.program("tests/datapath_nccl_test", "exit 0\n")
        self.out = pathlib.Path(self.folder.name) / "other"
        self.run_parts("--total", "50")  # some parts load torch before they miss their library
        again = self.ends()[2:]
        self.assertNotIn("codecs", [part for part, _ in again])
        self.assertIn(("device_bench", "passed"), again)
        self.assertIn(("codecs_memcheck", "absent"), again)

    def test_ends_what_outlasts_the_time(self):
        self.program("tests/datapath_cuda_test", "sleep 50 & echo $!; wait\n")
        start = time.monotonic()
        found = self.run_parts("--part", "codecs", "--total", "10")
        self.assertLess(time.monotonic() - start, 45)
        self.assertEqual(found.returncode, 1)
        self.assertEqual(self.ends(), [("codecs", "timeout")])
        child = pathlib.Path("/proc") / self.rows()[-1]["detail"].split()[0] / "stat"
        try:
            state = child.read_text().rsplit(")", 1)[1].split()[0]
        except FileNotFoundError:
            state = "gone"
        self.assertIn(state, ("gone", "Z", "X"))

    def test_starts_nothing_without_time(self):
        self.program("tests/datapath_cuda_test", "touch started\n")
        self.assertEqual(self.run_parts("--part", "codecs", "--total", "1").returncode, 1)
        self.assertEqual(self.ends(), [("codecs", "no time")])

    def test_names_the_parts_for_an_unknown_one(self):
        found = self.run_parts("--part", "codec")
        self.assertEqual(found.returncode, 1)
        self.assertIn("codecs", found.stderr)


class RehearsalTest(unittest.TestCase):
    build = ""

    def test_the_programs_of_a_build_pass(self):
        if not self.build:
            self.skipTest("no --build")
        with tempfile.TemporaryDirectory() as out:
            found = subprocess.run([sys.executable, str(RUN), "--rehearse", "--no-build", "--build", self.build,
                                    "--out", out, *(word for part in REHEARSED for word in ("--part", part))],
                                   capture_output=True, text=True, timeout=REHEARSAL_S, check=False)
            self.assertEqual(found.returncode, 0, found.stdout + found.stderr)
            rows = [json.loads(line) for line in (pathlib.Path(out) / "results.jsonl").read_text().splitlines()]
            codecs = {row["row"].get("codec") for row in rows if "row" in row}
            self.assertLessEqual({"top_k", "thc", "fp16", "power_sgd", "sidco"}, codecs)
            for part in ("hook_overhead", "backward", "training"):
                variants = {row["row"].get("variant") for row in rows if row["part"] == part and "row" in row}
                self.assertLessEqual({"weir_top_k", "weir_power_sgd", "weir_bf16"}, variants, part)


if __name__ == "__main__":
    if "--build" in sys.argv:
        at = sys.argv.index("--build")
        RehearsalTest.build = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    unittest.main()
