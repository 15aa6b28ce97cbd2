"""Report the calls of a processor to the history: summaries, and single attempts that matter."""

import asyncio
import os
import socket
from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Self

from scheduler.brokers.contract import cancelled
from scheduler.errors import BrokerError
from scheduler.events import Event, MessageParked, RunFinished
from scheduler.protocol.calls import Call
from scheduler.protocol.messages import flat, one_line, summary_of
from scheduler.protocol.tokens import LOOP_KEY, Ending
from scheduler.queues.failed import Reason
from scheduler.queues.history import (
    FEW_ERRORS,
    MOST_TOLD,
    ON_TIME,
    Attempt,
    ErrorCount,
    History,
    Summary,
)
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.moments import Clock

EVERY = timedelta(seconds=10)
SOON, MILLISECOND = timedelta(seconds=1), timedelta(milliseconds=1)
MOST_SUMMARIES, MOST_ATTEMPTS = 1_000, 10_000  # that wait for the broker: the oldest are dropped
MOST_ERRORS = 1_000
NOT_RUN = frozenset(
    {Reason.UNDECODABLE, Reason.INVALID_ARGUMENTS, Reason.BROKEN, Reason.DELIVERY_LIMIT}
)
COUNTED_AS = {
    Ending.RETRIED: "retried",
    Ending.ESCALATED: "failed",
    Ending.CANCELLED: "cancelled",
    Ending.SKIPPED: "expired",
}
FAILED = Ending.RETRIED, Ending.ESCALATED, Ending.CANCELLED  # a set would cost each call a hash


@dataclass(slots=True)
class CallTally:
    """Count the calls of a task since its last summary.

    A call that succeeds adds only its two spans; the summary computes its other figures.

    Attributes:
        every: whether each attempt is reported, not only those that failed.
        late: how long after they were due first attempts started.
        late_again: and later attempts.
        took: how long attempts took.
    """

    since: datetime
    every: bool = False
    counts: Counter[str] = field(default_factory=Counter[str])
    late: list[timedelta] = field(default_factory=list[timedelta])
    late_again: list[timedelta] = field(default_factory=list[timedelta])
    took: list[timedelta] = field(default_factory=list[timedelta])
    errors: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])

    def note(self, event: RunFinished) -> None:
        """Count an attempt that ended."""
        if (ending := event.ending) is not Ending.SUCCEEDED:
            self._note_ending(ending, event)
            if ending is Ending.SKIPPED:
                return
        late = self.late if event.attempt == 1 else self.late_again
        late.append(event.started_at - event.scheduled_at)
        self.took.append(event.duration)

    def _note_ending(self, ending: Ending, event: RunFinished) -> None:
        if ending in COUNTED_AS:
            self.counts[COUNTED_AS[ending]] += 1
        if event.error is not None:
            self.note_error(summary_of(event.error), flat(event.message_id))

    def note_error(self, error: str, id: str) -> None:
        """Count an error, with the ID of its call."""
        if error in self.errors or len(self.errors) < MOST_ERRORS:
            count, _ = self.errors.get(error, (0, ""))
            self.errors[error] = count + 1, id

    def summary(self, task: str, now: datetime) -> Summary:
        """Return its counts."""
        counts: dict[str, Any] = dict(self.counts)
        started = len(self.took)
        late_ms, took_ms = _sorted_ms(self.late), _sorted_ms(self.took)
        on_time = bisect_right(late_ms, _ms(ON_TIME))
        on_time += bisect_right(_sorted_ms(self.late_again), _ms(ON_TIME))
        ended = (self.counts[what] for what in ("retried", "failed", "cancelled"))
        commonest = sorted(self.errors.items(), key=lambda item: -item[1][0])[:FEW_ERRORS]
        return Summary(
            task=task,
            since=self.since,
            until=now,
            started=started,
            on_time=on_time,
            succeeded=started - sum(ended),
            late_p50_ms=_quantile(late_ms, 0.5),
            late_p99_ms=_quantile(late_ms, 0.99),
            took_p50_ms=_quantile(took_ms, 0.5),
            took_p99_ms=_quantile(took_ms, 0.99),
            errors=tuple(ErrorCount(error, count, id) for error, (count, id) in commonest),
            **counts,
        )


class CallReporter:
    """Report the outcomes of calls; a killed processor leaves ten seconds unreported.

    While the broker cannot be reached, reports wait. One whose confirmation is lost is duplicated.

    Args:
        tasks: those of the processor, by name.
    """

    def __init__(self, history: History, tasks: Mapping[str, TaskSpec], clock: Clock) -> None:
        self._history = history
        self._tasks = tasks
        self._clock = clock
        self._by = f"{socket.gethostname()}:{os.getpid()}"
        self._tallies = dict[str, CallTally]()
        self._summaries = deque[Summary](maxlen=MOST_SUMMARIES)
        self._attempts = deque[Attempt](maxlen=MOST_ATTEMPTS)
        self._news = asyncio.Event()
        self._reporting: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._reporting = asyncio.create_task(self._report(), name="report calls")
        return self

    async def __aexit__(self, *exception: object) -> None:
        if self._reporting is not None:
            await cancelled(self._reporting)
        self._sum_up()
        await self._flush()

    def hear(self, event: Event) -> None:
        """Note a call that ended, or could not be run: a listener."""
        if isinstance(event, RunFinished):
            if (call := event.call) is not None:
                tally = self._tallies.get(call.task) or self._new_tally(call.task)
                tally.note(event)
                if tally.every or event.ending in FAILED:
                    self._attempts.append(_attempt(event, call))
        elif isinstance(event, MessageParked) and not event.routing_key.startswith(LOOP_KEY):
            tally = self._tallies.get(event.task) or self._new_tally(event.task)
            tally.counts["parked"] += 1
            if event.reason in NOT_RUN:
                tally.note_error(event.error, flat(event.message_id or ""))
                self._attempts.append(self._not_run(event))

    def _new_tally(self, task: str) -> CallTally:
        every = task in self._tasks and self._tasks[task].history
        tally = self._tallies[task] = CallTally(self._clock.now(), every)
        self._news.set()
        return tally

    def _not_run(self, event: MessageParked) -> Attempt:
        return Attempt(
            task=event.task,
            id=flat(event.message_id or ""),
            attempt=1,
            started_at=self._clock.now(),
            outcome="parked",
            error=one_line(f"{event.reason}: {event.error}"),
        )

    async def _report(self) -> None:
        while True:
            await self._news.wait()
            self._news.clear()
            for _ in range(EVERY // SOON):
                await asyncio.sleep(SOON.total_seconds())
                await self._flush()
            self._sum_up()
            await self._flush()

    def _sum_up(self) -> None:
        now = self._clock.now()
        self._summaries.extend(tally.summary(task, now) for task, tally in self._tallies.items())
        self._tallies.clear()

    async def _flush(self) -> None:
        """Append what waits, a message at a time: what was confirmed is not repeated."""
        waiting = [*self._summaries, *self._attempts]
        self._summaries.clear()
        self._attempts.clear()
        try:
            with suppress(BrokerError):  # they are appended later
                while waiting:
                    await self._history.append(self._by, waiting[:MOST_TOLD])
                    del waiting[:MOST_TOLD]
        finally:
            if waiting:
                self._wait_again(waiting)

    def _wait_again(self, unconfirmed: Sequence[Summary | Attempt]) -> None:
        """Put unconfirmed records before newer ones."""
        summaries = [each for each in unconfirmed if isinstance(each, Summary)]
        attempts = [each for each in unconfirmed if isinstance(each, Attempt)]
        self._summaries = deque((*summaries, *self._summaries), MOST_SUMMARIES)
        self._attempts = deque((*attempts, *self._attempts), MOST_ATTEMPTS)


def _attempt(event: RunFinished, call: Call) -> Attempt:
    return Attempt(
        task=call.task,
        id=flat(event.message_id),
        key=flat(call.routing_key),
        attempt=event.attempt,
        sent_at=call.sent_at,
        due_at=call.due_at,
        started_at=event.started_at,
        took_ms=_ms(event.duration),
        outcome=event.ending.value,
        error="" if event.error is None else summary_of(event.error),
    )


def _ms(span: timedelta) -> float:
    return span / MILLISECOND


def _sorted_ms(spans: list[timedelta]) -> list[float]:
    return sorted([span / MILLISECOND for span in spans])


def _quantile(ranked: list[float], share: float) -> float:
    """Return the nearest rank of a share of the values; 0 of none, and of what is negative."""
    return max(ranked[int(share * (len(ranked) - 1))], 0.0) if ranked else 0.0
