#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""The kernels compile for 64-bit Arm, each file to NEON code. Exit status 77: no cross compiler.

    neon_test.py -DHWY_DISABLED_TARGETS=...      as the build says it
"""
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[3]
COMPILER = "aarch64-linux-gnu-g++"
SYMBOLS = "aarch64-linux-gnu-nm"
TIMEOUT_S = 300


class Neon(unittest.TestCase):
    """One object file for each file of kernels."""

    def test_kernels_compile_to_neon(self):
        kernels = sorted((ROOT / "datapath" / "codec" / "kernels").glob("*.cc"))
        kernels.append(ROOT / "datapath" / "aggregation" / "lane_kernels.cc")
        self.assertGreater(len(kernels), 8)
        with tempfile.TemporaryDirectory() as folder:
            objects = {each: pathlib.Path(folder) / f"{each.stem}.o" for each in kernels}
            # Highway's headers are the same for every processor; the cross compiler's own come first.
            # -O1: a call into another instruction set is an error of code generation, not of syntax.
            arguments = ["-std=c++20", "-O1", "-Wall", "-Wextra", "-Werror", f"-I{ROOT}",
                         "-idirafter", "/usr/include", *TARGETS, "-c"]
            for each, target in objects.items():
                done = subprocess.run([COMPILER, *arguments, str(each), "-o", str(target)],
                                      timeout=TIMEOUT_S, capture_output=True, text=True)
                self.assertEqual(done.returncode, 0, f"{each.name}: {done.stderr}")
                found = subprocess.run([SYMBOLS, "-C", str(target)], check=True, timeout=TIMEOUT_S,
                                       capture_output=True, text=True).stdout
                self.assertIn("::N_NEON", found, each.name)


if __name__ == "__main__":
    TARGETS = sys.argv[1:]
    if shutil.which(COMPILER) is None:
        print(f"no {COMPILER}: deploy/install-deps brings it")
        sys.exit(77)
    os.environ["LC_ALL"] = "C"
    unittest.main(argv=sys.argv[:1])
