# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus scrapes the running system; every shipped query is asked of it."""
import json
import shutil
import socket
import sys
import unittest
import urllib.parse
import urllib.request

from cluster import (AGENT_METRICS_PORT, BUILD, REFUSED, ROOT, SKIP_REASON, SLOW_MBPS, Cluster, http,
                     wait_until)

sys.path.insert(0, str(ROOT / "tests" / "dashboards"))
from queries import panels, rules, substituted  # noqa: E402  pylint: disable=wrong-import-position

PROMETHEUS = shutil.which("prometheus")
AGGREGATOR = BUILD / "deploy" / "aggregator" / "weir-aggregator"
# No message was dropped, so the agents have no such series; and there is no TLS.
MAY_BE_EMPTY = {"weir-network.json: Dropped telemetry", "weir-decisions.json: Prediction error",
                "weir-fleet.json: Certificate expiry"}


def free_port():
    """A port of loopback that was free a moment ago."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@unittest.skipIf(REFUSED, SKIP_REASON)
@unittest.skipIf(PROMETHEUS is None, "no Prometheus: package prometheus is not installed")
class MetricsTest(unittest.TestCase):

    @classmethod
    def setUpClass(cls):
        cls.cluster = cls.enterClassContext(Cluster("metrics"))
        cls.cluster.start_ranks()
        cls.start_prometheus()
        cls.cluster.wait_for_steps(40)
        known = {d["id"] for d in cls.cluster.decisions()}
        cls.cluster.network.shape(SLOW_MBPS, 0.0)
        cls.cluster.wait_for_switch(known, "bandwidth")

    @classmethod
    def start_prometheus(cls):
        cluster = cls.cluster
        directory = cluster.directory / "prometheus"
        shutil.rmtree(directory, ignore_errors=True)
        directory.mkdir()
        _, controller = cluster.controls.url.rsplit(":", 1)
        agents = [cluster.port_of(cluster.network.address(host), AGENT_METRICS_PORT)
                  for host in range(cluster.hosts)]
        # The configuration is dashboards/prometheus/prometheus.yaml with shorter intervals and this run's
        # addresses. JSON is YAML.
        document = {
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [str(ROOT / "dashboards" / "prometheus" / name)
                           for name in ("recording.yaml", "alerts.yaml")],
            "scrape_configs": [
                {"job_name": "weir-controller",
                 "static_configs": [{"targets": [f"127.0.0.1:{controller}"]}]},
                {"job_name": "weir-agent",
                 "static_configs": [{"targets": [f"127.0.0.1:{port}" for port in agents]}]}]}
        document["scrape_configs"].append(
            {"job_name": "weir-aggregator",
             "static_configs": [{"targets": [cls.start_aggregator(directory)]}]})
        path = directory / "prometheus.yaml"
        path.write_text(json.dumps(document), encoding="utf-8")
        port = free_port()
        cls.url = f"http://127.0.0.1:{port}"
        with open(directory / "prometheus.log", "wb") as log:
            cluster.children.start(
                [PROMETHEUS, f"--config.file={path}", f"--storage.tsdb.path={directory / 'data'}",
                 f"--web.listen-address=127.0.0.1:{port}"], stdout=log, stderr=log)
        wait_until(lambda: cls.query("up == 1") and len(cls.query("up == 1")) == 2 + len(agents),
                   "Prometheus to scrape controller, agents and aggregator", 60)

    @classmethod
    def start_aggregator(cls, directory):
        """An aggregator with a lease that waits for nobody; its address."""
        address = f"127.0.0.1:{free_port()}"
        with open(directory / "aggregator.log", "wb") as log:
            cls.cluster.children.start([AGGREGATOR, "--port", "0", "--http", address], stdout=log, stderr=log)
        lease = {"job": "lm", "mode": "sum", "slots": 4, "workers": ["127.0.0.1:40000", "127.0.0.1:40001"]}

        def granted():
            request = urllib.request.Request(f"http://{address}/v1/leases", json.dumps(lease).encode())
            try:
                with urllib.request.urlopen(request, timeout=10) as answer:
                    return answer.status == 201
            except OSError:
                return False

        wait_until(granted, "the aggregator to grant a lease")
        return address

    @classmethod
    def query(cls, expression):
        """The result of an instant query; None while Prometheus starts."""
        url = f"{cls.url}/api/v1/query?" + urllib.parse.urlencode({"query": expression})
        try:
            status, body = http(url)
        except OSError:
            return None
        if status == 503:
            return None
        answer = json.loads(body)
        if status != 200 or answer["status"] != "success":
            raise AssertionError(f"{expression}: {answer.get('error', status)}")
        return answer["data"]["result"]

    def test_every_panel_has_data(self):
        for where, panel in panels():
            for target in panel["targets"]:
                expression = substituted(target["expr"])
                with self.subTest(where, query=target["expr"]):
                    # There is no GPU, and no job of NCCL.
                    if where in MAY_BE_EMPTY or where.startswith("weir-gpus.json"):
                        self.query(expression)
                        continue
                    # Rates need two scrapes of a series that may just have appeared.
                    found = wait_until(lambda e=expression: self.query(e), f"data of {where}", 20)
                    for sample in found:
                        self.assertNotEqual(sample["value"][1], "NaN")

    def test_every_rule_is_evaluated_without_error(self):
        _, body = http(self.url + "/api/v1/rules")
        found = [rule for group in json.loads(body)["data"]["groups"] for rule in group["rules"]]
        self.assertEqual({rule["name"] for rule in found},
                         {rule.get("alert") or rule["record"] for _, rule in rules()})
        wait_until(lambda: all(
            rule["health"] == "ok" for group in json.loads(http(self.url + "/api/v1/rules")[1])
            ["data"]["groups"] for rule in group["rules"]), "all rules to be evaluated", 60)
        for _, rule in rules():
            if "record" in rule:
                wait_until(lambda name=rule["record"]: self.query(name), rule["record"], 60)

    def test_a_healthy_fleet_alerts_nobody(self):
        firing = {sample["metric"]["alertname"]
                  for sample in self.query('ALERTS{alertstate="firing"}')}
        self.assertEqual(firing, set())


if __name__ == "__main__":
    unittest.main()
