"""PyTorch's own distributed test cases over the process group "weir", as its repository runs them.

torch_suite.py [CASE...]: those whose names have none of the words of other hardware, or the given
ones. What a case needs and a machine lacks, it skips itself.
"""
import os
import shutil
import sys
import tempfile
import types
import unittest

os.environ.setdefault("BACKEND", "weir")
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

import torch.distributed as dist  # noqa: E402
import weir  # noqa: E402,F401: registers the backend, in every rank
from torch.testing._internal.common_distributed import DistTestCases  # noqa: E402

for feature in ("ddp", "subgroup", "plugin"):
    DistTestCases.backend_feature[feature] = DistTestCases.backend_feature[feature] | {"weir"}

from torch.testing._internal.distributed import distributed_test  # noqa: E402

CASES = ("all_gather", "all_reduce", "all_to_all", "allgather", "average", "barrier", "broadcast",
         "gather", "irecv", "isend", "new_subgroups", "reduce", "scatter", "send_recv")
ELSEWHERE = ("cuda", "nccl", "multigpu", "gpu", "profiler", "sparse", "timeout")


class TestWeir(distributed_test.TestDistBackend,
               distributed_test.DistributedTest._DistTestBase):
    """One process per rank and case."""

    def setUp(self):
        super().setUp()
        self._spawn_processes()


def wanted(name):
    """Collectives and messages on CPU tensors, and DDP on the CPU."""
    words = name[len("test_"):]
    if any(word in name for word in ELSEWHERE):
        return False
    return words.startswith(CASES) or words in ("DistributedDataParallelCPU",
                                                "DistributedDataParallelCPU_grad_is_view")


def main(names):
    """Prints every case with its result; 1 when any failed or none ran."""
    if not dist.is_available():
        print("torch has no distributed package")
        return 0
    loader = unittest.TestLoader()
    cases = names or [n for n in loader.getTestCaseNames(TestWeir) if wanted(n)]
    result = unittest.TextTestRunner(verbosity=2).run(unittest.TestSuite(map(TestWeir, cases)))
    ran = result.testsRun - len(result.skipped)
    print(f"{ran} cases ran, {len(result.skipped)} skipped")
    return 0 if result.wasSuccessful() and ran > 0 else 1


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    finally:
        if made:
            shutil.rmtree(made, ignore_errors=True)
