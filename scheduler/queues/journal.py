"""Read the journal: the outcomes of loops' ticks, operations on loops, parked messages.

The stream is bound to the exchange that tokens pass anyway. So a settlement costs no further
message, and the journal can be read while no processor is running. Parked messages, and the new
loops of a program, have records of their own.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Collection, Iterator, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from typing import ClassVar, NamedTuple

from pydantic import ConfigDict, TypeAdapter

from scheduler.brokers.contract import Broker
from scheduler.errors import MessageError, StreamTooLong, Undecodable
from scheduler.protocol.epochs import Position, Verb, adopted
from scheduler.protocol.messages import MOST_COUNTED, WIRE, Message, Moment, parsed
from scheduler.protocol.tokens import REPLAY, Act, LastRun, LoopId, State, Token, claims_of, decode
from scheduler.protocol.topology import Names
from scheduler.queues.concurrency import Gathering
from scheduler.queues.failed import PARKED_SEQ, is_record, read_parked
from scheduler.timing.moments import LATEST_MS, Clock, moment_of
from scheduler.timing.schedules import Schedule

PARKED = "parked"
STARTS_TYPE = "scheduler.starts"
STARTS_KEY = "scheduler.starts"
STARTS_AT_ONCE = 500  # in a record: the broker may accept no more
MARK_KEY = "scheduler.mark"
NEAR, FAR = 2, 30  # periods
FARTHEST = timedelta(days=3650)  # 30 of the longest periods are more than calendars have
MARGIN = timedelta(minutes=2)
BREATHE_EVERY = 20  # messages, of 0.1 ms each: runs start in between
MOST_SEEN = 20_000
"""Entries that are recognised when they appear again: a put is exchanged within seconds."""
WITHIN = timedelta(seconds=20)
LONGEST_READING = timedelta(minutes=2)


@dataclass(frozen=True, slots=True)
class JournalEntry:
    """Describe one thing that happened.

    Attributes:
        at: when; None for a foreign message without a time.
        loop: its loop; for a one-off call, its task.
        what: an `Ending`, a `Verb`, or "parked".
        seq: which tick of the loop it was about; None for a one-off call.
        attempt: which attempt has ended, or was parked, counted from 1; None: none.
        run: the run that ended, if one did.
        due_at: the next due time of the loop; None: when an operator resumes it.
        note: the reason or the error, if there is one.
        by: who did it, for operations.
    """

    at: datetime | None
    loop: str
    what: str
    seq: int | None
    attempt: int | None
    run: LastRun | None = None
    due_at: datetime | None = None
    note: str = ""
    by: str = ""


@dataclass(frozen=True, slots=True)
class Starts:
    """Record new loops that one creator started together, each with its first due time."""

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    act: Act
    loops: tuple[tuple[LoopId, Moment], ...]


_STARTS = TypeAdapter(Starts)


class LoopRecord:
    """Collect what the journal has heard of a loop.

    Attributes:
        furthest: the token of each epoch with the greatest progress.
    """

    def __init__(self) -> None:
        self.furthest: dict[int, Token] = {}

    @property
    def positions(self) -> list[Position]:
        return [token.position for token in self.furthest.values()]

    def note(self, token: Token) -> None:
        """Note a put token."""
        known = self.furthest.get(token.epoch)
        if known is None or token.position >= known.position:
            self.furthest[token.epoch] = token

    def adopted_by(self, first: Token) -> Token:
        """Return the token whose progress the first of an epoch continues; itself, if none is
        ahead.
        """
        position = adopted(first.position, self.positions, first.life)
        return first if position == first.position else self.furthest[position.epoch]

    def lacks_place_of(self, first: Token) -> bool:
        """Return whether no token before the first of an epoch was heard."""
        before = (epoch for epoch in self.furthest if first.life <= epoch < first.epoch)
        return next(before, None) is None

    def has_line(self, life: int) -> bool:
        """Return whether more than puts of creators was heard."""
        return any(each.position.joined and each.epoch >= life for each in self.furthest.values())


class Put(NamedTuple):
    """Describe a put, as its body claims: decoding all of it is many times slower.

    A put that is published again is the same.

    Attributes:
        life: the epoch of its loop's last start.
        first: whether it is the first token of its epoch, made by no run.
        due_at_ms: when it is due; for a first token, when it was put, as it is exchanged at once.
        by_run: whether a run has put it, not a creator or the exchange of a first token.
        verb: the operation of its creator; empty: a run has put it.
    """

    epoch: int
    life: int
    seq: int
    attempt: int
    first: bool
    state: str
    due_at_ms: int
    started_at_ms: int = 0
    duration_ms: int = 0
    scheduled_at_ms: int = 0
    by_run: bool = False
    verb: str = ""

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.seq, self.attempt, joined=not self.first)

    @property
    def is_start(self) -> bool:
        """Return whether it is what a start put: the roster has that anyway."""
        return 0 < self.epoch == self.life and not (self.seq or self.attempt or self.by_run)

    @property
    def rests(self) -> bool:
        """Return whether it only goes to the journal: a run paused its loop, or was its last."""
        return self.state in (State.PAUSED, State.DONE)


Hear = Callable[[LoopId, Put, Message], bool | None]


class Journal:
    """Read the journal of a namespace."""

    def __init__(self, broker: Broker, names: Names) -> None:
        self._broker = broker
        self._names = names
        self._near, self._far = (Gathering(self._heard_however_long) for _ in range(2))

    async def record(self, started: Sequence[Token]) -> None:
        """Record the starts of new loops, whose tokens do not come here, confirmed.

        Raises:
            BrokerError: some may not have been recorded.
        """
        for begin in range(0, len(started), STARTS_AT_ONCE):
            await self._broker.publish(
                record_of_starts(started[begin : begin + STARTS_AT_ONCE]),
                exchange=self._names.scheduler,
                routing_key=STARTS_KEY,
            )

    async def entries(
        self, *, since: datetime | None = None, loop: str | None = None
    ) -> AsyncGenerator[JournalEntry]:
        """Yield the history, oldest first, each thing once.

        Args:
            since: from this moment on; None: from the first that is stored.
            loop: only the history of this one.

        Raises:
            QueueNotFound: there is no journal.
        """
        seen = dict[JournalEntry, None]()
        async with aclosing(self._broker.read(self._names.journal, since=since)) as messages:
            async for message in messages:
                for entry in entries_of(message, self._names.namespace):
                    if not _is_meant(entry, since, loop):
                        continue
                    # Exchanged or republished puts appear twice, near each other.
                    bare = replace(entry, due_at=None, note="")
                    if entry.what == PARKED:
                        yield entry
                    elif bare not in seen:
                        seen[bare] = None
                        if len(seen) > MOST_SEEN:
                            del seen[next(iter(seen))]
                        yield entry

    async def heard_of(
        self,
        loop: LoopId,
        *,
        since: datetime | None,
        is_near: bool,
        on_delay: Callable[[str], object],
    ) -> LoopRecord:
        """Return the puts of a loop, however long that takes; concurrent callers share a reading.

        Separate readings of the same entries would block everything else on the connection.

        Args:
            is_near: whether the reading is short: it does not wait for those from far back.
            on_delay: called with the reason, whenever the reading takes long.
        """
        return (await (self._near if is_near else self._far).ask((loop, since, on_delay)))[loop]

    async def _heard_however_long(
        self, asked: list[tuple[LoopId, datetime | None, Callable[[str], object]]]
    ) -> dict[LoopId, LoopRecord]:
        heard = {loop: LoopRecord() for loop, _, _ in asked}
        known = [since for _, since, _ in asked if since is not None]
        part: datetime | int | None = min(known) if len(known) == len(asked) else None
        while True:
            try:
                await self.hear(heard, since=part, within=LONGEST_READING)
                return heard
            except StreamTooLong as error:
                part = part if error.reached is None else error.reached
                for _, _, on_delay in asked:
                    on_delay(f"{error} Reading continues.")

    async def hear(
        self,
        heard: Mapping[LoopId, LoopRecord],
        *,
        since: datetime | int | None,
        within: timedelta = WITHIN,
    ) -> None:
        """Note the puts of some loops since a moment, up to the last that was confirmed before.

        Args:
            heard: the records of these loops, which have what was read if this fails.
            since: also the offset where an earlier reading ended; None: from the first stored one.

        Raises:
            QueueNotFound: there is no journal.
            StreamTooLong: it could not be read to its end within this time.
            BrokerUnavailable: it could not be read.
        """

        def note(loop: LoopId, _: Put, message: Message) -> None:
            about = heard.get(loop)
            if about is not None and (token := self._token(message)) is not None:
                about.note(token)

        await self.read_on(note, since=since, within=within)

    async def last_put(
        self,
        loops: Collection[LoopId],
        *,
        since: datetime | None,
        within: timedelta = WITHIN,
        is_exact: bool = True,
    ) -> dict[LoopId, Token]:
        """Return the last token of each of these loops, if it was put since a moment.

        A paused, triggered or repaired loop has the progress of the run before.

        Args:
            since: None: from the first that is stored.
            is_exact: whether to read up to the last that was confirmed before. Otherwise nothing is
                written, and in a cluster, the newest puts may be missing.

        Raises:
            QueueNotFound, StreamTooLong, BrokerUnavailable: as `hear`.
        """
        found = await self.last_and_furthest(loops, since=since, within=within, is_exact=is_exact)
        return {loop: with_progress_of(last, before) for loop, (last, before) in found.items()}

    async def last_and_furthest(
        self,
        loops: Collection[LoopId],
        *,
        since: datetime | None,
        within: timedelta,
        is_exact: bool,
    ) -> dict[LoopId, tuple[Token, Token]]:
        """Return the last token of each of these loops, and that with the greatest progress.

        Only these are decoded: decoding all takes many times as long as reading them.

        Args:
            since, is_exact: as for `last_put`.

        Raises:
            QueueNotFound, StreamTooLong, BrokerUnavailable: as `hear`.
        """
        latest = dict[LoopId, tuple[Position, Message]]()
        furthest = dict[LoopId, tuple[tuple[int, tuple[int, int, bool], int], Message]]()

        def hear(loop: LoopId, put: Put, message: Message) -> None:
            if loop not in loops:
                return
            position = put.position
            if loop not in latest or position >= latest[loop][0]:
                latest[loop] = position, message
            progress = put.life, position.progress, put.epoch
            if loop not in furthest or progress >= furthest[loop][0]:
                furthest[loop] = progress, message

        await self.read_on(hear, since=since, within=within, is_exact=is_exact)
        tokens = dict[LoopId, tuple[Token, Token]]()
        for loop, (_, message) in latest.items():
            token, before = self._token(message), self._token(furthest[loop][1])
            if token is not None and before is not None:
                tokens[loop] = token, before
        return tokens

    async def read_on(
        self,
        hear: Hear,
        *,
        since: datetime | int | None,
        within: timedelta = WITHIN,
        is_exact: bool = True,
    ) -> int | None:
        """Read the puts since a moment, up to the last that was confirmed before.

        Args:
            hear: called with each, oldest first; True: read no further.
            since: also the offset where an earlier reading ended.
            is_exact: as for `last_put`.

        Returns:
            The offset of the next entry; None: nothing was read, and `since` is no offset.

        Raises:
            QueueNotFound, StreamTooLong, BrokerUnavailable: as `hear`.
        """
        reached = since if isinstance(since, int) else None
        async with aclosing(self._reading(since, within, is_exact=is_exact)) as messages:
            async for message in messages:
                assert message.offset is not None
                reached = message.offset + 1
                if (found := put_in(message)) is not None and hear(*found, message):
                    break
        return reached

    def _token(self, message: Message) -> Token | None:
        return _token_of(message, self._names.namespace)

    async def _reading(
        self, since: datetime | int | None, within: timedelta, *, is_exact: bool = True
    ) -> AsyncGenerator[Message]:
        journal = self._names.journal
        reading = (
            self._broker.read_to_end(
                journal,
                exchange=self._names.scheduler,
                routing_key=MARK_KEY,
                since=since,
                timeout=within,
            )
            if is_exact
            else self._broker.read(journal, since=since, timeout=within)
        )
        async with aclosing(reading) as messages:
            async for message in messages:
                yield message
                if message.offset is not None and message.offset % BREATHE_EVERY == 0:
                    await asyncio.sleep(0)


def put_in(message: Message) -> tuple[LoopId, Put] | None:
    """Return the put that a message of the journal claims, and its loop; None: no put."""
    claims = claims_of(message)
    act, last = claims.get("act"), claims.get("last")
    try:
        put = Put(
            claims["epoch"],
            claims["life"],
            claims["seq"],
            claims["attempt"],
            bool(claims.get("first")),
            claims["state"],
            act["at_ms"] if act and claims.get("first") else claims["due_at_ms"],
            last["started_at_ms"] if last else 0,
            last["duration_ms"] if last else 0,
            last["scheduled_at_ms"] if last else 0,
            bool(last) and not act and not claims.get("first"),
            str(act["verb"]) if act else "",
        )
    except (KeyError, TypeError):
        return None
    if put.state == REPLAY or not (
        all(_is_count(each, MOST_COUNTED) for each in put[:4])
        and all(_is_count(each, LATEST_MS) for each in put[6:10])
    ):
        return None
    return LoopId(str(claims.get("task")), str(claims.get("key") or "")), put


def with_progress_of(token: Token, furthest: Token) -> Token:
    """Return a token with the progress of the one that has come furthest in its loop's life."""
    if furthest.epoch < token.life or furthest.position.progress <= token.position.progress:
        return token
    return replace(token, seq=furthest.seq, attempt=furthest.attempt, last=furthest.last)


def _is_count(value: object, most: int) -> bool:
    return type(value) is int and 0 <= value <= most


def entries_of(message: Message, namespace: str) -> Iterator[JournalEntry]:
    """Yield the history entries of a message of the stream."""
    if is_record(message):
        yield entry_of_record(message)
    elif message.type == STARTS_TYPE:
        yield from entries_of_starts(message)
    else:
        token = _token_of(message, namespace)
        entry = None if token is None else entry_of_token(token)
        if entry is not None:
            yield entry


def record_of_starts(tokens: Sequence[Token]) -> Message:
    """Return the journal's record of new loops that were started together."""
    act = tokens[0].act
    assert act is not None
    starts = Starts(act, tuple((token.loop, token.due_at) for token in tokens))
    body = _STARTS.dump_json(starts, by_alias=True)
    return Message(body, content_type="application/json", type=STARTS_TYPE)


def entries_of_starts(record: Message) -> Iterator[JournalEntry]:
    """Yield the history entries of the record of starts; none if it is unreadable."""
    with suppress(Undecodable):
        starts = parsed(_STARTS, record.body, "record")
        at, verb, by = starts.act.at, starts.act.verb.value, starts.act.by
        for loop, due_at in starts.loops:
            yield JournalEntry(at, str(loop), verb, 0, None, due_at=due_at, by=by)


def entry_of_token(token: Token) -> JournalEntry | None:
    """Return the history entry of a put token; None: it has none."""
    if token.act is not None:
        return _of_act(token, token.act)
    return None if token.last is None else _of_run(token, token.last)


def _of_act(token: Token, act: Act) -> JournalEntry:
    return JournalEntry(
        act.at,
        str(token.loop),
        act.verb.value,
        None if act.verb is Verb.REMOVE else token.seq,  # a run that ends its loop has no next time
        None,
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
        last.attempt,
        run=last,
        due_at=_next_due(token),
        note=token.reason or last.error or "",
    )


def _next_due(token: Token) -> datetime | None:
    return None if token.rests else token.due_at


def born_at(life: int) -> datetime:
    """Return from when on to look for tokens of a life: epochs are numbered by the time."""
    return moment_of(min(life, LATEST_MS)) - MARGIN


def look_backs(schedule: Schedule, clock: Clock) -> tuple[datetime, datetime]:
    """Return how far back to look for the last tokens of such a loop: first near, then far."""
    now = clock.now()
    tick = schedule.next_after(now)
    period = schedule.next_after(tick) - tick
    near, far = (now - MARGIN - min(count * period, FARTHEST) for count in (NEAR, FAR))
    return near, far


def _token_of(message: Message, namespace: str) -> Token | None:
    try:
        return decode(message, namespace)
    except MessageError:
        return None


def entry_of_record(record: Message) -> JournalEntry:
    """Return the history entry of the record of a parked message."""
    parked = read_parked(record, queue="", routing_key="")
    note = f"{parked.reason}: {parked.error}" if parked.error else parked.reason
    seq = record.headers.get(PARKED_SEQ)
    return JournalEntry(parked.parked_at, parked.loop, PARKED, seq, parked.attempts, note=note)


def _is_meant(entry: JournalEntry, since: datetime | None, loop: str | None) -> bool:
    if loop not in (None, entry.loop):
        return False
    # A stream is read from the beginning of a chunk, which may be earlier.
    return since is None or entry.at is None or entry.at >= since
