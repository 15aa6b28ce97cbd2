from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from scheduler.processor.settlement import (
    Broken,
    Cancelled,
    Disposition,
    Finished,
    Outcome,
    Parking,
    Raised,
    Returned,
    RunCancelled,
    Settlement,
    Skipped,
    settle,
    settle_call,
)
from scheduler.protocol.messages import LINE_LENGTH
from scheduler.protocol.tokens import Ending, LastRun, LoopId, Replay, State, Token
from scheduler.queues.failed import Reason
from scheduler.tasks.retries import Policy, Reject, Retry, RetryLater, StopLoop
from scheduler.timing.schedules import Cron, Every, Once, Schedule

HOUR, MINUTE, SECOND = timedelta(hours=1), timedelta(minutes=1), timedelta(seconds=1)
NINE = datetime(2026, 6, 1, 9, 0, tzinfo=UTC)
STARTED, ENDED = NINE + SECOND, NINE + MINUTE
HOURLY, CRON, FIXED_DELAY = Every("1h", mode="fixed_rate"), Cron("0 * * * *"), Every("1h")
ALL = Every("1h", mode="fixed_rate", catch_up="all")
FAILURE = ValueError("no")
POLICY = Policy(Retry(2, delays=["10s", "1m"], jitter=0.5))
CHANCE = 0.75  # spreads 10 s to 12.5 s

TOKEN = Token(
    loop=LoopId("report"),
    schedule=HOURLY,
    epoch=5,
    life=3,
    scheduled_at=NINE,
    due_at=NINE,
    seq=7,
    args={"city": "Bonn"},
    carry="before",
)


def settled(
    outcome: Outcome,
    token: Token = TOKEN,
    policy: Policy = POLICY,
    *,
    tick: datetime | None = None,
    ended_at: datetime = ENDED,
) -> Settlement:
    run = Finished(token, tick or token.scheduled_at, STARTED, ended_at, outcome)
    return settle(run, policy, chance=lambda: CHANCE)


def put(settlement: Settlement) -> Token:
    assert settlement.put is not None
    return settlement.put


def record(ending: Ending, error: str | None = None, attempt: int = 1) -> LastRun:
    return LastRun(ending, NINE, STARTED, ENDED - STARTED, error, attempt)


NEXT = replace(TOKEN, seq=8, scheduled_at=NINE + HOUR, due_at=NINE + HOUR, previous_at=NINE)
"""The next tick, still without the record of the run before."""


def next_tick(ending: Ending, error: str | None = None, attempt: int = 1) -> Token:
    return replace(NEXT, last=record(ending, error, attempt))


def paused(ending: Ending, error: str | None, reason: str, attempt: int = 1) -> Token:
    return replace(next_tick(ending, error, attempt), state=State.PAUSED, reason=reason)


def parking(
    error: Exception, token: Token = TOKEN, *, reason: Reason = Reason.EXHAUSTED
) -> Parking:
    told = f"{type(error).__name__}: {error}"
    last = record(Ending.ESCALATED, told, token.attempt + 1)
    parked = replace(token, attempt=token.attempt + 1, last=last)
    return Parking(Replay.of(parked), reason, error)


LAST_ATTEMPT = replace(TOKEN, attempt=2)
REJECT, BUSY = Reject("bad order"), RetryLater("3h", "busy")
BY_ADA = RunCancelled("cancelled by ada@desk")
REQUEUED = Settlement(None, disposition=Disposition.REQUEUE)
NOTHING = Settlement(None, disposition=Disposition.NOTHING)


def retrying(error: str, delay: timedelta = 12.5 * SECOND) -> Settlement:
    last = record(Ending.RETRIED, error)
    token = replace(TOKEN, attempt=1, due_at=ENDED + delay, last=last)
    return Settlement(Ending.RETRIED, put=token)


def escalated(park: Parking) -> Settlement:
    told = f"{type(park.error).__name__}: {park.error}"
    assert park.token is not None
    after = next_tick(Ending.ESCALATED, told, park.token.attempt)
    return Settlement(Ending.ESCALATED, park=park, put=after)


def stopped(error: str | None, reason: str) -> Settlement:
    return Settlement(Ending.STOPPED, put=paused(Ending.STOPPED, error, reason))


def gone_on(ending: Ending, error: str | None = None, carry: str = "before") -> Settlement:
    return Settlement(ending, put=replace(next_tick(ending, error), carry=carry))


@pytest.mark.parametrize(
    ("token", "outcome", "expected"),
    [
        (TOKEN, Returned("after"), gone_on(Ending.SUCCEEDED, carry="after")),
        (TOKEN, Raised(FAILURE), retrying("ValueError: no")),
        (TOKEN, Raised(BUSY), retrying("RetryLater: busy", 3 * HOUR)),
        (LAST_ATTEMPT, Raised(FAILURE), escalated(parking(FAILURE, LAST_ATTEMPT))),
        (LAST_ATTEMPT, Raised(BUSY), escalated(parking(BUSY, LAST_ATTEMPT))),
        (TOKEN, Raised(REJECT), escalated(parking(REJECT, reason=Reason.REJECTED))),
        (TOKEN, Raised(StopLoop("sold out")), stopped("sold out", "sold out")),
        (TOKEN, Raised(StopLoop()), stopped(None, "the task stopped its loop")),
        (TOKEN, Cancelled(BY_ADA), gone_on(Ending.CANCELLED, "cancelled by ada@desk")),
        (
            TOKEN,
            Cancelled(BY_ADA, escalate=True),
            escalated(parking(BY_ADA, reason=Reason.CANCELLED)),
        ),
        (TOKEN, Skipped("late by 5 s"), gone_on(Ending.SKIPPED, "late by 5 s")),
        (TOKEN, Broken.INTERRUPTED, REQUEUED),
        (TOKEN, Broken.LOST, NOTHING),
        (TOKEN, Broken.LEFT_BEHIND, NOTHING),
    ],
)
def test_settlements_of_tokens(token: Token, outcome: Outcome, expected: Settlement):
    assert settled(outcome, token) == expected


REPLAY = Replay.of(TOKEN)


def parked_again(error: Exception, reason: Reason = Reason.EXHAUSTED) -> Settlement:
    """Though retries are left."""
    return Settlement(Ending.ESCALATED, park=parking(error, REPLAY, reason=reason))


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [
        (Returned("after"), Settlement(Ending.SUCCEEDED)),
        (Raised(FAILURE), parked_again(FAILURE)),
        (Raised(REJECT), parked_again(REJECT, Reason.REJECTED)),
        (Raised(StopLoop("enough")), Settlement(Ending.STOPPED)),
        (Cancelled(BY_ADA), Settlement(Ending.CANCELLED)),
        (Cancelled(BY_ADA, escalate=True), parked_again(BY_ADA, Reason.CANCELLED)),
        (Broken.INTERRUPTED, REQUEUED),
        (Broken.LOST, NOTHING),
    ],
)
@pytest.mark.parametrize("after_failure", ["continue", "pause"])
def test_a_replay_has_no_successor(outcome: Outcome, expected: Settlement, after_failure: str):
    policy = replace(POLICY, after_failure=after_failure)
    assert settled(outcome, REPLAY, policy) == expected


def test_an_exhausted_loop_is_paused_if_its_task_says_so():
    policy = replace(POLICY, after_failure="pause")
    reason = "paused after a failure: ValueError: no"
    assert settled(Raised(FAILURE), LAST_ATTEMPT, policy) == Settlement(
        Ending.ESCALATED,
        park=parking(FAILURE, LAST_ATTEMPT),
        put=paused(Ending.ESCALATED, "ValueError: no", reason, 3),
    )


def test_the_reason_of_a_pause_is_one_line_that_fits():
    stopped = put(settled(Raised(StopLoop("sold\nout " * 1000))))
    assert stopped.last is not None
    for told in stopped.reason, stopped.last.error:
        assert told is not None
        assert told.startswith("sold out sold out")
        assert len(told) == LINE_LENGTH


@pytest.mark.parametrize("outcome", [Returned(None), Raised(REJECT), Skipped("late")])
def test_the_reason_of_a_pause_is_cleared_by_the_next_run(outcome: Outcome):
    resumed = replace(TOKEN, reason="paused by an operator")
    assert put(settled(outcome, resumed)).reason is None


@pytest.mark.parametrize(
    ("schedule", "following", "missed"),
    [
        (HOURLY, NINE + 4 * HOUR, 3),
        (CRON, NINE + 4 * HOUR, 3),
        (ALL, NINE + HOUR, 0),
        (FIXED_DELAY, NINE + 4.5 * HOUR, 0),
    ],
)
@pytest.mark.parametrize("outcome", [Returned(None), Raised(REJECT), Raised(StopLoop("enough"))])
def test_ticks_that_pass_during_a_run_are_counted(
    schedule: Schedule, following: datetime, missed: int, outcome: Outcome
):
    late = NINE + 3.5 * HOUR
    settlement = settled(outcome, replace(TOKEN, schedule=schedule), ended_at=late)
    after = put(settlement)
    assert (after.scheduled_at, after.due_at, settlement.missed) == (following, following, missed)


@pytest.mark.parametrize(
    ("schedule", "due_at", "ended_at", "following", "missed"),
    [
        (HOURLY, NINE - 20 * MINUTE, NINE - 19 * MINUTE, NINE, 0),
        (CRON, NINE - 20 * MINUTE, NINE - 19 * MINUTE, NINE, 0),
        # A run that outlasts the coming tick does not swallow it.
        (HOURLY, NINE - MINUTE, NINE + 30 * MINUTE, NINE + HOUR, 1),
        (ALL, NINE - MINUTE, NINE + 30 * MINUTE, NINE, 0),
        (FIXED_DELAY, NINE - 20 * MINUTE, NINE - 19 * MINUTE, NINE + 41 * MINUTE, 0),
    ],
)
@pytest.mark.parametrize("outcome", [Returned(None), Raised(REJECT)])
def test_a_triggered_run_keeps_the_coming_tick_except_that_of_a_fixed_delay(
    schedule: Schedule,
    due_at: datetime,
    ended_at: datetime,
    following: datetime,
    missed: int,
    outcome: Outcome,
):
    triggered = replace(TOKEN, schedule=schedule, due_at=due_at)
    settlement = settled(outcome, triggered, tick=due_at, ended_at=ended_at)
    assert (put(settlement).scheduled_at, settlement.missed) == (following, missed)


def test_a_triggered_run_that_is_retried_keeps_the_coming_tick():
    due_at = NINE - 20 * MINUTE
    triggered = replace(TOKEN, due_at=due_at)
    retry = put(settled(Raised(FAILURE), triggered, tick=due_at, ended_at=due_at + SECOND))
    expected = due_at, due_at + SECOND + 12.5 * SECOND, 1
    assert (retry.scheduled_at, retry.due_at, retry.attempt) == expected
    assert put(settled(Returned(None), retry, ended_at=due_at + MINUTE)).scheduled_at == NINE


def test_a_run_during_which_the_clock_was_set_back_took_no_time():
    last = put(settled(Returned(None), ended_at=STARTED - SECOND)).last
    assert last is not None
    assert last.duration == timedelta(0)


# Calls


def again(delay: timedelta) -> Settlement:
    return Settlement(Ending.RETRIED, retry_in=delay)


def given_up(error: Exception, reason: Reason = Reason.EXHAUSTED) -> Settlement:
    return Settlement(Ending.ESCALATED, park=Parking(None, reason, error))


@pytest.mark.parametrize(
    ("attempt", "outcome", "expected"),
    [
        (0, Returned("anything"), Settlement(Ending.SUCCEEDED)),
        (0, Raised(FAILURE), again(12.5 * SECOND)),
        (1, Raised(FAILURE), again(75 * SECOND)),
        (99, Raised(FAILURE), given_up(FAILURE)),
        (2, Raised(BUSY), given_up(BUSY)),
        (0, Raised(REJECT), given_up(REJECT, Reason.REJECTED)),
        (1, Raised(BUSY), again(3 * HOUR)),
        (0, Raised(StopLoop("enough")), Settlement(Ending.STOPPED)),
        (0, Cancelled(BY_ADA), Settlement(Ending.CANCELLED)),
        (0, Cancelled(BY_ADA, escalate=True), given_up(BY_ADA, Reason.CANCELLED)),
        (0, Broken.INTERRUPTED, REQUEUED),
        (0, Broken.LOST, NOTHING),
        (0, Broken.LEFT_BEHIND, NOTHING),
    ],
)
def test_settlements_of_calls(attempt: int, outcome: Outcome, expected: Settlement):
    assert settle_call(attempt, outcome, POLICY, chance=lambda: CHANCE) == expected


ONE_OFF = replace(TOKEN, schedule=Once(NINE), seq=0)


@pytest.mark.parametrize(
    ("outcome", "ending"),
    [
        (Returned("after"), Ending.SUCCEEDED),
        (Raised(StopLoop("enough")), Ending.STOPPED),
        (Raised(REJECT), Ending.ESCALATED),
    ],
)
@pytest.mark.parametrize("after_failure", ["continue", "pause"])
def test_a_named_one_off_is_finished_after_any_outcome(
    outcome: Outcome, ending: Ending, after_failure: Literal["continue", "pause"]
) -> None:
    settlement = settled(outcome, ONE_OFF, replace(POLICY, after_failure=after_failure))
    after = put(settlement)
    assert after.last is not None
    assert (settlement.ending, after.last.ending) == (ending, ending)
    assert (after.state, after.seq, after.rests) == (State.DONE, 1, True)
    assert settlement.missed == 0
    assert (settlement.park is not None) is (ending is Ending.ESCALATED)
