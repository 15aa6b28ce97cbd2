"""The listing: what the roster says of each loop, judged entry by entry in the order of the stream.

An entry counts if it follows the loop's latest one (`epochs.accepted`). Another one of the same
epoch and creator is a note: it tells nothing but a later checkpoint.

A message of the roster is a JSON object that holds many: ``{"entries": [...]}``. Each is an object:

====================  ============================================================
``task``, ``key``     whose entry it is; one of the key ``*`` pauses a whole task until it is gone
``epoch``, ``life``   the epoch that begins, and that of the loop's last start
``base``              the epoch of the entry that it follows; 0: none, or a loop that is gone
``asked``             the epoch of the last entry that neither repaired nor rescheduled the loop
``state``             active, paused or gone
``schedule, args``    with which it goes on
``reason``            why it is paused, or gone
``by``, ``at_ms``     who began the epoch, and when
``checkpoint``        how far the loop had come, where that is known: its last token, as its message
                      had it (``headers``, ``body``); nothing after it was put before ``until_ms``
``override``          who has set the schedule in place of the code's (``by``), and when (``at_ms``)
``renames``           the task of whose loop, of the same key, it takes the place: the entry follows
                      that one's, and ends it
``inherited``         in a snapshot: only an earlier stream told of it
====================  ============================================================
"""

import heapq
import json
import logging
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Annotated, Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from scheduler.errors import MessageError, ScheduleError
from scheduler.protocol.epochs import Entry, LoopState, Position, accepted, learned
from scheduler.protocol.messages import (
    WIRE,
    Flag,
    Flattened,
    Message,
    Moment,
    parsed_json,
    validated,
)
from scheduler.protocol.tokens import (
    TOKEN_TYPE,
    WHOLE,
    LoopId,
    Planned,
    Token,
    claims_of,
    decode,
    encode,
)
from scheduler.queues.snapshots import Bookmark, batches
from scheduler.tasks.loops import Override
from scheduler.timing.moments import UNIX_EPOCH
from scheduler.timing.once import Once

ENTRY_TYPE = "scheduler.roster"
MOST_ENTRIES = 100
MOST_BYTES = 100_000  # the broker may accept no more
LONG = timedelta(minutes=1)
"""Who waits for longer has a checkpoint, so that the journal is not read for it."""
MOST_NOTED = 100_000  # bytes of a body: what a token may carry, and what it says besides
NOWHERE = Position(0, -1)

DONE = "done"
"""Why a loop is gone: its one run has ended."""


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """How far a loop had come: its last token, as its message had it.

    Supervision notes it, or the processor that settled the run before, or the creator of the epoch.
    What comes after a token is not put before it is due, unless a later epoch begins: so the
    journal is read from then on, and not from when the token was put.

    Attributes:
        until: before this, nothing that comes after it was put.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    headers: dict[str, Any]
    body: str
    until: Moment

    @property
    def _message(self) -> Message:
        return Message(self.body.encode(), self.headers, type=TOKEN_TYPE)

    def token(self, namespace: str) -> Token:
        """Return the token.

        Raises:
            Undecodable: it is not one of this format and namespace.
        """
        return decode(self._message, namespace)

    def is_newer_than(self, other: "Checkpoint | None") -> bool:
        """Return whether its token had come further; of two as far, the later epoch's had."""
        return other is None or _rank(self.position) > _rank(other.position)

    @property
    def position(self) -> Position:
        """Return the position that its token claims; `NOWHERE` if it cannot be read."""
        claims = claims_of(self._message)
        epoch, seq, attempt = (claims.get(name) for name in ("epoch", "seq", "attempt"))
        if isinstance(epoch, int) and isinstance(seq, int) and isinstance(attempt, int):
            return Position(epoch, seq, attempt, joined=not claims.get("first"))
        return NOWHERE

    def ended(self, at: datetime) -> "Checkpoint":
        """Return the checkpoint, now that a later epoch has begun."""
        return replace(self, until=min(self.until, at))


def checkpoint_of(token: Token, namespace: str, until: datetime) -> Checkpoint | None:
    """Return the checkpoint of a token; None if it is not joined, or too big.

    Args:
        until: before this, nothing that comes after it is put.
    """
    if token.first:
        return None
    message = encode(token, namespace)
    if len(message.body) > MOST_NOTED:
        return None
    return Checkpoint(dict(message.headers), message.body.decode(), until)


def _rank(position: Position) -> tuple[tuple[int, int, bool], int]:
    return position.progress, position.epoch


@dataclass(frozen=True, slots=True)
class Listed:
    """A loop, as its latest epoch began.

    Attributes:
        reason: why it is paused, or gone.
        by: who began the epoch.
        at: when.
        checkpoint: how far it had come; None: that is for the journal to say.
        override: who has set the schedule in place of the code's; None: nobody has.
        renames: the task that the loop had before; None: none, or that was entered.
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

    @property
    def epoch(self) -> int:
        return self.entry.epoch

    @property
    def before(self) -> LoopId:
        """Return the loop whose latest entry it follows: itself, unless it is renamed."""
        return self.loop if self.renames is None else LoopId(self.renames, self.loop.key)

    @property
    def first_due_at(self) -> datetime:
        """The time of the first tick after its epoch began, with its jitter at most."""
        return self.schedule.next_after(self.at) + self.schedule.jitter

    @property
    def is_gone(self) -> bool:
        return self.entry.state is LoopState.GONE

    @property
    def is_of_task(self) -> bool:
        """Return whether it is no loop's entry: it pauses a whole task, or ends such a pause."""
        return self.loop.is_whole

    @property
    def is_done(self) -> bool:
        """Return whether it was a one-off, which has run."""
        return self.is_gone and self.reason == DONE

    @property
    def remembered_from(self) -> datetime:
        """Return from when on the time runs after which a gone loop is forgotten.

        Of a one-off whose name is kept, that is when it is kept no longer.
        """
        if self.is_done and isinstance(self.schedule, Once):
            return max(self.at, self.schedule.kept_until)
        return self.at

    @property
    def identity(self) -> tuple[LoopId, int, str]:
        """Return what tells an entry from all others but its own notes."""
        return self.loop, self.epoch, self.by

    def is_note_on(self, latest: "Listed") -> bool:
        """Return whether this tells a later checkpoint of the epoch that an entry began."""
        return (
            self.identity == latest.identity
            and self.entry.life == latest.entry.life
            and self.checkpoint is not None
            and self.checkpoint.is_newer_than(latest.checkpoint)
        )


@dataclass(frozen=True, slots=True)
class _Minimum:
    """What every entry says, and whether it is inherited."""

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    at: Moment
    inherited: Flag = False


@dataclass(frozen=True, slots=True)
class _Batch:
    entries: list[Any]


_LISTED, _MINIMUM, _BATCH = TypeAdapter(Listed), TypeAdapter(_Minimum), TypeAdapter(_Batch)


def encoded(listed: Listed, *, is_inherited: bool = False) -> str:
    """Encode an entry as JSON, in ASCII and in one line."""
    members = _LISTED.dump_python(listed, by_alias=True, exclude_none=True)
    wire = {**members.pop("loop"), **members.pop("entry"), **members}
    return json.dumps(wire | {"inherited": True} if is_inherited else wire)


def messages_of(entries: Iterable[Listed]) -> Iterator[Message]:
    """Encode entries as messages of bounded size, one by one as they are asked for.

    An entry that is too big for the bound travels alone.
    """
    return map(_message_of, batches(map(encoded, entries), MOST_ENTRIES, MOST_BYTES))


def entries_of(message: Message) -> Iterator[Listed]:
    """Decode the entries of a message; those that cannot be read are left out, with a warning."""
    entries: list[Any] = []
    with _left_out_if_bad():
        entries = validated(_BATCH, parsed_json(message.body), "roster message").entries
    for entry in entries:
        with _left_out_if_bad():
            yield _entry_of(entry)[0]


def decoded(entry: bytes) -> tuple[Listed, bool] | None:
    """Decode an entry of a snapshot, and whether it is inherited; None: it cannot be read."""
    with _left_out_if_bad():
        return _entry_of(parsed_json(entry))
    return None


def _entry_of(entry: Any) -> tuple[Listed, bool]:
    minimum = validated(_MINIMUM, entry, "roster entry")
    members = {**entry, "loop": entry, "entry": entry}
    return validated(_LISTED, members, "roster entry"), minimum.inherited


@contextmanager
def _left_out_if_bad() -> Generator[None]:
    try:
        yield
    except (MessageError, ScheduleError) as error:
        logging.getLogger(__name__).warning("An entry of the roster is left out: %s", error)


def _message_of(batch: list[str]) -> Message:
    body = f'{{"entries": [{", ".join(batch)}]}}'
    return Message(body.encode(), content_type="application/json", type=ENTRY_TYPE)


class Listing(dict[LoopId, Listed]):
    """The entries of all loops in the roster, gone ones too, and the epochs that began.

    A paused task has an entry beside its loops, with the key `WHOLE`; resumed, it is gone.

    Args:
        forgotten: the greatest epoch of the loops that it has forgotten.

    Attributes:
        reached: the message of the stream up to which it has judged all; None: none.
        stream: an object that stands for the stream which it tells of. Two listings of the same
            one have the same.
    """

    def __init__(self, forgotten: int = 0) -> None:
        super().__init__()
        self.forgotten = forgotten
        self.reached: Bookmark | None = None
        self.stream: object = object()
        self._learned: dict[LoopId, int] = {}
        self._inherited: set[LoopId] = set()
        self._gone: list[tuple[datetime, LoopId]] = []

    def known(self, loop: LoopId) -> int:
        """The greatest epoch of a loop that was seen: in an entry, a roll call, or a token.

        A loop that it does not have may be one that it has forgotten.
        """
        listed, heard = self.get(loop), self._learned.get(loop, 0)
        return learned(heard, self.forgotten if listed is None else listed.epoch)

    def learn(self, loop: LoopId, epoch: int) -> None:
        """Take note that this epoch of a loop has begun."""
        if epoch > self.known(loop):
            self._learned[loop] = epoch

    def enter(self, listed: Listed) -> bool:
        """Enter the next entry of the stream, if it is accepted; return whether it is."""
        latest = self._told(listed.before)
        is_accepted = accepted(listed.entry, None if latest is None else latest.entry)
        if listed.before != listed.loop:
            return is_accepted and self._rename(listed, latest or listed)
        if is_accepted:
            self._begin(listed)
            return True
        if latest is not None and listed.is_note_on(latest):
            self[listed.loop] = replace(latest, checkpoint=listed.checkpoint)
        return False

    def _told(self, loop: LoopId) -> Listed | None:
        return None if self.is_inherited(loop) else self.get(loop)

    def _rename(self, listed: Listed, before: Listed) -> bool:
        """Enter a loop in the place of another one, which is gone, unless it is there itself."""
        there = self._told(listed.loop)
        if there is not None and not (there.is_gone and there.epoch < listed.epoch):
            return False
        gone = listed.entry._replace(state=LoopState.GONE)
        self._begin(
            replace(
                before,
                loop=listed.before,
                entry=gone,
                reason=f"renamed to {listed.loop}",
                by=listed.by,
                at=listed.at,
                checkpoint=None,
                override=None,
                renames=None,
            )
        )
        self._begin(replace(listed, renames=None))
        return True

    def inherit(self, listed: Listed) -> None:
        """Enter what an earlier stream told: the first entry of this one takes its place."""
        self._begin(listed)
        self._inherited.add(listed.loop)

    def is_inherited(self, loop: LoopId) -> bool:
        """Return whether only an earlier stream told of a loop."""
        return loop in self._inherited

    def begin_anew(self) -> None:
        """Inherit all from this stream: another one is in its place, or entries are missing."""
        self._learned |= {loop: self.known(loop) for loop in self}
        self._inherited = set(self)
        self.stream, self.reached = object(), None

    def catch_up(self, reading: "Listing") -> None:
        """Take over what a reading that has come further, or was of another stream, says."""
        if reading.stream is not self.stream:
            self.begin_anew()
            self._inherited -= reading.keys()
        self.stream, self.reached = reading.stream, reading.reached
        self.update(reading)
        self._inherited -= reading.keys()
        self._inherited |= reading._inherited
        self.forgotten = learned(self.forgotten, reading.forgotten)
        self._gone = list(reading._gone)

    def is_ahead_of(self, other: "Listing") -> bool:
        """Return whether it has come further in the stream of both."""
        return self.reached is not None and (
            other.reached is None or self.reached.offset > other.reached.offset
        )

    def forget(self, before: datetime) -> None:
        """Leave out the loops that were gone before a moment. Their tokens stay void.

        A start begins a later epoch than all that are forgotten (`Roster.next_epoch_ms`).
        """
        while self._gone and self._gone[0][0] < before:
            at, loop = heapq.heappop(self._gone)
            listed = self.get(loop)
            if listed is not None and listed.is_gone and listed.remembered_from == at:
                del self[loop]
                self._inherited.discard(loop)
                self._learned.pop(loop, None)
                self.forgotten = learned(self.forgotten, listed.epoch)

    def pause_of(self, task: str) -> Listed | None:
        """Return the entry that pauses a task, with all its loops; None: it is not paused."""
        listed = self.of_task(task)
        return None if listed is None or listed.is_gone else listed

    def of_task(self, task: str) -> Listed | None:
        """Return the entry that has paused or resumed a task last; None: neither is known."""
        return self.get(LoopId(task, WHOLE))

    def is_held(self, task: str) -> bool:
        """Return whether a task is paused, or may be: a roll call told of an entry to come."""
        listed, heard = self.of_task(task), self._learned.get(LoopId(task, WHOLE), 0)
        if listed is None:
            return heard > self.forgotten
        return not listed.is_gone or heard > listed.epoch

    @property
    def there(self) -> list[Listed]:
        """The loops that are not gone, in the order in which they were started."""
        there = [each for each in self.values() if not (each.is_gone or each.is_of_task)]
        return sorted(there, key=lambda listed: listed.entry.life)

    def _begin(self, listed: Listed) -> None:
        self[listed.loop] = listed
        self._inherited.discard(listed.loop)
        if listed.is_gone:
            heapq.heappush(self._gone, (listed.remembered_from, listed.loop))
