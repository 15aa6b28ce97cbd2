"""The listing: what the roster says of each loop, judged entry by entry in the order of the stream.

An entry counts if it follows the loop's latest one (`epochs.accepted`). Another one of the same
epoch and creator is a note: it tells nothing but a later checkpoint.
"""

import heapq
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from scheduler.protocol.epochs import Entry, LoopState, accepted, learned
from scheduler.protocol.tokens import LoopId
from scheduler.queues.checkpoints import Checkpoint
from scheduler.queues.snapshots import Bookmark
from scheduler.tasks.loops import Override
from scheduler.timing.moments import UNIX_EPOCH
from scheduler.timing.once import Once
from scheduler.timing.schedules import Schedule

DONE = "done"
"""Why a loop is gone: its one run has ended."""


@dataclass(frozen=True, slots=True)
class Listed:
    """A loop, as its latest epoch began.

    Attributes:
        reason: why it is paused, or gone.
        by: who began the epoch.
        at: when.
        checkpoint: how far it had come; None: that is for the journal to say.
        override: who has set the schedule in place of the code's; None: nobody has.
    """

    loop: LoopId
    schedule: Schedule
    args: Mapping[str, Any]
    entry: Entry = Entry(0, LoopState.ACTIVE, 0)
    reason: str = ""
    by: str = ""
    at: datetime = UNIX_EPOCH
    checkpoint: Checkpoint | None = None
    override: Override | None = None

    @property
    def epoch(self) -> int:
        return self.entry.epoch

    @property
    def first_due_at(self) -> datetime:
        """The time of the first tick after its epoch began, with its jitter at most."""
        return self.schedule.next_after(self.at) + self.schedule.jitter

    @property
    def is_gone(self) -> bool:
        return self.entry.state is LoopState.GONE

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


class Listing(dict[LoopId, Listed]):
    """The entries of all loops in the roster, gone ones too, and the epochs that began.

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
        latest = None if self.is_inherited(listed.loop) else self.get(listed.loop)
        if accepted(listed.entry, None if latest is None else latest.entry):
            self._begin(listed)
            return True
        if latest is not None and listed.is_note_on(latest):
            self[listed.loop] = replace(latest, checkpoint=listed.checkpoint)
        return False

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

    def entry(self, loop: LoopId) -> Entry | None:
        """The latest entry of a loop, if it has one."""
        listed = self.get(loop)
        return None if listed is None else listed.entry

    @property
    def there(self) -> list[Listed]:
        """The loops that are not gone, in the order in which they were started."""
        there = [listed for listed in self.values() if not listed.is_gone]
        return sorted(there, key=lambda listed: listed.entry.life)

    def _begin(self, listed: Listed) -> None:
        self[listed.loop] = listed
        self._inherited.discard(listed.loop)
        if listed.is_gone:
            heapq.heappush(self._gone, (listed.remembered_from, listed.loop))
