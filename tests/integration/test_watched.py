"""A processor as probes and a real Prometheus see it."""

import asyncio
import subprocess
import sys

import pytest

from tests.integration.conftest import Field
from tests.integration.watched import Watched, seeded
from tests.prometheus import Prometheus


def live(port: int) -> subprocess.CompletedProcess[str]:
    """What an exec probe runs."""
    return subprocess.run(
        [sys.executable, "-m", "scheduler", "doctor", "--live", "--health-port", str(port)],
        capture_output=True,
        text=True,
        timeout=60,
    )


async def test_a_processor_with_a_blocked_event_loop_fails_its_probes(field_: Field) -> None:
    field = await asyncio.to_thread(seeded, field_)
    watched = Watched(field)
    await watched.until_status("/readyz", 200)
    assert (await watched.asked("/livez")).json == {"live": True, "why": []}
    assert (await asyncio.to_thread(live, watched.port)).returncode == 0
    await asyncio.to_thread(field.call, "trigger", "block")
    blocked = await watched.until_status("/livez", 503)
    assert not blocked.json["live"]
    (why,) = blocked.json["why"]
    assert "apps/watched.py" in why
    assert "(block)" in why
    unready = await watched.asked("/readyz")
    assert (unready.status, unready.json["ready"]) == (503, False)
    assert "(block): nothing else runs" in watched.log  # for after it was killed
    probe = await asyncio.to_thread(live, watched.port)
    assert (probe.returncode, probe.stdout.count("(block)")) == (1, 1), probe.stderr


@pytest.mark.timeout(400)  # it may have to be installed
def test_prometheus_scrapes_two_processors(field_: Field) -> None:
    field = seeded(field_)
    processors = [Watched(field) for _ in range(2)]
    ns = f'namespace="{field.namespace}"'
    with Prometheus([each.port for each in processors]) as prometheus:
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
