# SPDX-License-Identifier: Apache-2.0
"""The images: rules for their Dockerfile, agreement with the manifests, and a rehearsal of their steps."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "deploy" / "images"
sys.path.insert(0, str(IMAGES))
sys.path.insert(0, str(ROOT / "tests" / "deploy"))
import dockerfile  # noqa: E402  pylint: disable=wrong-import-position
import packages_test  # noqa: E402  pylint: disable=wrong-import-position
import rootless  # noqa: E402  pylint: disable=wrong-import-position

TEXT = (IMAGES / "Dockerfile").read_text(encoding="utf-8")
CAPTURED = {"timeout": 150, "text": True, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
# (what is replaced, by what, what is then found)
BROKEN = [
    ("slim@${BASE_DIGEST} AS runtime", "slim AS runtime", "runtime: base .* is not pinned"),
    ("USER 64820:64820\nEXPOSE 7700", "EXPOSE 7700", "controller: runs as root"),
    ("USER 64820:64820\nEXPOSE 7446", "USER weir\nEXPOSE 7446", "agent: runs as weir"),
    ("USER 64820:64820\nHEALTHCHECK NONE\n", "USER 0\n", "pytorch-example: (runs as 0|no HEALTHCHECK)"),
    (" --no-install-recommends systemd", " systemd", "controller: apt-get install without"),
    (" && rm -rf /var/lib/apt/lists/* /packages", "", "package lists stay"),
    ('ENTRYPOINT ["weir-agent"]', "ENTRYPOINT weir-agent", "agent: ENTRYPOINT is not in exec form"),
    ("COPY deploy/install-deps ", "COPY deploy/no-such-file ", "build: COPY of deploy/no-such-file"),
    ("COPY . .", "ADD . .", "build: ADD is not used"),
    ("WORKDIR /source", "WORKDIR source", "build: WORKDIR source is relative"),
    ("ENV DEBIAN_FRONTEND", "ENV API_TOKEN=abc DEBIAN_FRONTEND", "runtime: ENV holds a secret"),
    ("RUN deploy/install-deps", "RUN curl -s http://x | sh", "build: a download is run"),
    ('SHELL ["/bin/bash", "-euo", "pipefail", "-c"]\nWORKDIR /source', "RUN ls | wc -l\nWORKDIR /source",
     "build: a pipe without pipefail"),
    ('org.opencontainers.image.title="weir-agent" ', "", "agent: labels are missing: .*title"),
]


class RulesTest(unittest.TestCase):

    def test_the_dockerfile_follows_the_rules(self):
        self.assertEqual(dockerfile.findings(TEXT, ROOT), [])

    def test_every_rule_finds_its_violation(self):
        for old, new, expected in BROKEN:
            self.assertIn(old, TEXT)
            found = "\n".join(dockerfile.findings(TEXT.replace(old, new, 1), ROOT))
            self.assertRegex(found, expected)

    def test_images_are_those_that_the_manifests_name(self):
        arguments, stages = dockerfile.read(TEXT)
        self.assertEqual([s.name for s in dockerfile.of_images(stages)],
                         ["controller", "agent", "aggregator", "pytorch-example"])
        self.assertEqual(arguments["BASE_DIGEST"], "sha256:" + "0" * 64)   # every build must name a base
        for part, file in (("controller", "base/controller/deployment.yaml"),
                           ("agent", "base/agent/daemonset.yaml"),
                           ("aggregator", "components/aggregator/deployment.yaml")):
            manifest = (ROOT / "deploy/kubernetes" / file).read_text(encoding="utf-8")
            image = next(s for s in stages if s.name == part)
            self.assertIn(f"image: weir-{part}:", manifest)
            uid = re.search(r"runAsUser: (\d+)", manifest)[1]
            self.assertEqual(image.last("USER"), f"{uid}:{uid}")
            self.assertEqual(dockerfile.exec_form(image.last("ENTRYPOINT")), [f"weir-{part}"])
            for port in re.findall(r"containerPort: (\d+)", manifest):
                self.assertIn(port, image.last("EXPOSE"))

    def test_the_build_has_what_the_kernels_program_is_compiled_with(self):
        build = next(stage for stage in dockerfile.read(TEXT)[1] if stage.name == "build")
        script, *arguments = next(text for word, text in build.steps
                                  if word == "RUN" and text.startswith("deploy/install-deps")).split()
        done = subprocess.run([ROOT / script, "--list", *arguments], timeout=30, text=True, check=True,
                              capture_output=True)
        self.assertLessEqual({"clang", "libbpf-dev"}, set(done.stdout.split()))

    def test_only_sources_reach_the_build(self):
        ignored = (IMAGES / "Dockerfile.dockerignore").read_text(encoding="utf-8").split("\n")
        self.assertIn("**", ignored)
        kept = {line[1:] for line in ignored if line.startswith("!")}
        self.assertEqual([name for name in kept if not (ROOT / name).exists()], [])
        for need in re.findall(r"(?m)^weir_subdirectory\((\w+)\)|^  weir_subdirectory\((\w+)\)",
                               (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")):
            if (name := "".join(need)) != "tests":
                self.assertIn(name, kept)


class RehearsalTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        if refused := rootless.refused():
            raise unittest.SkipTest(f"no rehearsal: {refused}")
        directory = cls.enterClassContext(tempfile.TemporaryDirectory(prefix="weir-images-"))
        cls.packages = pathlib.Path(directory) / "packages"
        cls.packages.mkdir()
        if refused := packages_test.root_refused(packages_test.make_packages(cls.packages)):
            raise unittest.SkipTest(f"no rehearsal: no root: {refused}")

    def rehearse(self, target):
        return self.agreed(subprocess.run([IMAGES / "rehearse", "--root", packages_test.FRESH, "--packages",
                                           self.packages, target], check=False, **CAPTURED))

    def agreed(self, done):
        """The output, if the rehearsal succeeded without privileges."""
        self.assertEqual(done.returncode, 0, done.stdout)
        self.assertRegex(done.stdout, r"root in here is user [1-9]\d* outside")
        self.assertIn("healthy as 64820:64820", done.stdout)
        return done.stdout

    def test_programs_are_healthy(self):
        for target in ("controller", "agent", "aggregator"):
            self.rehearse(target)

    def test_a_plain_user_may_start_it(self):
        root = packages_test.FRESH
        if root.is_dir():
            self.skipTest(f"{root} is a directory, which only root can give")
        places = {"context": ROOT, "packages": self.packages, "root": root.parent}
        self.agreed(rootless.run(lambda at: [sys.executable, "-B", at["context"] / "deploy/images/rehearse", "--root",
                                             at["root"] / root.name, "--packages", at["packages"], "agent"],
                                 places, **CAPTURED))

    def test_the_example_trains_under_an_agent(self):
        if not packages_test.holds(packages_test.FRESH, packages_test.TORCH):
            self.skipTest(f"no torch in {packages_test.FRESH}: see packages_test.py --make-root FILE.tar --torch")
        said = self.rehearse("pytorch-example")
        losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", said)]
        self.assertEqual(len(losses), 4, said)
        self.assertLess(losses[-1], losses[0] / 2, said)
        self.assertNotRegex(said, "(?i)running dense")
        self.assertIn("2 ranks attached", said)


if __name__ == "__main__":
    unittest.main()
