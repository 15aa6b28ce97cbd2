"""Encode and decode entries of the roster: each begins an epoch of a loop, or notes its progress.

A message of the roster is a JSON object that holds many: ``{"entries": [...]}``. Each is an object:

====================  ============================================================
``task``, ``key``     its loop; one of the key ``*`` pauses a whole task until it is gone
``epoch``, ``life``   the epoch that begins, and that of the loop's last start
``base``              the epoch of the entry that it follows; 0: none, or a loop that is gone
``asked``             the epoch of the last entry that neither repaired nor rescheduled the loop
``state``             active, paused or gone
``schedule, args``    the schedule and the arguments from now on
``reason``            why it is paused, or gone
``by``, ``at_ms``     who began the epoch, and when
``tick_ms``           the first tick after that; of an active loop
``checkpoint``        the loop's progress, if known: its last token, as its message had it
                      (``headers``, ``body``); nothing after it was put before ``until_ms``
``override``          who overrode the code's schedule (``by``), and when (``at_ms``)
``renames``           the task whose loop, of the same key, it replaces: the entry follows that
                      loop's latest entry, and ends it
``former``            the former tasks of the loop
``renamed``           in a snapshot: the current task of the loop, under another name
====================  ============================================================
"""

from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from scheduler.errors import MessageError, ScheduleError, Undecodable
from scheduler.protocol.epochs import Entry, LoopState, Position
from scheduler.protocol.messages import (
    MOST_COUNTED,
    WIRE,
    Flattened,
    Message,
    Moment,
    compact_json,
    parsed_json,
    validated,
)
from scheduler.protocol.tokens import TOKEN_TYPE, LoopId, Planned, Token, decode, encode
from scheduler.queues.snapshots import batches
from scheduler.tasks.loops import Override
from scheduler.timing.durations import shown
from scheduler.timing.moments import LATEST_MS, UNIX_EPOCH, milliseconds_since_epoch, moment_of
from scheduler.timing.schedules import jittered
from scheduler.user_code import log_of

ENTRY_TYPE = "scheduler.roster"
MOST_ENTRIES = 100
MOST_BYTES = 100_000  # the broker may accept no more
LONG = timedelta(minutes=2)
"""The wait from which a loop has a checkpoint, so that the journal need not be read for it.

A note costs as much as a third of a run, and reading two minutes of a busy journal takes a second.
"""
MOST_NOTED = 100_000  # bytes of a body: the largest carry, and the other members
DONE = "done"
"""The reason of a finished one-off."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Record a loop's progress: its last token, as its message had it.

    Supervision notes it, or the processor that settled the run before, or the creator of the epoch.
    The successor of a token is not put before the token is due, unless a later epoch begins: so the
    journal is read from then on, and not from when the token was put.

    Attributes:
        until: before this, no successor was put.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    headers: dict[str, Any]
    body: str
    until: Moment

    def token(self, namespace: str) -> Token:
        """Return the token.

        Raises:
            Undecodable: it is not one of this format and namespace.
        """
        return decode(Message(self.body.encode(), self.headers, type=TOKEN_TYPE), namespace)

    def of(self, loop: LoopId, namespace: str) -> "Checkpoint | None":
        """Return the checkpoint, now that the loop has another name; None: it cannot be read."""
        try:
            return checkpoint_of(replace(self.token(namespace), loop=loop), namespace, self.until)
        except Undecodable:
            return None

    def ended(self, at: datetime) -> "Checkpoint":
        """Return the checkpoint, now that a later epoch has begun."""
        return replace(self, until=min(self.until, at))


def checkpoint_of(token: Token, namespace: str, until: datetime) -> Checkpoint | None:
    """Return the checkpoint of a token; None if it is not joined, or too big.

    Args:
        until: before this, no successor is put.
    """
    if token.first:
        return None
    message = encode(token, namespace)
    if len(message.body) > MOST_NOTED:
        return None
    return Checkpoint(dict(message.headers), message.body.decode(), until)


def rank_of(body: Any) -> str:
    """Return how far ahead a token is, by what its body claims, as a text to compare.

    Empty, which is the least: it is unreadable.
    """
    try:
        claims = parsed_json(body)
        counts = claims["seq"], claims["attempt"], claims["epoch"]
        is_joined = not claims.get("first")
    except (Undecodable, KeyError, TypeError, AttributeError):
        return ""
    if not all(type(each) is int and 0 <= each <= MOST_COUNTED for each in counts):
        return ""
    seq, attempt, epoch = counts
    return rank_at(Position(epoch, seq, attempt, joined=is_joined))


def rank_at(position: Position) -> str:
    """Return how far ahead a position is, as `rank_of` returns it."""
    return f"{position.seq:019}{position.attempt:019}{position.joined:d}{position.epoch:019}"


@dataclass(frozen=True, slots=True)
class RosterEntry:
    """Describe a loop, as its latest epoch began.

    Attributes:
        reason: why it is paused, or gone.
        by: who began the epoch.
        at: when.
        checkpoint: its progress; None: read the journal.
        override: who overrode the code's schedule; None: no override.
        renames: the task that the loop had before; None: none, or that was entered.
        former: the former tasks of the loop; None: it was not renamed.
        renamed: its current task; None: it was not renamed since.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    loop: Annotated[LoopId, Flattened()]
    schedule: Planned
    args: Mapping[str, Any] = field(default_factory=dict[str, Any])
    entry: Annotated[Entry, Flattened()] = Entry(0, LoopState.ACTIVE, 0)
    reason: str = ""
    by: str = ""
    at: Moment = UNIX_EPOCH
    checkpoint: Checkpoint | None = None
    override: Override | None = None
    renames: str | None = None
    former: tuple[str, ...] | None = None
    renamed: str | None = None

    @property
    def epoch(self) -> int:
        return self.entry.epoch

    @property
    def before(self) -> LoopId:
        """Return the loop whose latest entry it follows: itself, unless it is renamed."""
        return self.loop if self.renames is None else LoopId(self.renames, self.loop.key)

    @property
    def names(self) -> list[LoopId]:
        """Return the current and former names of the loop."""
        return [self.loop, *(LoopId(task, self.loop.key) for task in self.former or ())]

    @property
    def token(self) -> Token:
        """Return the token of its epoch, at its first tick, without progress."""
        tick = self.schedule.next_after(self.at)
        return Token(
            loop=self.loop,
            schedule=self.schedule,
            scheduled_at=tick,
            due_at=jittered(self.schedule, str(self.loop), tick),
            epoch=self.epoch,
            life=self.entry.life,
            args=self.args,
        )

    @property
    def is_own_note(self) -> bool:
        """Return whether it is a start that waits for long, or is paused.

        Until its first tick, nothing follows its token.
        """
        if self.checkpoint is not None or not 0 < self.epoch == self.entry.life:
            return False
        return not self.is_active or self.schedule.next_after(self.at) - self.at >= LONG

    def noted(self, namespace: str) -> Checkpoint | None:
        """Return the loop's progress, if the roster has it."""
        if not self.is_own_note:
            return self.checkpoint
        token = self.token
        until = token.scheduled_at if self.is_active else moment_of(LATEST_MS)
        return checkpoint_of(token, namespace, until)

    @property
    def first_due_at(self) -> datetime:
        """Return the latest time of the first tick after its epoch began."""
        return self.schedule.next_after(self.at) + self.schedule.jitter

    @property
    def is_active(self) -> bool:
        return self.entry.state is LoopState.ACTIVE

    @property
    def is_gone(self) -> bool:
        return self.entry.state is LoopState.GONE

    @property
    def is_of_task(self) -> bool:
        """Return whether the entry pauses or resumes a whole task, rather than a loop."""
        return self.loop.is_whole

    @property
    def is_done(self) -> bool:
        """Return whether it was a one-off that has run."""
        return self.is_gone and self.reason == DONE

    @property
    def identity(self) -> tuple[LoopId, int, str]:
        """Return the identity of an entry, shared only with its notes."""
        return self.loop, self.epoch, self.by


@dataclass(frozen=True, slots=True)
class _Batch:
    entries: list[Any]


_LISTED, _BATCH = TypeAdapter(RosterEntry), TypeAdapter(_Batch)


def members_of(listed: RosterEntry) -> dict[str, Any]:
    """Return the members of an entry's JSON object."""
    members = _LISTED.dump_python(listed, by_alias=True, exclude_none=True)
    if listed.is_active and not listed.is_of_task:
        members["tick_ms"] = milliseconds_since_epoch(listed.schedule.next_after(listed.at))
    return {**members.pop("loop"), **members.pop("entry"), **members}


def messages_of(entries: Iterable[RosterEntry]) -> Iterator[Message]:
    """Yield messages with entries."""
    return map(message_with, batched(compact_json(members_of(listed)) for listed in entries))


def batched(parts: Iterable[bytes]) -> Iterator[list[bytes]]:
    """Split encoded entries by messages of bounded size; one that is too big travels alone."""
    return batches(parts, MOST_ENTRIES, MOST_BYTES)


def message_with(parts: Iterable[bytes]) -> Message:
    """Return a message with encoded entries."""
    body = b'{"entries": [%b]}' % b", ".join(parts)
    return Message(body, content_type="application/json", type=ENTRY_TYPE)


def entries_of(message: Message) -> Iterator[RosterEntry]:
    """Decode the entries of a message; skip unreadable ones, with a warning."""
    return filter(None, map(entry_of, parts_of(message)))


def parts_of(message: Message) -> list[Any]:
    """Return the entries of a message, not decoded; none, with a warning, if it is invalid."""
    with _left_out_if_bad():
        return validated(_BATCH, parsed_json(message.body), "roster message").entries
    return []


def entry_of(part: Any) -> RosterEntry | None:
    """Decode an entry; None, with a warning: it is unreadable."""
    with _left_out_if_bad():
        if not isinstance(part, dict) or "at_ms" not in part:  # a default would be no time
            raise Undecodable("The roster entry cannot be understood: at_ms: Field required.")
        listed = validated(_LISTED, {**part, "loop": part, "entry": part}, "roster entry")
        if not "".join((*listed.loop, *listed.before)).isprintable():
            raise Undecodable(f"A loop's name must be printable, got {shown(listed.loop)}.")
        return listed
    return None


@contextmanager
def _left_out_if_bad() -> Generator[None]:
    try:
        yield
    except (MessageError, ScheduleError) as error:
        log_of(__name__).warning("Ignoring an invalid roster entry: %s", error)
