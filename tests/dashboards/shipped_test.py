# SPDX-License-Identifier: Apache-2.0
"""The files of dashboards/ are well-formed: rules, alert tests, runbooks, dashboards. Needs promtool."""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

from queries import GRAFANA, PROMETHEUS, ROOT, dashboards, metrics_of, panels, rules, substituted

RUNBOOKS = ROOT / "dashboards" / "runbooks"
UNITS = {"short", "none", "s", "Bps", "bytes", "ops", "percentunit", "hertz"}


def promtool(*arguments, cwd=PROMETHEUS):
    """Return code and words of promtool."""
    done = subprocess.run(["promtool", *map(str, arguments)], cwd=cwd, timeout=60, text=True,
                          capture_output=True, check=False)
    return done.returncode, done.stdout + done.stderr


class RulesTest(unittest.TestCase):

    def test_promtool_accepts_rules_and_configuration(self):
        code, words = promtool("check", "rules", "recording.yaml", "alerts.yaml")
        self.assertEqual(code, 0, words)
        code, words = promtool("check", "config", "prometheus.yaml")
        self.assertEqual(code, 0, words)

    def test_every_alert_fires_on_its_symptom_and_only_then(self):
        code, words = promtool("test", "rules", "alerts_test.yaml")
        self.assertEqual(code, 0, words)
        text = (PROMETHEUS / "alerts_test.yaml").read_text(encoding="utf-8")
        cases = [case for test in yaml.safe_load(text)["tests"]
                 for case in test.get("alert_rule_test", [])]
        for where, rule in rules():
            if "alert" in rule:
                fires = [bool(c.get("exp_alerts")) for c in cases if c["alertname"] == rule["alert"]]
                self.assertIn(True, fires, where)
                self.assertIn(False, fires, where)

    def test_every_alert_has_a_runbook_and_every_runbook_an_alert(self):
        alerts = {rule["alert"]: rule for _, rule in rules() if "alert" in rule}
        self.assertEqual(set(alerts), {path.stem for path in RUNBOOKS.glob("*.md")})
        for name, rule in alerts.items():
            annotations = rule["annotations"]
            self.assertEqual(annotations["runbook_url"], f"dashboards/runbooks/{name}.md")
            self.assertTrue(annotations["summary"] and annotations["description"], name)
            self.assertIn(rule["labels"]["severity"], ("info", "warning", "critical"))
            page = (RUNBOOKS / f"{name}.md").read_text(encoding="utf-8")
            self.assertTrue(page.startswith(f"# {name}\n"), name)
            for part in ("**Means.**", "**Look.**", "**Do.**"):
                self.assertIn(part, page, name)

    def test_runbooks_name_only_what_weirctl_knows(self):
        main = (ROOT / "controller" / "cli" / "main.cc").read_text(encoding="utf-8")
        commands = set(re.findall(r'add_subcommand\(\s*"(\w+)"', main))
        self.assertIn("explain", commands)
        for path in RUNBOOKS.glob("*.md"):
            for command in re.findall(r"weirctl (\w+)", path.read_text(encoding="utf-8")):
                self.assertIn(command, commands, path.name)

    def test_every_series_is_one_that_weir_exports(self):
        exported = set()
        for part in ("agent", "controller", "deploy/aggregator"):
            for path in (ROOT / part).rglob("*.cc"):
                exported |= set(re.findall(r'"(weir_\w+)"', path.read_text(encoding="utf-8")))
        for where, rule in rules():
            self.assertLessEqual(metrics_of(rule["expr"]), exported, where)
        for where, panel in panels():
            for target in panel["targets"]:
                self.assertTrue(metrics_of(target["expr"]), where)
                self.assertLessEqual(metrics_of(target["expr"]), exported, where)


class DashboardsTest(unittest.TestCase):
    """The rules of Grafana's public dashboard-linter that apply, in our own words."""

    def test_files_equal_the_output_of_their_source(self):
        done = subprocess.run([sys.executable, GRAFANA / "build_dashboards", "--check"], timeout=60,
                              capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_dashboards_can_be_provisioned_and_chosen_from(self):
        found = dashboards()
        self.assertGreaterEqual(len(found), 4)
        for name, dashboard in found.items():
            self.assertEqual(dashboard["uid"], pathlib.Path(name).stem)
            self.assertIsNone(dashboard["id"], name)
            self.assertFalse(dashboard["editable"], name)
            variables = {v["name"]: v for v in dashboard["templating"]["list"]}
            self.assertEqual(variables["datasource"]["type"], "datasource")
            self.assertEqual(variables["datasource"]["query"], "prometheus")
            for variable in ("job", "instance"):
                self.assertTrue(variables[variable]["multi"], name)
                self.assertEqual(variables[variable]["allValue"], ".+", name)
                self.assertEqual(variables[variable]["datasource"]["uid"], "${datasource}")
            used = set(re.findall(r"\$(\w+)", " ".join(
                t["expr"] for p in dashboard["panels"] for t in p["targets"])))
            self.assertLessEqual(used - {"__rate_interval"}, set(variables), name)
            ids = [panel["id"] for panel in dashboard["panels"]]
            self.assertEqual(len(ids), len(set(ids)), name)

    def test_provisioning_names_where_packages_put_the_files_and_how_often_is_scraped(self):
        read = {path.parent.name: yaml.safe_load(path.read_text(encoding="utf-8"))
                for path in (GRAFANA / "provisioning").glob("*/*.yaml")}
        self.assertEqual(set(read), {"dashboards", "datasources"})
        provider, = read["dashboards"]["providers"]
        self.assertEqual((read["dashboards"]["apiVersion"], provider["type"]), (1, "file"))
        installed = pathlib.PurePosixPath(provider["options"]["path"])
        rules = (ROOT / "deploy/packages/CMakeLists.txt").read_text(encoding="utf-8")
        self.assertRegex(rules, r"(?s)DIRECTORY [^)]*dashboards/" + installed.name + r"\b[^)]*"
                         r"DESTINATION \$\{CMAKE_INSTALL_DATADIR\}/" + installed.parent.name)
        source, = read["datasources"]["datasources"]
        self.assertEqual((read["datasources"]["apiVersion"], source["type"]), (1, "prometheus"))
        scraped = yaml.safe_load((PROMETHEUS / "prometheus.yaml").read_text(encoding="utf-8"))
        self.assertEqual(source["jsonData"]["timeInterval"], scraped["global"]["scrape_interval"])

    def test_panels_say_what_they_show(self):
        for where, panel in panels():
            self.assertTrue(panel["title"] and panel["description"], where)
            self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS, where)
            self.assertEqual(panel["datasource"]["uid"], "${datasource}", where)
            self.assertTrue(panel["targets"], where)
            for target in panel["targets"]:
                self.assertEqual(target["datasource"]["uid"], "${datasource}", where)
                self.assertTrue(target["legendFormat"], where)

    def test_queries_choose_jobs_and_instances_and_leave_the_interval_to_grafana(self):
        for where, panel in panels():
            for target in panel["targets"]:
                expression = target["expr"]
                for selector in re.findall(r"weir_\w+(\{[^}]*\})?", expression):
                    self.assertIn('job=~"$job"', selector, where)
                    self.assertIn('instance=~"$instance"', selector, where)
                for interval in re.findall(r"\[([^\]]*)\]", expression):
                    self.assertEqual(interval, "$__rate_interval", where)
                for name in re.findall(r"(weir_\w+_total)", expression):
                    self.assertRegex(expression, rf"(rate|increase)\({name}\{{", where)

    def test_promtool_parses_every_query(self):
        expressions = [substituted(t["expr"]) for _, panel in panels() for t in panel["targets"]]
        document = {"groups": [{"name": "panels", "rules": [
            {"record": f"panel:{i}", "expr": e} for i, e in enumerate(expressions)]}]}
        with tempfile.TemporaryDirectory(prefix="weir-dashboards-") as directory:
            path = pathlib.Path(directory, "panels.yaml")
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            code, words = promtool("check", "rules", path)
            self.assertEqual(code, 0, words)
            document["groups"][0]["rules"][0]["expr"] += ")"
            path.write_text(yaml.safe_dump(document), encoding="utf-8")
            self.assertNotEqual(promtool("check", "rules", path)[0], 0)


if __name__ == "__main__":
    unittest.main()
