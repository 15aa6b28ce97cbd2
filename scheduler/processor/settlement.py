"""Decide what a finished run does to its token, without I/O.

===========================  ============================  =============  =====================
the run                      a loop's token                a replay       a one-off call
===========================  ============================  =============  =====================
returned                     next tick                     done           done
raised, retries left         same tick, after the delay    parked again   again, after the delay
retries exhausted, `Reject`  parked; next tick, or paused  parked again   parked
raised `StopLoop`            paused, with the reason       done           done
was cancelled                next tick                     done           done
cancelled, to be escalated   parked; next tick, or paused  parked again   parked
was skipped: too late        next tick                                    parked, or dropped
was interrupted              requeued                      requeued       requeued
lost its delivery            nothing: it was requeued      nothing        nothing
===========================  ============================  =============  =====================

A run that timed out raised `TimeoutError`. A run that returns despite a request to cancel it has
returned.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import Enum
from typing import Any, NamedTuple

from scheduler.protocol.messages import one_line, summary_of
from scheduler.protocol.tokens import Ending, LastRun, Replay, State, Token
from scheduler.queues.failed import Reason
from scheduler.tasks.retries import Policy, Reject, StopLoop
from scheduler.timing.schedules import Once, jittered, plan_next


@dataclass(frozen=True, slots=True)
class Returned:
    """End by returning; `carry` goes to the next run."""

    carry: Any


@dataclass(frozen=True, slots=True)
class Raised:
    """End by an exception, or a timeout."""

    error: Exception


@dataclass(frozen=True, slots=True)
class Skipped:
    """Skip the tick: it was too late, by the schedule's own rule."""

    reason: str


class RunCancelled(Reject):
    """The run was cancelled on request."""


@dataclass(frozen=True, slots=True)
class Cancelled:
    """End by a cancellation; `escalate` counts it as failed for the last time."""

    error: RunCancelled
    escalate: bool = False


class DeliveredTooOften(Reject):
    """The message was delivered too often without an ack: it may kill its processors."""


class Broken(Enum):
    """Cancel the run from outside."""

    INTERRUPTED = "the processor is stopping"
    LOST = "the connection went"
    LEFT_BEHIND = "the processor ends before its thread does"


Outcome = Returned | Raised | Cancelled | Skipped | Broken


class Finished(NamedTuple):
    """Describe a finished run of a loop: its token, its tick, and how it ended."""

    token: Token
    tick: datetime
    started_at: datetime
    ended_at: datetime
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class Parking:
    """Copy a message to the failed queue: a token, or a call as it is (None)."""

    token: Token | None
    reason: Reason
    error: Exception


def duration(started_at: datetime, ended_at: datetime) -> timedelta:
    """Return how long a run took, even if the clock was set back."""
    return max(ended_at - started_at, timedelta(0))


class Disposition(Enum):
    """Name the end of the delivery, once its successors are confirmed."""

    ACK = "ack"
    REQUEUE = "requeue"
    NOTHING = "nothing"


class Settlement(NamedTuple):
    """Order what to do now: park, put, then dispose of the delivery, in this order.

    Attributes:
        ending: how the run ended, for the record; None if it did not end here.
        put: the loop's next token.
        retry_in: the delay before the call is tried again.
        missed: how many ticks passed during the run.
    """

    ending: Ending | None
    park: Parking | None = None
    put: Token | None = None
    retry_in: timedelta | None = None
    disposition: Disposition = Disposition.ACK
    missed: int = 0


CANCELLED = Settlement(Ending.CANCELLED)
BROKEN_OFF = {
    Broken.INTERRUPTED: Settlement(None, disposition=Disposition.REQUEUE),
    Broken.LOST: Settlement(None, disposition=Disposition.NOTHING),
    Broken.LEFT_BEHIND: Settlement(None, disposition=Disposition.NOTHING),
}


def settle(run: Finished, policy: Policy, *, chance: Callable[[], float]) -> Settlement:
    """Decide what a finished run does to its token; `chance` is in [0, 1), for a retry's jitter."""
    match run.outcome:
        case Broken():
            return BROKEN_OFF[run.outcome]
        case Returned(carry):
            return _go_on(run, Ending.SUCCEEDED, carry=carry)
        case Skipped(reason):
            return _go_on(run, Ending.SKIPPED, error=one_line(reason), carry=run.token.carry)
        case Cancelled(error, escalate=True):
            return _escalate(run, error, policy)
        case Cancelled(error):
            by = one_line(error.reason)
            return _go_on(run, Ending.CANCELLED, error=by, carry=run.token.carry)
        case Raised(StopLoop() as stop):
            return _stop(run, stop.reason)
        case Raised(error):
            return _retry(run, error, policy, chance) or _escalate(run, error, policy)


def settle_call(
    attempt: int, outcome: Outcome, policy: Policy, *, chance: Callable[[], float]
) -> Settlement:
    """Decide what a finished run of a one-off call does to its message, after some attempts."""
    match outcome:
        case Broken():
            return BROKEN_OFF[outcome]
        case Returned():
            return Settlement(Ending.SUCCEEDED)
        case Skipped(reason):
            late = Parking(None, Reason.EXPIRED, TimeoutError(reason))
            return Settlement(Ending.SKIPPED, park=late if policy.expired == "park" else None)
        case Cancelled(error, escalate):
            parking = Parking(None, _reason_of(error), error)
            return Settlement(Ending.ESCALATED, park=parking) if escalate else CANCELLED
        case Raised(StopLoop()):
            return Settlement(Ending.STOPPED)
        case Raised(error):
            delay = policy.retry.delay_after(attempt, error, chance())
            if delay is not None:
                return Settlement(Ending.RETRIED, retry_in=delay)
            return Settlement(Ending.ESCALATED, park=Parking(None, _reason_of(error), error))


def _reason_of(error: Exception) -> Reason:
    match error:
        case RunCancelled():
            return Reason.CANCELLED
        case DeliveredTooOften():
            return Reason.DELIVERY_LIMIT
        case Reject():
            return Reason.REJECTED
        case _:
            return Reason.EXHAUSTED


def _go_on(run: Finished, ending: Ending, *, carry: Any, error: str | None = None) -> Settlement:
    if isinstance(token := run.token, Replay):
        return Settlement(ending)
    plan = plan_next(token.schedule, token.loop, run.tick, run.ended_at)
    successor = Token(
        loop=token.loop,
        schedule=token.schedule,
        scheduled_at=plan.tick,
        due_at=jittered(token.schedule, token.loop, plan.tick),
        epoch=token.epoch,
        life=token.life,
        seq=token.seq + 1,
        state=State.DONE if isinstance(token.schedule, Once) else State.ARMED,
        args=token.args,
        carry=carry,
        previous_at=run.tick,
        last=_record(run, ending, error),
        trace=token.trace,
    )
    return Settlement(ending, put=successor, missed=plan.missed)


def _retry(
    run: Finished, error: Exception, policy: Policy, chance: Callable[[], float]
) -> Settlement | None:
    delay = policy.retry.delay_after(run.token.attempt, error, chance())
    if delay is None or isinstance(run.token, Replay):
        return None
    again = _failed(run, Ending.RETRIED, summary_of(error))
    return Settlement(Ending.RETRIED, put=replace(again, due_at=run.ended_at + delay))


def _escalate(run: Finished, error: Exception, policy: Policy) -> Settlement:
    summary = summary_of(error)
    parked = Replay.of(_failed(run, Ending.ESCALATED, summary))
    next_up = _go_on(run, Ending.ESCALATED, error=summary, carry=run.token.carry)
    if policy.after_failure == "pause":
        next_up = _paused(next_up, f"paused after a failure: {summary}")
    return next_up._replace(park=Parking(parked, _reason_of(error), error))


def _failed(run: Finished, ending: Ending, summary: str) -> Token:
    return replace(
        run.token,
        state=State.ARMED,
        act=None,
        attempt=run.token.attempt + 1,
        returns=None,
        scheduled_at=run.tick,
        last=_record(run, ending, summary),
    )


def _stop(run: Finished, reason: str) -> Settlement:
    settled = _go_on(run, Ending.STOPPED, error=one_line(reason) or None, carry=run.token.carry)
    return _paused(settled, reason or "the task stopped its loop")


def _paused(settled: Settlement, reason: str) -> Settlement:
    if settled.put is None or settled.put.state is State.DONE:
        return settled
    put = replace(settled.put, state=State.PAUSED, reason=one_line(reason))
    return settled._replace(put=put)


def _record(run: Finished, ending: Ending, error: str | None) -> LastRun:
    return LastRun(
        ending=ending,
        scheduled_at=run.tick,
        started_at=run.started_at,
        duration=duration(run.started_at, run.ended_at),
        error=error,
        attempt=run.token.attempt + 1,
    )
