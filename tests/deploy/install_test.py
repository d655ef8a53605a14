# SPDX-License-Identifier: Apache-2.0
"""`cmake --install` into a scratch prefix, and what builds and runs against it alone."""
import gzip
import os
import pathlib
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
EXAMPLE = ROOT / "deploy" / "examples" / "c" / "all_reduce.c"
PATIENCE_S = 60
PROJECT = """cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(Weir {version} REQUIRED)
add_executable(example {source})
target_link_libraries(example PRIVATE Weir::weir)
"""


class InstallTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(
            tempfile.TemporaryDirectory(prefix="weir-install-")))
        cls.prefix = cls.directory / "prefix"
        environment = {key: value for key, value in os.environ.items()
                       if not key.startswith(("WEIR_", "LD_LIBRARY", "PYTHONPATH", "DESTDIR"))}
        cls.environment = environment
        subprocess.run(["cmake", "--install", BUILD, "--prefix", cls.prefix], check=True,
                       timeout=PATIENCE_S, stdout=subprocess.DEVNULL, env=environment)
        cls.library = cls.one("libweir.so")

    @classmethod
    def one(cls, name):
        """The only installed file of that name."""
        found = list(cls.prefix.rglob(name))
        if len(found) != 1:
            raise AssertionError(f"expected one {name}, found {found}")
        return found[0]

    def run_here(self, *command, fails=False, **environment):
        done = subprocess.run([str(part) for part in command], timeout=PATIENCE_S, text=True,
                              capture_output=True, check=False, cwd=self.directory,
                              env=dict(self.environment, **environment))
        if not fails:
            self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout + (done.stderr if fails else "")

    def test_library_has_its_soname_and_exports_nothing_else(self):
        dynamic = self.run_here("readelf", "-d", self.library)
        self.assertIn("Library soname: [libweir.so.0]", dynamic)
        self.assertNotIn("RUNPATH", dynamic)
        self.assertEqual(os.readlink(self.library), "libweir.so.0")
        symbols = [line.split()[-1] for line in
                   self.run_here("nm", "-D", "--defined-only", self.library).splitlines()]
        self.assertIn("weir_all_reduce", symbols)
        self.assertEqual([s for s in symbols if not s.startswith("weir_")], [])

    def test_plug_in_for_nccl_exports_its_tables_and_nothing_else(self):
        library = self.one("libnccl-weir.so")
        self.assertNotIn("RUNPATH", self.run_here("readelf", "-d", library))
        symbols = [line.split()[-1] for line in
                   self.run_here("nm", "-D", "--defined-only", library).splitlines()]
        self.assertEqual(sorted(symbols), [
            "ncclEnvPlugin_v1", "ncclEnvPlugin_v2", "ncclProfiler_v4", "ncclProfiler_v5",
            "ncclProfiler_v6", "ncclTunerPlugin_v4", "ncclTunerPlugin_v5", "ncclTunerPlugin_v6"])

    @unittest.skipIf(shutil.which("pkg-config") is None, "pkg-config is not installed")
    def test_example_builds_by_pkg_config(self):
        path = str(self.one("weir.pc").parent)
        flags = self.run_here("pkg-config", "--cflags", "--libs", "weir", PKG_CONFIG_PATH=path).split()
        self.run_here("cc", "-std=gnu11", EXAMPLE, *flags, "-o", self.directory / "by_pkg_config")
        shown = self.run_here(self.directory / "by_pkg_config", LD_LIBRARY_PATH=str(self.library.parent))
        self.assertIn("rank", shown)
        self.assertIn("libweir.so.0", self.run_here("readelf", "-d", self.directory / "by_pkg_config"))

    def test_example_builds_by_find_package(self):
        project = self.directory / "project"
        project.mkdir()
        version = self.run_here("cmake", "-P", self.version_script()).strip()
        lists = project / "CMakeLists.txt"
        lists.write_text(PROJECT.format(version=version, source=EXAMPLE), encoding="ascii")
        configure = ("cmake", "-S", project, "-B", project / "build", f"-DCMAKE_PREFIX_PATH={self.prefix}")
        self.run_here(*configure)
        self.run_here("cmake", "--build", project / "build")
        self.assertIn("rank", self.run_here(project / "build" / "example"))
        lists.write_text(PROJECT.format(version="9.1", source=EXAMPLE), encoding="ascii")
        self.assertIn("requested version", self.run_here(*configure, fails=True))

    def version_script(self):
        script = self.directory / "version.cmake"
        script.write_text(f"include({self.one('WeirConfigVersion.cmake')})\n"
                          "execute_process(COMMAND echo ${PACKAGE_VERSION})\n", encoding="ascii")
        return script

    def test_python_package_finds_the_library_beside_it(self):
        code = "import weir; print(weir.library_path(), weir.version())"
        try:
            subprocess.run(["/usr/bin/python3", "-c", "import torch"], check=True, timeout=PATIENCE_S,
                           stderr=subprocess.DEVNULL)
        except subprocess.CalledProcessError:
            self.skipTest("torch is not installed")
        packages = self.prefix / "lib" / "python3" / "dist-packages"
        path, version = self.run_here("/usr/bin/python3", "-c", code, PYTHONPATH=str(packages)).split()
        self.assertEqual(pathlib.Path(path), self.library.parent / "libweir.so.0")
        self.assertEqual(version, self.run_here("cmake", "-P", self.version_script()).strip())

    def test_programs_come_with_page_completion_unit_and_configuration(self):
        programs = sorted(path.name for path in (self.prefix / "bin").glob("*"))
        if not programs:
            self.skipTest("built without the control plane")
        self.assertEqual(programs, ["weir-agent", "weir-aggregator", "weir-controller", "weirctl"])
        for program in programs:
            page = gzip.decompress(self.one(f"{program}.1.gz").read_bytes())
            self.assertIn(program.encode(), page)
            for name in (f"_{program}", f"{program}.fish"):
                self.assertIn("__complete", self.one(name).read_text(encoding="utf-8"))
            self.assertTrue((self.prefix / "share/bash-completion/completions" / program).is_file())
            self.assertIn("0.1", self.run_here(self.prefix / "bin" / program, "--version"))
        for path in ("lib/systemd/system/weir-agent.service", "lib/systemd/system/weir-controller.service",
                     "lib/sysusers.d/weir.conf", "lib/tmpfiles.d/weir.conf", "etc/weir/agent.env",
                     "etc/weir/controller.env", "etc/weir/aggregator.env", "etc/weir/policies/default.yaml",
                     "share/weir/grafana/weir-fleet.json", "share/weir/prometheus/alerts.yaml"):
            self.assertTrue((self.prefix / path).is_file(), path)
        self.assertIn("valid policy", self.run_here(self.prefix / "bin" / "weirctl", "validate", "-f",
                                                    self.prefix / "etc/weir/policies/default.yaml"))


if __name__ == "__main__":
    unittest.main()
