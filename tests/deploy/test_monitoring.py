"""The alerts fire when they should, and what dashboard and alerts name exists."""

import re
import shutil
import tempfile
import unittest
from pathlib import Path

import composed
import monitoring
from monitoring import MONITORING, ROOT


class Alerts(unittest.TestCase):
    def test_promtool_takes_the_rules_and_the_configuration(self):
        self.assertIsNone(monitoring.promtool("check", "rules", "alerts.yaml"))
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(ROOT / "deploy/compose/prometheus.yaml", folder)
            shutil.copy(MONITORING / "alerts.yaml", folder)
            self.assertIsNone(monitoring.promtool("check", "config", "prometheus.yaml", folder=folder))

    def test_every_alert_fires_on_some_values_and_not_on_others(self):
        self.assertIsNone(monitoring.promtool("test", "rules", "alerts.test.yaml"))
        expected = {}
        for test in monitoring.yaml(MONITORING / "alerts.test.yaml")["tests"]:
            for case in test["alert_rule_test"]:
                expected.setdefault(case["alertname"], set()).add(bool(case["exp_alerts"]))
        for rule in monitoring.alerts():
            self.assertEqual(expected.get(rule["alert"]), {True, False}, rule["alert"])

    def test_a_rule_that_never_fires_fails_its_test(self):
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(MONITORING / "alerts.test.yaml", folder)
            text = (MONITORING / "alerts.yaml").read_text()
            broken = composed.replaced(text, "(increase(warmroute_leader_changes_total[15m])) > 3", "(warmroute_nothing) > 3")
            (Path(folder) / "alerts.yaml").write_text(broken)
            said = monitoring.promtool("test", "rules", "alerts.test.yaml", folder=folder)
            self.assertIn("WarmrouteLeaderFlapping", said)

    def test_every_alert_has_its_row_on_the_page_and_no_other(self):
        page = (ROOT / "docs/monitoring.md").read_text()
        rows = re.findall(r"^\| `(Warmroute\w+)` \|", page, re.MULTILINE)
        self.assertEqual(sorted(rows), sorted(rule["alert"] for rule in monitoring.alerts()))


class Names(unittest.TestCase):
    def test_every_metric_that_is_asked_for_is_documented(self):
        documented = monitoring.documented()
        self.assertGreater(len(documented), 80)
        asked = [query for _, query in monitoring.queries()] + [rule["expr"] for rule in monitoring.alerts()]
        named = set().union(*map(monitoring.metrics, asked))
        self.assertGreater(len(named), 30)
        unknown = {name for name in named - documented if not monitoring.OTHERS.fullmatch(name)}
        self.assertEqual(unknown, set())

    def test_every_query_names_a_metric(self):
        for title, query in monitoring.queries():
            self.assertTrue(monitoring.metrics(query), f"{title}: {query}")


class Dashboard(unittest.TestCase):
    def test_it_shows_what_an_operator_looks_for(self):
        asked = " ".join(query for _, query in monitoring.queries())
        for metric in (
            "inferencecache_lookup_route_calls_total", "warmroute_predicted_tokens_sum", "warmroute_hub_event_lag_seconds",
            "loadgen_time_to_first_token_seconds_bucket", "warmroute_index_pairs", "warmroute_lag_segments_bucket",
        ):  # fmt: skip
            self.assertIn(metric, asked)

    def test_panels_have_ids_places_and_the_data_source_of_their_own(self):
        panels = monitoring.dashboard()["panels"]
        self.assertEqual(len({panel["id"] for panel in panels}), len(panels))
        taken = set()
        for panel in panels:
            place = panel["gridPos"]
            self.assertLessEqual(place["x"] + place["w"], 24, panel["title"])
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
            self.assertFalse(taken & cells, f"{panel['title']} lies on another panel")
            taken |= cells
        for panel in monitoring.panels():
            for part in [panel, *panel["targets"]]:
                self.assertEqual(part["datasource"], {"type": "prometheus", "uid": "${datasource}"}, panel["title"])

    def test_variables_are_those_that_are_declared(self):
        declared = {variable["name"] for variable in monitoring.dashboard()["templating"]["list"]}
        used = set(re.findall(r"\$\{?(\w+)", (MONITORING / "dashboard.json").read_text()))
        self.assertEqual({name for name in used if not name.startswith("__")}, declared)

    def test_grafana_is_given_the_dashboard_and_prometheus(self):
        grafana = composed.config("docker-compose.yml")["services"]["grafana"]
        mounted = {volume["target"]: volume["source"] for volume in grafana["volumes"]}
        provider = monitoring.yaml(ROOT / "deploy/compose/grafana/dashboards.yaml")["providers"][0]
        place = f"{provider['options']['path']}/warmroute.json"
        self.assertEqual(mounted[place], str(MONITORING / "dashboard.json"))
        self.assertEqual(grafana["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"], place)
        source = monitoring.yaml(ROOT / "deploy/compose/grafana/datasource.yaml")["datasources"][0]
        self.assertEqual((source["type"], source["url"]), ("prometheus", "http://prometheus:9090"))
        for folder, file in (("datasources", "datasource.yaml"), ("dashboards", "dashboards.yaml")):
            path = f"/etc/grafana/provisioning/{folder}/warmroute.yaml"
            self.assertEqual(mounted[path], str(ROOT / "deploy/compose/grafana" / file))
