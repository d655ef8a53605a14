#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""tests/device/run over a build folder of small scripts in place of the programs: what it writes, how it goes on after
a failure, and that it keeps deadlines. With --build DIR it rehearses the real programs there instead."""

import importlib.machinery
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

RUN = pathlib.Path(__file__).resolve().parent / "run"
TIMEOUT_S = 60
REHEARSAL_S = 400
WITHOUT_PACKAGES = (sys.executable, "-S")
# The programs of these are tests of this build anyway, so each runs a few of its cases here.
SHARED_OUT = {"GTEST_TOTAL_SHARDS": "12", "GTEST_SHARD_INDEX": "0"}


def load():
    """The script as a module; its name has no suffix."""
    loader = importlib.machinery.SourceFileLoader("device_run", str(RUN))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("device_run", loader))
    sys.dont_write_bytecode = True
    sys.modules["device_run"] = module  # where dataclasses look for it
    loader.exec_module(module)
    return module


script = load()


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

    def run_parts(self, *arguments, python=(sys.executable,), rehearse=True):
        return subprocess.run([*python, str(RUN), *(["--rehearse"] if rehearse else []), "--no-build", "--build",
                               str(self.build), "--out", str(self.out), *arguments],
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
        self.run_parts("--total", "50", python=WITHOUT_PACKAGES)  # parts that load torch would take long to fail
        again = self.ends()[2:]
        self.assertNotIn("codecs", [part for part, _ in again])
        self.assertIn(("device_bench", "passed"), again)
        self.assertIn(("codecs_memcheck", "absent"), again)
        self.assertEqual(again[-1], ("device_bench", "passed"))  # after those that had not run

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

    def test_says_which_interpreter_it_uses_and_that_it_has_no_torch(self):
        found = self.run_parts("--part", "python", "--part", "device_peers", python=WITHOUT_PACKAGES)
        self.assertEqual(found.returncode, 0, found.stdout)  # a rehearsal goes as far as it can
        self.assertIn(f"python: {sys.executable}, ", found.stdout)
        self.assertIn("no torch", found.stdout.splitlines()[0])
        self.assertEqual(self.ends(), [("python", "absent"), ("device_peers", "absent")])
        self.assertEqual(self.rows()[-1]["detail"], f"{sys.executable} has no torch")
        found = self.run_parts("--part", "python", python=WITHOUT_PACKAGES, rehearse=False)
        self.assertEqual(found.returncode, 1)
        self.assertEqual(self.ends()[2:], [("python", "failed")])
        self.assertEqual(self.rows()[-1]["detail"], f"{sys.executable} has no torch")

    def test_each_kind_of_evidence_fits_in_the_time(self):
        estimate_s = script.BUILD_ESTIMATE_S + sum(part.estimate_s for part in script.EVIDENCE)
        self.assertLessEqual(estimate_s, script.TOTAL_S)
        for part in script.PARTS:
            self.assertGreater(part.deadline_s, part.estimate_s, part.name)
        names = [part.name for part in script.PARTS]
        self.assertEqual(len(names), len(set(names)))

    def test_carried_programs_start_with_their_own_libraries(self):
        carried, package = pathlib.Path(self.folder.name) / "carried", pathlib.Path(self.folder.name) / "package"
        (package / "DEBIAN").mkdir(parents=True)
        (package / "DEBIAN" / "control").write_text(
            "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n")
        (package / "usr" / "lib" / "deep").mkdir(parents=True)
        (package / "usr" / "lib" / "deep" / "libx.so.1").write_text("")
        carried.mkdir()
        subprocess.run(["dpkg-deb", "-b", str(package), str(carried / "x_1_all.deb")], check=True, capture_output=True)
        (carried / "weir-agent").write_text('#!/bin/sh\necho "$LD_LIBRARY_PATH" "$@"\n')
        scripts = script.unpack_programs(carried, self.build / "programs")
        self.assertEqual([path.name for path in scripts.iterdir()], ["weir-agent"])
        found = subprocess.run([scripts / "weir-agent", "--node", "a b"], capture_output=True, text=True, check=True)
        self.assertEqual(found.stdout, f"{self.build}/programs/usr/lib/deep --node a b\n")

    def test_programs_are_carried_with_the_packages_of_their_libraries(self):
        for path in script.PROGRAMS:
            (self.build / path).parent.mkdir(parents=True)
            shutil.copyfile(os.path.realpath(sys.executable), self.build / path)
        folder = pathlib.Path(self.folder.name) / "programs"
        packages = script.carry_programs(self.build, folder)
        self.assertIn("zlib1g", packages)
        self.assertNotIn("libc6", packages)
        self.assertEqual({path.name for path in folder.iterdir()}, {"weir-controller", "weir-agent"})
        (self.build / script.PROGRAMS[1]).unlink()
        with self.assertRaisesRegex(RuntimeError, "weir-agent is not built"):
            script.carry_programs(self.build, pathlib.Path(self.folder.name) / "again")

    def test_names_the_parts_for_an_unknown_one(self):
        found = self.run_parts("--part", "codec")
        self.assertEqual(found.returncode, 1)
        self.assertIn("codecs", found.stderr)


class RehearsalTest(unittest.TestCase):
    build = ""

    def test_the_programs_of_a_build_pass(self):
        if not self.build:
            self.skipTest("no --build")
        parts = [part.name for part in script.PARTS if part.rehearsal]
        self.assertLessEqual({part.name for part in script.EVIDENCE}, set(parts))
        with tempfile.TemporaryDirectory() as out:
            found = subprocess.run([sys.executable, str(RUN), "--rehearse", "--no-build", "--fresh",
                                    "--build", self.build, "--out", out,
                                    *(word for part in parts for word in ("--part", part))],
                                   capture_output=True, text=True, timeout=REHEARSAL_S, check=False,
                                   env={**os.environ, **SHARED_OUT})
            self.assertEqual(found.returncode, 0, found.stdout + found.stderr)
            rows = [json.loads(line) for line in (pathlib.Path(out) / "results.jsonl").read_text().splitlines()]
            log = (pathlib.Path(out) / "log").read_text()
        self.assertEqual([(row["part"], row["status"]) for row in rows if "status" in row],
                         [(part, "passed") for part in parts])
        ran = re.findall(r"^\[=+\] (\d+) tests? from .* ran\.", log, re.M)
        self.assertEqual(len(ran), 3)  # codecs, sessions, nccl
        self.assertNotIn("0", ran)

        def measured(part):
            return [row["row"] for row in rows if row["part"] == part and "row" in row]

        self.assertLessEqual({"top_k", "thc", "fp16", "power_sgd", "sidco"},
                             {row.get("codec") for row in measured("device_bench")})
        self.assertLessEqual({"top_k", "qsgd", "fp16", "power_sgd"},
                             {row.get("codec") for row in measured("device_peers")})
        for part in ("hook_overhead", "backward", "training"):
            self.assertLessEqual({"weir_top_k", "weir_power_sgd", "weir_bf16"},
                                 {row.get("variant") for row in measured(part)}, part)
        (adaptive,) = [row for row in measured("training") if row.get("variant") == "weir_adaptive"]
        if pathlib.Path(self.build, "controller/server/weir-controller").exists():
            self.assertGreater(adaptive["plan"], 0)
        else:
            self.assertIn("not found", adaptive["left_out"])
        for part, cases in (("python", {"hook", "ddp", "ddp_restored"}), ("python_expandable", {"ddp_bucket_views"})):
            (row,) = measured(part)
            self.assertEqual(row["failed"], {})
            self.assertLessEqual(cases, set(row["passed"]))
        self.assertEqual([row["phase"] for row in measured("nccl_plugin")],
                         ["file", "agent", "plain", "sampled", "plain", "overhead"])


if __name__ == "__main__":
    if "--build" in sys.argv:
        at = sys.argv.index("--build")
        RehearsalTest.build = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    unittest.main()
