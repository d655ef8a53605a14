# SPDX-License-Identifier: Apache-2.0
"""The images: rules for their Dockerfile, agreement with the manifests; built, and run as confined containers."""
import hashlib
import json
import pathlib
import re
import secrets
import subprocess
import sys
import time
import unittest

ROOT = pathlib.Path(__file__).resolve().parents[2]
IMAGES = ROOT / "deploy" / "images"
sys.path.insert(0, str(IMAGES))
sys.path.insert(0, str(ROOT / "tests" / "deploy"))
import dockerfile  # noqa: E402  pylint: disable=wrong-import-position
import debian_test  # noqa: E402  pylint: disable=wrong-import-position
import engine  # noqa: E402  pylint: disable=wrong-import-position
import packages_test  # noqa: E402  pylint: disable=wrong-import-position

TEXT = (IMAGES / "Dockerfile").read_text(encoding="utf-8")
USER = 64820
WEIRCTL = packages_test.BUILD / "controller" / "cli" / "weirctl"
ENDS_WITHIN_S = 5   # a container, after SIGTERM
# (what is replaced, by what, what is then found)
BROKEN = [
    ("slim@${BASE_DIGEST} AS runtime", "slim AS runtime", "runtime: base .* is not pinned"),
    ("USER 64820:64820\nEXPOSE 7700", "EXPOSE 7700", "controller: runs as root"),
    ("USER 64820:64820\nVOLUME [\"/run", "USER weir\nVOLUME [\"/run", "agent: runs as weir"),
    ("USER 64820:64820\nHEALTHCHECK NONE\n", "USER 0\n", "pytorch-example: (runs as 0|no HEALTHCHECK)"),
    (" --no-install-recommends curl", " curl", "controller: apt-get install without"),
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
TOKEN = secrets.token_hex(16)
# One certificate serves every container; its holder is the agent of any node.
TOKENS = (f"tester viewer sha256:{hashlib.sha256(TOKEN.encode()).hexdigest()}\n"
          "agents agent cert:localhost nodes=*\n")


def certificates(folder, names):
    """A CA and a certificate for these names, as a secret of type kubernetes.io/tls holds them."""
    folder.mkdir(parents=True)
    made = [["-keyout", "ca.key", "-out", "ca.crt", "-subj", "/CN=weir-ca"],
            ["-keyout", "tls.key", "-out", "tls.crt", "-subj", "/CN=weir", "-CA", "ca.crt", "-CAkey", "ca.key", "-addext",
             f"subjectAltName={names}"]]
    for words in made:
        subprocess.run(["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
                        "-nodes", "-days", "1", *words], cwd=folder, check=True, timeout=30, capture_output=True)
    (folder / "ca.key").unlink()
    (folder / "tls.key").chmod(0o644)


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

    def test_only_sources_reach_the_build(self):
        ignored = (IMAGES / "Dockerfile.dockerignore").read_text(encoding="utf-8").split("\n")
        self.assertIn("**", ignored)
        kept = {line[1:] for line in ignored if line.startswith("!")}
        self.assertEqual([name for name in kept if not (ROOT / name).exists()], [])
        for need in re.findall(r"(?m)^weir_subdirectory\((\w+)\)|^  weir_subdirectory\((\w+)\)",
                               (ROOT / "CMakeLists.txt").read_text(encoding="utf-8")):
            if (name := "".join(need)) != "tests":
                self.assertIn(name, kept)


class ContainersTest(unittest.TestCase):
    """The images as they are built from this build's packages."""

    @classmethod
    def setUpClass(cls):
        if refused := engine.refused():
            raise unittest.SkipTest(f"no containers: {refused}")
        cls.engine = engine.Engine()
        cls.addClassCleanup(cls.engine.close)
        try:
            cls.engine.make_base()
        except debian_test.Refused as refused:
            raise unittest.SkipTest(f"no containers: {refused}") from refused
        context = cls.engine.directory / "context"
        (context / "packages").mkdir(parents=True)
        packages_test.make_packages(context / "packages")
        for target in ("controller", "agent", "aggregator"):
            cls.engine.build(target, "--build-context", f"build={context}")
        cls.engine.podman("network", "create", "--subnet", "10.90.7.0/24", "weir")
        cls.secrets = cls.engine.directory / "secrets"
        certificates(cls.secrets / "tls", "IP:127.0.0.1,DNS:localhost,DNS:controller")
        for name, line in (("tokens", TOKENS), ("token", TOKEN + "\n")):
            (cls.secrets / name).mkdir()
            (cls.secrets / name / name).write_text(line, encoding="ascii")

    def mounted(self, *names):
        """Options that mount secrets where the images and manifests have them."""
        return [f"--volume={self.secrets / name}:/etc/weir/{name}:ro" for name in names]

    def start(self, name, image, *words, options=()):
        self.engine.start(name, image, *words, options=["--network=weir", *options])
        self.addCleanup(self.engine.podman, "rm", "--force", "--time", "0", "--volumes", name)
        self.engine.until_healthy(name)

    def start_controller(self):
        """The default command, with certificates and tokens."""
        self.start("controller", "controller", options=[*self.mounted("tls", "tokens"), "--publish=127.0.0.1::7700",
                                                        "--publish=127.0.0.1::7780"])

    def start_agent(self, name):
        self.start(name, "agent", f"--node={name}", "--address=127.0.0.1", "--controller=controller:7700",
                   "--ca=/etc/weir/tls/ca.crt", "--cert=/etc/weir/tls/tls.crt", "--key=/etc/weir/tls/tls.key",
                   "--health=127.0.0.1:7791", options=self.mounted("tls"))

    def curl(self, *words):
        return self.engine.here("curl", "-sS", "-m", "5", "--cacert", self.secrets / "tls" / "ca.crt", *words).stdout

    def weirctl(self, *words):
        tls = self.secrets / "tls"
        return self.engine.here(WEIRCTL, "--controller", f"127.0.0.1:{self.engine.port('controller', 7700)}", "--ca",
                                tls / "ca.crt", "--cert", tls / "tls.crt", "--key", tls / "tls.key", "--token-file",
                                self.secrets / "token" / "token", *words).stdout

    def test_default_commands_listen_where_the_images_say_and_are_confined(self):
        self.start_controller()
        self.start("agent", "agent")
        self.start("aggregator", "aggregator")
        for name in ("controller", "agent", "aggregator"):
            exposed = json.loads(self.engine.podman("image", "inspect", f"weir-{name}:0.1.0", "--format",
                                                    "{{json .Config.ExposedPorts}}").stdout) or {}
            self.assertEqual(self.engine.listening(name), set(exposed), name)
            pid = self.engine.state(name, ".State.Pid")
            status = dict(line.split(":\t", 1) for line in
                          pathlib.Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines())
            self.assertEqual(status["Uid"].split(), [str(USER)] * 4, name)
            self.assertEqual({int(status[of], 16) for of in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")}, {0})
            self.assertEqual(status["NoNewPrivs"], "1", name)
            refused = self.engine.podman("exec", name, "touch", "/usr/bin/written", check=False)
            self.assertIn("Read-only file system", refused.stdout)

    def test_a_stopped_process_is_not_healthy_and_a_signal_ends_it_in_time(self):
        self.start_controller()
        self.start("agent", "agent")
        self.start("aggregator", "aggregator")
        for name in ("controller", "agent", "aggregator"):
            self.engine.podman("kill", "--signal", "STOP", name)
            self.assertNotEqual(self.engine.podman("healthcheck", "run", name, check=False).returncode, 0, name)
            self.engine.podman("kill", "--signal", "CONT", name)
            self.engine.until_healthy(name)
            began = time.monotonic()
            self.engine.podman("stop", "--time", "20", name)
            self.assertLess(time.monotonic() - began, ENDS_WITHIN_S, name)
            self.assertEqual(self.engine.state(name, ".State.ExitCode"), "0", self.engine.logs(name))

    def test_published_ports_of_the_controller_answer_and_agents_reach_it(self):
        self.start_controller()
        self.start_agent("node-a")
        self.start_agent("node-b")
        web = f"https://127.0.0.1:{self.engine.port('controller', 7780)}"
        self.assertEqual(self.curl(f"{web}/healthz").strip(), "ok")
        self.assertIn("node-a", self.curl("-H", f"Authorization: Bearer {TOKEN}", f"{web}/v1/nodes"))
        end = time.monotonic() + 20
        while len(re.findall(r"node-[ab] .*\bconnected\b", nodes := self.weirctl("get", "nodes"))) != 2:
            self.assertLess(time.monotonic(), end, nodes)
            time.sleep(0.2)

    def test_the_controller_names_the_file_that_nobody_mounted(self):
        done = self.engine.podman("run", "--rm", *engine.CONFINED, "weir-controller:0.1.0", check=False)
        self.assertNotEqual(done.returncode, 0)
        self.assertRegex(done.stdout, "cannot read .*/etc/weir/t")

    def test_published_ports_of_the_aggregator_answer(self):
        address = "10.90.7.9"
        self.start("aggregator", "aggregator", f"--listen={address}", "--http=0.0.0.0:9466",
                   "--listen-health=127.0.0.1:9467", "--token-file=/etc/weir/token/token", "--tls-cert=/etc/weir/tls/tls.crt",
                   "--tls-key=/etc/weir/tls/tls.key",
                   options=[f"--ip={address}", *self.mounted("token", "tls"), "--publish=127.0.0.1::9466",
                            "--publish=127.0.0.1::48864/udp"])
        self.assertEqual(self.engine.listening("aggregator"), {"9466/tcp", "48864/udp"})
        lease = {"job": "train", "mode": "sum", "slots": 8, "workers": ["10.90.7.1:40000", "10.90.7.2:40000"]}
        web = f"https://127.0.0.1:{self.engine.port('aggregator', 9466)}"
        answer = json.loads(self.curl("-H", f"Authorization: Bearer {TOKEN}", "-d", json.dumps(lease),
                                      f"{web}/v1/leases"))
        self.assertEqual(answer["address"], f"{address}:48864")


if __name__ == "__main__":
    engine.enter(engine.refused())
    unittest.main()
