# SPDX-License-Identifier: Apache-2.0
"""tests/device/nccl_plugin without a GPU: what it reads from NCCL's log, when it finds the plug-in too slow, and that
each phase notices when NCCL, here fake_nccl.py, does not do what it should. --library FILE: libnccl-weir.so."""
import importlib.machinery
import importlib.util
import json
import os
import pathlib
import subprocess
import sys
import unittest

PROGRAM = pathlib.Path(__file__).resolve().parent / "nccl_plugin"
TIMEOUT_S = 100


def load():
    """The program as a module; its name has no suffix."""
    loader = importlib.machinery.SourceFileLoader("nccl_plugin", str(PROGRAM))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("nccl_plugin", loader))
    sys.dont_write_bytecode = True
    loader.exec_module(module)
    return module


nccl_plugin = load()


def timed(phase, *microseconds, spread=0.01):
    sizes = [str(size) for size in nccl_plugin.SIZES]
    return {"phase": phase, "seconds": {size: us * 1e-6 for size, us in zip(sizes, microseconds)},
            "spread": dict.fromkeys(sizes, spread)}


class LogTest(unittest.TestCase):

    def test_choices_of_all_reduces_from_1_kib_on(self):
        prefix = "gpu-host:1234:1301 [0] NCCL INFO "
        log = "".join(prefix + line + "\n" for line in (
            "Bootstrap: Using lo:127.0.0.1<0>",
            "AllReduce: 4096 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
            "AllReduce: 1048576 Bytes -> Algo Tree proto SIMPLE channel{Lo..Hi}={2..9}",
            "AllReduce: 8 Bytes -> Algo RING proto LL channel{Lo..Hi}={0..0}",
            "AllGather: 4096 Bytes -> Algo RING proto SIMPLE channel{Lo..Hi}={0..1}",
            "AllReduce [Symmetric]: 4096 Bytes -> Kernel AllReduce_AGxLL nchannels 2 nthreads 512"))
        self.assertEqual(nccl_plugin.choices(log), [("ring", "ll", 1), ("tree", "simple", 8)])


class OverheadTest(unittest.TestCase):

    def test_is_known_only_with_two_plain_runs_and_a_sampled_one(self):
        plain, sampled = timed("plain", 10, 20, 30, 40), timed("sampled", 10, 20, 30, 40)
        self.assertIsNone(nccl_plugin.overhead([plain, sampled]))
        self.assertIsNone(nccl_plugin.overhead([plain, plain, {"phase": "sampled", "error": "x"}]))

    def test_passes_within_the_noise_and_fails_beyond(self):
        plain = [timed("plain", 100, 200, 300, 400), timed("plain", 102, 204, 306, 408)]
        good = nccl_plugin.overhead([*plain, timed("sampled", 104, 208, 312, 416)])
        self.assertEqual((good["over_plain"], good["noise"], good["at_most"], good["good"]),
                         (1.0297, 0.0198, 1.0398, True))
        bad = nccl_plugin.overhead([*plain, timed("sampled", 106, 212, 318, 424)])
        self.assertEqual((bad["over_plain"], bad["good"]), (1.0495, False))
        # One size that is disturbed decides nothing.
        self.assertTrue(nccl_plugin.overhead([*plain, timed("sampled", 101, 202, 303, 900)])["good"])

    def test_repeats_that_differ_much_are_noise_and_too_much_noise_is_a_failure(self):
        plain = timed("plain", 100, 200, 300, 400, spread=0.06)
        row = nccl_plugin.overhead([plain, plain, timed("sampled", 107, 214, 321, 428)])
        self.assertEqual((row["noise"], row["good"]), (0.06, True))
        plain = timed("plain", 100, 200, 300, 400, spread=0.3)
        row = nccl_plugin.overhead([plain, plain, timed("sampled", 100, 200, 300, 400, spread=0.3)])
        self.assertFalse(row["good"])
        self.assertIn("run it again", row["error"])


class PhasesTest(unittest.TestCase):
    library = ""

    def run_phases(self, fault, *phases):
        """The exit status, whether each phase was good by its name, and the rows."""
        if not self.library:
            self.skipTest("no --library")
        found = subprocess.run(
            [sys.executable, str(PROGRAM), "--rehearse", "--library", self.library, "--phases", *phases],
            env={**os.environ, "FAKE_NCCL_FAULT": fault}, capture_output=True, text=True, timeout=TIMEOUT_S,
            check=False)
        self.assertNotIn("Traceback", found.stderr)
        rows = [json.loads(line) for line in found.stdout.splitlines()]
        self.assertFalse(any("seconds" in row and "error" in row for row in rows), rows)
        return found.returncode, {row["phase"]: row.get("good") for row in rows}, rows

    def test_without_torch_or_a_gpu_it_is_skipped(self):
        found = subprocess.run([sys.executable, "-S", str(PROGRAM), "--library", str(PROGRAM)], capture_output=True,
                               text=True, timeout=TIMEOUT_S, check=False)
        self.assertEqual(found.returncode, 77, found.stderr)  # a device that cannot run it must not count as passed
        self.assertIn("No module named 'torch'", json.loads(found.stdout)["skipped"])

    def test_a_slow_plug_in_fails(self):
        status, good, rows = self.run_phases("slow", "plain", "sampled", "plain")
        self.assertEqual((status, good), (1, {"plain": None, "sampled": True, "overhead": False}))
        self.assertAlmostEqual(rows[-1]["over_plain"], 1.1, places=2)

    def test_a_table_that_is_not_obeyed_fails(self):
        status, good, rows = self.run_phases("deaf", "file")
        self.assertEqual((status, good), (1, {"file": False}))
        self.assertEqual(rows[0]["chosen"], [["ring", "ll128", 2]])

    def test_a_wrong_sum_fails(self):
        status, good, rows = self.run_phases("wrong", "file")
        self.assertEqual((status, good), (1, {"file": False}))
        self.assertEqual((rows[0]["chosen"], rows[0]["wrong"]), ([["tree", "ll", 1]], [0, 1]))


if __name__ == "__main__":
    if "--library" in sys.argv:
        at = sys.argv.index("--library")
        PhasesTest.library = sys.argv[at + 1]
        del sys.argv[at:at + 2]
    unittest.main()
