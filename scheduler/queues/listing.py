"""List the roster's loops: judge its entries one by one in stream order.

An entry counts if it follows the loop's latest one (`epochs.accepted`). Another one of the same
epoch and creator is a note: only its later checkpoint counts.
"""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from itertools import islice
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter

from scheduler.errors import Undecodable
from scheduler.protocol.epochs import LoopState, accepted, learned
from scheduler.protocol.messages import (
    MOST_COUNTED,
    Message,
    compact_json,
    parsed_json,
    trace_of,
    validated,
)
from scheduler.protocol.tokens import WHOLE, LoopId, Token
from scheduler.queues.entries import (
    DONE,
    MOST_NOTED,
    Checkpoint,
    RosterEntry,
    entry_of,
    members_of,
    rank_at,
    rank_of,
)
from scheduler.queues.journal import Put
from scheduler.queues.loop_table import LoopTable, Row, Scope, share_of
from scheduler.queues.snapshots import Bookmark
from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch, moment_of

MOST_DECODED = 10_000
MOST_EPOCHS = 20_000
"""A look into the table takes ten times as long as one into a dict; each run takes several."""
K = TypeVar("K")
V = TypeVar("V")
_CHECKPOINT = TypeAdapter(Checkpoint)


def _row_of(members: Mapping[str, Any]) -> Row:
    entry, state, at_ms = dict(members), members["state"], members["at_ms"]
    checkpoint, schedule = entry.pop("checkpoint", None), members["schedule"]
    forget_ms = due_ms = None
    if state == LoopState.GONE:
        kept_ms = schedule.get("once_ms", 0) + schedule.get("kept_ms", 0)
        forget_ms = max(at_ms, kept_ms) if members.get("reason") == DONE else at_ms
    elif state == LoopState.ACTIVE and members["key"] != WHOLE:
        until_ms = 0 if checkpoint is None else checkpoint.get("until_ms", 0)
        due_ms = max(members.get("tick_ms", at_ms), until_ms)
    return Row(
        LoopId(members["task"], members["key"]),
        compact_json(entry).decode(),
        members["epoch"],
        state,
        forget_ms=forget_ms,
        due_ms=due_ms,
        identity=_identity_of(members),
        rank="" if checkpoint is None else rank_of(checkpoint.get("body")),
        note="" if checkpoint is None else compact_json(checkpoint).decode(),
    )


def _identity_of(members: Mapping[str, Any]) -> str:
    """Return what the notes on an entry share with it, besides the loop."""
    return compact_json([members.get(name) for name in ("epoch", "life", "by")]).decode()


def _is_storable(row: Row, life: object, at_ms: object) -> bool:
    """Return whether the table can store a row that was not decoded, and a snapshot can hold it."""
    numbers = row.epoch, life, row.forget_ms or 0, row.due_ms or 0
    return (
        all(type(each) is str and each.isprintable() for each in row.loop)
        and all(type(each) is int and 0 <= each <= MOST_COUNTED for each in numbers)
        and type(at_ms) is int
        and 0 <= at_ms <= LATEST_MS
    )


class Recent(dict[K, V]):
    """Cache the values that were set last.

    Args:
        most: its size; when full, it drops half of them.
    """

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: K, value: V) -> None:
        if len(self) >= self._most:
            for oldest in list(islice(self, self._most // 2)):
                del self[oldest]
        super().__setitem__(key, value)


class RosterNote(NamedTuple):
    """Hold how far a loop has come since its latest entry.

    Attributes:
        entry: encoded, without its checkpoint.
        identity: what the note shares with that entry, besides the loop.
        checkpoint: encoded.
        rank: how far ahead that is.
        until_ms: nothing was put after it before.
    """

    loop: LoopId
    entry: str
    identity: str
    checkpoint: str
    rank: str
    until_ms: int

    @property
    def encoded(self) -> bytes:
        """Return it as it travels: the entry, with its checkpoint."""
        return f'{self.entry[:-1]},"checkpoint":{self.checkpoint}}}'.encode()


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

    Args:
        aliases: the task that has each alias: a pause of one of its names pauses it.

    Attributes:
        forgotten: the greatest epoch of the loops that it has forgotten.
        reached: the message of the stream up to which all is judged; None: none.
        counts: the number of loops of each task in each state.
        scope: the loops that it was read for; None: all.
        streams: how many streams it has been of, one after the other.
    """

    def __init__(self, aliases: Mapping[str, str] = MappingProxyType({})) -> None:
        self._names = defaultdict[str, set[str]](set)
        for alias, task in aliases.items():
            self._names[task] |= {task, alias}
            self._names[alias] = self._names[task]
        self.forgotten = 0
        self.streams = 0
        self.reached: Bookmark | None = None
        self.scope: Scope | None = None
        self.counts = defaultdict[str, Counter[LoopState]](Counter)
        self.table = LoopTable()
        self._count = 0
        self._decoded = Recent[LoopId, RosterEntry](MOST_DECODED)
        self._epochs = Recent[LoopId, int](MOST_EPOCHS)
        self._learned: dict[LoopId, int] = {}
        self._of_tasks: dict[str, RosterEntry] = {}
        self._shares: Sequence[int] = ()
        self._has_inherited = False

    def __getitem__(self, loop: LoopId) -> RosterEntry:
        """Return the latest entry of a loop.

        Raises:
            KeyError: it is unknown.
            OutOfScope: it was not read for this loop.
        """
        if (listed := self._decoded.get(loop)) is not None:
            return listed
        if not self.is_for(loop):
            raise OutOfScope(str(loop))
        if (entry := self.table.entry(loop)) is None or (
            listed := entry_of(parsed_json(entry))
        ) is None:
            raise KeyError(loop)
        self._decoded[loop] = listed
        return listed

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
            return is_renamed or part["epoch"] > self._entered(loop)
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

    def _entered(self, loop: LoopId) -> int:
        """Return the greatest epoch of a loop in the entries of this stream; -1: it has none.

        A roll call or a token may tell of an epoch before its entry is read. And a later epoch of
        another loop may be forgotten.
        """
        if self._has_inherited and self.is_inherited(loop):
            return -1
        if loop not in self._learned and (epoch := self._epochs.get(loop)) is not None:
            return epoch
        entered = self.table.known(loop)
        return -1 if entered is None else entered

    def learn(self, loop: LoopId, epoch: int) -> None:
        """Note that this epoch of a loop has begun."""
        if epoch > self.known(loop):
            self._learned[loop] = epoch
            self._epochs.pop(loop, None)

    def enter(self, listed: RosterEntry) -> bool:
        """Enter the next entry of the stream, no note, if it is accepted; return whether it is."""
        latest = self._current(listed.before)
        is_accepted = accepted(listed.entry, None if latest is None else latest.entry)
        if listed.before != listed.loop:
            return is_accepted and self._rename(listed, latest or listed)
        if is_accepted:
            self._begin(listed)
        return is_accepted

    def enter_first(self, part: Any, offset: int) -> FirstEntry | None:
        """Enter the first entry of an unknown loop, without decoding it.

        That takes a tenth of the time, and most of a long roster is of this kind.

        Args:
            offset: of its message in the stream.

        Returns:
            None: it is no such entry, or unreadable.
        """
        try:
            row = _row_of(part)
            state, life, at_ms = LoopState(row.state), part["life"], part["at_ms"]
            by = part.get("by", "")
        except (KeyError, TypeError, ValueError, AttributeError):
            return None
        loop = row.loop
        if not _is_storable(row, life, at_ms) or type(by) is not str:
            return None
        if loop.is_whole or "renames" in part:
            return None
        if self.is_covered(loop, offset) or self.table.known(loop) is not None:
            return None
        self.table.write([row])
        self._epochs.pop(loop, None)
        self._count += 1
        self.counts[loop.task][state] += 1
        return FirstEntry(loop, row.epoch, by, moment_of(at_ms))

    def enter_note(self, part: Any) -> bool:
        """Enter a note on a loop's latest entry, decoding nothing but the checkpoint.

        That takes a fifth of the time that an entry takes. A loop that waits for long has a note
        for each run, so after some hours, most entries are of this kind.

        Returns:
            False: it is no note, or unreadable.
        """
        try:
            loop, checkpoint = LoopId(part["task"], part["key"]), part["checkpoint"]
            if "renames" in part or not all(type(name) is str for name in loop):
                return False
            rank = rank_of(validated(_CHECKPOINT, checkpoint, "checkpoint").body)
            identity, encoded = _identity_of(part), compact_json(checkpoint).decode()
            note = RosterNote(loop, "", identity, encoded, rank, checkpoint["until_ms"])
            return self.enter_decoded(note)
        except (KeyError, TypeError, ValueError, AttributeError, Undecodable):
            return False

    def enter_decoded(self, note: RosterNote) -> bool:
        """Enter a note; return whether it is on the loop's latest entry."""
        loop, _, identity, checkpoint, rank, until_ms = note
        is_ahead = self.table.note(loop, identity, checkpoint, rank, until_ms)
        if is_ahead:
            self._decoded.pop(loop, None)
        return is_ahead or self.table.identity(loop) == identity

    def load_notes(self, lines: Iterable[bytes]) -> None:
        """Enter the notes of a snapshot's lines that are on the latest entries, and ahead.

        Raises:
            Undecodable: a line is unreadable; notes before it may have been entered.
        """
        self._decoded.clear()
        self.table.load_notes(lines)

    def note_of(self, loop: LoopId, put: Put, message: Message) -> RosterNote | None:
        """Return a note on a loop's latest entry: how far the loop has come. See `Roster.note`.

        Args:
            put: its last one.
            message: of the token that was put. It is not decoded, which takes as long as all else;
                if a token is unreadable, the reader of its note reads the journal.

        Returns:
            None: a note is of no use, or would be too big.
        """
        found = None if put.first else self.table.ranked_entry(loop)
        if found is None or len(message.body) > MOST_NOTED:
            return None
        body = message.body.decode()  # UTF-8: it was parsed
        entry, identity, rank = found
        try:
            latest = parsed_json(entry)
            state, is_renamed = latest["state"], latest.get("renamed") is not None
            is_early, is_latest = put.epoch < latest["life"], put.epoch == latest["epoch"]
        except (KeyError, TypeError, AttributeError, Undecodable):
            return None  # a snapshot had an unreadable entry
        if is_renamed:
            if (current := self.current_name(loop)) == loop:
                return None
            renamed = compact_json({**parsed_json(body), "task": current.task})
            return self.note_of(current, put, replace(message, body=renamed))
        is_paused, reached = state == LoopState.PAUSED, rank_at(put.position)
        is_ahead = rank is None or rank < reached
        if state == LoopState.GONE or is_early or not is_ahead:
            return None
        if not (is_latest or is_paused):
            return None  # another epoch begins, or has begun
        until_ms = LATEST_MS if is_paused or put.rests else put.due_at_ms
        checkpoint = {"headers": trace_of(message.headers), "body": body, "until_ms": until_ms}
        return RosterNote(
            loop, entry, identity, compact_json(checkpoint).decode(), reached, until_ms
        )

    def _current(self, loop: LoopId) -> RosterEntry | None:
        return None if self.is_inherited(loop) else self.get(loop)

    def _rename(self, listed: RosterEntry, before: RosterEntry) -> bool:
        """Replace one loop by another, unless the old one is there itself."""
        there = self._current(listed.loop)
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
        current = self.current_name(token.loop)
        return token if current == token.loop else replace(token, loop=current)

    def current_name(self, loop: LoopId) -> LoopId:
        """Return the loop that replaced another one; itself, if none did."""
        current, former = loop, set[LoopId]()
        while (listed := self.get(current)) is not None and listed.renamed is not None:
            if current in former:  # they replace each other: another program's entries are wrong
                return loop
            former.add(current)
            current = LoopId(listed.renamed, current.key)
        return current

    async def begin_from(self, reached: Mapping[int, Bookmark], shares: int) -> None:
        """Continue after a loaded snapshot.

        Args:
            reached: for each loaded share of the loops, the last message that it covers.
            shares: how many the snapshot has.
        """
        self._shares = [reached[each].offset if each in reached else -1 for each in range(shares)]
        self.reached = min(reached.values(), key=lambda each: each.offset, default=None)
        counts = Counter[tuple[str, LoopState]]()
        for number in range(shares):
            counts.update(self.table.counts(number, shares))
            await asyncio.sleep(0)
        self._recount(counts)

    def _recount(self, counts: Mapping[tuple[str, LoopState], int]) -> None:
        self._decoded.clear()
        self._epochs.clear()
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

    def is_covered(self, loop: LoopId, offset: int) -> bool:
        """Return whether a snapshot covers a loop's entry in a message of the stream."""
        shares = self._shares
        return bool(shares) and offset <= shares[share_of(loop, len(shares))]

    def is_inherited(self, loop: LoopId) -> bool:
        """Return whether only an earlier stream had a loop: its next first entry replaces it."""
        return self.table.is_inherited(loop)

    def inherit_all(self) -> None:
        """Mark all entries as inherited: the stream was recreated, or entries are missing."""
        self.table.inherit_all()
        self.streams += 1
        self.reached, self._shares = None, ()
        self._recount(self.table.counts())
        self._has_inherited = self._count > 0

    def drop_inherited(self, kept: Collection[LoopId]) -> None:
        """Remove the entries of loops that only an earlier stream had, except some.

        Epochs that were learned are kept.
        """
        for loop in self.table.inherited():
            if loop not in kept:
                self.table.delete(loop)
        self._recount(self.table.counts())

    def begin_again(self) -> None:
        """Begin again after the table has failed; keep the epochs that were learned."""
        self.table.begin_again()
        self.inherit_all()

    def clear(self) -> None:
        """Remove all entries; keep the epochs that were learned."""
        self.table.clear()
        self.scope = None
        self.inherit_all()

    def forget(self, before: datetime, *, most: int = -1, kept: Collection[LoopId] = ()) -> None:
        """Forget the loops that were gone before a moment. Their tokens stay void.

        A start begins a later epoch than all that are forgotten (`Roster.next_epoch_ms`).

        Args:
            most: the maximum number; -1: all.
            kept: loops that are never forgotten.
        """
        for loop in self.table.gone_before(milliseconds_since_epoch(before), most):
            if loop in kept:
                self.table.keep_gone(loop)
                continue
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
        """Return the entry that pauses a task by any of its names, or else the last one that
        resumed it; None: none is known.
        """
        found = filter(None, map(self._of_tasks.get, self._names.get(task, (task,))))
        return max(found, key=lambda listed: (not listed.is_gone, listed.at), default=None)

    def is_held(self, task: str) -> bool:
        """Return whether a task is paused by any of its names, or may be: a roll call said so."""
        return any(map(self._is_held, self._names.get(task, (task,))))

    def _is_held(self, name: str) -> bool:
        # Asked for each message, so without a look into the table.
        listed, heard = self._of_tasks.get(name), self._learned.get(LoopId(name, WHOLE), 0)
        if listed is None:
            return heard > self.forgotten
        return not listed.is_gone or heard > listed.epoch

    @property
    def there(self) -> list[RosterEntry]:
        """Return the loops that are not gone, in the order of their start."""
        there = [each for each in self.values() if not (each.is_gone or each.is_of_task)]
        return sorted(there, key=lambda listed: (listed.entry.life, listed.loop))

    def some(self, most: int) -> Iterator[RosterEntry]:
        """Yield up to `most` loops that are not gone; those of the code first."""
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
        self._epochs.pop(loop, None)  # also if the entry finds no space
        self.table.write([_row_of(members_of(listed))])
        self._decoded[loop] = listed
        self._count += before is None
        if listed.is_of_task:
            self._of_tasks[loop.task] = listed
        else:
            of_task = self.counts[loop.task]
            of_task[listed.entry.state] += 1
            if before is not None:
                of_task[before.entry.state] -= 1
