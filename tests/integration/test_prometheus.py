"""What a real Prometheus knows of two processors, after scraping them for a while."""

import pytest

from tests.integration.conftest import Field
from tests.integration.watched import Watched, seeded
from tests.prometheus import Prometheus


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
