"""What the dashboard knows, from messages in whatever order."""

from dataclasses import replace
from datetime import datetime, timedelta
from itertools import permutations
from typing import Any

import pytest

from scheduler import Every
from scheduler.dashboard import picture as pictures
from scheduler.dashboard.acknowledgements import Acknowledgement
from scheduler.dashboard.picture import (
    ACTS_KEPT,
    FAILURES_KEPT,
    ROUTINE_KEPT,
    RUNS_KEPT,
    Entries,
    Picture,
)
from scheduler.protocol.calls import task_key
from scheduler.protocol.epochs import Entry, LoopState, Verb
from scheduler.protocol.hatchery import NO_WAIT
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import (
    Act,
    Ending,
    LastRun,
    LoopId,
    Replay,
    Token,
    encode,
    token_key,
)
from scheduler.queues.entries import RosterEntry, messages_of, parts_of
from scheduler.queues.failed import Reason, kind_of, parked, record_of
from scheduler.queues.journal import JournalEntry
from scheduler.tasks.tasks import SUPERVISION
from tests.stage import START

POLL = LoopId("poll")
SECOND = timedelta(seconds=1)


def at(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


def ran(seq: int, *, ending: Ending = Ending.SUCCEEDED, attempt: int = 1, **others: Any) -> Token:
    """The token that was put after tick `seq`, at second `seq`."""
    last = LastRun(ending, at(seq), at(seq + 0.1), 2 * SECOND, attempt=attempt)
    retried = ending is Ending.RETRIED
    token = Token(
        POLL,
        Every("10s"),
        at(seq + 10),
        at(seq + 10),
        epoch=5,
        seq=seq if retried else seq + 1,
        attempt=attempt if retried else 0,
        last=last,
    )
    return replace(token, **others)


def message(token: Token, namespace: str = "test") -> Message:
    return encode(token, namespace)


def picture_of(*tokens: Token) -> Picture:
    picture = Picture("test")
    for token in tokens:
        picture.hear(message(token))
    return picture


def test_messages_may_come_in_any_order_and_twice() -> None:
    tokens = [ran(0), ran(1, ending=Ending.RETRIED), ran(2)]
    for order in permutations([*tokens, tokens[0]]):
        picture = picture_of(*order)
        token = picture.loops[POLL].token
        assert token is not None
        assert token.due_at == at(12)
        assert [run.seq for run in picture.loops[POLL].runs] == [0, 1, 2]
        assert picture.loops[POLL].runs[-1].last.duration == 2 * SECOND
        assert [entry.seq for entry in picture.entries.all] == [0, 1, 2]
        assert sum(minute.runs for _, minute in picture.minutes.last(1, at(60))) == 3


def test_the_latest_loops_runs_and_operations_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    loop = picture_of(*(ran(seq) for seq in reversed(range(RUNS_KEPT + 5)))).loops[POLL]
    assert [run.seq for run in loop.runs] == list(range(5, RUNS_KEPT + 5))
    acts = [ran(0, epoch=n, act=Act(Verb.TRIGGER, at(n))) for n in range(1, ACTS_KEPT + 4)]
    assert len(picture_of(*acts).loops[POLL].acts) == ACTS_KEPT
    monkeypatch.setattr(pictures, "MOST_LOOPS", 2)
    many = picture_of(*(ran(0, loop=LoopId("poll", f"k{number}")) for number in range(4)))
    assert len(many.loops) == 2


def test_a_carried_value_is_kept_unless_it_is_large() -> None:
    small = picture_of(ran(0, carry={"cursor": 7})).loops[POLL]
    large = picture_of(ran(0, carry="x" * pictures.LARGE)).loops[POLL]
    assert small.token is not None
    assert (small.token.carry, small.is_large) == ({"cursor": 7}, False)
    assert large.token is not None
    assert (large.token.carry, large.is_large) == (None, True)


def listed(epoch: int, state: LoopState, reason: str = "") -> RosterEntry:
    return RosterEntry(POLL, Every("10s"), {}, Entry(epoch, state, 5), reason)


def test_parked_messages_are_shown_with_their_loop() -> None:
    picture = picture_of(ran(0))
    error = RuntimeError("boom")
    key = token_key(POLL, NO_WAIT.key)
    record = record_of(parked(message(ran(1)), key, Reason.EXHAUSTED, error, at(2)))
    assert picture.hear(record) == at(2)
    (entry,) = picture.loops[POLL].acts
    assert (entry.what, entry.note) == ("parked", "exhausted: RuntimeError: boom")


def test_failures_are_counted_by_task_error_and_time() -> None:
    errors = ("TimeoutError: 5 s", "TimeoutError: 10 s", "OSError: full")
    runs = [ran(0, attempt=number, ending=Ending.RETRIED) for number in range(1, len(errors) + 1)]
    failed = [
        replace(run, last=replace(run.last, error=error, started_at=at(60 * number)))
        for number, (run, error) in enumerate(zip(runs, errors, strict=True))
        if run.last is not None
    ]
    picture = picture_of(*failed, failed[0])
    error, loop, call = TimeoutError("5 s"), token_key(POLL, NO_WAIT.key), task_key("poll")
    for it, key, second in (
        (message(ran(1)), loop, 61),
        (Message(b"{}"), call, 300),
        (Message(b"{}"), call, 301),
    ):
        picture.hear(record_of(parked(it, key, Reason.EXHAUSTED, error, at(second))))
    kind = kind_of(errors[0])
    assert picture.failures("poll", kind, at(359), 3, 1) == [0, 2, 2]
    assert picture.failures("poll", kind, at(359), 2, 20) == [0, 4]
    assert picture.failures("poll", "OSError: full", at(359), 2, 1) == [1, 0]
    assert picture.failures("mail", kind, at(359), 2, 1) == []


def test_a_loop_beyond_the_limit_is_shown_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "MOST_LOOPS", 1)
    monkeypatch.setattr(pictures, "MOST_ADOPTED", 2)
    picture = picture_of(ran(0))
    loops = [LoopId("poll", f"k{number}") for number in range(3)]
    for loop in loops:
        picture.adopt(replace(listed(5, LoopState.ACTIVE), loop=loop))
    picture.hear(message(ran(0, loop=loops[2])))
    assert [*picture.loops] == [POLL, *loops[1:]]
    assert picture.loops[loops[2]].token is not None


def test_acknowledgements_are_kept_once_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pictures, "GROUPS_KEPT", 2)
    picture = Picture("test")
    for task, second in (("a", 1), ("b", 2), ("b", 2), ("c", 3)):
        told = Acknowledgement(task, "E", "mia", at(second))
        picture.hear(told.record)
    assert [each.loop for each in picture.entries.all] == ["a", "b", "c"]
    assert [task for task, _ in picture.acknowledged] == ["b", "c"]


def test_supervision_other_apps_and_replays_leave_no_trace() -> None:
    picture = Picture("test")
    picture.hear(message(ran(0, loop=SUPERVISION)))
    picture.hear(message(ran(0), namespace="other"))
    picture.hear(message(Replay.of(ran(0))))
    picture.hear(Message(b"\xff", type="scheduler.token"))
    other = message(ran(0, loop=LoopId("poll", "k")))
    picture.hear(replace(other, body=other.body.replace(b'"k"', b'"\\ud800"')))  # no text
    assert not picture.loops
    assert not picture.entries.all


def test_minutes_count_first_attempts_alone_as_late() -> None:
    late = LastRun(Ending.ESCALATED, at(0), at(9), SECOND, attempt=2)
    again = ran(0, last=late)
    picture = picture_of(ran(0, ending=Ending.RETRIED), again)
    skipped = LastRun(Ending.SKIPPED, at(0), at(30), timedelta(0))
    picture.minutes.count(skipped)
    ((begin, minute),) = picture.minutes.last(1, at(119))
    assert begin == START
    assert (minute.runs, minute.failed, minute.late.total()) == (2, 2, 1)
    late = minute.late_at(0.99)
    assert late is not None
    assert abs(late / timedelta(seconds=0.1) - 1) < 0.2
    picture.minutes.note_backlog(3, at(60))
    ((_, both),) = picture.minutes.last(1, at(300), width=5)
    assert (both.runs, both.failed, both.backlog) == (2, 2, 3)


def test_only_changes_have_a_new_version() -> None:
    picture = Picture("test")
    picture.be(False, START)
    before = picture.version
    picture.be(False, at(1))
    picture.measure({})
    assert (picture.version, picture.since) == (before, START)
    picture.be(True, at(2))
    assert (picture.version > before, picture.since) == (True, at(2))


def test_routine_entries_displace_no_failure_or_operation() -> None:
    entries = Entries()

    def note(second: int, what: str, loop: str = "poll", by: str = "") -> None:
        entries.add(JournalEntry(at(second), loop, what, second, 1, by=by))

    note(0, Verb.PAUSE, by="ada")
    note(1, Ending.ESCALATED, loop="other")
    for second in range(2, 2 + 2 * ROUTINE_KEPT):
        note(second, Ending.SUCCEEDED)
        note(second, Ending.ESCALATED)
    found = [(each.loop, each.what) for each in entries.all]
    assert found[:2] == [("poll", Verb.PAUSE), ("other", Ending.ESCALATED)]
    assert found.count(("poll", Ending.SUCCEEDED)) == ROUTINE_KEPT
    assert found.count(("poll", Ending.ESCALATED)) == FAILURES_KEPT


def test_a_new_entry_is_shown_unless_it_is_unreadable() -> None:
    picture = Picture("test")
    (part,) = parts_of(next(messages_of([RosterEntry(POLL, Every("10s"), at=START)])))
    for number, loop in enumerate(("poll", "spoilt")):
        changes = {"task": loop} if loop == "poll" else {"task": loop, "schedule": {"moon": 1}}
        first = picture.listing.enter_first(part | changes, number)
        assert first is not None
        picture.hear_of_entry(first.loop)
    assert [*picture.loops] == [POLL]
