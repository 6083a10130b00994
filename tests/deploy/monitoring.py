"""What the dashboard and the alerts ask Prometheus, and which metrics those questions name."""

import json
import re
import subprocess
import sys

from needed import ROOT, needed, tools

MONITORING = ROOT / "deploy" / "monitoring"
# What Grafana puts in the place of its variables; the interval is six scrapes of the compose file's Prometheus.
VARIABLES = {"$__rate_interval": "30s", "$model": ".*"}
# Metrics of the engines, of the load generator and of Prometheus itself, which docs/metrics.md does not list.
OTHERS = re.compile(r"(vllm:|loadgen_)\w+|up")
NAME = re.compile(r"\b(?:warmroute_|inferencecache_|loadgen_|vllm:)\w+|\bup(?=\{)")


def yaml(path):
    """A YAML file."""
    folder = needed(tools.yaml)
    if folder not in sys.path:
        sys.path.append(folder)
    import yaml as reader

    return reader.safe_load(path.read_text())


def dashboard():
    return json.loads((MONITORING / "dashboard.json").read_text())


def panels():
    """The panels that show something."""
    return [panel for panel in dashboard()["panels"] if panel["type"] != "row"]


def queries():
    """(panel, query as Prometheus gets it) of the dashboard."""
    for panel in panels():
        for target in panel["targets"]:
            query = target["expr"]
            for variable, value in VARIABLES.items():
                query = query.replace(variable, value)
            yield panel["title"], query


def alerts():
    """The alerting rules."""
    return [rule for group in yaml(MONITORING / "alerts.yaml")["groups"] for rule in group["rules"]]


def metrics(query):
    """The metrics that a query names, as they are documented: without what a histogram's series end with."""
    return {re.sub(r"_(bucket|sum|count)$", "", name) for name in NAME.findall(query)}


def documented():
    """The names in the tables of docs/metrics.md, where `_b` after `a_x` is `a_b`."""
    found = set()
    for line in (ROOT / "docs" / "metrics.md").read_text().splitlines():
        cell = line.split(" | ")[0] if line.startswith("| ") else ""
        prefix = ""
        for name in re.findall(r"`([^`]+)`", cell):
            if name.startswith("_"):
                name = prefix + name
            else:
                prefix = re.match(r"warmroute_hub|[a-z]+", name)[0]
            found.add(name)
    return found


def promtool(*arguments, folder=MONITORING):
    """Runs promtool; what it says if it is not content."""
    done = subprocess.run([needed(tools.prometheus, "promtool"), *arguments], cwd=folder, capture_output=True, text=True)
    return None if done.returncode == 0 else done.stdout + done.stderr
