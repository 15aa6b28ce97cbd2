"""The state of the modelled world: one loop, its tokens, and all that knows something of it.

Time is left out: what waits may hatch at any moment, and a slow actor is one that takes no step.
Processors are interchangeable; neither what waits nor what is ready has an order.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum
from typing import NamedTuple

from scheduler.protocol.epochs import Beginning, Entry, LoopState, Position, Verb
from tests.model.steps import Step, steps_of

IN_AN_EARLIER_LIFE = 3
"""The progress that a loop had come to before it was started again."""


RECURRING = 0
"""What a loop is made for that has no last run; other numbers are of one-offs."""

REMOVED = -1
"""What a loop is made for that was removed: nothing that could have finished."""


class Ask(NamedTuple):
    """A one-off, or a recurring loop, is asked for: it is started, moved, or there already.

    Attributes:
        what: its schedule and arguments: they are the same where this is.
    """

    what: int


class Name(NamedTuple):
    """A loop is asked for under this name: it is renamed, or has it already.

    Attributes:
        name: under each, its tokens come to another queue; the loop begins under the first, 0.
    """

    name: int


class Renaming(NamedTuple):
    """A loop has another name from this epoch on."""

    epoch: int
    name: int


class Token(NamedTuple):
    """A token.

    Attributes:
        what: the schedule and the arguments that it brings.
    """

    position: Position
    what: int = RECURRING

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
    PUTTING = 7
    STOPPING = 8
    ENDING = 9
    RETURNING = 10


class Processor(NamedTuple):
    """A processor that has one message at a time.

    Attributes:
        known: an epoch of each name that it knows of; it may read on in the roster whenever it
            decides.
        token: in its hand, with what it adopted.
        delivered: as it is when it is redelivered: without.
        unconfirmed: whether it has published its put, and was not told that it was taken.
        settled: where the last token stood that it settled.
        old: whether its code has the first name only, and takes nothing that comes to others.
    """

    phase: Phase
    known: tuple[int, ...]
    token: Token = NOTHING
    delivered: Token = NOTHING
    unconfirmed: bool = False
    settled: Position | None = None
    old: bool = False


class Creator(NamedTuple):
    """A creator at work: it has read the roster.

    Attributes:
        beginning: what it appends and puts.
        done: how many of its steps it has taken.
        what: with which schedule and arguments the loop goes on.
        resumed: whether somebody else has started or resumed the loop since its entry was accepted.
        name: under which name the loop goes on.
    """

    verb: Verb
    beginning: Beginning
    what: int = RECURRING
    done: int = 0
    resumed: bool = False
    name: int = 0

    @property
    def steps(self) -> tuple[Step, ...]:
        return steps_of(self.verb, self.beginning.token)

    @property
    def pending(self) -> Token:
        """The token that it may still put."""
        token = self.beginning.token
        puts = token is not None and Step.PUT in self.steps[self.done :]
        return Token(token, self.what) if token is not None and puts else NOTHING


class Journal(NamedTuple):
    """What the journal has heard, as far as somebody can still ask for it.

    Attributes:
        furthest: the greatest progress in this life.
        earlier: whether there was an earlier life.
        greatest: the one with the greatest progress, of each epoch.
        doubled: whether it shows that there are two lines.
        ends: the puts of runs that ended their loop, the last of each schedule and arguments.
        checkpoint: what the roster has noted of it.
        forgot: whether it has forgotten something of this life.
    """

    furthest: int = 0
    earlier: bool = False
    greatest: tuple[Position, ...] = ()
    doubled: bool = False
    ends: tuple[Token, ...] = ()
    checkpoint: Position | None = None
    forgot: bool = False

    def positions(self, life: int) -> Iterator[Position]:
        yield Position(life, self.furthest, joined=False)
        yield from self.greatest
        if self.checkpoint is not None:
            yield Position(life, self.checkpoint.seq, joined=False)
            yield self.checkpoint
        if self.earlier:
            yield Position(life - 1, IN_AN_EARLIER_LIFE)


class Budget(NamedTuple):
    """How often what may go wrong.

    Attributes:
        outages: a processor dies, or loses its connection.
        deaths: a creator dies.
        repairs: supervision repairs a loop that is not lost.
        races: the confirmation of a put is lost.
        late: a put whose confirmation was lost arrives later, however much later.
        lost: a token is lost as its time is over, as a node failed.
        stopped: a timer stops with a token in it, and is recreated, or hatches much later.
        doublings: a token hatches twice, as a node failed.
        unheard: the journal misses a put, as a node failed.
        recalls: a token is requeued from a run that is not told, as a node was frozen.
        forgets: the journal drops all that it has heard.
        early: a token comes too early, and its processor returns it to the timers.
        stops: a run stops its loop; of an ordered queue: a processor is told to stop.
    """

    outages: int = 0
    deaths: int = 0
    repairs: int = 0
    races: int = 0
    late: int = 0
    lost: int = 0
    stopped: int = 0
    doublings: int = 0
    unheard: int = 0
    recalls: int = 0
    forgets: int = 0
    early: int = 0
    stops: int = 0

    def less(self, what: str) -> "Budget":
        return self._replace(**{what: getattr(self, what) - 1})


class Truth(NamedTuple):
    """What no actor knows, and all rely on.

    Attributes:
        settled: how many ticks of this life are settled.
        stopped: whether a pause or gone returned, and no later entry has resumed the loop.
        ended: whether a run has stopped the loop, and no later entry has asked for a run.
        finished: the one-offs of this life whose run is settled.
        is_over: whether that is so of the one in the roster, and has been since it is there.
    """

    settled: int = 0
    stopped: bool = False
    ended: bool = False
    finished: tuple[int, ...] = ()
    is_over: bool = False


class State(NamedTuple):
    """The whole world.

    Attributes:
        stuck: tokens in timers that have stopped.
        what: the schedule and arguments of the latest entry in the roster.
        renamings: of the loop, in the order of their epochs.
        late: puts that have not arrived, though those who published them have given up on them.
    """

    waiting: tuple[Token, ...]
    stuck: tuple[Token, ...]
    late: tuple[Token, ...]
    ready: tuple[tuple[Token, bool], ...]
    processors: tuple[Processor, ...]
    creators: tuple[Creator, ...]
    journal: Journal
    roster: Entry
    what: int
    renamings: tuple[Renaming, ...]
    budget: Budget
    verbs: tuple[Verb | Ask | Name, ...]
    truth: Truth

    @property
    def name(self) -> int:
        """The name of the loop, as the roster says."""
        return self.name_at(self.roster.epoch)

    def name_at(self, epoch: int) -> int:
        """The name that the loop had in an epoch, and that the tokens of the epoch come by."""
        return next((each.name for each in reversed(self.renamings) if each.epoch <= epoch), 0)

    def told(self, name: int) -> int:
        """The latest epoch of a name in the roster: another name ends it in the epoch it begins."""
        if name == self.name:
            return self.roster.epoch
        before = 0, *(each.name for each in self.renamings)
        ends = (each.epoch for at, each in enumerate(self.renamings) if before[at] == name)
        return max(ends, default=0)

    def with_processor(self, which: int, processor: Processor) -> "State":
        """After a processor has changed."""
        others = self.processors
        return self._replace(processors=(*others[:which], processor, *others[which + 1 :]))

    def less(self, what: str) -> "State":
        """After something has gone wrong."""
        return self._replace(budget=self.budget.less(what))

    @property
    def found(self) -> list[Token]:
        """All that are not overdue; what a processor adopted is not another one."""
        hands = [each.token for each in self.processors if each.token is not NOTHING]
        return [*self.waiting, *(token for token, _ in self.ready), *hands]

    @property
    def tokens(self) -> list[Token]:
        """All there are."""
        return [*self.found, *self.stuck, *self.late]


@dataclass(frozen=True, slots=True)
class Bounds:
    """What happens in a model.

    Attributes:
        verbs: of operators: each begins at any moment, after the one before it has begun.
        at_once: how many creators may be at work at once, repairs included.
        checkpoints: what the journal drops is noted in the roster.
        paused: a loop that is started waits until it is resumed.
        once: the loop is a one-off.
        old: how many of the processors have code that knows the first name only.
    """

    processors: int = 2
    verbs: tuple[Verb | Ask | Name, ...] = ()
    budget: Budget = Budget()
    at_once: int = 1
    checkpoints: bool = True
    paused: bool = False
    once: bool = False
    old: int = 0

    def __str__(self) -> str:
        said = [f"{self.processors} processors", " ".join(map(_said, self.verbs))]
        said += [f"{what} {many}" for what, many in self.budget._asdict().items() if many]
        said += [f"{self.at_once} at once"] * (self.at_once > 1)
        said += ["no checkpoints"] * (not self.checkpoints)
        said += ["started paused"] * self.paused
        said += ["once"] * self.once
        said += [f"{self.old} old"] * (self.old > 0)
        return ", ".join(filter(None, said))


def _said(verb: Verb | Ask | Name) -> str:
    if isinstance(verb, Verb):
        return verb
    if isinstance(verb, Name):
        return f"named({verb.name})"
    return f"asked({verb.what})" if verb.what else "asked(recurring)"


def initial(bounds: Bounds) -> State:
    """A loop whose first token has been run, waiting."""
    start, what = Position(1, 0), int(bounds.once)
    names = {0, *(verb.name for verb in bounds.verbs if isinstance(verb, Name))}
    idle = Processor(Phase.IDLE, (1, *(0,) * (len(names) - 1)))
    new = bounds.processors - bounds.old
    return State(
        waiting=(Token(start, what),),
        stuck=(),
        late=(),
        ready=(),
        processors=(*(idle,) * new, *(idle._replace(old=True),) * bounds.old),
        creators=(),
        journal=Journal(greatest=(start,)),
        roster=Entry(1, LoopState.ACTIVE, 1, asked=1),
        what=what,
        renamings=(),
        budget=bounds.budget,
        verbs=bounds.verbs,
        truth=Truth(),
    )
