"""Retries, and what is parked in the end: a minute of waiting in no time."""

import pytest

from examples import sms
from examples.sms import app, send_sms
from scheduler.testing import Kit, eager

# A kit of this task alone: the campaign, which would send messages of its own, does not run.
of_send_sms = pytest.mark.scheduler_kit(tasks=[send_sms])


@pytest.fixture(autouse=True)
def provider(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sms, "provider", sms.Provider())


@of_send_sms
async def test_a_free_line_accepts_a_message_at_once(scheduler_kit: Kit) -> None:
    await send_sms.send("+12025550100", "Hello")
    await scheduler_kit.run_until_idle()
    scheduler_kit.assert_ran(send_sms, times=1)


@of_send_sms
async def test_a_busy_line_is_retried_after_1_s_and_10_s_later(
    scheduler_kit: Kit,
) -> None:
    began = scheduler_kit.now
    await send_sms.send("+12025550101", "Hello")
    await scheduler_kit.advance("15s")
    runs = scheduler_kit.runs.of(send_sms)
    assert [(run.started_at - began).total_seconds() for run in runs] == [0, 1, 11]
    assert [run.ending for run in runs] == ["retried", "retried", "succeeded"]


@of_send_sms
async def test_the_last_failure_is_parked_and_support_is_notified(
    scheduler_kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    await send_sms.send("+12025550102", "Hello")
    await scheduler_kit.advance("2m")
    (parked,) = scheduler_kit.parked
    assert parked.reason == "exhausted"
    assert parked.attempts == 4
    assert parked.arguments == {"phone": "+12025550102", "text": "Hello"}
    assert "support, please look at" in caplog.text


@of_send_sms
async def test_an_invalid_number_is_not_retried(scheduler_kit: Kit) -> None:
    await send_sms.send("call-me", "Hello")
    await scheduler_kit.run_until_idle()
    scheduler_kit.assert_ran(send_sms, times=1)
    assert [each.reason for each in scheduler_kit.parked] == ["rejected"]


async def test_the_campaign_sends_each_number_one_message(scheduler_kit: Kit) -> None:
    await scheduler_kit.advance("1h")
    assert [each.arguments["phone"] for each in scheduler_kit.sent] == list(sms.NUMBERS)
    assert [run.ending for run in scheduler_kit.runs.of("campaign")] == ["stopped"]


def test_code_that_sends_can_be_tested_without_a_kit() -> None:
    """Each message runs at once, in place; what it raises, its sender gets."""
    with eager(app):
        send_sms.blocking.send("+12025550100", "Hello")
        with pytest.raises(sms.Busy):
            send_sms.blocking.send("+12025550102", "Hello")
