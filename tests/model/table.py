"""The table: what happens in a model, and what is found: nothing, but where a node fails."""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from scheduler.protocol.epochs import Verb
from tests.model.check import Check
from tests.model.checker import check
from tests.model.moves import Move, Wrong
from tests.model.state import Bounds, Budget

FAILED_NODE: AbstractSet[Wrong] = {Wrong.OVERLAP, Wrong.BACKWARDS, Wrong.RESETTLED}
"""A token that a node hands out twice runs twice, until S2 sees it. It must not last."""


@dataclass(frozen=True)
class Row:
    """A model, and what is found in it.

    Attributes:
        states: how many there are.
        found: what goes wrong.
        graph: whether the whole graph is looked at: the ways back, and what lasts.
    """

    bounds: Bounds
    states: int
    found: AbstractSet[Wrong] = frozenset()
    graph: bool = True

    def check(self) -> Check[Wrong, Move]:
        """See what is found."""
        return check(self.bounds, graph=self.graph)

    def __str__(self) -> str:
        bounds = self.bounds
        said = [f"{bounds.processors} processors", " ".join(bounds.verbs)]
        said += [f"{what} {many}" for what, many in bounds.budget._asdict().items() if many]
        said += ["blank"] * bounds.blank
        said += [f"precise up to {bounds.most}"] * bounds.precise
        said += ["checkpoints"] * bounds.checkpoints
        said += ["started paused"] * bounds.paused
        return ", ".join(filter(None, said))


def row(
    *verbs: Verb,
    states: int,
    processors: int = 2,
    found: AbstractSet[Wrong] = frozenset(),
    blank: bool = False,
    precise: bool = False,
    most: int = 2,
    checkpoints: bool = False,
    paused: bool = False,
    graph: bool = True,
    **budget: int,
) -> Row:
    """A row of the table: verbs, and how often what may go wrong."""
    bounds = Bounds(processors, verbs, Budget(**budget), blank, precise, most, checkpoints, paused)
    return Row(bounds, states, found, graph)


PAUSED = Verb.PAUSE, Verb.RESUME
STARTED = Verb.GONE, Verb.START
STARTED_PAUSED = *STARTED, Verb.RESUME

SMALL = (
    row(states=2_709, outages=3),
    row(*PAUSED, states=1_001, deaths=1),
    row(*PAUSED, states=23_508, deaths=1, outages=1),
    row(*PAUSED, states=9_374, repairs=1),
    row(Verb.TRIGGER, states=10_348, deaths=1, outages=1),
    row(Verb.TRIGGER, states=5_897, repairs=1),
    row(Verb.RESCHEDULE, states=2_831, races=1),
    row(Verb.PAUSE, Verb.PAUSE, states=928, deaths=1),
    row(*STARTED, states=17_791, deaths=1, races=1),
    row(*STARTED, states=17_620, repairs=1),
    row(*STARTED, states=25_064, deaths=1, outages=1, blank=True),
    row(*STARTED_PAUSED, states=1_364, deaths=1, paused=True),
    row(*STARTED_PAUSED, states=9_147, outages=1, paused=True),
    row(*STARTED_PAUSED, states=19_267, repairs=1, paused=True),
    row(states=10_660, repairs=2, deaths=1),
    row(states=5_439, processors=3, outages=3),
    row(*PAUSED, states=11_624, processors=3, outages=1),
    row(*PAUSED, states=1_286, processors=3, deaths=1),
    row(Verb.TRIGGER, states=14_834, processors=3, deaths=1, outages=1),
    row(states=15_314, precise=True),
    row(*PAUSED, states=4_390, deaths=1, checkpoints=True),
    row(states=6_174, outages=2, checkpoints=True),
    row(states=30_622, outages=1, repairs=1, checkpoints=True),
    row(states=4_352, doublings=1, found=FAILED_NODE),
    row(states=777, recalls=1, outages=1),
    row(states=7_550, unheard=1, outages=1, found=FAILED_NODE),
)
"""Some seconds each."""

LARGE = (
    row(*PAUSED, states=188_564, outages=3),
    row(*PAUSED, states=137_573, outages=2, deaths=1),
    row(*PAUSED, states=45_822, outages=1, races=1),
    row(*PAUSED, states=353_640, outages=1, repairs=1),
    row(*PAUSED, states=150_385, doublings=1, found=FAILED_NODE),
    row(*PAUSED, states=230_022, outages=1, unheard=1, found=FAILED_NODE),
    row(*PAUSED, Verb.TRIGGER, states=208_204, outages=1, blank=True),
    row(Verb.TRIGGER, states=135_095, outages=3),
    row(Verb.TRIGGER, Verb.GONE, states=65_645, outages=1, deaths=1),
    row(*STARTED, states=980_394, outages=1, repairs=1),
    row(*STARTED_PAUSED, states=34_198, outages=1, deaths=1, paused=True),
    row(*STARTED_PAUSED, states=51_230, repairs=1, checkpoints=True, paused=True),
    row(states=459_505, processors=3, outages=1, repairs=1, races=1),
    row(*PAUSED, states=39_083, processors=3, outages=1, deaths=1),
    row(*PAUSED, states=357_732, processors=3, outages=2, deaths=1),
    row(*PAUSED, states=546_043, processors=3, outages=3),
    row(*STARTED, states=40_776, processors=3, outages=1, deaths=1),
    row(*PAUSED, states=53_494, outages=1, checkpoints=True),
    row(Verb.TRIGGER, states=68_300, outages=1, deaths=1, checkpoints=True),
    row(*STARTED, states=48_518, repairs=1, checkpoints=True),
    row(Verb.RESCHEDULE, states=14_063, races=1, checkpoints=True),
    row(states=31_801, doublings=1, checkpoints=True, found=FAILED_NODE | {Wrong.FORGOTTEN}),
    row(states=371_216, precise=True, most=3),
    row(*PAUSED, states=313_109, precise=True),
    row(*PAUSED, states=1_111_763, deaths=1, precise=True),
    row(Verb.TRIGGER, states=453_690, deaths=1, precise=True),
    row(states=575_141, outages=1, precise=True),
    row(*PAUSED, states=980_865, processors=3, precise=True),
    row(states=1_905_449, processors=3, outages=1, precise=True),
)
"""Up to some minutes each, on a machine that does nothing else."""
