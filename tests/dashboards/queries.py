# SPDX-License-Identifier: Apache-2.0
"""Every PromQL expression that Weir ships: panels of the dashboards, recording and alerting rules."""
import json
import pathlib
import re

import yaml

ROOT = pathlib.Path(__file__).resolve().parents[2]
GRAFANA = ROOT / "dashboards" / "grafana"
PROMETHEUS = ROOT / "dashboards" / "prometheus"
VARIABLES = {"$__rate_interval": "1m", "$training_job": ".+", "$instance": ".+", "$job": ".+"}


def dashboards():
    """File name -> dashboard, of all that are shipped."""
    return {path.name: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted(GRAFANA.glob("*.json"))}


def panels():
    """(where it is, panel) of every dashboard."""
    for name, dashboard in dashboards().items():
        for panel in dashboard["panels"]:
            yield f"{name}: {panel['title']}", panel


def substituted(expression):
    """The expression as Grafana would send it with all values chosen."""
    for name, value in VARIABLES.items():
        expression = expression.replace(name, value)
    return expression


def rules():
    """(where it is, rule) of every rule file."""
    for name in ("recording.yaml", "alerts.yaml"):
        groups = yaml.safe_load((PROMETHEUS / name).read_text(encoding="utf-8"))["groups"]
        for group in groups:
            for rule in group["rules"]:
                yield f"{name}: {rule.get('alert') or rule['record']}", rule


def metrics_of(expression):
    """Names of Weir's own series in an expression, without the suffixes of histograms."""
    names = re.findall(r"(?<![\w:])weir_\w+", expression)
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in names}
