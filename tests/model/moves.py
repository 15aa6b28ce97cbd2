"""What can happen next: the moves of all, and what is wrong with one."""

from collections.abc import Iterator
from enum import Enum
from typing import NamedTuple

from tests.model.state import NOTHING, State, Token


class Actor(Enum):
    PROCESSOR = "processor"
    CREATOR = "creator"
    SUPERVISION = "supervision"
    BROKER = "broker"
    FAULT = "fault"


class Wrong(Enum):
    """What must not be. The last three are of the whole graph, the others of a move."""

    OVERLAP = "a run begins while another one goes on"
    STOPPED = "a run begins after a pause or gone returned"
    BACKWARDS = "a run begins before what is settled"
    SKIPPED = "a run begins beyond what is settled"
    RESETTLED = "a tick is settled twice"
    RESTOPPED = "a run's end pauses its loop though somebody has asked for a run since"
    RERUN = "what has finished runs again"
    UNDONE = "what has not run is taken for finished"
    FORGOTTEN = "what is read back is not the last, as the journal has forgotten that"
    DROPPED = "a loop is lost though nothing failed"
    LOST = "there is no way back to one token"
    OLD_LINE = "an old line goes on for ever"
    TWO_LINES = "two runs go on at once for ever"


class Move(NamedTuple):
    """A move and the state after it.

    Attributes:
        which: of the processors.
        stale: whether it is not taken for ever by who follows the roster.
    """

    actor: Actor
    what: str
    state: State
    which: int | None = None
    token: Token = NOTHING
    wrong: Wrong | None = None
    stale: bool = False


Moves = Iterator[Move]
