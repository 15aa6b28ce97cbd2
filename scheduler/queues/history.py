"""Store the history of calls: a stream of the outcomes of one-off messages.

Loops have the journal, which gets each of their tokens. For calls, processors report every ten
seconds: a summary of each active task, and each failed attempt, or every attempt of a task with
``history=True``. They travel in batches, so a call costs no further message.

A message of the stream is a JSON object: ``by``, the processor; ``summaries`` and ``attempts``,
lists of objects with the fields of `Summary` and `Attempt`, moments in milliseconds (``since_ms``).
"""

from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, ClassVar

from pydantic import ConfigDict, Field, TypeAdapter

from scheduler.brokers.contract import Broker
from scheduler.errors import TooLarge, Undecodable
from scheduler.protocol.messages import WIRE, Count, Message, Moment, parsed
from scheduler.protocol.topology import Names
from scheduler.user_code import log_of

HISTORY_TYPE = "scheduler.history"
MOST_TOLD = 100  # in a message
TIMEOUT = timedelta(seconds=2)  # a processor that ends does not wait longer to report
ON_TIME = timedelta(seconds=1)
FEW_ERRORS = 5
REPORTED_OFTEN = timedelta(minutes=1)
BEHIND = timedelta(minutes=5)
"""A task whose calls start so late needs more processors."""

Milliseconds = Annotated[float, Field(ge=0)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Describe an attempt at a call.

    Attributes:
        id: of the message: the same for all attempts.
        key: the routing key with which the message was published.
        attempt: counted from 1.
        outcome: an `Ending`, or "parked": it could not be run.
        by: the processor.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    task: str
    id: str
    key: str = ""
    attempt: Count
    sent_at: Moment | None = None
    due_at: Moment | None = None
    started_at: Moment
    took_ms: Milliseconds = 0.0
    outcome: str
    error: str = ""
    by: Annotated[str, Field(exclude=True)] = ""

    @property
    def took(self) -> timedelta:
        return timedelta(milliseconds=self.took_ms)

    @property
    def late(self) -> timedelta | None:
        """Return how long after it was due it started; None: it had no due time."""
        return None if self.due_at is None else self.started_at - self.due_at

    @property
    def ended_at(self) -> datetime:
        return self.started_at + self.took


@dataclass(frozen=True, slots=True)
class ErrorCount:
    """Count the calls that failed with an error, with the ID of one of them."""

    error: str
    count: Count
    id: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """Count the outcomes of a task's calls at a processor, in a span of time.

    Attributes:
        started: attempts that began.
        on_time: those of them that began at most a second after they were due.
        failed: calls that failed for the last time.
        parked: messages put into the failed queue, including those that could not be run.
        late_p50_ms, late_p99_ms: of first attempts, from due to start.
        took_p50_ms, took_p99_ms: of all attempts.
        errors: the most frequent ones.
        by: the processor.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    task: str
    since: Moment
    until: Moment
    started: Count = 0
    on_time: Count = 0
    succeeded: Count = 0
    retried: Count = 0
    failed: Count = 0
    cancelled: Count = 0
    expired: Count = 0
    parked: Count = 0
    late_p50_ms: Milliseconds = 0.0
    late_p99_ms: Milliseconds = 0.0
    took_p50_ms: Milliseconds = 0.0
    took_p99_ms: Milliseconds = 0.0
    errors: tuple[ErrorCount, ...] = ()
    by: Annotated[str, Field(exclude=True)] = ""

    @property
    def late(self) -> timedelta:
        """Return the 99th percentile of how late first attempts started."""
        return timedelta(milliseconds=self.late_p99_ms)

    @property
    def took(self) -> timedelta:
        """Return the 99th percentile of how long attempts took."""
        return timedelta(milliseconds=self.took_p99_ms)


@dataclass(frozen=True, slots=True)
class Batch:
    """Hold one message of a processor."""

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    by: str
    summaries: tuple[Summary, ...] = ()
    attempts: tuple[Attempt, ...] = ()


_BATCH = TypeAdapter(Batch)


class History:
    """Read and append to the history of a namespace's calls."""

    def __init__(self, broker: Broker, names: Names, aliases: Mapping[str, str]) -> None:
        self._broker = broker
        self._names = names
        self._aliases = aliases

    async def append(self, by: str, records: Sequence[Summary | Attempt]) -> None:
        """Append the outcomes of calls in one message; in more, if the broker does not accept it.

        Args:
            records: at most `MOST_TOLD`.

        Raises:
            BrokerError: the broker did not confirm them.
        """
        summaries = tuple(each for each in records if isinstance(each, Summary))
        attempts = tuple(each for each in records if isinstance(each, Attempt))
        batch = Batch(by, summaries, attempts)
        body = _BATCH.dump_json(batch, by_alias=True, exclude_defaults=True)
        try:
            await self._broker.publish(
                Message(body, content_type="application/json", type=HISTORY_TYPE),
                exchange=self._names.control,
                routing_key=self._names.history,
                timeout=TIMEOUT,
            )
        except TooLarge as error:
            if (half := len(records) // 2) == 0:
                task = records[0].task
                log_of(__name__).warning("An outcome of %s is left out: %s", task, error)
                return
            await self.append(by, records[:half])
            await self.append(by, records[half:])

    async def read(
        self, *, since: datetime | None = None, containing: str = ""
    ) -> AsyncGenerator[Summary | Attempt]:
        """Read the outcomes of calls, oldest first.

        Args:
            since: from this moment on; None: from the first that is stored.
            containing: only messages with this text: it saves the decoding of all others.

        Raises:
            QueueNotFound: there is no history: no task gets calls, or nothing was seeded.
        """
        text = containing.encode()
        async with aclosing(self._broker.read(self._names.history, since=since)) as messages:
            async for message in messages:
                if text in message.body:
                    for record in decoded_batch(message, self._aliases):
                        # A stream is read from the beginning of a chunk, which may be earlier.
                        if since is None or _ended_at(record) >= since:
                            yield record


def decoded_batch(message: Message, aliases: Mapping[str, str]) -> Iterator[Summary | Attempt]:
    """Decode a message of the stream; an unreadable one counts as empty.

    Args:
        aliases: old names of tasks, and their current names, under which their calls count.
    """
    with suppress(Undecodable):
        batch = parsed(_BATCH, message.body, "history")
        for each in (*batch.summaries, *batch.attempts):
            yield replace(each, by=batch.by, task=aliases.get(each.task, each.task))


def _ended_at(record: Summary | Attempt) -> datetime:
    return record.until if isinstance(record, Summary) else record.ended_at


@dataclass(slots=True)
class CallTotals:
    """Add up the outcomes of a task's calls, over all its processors.

    Attributes:
        late_p99, took_p99: the greatest of all summaries.
        errors: how often each error occurred, and the ID of a call.
        reported_at: when the last summary was made.
        last_late: how late the calls started that this one counts.
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
    reported_at: datetime | None = None
    last_late: timedelta = timedelta(0)

    def add(self, summary: Summary) -> None:
        for name in COUNTED:
            setattr(self, name, getattr(self, name) + getattr(summary, name))
        self.late_p99 = max(self.late_p99, summary.late)
        if summary.started:
            self.reported_at, self.last_late = summary.until, summary.late
        self.took_p99 = max(self.took_p99, summary.took)
        for each in summary.errors:
            count, _ = self.errors.get(each.error, (0, ""))
            self.errors[each.error] = count + each.count, each.id

    @property
    def lost(self) -> int:
        """Return how many calls wait for an operator, as they failed or could not be run."""
        return max(self.failed, self.parked)

    @property
    def is_failing(self) -> bool:
        """Return whether calls fail, and at least as many as succeed."""
        return self.lost > 0 and self.lost >= self.succeeded

    def oldest(self, now: datetime) -> timedelta | None:
        """Return how long the call that starts next has waited, to a second; None: none started
        lately.
        """
        if self.reported_at is None or now - self.reported_at > REPORTED_OFTEN:
            return None
        return timedelta(seconds=round(self.last_late.total_seconds()))

    @property
    def commonest(self) -> tuple[str, int, str] | None:
        """Return the most frequent error, its count, and the ID of a call."""
        if not self.errors:
            return None
        error, (count, id) = max(self.errors.items(), key=lambda item: item[1][0])
        return error, count, id


COUNTED = (
    *("started", "on_time", "succeeded", "retried"),
    *("failed", "cancelled", "expired", "parked"),
)


def totals_of(summaries: Iterable[Summary]) -> dict[str, CallTotals]:
    """Add up summaries by task."""
    totals = defaultdict[str, CallTotals](CallTotals)
    for summary in summaries:
        totals[summary.task].add(summary)
    return dict(totals)
