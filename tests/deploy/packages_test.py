# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: made by CPack and judged by lintian. units_test.py installs them."""
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
PACKAGES = ["libweir-dev", "libweir0", "python3-weir", "weir-agent", "weir-aggregator", "weir-common",
            "weir-controller", "weirctl"]
PATIENCE_S = 120
# The maintainer's address is a placeholder until somebody publishes packages (WEIR_PACKAGE_MAINTAINER).
# CPack calls ldconfig from scripts of its own beside the trigger that we give; only scripts without
# content would keep it from that.
SUPPRESSED = "bogus-mail-host,maintscript-calls-ldconfig"


def run(*command, **more):
    return subprocess.run([str(part) for part in command], text=True, check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                          **{"timeout": PATIENCE_S, **more})


def make_packages(directory):
    done = run("cpack", "-G", "DEB", "--config", BUILD / "CPackConfig.cmake", "-B", directory,
               cwd=directory, env={k: v for k, v in os.environ.items() if k != "DESTDIR"})
    if done.returncode != 0:
        raise AssertionError(done.stdout)
    shutil.rmtree(directory / "_CPack_Packages", ignore_errors=True)
    return {path.name.split("_")[0]: path for path in sorted(directory.glob("*.deb"))}


class PackagesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.directory = pathlib.Path(cls.enterClassContext(
            tempfile.TemporaryDirectory(prefix="weir-packages-")))
        cls.packages = make_packages(cls.directory)

    def field(self, package, name):
        return run("dpkg-deb", "-f", self.packages[package], name).stdout.strip()

    def test_every_part_has_its_package_and_no_file_has_two(self):
        self.assertEqual(sorted(self.packages), PACKAGES)
        owner = {}
        for name, path in self.packages.items():
            for line in run("dpkg-deb", "-c", path).stdout.splitlines():
                mode, file = line.split()[0], line.split(" ./", 1)[1].split(" -> ")[0]
                if mode.startswith("d"):
                    continue
                self.assertNotIn(file, owner)
                owner[file] = name
                if file.startswith("etc/"):
                    conffiles = run("dpkg-deb", "-I", path, "conffiles").stdout.split()
                    self.assertIn("/" + file, conffiles)
        for file, name in (("usr/bin/weirctl", "weirctl"), ("usr/include/weir.h", "libweir-dev"),
                           ("etc/weir/agent.env", "weir-agent")):
            self.assertEqual(owner.get(file), name)

    def test_dependencies_are_those_of_the_files(self):
        self.assertRegex(self.field("weir-agent", "Depends"), r"weir-common \(= .*libgrpc\+\+")
        self.assertNotRegex(self.field("libweir0", "Depends"), r"grpc|protobuf")
        self.assertRegex(self.field("libweir-dev", "Depends"), r"^libweir0 \(= [\d.]+\)$")
        self.assertIn("python3-torch", self.field("python3-weir", "Depends"))
        self.assertEqual(self.field("python3-weir", "Architecture"), "all")
        changelog = (ROOT / "deploy" / "packages" / "debian" / "changelog").read_text(encoding="utf-8")
        self.assertEqual(changelog.split()[1], f"({self.field('weirctl', 'Version')})")

    @unittest.skipIf(shutil.which("lintian") is None, "lintian is not installed")
    def test_lintian_finds_no_error(self):
        done = run("lintian", "--fail-on", "error", "--suppress-tags", SUPPRESSED, "--allow-root",
                   *self.packages.values())
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertNotRegex(done.stdout, r"(?m)^[EW]: ")


def needs(packages, present):
    """The names of what these packages depend on, other than each other, and of what is present already."""
    found = set(present)
    for path in packages.values():
        for group in filter(None, run("dpkg-deb", "-f", path, "Depends").stdout.strip().split(", ")):
            names = [re.match(r"[^ (:]+", name)[0] for name in group.split(" | ")]
            if not found & set(names) and not set(PACKAGES) & set(names):
                found.add(names[0])
    return sorted(found)


if __name__ == "__main__":
    unittest.main()
