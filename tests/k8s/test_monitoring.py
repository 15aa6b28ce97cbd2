"""The alerts fire when they should, and the monitors and the dashboard look at what there is."""

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from scheduler.metrics import OUTCOMES, REPAIRS, instrument
from tests.k8s.builds import OPERATED, app, container, of_kind, one, processors, program, selects

CASES = Path(__file__).with_name("alerts.yaml")
# What Grafana puts in, when it asks Prometheus.
FILLED_IN = {"$__rate_interval": "1m", "$namespace": "billing"}


def run_promtool(*arguments: str | Path) -> None:
    promtool = program("promtool", "prometheus")
    done = subprocess.run([promtool, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def rules() -> dict[str, Any]:
    return one("monitoring", "PrometheusRule", "scheduler")["spec"]


def test_alerts_fire_when_they_should_and_not_in_a_healthy_hour(tmp_path: Path) -> None:
    cases = CASES.read_text()
    for rule in rules()["groups"][0]["rules"]:
        assert f'alertname="{rule["alert"]}", alertstate="firing"' in cases
        assert set(rule["annotations"]) == {"summary", "description", "runbook"}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(rules()))
    (tmp_path / "cases.yaml").write_text(cases)
    run_promtool("check", "rules", tmp_path / "rules.yaml")
    run_promtool("test", "rules", tmp_path / "cases.yaml")


def endpoints(monitor: str) -> list[dict[str, Any]]:
    return one("monitoring", "PodMonitor", monitor)["spec"]["podMetricsEndpoints"]


def test_processors_are_scraped() -> None:
    selector = one("monitoring", "PodMonitor", "scheduler")["spec"]["selector"]
    policy = one("monitoring", "NetworkPolicy", "scheduler-metrics")["spec"]
    (endpoint,) = endpoints("scheduler")
    # Else Prometheus renames the label `namespace` of our metrics, by which the alerts group.
    assert endpoint["honorLabels"] is True
    assert [port["port"] for port in policy["ingress"][0]["ports"]] == [endpoint["port"]]
    for deployment in (*processors("monitoring"), *processors("production")):
        labels = deployment["spec"]["template"]["metadata"]["labels"]
        assert selects(selector, labels)
        assert selects(policy["podSelector"], labels)
        assert endpoint["port"] in {port["name"] for port in container(deployment)["ports"]}


def test_the_broker_is_scraped_queue_by_queue() -> None:
    selector = one("monitoring", "PodMonitor", "rabbitmq")["spec"]["selector"]
    broker = one("dev", "StatefulSet", "rabbitmq")
    assert selects(selector, OPERATED)
    assert selects(selector, broker["spec"]["template"]["metadata"]["labels"])
    for endpoint in endpoints("rabbitmq"):
        assert endpoint["port"] in {port["name"] for port in container(broker)["ports"]}
    (detailed,) = [each for each in endpoints("rabbitmq") if "params" in each]
    assert detailed["path"] == "/metrics/detailed"
    # Of messages_ready, and of consumers.
    assert detailed["params"] == {"family": ["queue_coarse_metrics", "queue_consumer_count"]}


def dashboard() -> dict[str, Any]:
    (found,) = [
        each
        for each in of_kind("monitoring", "ConfigMap")
        if each["metadata"]["labels"].get("grafana_dashboard") == "1"
    ]
    return json.loads(found["data"]["scheduler.json"])


def expressions() -> Iterator[str]:
    for panel in dashboard()["panels"]:
        for target in panel["targets"]:
            expression = target["expr"]
            for variable, value in FILLED_IN.items():
                expression = expression.replace(variable, value)
            yield expression


def test_prometheus_understands_the_dashboard(tmp_path: Path) -> None:
    records = [
        {"record": f"panel:{number}", "expr": expression}
        for number, expression in enumerate(expressions())
    ]
    assert not any("$" in record["expr"] for record in records)
    written = {"groups": [{"name": "dashboard", "rules": records}]}
    (tmp_path / "rules.yaml").write_text(yaml.safe_dump(written))
    run_promtool("check", "rules", tmp_path / "rules.yaml")


def exported() -> set[str]:
    """The series that a processor shows."""
    suffixes = {"counter": ("_total",), "histogram": ("_bucket", "_sum", "_count"), "gauge": ("",)}
    families = instrument(app("monitoring")).collect()
    return {
        f"{family.name}{suffix}"
        for family in families
        if family.name.startswith("scheduler_")
        for suffix in suffixes[family.type]
    }


def test_alerts_and_dashboard_use_all_existing_metrics_only() -> None:
    alerts = [rule["expr"] for rule in rules()["groups"][0]["rules"]]
    used = set(re.findall(r"scheduler_\w+", " ".join([*alerts, *expressions()])))
    assert used <= exported()
    part = re.compile("_(bucket|sum|count)$")
    assert {part.sub("", name) for name in exported()} <= {part.sub("", name) for name in used}


def test_alerts_use_existing_outcomes_and_repairs() -> None:
    alerts = " ".join(rule["expr"] for rule in rules()["groups"][0]["rules"])
    outcomes = re.findall(r'outcome=~?"([\w|]+)"', alerts)
    assert {each for found in outcomes for each in found.split("|")} <= set(OUTCOMES)
    assert set(re.findall(r'kind="(\w+)"', alerts)) <= set(REPAIRS)
