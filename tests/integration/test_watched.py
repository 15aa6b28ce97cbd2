"""A processor as probes and a real Prometheus see it."""

import subprocess
import sys
from pathlib import Path

import pytest

from scheduler.protocol.topology import topology
from tests.integration.conftest import Field
from tests.integration.watched import Answer, ask
from tests.prometheus import Prometheus
from tests.rabbitmq import free_ports


@pytest.fixture
def field(field_: Field) -> Field:
    """The app to be watched, seeded."""
    field_.app = f"{Path(__file__).parent / 'apps' / 'watched.py'}:app"
    field_.declares = topology(field_.namespace, ("beat", "block", "fail"))
    field_.call("seed")
    return field_


def processor(field: Field) -> int:
    """Start a processor; the port at which it tells of itself."""
    (port,) = free_ports(1)
    field.start("run", SCHEDULER_HEALTH_PORT=str(port), SCHEDULER_METRICS_PORT=str(port))
    return port


async def answered(field: Field, port: int, path: str, status: int) -> Answer:
    await field.until(lambda: ask(port, path).status == status)
    return ask(port, path)


def live(port: int) -> subprocess.CompletedProcess[str]:
    """What an exec probe runs."""
    return subprocess.run(
        [sys.executable, "-m", "scheduler", "doctor", "--live", "--health-port", str(port)],
        capture_output=True,
        text=True,
        timeout=60,
    )


async def test_a_processor_with_a_blocked_event_loop_fails_its_probes(field: Field) -> None:
    port = processor(field)
    await answered(field, port, "/readyz", 200)
    assert ask(port, "/livez").json == {"live": True, "why": []}
    assert live(port).returncode == 0
    field.call("trigger", "block")
    blocked = await answered(field, port, "/livez", 503)
    assert not blocked.json["live"]
    (why,) = blocked.json["why"]
    assert "apps/watched.py" in why
    assert "(block)" in why
    unready = ask(port, "/readyz")
    assert (unready.status, unready.json["ready"]) == (503, False)
    # For after it was killed.
    assert "(block): nothing else runs" in field.log_of(1).read_text()
    probe = live(port)
    assert (probe.returncode, probe.stdout.count("(block)")) == (1, 1), probe.stderr


@pytest.mark.timeout(400)  # it may have to be installed
def test_prometheus_scrapes_two_processors(field: Field) -> None:
    ports = [processor(field) for _ in range(2)]
    ns = f'namespace="{field.namespace}"'
    with Prometheus(ports) as prometheus:
        prometheus.until(f"sum(scheduler_runs_total{{{ns}}}) > 10")
        prometheus.until("count(up == 1) == 2")
        assert field.call("trigger", "fail")["did"] == "triggered"
        escalated = f'{ns}, task="fail", loop="fail"'
        prometheus.until(f"sum(scheduler_escalations_total{{{escalated}}}) == 1")
        failed = f"sum by (outcome) (scheduler_runs_total{{{escalated}}}) > 0"
        outcomes = {labels["outcome"]: count for labels, count in prometheus.query(failed)}
        assert outcomes == {"retried": 1, "escalated": 1}
        exhausted = f'sum(scheduler_parked_messages_total{{{ns}, task="fail", reason="exhausted"}})'
        assert prometheus.value(exhausted) == 1
        # It was there with 0 before, so that an alert on its increase has seen it rise.
        prometheus.until(f"sum(increase(scheduler_escalations_total{{{escalated}}}[1m])) > 0")

        beat = f'{ns}, task="beat", loop="beat"'
        assert prometheus.value(f"max(scheduler_period_seconds{{{beat}}})") == 0.6
        since_success = f"time() - max(scheduler_last_success_timestamp_seconds{{{beat}}})"
        assert 0 <= prometheus.value(since_success) < 10
        until_due = f"max(scheduler_next_due_timestamp_seconds{{{beat}}}) - time()"
        assert -10 < prometheus.value(until_due) <= 0.6
        for histogram in (
            "scheduler_run_duration_seconds",
            "scheduler_hatch_delay_seconds",
            "scheduler_ready_delay_seconds",
            "scheduler_start_delay_seconds",
        ):
            of_beats = f"sum by (le) ({histogram}_bucket{{{beat}}})"
            assert prometheus.value(f"histogram_quantile(0.5, {of_beats})") < 3, histogram
        confirms = f"sum by (le) (scheduler_publish_confirm_seconds_bucket{{{ns}}})"
        assert 0 < prometheus.value(f"histogram_quantile(0.5, {confirms})") < 3
        assert prometheus.value(f"sum(scheduler_running{{{ns}}})") in (0, 1, 2)
        assert prometheus.value(f"sum(scheduler_reconnects_total{{{ns}}})") == 0
