"""List the roster's loops: judge its entries one by one in stream order.

An entry counts if it follows the loop's latest one (`epochs.accepted`). Another one of the same
epoch and creator is a note: only its later checkpoint counts.

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

import logging
from collections import Counter, defaultdict
from collections.abc import Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Annotated, Any, ClassVar, NamedTuple, TypeVar, overload

from pydantic import ConfigDict, TypeAdapter

from scheduler.errors import MessageError, ScheduleError, Undecodable
from scheduler.protocol.epochs import Entry, LoopState, Position, accepted, learned
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
from scheduler.queues.loop_table import LoopTable, Row, Scope, share_of
from scheduler.queues.snapshots import Bookmark, batches
from scheduler.tasks.loops import Override
from scheduler.timing.durations import shown
from scheduler.timing.moments import LATEST_MS, UNIX_EPOCH, milliseconds_since_epoch, moment_of
from scheduler.timing.schedules import jittered

ENTRY_TYPE = "scheduler.roster"
MOST_ENTRIES = 100
MOST_BYTES = 100_000  # the broker may accept no more
LONG = timedelta(minutes=1)
"""The wait from which a loop has a checkpoint, so that the journal need not be read for it."""
MOST_NOTED = 100_000  # bytes of a body: the largest carry, and the other members
NOWHERE = Position(0, -1)
MOST_DECODED = 10_000
MOST_EPOCHS = 100_000
T = TypeVar("T")
V = TypeVar("V")

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
        """Return whether its token is further ahead; with equal progress, by the later epoch."""
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
        until: before this, no successor is put.
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

    def is_note_on(self, latest: "RosterEntry") -> bool:
        """Return whether this is a note with a later checkpoint on an entry's epoch."""
        return (
            self.identity == latest.identity
            and self.entry.life == latest.entry.life
            and self.checkpoint is not None
            and self.checkpoint.is_newer_than(latest.checkpoint)
        )


@dataclass(frozen=True, slots=True)
class _Minimum:
    """List the fields that every entry needs: a time has a default, but is required."""

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    at: Moment


@dataclass(frozen=True, slots=True)
class _Batch:
    entries: list[Any]


_LISTED, _MINIMUM, _BATCH = TypeAdapter(RosterEntry), TypeAdapter(_Minimum), TypeAdapter(_Batch)
_CHECKPOINT = TypeAdapter(Checkpoint)


def encoded(listed: RosterEntry) -> str:
    """Encode an entry as JSON, in one line."""
    return _json(_members_of(listed))


def _json(part: Any) -> str:
    return compact_json(part).decode()


def _members_of(listed: RosterEntry) -> dict[str, Any]:
    members = _LISTED.dump_python(listed, by_alias=True, exclude_none=True)
    if listed.is_active and not listed.is_of_task:
        members["tick_ms"] = milliseconds_since_epoch(listed.schedule.next_after(listed.at))
    return {**members.pop("loop"), **members.pop("entry"), **members}


def messages_of(entries: Iterable[RosterEntry]) -> Iterator[Message]:
    """Yield messages of bounded size with entries, one by one.

    An entry that is too big for the bound travels alone.
    """
    return map(_message_of, batches(map(encoded, entries), MOST_ENTRIES, MOST_BYTES))


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
        validated(_MINIMUM, part, "roster entry")
        listed = validated(_LISTED, {**part, "loop": part, "entry": part}, "roster entry")
        if not "".join((*listed.loop, *listed.before)).isprintable():
            raise Undecodable(f"A loop's name must be printable, got {shown(listed.loop)}.")
        return listed
    return None


def _row_of(members: Mapping[str, Any], entry: str) -> Row:
    state, at_ms, schedule = members["state"], members["at_ms"], members["schedule"]
    forget_ms = due_ms = None
    if state == LoopState.GONE:
        kept_ms = schedule.get("once_ms", 0) + schedule.get("kept_ms", 0)
        forget_ms = max(at_ms, kept_ms) if members.get("reason") == DONE else at_ms
    elif state == LoopState.ACTIVE and members["key"] != WHOLE:
        first_ms = members.get("tick_ms", at_ms)
        due_ms = max(first_ms, members.get("checkpoint", {}).get("until_ms", 0))
    return Row(
        LoopId(members["task"], members["key"]),
        entry,
        members["epoch"],
        state,
        forget_ms=forget_ms,
        due_ms=due_ms,
    )


def _is_storable(row: Row, at_ms: object) -> bool:
    """Return whether the table can store a row that was not decoded, and a snapshot can hold it."""
    numbers = row.epoch, row.forget_ms or 0, row.due_ms or 0
    return (
        all(type(each) is str and each.isprintable() for each in row.loop)
        and all(type(each) is int and 0 <= each <= MOST_COUNTED for each in numbers)
        and type(at_ms) is int
        and 0 <= at_ms <= LATEST_MS
    )


@contextmanager
def _left_out_if_bad() -> Generator[None]:
    try:
        yield
    except (MessageError, ScheduleError) as error:
        logging.getLogger(__name__).warning("Ignoring an invalid roster entry: %s", error)


def _message_of(batch: list[str]) -> Message:
    body = f'{{"entries": [{", ".join(batch)}]}}'
    return Message(body.encode(), content_type="application/json", type=ENTRY_TYPE)


class Recent(dict[LoopId, V]):
    """Cache the loops' values that were set last.

    Args:
        most: its size; when full, it drops half of them.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, loop: LoopId, value: V) -> None:
        if len(self) >= self._most:
            for oldest in list(islice(self, self._most // 2)):
                del self[oldest]
        super().__setitem__(loop, value)


class FirstEntry(NamedTuple):
    """Name the first entry of a loop, which was not decoded."""

    loop: LoopId
    epoch: int
    by: str
    at: datetime


class OutOfScope(LookupError):
    """A loop was looked up whose share of a long roster was not read."""


class Listing(Mapping[LoopId, RosterEntry]):
    """Hold the entries of all loops in the roster, gone ones too, and the epochs that began.

    They are in a table; the most recent ones are decoded. A paused task has an entry with the key
    `WHOLE`; when it is resumed, that is gone.

    Attributes:
        forgotten: the greatest epoch of the loops that it has forgotten.
        reached: the message of the stream up to which all is judged; None: none.
        counts: the number of loops of each task in each state.
        scope: the loops that it was read for; None: all.
        streams: how many streams it has been of, one after the other.
    """

    def __init__(self) -> None:
        self.forgotten = 0
        self.streams = 0
        self.reached: Bookmark | None = None
        self.scope: Scope | None = None
        self.counts = defaultdict[str, Counter[LoopState]](Counter)
        self.table = LoopTable()
        self._count = 0
        self._decoded = Recent[RosterEntry](MOST_DECODED)
        self._epochs = Recent[int](MOST_EPOCHS)
        self._learned: dict[LoopId, int] = {}
        self._of_tasks: dict[str, RosterEntry] = {}
        self._shares: Sequence[int] = ()

    def __getitem__(self, loop: LoopId) -> RosterEntry:
        if (listed := self.get(loop)) is None:
            raise KeyError(loop)
        return listed

    @overload
    def get(self, key: LoopId, default: None = None, /) -> RosterEntry | None: ...
    @overload
    def get(self, key: LoopId, default: RosterEntry, /) -> RosterEntry: ...
    @overload
    def get(self, key: LoopId, default: T, /) -> RosterEntry | T: ...
    def get(self, key: LoopId, default: Any = None, /) -> Any:
        """Return the latest entry of a loop; None: unknown.

        Raises:
            OutOfScope: it was not read for this loop.
        """
        if (listed := self._decoded.get(key)) is not None:
            return listed
        if not self.is_for(key):
            raise OutOfScope(str(key))
        if (entry := self.table.entry(key)) is None or (
            listed := entry_of(parsed_json(entry))
        ) is None:
            return default
        self._decoded[key] = listed
        return listed

    def __contains__(self, loop: object) -> bool:
        return isinstance(loop, LoopId) and self.get(loop) is not None

    def __iter__(self) -> Iterator[LoopId]:
        return (loop for loop in self.table.loops() if loop in self)

    def __len__(self) -> int:
        return self._count

    def is_for(self, loop: LoopId) -> bool:
        """Return whether it was read for a loop."""
        return self.scope is None or loop in self.scope

    def leaves_out(self, part: Any) -> bool:
        """Return whether an entry is of a loop for which it was not read."""
        try:
            return self.scope is not None and LoopId("", part["key"]) not in self.scope
        except (KeyError, TypeError, ValueError, AttributeError):
            return True

    def is_later(self, part: Any) -> bool:
        """Return whether an entry may begin an epoch: it is no note, and not too late."""
        try:
            loop, is_renamed = LoopId(part["task"], part["key"]), "renames" in part
            return is_renamed or part["epoch"] > self.known(loop)
        except (KeyError, TypeError, ValueError, AttributeError):
            return True

    def known(self, loop: LoopId) -> int:
        """Return the greatest known epoch of a loop: from an entry, a roll call, or a token.

        An unknown loop may be a forgotten one.
        """
        if (epoch := self._epochs.get(loop)) is not None:
            return epoch
        heard, entered = self._learned.get(loop, 0), self.table.known(loop)
        if entered is None:
            return learned(heard, self.forgotten)
        self._epochs[loop] = epoch = learned(heard, entered)
        return epoch

    def learn(self, loop: LoopId, epoch: int) -> None:
        """Note that this epoch of a loop has begun."""
        if epoch > self.known(loop):
            self._learned[loop] = epoch
            self._epochs.pop(loop, None)

    def enter(self, listed: RosterEntry) -> bool:
        """Enter the next entry of the stream, if it is accepted; return whether it is."""
        latest = self._told(listed.before)
        is_accepted = accepted(listed.entry, None if latest is None else latest.entry)
        if listed.before != listed.loop:
            return is_accepted and self._rename(listed, latest or listed)
        if is_accepted:
            self._begin(listed)
            return True
        if latest is not None and listed.is_note_on(latest):
            self._begin(replace(latest, checkpoint=listed.checkpoint))
        return False

    def enter_first(self, part: Any, offset: int) -> FirstEntry | None:
        """Enter the first entry of an unknown loop, without decoding it.

        That takes a tenth of the time, and most of a long roster is of this kind.

        Args:
            offset: of its message in the stream.

        Returns:
            None: it is no such entry, or unreadable.
        """
        try:
            row = _row_of(part, _json(part))
            state, at_ms, by = LoopState(row.state), part["at_ms"], part.get("by", "")
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        loop = row.loop
        if not _is_storable(row, at_ms) or type(by) is not str:
            return None
        if loop.is_whole or "renames" in part:
            return None
        if self.is_told(loop, offset) or self.table.known(loop) is not None:
            return None
        self.table.write([row])
        self._epochs.pop(loop, None)
        self._count += 1
        self.counts[loop.task][state] += 1
        return FirstEntry(loop, row.epoch, by, moment_of(at_ms))

    def enter_note(self, part: Any) -> bool:
        """Enter a note on a loop's latest entry, decoding nothing but the checkpoint.

        That takes a fifth of the time. A loop that waits for long has a note for each run, so
        after some hours, most entries are of this kind.

        Returns:
            False: it is no note, or unreadable.
        """
        try:
            loop, checkpoint = LoopId(part["task"], part["key"]), part["checkpoint"]
            if "renames" in part or not all(type(name) is str for name in loop):
                return False
            if (entry := self.table.told_entry(loop)) is None:
                return False
            latest = parsed_json(entry)
            if any(part.get(name) != latest.get(name) for name in ("epoch", "life", "by")):
                return False
            later, earlier = validated(_CHECKPOINT, checkpoint, "checkpoint"), None
            if "checkpoint" in latest:
                earlier = validated(_CHECKPOINT, latest["checkpoint"], "checkpoint")
        except (KeyError, TypeError, ValueError, AttributeError, Undecodable):
            return False
        if later.is_newer_than(earlier):
            latest["checkpoint"] = checkpoint
            self.table.write([_row_of(latest, _json(latest))])
            self._decoded.pop(loop, None)
        return True

    def _told(self, loop: LoopId) -> RosterEntry | None:
        return None if self.is_inherited(loop) else self.get(loop)

    def _rename(self, listed: RosterEntry, before: RosterEntry) -> bool:
        """Replace one loop by another, unless the old one is there itself."""
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
                renamed=listed.loop.task,
            )
        )
        self._begin(replace(listed, renames=None))
        return True

    def under_its_name(self, token: Token) -> Token:
        """Return a token as one of the loop that replaced its own, if one did."""
        loop = token.loop
        while (listed := self.get(loop)) is not None and listed.renamed is not None:
            loop = LoopId(listed.renamed, loop.key)
        return token if loop == token.loop else replace(token, loop=loop)

    def begin_from(self, reached: Mapping[int, Bookmark], shares: int) -> None:
        """Continue after a loaded snapshot.

        Args:
            reached: for each loaded share of the loops, the last message that it covers.
            shares: how many the snapshot has.
        """
        self._shares = [reached[each].offset if each in reached else -1 for each in range(shares)]
        self.reached = min(reached.values(), key=lambda each: each.offset, default=None)
        self._count_anew()

    def _count_anew(self) -> None:
        self._decoded.clear()
        self._epochs.clear()
        counts = self.table.counts()
        self._count = sum(counts.values())
        self.counts.clear()
        for (task, state), count in counts.items():
            self.counts[task][state] += count
        wholes = [LoopId(task, WHOLE) for task in self.counts]
        self._of_tasks = {
            loop.task: listed for loop in wholes if (listed := self.get(loop)) is not None
        }
        for task, listed in self._of_tasks.items():
            self.counts[task][listed.entry.state] -= 1

    def count_of(self, task: str) -> int:
        """Return the number of loops of a task that are not gone."""
        of_task = self.counts[task]
        return of_task.total() - of_task[LoopState.GONE]

    def is_told(self, loop: LoopId, offset: int) -> bool:
        """Return whether a snapshot covers a loop's entry in a message of the stream."""
        shares = self._shares
        return bool(shares) and offset <= shares[share_of(loop, len(shares))]

    def is_inherited(self, loop: LoopId) -> bool:
        """Return whether only an earlier stream had a loop: its next first entry replaces it."""
        return self.table.is_inherited(loop)

    def begin_anew(self) -> None:
        """Mark all entries as inherited: the stream was recreated, or entries are missing."""
        self.table.inherit_all()
        self.streams += 1
        self.reached, self._shares = None, ()
        self._count_anew()

    def clear(self) -> None:
        """Remove all entries; keep the epochs that were learned."""
        self.table.clear()
        self.scope = None
        self.begin_anew()

    def forget(self, before: datetime) -> None:
        """Forget the loops that were gone before a moment. Their tokens stay void.

        A start begins a later epoch than all that are forgotten (`Roster.next_epoch_ms`).
        """
        for loop in self.table.gone_before(milliseconds_since_epoch(before)):
            self.forgotten = learned(self.forgotten, self.table.known(loop) or 0)
            self.table.delete(loop)
            self._count -= 1
            self.counts[loop.task][LoopState.GONE] -= not loop.is_whole
            for memory in (self._decoded, self._epochs, self._learned):
                memory.pop(loop, None)
            if loop.is_whole:
                self._of_tasks.pop(loop.task, None)

    def pause_of(self, task: str) -> RosterEntry | None:
        """Return the entry that pauses a task, with all its loops; None: it is not paused."""
        listed = self.of_task(task)
        return None if listed is None or listed.is_gone else listed

    def of_task(self, task: str) -> RosterEntry | None:
        """Return the entry that paused or resumed a task last; None: none is known."""
        return self._of_tasks.get(task)

    def is_held(self, *tasks: str) -> bool:
        """Return whether any of these tasks is paused, or may be: a roll call said so."""
        return any(map(self._is_held, tasks))

    def _is_held(self, task: str) -> bool:
        listed, whole = self.of_task(task), LoopId(task, WHOLE)
        if listed is None:  # asked for each message, so without a look into the table
            return self._learned.get(whole, 0) > self.forgotten
        return not listed.is_gone or self.known(whole) > listed.epoch

    @property
    def there(self) -> list[RosterEntry]:
        """Return the loops that are not gone, in the order of their start."""
        there = [each for each in self.values() if not (each.is_gone or each.is_of_task)]
        return sorted(there, key=lambda listed: (listed.entry.life, listed.loop))

    def some(self, most: int) -> Iterator[RosterEntry]:
        """Yield loops that are not gone, at most so many; those of the code first."""
        tasks = list(self.counts)
        loops = self.table.others(tasks)[:most]
        loops += self.table.keyed(tasks, "*", None, most=most - len(loops))
        return filter(None, map(self.get, loops))

    @property
    def pauses(self) -> list[RosterEntry]:
        """Return the entries that pause whole tasks."""
        return [each for each in self._of_tasks.values() if not each.is_gone]

    def _begin(self, listed: RosterEntry) -> None:
        loop, before = listed.loop, self.get(listed.loop)
        members = _members_of(listed)
        self.table.write([_row_of(members, _json(members))])
        self._decoded[loop] = listed
        self._epochs.pop(loop, None)
        self._count += before is None
        if listed.is_of_task:
            self._of_tasks[loop.task] = listed
        else:
            of_task = self.counts[loop.task]
            of_task[listed.entry.state] += 1
            if before is not None:
                of_task[before.entry.state] -= 1
