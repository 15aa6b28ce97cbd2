"""Messages for later: what was sent, when it is due, and that it comes then."""

from datetime import UTC, datetime, timedelta

import pytest

from examples.reminders import app, remind
from scheduler.testing import Kit

__all__ = ["app"]  # which the fixture scheduler_app returns

NEW_YEAR = datetime(2027, 1, 1, tzinfo=UTC)


@pytest.mark.scheduler_kit(start=NEW_YEAR)
async def test_each_appointment_sends_two_reminders(scheduler_kit: Kit) -> None:
    await scheduler_kit.advance("3s")
    assert [(each.arguments["text"], each.due_at) for each in scheduler_kit.sent] == [
        ("appointment 1 is now", NEW_YEAR + timedelta(seconds=13)),
        ("appointment 1 is soon", NEW_YEAR + timedelta(seconds=10)),
    ]


@pytest.mark.scheduler_kit(start=NEW_YEAR, tasks=[remind])
async def test_a_reminder_waits_for_its_time(
    scheduler_kit: Kit, caplog: pytest.LogCaptureFixture
) -> None:
    """Only the task that is tested runs here, and no loop beside it."""
    caplog.set_level("INFO")
    await remind.send_later("1d", "pack")
    await scheduler_kit.advance("23h59m59s")
    assert "pack" not in caplog.messages
    await scheduler_kit.advance("1s")
    assert "pack" in caplog.messages
    assert scheduler_kit.now == NEW_YEAR + timedelta(days=1)
