"""Judge tokens by their epochs. The rules by which wrong tokens are harmless; no I/O.

Every token belongs to an epoch of its loop. Creating a token begins a new epoch, and tokens of
older epochs are void: any number of them may wait anywhere, and no processor runs them.

====  =================================================  =======================================
rule  who keeps it, and when                             what decides
====  =================================================  =======================================
P0    a processor that starts or reconnects              `learned`
C     a creator                                          `begun`, `accepted`, `unaware`
C     a processor whose run ended its loop               `ends`, `begun`, `accepted`
R1    a processor that receives a token                  `is_void`, `learned`
R3    a processor that receives a redelivered token      `awaited`, then `was_settled`
R3p   a processor whose put was not confirmed            `was_settled`
R4    a creator, or a processor, before the first run    `awaited`, then `adopted`, `stays_ended`
S1    supervision: overdue, not in flight, not ready     `begun`, at once: it may be wrong
S2    supervision: two puts of the same progress         `is_doubled`
S2    a processor that receives a token                  `is_behind`
====  =================================================  =======================================

A processor that starts subscribes to roll calls, and then reads the roster up to a barrier: roll
calls bring the epochs that begin later, the roster the earlier ones. Then it consumes.

A creator appends its entry, and reads the roster up to a barrier. If the entry was accepted, it
exchanges the first token (R4), which it leaves to a processor where an older run is running; puts
the token; and calls the roll if its verb is in `CALLING`. It may die after each step. One that is
overtaken may continue: its token is void, and its epoch in the roll call is known. A put that was
not confirmed is not published again, as two tokens are two lines.

R3 and R3p ask the journal, after a barrier in it. The journal forgets: what waits longer than it
remembers is noted in the roster (a checkpoint), and counts as heard wherever `heard` is asked for.

`tests/model` checks these functions in all orders in which processors, creators, supervision
and the broker can take their steps.
"""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import NamedTuple, TypeVar

from scheduler.protocol.messages import Count

Processor = TypeVar("Processor")


class Position(NamedTuple):
    """Compare tokens: a later epoch is ahead, and within an epoch the greater progress.

    Attributes:
        seq: how many ticks of the loop have been settled before this token.
        attempt: how many attempts of its tick have failed.
        joined: False for the first of an epoch, until the processors were asked (R4).
        returns: how often it came too early, and returned to its timers. That is no progress.
    """

    epoch: int
    seq: int
    attempt: int = 0
    joined: bool = True
    returns: int = 0

    @property
    def progress(self) -> tuple[int, int, bool]:
        """Return the loop's progress when the token was made, whatever its epoch."""
        return self.seq, self.attempt, self.joined


class Verb(StrEnum):
    """Name the operations of creators, as the journal records them."""

    SEED = "seeded"
    PAUSE = "paused"
    RESUME = "resumed"
    TRIGGER = "triggered"
    RESCHEDULE = "rescheduled"
    RENAME = "renamed"
    REPAIR = "repaired"
    REMOVE = "removed"


class LoopState(StrEnum):
    """Name the states of a loop in the roster."""

    ACTIVE = "active"
    PAUSED = "paused"
    GONE = "gone"


class Entry(NamedTuple):
    """Hold what a roster entry says about a loop's epochs.

    Attributes:
        life: the epoch of its last start. Progress from before it is of another life.
        base: the epoch that the entry is based on; 0 if the loop was unknown or gone.
        asked: the epoch of the last entry that started, stopped or triggered the loop (all but
            repairs and changes of its schedule or name). 0: unknown.
    """

    epoch: Count
    state: LoopState
    life: Count
    base: Count = 0
    asked: Count = 0


class Beginning(NamedTuple):
    """Begin an epoch with an entry and a token (None: the loop is then paused or gone)."""

    entry: Entry
    token: Position | None


CALLING = {Verb.PAUSE, Verb.REMOVE}
"""The verbs that promise that no run starts after they returned: their creators call the roll."""

_BEFORE = {
    Verb.SEED: {LoopState.GONE},
    Verb.PAUSE: {LoopState.ACTIVE, LoopState.PAUSED},
    Verb.RESUME: {LoopState.PAUSED},
    Verb.TRIGGER: {LoopState.ACTIVE},
    Verb.RESCHEDULE: {LoopState.ACTIVE, LoopState.PAUSED},
    Verb.RENAME: {LoopState.ACTIVE, LoopState.PAUSED},
    Verb.REPAIR: {LoopState.ACTIVE},
    Verb.REMOVE: set(LoopState),
}
# Pause and gone may be repeated: a previous creator may have died before it called the roll.
_AFTER = {
    Verb.SEED: LoopState.ACTIVE,
    Verb.PAUSE: LoopState.PAUSED,
    Verb.RESUME: LoopState.ACTIVE,
    Verb.REMOVE: LoopState.GONE,
}


def begun(
    verb: Verb, latest: Entry | None, *, at_ms: int = 0, paused: bool = False
) -> Beginning | None:
    """C: Begin a new epoch, so that all older tokens of the loop are void.

    A start begins a new life, from no progress; all others continue from what R4 adopts. A paused
    loop has no token: its resume creates one.

    A rename begins an epoch of another loop, which replaces the loop of the latest entry: the new
    entry ends that loop, so the tokens of both names are void.

    A processor whose run ends its loop also begins an epoch before it acks: a pause or, for a
    one-off, gone (`ends`).

    Epochs are numbered as a hybrid logical clock counts (Kulkarni et al., "Logical Physical
    Clocks", 2014): by the time, but never backwards. So a loop whose roster was lost begins after
    everything before.

    Args:
        latest: the loop's latest accepted entry in the roster, if it has one.
        at_ms: the time, in milliseconds since the Unix epoch.
        paused: for a start: begin paused.

    Returns:
        The entry to append and the token to put. None: the verb has no effect.
    """
    epoch, state, life, _, asked = latest or Entry(0, LoopState.GONE, 0)
    if state not in _BEFORE[verb] or (latest is None and verb is Verb.REMOVE):
        return None
    state = LoopState.PAUSED if paused and verb is Verb.SEED else _AFTER.get(verb, state)
    epoch = max(epoch + 1, at_ms)
    life = epoch if verb is Verb.SEED else life
    asked = asked if verb in {Verb.REPAIR, Verb.RESCHEDULE, Verb.RENAME} else epoch
    token = Position(epoch, seq=0, joined=False) if state is LoopState.ACTIVE else None
    return Beginning(Entry(epoch, state, life, base_of(latest), asked), token)


def base_of(latest: Entry | None) -> int:
    """C: Return the epoch that the next entry is based on."""
    return 0 if latest is None or latest.state is LoopState.GONE else latest.epoch


def accepted(entry: Entry, latest: Entry | None) -> bool:
    """C: Compare and append: return whether an entry counts, at its place in the roster.

    All readers judge the entries of a loop in stream order, so all decide alike, and of concurrent
    creators the first in the stream wins. A rejected entry has no effect: its epoch is not learned.
    A reader of a snapshot continues exactly at its end: an entry that is judged again, later, may
    count.

    Args:
        latest: the loop's latest accepted entry before this one; None: the loop is unknown, or the
            stream does not reach back to it.
    """
    return latest is None or (entry.epoch > latest.epoch and entry.base == base_of(latest))


def learned(known: int, epoch: int) -> int:
    """P0, R1: Return the greatest epoch seen in the roster, in roll calls and in tokens."""
    return max(known, epoch)


def is_void(epoch: int, known: int) -> bool:
    """R1: Return whether a token is acked without a run, as a later epoch of its loop has begun.

    Call on receipt, and again with no await between the answer and the start of the run.
    """
    return epoch < known


def was_settled(token: Position, heard: Iterable[Position]) -> bool:
    """R3, R3p: Return whether a token is acked without a run or a put: its successor was put, or
    itself once more, as it came too early.

    Args:
        heard: what the journal has heard of the loop, after a barrier.
    """
    reached = token.progress, token.returns
    # A later epoch settles nothing.
    return any(put.epoch == token.epoch and (put.progress, put.returns) > reached for put in heard)


class Answer(NamedTuple):
    """Answer a roll call.

    Attributes:
        known: the greatest epoch of the loop that the processor knows, that of the call included.
        running: the lowest epoch of its tokens whose runs began, if there are any.
    """

    known: int
    running: int | None = None


def unaware(epoch: int, answers: Mapping[Processor, Answer | None]) -> list[Processor]:
    """C: Return the processors that may still start a run of an older epoch. Pause and gone wait
    until there are none.

    Args:
        answers: of each subscribed processor; None: it has not answered yet.
    """
    return [
        processor for processor, answer in answers.items() if answer is None or answer.known < epoch
    ]


def awaited(
    epoch: int, answers: Mapping[Processor, Answer | None], *, came_back: bool = False
) -> list[Processor]:
    """R3, R4: Return the processors that may start an older run, or are in one.

    Read the journal only when there are none: until then, that run may settle what is adopted.

    Args:
        came_back: whether the token was delivered before. The broker may have requeued it without
            the processor noticing: then the older run is of the token's own epoch.
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
    """R4: Return whose progress and carry the first token of an epoch continues with.

    The greatest progress in this life, whatever its epoch; the token's own if none is ahead. Of two
    with equal progress, the later one.

    Args:
        heard: what the journal has heard of the loop, after a barrier.
        life: of the token's epoch, as its creator knew it: a processor that learns of an epoch may
            not have read of its start yet.
    """
    alive = (put for put in heard if put.epoch >= life)
    return max((first, *alive), key=lambda position: (position.progress, position.epoch))


def stays_ended(end: Position, latest: Entry, *, was_only: bool, is_same: bool) -> bool:
    """R4: Return whether the first token of an epoch leaves its loop as an earlier run ended it.

    A run may end its loop while it is repaired, paused or rescheduled. If the adopted put is such
    an end, the first token has no successor: the end is entered (`ends`), and the token acked.

    Args:
        end: the adopted put of a run that ended its loop.
        latest: the entry of the first token's epoch.
        was_only: it was the only run of a one-off, which is finished: a schedule and arguments, in
            a life. Otherwise it has stopped its loop, which holds until a run is requested.
        is_same: the first token has the schedule and the arguments of that run.
    """
    return is_same and latest.life <= end.epoch if was_only else 0 < latest.asked <= end.epoch


def ends(end: Position, latest: Entry, *, was_only: bool, is_same: bool) -> bool:
    """C: Return whether a run's end of its loop is entered in the roster, after the latest entry.

    The processor of the run enters it before it acks, so does a processor that finds it (R3) or
    adopts it (R4), and supervision when it hears of it. All of them ask again if another entry was
    first.

    A stop pauses the loop, in the epoch of its run. A finished one-off is gone, whatever was
    requested since, unless that was another schedule, other arguments, or another life.

    Args:
        latest: the loop's latest accepted entry in the roster.
        was_only, is_same: as for `stays_ended`.
    """
    if latest.state is LoopState.GONE:
        return False
    return is_same and latest.life <= end.epoch if was_only else latest.epoch == end.epoch


def is_behind(token: Position, settled: Position | None) -> bool:
    """S2: Return whether a token is acked without a run, as this processor has settled it before.

    A failed node may deliver a token twice. A requeued token was not settled.

    Args:
        settled: the position of the last token of the loop that this processor settled: whose run
            it ended, or that it exchanged (R4), and whose successor was confirmed.
    """
    return (
        settled is not None and token.epoch == settled.epoch and token.progress <= settled.progress
    )


def is_doubled(put: Position, greatest: Position | None, current: int) -> bool:
    """S2: Return whether a put in the journal shows two lines of the current epoch.

    A line is always ahead of itself, so a node has failed. Do not ask about a message that was
    published again, nor about puts of creators.

    Args:
        greatest: the put with the greatest progress heard of its epoch before.
    """
    return put.epoch == current and greatest is not None and put.progress <= greatest.progress
