"""docker-compose.yml, run: every service but Grafana by its own command and configuration, without containers."""

import json
import unittest
import urllib.parse

import monitoring
from composed import Composed, eventually

SEEN_WITHIN = 120
DATA_WITHIN = 120


class Stack(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.composed = Composed().__enter__()
        cls.addClassCleanup(cls.composed.__exit__)

    def ask(self, path, **parameters):
        """Prometheus's answer."""
        answer = self.composed.get("prometheus", 9090, f"/api/v1/{path}?{urllib.parse.urlencode(parameters)}")
        return json.loads(answer)["data"]

    def test_chats_are_sent_to_the_engine_that_holds_their_prefix(self):
        def matched():
            lines = [line for line in self.composed.log_lines("chats") if "PREFIX_MATCH" in line and line.startswith("chat-")]
            return {line.split()[5] for line in lines} == {"engine-0", "engine-1", "engine-2"}

        eventually(matched, SEEN_WITHIN, lambda: f"PREFIX_MATCH at each engine\n{self.composed.log('chats')}")
        # Envoy writes its access log every ten seconds.
        logged = "reason=PREFIX_MATCH detail=- replica=127."
        eventually(lambda: logged in "\n".join(self.composed.log_lines("envoy")), SEEN_WITHIN, lambda: self.composed.log("envoy"))

    def test_every_target_is_scraped(self):
        def targets():
            return [(target["labels"]["job"], target["health"], target["lastError"]) for target in self.ask("targets")["activeTargets"]]

        eventually(lambda: {health for _, health, _ in targets()} == {"up"}, DATA_WITHIN, targets)
        self.assertEqual(sorted(job for job, _, _ in targets()), ["chats", "engines", "engines", "engines", "envoy", "hub"])

    def test_every_query_of_the_dashboard_has_data(self):
        for title, query in monitoring.queries():
            with self.subTest(panel=title, query=query):
                eventually(lambda: has_data(self.ask("query", query=query)), DATA_WITHIN, lambda: f"no data: {query}")

    def test_every_alert_is_evaluated_and_none_fires(self):
        def rules():
            return [rule for group in self.ask("rules")["groups"] for rule in group["rules"]]

        eventually(lambda: {rule["health"] for rule in rules()} == {"ok"}, DATA_WITHIN, rules)
        names = [rule["alert"] for rule in monitoring.alerts()]
        self.assertEqual([rule["name"] for rule in rules()], names)
        self.assertEqual([rule["name"] for rule in rules() if rule["state"] == "firing"], [])

    def test_every_metric_of_the_alerts_exists_or_has_had_nothing_to_count(self):
        gauges = {name for rule in monitoring.alerts() for name in monitoring.metrics(rule["expr"]) if not name.endswith("_total")}
        self.assertGreater(len(gauges), 8)

        def missing():
            known = set(self.ask("label/__name__/values"))
            return [name for name in gauges if name not in known and f"{name}_bucket" not in known]

        # Each program is scraped in its turn.
        eventually(lambda: missing() == [], DATA_WITHIN, missing)


def has_data(answer):
    """Whether there is a number in it: a share of nothing is none."""
    return any(series["value"][1] != "NaN" for series in answer["result"])
