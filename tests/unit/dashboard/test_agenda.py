"""What is planned for the next 24 hours."""

from datetime import timedelta

from scheduler import Cron, Every
from scheduler.control.where import Where
from scheduler.dashboard.agenda import SLOT, planned
from scheduler.dashboard.picture import LoopPicture
from scheduler.dashboard.standing import Standing
from scheduler.protocol.tokens import LoopId
from scheduler.timing.once import Once
from scheduler.timing.schedules import Schedule
from tests.stage import START

HOUR = timedelta(hours=1)


def standing(name: str, schedule: Schedule, state: Where = Where.WAITING) -> Standing:
    return Standing(name, state, LoopPicture(LoopId(name)), schedule, True, 0)


def test_loops_that_pile_up_are_told_with_the_moment() -> None:
    nightly = [standing(f"n{number}", Cron("0 2 * * *")) for number in range(3)]
    agenda = planned([*nightly, standing("other", Cron("30 2 * * *"))], START)
    (busy,) = agenda.busy
    assert (busy.at, busy.loops) == (START + 14 * HOUR, ["n0", "n1", "n2"])
    at_two = dict(agenda.columns)[START + 14 * HOUR]
    assert at_two == 3
    assert [name for _, name in agenda.upcoming] == ["n0", "n1", "n2", "other"]


def test_what_runs_often_is_told_in_a_number() -> None:
    agenda = planned([standing("pulse", Every("10s"))], START)
    assert agenda.often == 1
    assert agenda.upcoming == []
    assert agenda.steady == SLOT / timedelta(seconds=10)
    assert {count for _, count in agenda.columns} == {0}


def test_what_is_paused_is_left_out() -> None:
    agenda = planned([standing("a", Every("1h"), Where.PAUSED)], START)
    assert (agenda.paused, agenda.often, list(agenda.upcoming)) == (1, 0, [])


def test_a_one_off_is_planned_once() -> None:
    agenda = planned([standing("once", Once(START + HOUR))], START)
    assert list(agenda.upcoming) == [(START + HOUR, "once")]
    hourly = planned([standing("hourly", Every("1h", mode="fixed_rate"))], START)
    assert len(hourly.upcoming) == 24
