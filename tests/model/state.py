"""The state of the modelled world: one loop, its tokens, and all that knows something of it.

Time is left out: what waits and is not paused may hatch at any moment, and who is slow is one that
takes no step. Processors are interchangeable, the ready queue has no order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from scheduler.protocol.epochs import Entry, LoopState, Position, Verb, Watch

IN_AN_EARLIER_LIFE = 3
"""The progress that a loop had come to before it was started again."""


class Token(NamedTuple):
    """A token.

    Attributes:
        known: whether its creator found what it goes on from, and nothing has to be read for it.
    """

    position: Position
    paused: bool = False
    known: bool = False

    @property
    def first(self) -> bool:
        return not self.position.joined


NOTHING = Token(Position(-1, 0))


class Phase(IntEnum):
    """What a processor is at. The first are its steps of P0, as many as there are."""

    AWAY = 0
    STARTED = 1
    IDLE = 2
    WAITING = 3
    ASKING = 4
    CLEARED = 5
    RUNNING = 6
    REFUSED = 7
    HOLDING = 8
    PUTTING = 9


class Processor(NamedTuple):
    """A processor with one hand.

    Attributes:
        known: an epoch that it knows of; it may read on in the roster whenever it decides.
        token: in its hand, with what it adopted.
        delivered: as it is when it is redelivered: without.
        held: the slot's occupant, while it looks at it.
        heard: whether the journal has heard its put, as it was refused.
    """

    phase: Phase
    known: int
    token: Token = NOTHING
    delivered: Token = NOTHING
    held: Token = NOTHING
    heard: bool = False


class Creator(NamedTuple):
    """Whoever holds the mutex.

    Attributes:
        done: how many of its steps it has taken.
        token: what it puts, or has put.
        before: the epoch before its own, until it has purged the slot.
    """

    verb: Verb | None = None
    done: int = 0
    token: Token = NOTHING
    before: int = 0


class Supervisor(NamedTuple):
    """Supervision that asks slot, queue and hands one after the other.

    Attributes:
        asked: how many of them it has asked in this look.
    """

    asked: int = 0
    watch: Watch = Watch()


class Journal(NamedTuple):
    """What the journal has heard, as far as somebody can still ask for it.

    Attributes:
        furthest: the greatest progress in this life.
        earlier: whether there was an earlier life.
        greatest: the one with the greatest progress, of each epoch.
        doubled: whether it shows that there are two lines.
        checkpoint: the progress of the token that supervision noted in the slot.
        waits: whether that token is not due yet, and is of the current epoch.
        since: the greatest progress after that.
        notes: whether anything is noted.
    """

    furthest: int = 0
    earlier: bool = False
    greatest: tuple[Position, ...] = ()
    doubled: bool = False
    checkpoint: int | None = None
    waits: bool = False
    since: int = 0
    notes: bool = False

    def positions(self, life: int) -> Iterator[Position]:
        yield Position(life, self.furthest, joined=False)
        yield from self.greatest
        if self.earlier:
            yield Position(life - 1, IN_AN_EARLIER_LIFE)

    def positions_since_checkpoint(self, life: int) -> Iterator[Position]:
        """The same, read back no farther than it takes."""
        for progress in (self.checkpoint or 0, self.since):
            yield Position(life, progress, joined=False)


class Budget(NamedTuple):
    """How often what may go wrong.

    Attributes:
        outages: a processor dies, or loses its connection.
        deaths: a creator dies.
        repairs: supervision repairs a loop that is not lost.
        races: a slot that is taken takes another token.
        doublings: a token hatches twice, as a node failed.
        unheard: the journal misses a put, as a node failed.
        recalls: a token is taken back from a run that is not told, as a node stood still.
    """

    outages: int = 0
    deaths: int = 0
    repairs: int = 0
    races: int = 0
    doublings: int = 0
    unheard: int = 0
    recalls: int = 0


class Truth(NamedTuple):
    """What nobody in the world knows, and all rely on.

    Attributes:
        settled: how many ticks of this life are settled.
        stopped: whether a pause or gone returned, and no later creator has started.
    """

    settled: int = 0
    stopped: bool = False


class State(NamedTuple):
    slot: tuple[Token, ...]
    ready: tuple[tuple[Token, bool], ...]
    processors: tuple[Processor, ...]
    creator: Creator
    supervisor: Supervisor
    journal: Journal
    roster: Entry
    budget: Budget
    verbs: tuple[Verb, ...]
    truth: Truth

    @property
    def tokens(self) -> list[Token]:
        """All there are; what a processor adopted is not another one."""
        hands = [
            token
            for processor in self.processors
            for token in (processor.token, processor.held)
            if token is not NOTHING
        ]
        return [*self.slot, *(token for token, _ in self.ready), *hands]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What happens in a model.

    Attributes:
        verbs: of operators, one after the other, each at any moment.
        blank: creators adopt nothing from the slot.
        precise: supervision asks slot, queue and hands one after the other, and repairs what it
            misses; else it sees all at once.
        most: precise supervision repairs while fewer tokens than this are not in the slot.
        checkpoints: supervision notes what it finds in the slot, creators say what they know.
        paused: a loop that is started waits until it is resumed.
    """

    processors: int = 2
    verbs: tuple[Verb, ...] = ()
    budget: Budget = Budget()
    blank: bool = False
    precise: bool = False
    most: int = 2
    checkpoints: bool = False
    paused: bool = False


def initial(bounds: Bounds) -> State:
    """A loop whose first token has been run, waiting."""
    start = Position(1, 0)
    return State(
        slot=(Token(start),),
        ready=(),
        processors=(Processor(Phase.IDLE, 1),) * bounds.processors,
        creator=Creator(),
        supervisor=Supervisor(),
        journal=Journal(greatest=(start,), notes=bounds.checkpoints),
        roster=Entry(1, LoopState.ACTIVE, 1),
        budget=bounds.budget,
        verbs=bounds.verbs,
        truth=Truth(),
    )
