# SPDX-License-Identifier: Apache-2.0
"""Every rendered manifest against the types of Kubernetes' own API, by the TypeScript compiler."""
import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "tests" / "deploy")]
import kubernetes_test  # noqa: E402  pylint: disable=wrong-import-position
import npm_packages  # noqa: E402  pylint: disable=wrong-import-position

BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
EXAMPLES = ROOT / "deploy" / "kubernetes" / "examples"
# The package with the types of each group; Kubernetes' own groups are not listed.
PACKAGES = {"cert-manager.io": "@kubernetes-models/cert-manager",
            "monitoring.coreos.com": "@kubernetes-models/prometheus-operator"}
OWN = ROOT / "tests" / "deploy" / "schemas" / "jobs.d.ts"
OF_JOBS = ("jobset.x-k8s.io", "trainer.kubeflow.org")   # typed there
OPTIONS = ["--noEmit", "--strict", "--skipLibCheck", "--module", "esnext", "--moduleResolution", "bundler",
           "--target", "es2022", "--pretty", "false"]


def as_typescript(items):
    """A module in which every object is a constant of its type."""
    lines = []
    for number, item in enumerate(items):
        group = item["apiVersion"].split("/")[0]
        module = f"{PACKAGES.get(group, 'kubernetes-models')}/{item['apiVersion']}" if group not in OF_JOBS else "./jobs"
        lines.append(f"import type {{ I{item['kind']} as T{number} }} from {json.dumps(module)};")
        lines.append(f"export const o{number}: T{number} = {json.dumps(item)};")
    return "\n".join(lines) + "\n"


@unittest.skipIf(kubernetes_test.REFUSED, f"no Kustomize: {kubernetes_test.REFUSED}")
class SchemasTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.modules, reason = npm_packages.modules(ROOT / "tests" / "deploy" / "schemas",
                                                   BUILD / "kubernetes-schemas")
        if cls.modules is None:
            raise unittest.SkipTest(f"no Kubernetes types: {reason}")
        cls.items = [item for folder in kubernetes_test.EVERYTHING for item in kubernetes_test.render(folder)]
        cls.items += [item for path in sorted(EXAMPLES.glob("*.yaml"))
                      for item in yaml.safe_load_all(path.read_text(encoding="utf-8"))]

    def complaints(self, files):
        """The compiler's errors by file; `files`: name to items."""
        with tempfile.TemporaryDirectory(prefix="weir-schemas-") as name:
            directory = pathlib.Path(name)
            (directory / "node_modules").symlink_to(self.modules)
            shutil.copy(OWN, directory)
            for file, items in files.items():
                (directory / file).write_text(as_typescript(items), encoding="utf-8")
            done = subprocess.run([npm_packages.NODE, str(self.modules / "typescript" / "bin" / "tsc"), *OPTIONS,
                                   *files], cwd=directory, timeout=170, text=True, check=False,
                                  stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        said = {file: [] for file in files}
        for line in done.stdout.splitlines():
            if line.split("(")[0] in said:
                said[line.split("(")[0]].append(line[:600])
        self.assertEqual(bool(done.returncode), any(said.values()), done.stdout[-2000:])
        return said

    def test_every_object_has_its_type_and_violations_are_found(self):
        deployment = next(i for i in self.items if i["kind"] == "Deployment")
        misspelt, mistyped, incomplete = (json.loads(json.dumps(deployment)) for _ in range(3))
        container = misspelt["spec"]["template"]["spec"]["containers"][0]
        container["readynessProbe"] = container.pop("readinessProbe")
        mistyped["spec"]["replicas"] = "one"
        del incomplete["spec"]["selector"]
        jobs = [json.loads(json.dumps(i)) for i in self.items if i["apiVersion"].split("/")[0] in OF_JOBS]
        job_set, train_job = sorted(jobs, key=lambda item: item["kind"])
        job_set["spec"]["replicatedJobs"][0]["replica"] = 1
        train_job["spec"]["runtimeRef"]["kinds"] = "TrainingRuntime"
        said = self.complaints({"manifests.ts": self.items, "misspelt.ts": [misspelt], "mistyped.ts": [mistyped],
                                "incomplete.ts": [incomplete], "jobset.ts": [job_set], "trainjob.ts": [train_job]})
        self.assertEqual(said["manifests.ts"], [])
        self.assertIn("readynessProbe", "".join(said["misspelt.ts"]))
        self.assertIn("string", "".join(said["mistyped.ts"]))
        self.assertIn("selector", "".join(said["incomplete.ts"]))
        self.assertIn('"replica"', "".join(said["jobset.ts"]))
        self.assertIn('"kinds"', "".join(said["trainjob.ts"]))


if __name__ == "__main__":
    unittest.main()
