"""What the journal shows of loops since it was read last: those that go on, those of two lines.

A node of the broker that fails may hand a token out twice (S2 of `scheduler.protocol.epochs`).
Where the two lines meet in the slot, one is left; but where runs take longer than waits, they may
miss each other for ever.
"""

from collections.abc import Callable, Collection, Mapping
from datetime import datetime, timedelta
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, Field

from scheduler.protocol.epochs import is_doubled
from scheduler.protocol.messages import MOST_COUNTED
from scheduler.protocol.tokens import LoopId
from scheduler.queues.journal import Journal, Put
from scheduler.timing.clock import Clock
from scheduler.timing.durations import SECOND
from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch, moment_of

LOOK_BACK = timedelta(minutes=5)
CLOCKS_DIFFER = 5 * SECOND
# They take less than a second of CPU. Of the lines that are left out, more is heard later.
MOST_READ = 5_000
# What a token can carry is limited. Such loops are in a hand for more than half of the time.
REMEMBERED = 200

Known = Callable[[LoopId], int]


class Trail(BaseModel):
    """What a reading of the journal hands on to the next.

    Attributes:
        read_at_ms: when it began.
        reached: where that begins which it has not read, if it has read to the end.
        last: what each loop put last, where its lines may miss each other in the slot. Others meet
            there, or are heard twice in one reading.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    read_at_ms: int = Field(default=0, ge=0, le=LATEST_MS)
    reached: int | None = Field(default=None, ge=0, le=MOST_COUNTED)
    last: Mapping[str, Put] = {}


class Lines(NamedTuple):
    """What a reading of the journal has shown.

    Attributes:
        doubled: loops that have two lines, each with its epoch.
        going: loops of whose current epoch two puts were heard that follow each other: the first
            was taken, has hatched, and was run.
    """

    doubled: Mapping[LoopId, int]
    going: Collection[LoopId]
    trail: Trail


class Doubles:
    """Finds loops that have two lines."""

    def __init__(self, journal: Journal, clock: Clock) -> None:
        self._journal = journal
        self._clock = clock

    async def found(self, before: Trail, known: Known) -> Lines:
        """What the journal shows since the last reading.

        Args:
            before: what the last reading handed on.
            known: the current epoch of a loop.

        Raises:
            QueueNotFound: there is no journal.
            BrokerUnavailable: it could not be read.
        """
        now = self._clock.now()
        puts, is_all, reached = await self._journal.puts(since=_since(before, now), most=MOST_READ)
        comparison = Comparison(before.last, known)
        for loop, put in puts:
            comparison.hear(loop, put)
        found = comparison.doubled | comparison.doubted if is_all else comparison.doubled
        remembered = dict(list(comparison.to_be_remembered().items())[:REMEMBERED])
        trail = Trail(
            read_at_ms=milliseconds_since_epoch(now),
            reached=reached if is_all else None,
            last=remembered,
        )
        return Lines({loop: known(loop) for loop in found}, comparison.going - found, trail)


def _since(before: Trail, now: datetime) -> datetime | int:
    """Where to read on: where the last reading came to, unless that is too long ago."""
    read_at = moment_of(before.read_at_ms)
    if before.reached is not None and read_at >= now - LOOK_BACK:
        return before.reached
    return min(max(read_at, now - LOOK_BACK), now) - CLOCKS_DIFFER


class Comparison:
    """Compares what is heard of each loop with what was heard before.

    Attributes:
        doubled: loops of which two lines were heard.
        doubted: those of which one was remembered. It is read again, sometimes, with what came
            before it: that is no line of its own.
        going: loops that went on while they were heard of.
    """

    def __init__(self, remembered: Mapping[str, Put], known: Known) -> None:
        self.doubled: set[LoopId] = set()
        self.doubted: set[LoopId] = set()
        self.going: set[LoopId] = set()
        self._remembered = remembered
        self._known = known
        self._heard: dict[LoopId, Put] = {}

    def hear(self, loop: LoopId, put: Put) -> None:
        """Compare one more put, of those of the loop the next."""
        remembered, heard = self._remembered.get(str(loop)), self._heard.get(loop)
        if self._is_of_another_line(loop, put, heard):
            self.doubled.add(loop)
        if self._is_of_another_line(loop, put, remembered):
            self.doubted.add(loop)
        elif put == remembered:
            self.doubted.discard(loop)
        if heard is None or put.position > heard.position:
            if heard is not None and heard.epoch == put.epoch == self._known(loop):
                self.going.add(loop)
            self._heard[loop] = put

    def to_be_remembered(self) -> dict[str, Put]:
        """The last puts after which lines may miss each other, those that were heard now first."""
        heard = {str(loop): put for loop, put in self._heard.items()}
        ahead = {
            name: put
            for name, put in self._remembered.items()
            if name not in heard or put.position > heard[name].position
        }
        return {name: put for name, put in (heard | ahead).items() if put.outlasted_its_wait}

    def _is_of_another_line(self, loop: LoopId, put: Put, greatest: Put | None) -> bool:
        if greatest is None or put == greatest:
            return False  # it is the first that is heard, or was published again
        greatest_of_epoch = greatest.position if greatest.epoch == put.epoch else None
        return is_doubled(put.position, greatest_of_epoch, self._known(loop))
