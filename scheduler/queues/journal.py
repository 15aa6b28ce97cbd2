"""The journal, read back: what became of the loops' ticks, what was done to them, what was parked.

The stream is bound to the exchanges that tokens and parked messages pass anyway. So a settlement
costs no further message, and the journal can be read while no processor is there.
"""

import asyncio
import uuid
from collections.abc import AsyncGenerator, Collection, Iterable
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta

from scheduler.brokers.contract import DEFAULT_QUIET, Broker
from scheduler.errors import BrokerUnavailable, MessageError, QueueNotFound, Unroutable
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Act, LastRun, LoopId, State, Token, Verb, decode, is_token
from scheduler.protocol.topology import Names
from scheduler.queues.failed import PARKED as PARKED_HEADERS
from scheduler.queues.failed import Parked, read_parked
from scheduler.timing.clock import Clock
from scheduler.timing.schedules import Schedule

PARKED = "parked"
MARK = "scheduler.mark"
FIRST_DEATH = "x-first-death-reason"
NEAR, FAR = 2, 30  # periods
MARGIN = timedelta(minutes=2)
# For so long nothing may come, where something must: a busy broker takes its time.
UNTIL_MARK = timedelta(seconds=5)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """One thing that happened.

    Attributes:
        at: when; None where a message that is not ours does not tell.
        loop: whose it is; for a one-off call, its task.
        what: an `Ending`, a `Verb`, or "parked".
        seq: which tick of the loop it was about; None for a one-off call.
        run: the run that ended, if one did.
        due_at: when the loop goes on; None: when somebody resumes it.
        note: the reason or the error, if there is one.
    """

    at: datetime | None
    loop: str
    what: str
    seq: int | None
    attempt: int
    run: LastRun | None = None
    due_at: datetime | None = None
    note: str = ""


class Journal:
    """The journal of a namespace."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names

    async def entries(
        self, *, since: datetime | None = None, loop: str | None = None
    ) -> AsyncGenerator[JournalEntry]:
        """What happened, oldest first, each thing once.

        Args:
            since: from this moment on; None: from the first that is remembered.
            loop: only what happened to this one.

        Raises:
            QueueNotFound: there is no journal.
        """
        seen = set[JournalEntry]()
        async with aclosing(self._broker.read(self._names.journal, since=since)) as messages:
            async for message in messages:
                entry = entry_of(message, self._names.namespace)
                if entry is None or not _is_meant(entry, since, loop):
                    continue
                # A token that its slot refused is there again, as what it was merged to.
                bare = replace(entry, due_at=None, note="")
                if entry.what == PARKED or bare not in seen:
                    seen.add(bare)
                    yield entry

    async def mark(self) -> str:
        """Write a mark: who has read as far as to this has read all that there was before it.

        Raises:
            QueueNotFound: there is no journal.
        """
        mark = Message(b"", type=MARK, correlation_id=uuid.uuid4().hex)
        try:
            await self._broker.publish(mark, exchange=self._names.scheduler, routing_key=MARK)
        except Unroutable:
            raise QueueNotFound(f"There is no journal in {self._broker.address}.") from None
        return str(mark.correlation_id)

    async def last_tokens(
        self,
        loops: Collection[LoopId],
        *,
        since: datetime | None,
        within: timedelta,
        until: str | None = None,
    ) -> dict[LoopId, Token]:
        """The token of each loop that has come furthest, of those made since a moment.

        Args:
            since: None: from the first that is remembered.
            within: what was not read in this time is left out.
            until: a mark, which must be read.

        Raises:
            QueueNotFound: there is no journal.
            BrokerUnavailable: the mark was not read. The newest come last; and a node of a cluster
                that was cut off, say, hands out nothing, or old things only.
        """
        found = dict[LoopId, Token]()
        marked = False
        with suppress(TimeoutError):
            async with asyncio.timeout(within.total_seconds()):
                marked = await self._collect_last_tokens(found, loops, since, until)
        if until is not None and not marked:
            raise BrokerUnavailable(
                f"The journal in {self._broker.address} could not be read to its end within "
                f"{within.total_seconds():g} s."
            )
        return found

    async def _collect_last_tokens(
        self,
        found: dict[LoopId, Token],
        loops: Collection[LoopId],
        since: datetime | None,
        until: str | None,
    ) -> bool:
        """Whether the mark has come."""
        quiet = DEFAULT_QUIET if until is None else UNTIL_MARK
        reading = self._broker.read(self._names.journal, since=since, quiet=quiet)
        async with aclosing(reading) as messages:
            async for message in messages:
                if message.type == MARK and message.correlation_id == until:
                    return True
                token = _token_of(message, self._names.namespace)
                if token is None or token.loop not in loops:
                    continue
                verb = token.act.verb if token.act else None
                if verb in (Verb.REMOVED, Verb.SEEDED):
                    found.pop(token.loop, None)  # what it was before is over
                if verb is Verb.REMOVED or not _goes_on(token):
                    continue
                known = found.get(token.loop)
                if known is None or token.progress >= known.progress:
                    found[token.loop] = token
        return False


def entry_of(message: Message, namespace: str) -> JournalEntry | None:
    """What a message of the stream tells; None: nothing that belongs into a history."""
    if message.type == MARK:
        return None
    if _was_parked(message) or not is_token(message):
        return _parked_entry(message, namespace)
    token = _token_of(message, namespace)
    if token is None or token.state is State.REPLAY:
        return None
    if token.act is not None:
        return _of_act(token, token.act)
    return None if token.last is None else _of_run(token, token.last)


def _of_act(token: Token, act: Act) -> JournalEntry:
    return JournalEntry(
        act.at,
        str(token.loop),
        act.verb.value,
        token.seq,
        token.attempt,
        due_at=_next_due(token),
        note=token.reason or "",
    )


def _of_run(token: Token, last: LastRun) -> JournalEntry:
    retried = token.attempt > 0
    return JournalEntry(
        last.started_at + last.duration,
        str(token.loop),
        last.ending.value,
        token.seq if retried else token.seq - 1,
        max(token.attempt - 1, 0),
        run=last,
        due_at=_next_due(token),
        note=token.reason or last.error or "",
    )


def _next_due(token: Token) -> datetime | None:
    return None if token.state is State.PAUSED else token.due_at


def look_backs(schedules: Iterable[Schedule], clock: Clock) -> list[datetime | None]:
    """From when on to look for the last tokens of such loops.

    First near, then far; then from the first on, for those that were paused for long.
    """
    now = clock.now()
    period = max((_period(schedule, now) for schedule in schedules), default=timedelta(0))
    return [*(now - MARGIN - periods * period for periods in (NEAR, FAR)), None]


def _period(schedule: Schedule, now: datetime) -> timedelta:
    tick = schedule.next_after(now)
    return schedule.next_after(tick) - tick


def _goes_on(token: Token) -> bool:
    """Whether the loop could go on with this token; what only stood in for one could not."""
    return token.state in (State.ARMED, State.PAUSED) and bool(token.generation)


def _token_of(message: Message, namespace: str) -> Token | None:
    try:
        return decode(message, namespace)
    except MessageError:
        return None  # it is parked as well, and told as such


def _was_parked(message: Message) -> bool:
    """Whether it came by the failed exchange: what dies in a slot alone does not come here."""
    return f"{PARKED_HEADERS}reason" in message.headers or FIRST_DEATH in message.headers


def _parked_entry(message: Message, namespace: str) -> JournalEntry:
    parked = read_parked(message, queue="", routing_key="")
    token = _token_of(message, namespace)
    return JournalEntry(
        parked.parked_at,
        str(token.loop) if token else parked.loop,
        PARKED,
        token.seq if token else None,
        parked.attempts,
        note=_why(parked),
    )


def _why(parked: Parked) -> str:
    headers = parked.message.headers
    # Of a message's deaths, a stream of RabbitMQ 3.10 keeps the first: often its hatching.
    if "x-death" not in headers and headers.get(FIRST_DEATH) == "expired":
        return "the broker parked it"
    return f"{parked.reason}: {parked.error}" if parked.error else parked.reason


def _is_meant(entry: JournalEntry, since: datetime | None, loop: str | None) -> bool:
    if loop not in (None, entry.loop):
        return False
    # A stream is read from the beginning of a chunk, which may be earlier.
    return since is None or entry.at is None or entry.at >= since
