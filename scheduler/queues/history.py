"""The history of calls: a stream of what became of one-off messages.

Loops have the journal, which hears each of their tokens. Of calls, processors tell: a summary of
each task that had any, every ten seconds, and an attempt that failed, or every attempt of a task
with ``history=True``. They travel in batches, so a call costs no further message.

A message of the stream is a JSON object: ``by``, the processor; ``summaries`` and ``attempts``, two
lists of objects with the fields of `Summary` and `Attempt`.
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scheduler.brokers.contract import Broker
from scheduler.errors import Undecodable
from scheduler.protocol.messages import Message, compact_json, parsed
from scheduler.protocol.topology import Names
from scheduler.timing.moments import LATEST_MS, moment_of, optional_moment

HISTORY_TYPE = "scheduler.history"
MOST_TOLD = 100  # in a message
TIMEOUT = timedelta(seconds=2)  # a processor that ends does not wait longer to report
ON_TIME = timedelta(seconds=1)
FEW_ERRORS = 5

_Ms = Field(ge=0, le=LATEST_MS)


class _Record(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)


class Attempt(_Record):
    """An attempt at a call.

    Attributes:
        id: of the message: the same for all attempts.
        key: the routing key with which the message was published.
        attempt: counted from 1.
        outcome: an `Ending`, or "parked": it could not be run.
        by: the processor.
    """

    task: str
    id: str
    key: str = ""
    attempt: int = Field(ge=1)
    sent_at_ms: int | None = Field(default=None, ge=0, le=LATEST_MS)
    due_at_ms: int | None = Field(default=None, ge=0, le=LATEST_MS)
    started_at_ms: int = _Ms
    duration_ms: float = Field(default=0.0, ge=0)
    outcome: str
    error: str = ""
    by: str = ""

    @property
    def sent_at(self) -> datetime | None:
        return optional_moment(self.sent_at_ms)

    @property
    def due_at(self) -> datetime | None:
        return optional_moment(self.due_at_ms)

    @property
    def started_at(self) -> datetime:
        return moment_of(self.started_at_ms)

    @property
    def took(self) -> timedelta:
        return timedelta(milliseconds=self.duration_ms)

    @property
    def late(self) -> timedelta | None:
        """Return how long after it was due it started; None: it had no time of its own."""
        return None if self.due_at is None else self.started_at - self.due_at

    @property
    def ended_at(self) -> datetime:
        return self.started_at + self.took


class ErrorCount(_Record):
    """How often calls failed with an error, and the id of one of them."""

    error: str
    count: int = Field(ge=1)
    id: str = ""


class Summary(_Record):
    """What became of the calls of a task at a processor, in a span of time.

    Attributes:
        started: attempts that began.
        on_time: those of them that began at most a second after they were due.
        failed: calls that failed for the last time.
        parked: messages put into the failed queue, those that could not be run too.
        late_p50_ms, late_p99_ms: of first attempts, from due to start.
        took_p50_ms, took_p99_ms: of all attempts.
        errors: the most frequent ones.
    """

    task: str
    from_ms: int = _Ms
    to_ms: int = _Ms
    started: int = Field(default=0, ge=0)
    on_time: int = Field(default=0, ge=0)
    succeeded: int = Field(default=0, ge=0)
    retried: int = Field(default=0, ge=0)
    failed: int = Field(default=0, ge=0)
    cancelled: int = Field(default=0, ge=0)
    expired: int = Field(default=0, ge=0)
    parked: int = Field(default=0, ge=0)
    late_p50_ms: float = 0.0
    late_p99_ms: float = 0.0
    took_p50_ms: float = 0.0
    took_p99_ms: float = 0.0
    errors: tuple[ErrorCount, ...] = Field(default=(), strict=False)
    by: str = ""

    @property
    def until(self) -> datetime:
        return moment_of(self.to_ms)

    @property
    def late(self) -> timedelta:
        """Return the 99th percentile of how late first attempts started."""
        return timedelta(milliseconds=self.late_p99_ms)

    @property
    def took(self) -> timedelta:
        """Return the 99th percentile of how long attempts took."""
        return timedelta(milliseconds=self.took_p99_ms)


class _Batch(_Record):
    by: str = ""
    summaries: tuple[dict[str, Any], ...] = Field(default=(), strict=False)
    attempts: tuple[dict[str, Any], ...] = Field(default=(), strict=False)


class History:
    """The history of the calls of a namespace."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names

    async def append(
        self, by: str, summaries: Sequence[Summary], attempts: Sequence[Attempt]
    ) -> None:
        """Tell what became of calls, in messages of bounded size, each confirmed.

        Raises:
            BrokerError: it could not be told.
        """
        for some in _chunks(attempts) if attempts else [()]:
            await self._publish(by, summaries, some)
            summaries = ()

    async def _publish(
        self, by: str, summaries: Iterable[Summary], attempts: Iterable[Attempt]
    ) -> None:
        told = {
            "by": by,
            "summaries": [each.model_dump(exclude_defaults=True) for each in summaries],
            "attempts": [each.model_dump(exclude_defaults=True) for each in attempts],
        }
        await self._broker.publish(
            Message(compact_json(told), content_type="application/json", type=HISTORY_TYPE),
            exchange=self._names.control,
            routing_key=self._names.history,
            timeout=TIMEOUT,
        )

    async def read(
        self, *, since: datetime | None = None, containing: str = ""
    ) -> AsyncGenerator[Summary | Attempt]:
        """Read what became of calls, oldest first.

        Args:
            since: from this moment on; None: from the first that is remembered.
            containing: only messages with this text: it saves the decoding of all others.

        Raises:
            QueueNotFound: there is no history: no task gets calls, or nothing was seeded.
        """
        text = containing.encode()
        async with aclosing(self._broker.read(self._names.history, since=since)) as messages:
            async for message in messages:
                if text in message.body:
                    for told in told_by(message):
                        # A stream is read from the beginning of a chunk, which may be earlier.
                        if since is None or _ended_at(told) >= since:
                            yield told


def told_by(message: Message) -> Iterator[Summary | Attempt]:
    """Decode what a message of the stream tells; what cannot be read is left out."""
    with suppress(Undecodable):
        batch = parsed(_Batch, message.body, "history")
        for model, told in ((Summary, batch.summaries), (Attempt, batch.attempts)):
            for each in told:
                with suppress(ValueError):
                    yield model.model_validate({**each, "by": batch.by})


def _ended_at(told: Summary | Attempt) -> datetime:
    return told.until if isinstance(told, Summary) else told.ended_at


def _chunks(attempts: Sequence[Attempt]) -> Iterator[Sequence[Attempt]]:
    for start in range(0, len(attempts), MOST_TOLD):
        yield attempts[start : start + MOST_TOLD]


@dataclass(slots=True)
class Totals:
    """What became of the calls of a task, over all its processors.

    Attributes:
        late_p99, took_p99: the greatest of all summaries.
        errors: how often each error was met, and the id of a call.
        last_failed_at, last_succeeded_at: when, to ten seconds; None: not in this time.
    """

    started: int = 0
    on_time: int = 0
    succeeded: int = 0
    retried: int = 0
    failed: int = 0
    cancelled: int = 0
    expired: int = 0
    parked: int = 0
    late_p99: timedelta = timedelta(0)
    took_p99: timedelta = timedelta(0)
    errors: dict[str, tuple[int, str]] = field(default_factory=dict[str, tuple[int, str]])
    last_failed_at: datetime | None = None
    last_succeeded_at: datetime | None = None

    def add(self, summary: Summary) -> None:
        """Count what a summary tells."""
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(summary, name))
        self.late_p99 = max(self.late_p99, timedelta(milliseconds=summary.late_p99_ms))
        self.took_p99 = max(self.took_p99, timedelta(milliseconds=summary.took_p99_ms))
        for each in summary.errors:
            count, _ = self.errors.get(each.error, (0, ""))
            self.errors[each.error] = count + each.count, each.id
        if summary.failed or summary.parked:
            self.last_failed_at = summary.until
        if summary.succeeded:
            self.last_succeeded_at = summary.until

    @property
    def lost(self) -> int:
        """Return how many calls wait for an operator, as they failed or could not be run."""
        return max(self.failed, self.parked)

    @property
    def is_failing(self) -> bool:
        """Return whether calls fail, and at least as many as succeed."""
        return self.lost > 0 and self.lost >= self.succeeded

    @property
    def commonest(self) -> tuple[str, int, str] | None:
        """Return the most frequent error, how often it was met, and the id of a call."""
        if not self.errors:
            return None
        error, (count, id) = max(self.errors.items(), key=lambda item: item[1][0])
        return error, count, id


COUNTED = (
    *("started", "on_time", "succeeded", "retried"),
    *("failed", "cancelled", "expired", "parked"),
)


def totals_of(summaries: Iterable[Summary]) -> dict[str, Totals]:
    """Add up summaries by task."""
    totals = defaultdict[str, Totals](Totals)
    for summary in summaries:
        totals[summary.task].add(summary)
    return dict(totals)
