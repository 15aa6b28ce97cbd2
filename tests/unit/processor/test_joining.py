"""What the first token of an epoch is exchanged for, once its loop's history is known."""

from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler.control.first_tokens import joined
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.tokens import Act, Ending, LastRun, LoopId, State, Token
from scheduler.timing.schedules import Every, Once
from tests.stage import START, heard_of

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
HOURLY, DAILY = Every("1h", mode="fixed_rate"), Every("1d", mode="fixed_rate")
RAN = LastRun(Ending.SUCCEEDED, START - HOUR, START - HOUR, MINUTE)

LAST = Token(
    LoopId("task"),
    HOURLY,
    START,
    START + 5 * MINUTE,
    epoch=7,
    life=3,
    seq=12,
    attempt=1,
    args={"city": "Bonn"},
    carry="so far",
    previous_at=START - HOUR,
    last=RAN,
    trace={"traceparent": "the run before"},
)
FIRST = Token(
    LoopId("task"),
    HOURLY,
    START + HOUR,
    START + HOUR,
    epoch=9,
    life=3,
    first=True,
    args={"city": "Rome"},
    act=Act(Verb.REPAIR, START + MINUTE),
)


def joined_to(*tokens: Token, first: Token = FIRST) -> Token:
    """The verb of the first token is what the roster tells of last."""
    act = FIRST.act if first.act is None else first.act
    assert act is not None
    asked = first.life if stays(act.verb) else first.epoch
    latest = Entry(first.epoch, LoopState.ACTIVE, first.life, LAST.epoch, asked)
    return joined(first, heard_of(*tokens), latest)


def stays(verb: Verb) -> bool:
    """Return whether a verb leaves it alone how a run has ended its loop."""
    return verb in (Verb.REPAIR, Verb.RESCHEDULE)


def made_by(verb: Verb, **fields: Any) -> Token:
    return replace(FIRST, act=Act(verb, START + MINUTE), **fields)


@pytest.mark.parametrize(
    ("heard", "expected"),
    [
        (
            [replace(LAST, attempt=0), LAST, replace(LAST, epoch=8, seq=2)],
            replace(LAST, epoch=9, args={"city": "Rome"}),
        ),
        ([], replace(FIRST, first=False, act=None)),
        # Progress of an earlier life.
        ([replace(LAST, epoch=2)], replace(FIRST, first=False, act=None)),
    ],
)
def test_a_first_token_continues_its_life_with_its_own_epoch_and_arguments(
    heard: list[Token], expected: Token
) -> None:
    assert joined_to(*heard) == expected


@pytest.mark.parametrize(("due_after", "kept"), [(timedelta(0), True), (5 * MINUTE, False)])
def test_a_tick_due_before_a_reschedule_still_runs(due_after: timedelta, kept: bool) -> None:
    first = made_by(Verb.RESCHEDULE, schedule=DAILY, due_at=START + 24 * HOUR)
    token = joined_to(replace(LAST, due_at=START + due_after), first=first)
    assert (token.schedule, token.seq) == (DAILY, 12)
    assert (token.due_at == START) is kept
    assert (token.due_at == first.due_at) is not kept


@pytest.mark.parametrize(
    ("verb", "tick"), [(Verb.TRIGGER, LAST.scheduled_at), (Verb.RESUME, FIRST.scheduled_at)]
)
def test_an_explicit_next_run_is_kept(verb: Verb, tick: datetime) -> None:
    token = joined_to(LAST, first=made_by(verb))
    assert (token.seq, token.scheduled_at, token.due_at) == (12, tick, FIRST.due_at)


@pytest.mark.parametrize(
    ("verb", "state"), [(Verb.REPAIR, State.PAUSED), (Verb.RESUME, State.ARMED)]
)
def test_a_loop_paused_by_its_run_stays_paused_until_resumed(verb: Verb, state: State) -> None:
    stopped = replace(LAST, state=State.PAUSED, reason="sold out")
    token = joined_to(stopped, first=made_by(verb))
    reason = "sold out" if state is State.PAUSED else None
    assert (token.state, token.reason) == (state, reason)


def test_a_first_token_without_a_creator_is_taken_as_it_is():
    nobodys = replace(FIRST, act=None)
    assert joined_to(LAST, first=nobodys) == joined_to(LAST, first=made_by(Verb.RESUME))


DONE = replace(LAST, schedule=Once(START), state=State.DONE)
ON_DEMAND = [Verb.REPAIR, Verb.RESCHEDULE, Verb.RESUME, Verb.TRIGGER]


@pytest.mark.parametrize("verb", ON_DEMAND)
@pytest.mark.parametrize("moved", [False, True])
def test_a_finished_one_off_stays_finished_after_any_verb(verb: Verb, moved: bool) -> None:
    first = made_by(verb, schedule=DONE.schedule, args=DONE.args)
    # It was given another time in the meantime, and its own again.
    others = [replace(DONE, epoch=8, schedule=HOURLY, state=State.ARMED)] if moved else []
    token = joined_to(DONE, *others, first=first)
    assert (token.state, token.seq, token.last) == (State.DONE, DONE.seq, RAN)


@pytest.mark.parametrize("verb", ON_DEMAND)
@pytest.mark.parametrize(
    ("schedule", "args"),
    [(Once(START + HOUR), DONE.args), (DONE.schedule, {"city": "Rome"}), (DAILY, DONE.args)],
)
def test_a_finished_one_off_does_not_end_a_different_request(
    verb: Verb, schedule: Once | Every, args: dict[str, Any]
) -> None:
    at = START + HOUR
    first = made_by(verb, schedule=schedule, args=args, scheduled_at=at, due_at=at)
    token = joined_to(DONE, first=first)
    assert (token.state, token.seq, token.schedule) == (State.ARMED, DONE.seq, schedule)
    assert (token.args, token.scheduled_at, token.due_at) == (args, at, at)


def test_a_one_off_finished_in_an_earlier_life_runs_again() -> None:
    first = made_by(Verb.REPAIR, schedule=DONE.schedule, args=DONE.args)
    assert joined_to(replace(DONE, epoch=2), first=first).state is State.ARMED


@pytest.mark.parametrize("before", [HOURLY, Once(START)])
def test_a_moved_one_off_does_not_run_at_its_old_time(before: Every | Once) -> None:
    later = Once(START + HOUR)
    first = made_by(Verb.RESCHEDULE, schedule=later, scheduled_at=later.at, due_at=later.at)
    token = joined_to(replace(LAST, schedule=before, due_at=START), first=first)
    assert (token.schedule, token.scheduled_at, token.due_at) == (later, later.at, later.at)
