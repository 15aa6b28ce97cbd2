import functools
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler.errors import CarryError, ScheduleError
from scheduler.protocol.messages import Message
from scheduler.tasks.context import CARRY_LIMIT, Context

NOON = datetime(2026, 6, 15, 12, tzinfo=UTC)
SECOND = timedelta(seconds=1)


def context() -> tuple[Context, list[Any]]:
    """A run that began at noon with a second to go, and what it handed on."""
    handed_on: list[Any] = []
    run = Context(
        task="report",
        arguments={},
        loop="report",
        key="",
        seq=7,
        scheduled_at=NOON,
        previous_at=None,
        started_at=NOON,
        attempt=0,
        redelivered=False,
        deadline=NOON + SECOND,
        carried=None,
        message=Message(),
        routing_key="loop.report",
        state=None,
        _extend=lambda span: NOON + span,
        _hand_on=handed_on.append,
    )
    return run, handed_on


@pytest.mark.parametrize(
    ("value", "arrives"), [(None, None), ("é", "é"), ((1, 2), [1, 2]), ({5: None}, {"5": None})]
)
def test_a_carried_value_travels_as_json(value: Any, arrives: Any):
    run, handed_on = context()
    run.carry(value)
    assert handed_on == [arrives]


DEEP: Any = functools.reduce(lambda inner, _: [inner], range(100_000), list[object]())


@pytest.mark.parametrize("value", [{1}, float("nan"), DEEP], ids=["set", "nan", "deep"])
def test_values_that_json_cannot_hold_are_not_carried(value: Any):
    run, handed_on = context()
    with pytest.raises(CarryError, match="The carried value must be JSON"):
        run.carry(value)
    assert handed_on == []


def test_up_to_64_kib_are_carried():
    run, handed_on = context()
    quoted = CARRY_LIMIT - len('""')
    run.carry("x" * quoted)
    with pytest.raises(CarryError, match=r"is 65537 bytes of JSON; at most 64 KiB"):
        run.carry("x" * (quoted + 1))
    assert handed_on == ["x" * quoted]


def test_a_deadline_is_extended_by_a_duration():
    run, _ = context()
    run.extend("1m")
    assert run.deadline == NOON + 60 * SECOND
    with pytest.raises(ScheduleError, match="expected a number and a unit"):
        run.extend("later")
