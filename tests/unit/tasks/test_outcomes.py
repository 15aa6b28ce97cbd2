from datetime import timedelta
from typing import Any

import pytest

from scheduler.errors import ScheduleError
from scheduler.tasks.retries import Reject, RetryLater, StopLoop


def test_a_task_gives_the_reason_of_its_outcome():
    for kind in (Reject, StopLoop):
        assert str(kind("bad order")) == kind("bad order").reason == "bad order"
        assert kind(ValueError("bad order")).reason == "bad order"
        assert kind(5).reason == "5"
    later = RetryLater("10m", "busy")
    assert (later.delay, later.reason, str(later)) == (timedelta(minutes=10), "busy", "busy")


class Undocumented(Reject): ...


def test_an_outcome_without_a_reason_names_itself():
    assert (StopLoop().reason, RetryLater("1s").reason) == ("", "")
    assert str(StopLoop()) == "The task asked for its loop to be paused."
    assert str(Undocumented()).startswith("The task rejected its input: no retry can help")


@pytest.mark.parametrize("delay", ["soon", "-1s"])
def test_a_delay_must_be_a_duration(delay: Any):
    with pytest.raises(ScheduleError, match="^delay: expected"):
        RetryLater(delay)
