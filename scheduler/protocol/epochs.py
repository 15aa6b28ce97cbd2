"""Epochs: what a token is worth. The rules by which wrong tokens are harmless; no I/O.

Every token belongs to an epoch of its loop. Whoever creates a token begins a new epoch; tokens of
older ones are void: they may lie anywhere, and nobody runs them.

====  =============================================  ===========================================
rule  who keeps it, and when                         what decides
====  =============================================  ===========================================
P0    a processor that starts or reconnects          `STARTING`; afterwards `learned`
C     a creator, under the mutex                     `begun`, `steps`, `is_last`, `unaware`
R1    a processor that receives a token              `is_void`, `learned`
R2    a processor whose put the slot refuses         `refused`
R3    a processor that receives a redelivered one    `awaited`, then `was_settled`
R4    a processor, before the first run of an epoch  `awaited`, then `adopted`
S1    supervision, that finds no token               `Watch`
S2    supervision, that finds two                    `is_doubled`
====  =============================================  ===========================================

`tests/model` checks these very functions in all orders in which processors, creators, supervision
and the broker can take their steps.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum, StrEnum
from typing import NamedTuple, TypeVar

MISSES = 2
"""So many looks in a row find no token before a loop is lost: one may miss what moves."""

Processor = TypeVar("Processor")


class Position(NamedTuple):
    """Where a token stands: a later epoch is ahead, and within an epoch the greater progress.

    Attributes:
        seq: how many ticks of the loop have been settled before this token.
        attempt: how many attempts of its tick have failed.
        joined: False for the first of an epoch, until the processors were asked (R4).
    """

    epoch: int
    seq: int
    attempt: int = 0
    joined: bool = True

    @property
    def progress(self) -> tuple[int, int, bool]:
        """How far the loop had come when the token was made, whatever its epoch."""
        return self.seq, self.attempt, self.joined


class Verb(StrEnum):
    """What creators do, as the journal tells of it."""

    START = "seeded"
    PAUSE = "paused"
    RESUME = "resumed"
    TRIGGER = "triggered"
    RESCHEDULE = "rescheduled"
    REPAIR = "repaired"
    GONE = "removed"


class LoopState(StrEnum):
    """What the roster says of a loop."""

    ACTIVE = "active"
    PAUSED = "paused"
    GONE = "gone"


class Entry(NamedTuple):
    """What an entry of the roster says of a loop's epochs.

    Attributes:
        life: the epoch of its last start. Progress from before it is of another life.
    """

    epoch: int
    state: LoopState
    life: int


class First(NamedTuple):
    """The token that a creator puts."""

    position: Position
    paused: bool


class Beginning(NamedTuple):
    """What begins an epoch: its entry, and its token (None: the loop is gone)."""

    entry: Entry
    token: First | None


class Step(Enum):
    """What creators and starting processors do, one after the other."""

    APPEND = "append the entry to the roster"
    PURGE = "purge the slot"
    PUT = "put the first token; if it is refused, purge and put again"
    CALL = "call the roll with the epoch until all subscribed processors know it"
    SUBSCRIBE = "subscribe to roll calls"
    READ = "read the roster up to a barrier"


STARTING = (Step.SUBSCRIBE, Step.READ)
"""P0, before it consumes: of epochs that begin after it subscribed it is told, others it reads."""

_BEFORE = {
    Verb.START: {LoopState.GONE},
    Verb.PAUSE: {LoopState.ACTIVE, LoopState.PAUSED},
    Verb.RESUME: {LoopState.PAUSED},
    Verb.TRIGGER: {LoopState.ACTIVE},
    Verb.RESCHEDULE: {LoopState.ACTIVE, LoopState.PAUSED},
    Verb.REPAIR: {LoopState.ACTIVE, LoopState.PAUSED},
    Verb.GONE: set(LoopState),
}
# Pause and gone may be done again: the one before may have died before it called the roll.
_AFTER = {
    Verb.START: LoopState.ACTIVE,
    Verb.PAUSE: LoopState.PAUSED,
    Verb.RESUME: LoopState.ACTIVE,
    Verb.GONE: LoopState.GONE,
}


def begun(
    verb: Verb, latest: Entry | None, *, at_ms: int = 0, paused: bool = False
) -> Beginning | None:
    """C: whoever creates a token begins a new epoch, so that all older tokens are void.

    A start begins a new life, from no progress; all others go on from what R4 adopts.

    Epochs are numbered as a hybrid logical clock counts (Kulkarni et al., "Logical Physical
    Clocks", 2014): by the time, but always onwards. So a loop whose roster was lost begins after
    all that was before, and two that hold the mutex at once do not begin the same epoch.

    Args:
        latest: the loop's last entry in the roster, if it has one.
        at_ms: the time, in milliseconds since the Unix epoch.
        paused: of a start: the loop is to wait until it is resumed.

    Returns:
        The entry to append and the token to put. None: the verb has nothing to do.
    """
    epoch, state, life = latest or Entry(0, LoopState.GONE, 0)
    if state not in _BEFORE[verb] or (latest is None and verb is Verb.GONE):
        return None
    state = LoopState.PAUSED if paused and verb is Verb.START else _AFTER.get(verb, state)
    epoch = max(epoch + 1, at_ms)
    life = epoch if verb is Verb.START else life
    token = First(Position(epoch, seq=0, joined=False), paused=state is LoopState.PAUSED)
    return Beginning(Entry(epoch, state, life), None if state is LoopState.GONE else token)


def steps(verb: Verb) -> tuple[Step, ...]:
    """C: what a creator does, in this order, that may die after each step.

    Pause and gone promise that no run starts after they returned: so they call the roll.
    """
    put = () if verb is Verb.GONE else (Step.PUT,)
    call = (Step.CALL,) if verb in {Verb.PAUSE, Verb.GONE} else ()
    return Step.APPEND, Step.PURGE, *put, *call


def is_last(found: Position, latest: int, *, known: bool) -> bool:
    """C: whether what a creator found in the slot is the last that its loop came to.

    Then the journal need not be read for the token that goes on with it. Not to be relied on by a
    repair: where a node has failed there may be two lines.

    Args:
        latest: the epoch before the creator's own.
        known: of one that has not joined, whether its creator knew what it goes on from.
    """
    return found.epoch == latest and (found.joined or known)


def learned(known: int, epoch: int) -> int:
    """P0, R1: `known` is the greatest epoch seen in roster, roll calls and tokens received."""
    return max(known, epoch)


def is_void(epoch: int, known: int) -> bool:
    """R1: whether a token is acked without a run, as a later epoch of its loop has begun.

    Asked on receipt, and again with no await between the answer and the begin of the run.
    """
    return epoch < known


class Refused(Enum):
    """What a processor does with the slot's occupant when its put is refused."""

    REPLACE = "ack it, and publish the same message again"
    LEAVE = "leave it, and ack the token in hand"


def refused(mine: Position, occupant: Position) -> Refused:
    """R2: an occupant that is behind stands in the way of its loop's line; another one is it."""
    return Refused.REPLACE if occupant < mine else Refused.LEAVE


def was_settled(token: Position, heard: Iterable[Position]) -> bool:
    """R3: whether a redelivered token is acked without a run, as its successor was put.

    Args:
        heard: what the journal has heard of the loop, after a barrier. It hears every put, also
            one that the slot refused.
    """
    return any(
        put.epoch == token.epoch and put.progress > token.progress  # a later epoch settles nothing
        for put in heard
    )


class Answer(NamedTuple):
    """What a processor says in a roll call.

    Attributes:
        known: the greatest epoch of the loop that it knows of, that of the call included.
        running: the lowest epoch among the tokens in its hands whose runs began, if there are any.
    """

    known: int
    running: int | None = None


def unaware(epoch: int, answers: Mapping[Processor, Answer | None]) -> list[Processor]:
    """C: who might still start a run of an older epoch. Pause and gone return when nobody may.

    Args:
        answers: of each subscribed processor; None: it has not answered yet.
    """
    return [
        processor for processor, answer in answers.items() if answer is None or answer.known < epoch
    ]


def awaited(
    epoch: int, answers: Mapping[Processor, Answer | None], *, came_back: bool = False
) -> list[Processor]:
    """R3, R4: whom a token waits for: who may start a run of before it, or is in one.

    Only then the journal is read: before, that run might still settle what is adopted.

    Args:
        came_back: whether it was delivered before. The broker may have taken it back from somebody
            without telling: then the run of before it is of its own epoch.
    """
    late = set(unaware(epoch, answers))
    before = epoch + came_back
    return [
        processor
        for processor, answer in answers.items()
        if processor in late
        or (answer is not None and answer.running is not None and answer.running < before)
    ]


def adopted(first: Position, heard: Iterable[Position], life: int) -> Position:
    """R4: whose progress and carry the first token of an epoch goes on with.

    That of the greatest progress in this life, whatever its epoch; its own, if none is ahead. Of
    two that have come as far, the later one.

    Args:
        heard: what the journal has heard of the loop, after a barrier; of a creator, what it found.
        life: of the token's epoch, as its creator knew it: one that is told of an epoch may not
            have read of its start yet.
    """
    alive = (put for put in heard if put.epoch >= life)
    return max((first, *alive), key=lambda position: (position.progress, position.epoch))


@dataclass(frozen=True, slots=True)
class Watch:
    """S1: how often in a row supervision has found no token of a loop's current epoch.

    Not once, as it asks slot, queue and hands one after the other, and a token moves between. It
    may be wrong still: then the token it overlooked is void.
    """

    epoch: int = 0
    misses: int = 0

    def looked(self, epoch: int, *, found: bool) -> "Watch":
        """After one more look for a token of this epoch."""
        if found:
            return Watch(epoch)
        return Watch(epoch, self.misses + 1 if epoch == self.epoch else 1)

    @property
    def is_lost(self) -> bool:
        """Whether to repair the loop, if its epoch is still the same under the mutex."""
        return self.misses >= MISSES


def is_doubled(put: Position, greatest: Position | None, current: int) -> bool:
    """S2: whether a put in the journal shows two lines of the current epoch: a node has failed.

    A line is always ahead of itself. Not to be asked of a message that was published again, nor of
    what creators put.

    Args:
        greatest: the one with the greatest progress that was heard of its epoch before.
    """
    return put.epoch == current and greatest is not None and put.progress <= greatest.progress
