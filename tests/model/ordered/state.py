"""The state of the modelled world: one ordered queue, the queue of its note, and who takes from it.

What a processor has in mind is not told here: it is all that has happened to it since it waited for
a message, and what it does next is asked of the project's own code (`turns`).
"""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from tests.model.state import Budget


class Note(NamedTuple):
    """What is noted of a message.

    Attributes:
        about: the message that is meant, by what is written in the note.
        number: the message that was in hand when it was written.
        waits: whether the next attempt may not begin yet.
    """

    about: str
    number: int
    attempt: int
    begun: int
    waits: bool


NOTHING_NOTED = Note("", -1, 0, 0, waits=False)


class Came(NamedTuple):
    """A message was delivered."""

    number: int
    redelivered: bool


class Answer(NamedTuple):
    """The broker, or the run, has answered what was asked last."""

    what: Note | int | bool | None = None


class Befell(Enum):
    """What happens to a processor."""

    TIME = "the delay is over"
    LOST = "its connection is lost"
    TAKEN_BACK = "its channel is closed"
    STOP = "it is told to stop"
    GRACE_OVER = "its grace is over"


Script = tuple[Came | Answer | Befell, ...]


class Phase(Enum):
    AWAY = "away"
    UP = "up"
    CUT_OFF = "cut off"


class Processor(NamedTuple):
    """A processor with its connection.

    Attributes:
        script: what has happened to it since it waited for a message.
        held: the messages that it was delivered, and has neither acked nor given back.
        note: the one that it has taken from its queue to read it.
        unaware: whether its message was taken back, and nobody has told it.
    """

    phase: Phase = Phase.UP
    script: Script = ()
    held: tuple[int, ...] = ()
    note: Note | None = None
    unaware: bool = False


class Fate(NamedTuple):
    """What is true of a message, and nobody in the world knows.

    Attributes:
        failed: how many attempts have failed.
        noted: how many of them were noted, confirmed.
        begun: how many runs have begun since, but those whose interruption was noted.
        returned: how often somebody had it and did not ack it, but interrupted runs.
        waits: whether it was noted, confirmed, that the next attempt may not begin yet.
        done: whether a run of it returned, or it was parked.
    """

    failed: int = 0
    noted: int = 0
    begun: int = 0
    returned: int = 0
    waits: bool = False
    done: bool = False


class State(NamedTuple):
    """All there is.

    Attributes:
        ready: the messages in their queue, each with whether somebody had it before.
        consumers: the processors that the broker knows a consumer of; the first one is active.
        notes: the note queue; there is room for one.
        returning: notes that are on their way back into it.
        late: notes that are on their way into it, from who was cut off.
    """

    ready: tuple[Came, ...]
    processors: tuple[Processor, ...]
    consumers: tuple[int, ...]
    notes: tuple[Note, ...]
    returning: tuple[Note, ...]
    late: tuple[Note, ...]
    budget: Budget
    fates: tuple[Fate, ...]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What happens in a model.

    Attributes:
        retries: how many attempts may follow the first.
        limit: how many runs of an attempt may begin, and not end.
        twins: whether all messages are the same to the byte.
    """

    budget: Budget = Budget()
    messages: int = 2
    processors: int = 2
    retries: int = 1
    limit: int = 2
    twins: bool = False

    def __str__(self) -> str:
        said = [f"ordered, {self.processors} processors", f"{self.messages} messages"]
        said += ["alike"] * self.twins
        said += [f"retries {self.retries}"] * (self.retries != 1)
        said += [f"{what} {many}" for what, many in self.budget._asdict().items() if many]
        return ", ".join(said)


def initial(bounds: Bounds) -> State:
    """All messages wait, all processors wait for them."""
    return State(
        ready=tuple(Came(number, False) for number in range(bounds.messages)),
        processors=(Processor(),) * bounds.processors,
        consumers=tuple(range(bounds.processors)),
        notes=(),
        returning=(),
        late=(),
        budget=bounds.budget,
        fates=(Fate(),) * bounds.messages,
    )
