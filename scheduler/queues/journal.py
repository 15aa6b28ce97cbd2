"""The journal, read back: what became of the loops' ticks, what was done to them, what was parked.

The stream is bound to the exchange that tokens pass anyway. So a settlement costs no further
message, and the journal can be read while no processor is there. What was parked is told by a
record of our own.
"""

import asyncio
from collections.abc import AsyncGenerator, Collection, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, aclosing
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import Any, NamedTuple

from scheduler.brokers.contract import Broker
from scheduler.errors import BrokerError, MessageError
from scheduler.protocol.epochs import Position, Verb, adopted
from scheduler.protocol.messages import MOST_COUNTED, Message
from scheduler.protocol.tokens import Act, LastRun, LoopId, Token, claims_of, decode
from scheduler.protocol.topology import Names
from scheduler.queues.failed import PARKED_SEQ, is_record, read_parked
from scheduler.timing.clock import Clock
from scheduler.timing.schedules import Schedule

PARKED = "parked"
MARK_KEY = "scheduler.mark"
NEAR, FAR = 2, 30  # periods
MARGIN = timedelta(minutes=2)
WITHIN = timedelta(seconds=20)


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
        by: who did it, if somebody did.
    """

    at: datetime | None
    loop: str
    what: str
    seq: int | None
    attempt: int
    run: LastRun | None = None
    due_at: datetime | None = None
    note: str = ""
    by: str = ""


class Heard:
    """What the journal has heard of a loop.

    Attributes:
        furthest: the token of each epoch that has come furthest.
    """

    def __init__(self) -> None:
        self.furthest: dict[int, Token] = {}

    @property
    def positions(self) -> list[Position]:
        return [token.position for token in self.furthest.values()]

    @property
    def last(self) -> Token | None:
        """The token that its line had come to in its latest epoch; None: it tells of none."""
        return max(self.furthest.values(), key=lambda token: token.position, default=None)

    def note(self, token: Token) -> None:
        """Take note of a token that was put."""
        known = self.furthest.get(token.epoch)
        if known is None or token.position >= known.position:
            self.furthest[token.epoch] = token

    def adopted_by(self, first: Token) -> Token:
        """The token whose progress the first of an epoch goes on with; itself, if none is ahead."""
        position = adopted(first.position, self.positions, first.life)
        return first if position == first.position else self.furthest[position.epoch]

    def lacks_place_of(self, first: Token) -> bool:
        """Whether neither it nor the creator of the first token of an epoch knew of one before."""
        before = (epoch for epoch in self.furthest if first.life <= epoch < first.epoch)
        return not first.known and next(before, None) is None

    def has_line(self, life: int) -> bool:
        """Whether it tells of more than what creators put."""
        return any(each.position.joined and each.epoch >= life for each in self.furthest.values())


class _Reading:
    """A reading that is to begin, or has begun, for all who wait for it."""

    def __init__(self) -> None:
        self.asked: dict[LoopId, datetime] = {}
        self.waiting = 0
        self.task: asyncio.Task[None] | None = None
        self.result: asyncio.Future[dict[LoopId, Heard]] = (
            asyncio.get_running_loop().create_future()
        )


class Put(NamedTuple):
    """What a run has put, as its body claims: to decode all takes many times as long.

    What is published again tells of the same run.
    """

    epoch: int
    seq: int
    attempt: int
    due_at_ms: int
    started_at_ms: int
    duration_ms: int

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.seq, self.attempt)

    @property
    def outlasted_its_wait(self) -> bool:
        """Whether the run took as long as what it put was to wait, or longer."""
        return 2 * self.duration_ms >= self.due_at_ms - self.started_at_ms


class Puts(NamedTuple):
    """What runs have put, oldest first.

    Attributes:
        is_all: whether all was read.
        reached: where that begins which comes after what was read; None: nothing was.
    """

    puts: list[tuple[LoopId, Put]]
    is_all: bool
    reached: int | None


class Journal:
    """The journal of a namespace."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names
        self._next: _Reading | None = None
        self._one_at_a_time = asyncio.Lock()

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
                # What its slot refused, and what was exchanged for another one, is there again.
                bare = replace(entry, due_at=None, note="")
                if entry.what == PARKED or bare not in seen:
                    seen.add(bare)
                    yield entry

    async def heard_of(self, loop: LoopId, *, since: datetime) -> Heard:
        """What was put of a loop: many who ask at once share a reading, as with `heard`."""
        if self._next is None:
            self._next = _Reading()
            self._next.task = asyncio.create_task(self._read(self._next), name="journal")
        reading = self._next
        reading.asked[loop] = min(since, reading.asked.get(loop, since))
        reading.waiting += 1
        try:
            return (await asyncio.shield(reading.result))[loop]
        finally:
            reading.waiting -= 1
            if not reading.waiting and reading.task is not None:
                reading.task.cancel()

    async def _read(self, reading: "_Reading") -> None:
        try:
            async with self._one_at_a_time:
                self._next = None  # who asks from here on is served by another one
                since = min(reading.asked.values())
                reading.result.set_result(await self.heard(reading.asked, since=since))
        except BrokerError as error:
            reading.result.set_exception(error)
        finally:
            if self._next is reading:
                self._next = None

    async def heard(
        self, loops: Collection[LoopId], *, since: datetime | None, within: timedelta = WITHIN
    ) -> dict[LoopId, Heard]:
        """What was put of these loops since a moment, to the last that was confirmed before.

        Args:
            since: None: from the first that is remembered.

        Raises:
            QueueNotFound: there is no journal.
            StreamTooLong: it could not be read to its end within this time.
            BrokerUnavailable: it could not be read.
        """
        heard = {loop: Heard() for loop in loops}
        await self.hear(heard, since=since, within=within)
        return heard

    async def hear(
        self,
        heard: Mapping[LoopId, Heard],
        *,
        since: datetime | int | None,
        within: timedelta = WITHIN,
    ) -> None:
        """The same, noted as it is read: of what is too long, what was reached is known.

        Args:
            since: also where an earlier reading has come to.
        """
        async with self._read_to_end(since, within) as messages:
            async for message in messages:
                if (about := heard.get(_loop_named_by(claims_of(message)))) is not None:
                    _note(message, self._names.namespace, about)

    async def last_put(
        self, loops: Collection[LoopId], *, since: datetime | None, within: timedelta = WITHIN
    ) -> dict[LoopId, Token]:
        """The token that each of these loops had come to, if it was put since a moment.

        Only those are decoded: to decode all takes many times as long as to read them.

        Args:
            since: None: from the first that is remembered.

        Raises:
            QueueNotFound: there is no journal.
            StreamTooLong: it could not be read to its end within this time.
            BrokerUnavailable: it could not be read.
        """
        furthest: dict[LoopId, tuple[Position, Message]] = {}
        async with self._read_to_end(since, within) as messages:
            async for message in messages:
                claims = claims_of(message)
                loop, position = _loop_named_by(claims), _position_in(claims)
                if position is None or loop not in loops:
                    continue
                if loop not in furthest or position >= furthest[loop][0]:
                    furthest[loop] = position, message
        tokens = {
            loop: _token_of(message, self._names.namespace)
            for loop, (_, message) in furthest.items()
        }
        return {loop: token for loop, token in tokens.items() if token is not None}

    async def puts(self, *, since: datetime | int, most: int, within: timedelta = WITHIN) -> Puts:
        """What runs have put since a moment, to the last that was confirmed before.

        Args:
            since: also where an earlier reading has come to.
            most: so many messages are read, and no more.

        Raises:
            QueueNotFound: there is no journal.
            StreamTooLong: it could not be read to its end within this time.
            BrokerUnavailable: it could not be read.
        """
        puts, read = list[tuple[LoopId, Put]](), 0
        reached = since if isinstance(since, int) else None
        async with self._read_to_end(since, within) as messages:
            async for message in messages:
                if (read := read + 1) > most:
                    return Puts(puts, False, reached)
                assert message.offset is not None
                reached = message.offset + 1
                claims = claims_of(message)
                if (put := _put_of(claims)) is not None:
                    puts.append((_loop_named_by(claims), put))
        return Puts(puts, True, reached)

    def _read_to_end(
        self, since: datetime | int | None, within: timedelta
    ) -> AbstractAsyncContextManager[AsyncGenerator[Message]]:
        return aclosing(
            self._broker.read_to_end(
                self._names.journal,
                exchange=self._names.scheduler,
                routing_key=MARK_KEY,
                since=since,
                timeout=within,
            )
        )


def _loop_named_by(claims: Mapping[str, Any]) -> LoopId:
    return LoopId(str(claims.get("task")), str(claims.get("key") or ""))


def _note(message: Message, namespace: str, heard: Heard) -> None:
    token = _token_of(message, namespace)
    if token is not None:
        heard.note(token)


def _position_in(claims: Mapping[str, Any]) -> Position | None:
    match claims:
        case {"epoch": int(epoch), "seq": int(seq), "attempt": int(attempt)}:
            counted = all(map(_is_count, (epoch, seq, attempt)))
            joined = not claims.get("first")
            return Position(epoch, seq, attempt, joined) if counted else None
        case _:
            return None


def _put_of(claims: Mapping[str, Any]) -> Put | None:
    """None: no run has put it into its loop's slot."""
    if "act" in claims or "first" in claims:  # creators did
        return None
    try:
        last = claims["last"]
        put = Put(
            claims["epoch"],
            claims["seq"],
            claims["attempt"],
            claims["due_at_ms"],
            last["started_at_ms"],
            last["duration_ms"],
        )
    except (KeyError, TypeError):
        return None
    return put if all(map(_is_count, put)) else None


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= MOST_COUNTED


def entry_of(message: Message, namespace: str) -> JournalEntry | None:
    """What a message of the stream tells; None: nothing that belongs into a history."""
    if is_record(message):
        return _of_parked(message)
    token = _token_of(message, namespace)
    return None if token is None else entry_of_token(token)


def entry_of_token(token: Token) -> JournalEntry | None:
    """What a token that was put tells; None: nothing has led to it."""
    if token.act is not None:
        return _of_act(token, token.act)
    return None if token.last is None else _of_run(token, token.last)


def entry_of_record(record: Message) -> JournalEntry:
    """What a record tells of what was parked."""
    return _of_parked(record)


def _of_act(token: Token, act: Act) -> JournalEntry:
    return JournalEntry(
        act.at,
        str(token.loop),
        act.verb.value,
        None if act.verb is Verb.GONE else token.seq,  # whoever ends a loop does not look for it
        token.attempt,
        due_at=_next_due(token),
        note=token.reason or "",
        by=act.by,
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
    return None if token.rests else token.due_at


def look_backs(schedules: Iterable[Schedule], clock: Clock) -> tuple[datetime, datetime]:
    """From when on to look for the last tokens of such loops: first near, then far."""
    now = clock.now()
    period = max((_period(schedule, now) for schedule in schedules), default=timedelta(0))
    return now - MARGIN - NEAR * period, now - MARGIN - FAR * period


def _period(schedule: Schedule, now: datetime) -> timedelta:
    tick = schedule.next_after(now)
    return schedule.next_after(tick) - tick


def _token_of(message: Message, namespace: str) -> Token | None:
    try:
        return decode(message, namespace)
    except MessageError:
        return None


def _of_parked(record: Message) -> JournalEntry:
    parked = read_parked(record, queue="", routing_key="")
    note = f"{parked.reason}: {parked.error}" if parked.error else parked.reason
    seq = record.headers.get(PARKED_SEQ)
    return JournalEntry(parked.parked_at, parked.loop, PARKED, seq, parked.attempts, note=note)


def _is_meant(entry: JournalEntry, since: datetime | None, loop: str | None) -> bool:
    if loop not in (None, entry.loop):
        return False
    # A stream is read from the beginning of a chunk, which may be earlier.
    return since is None or entry.at is None or entry.at >= since
