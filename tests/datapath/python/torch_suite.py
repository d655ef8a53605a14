# SPDX-License-Identifier: Apache-2.0
"""PyTorch's own distributed test cases over the process group "weir", as its repository runs them.

torch_suite.py [CASE...]: the given ones, or all of collectives, messages and DDP whose names have
none of the words of other hardware. What a case needs and a machine lacks, it skips itself.

Many cases run only for backends that they name. They run again under that name (BACKEND=gloo, then
mpi), with Weir as the group all the same; without those that test the named backend's own features.
"""
import collections
import os
import re
import shutil
import subprocess
import sys
import tempfile
import types
import unittest

os.environ.setdefault("BACKEND", "weir")
os.environ.setdefault("DISTRIBUTED_TESTS_DEFAULT_TIMEOUT", "60")  # of a case
os.environ.setdefault("WORLD_SIZE", "3")
os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
os.environ.setdefault("MASTER_PORT", "29533")
made = None
if "TEMP_DIR" not in os.environ:  # ranks inherit it
    made = os.environ["TEMP_DIR"] = tempfile.mkdtemp()

try:
    import expecttest  # noqa: F401: torch's test helpers derive from its TestCase, and need no more
except ImportError:
    sys.modules["expecttest"] = types.ModuleType("expecttest")
    sys.modules["expecttest"].TestCase = unittest.TestCase
    sys.modules["expecttest"].ACCEPT = False

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
import weir  # noqa: E402,F401: registers the backend, in every rank
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

for feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[feature] = DistTestCases.backend_feature[feature] | {"weir"}

from torch.testing._internal.distributed import distributed_test  # noqa: E402

init_process_group = dist.init_process_group


def _init_weir(*arguments, backend=None, **options):
    """The function that the cases call: the group is Weir's, whatever backend they name."""
    return init_process_group(*arguments, backend="weir", **options)


dist.init_process_group = _init_weir

# Words by which the reasons of cases name those backends.
KNOWN_AS = {"gloo": "gloo|does not support DDP comm", "mpi": "MPI"}
OF_GLOO = ("monitored_barrier", "get_backend", "Backend_enum")
OF_PICKLE = ("test_gather_object",)  # expect words with which Python before 3.12 refuses to pickle
ELSEWHERE = ("cuda", "nccl", "multigpu", "gpu", "profiler", "sparse", "timeout")


class TestWeir(distributed_test.TestDistBackend,
               distributed_test.DistributedTest._DistTestBase):
    """One process per rank and case."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


def wanted(name):
    """Whether a case is not for other hardware or backends by its name."""
    return not any(word in name for word in ELSEWHERE)


def report(result):
    """Prints the counts of a run."""
    bad = result.failures + result.errors
    name = os.environ["BACKEND"]
    print(f"torch {torch.__version__}, as {name}: of {result.testsRun} cases "
          f"{result.testsRun - len(result.skipped) - len(bad)} passed, {len(bad)} failed, "
          f"{len(result.skipped)} skipped themselves")
    for case, _ in bad:
        print(f"  failed: {case.id().split('.')[-1]}")
    for reason, count in collections.Counter(reason for _, reason in result.skipped).most_common():
        print(f"  skipped {count}: {reason}")
    sys.stdout.flush()


def run_again(skipped, known):
    """Runs the cases that named other backends than Weir as one of those. False: some failed."""
    names = [case.id().split(".")[-1] for case, reason in skipped
             if re.search(KNOWN_AS[known], reason)]
    names = [name for name in names if not any(word in name for word in OF_GLOO + OF_PICKLE)]
    if not names:
        return True
    environment = {**os.environ, "BACKEND": known}
    return subprocess.run([sys.executable, __file__, *names], env=environment, check=False,
                          timeout=60.0 * len(names)).returncode == 0


def main(names):
    """Prints every case with its result, and the counts; 1 when any failed or none ran."""
    if not dist.is_available():
        print("torch has no distributed package")
        return 0
    loader = unittest.TestLoader()
    cases = names or [n for n in loader.getTestCaseNames(TestWeir) if wanted(n)]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(map(TestWeir, cases)))
    report(result)
    good = result.wasSuccessful()
    if result.testsRun == len(result.skipped) and os.environ["BACKEND"] == "weir":
        print("none ran")
        good = False
    if os.environ["BACKEND"] == "weir":
        good = all([run_again(result.skipped, known) for known in KNOWN_AS]) and good
    return 0 if good else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)
