# SPDX-License-Identifier: Apache-2.0
"""The Helm chart: accepted by helm's own check, and the same objects as Kustomize renders from the same files."""
import pathlib
import subprocess
import tarfile
import tempfile
import unittest

import yaml

import kubernetes_test

CHART = kubernetes_test.HERE
HELM, REFUSED = kubernetes_test.tool("helm")


def by_name(items):
    return {(i["kind"], i["metadata"].get("namespace"), i["metadata"]["name"]): i for i in items}


@unittest.skipIf(REFUSED, f"no helm: {REFUSED}")
class HelmTest(unittest.TestCase):

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory(prefix="weir-helm-")))

    def helm(self, *words, values=None, fails=False):
        if values is not None:
            file = self.directory / "values.yaml"
            file.write_text(yaml.safe_dump(values), encoding="utf-8")
            words = [*words, "--values", file]
        done = subprocess.run([HELM, *words], timeout=60, text=True, check=False, cwd=self.directory,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.assertEqual(done.returncode != 0, fails, done.stdout)
        return done.stdout

    def rendered(self, values):
        return [item for item in yaml.safe_load_all(self.helm("template", "weir", CHART, values=values)) if item]

    def test_every_overlay_is_accepted_and_rendered_as_kustomize_does(self):
        for overlay in kubernetes_test.OVERLAYS:
            self.helm("lint", "--strict", CHART, values={"overlay": overlay})
            expected = by_name(kubernetes_test.render(f"overlays/{overlay}"))
            found = by_name(self.rendered({"overlay": overlay}))
            self.assertEqual(set(found), set(expected), overlay)
            for name, item in expected.items():
                self.assertEqual(found[name], item, f"{overlay}: {name}")

    def test_values_reach_the_objects_and_change_nothing_else(self):
        pods = {"args": ["--log-level=debug"], "resources": {"limits": {"cpu": "3"}}, "nodeSelector": {"disk": "fast"},
                "tolerations": [{"key": "training", "operator": "Exists"}]}
        values = {"overlay": "aggregator", "registry": "registry.test:5000/team", "tag": "1.2.3", "storageClass": "fast",
                  "policies": {"dense.yaml": "name: default\n"}, **{name: pods for name in kubernetes_test.PROGRAMS}}
        expected = by_name(kubernetes_test.render("overlays/aggregator"))
        for name, item in expected.items():
            for container, spec in kubernetes_test.containers_of(item):
                part = item["metadata"]["name"]
                container["image"] = f"registry.test:5000/team/{part}:1.2.3"
                if container["name"] in kubernetes_test.PROGRAMS:
                    container["args"].append("--log-level=debug")
                    container["resources"] = pods["resources"]
                spec["nodeSelector"], spec["tolerations"] = pods["nodeSelector"], pods["tolerations"]
            if item["kind"] == "PersistentVolumeClaim":
                item["spec"]["storageClassName"] = "fast"
            if item["kind"] == "ConfigMap":
                item["data"] = values["policies"]
        self.assertEqual(by_name(self.rendered(values)), expected)

    def test_values_reach_the_controllers_that_share_etcd(self):
        store = "etcds://a.test:2379,b.test:2379/team"
        values = {"overlay": "standby", "store": store, "controller": {"args": ["--log-level=debug"]}}
        expected = by_name(kubernetes_test.render("overlays/standby"))
        container = expected["StatefulSet", "weir-system", "weir-controller"]["spec"]["template"]["spec"]["containers"][0]
        next(e for e in container["env"] if e["name"] == "STORE")["value"] = store
        container["args"].append("--log-level=debug")
        self.assertEqual(by_name(self.rendered(values)), expected)
        self.assertIn("overlay production keeps the state on a volume",
                      self.helm("template", "weir", CHART, values={**values, "overlay": "production"}, fails=True))

    def test_unknown_values_and_overlays_are_refused(self):
        self.assertIn("registri", self.helm("template", "weir", CHART, values={"registri": "x"}, fails=True))
        self.assertIn("no overlay", self.helm("template", "weir", CHART, values={"overlay": "none-such"}, fails=True))
        self.assertIn("args", self.helm("template", "weir", CHART, values={"agent": {"args": "--insecure"}}, fails=True))

    def test_a_package_of_the_chart_is_complete(self):
        self.helm("package", CHART)
        package, = self.directory.glob("weir-*.tgz")
        with tarfile.open(package) as archive:
            names = archive.getnames()
        self.assertIn("weir/base/controller/policies/default.yaml", names)
        self.assertEqual([name for name in names if "/examples/" in name], [])
        self.assertIn("kind: DaemonSet", self.helm("template", "weir", package, values={"overlay": "tls"}))


if __name__ == "__main__":
    unittest.main()
