# SPDX-License-Identifier: Apache-2.0
"""Jobs in containers: the shipped examples of jobs as a cluster runs them, in the images.

The images hold the packages of this build. WEIR_COMPILE_IMAGES=1 compiles them in the images' stage `build` instead, which
takes ten to thirty minutes on two cores without a cache.

podman stands for the cluster: it gives every pod of an example the name, the address, the variables, the mounts and
the limits that its manifest asks for, and runs the manifest's command as it is written.
"""
import json
import os
import pathlib
import re
import secrets
import time
import unittest

import yaml

import debian_test
import engine
import packages_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "deploy" / "kubernetes" / "examples"
BUILDING_S, JOB_S = 3000, 240
NODE = "10.90.8.2"   # the agent's address, which pods know as that of their node
NAMESPACE = "research"   # of the examples' pods
TOKEN = secrets.token_hex(16)


def example(name, kind):
    """The object of this kind in a shipped example."""
    items = yaml.safe_load_all((EXAMPLES / name).read_text(encoding="utf-8"))
    return next(item for item in items if item["kind"] == kind)


def pods_of_job(name, subdomain, spec):
    """(hostname, other names, pod, index) of the pods of an indexed Job, as its controller names them."""
    for index in range(spec["completions"]):
        host = f"{name}-{index}"
        yield host, f"{host}.{subdomain}", spec["template"]["spec"], index


class JobsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        if not os.environ.get("WEIR_JOBS_IN_CONTAINERS"):
            raise unittest.SkipTest("not asked for: jobs in containers take five minutes; set WEIR_JOBS_IN_CONTAINERS=1")
        if refused := engine.refused():
            raise unittest.SkipTest(f"no containers: {refused}")
        cls.engine = engine.Engine()
        cls.addClassCleanup(cls.engine.close)
        try:
            cls.engine.make_base()
        except debian_test.Refused as refused:
            raise unittest.SkipTest(f"no containers: {refused}") from refused
        cls.build_images()
        cls.engine.podman("network", "create", "--subnet", "10.90.8.0/24", "--disable-dns", "weir")
        (cls.engine.directory / "token").write_text(TOKEN + "\n", encoding="ascii")

    @classmethod
    def build_images(cls):
        """Puts packages into the images."""
        context = cls.engine.directory / "context"
        (context / "packages").mkdir(parents=True)
        if os.environ.get("WEIR_COMPILE_IMAGES"):
            cls.compile_packages(context)
        else:
            print("the images hold the packages of this build; WEIR_COMPILE_IMAGES=1 compiles them in the stage `build`")
            packages_test.make_packages(context / "packages")
        for target in ("controller", "agent"):
            cls.engine.build(target, "--build-context", f"build={context}")
        cls.engine.build("pytorch-example", "--build-context", f"build={context}", limit_s=900,
                         name="registry.example.com/weir/pytorch-example:0.1.0")

    @classmethod
    def compile_packages(cls, context):
        """As somebody with nothing but the source: the stage `build` compiles, with a cache that later runs find."""
        cache = pathlib.Path(os.environ.get("WEIR_IMAGES_CCACHE", ROOT / ".cache" / "ccache-images"))
        cache.mkdir(parents=True, exist_ok=True)
        cls.engine.build("build", "--volume", f"{cache}:/root/.cache/ccache", limit_s=BUILDING_S)
        cls.engine.podman("create", "--name", "packages", "weir-build:0.1.0", "true")
        cls.engine.podman("cp", "packages:/packages", context)
        cls.engine.podman("rm", "packages")

    def setUp(self):
        """A cluster of one node: a controller, an agent and the directory with its socket."""
        self.engine.podman("volume", "create", "sockets")
        self.addCleanup(self.engine.podman, "volume", "rm", "sockets")
        self.start("controller", "controller", "--insecure", "--listen-grpc=0.0.0.0:7700", "--state=:memory:",
                   "--policy=/etc/weir/policies", address="10.90.8.3")
        self.start("agent", "agent", "--node=node-a", f"--address={NODE}", "--controller=10.90.8.3:7700", "--insecure",
                   "--socket=/run/weir/agent.sock", "--health=127.0.0.1:7791", f"--listen-ranks={NODE}:7447",
                   "--unprotected=probes,ranks",
                   "--token-file=/etc/weir/token", address=NODE,
                   options=["--volume=sockets:/run/weir",
                            f"--volume={self.engine.directory / 'token'}:/etc/weir/token:ro"])

    def start(self, name, image, *words, address, options=()):
        self.engine.start(name, image, *words, options=["--network=weir", f"--ip={address}", *options])
        self.addCleanup(self.engine.podman, "rm", "--force", "--time", "0", "--volumes", name)
        self.engine.until_healthy(name)

    def run_pod(self, number, host, names, container, mounted=(), variables=()):
        """Starts a pod's only container; its name."""
        known = {"status.hostIP": NODE, "metadata.namespace": NAMESPACE, **dict(variables)}
        environment = {}
        for variable in container.get("env", []):
            source = variable.get("valueFrom", {})
            value = variable.get("value") or known[source.get("fieldRef", source.get("secretKeyRef", {})).get(
                "fieldPath", "secret")]
            environment[variable["name"]] = re.sub(r"\$\((\w+)\)", lambda m: environment[m[1]], value)
        environment.update({k: v for k, v in known.items() if k.startswith("PET_")})
        command = [re.sub(r"\$\((\w+)\)", lambda m: environment[m[1]], word) for word in container["command"]]
        limits = container.get("resources", container.get("resourcesPerNode"))["limits"]
        name = f"pod-{number}"
        addresses = [f"--add-host={other}:10.90.8.{10 + index}" for index, other in enumerate(names)]
        self.engine.podman(
            "run", "--detach", "--name", name, "--hostname", host, "--network=weir", f"--ip=10.90.8.{10 + number}",
            "--no-hosts=false", *addresses, "--cap-drop=all", "--security-opt=no-new-privileges",
            f"--cpus={limits['cpu']}", f"--memory={limits['memory'].replace('Gi', 'g')}", "--health-interval=disable",
            *[f"--env={k}={v}" for k, v in environment.items()], *mounted, container["image"], *command)
        self.addCleanup(self.engine.podman, "rm", "--force", "--time", "0", name)
        return name

    def trained(self, names, namespace=NAMESPACE):
        """Waits for the end of all pods: rank 0 learnt, the job is known by its namespace and a decision was made."""
        end = time.monotonic() + JOB_S
        while any(self.engine.state(name, ".State.Running") == "true" for name in names):
            self.assertLess(time.monotonic(), end, "\n".join(map(self.engine.logs, names)))
            time.sleep(0.5)
        said = {name: self.engine.logs(name) for name in names}
        for name in names:
            self.assertEqual(self.engine.state(name, ".State.ExitCode"), "0", said[name])
        losses = [float(loss) for loss in re.findall(r"step \d+: loss ([\d.]+)", said[names[0]])]
        self.assertLess(losses[-1], losses[0] / 2, said[names[0]])
        self.assertNotRegex("".join(said.values()), "(?i)running dense")
        self.assertEqual(len(re.findall(r"(?m) attached$", self.engine.logs("agent"))), 2,
                         self.engine.logs("agent"))
        decisions = self.engine.podman("exec", "controller", "weirctl", "get", "decisions").stdout
        self.assertIn("train", decisions)
        job = json.loads(self.engine.podman("exec", "controller", "weirctl", "get", "job", "train", "-o", "json").stdout)
        self.assertEqual(job.get("labels", {}).get("namespace"), namespace, job)

    def mounts(self, pod):
        """Options for the volumes of a pod; the node's directory is the agent's volume."""
        volume, = pod["volumes"]
        mount, = pod["containers"][0]["volumeMounts"]
        self.assertEqual((volume["name"], volume["hostPath"]["path"]), (mount["name"], "/run/weir"))
        return [f"--volume=sockets:{mount['mountPath']}:ro",
                *[f"--group-add={group}" for group in pod["securityContext"]["supplementalGroups"]]]

    def run_indexed(self, name, subdomain, spec):
        pods = list(pods_of_job(name, subdomain, spec))
        index_path = "metadata.annotations['batch.kubernetes.io/job-completion-index']"
        self.trained([self.run_pod(index, host, [names for _, names, _, _ in pods], pod["containers"][0],
                                   self.mounts(pod), {index_path: str(index)}) for host, _, pod, index in pods])

    def test_a_job_of_two_ranks_in_the_third_container(self):
        container = {"image": "registry.example.com/weir/pytorch-example:0.1.0", "resources": {
            "limits": {"cpu": "2", "memory": "2Gi"}}, "env": [{"name": "WEIR_JOB", "value": "train"}],
            "command": ["python3", "/workspace/train.py", "--steps=5000"]}
        self.trained([self.run_pod(0, "job", [], container, ["--volume=sockets:/run/weir", "--read-only"])], None)

    def test_torchrun_job(self):
        job, service = (example("torchrun-job.yaml", kind) for kind in ("Job", "Service"))
        self.assertEqual(service["spec"]["selector"], {"job-name": job["metadata"]["name"]})
        subdomain = job["spec"]["template"]["spec"]["subdomain"]
        self.assertEqual(service["metadata"]["name"], subdomain)
        self.run_indexed(job["metadata"]["name"], subdomain, job["spec"])

    def test_job_set(self):
        item = example("jobset.yaml", "JobSet")
        job, = item["spec"]["replicatedJobs"]
        name = item["metadata"]["name"]   # also that of the Service that JobSet makes
        self.run_indexed(f"{name}-{job['name']}-0", name, job["template"]["spec"])

    def test_train_job(self):
        item = example("trainjob.yaml", "TrainJob")
        name, trainer = item["metadata"]["name"], item["spec"]["trainer"]
        count = trainer["numNodes"]
        hosts = [f"{name}-node-0-{index}" for index in range(count)]
        # The variables that the runtime torch-distributed sets: github.com/kubeflow/trainer, pkg/runtime/framework/plugins/torch.
        runtime = {"PET_NNODES": str(count), "PET_NPROC_PER_NODE": str(trainer["numProcPerNode"]),
                   "PET_MASTER_ADDR": f"{hosts[0]}.{name}", "PET_MASTER_PORT": "29500"}
        self.trained([self.run_pod(index, host, [f"{other}.{name}" for other in hosts], trainer, (),
                                   {**runtime, "PET_NODE_RANK": str(index), "secret": TOKEN})
                      for index, host in enumerate(hosts)])


if __name__ == "__main__":
    engine.enter(engine.refused())
    unittest.main()
