"""Where a loop is, by its entry, its last put, the time, its queue and the roll call."""

from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from scheduler.brokers.contract import Depth
from scheduler.control.loops import TOLERANCE, Where, due_at_of, put_of, where
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.tokens import WHOLE, Act, LoopId, State, Token
from scheduler.queues.entries import RosterEntry
from scheduler.timing.durations import SECOND
from scheduler.timing.schedules import Every
from tests.stage import START

TIMEOUT = timedelta(minutes=5)
ACTIVE = Entry(2, LoopState.ACTIVE, 1)
PAUSED, GONE = (ACTIVE._replace(state=state) for state in (LoopState.PAUSED, LoopState.GONE))
TOKEN = Token(LoopId("task"), Every(SECOND), START, START, epoch=2, life=1, seq=7)
EMPTY, FULL, ALONE = Depth(0, 1), Depth(3, 1), Depth(0, 0)
LATE = TOLERANCE + SECOND
TASK = RosterEntry(LoopId("task", WHOLE), TOKEN.schedule, {}, PAUSED, at=START)
RESUMED = replace(TASK, entry=GONE, at=START + LATE)


def listed(entry: Entry) -> RosterEntry:
    return RosterEntry(TOKEN.loop, TOKEN.schedule, {}, entry, at=START - SECOND)


def place(
    entry: Entry | None = ACTIVE,
    token: Token | None = TOKEN,
    after: timedelta = LATE,
    depth: Depth | None = EMPTY,
    **more: Any,
) -> Where:
    put = None if token is None else put_of(token)
    there = None if entry is None else listed(entry)
    return where(there, put, START + after, depth, timeout=TIMEOUT, **more)


@pytest.mark.parametrize(
    ("expected", "given"),
    [
        (Where.UNSEEDED, {"entry": None}),
        (Where.REMOVED, {"entry": GONE}),
        (Where.PAUSED, {"entry": PAUSED}),
        (Where.PAUSED, {"token": replace(TOKEN, state=State.PAUSED)}),
        (Where.PAUSED, {"token": replace(TOKEN, state=State.DONE), "held": False}),
        (Where.PAUSED, {"of_task": TASK}),
        (Where.PAUSED, {"of_task": TASK, "token": None}),
        (Where.RUNNING, {"of_task": RESUMED, "held": False, "after": 2 * LATE - SECOND}),
        (Where.LOST, {"of_task": RESUMED, "held": False, "after": 2 * LATE}),
        (Where.UNHEARD, {"token": None}),
        (Where.LOST, {"token": None, "held": False}),
        (Where.WAITING, {"after": -SECOND}),
        (Where.WAITING, {"after": -SECOND, "held": False, "depth": FULL}),
        (Where.RUNNING, {"held": True, "depth": FULL}),
        (Where.RUNNING, {"held": False, "after": TOLERANCE}),
        (Where.LOST, {"held": False}),
        (Where.RUNNING, {"held": None}),
        (Where.LATE, {"held": None, "after": TIMEOUT + LATE}),
        (Where.READY, {"depth": FULL, "held": False}),
        (Where.READY, {"depth": FULL, "held": None}),
        (Where.LATE, {"depth": FULL, "held": None, "after": TIMEOUT + LATE}),
        (Where.UNATTENDED, {"depth": ALONE, "held": False}),
        (Where.RUNNING, {"depth": ALONE, "held": False, "after": SECOND}),
        # Its queue is not empty, but what was due after it has left that queue.
        (Where.LOST, {"depth": FULL, "held": False, "served_until": START + SECOND}),
        (Where.READY, {"depth": FULL, "held": False, "served_until": START}),
        # Of an older epoch, it tells nothing of this one.
        (Where.LOST, {"token": replace(TOKEN, epoch=1, state=State.DONE), "held": False}),
    ],
)
def test_states_of_a_loop(expected: Where, given: dict[str, Any]) -> None:
    assert place(**given) is expected


def test_a_first_token_is_due_when_it_is_put_and_an_epoch_without_a_put_at_its_first_tick() -> None:
    act = Act(Verb.RESUME, START)
    first = replace(TOKEN, first=True, act=act, due_at=START + timedelta(hours=1))
    assert due_at_of(listed(ACTIVE), put_of(first)) == START
    assert due_at_of(listed(PAUSED), put_of(TOKEN)) is None
    before = put_of(replace(TOKEN, epoch=1, due_at=START + timedelta(hours=1)))
    assert due_at_of(listed(ACTIVE), before) == due_at_of(listed(ACTIVE), None) == START
