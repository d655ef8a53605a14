# SPDX-License-Identifier: Apache-2.0
"""The wheel of this build, installed into a clean virtual environment and used there.

WEIR_WHEEL names a wheel that was made on an older system, to test it on this one.
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
PATIENCE_S = 120
RANK = """
import sys
import torch, torch.distributed as dist
import weir
dist.init_process_group("gloo", init_method=sys.argv[1], world_size=2, rank=int(sys.argv[2]))
torch.manual_seed(0)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 1, bias=False))
state = weir.attach(model)
data = torch.full((1, 4), dist.get_rank() + 1.0)
model(data).sum().backward()
gradient = model.module.weight.grad
assert torch.equal(gradient, torch.full((1, 4), 1.5)), gradient
assert state.stats().bytes_sent > 0
print("rank", dist.get_rank(), weir.library_path())
dist.barrier()
"""
# This runs without torch, because Debian's torch loads rdma-core itself.
OPEN_VERBS = """
import ctypes, importlib.util, sys
spec = importlib.util.spec_from_file_location("lib", sys.argv[1])
lib = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lib)
options = lib.Options(struct_size=ctypes.sizeof(lib.Options), job=b"job", world=2, transport=b"verbs",
                      unauthenticated=1)
session, error = ctypes.c_void_p(), ctypes.create_string_buffer(512)
status = lib.library().weir_session_create(options, session, error, len(error))
print(status, error.value.decode())
"""


class WheelTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(
            tempfile.TemporaryDirectory(prefix="weir-wheel-test-")))
        # The environment has only the search path for programs.
        cls.environment = {key: os.environ[key] for key in ("PATH", "USE_LIBUV") if key in os.environ}
        cls.environment["HOME"] = str(cls.directory)
        cls.python = cls.directory / "venv" / "bin" / "python3"
        given = os.environ.get("WEIR_WHEEL")
        cls.wheel = pathlib.Path(given).resolve() if given else cls.make(cls.directory)
        cls.call(sys.executable, "-m", "venv", "--system-site-packages", cls.directory / "venv")
        cls.call(cls.python, "-m", "pip", "install", "--no-index", "--no-deps", cls.wheel)

    @classmethod
    def make(cls, out):
        return pathlib.Path(cls.call(sys.executable, ROOT / "deploy" / "wheel" / "make_wheel.py",
                                     "--build", BUILD, "--out", out).strip())

    @classmethod
    def call(cls, *command, **environment):
        done = subprocess.run([str(part) for part in command], timeout=PATIENCE_S, text=True,
                              capture_output=True, check=False, cwd=cls.directory,
                              env=dict(cls.environment, **environment))
        if done.returncode != 0:
            raise AssertionError(f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def packages(self):
        (directory,) = (self.directory / "venv" / "lib").glob("python3*/site-packages")
        return directory

    def assert_of_the_wheel(self, path):
        self.assertTrue(pathlib.Path(path).is_relative_to(self.directory / "venv"), path)

    def test_check_finds_the_library_of_the_wheel(self):
        for command in ((self.python, "-m", "weir"), (self.python.parent / "weir",)):
            lines = self.call(*command, "check").splitlines()
            findings = {line.split()[1].rstrip(":"): line for line in lines}
            for name in ("library", "transport", "torch", "nccl_plugin"):
                self.assertTrue(findings[name].startswith("ok"), lines)
            self.assert_of_the_wheel(findings["library"].split()[2].rstrip(","))
            self.assert_of_the_wheel(findings["nccl_plugin"].split()[2].rstrip(";"))

    def test_plug_in_for_nccl_loads_from_the_wheel(self):
        library = self.packages() / "weir/lib/libnccl-weir.so"
        self.call(self.python, "-c", "import ctypes, sys; ctypes.CDLL(sys.argv[1]).ncclEnvPlugin_v1", library)

    def test_two_ranks_average_gradients(self):
        script = self.directory / "rank.py"
        script.write_text(RANK, encoding="ascii")
        meeting = f"file://{self.directory / 'meeting'}"
        ranks = [subprocess.Popen([self.python, script, meeting, str(rank)], cwd=self.directory, text=True,
                                  env=self.environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
                 for rank in range(2)]
        self.addCleanup(lambda: [rank.kill() for rank in ranks])
        for number, rank in enumerate(ranks):
            shown = rank.communicate(timeout=PATIENCE_S)[0]
            self.assertEqual(rank.returncode, 0, shown)
            path = re.search(rf"^rank {number} (.+)$", shown, re.MULTILINE)[1]
            self.assert_of_the_wheel(path)

    def test_programs_start_with_the_libraries_of_the_wheel(self):
        for program in ("weir-agent", "weir-controller", "weirctl"):
            self.assertIn("0.1", self.call(self.python.parent / program, "--version"))

    def test_every_bundled_library_is_found_in_the_wheel(self):
        """Also where no environment, cache or system directory could offer one of that name."""
        packages = self.packages()
        copies = {path.name for path in (packages / "weir.libs").iterdir()}
        files = [*(packages / "weir/lib").iterdir(), *(packages / "weir/bin").iterdir(),
                 *(packages / "weir.libs").iterdir()]
        loaded = set()
        for file in files:
            for line in self.call("ldd", file).splitlines():
                name, _, path = (part.strip() for part in line.partition("=>"))
                self.assertNotIn("not found", path, f"{file}: {line}")
                if name in copies:
                    self.assert_of_the_wheel(path.split()[0])
                    loaded.add(name)
        self.assertEqual(loaded, copies)

    def test_without_rdma_core_only_the_transport_verbs_fails_and_says_why(self):
        broken = self.directory / "broken"
        broken.mkdir()
        for name in ("libibverbs.so.1", "librdmacm.so.1"):
            for other in broken.iterdir():
                other.unlink()
            (broken / name).touch()  # the loader gives up at the first file of that name
            shown = self.call(self.python, "-c", OPEN_VERBS, self.packages() / "weir/_lib.py",
                              LD_LIBRARY_PATH=str(broken))
            self.assertIn(f"transport verbs needs RDMA libraries, {name} was not found", shown)

    def test_library_brings_neither_grpc_nor_protobuf(self):
        library = self.packages() / "weir/lib/libweir.so"
        names = [line.split()[0] for line in self.call("ldd", library).splitlines()]
        self.assertEqual([name for name in names if "grpc" in name or "protobuf" in name], [])

    @unittest.skipIf("WEIR_WHEEL" in os.environ, "the wheel is of another system's build")
    def test_wheel_made_again_is_equal(self):
        self.assertEqual(self.make(self.directory / "again").read_bytes(), self.wheel.read_bytes())


if __name__ == "__main__":
    unittest.main()
