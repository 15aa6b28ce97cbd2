"""Keep a picture of all loops, from the journal and the roster.

It receives each message of the two streams, in any order, and asks nothing. It is bounded in loops,
and in runs of each.
"""

from bisect import insort
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from math import log2
from types import MappingProxyType
from typing import NamedTuple

from scheduler.brokers.contract import Depth, total
from scheduler.control.installation import Leftover
from scheduler.control.status import RECENT
from scheduler.dashboard.acknowledgements import (
    ACKNOWLEDGED,
    Acknowledgement,
    acknowledgement_in,
)
from scheduler.errors import MessageError
from scheduler.protocol.epochs import Verb
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Ending, LastRun, LoopId, Replay, Token, decode
from scheduler.protocol.topology import Names
from scheduler.queues.entries import Checkpoint, RosterEntry
from scheduler.queues.failed import ParkedMessage, is_record, kind_of, read_parked
from scheduler.queues.history import CallTotals, Summary, decoded_batch, totals_of
from scheduler.queues.journal import (
    STARTS_TYPE,
    JournalEntry,
    entries_of_starts,
    entry_of_record,
    entry_of_token,
    with_progress_of,
)
from scheduler.queues.listing import Listing
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.durations import MILLISECOND
from scheduler.timing.moments import UNIX_EPOCH

MOST_LOOPS = 20_000
RUNS_KEPT = 30
ACTS_KEPT = 10
MOST_ADOPTED = 1_000  # loops
GROUPS_KEPT = 1_000
MINUTES_KEPT = 7 * 24 * 60
BUCKETS = 4  # for each doubling of a delay
LARGE = 4_096  # bytes
DAY = timedelta(days=1)
SLOT = timedelta(minutes=3)
ROUTINE = (Ending.SUCCEEDED, Ending.RETRIED, Ending.SKIPPED, Verb.SEED)
ROUTINE_KEPT = 1_000
ACTIONS_KEPT = 2_000
FAILURES_KEPT = 10  # of one kind, of one loop
MOST_FAILING = 1_000


@dataclass(slots=True)
class ParkedGroup:
    """Count messages of one task that were parked for one kind of error, with the last error.

    Attributes:
        calls: how many calls are among them, by the time.
    """

    error: str
    count: int
    first_at: datetime
    last_at: datetime
    calls: "Times" = field(default_factory=lambda: Times())


class PastRun(NamedTuple):
    """Describe a run of a loop, as the journal says."""

    started_at: datetime
    seq: int
    last: LastRun

    @property
    def attempt(self) -> int:
        return self.last.attempt


@dataclass(slots=True)
class LoopPicture:
    """Hold the history of one loop, and its last entry in the roster.

    Attributes:
        token: the last one that was heard.
        is_large: whether the carry of the token was too large to be kept.
        runs: the last of them, oldest first.
        acts: operations on it, and its parked messages, oldest first.
    """

    id: LoopId
    listed: RosterEntry | None = None
    token: Token | None = None
    is_large: bool = False
    runs: list[PastRun] = field(default_factory=list[PastRun])
    acts: list[JournalEntry] = field(default_factory=list[JournalEntry])
    succeeded_at: datetime | None = None

    @property
    def last(self) -> LastRun | None:
        return self.runs[-1].last if self.runs else None

    def see(self, token: Token, size: int) -> None:
        """Note a token that was put, unless a later one is known."""
        if self.token is not None and token.position < self.token.position:
            return
        self.is_large = size > LARGE
        if self.token is not None:
            token = with_progress_of(token, self.token)
        self.token = replace(token, carry=None, trace={}) if self.is_large else token

    def add(self, run: PastRun) -> bool:
        """Note a run; return whether it is new."""
        if run in self.runs:
            return False
        insort(self.runs, run, key=lambda each: each.started_at)
        if run.last.ending is Ending.SUCCEEDED:
            self.succeeded_at = max(self.succeeded_at or run.started_at, run.started_at)
        del self.runs[:-RUNS_KEPT]
        return True


class Picture:
    """Hold all known loops of a namespace.

    Attributes:
        version: grows with every change.
        since: when the connection was made or lost.
        trouble: why the broker denies access, if it says so.
        seeded: whether there is a journal.
        is_listed: whether the roster was read.
        heard_back_to: the journal has been read from here on; None: not at all yet.
        leftovers: the tasks in the broker that the code does not have.
        parked: parked messages, by task and kind of error.
        acknowledged: the last acknowledgement of each failure, by task and kind of error.
        failed: failed attempts of loops by the time, by task and kind of error.
        succeeded_at: when a run of each task succeeded last; a call, to ten seconds.
        changed: the loops with news, until they are judged.
    """

    def __init__(self, namespace: str, aliases: Mapping[str, str] = MappingProxyType({})) -> None:
        self._aliases = aliases
        self.loops: dict[LoopId, LoopPicture] = {}
        self.minutes = Minutes()
        self.entries = Entries()
        self.listing = Listing(aliases)
        self.depths: dict[str, Depth | None] = {}
        self.leftovers: Sequence[Leftover] = ()
        self.parked: dict[tuple[str, str], ParkedGroup] = {}
        self.acknowledged: dict[tuple[str, str], Acknowledgement] = {}
        self.failed: dict[tuple[str, str], Times] = {}
        self.succeeded_at: dict[str, datetime] = {}
        self.changed = set[LoopId]()
        self.version = 0
        self.connected = False
        self.trouble = ""
        self.since: datetime | None = None
        self.seeded = True
        self.is_listed = False
        self.heard_back_to: datetime | None = None
        self.is_reading_back = False
        self._namespace = namespace
        self._summaries: dict[int, list[Summary]] = {}
        self._adopted = deque[LoopId]()

    def be(self, connected: bool, now: datetime) -> None:
        if connected != self.connected or self.since is None:
            self.connected, self.since = connected, now
            self.trouble = ""
            self.version += 1

    def fail(self, trouble: str, now: datetime) -> None:
        self.be(False, now)
        self.trouble = trouble
        self.version += 1

    def leave(self, leftovers: Sequence[Leftover]) -> None:
        if leftovers != self.leftovers:
            self.leftovers = leftovers
            self.version += 1

    def hear_of_calls(self, message: Message) -> None:
        """Note a new message of the history of calls; ignore older ones."""
        assert message.offset is not None
        summaries = [
            each for each in decoded_batch(message, self._aliases) if isinstance(each, Summary)
        ]
        if summaries and message.offset not in self._summaries:
            self._summaries[message.offset] = summaries
            self.version += 1
            for each in summaries:
                if each.succeeded:
                    self._succeed(each.task, each.until)

    def calls(self, now: datetime) -> dict[str, CallTotals]:
        """Return the outcomes of each task's calls in the last quarter of an hour."""
        since = now - RECENT
        self._summaries = {
            offset: summaries
            for offset, summaries in self._summaries.items()
            if summaries[-1].until >= since
        }
        return totals_of(each for summaries in self._summaries.values() for each in summaries)

    def hear(self, message: Message) -> datetime | None:
        """Note a message of the journal; return the time of its subject."""
        if is_record(message):
            entry = entry_of_record(message)
            self._note(entry, self.loops.get(_named(entry.loop)))
            self._count(read_parked(message, queue="", routing_key=""), is_call=entry.seq is None)
            return entry.at
        if message.type == STARTS_TYPE:
            at = None
            for entry in entries_of_starts(message):
                self._note(entry, self.loops.get(_named(entry.loop)))
                at = entry.at
            return at
        if (acknowledged := acknowledgement_in(message)) is not None:
            self._acknowledge(acknowledged)
            return None
        try:
            token = decode(message, self._namespace)
        except MessageError:
            return None  # foreign
        if isinstance(token, Replay):
            return None
        entry = entry_of_token(token)
        if token.loop == SUPERVISION:
            return entry.at if entry else None
        if token.loop.is_whole:
            if entry is not None:
                self._note(entry, None)
        elif (loop := self._loop(token.loop)) is not None:
            loop.see(token, len(message.body))
            self._hear_of(loop, token, entry)
        return entry.at if entry else None

    def _acknowledge(self, acknowledgement: Acknowledgement) -> None:
        """Note an acknowledgement, unless a later one is known."""
        known = self.acknowledged.get(acknowledgement.failure)
        if known is not None and acknowledgement.rank <= known.rank:
            return
        self.acknowledged[acknowledgement.failure] = acknowledgement
        if len(self.acknowledged) > GROUPS_KEPT:
            ranks = {key: each.rank for key, each in self.acknowledged.items()}
            del self.acknowledged[min(ranks, key=lambda key: ranks[key])]
        self.version += 1
        if known is None or known.at != acknowledgement.at:
            entry = JournalEntry(
                acknowledgement.at, acknowledgement.task, ACKNOWLEDGED, seq=None, attempt=None
            )
            self._note(replace(entry, note=acknowledgement.note, by=acknowledgement.by), None)

    def _succeed(self, task: str, at: datetime) -> None:
        self.succeeded_at[task] = max(self.succeeded_at.get(task, at), at)

    def _hear_of(self, loop: LoopPicture, token: Token, entry: JournalEntry | None) -> None:
        self.version += 1
        self.changed.add(loop.id)
        if entry is None:
            return
        run, task = entry.run, loop.id.task
        if token.act is not None:
            self._note(entry, loop)
        elif run and entry.seq is not None and loop.add(PastRun(run.started_at, entry.seq, run)):
            self.minutes.count(run)
            self.entries.add(entry)
            if run.ending is Ending.SUCCEEDED:
                self._succeed(task, run.started_at)
            elif run.ending in FAILED:
                key = task, kind_of(run.error or "")
                if key in self.failed or len(self.failed) < GROUPS_KEPT:
                    self.failed.setdefault(key, Times()).note(run.started_at)

    def list(self, there: Iterable[RosterEntry]) -> None:
        """Show the loops that are not gone; and what the listing says of those shown before."""
        seen = set[LoopId]()
        for listed in there:
            seen.add(listed.loop)
            self.enter(listed)
        for loop in self.loops.keys() - seen:
            self.hear_of_entry(loop)
        self.is_listed = True
        self.version += 1

    def hear_of_entry(self, loop: LoopId) -> None:
        """Note that the listing has a new entry of a loop; ignore loops beyond the limit."""
        if loop.is_whole or loop in self.loops or not self.is_full:
            listed = self.listing.get(loop)  # None: it is unreadable
            if listed is not None:
                self.enter(listed)

    def enter(self, listed: RosterEntry) -> None:
        """Show the latest entry of a loop."""
        if listed.loop == SUPERVISION:
            return
        self.version += 1
        self.changed.add(listed.loop)
        if listed.is_of_task or (loop := self._loop(listed.loop)) is None:
            return
        loop.listed = listed
        if loop.token is None and (noted := listed.noted(self._namespace)) is not None:
            self._recall(loop, noted)

    def adopt(self, listed: RosterEntry) -> None:
        """Show a loop though there are too many, from now on; forget those adopted long ago."""
        if listed.loop not in self.loops:
            self.loops[listed.loop] = LoopPicture(listed.loop)
            self._adopted.append(listed.loop)
            if len(self._adopted) > MOST_ADOPTED:
                self.changed.add(oldest := self._adopted.popleft())
                del self.loops[oldest]
        self.enter(listed)

    def failures(
        self, task: str, kind: str, now: datetime, count: int, width: int
    ) -> Sequence[int]:
        """Count the failures of a task with a kind of error in the last spans, the oldest first.

        Args:
            count: of the spans; each has `width` slots.
        """
        times, parked = self.failed.get((task, kind)), self.parked.get((task, kind))
        known = [*([times] if times else []), *([parked.calls] if parked else [])]
        return [sum(each) for each in zip(*(t.last(count, now, width) for t in known), strict=True)]

    def _recall(self, loop: LoopPicture, noted: Checkpoint) -> None:
        try:
            token = noted.token(self._namespace)
        except MessageError:
            return  # the journal reports it, sooner or later
        loop.see(token, len(noted.body))
        if token.last is not None:
            tick = token.seq if token.attempt else max(token.seq - 1, 0)
            loop.add(PastRun(token.last.started_at, tick, token.last))
            if loop.succeeded_at is not None:
                self._succeed(loop.id.task, loop.succeeded_at)

    def depth_of(self, queues: Iterable[str]) -> Depth | None:
        """Return the depth of the queues of a task; None: unknown, or they do not exist."""
        return total(map(self.depths.get, queues))

    def measure(self, depths: Mapping[str, Depth | None]) -> None:
        if any(self.depths.get(name, 0) != depth for name, depth in depths.items()):
            self.depths.update(depths)
            self.version += 1

    def ready(self, names: Names) -> int:
        ours = names.processor_queue("")
        return sum(
            each.ready for name, each in self.depths.items() if each and name.startswith(ours)
        )

    @property
    def is_full(self) -> bool:
        return len(self.loops) >= MOST_LOOPS

    def _loop(self, name: LoopId) -> LoopPicture | None:
        loop = self.loops.get(name)
        if loop is None:
            if self.is_full:
                return None
            loop = self.loops[name] = LoopPicture(name, self.listing.get(name))
        return loop

    def _note(self, entry: JournalEntry, loop: LoopPicture | None) -> None:
        self.version += 1
        self.entries.add(entry)
        if loop is not None and entry not in loop.acts and entry.at is not None:
            _add(loop.acts, entry, ACTS_KEPT)

    def _count(self, parked: ParkedMessage, *, is_call: bool) -> None:
        key, at = (parked.task, parked.kind), parked.parked_at
        if at is None or (len(self.parked) >= GROUPS_KEPT and key not in self.parked):
            return
        group = self.parked.setdefault(key, ParkedGroup(parked.error, 0, at, at))
        group.count += 1
        if is_call:  # the runs of loops are counted themselves
            group.calls.note(at)
        group.first_at = min(group.first_at, at)
        if at >= group.last_at:
            group.last_at, group.error = at, parked.error


class Entries:
    """Hold the last entries of each sort, oldest first: routine, failures and operations apart.

    So a thousand runs a minute push out no pause of yesterday, and a loop that fails each second no
    failure of another loop.
    """

    def __init__(self) -> None:
        self._routine: list[JournalEntry] = []
        self._actions: list[JournalEntry] = []
        self._failures: dict[tuple[str, str], list[JournalEntry]] = {}
        self._notable: list[JournalEntry] | None = []

    @property
    def all(self) -> Sequence[JournalEntry]:
        return sorted([*self.notable, *self._routine], key=_moment)

    @property
    def notable(self) -> Sequence[JournalEntry]:
        """Return failures and operations, without routine."""
        if self._notable is None:
            failures = (each for entries in self._failures.values() for each in entries)
            self._notable = sorted([*self._actions, *failures], key=_moment)
        return self._notable

    @property
    def actions(self) -> Sequence[JournalEntry]:
        """Return the operations of operators alone."""
        return self._actions

    def add(self, entry: JournalEntry) -> None:
        if entry.at is None:
            return
        if entry.what in ROUTINE:
            _add(self._routine, entry, ROUTINE_KEPT)
            return
        self._notable = None
        if entry.by:
            _add(self._actions, entry, ACTIONS_KEPT)
        else:
            key = entry.loop, entry.what
            _add(self._failures.setdefault(key, []), entry, FAILURES_KEPT)
            if len(self._failures) > MOST_FAILING:
                oldest = min(self._failures, key=lambda key: _moment(self._failures[key][-1]))
                del self._failures[oldest]


def _add(entries: list[JournalEntry], entry: JournalEntry, most: int) -> None:
    insort(entries, entry, key=_moment)
    del entries[:-most]


def _moment(entry: JournalEntry) -> datetime:
    assert entry.at is not None
    return entry.at


def _named(loop: str) -> LoopId:
    task, _, key = loop.partition(".")
    return LoopId(task, key)


MINUTE = timedelta(minutes=1)
FAILED = (Ending.RETRIED, Ending.ESCALATED)


class Times(Counter[int]):
    """Count events of the last day, in slots of a few minutes."""

    def note(self, at: datetime) -> None:
        self[(at - UNIX_EPOCH) // SLOT] += 1
        if len(self) > DAY // SLOT:
            del self[min(self)]

    def last(self, count: int, now: datetime, width: int) -> Sequence[int]:
        """Return the counts of the last spans, the oldest first; each has `width` slots."""
        end = (now - UNIX_EPOCH) // SLOT + 1
        begins = range(end - count * width, end, width)
        return [sum(self[each] for each in range(begin, begin + width)) for begin in begins]


@dataclass(slots=True)
class Minute:
    """Count the runs that started in a minute, without skipped ones.

    Attributes:
        late: the number of first attempts, by the bucket of their delay.
        backlog: the highest number of ready messages; None: unknown.
    """

    outcomes: Counter[Ending] = field(default_factory=Counter[Ending])
    late: Counter[int] = field(default_factory=Counter[int])
    latest: timedelta = timedelta(0)
    backlog: int | None = None

    @property
    def runs(self) -> int:
        return self.outcomes.total()

    @property
    def failed(self) -> int:
        return sum(self.outcomes[ending] for ending in FAILED)

    def add(self, other: "Minute") -> None:
        self.outcomes += other.outcomes
        self.late += other.late
        self.latest = max(self.latest, other.latest)
        if other.backlog is not None:
            self.backlog = max(self.backlog or 0, other.backlog)

    def late_at(self, share: float) -> timedelta | None:
        """Return the delay that this share of the first attempts does not exceed, to a fifth."""
        rank, seen = share * self.late.total(), 0
        for bucket in sorted(self.late):
            if (seen := seen + self.late[bucket]) >= rank:
                return timedelta(milliseconds=2 ** (bucket / BUCKETS) - 1)
        return None


class Minutes:
    """Hold the last minutes, and count runs as they are heard, in any order."""

    def __init__(self) -> None:
        self._minutes: dict[int, Minute] = {}

    def count(self, run: LastRun) -> None:
        """Count a run; retries do not count as late."""
        if run.ending is Ending.SKIPPED:
            return
        minute = self._at(_number(run.started_at))
        minute.outcomes[run.ending] += 1
        if run.attempt == 1:
            late = max(run.late, timedelta(0))
            minute.late[round(BUCKETS * log2(late / MILLISECOND + 1))] += 1
            minute.latest = max(minute.latest, late)

    def note_backlog(self, ready: int, now: datetime) -> None:
        minute = self._at(_number(now))
        minute.backlog = max(minute.backlog or 0, ready)

    def last(self, count: int, now: datetime, width: int = 1) -> Iterator[tuple[datetime, Minute]]:
        """Return the last complete minutes, oldest first; `width` of them are combined."""
        end = (_number(now) - 1) // width
        for number in range(end - count + 1, end + 1):
            whole = Minute()
            for each in range(number * width, (number + 1) * width):
                if (minute := self._minutes.get(each)) is not None:
                    whole.add(minute)
            yield UNIX_EPOCH + number * width * MINUTE, whole

    def _at(self, number: int) -> Minute:
        minute = self._minutes.get(number)
        if minute is None:
            minute = self._minutes[number] = Minute()
            while len(self._minutes) > MINUTES_KEPT:
                del self._minutes[min(self._minutes)]
        return minute


def _number(moment: datetime) -> int:
    return (moment - UNIX_EPOCH) // MINUTE
