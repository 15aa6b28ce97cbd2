"""The times of schedules: why a loop did not run last night, and what is planned."""

from datetime import datetime, timedelta

import pytest

from scheduler import Cron, Every
from scheduler.control.loops import Where
from scheduler.dashboard.picture import LoopPicture, PastRun
from scheduler.dashboard.standings import Standing
from scheduler.dashboard.ticks import MOST_PAST, SLOT, PastTick, past_ticks, planned
from scheduler.protocol.epochs import Verb
from scheduler.protocol.tokens import Ending, LastRun, LoopId, State, Token
from scheduler.queues.journal import JournalEntry
from scheduler.timing.schedules import Once, Schedule
from tests.stage import START
from tests.unit.dashboard.test_standing import standing_of

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
HOURLY = Cron("0 * * * *")
NOON = START  # of 1 June


def ran(at: datetime, ending: Ending = Ending.SUCCEEDED, **how: timedelta | str) -> PastRun:
    """A run of the tick at this moment, that began so late and took so long."""
    late, took = how.get("late", SECOND), how.get("took", SECOND)
    assert isinstance(late, timedelta)
    assert isinstance(took, timedelta)
    error = str(how.get("error", ""))
    return PastRun(at + late, 0, LastRun(ending, at, at + late, took, error or None))


def did(verb: Verb, at: datetime, note: str = "", by: str = "maria") -> JournalEntry:
    return JournalEntry(at, "report", verb.value, 1, None, note=note, by=by)


def a_loop(*runs: PastRun, acts: tuple[JournalEntry, ...] = ()) -> LoopPicture:
    loop = LoopPicture(LoopId("report"), acts=list(acts))
    for run in runs:
        loop.add(run)
    return loop


def past(
    loop: LoopPicture,
    schedule: Schedule = HOURLY,
    *,
    now: datetime = NOON + MINUTE,
    back: timedelta | None = 3 * HOUR - MINUTE,
    pauses: bool = False,
    state: Where = Where.WAITING,
) -> list[PastTick]:
    standing = standing_of(loop, state, schedule)
    since = None if back is None else now - back
    return past_ticks(standing, now, since, pauses_itself=pauses)


def test_ticks_have_the_outcome_of_their_run_latest_first() -> None:
    error = ran(NOON - HOUR, Ending.ESCALATED, error="no toner")
    assert past(a_loop(ran(NOON - 2 * HOUR), error, ran(NOON))) == [
        PastTick(NOON, "succeeded"),
        PastTick(NOON - HOUR, "escalated", "no toner"),
        PastTick(NOON - 2 * HOUR, "succeeded"),
    ]


def test_a_late_tick_had_no_processor() -> None:
    loop = a_loop(ran(NOON, late=5 * HOUR))
    (tick, *_) = past(loop, now=NOON + 6 * HOUR - SECOND, back=6 * HOUR)
    assert tick.at == NOON + 5 * HOUR
    late = past(loop, now=NOON + 6 * HOUR, back=7 * HOUR)[-1]
    assert late.what == "succeeded"
    assert "It began 5\N{NO-BREAK SPACE}h late" in late.why
    assert "no processor was running" in late.why


PAUSED = (
    did(Verb.PAUSE, NOON - 90 * MINUTE, "stocktaking"),
    did(Verb.RESUME, NOON - 30 * MINUTE),
)


@pytest.mark.parametrize(
    ("took", "acts", "what", "why"),
    [
        (SECOND, (), "missed", "It did not run. The next run, 1 h later"),
        (90 * MINUTE, (), "missed", "The previous run was still in progress: it took 1 h 30 m."),
        (SECOND, PAUSED, "paused", "It was paused by maria: stocktaking"),
    ],
)
def test_a_tick_without_a_run_says_why(
    took: timedelta, acts: tuple[JournalEntry, ...], what: str, why: str
) -> None:
    last, tick, first = past(a_loop(ran(NOON - 2 * HOUR, took=took), ran(NOON), acts=acts))
    assert (first.what, tick.what, last.what) == ("succeeded", what, "succeeded")
    assert tick.why.replace("\N{NO-BREAK SPACE}", " ").startswith(why)


@pytest.mark.parametrize(
    ("ending", "pauses", "what"),
    [
        (Ending.ESCALATED, True, "paused"),
        (Ending.ESCALATED, False, "missed"),
        (Ending.STOPPED, False, "paused"),
    ],
)
def test_a_tick_that_paused_its_loop_has_the_error(ending: Ending, pauses: bool, what: str) -> None:
    loop = a_loop(ran(NOON - 2 * HOUR, ending, error="no toner"))
    tick = past(loop, pauses=pauses)[0]
    assert tick.what == what
    assert ("It had paused itself after its run before: no toner" in tick.why) is (what == "paused")
    loop.acts.append(did(Verb.RESUME, NOON - 90 * MINUTE))
    assert past(loop, pauses=pauses)[0].what == "missed"


def test_a_due_tick_has_the_state_of_its_loop() -> None:
    loop = a_loop(ran(NOON - HOUR))
    token = Token(LoopId("report"), HOURLY, NOON, NOON, state=State.ARMED)
    loop.see(token, 10)
    (tick, *_) = past(loop, state=Where.UNATTENDED)
    assert (tick.what, tick.at) == ("due", NOON)
    assert "no processor takes messages of its task" in tick.why


def test_unknown_ticks_are_left_out() -> None:
    assert past(a_loop(), back=None) == []  # before the journal
    assert [tick.what for tick in past(a_loop(), back=HOUR)] == ["unknown"]
    new = a_loop(acts=(did(Verb.SEED, NOON - MINUTE),))
    assert [tick.at for tick in past(new)] == [NOON]
    assert past(a_loop(ran(NOON)), Every("1h")) == []  # it has no fixed times


def test_the_latest_of_many_ticks_are_listed() -> None:
    schedule = Cron("*/5 * * * *")
    told = past(a_loop(), schedule, back=24 * HOUR)
    assert len(told) == MOST_PAST
    assert told[0].at > told[1].at
    assert schedule.next_after(told[0].at) > NOON + MINUTE


# The next 24 hours


def planned_loop(name: str, schedule: Schedule, state: Where = Where.WAITING) -> Standing:
    return standing_of(LoopPicture(LoopId(name)), state, schedule)


def test_planned_loops_that_pile_up_are_shown_with_their_time() -> None:
    nightly = [planned_loop(f"n{number}", Cron("0 2 * * *")) for number in range(3)]
    agenda = planned([*nightly, planned_loop("other", Cron("30 2 * * *"))], START)
    (busy,) = agenda.busy
    assert (busy.at, busy.loops) == (START + 14 * HOUR, ["n0", "n1", "n2"])
    at_two = dict(agenda.columns)[START + 14 * HOUR]
    assert at_two == 3
    assert [name for _, name in agenda.upcoming] == ["n0", "n1", "n2", "other"]


def test_loops_with_one_cron_expression_share_its_times(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, next_after = list[datetime](), Cron.next_after

    def counted(cron: Cron, moment: datetime) -> datetime:
        asked.append(moment)
        return next_after(cron, moment)

    monkeypatch.setattr(Cron, "next_after", counted)
    agenda = planned(
        [planned_loop(f"n{number:02}", Cron("0 * * * *")) for number in range(60)], NOON
    )
    assert sum(count for _, count in agenda.columns) == 60 * 24
    assert [*agenda.upcoming] == [(NOON + HOUR, f"n{number:02}") for number in range(50)]
    assert len(asked) < 60


def test_frequent_loops_are_counted_and_paused_ones_left_out() -> None:
    paused = planned_loop("a", Every("1h"), Where.PAUSED)
    agenda = planned([planned_loop("pulse", Every("10s")), paused], START)
    assert (agenda.often, agenda.paused) == (1, 1)
    assert agenda.upcoming == []
    assert agenda.steady == SLOT / timedelta(seconds=10)
    assert {count for _, count in agenda.columns} == {0}


def test_a_one_off_is_planned_once() -> None:
    agenda = planned([planned_loop("once", Once(START + HOUR))], START)
    assert list(agenda.upcoming) == [(START + HOUR, "once")]
    hourly = planned([planned_loop("hourly", Every("1h", mode="fixed_rate"))], START)
    assert len(hourly.upcoming) == 24
