"""The table: what happens in a model, and what is found.

Nothing, but where a node of the broker fails, and where the roster lacks what the journal forgot.
"""

from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from scheduler.protocol.epochs import Verb
from tests.model.check import Check
from tests.model.checker import check
from tests.model.moves import Move, Wrong
from tests.model.state import Bounds, Budget

FAILED_NODE: AbstractSet[Wrong] = {Wrong.OVERLAP, Wrong.BACKWARDS, Wrong.RESETTLED}
"""A token that is there twice runs twice, until S2 sees it. It must not last."""

UNNOTED: AbstractSet[Wrong] = {Wrong.FORGOTTEN, Wrong.BACKWARDS, Wrong.RESETTLED}
"""A first token goes on from what is left in the journal: checkpoints are load-bearing."""


@dataclass(frozen=True)
class Row:
    """A model, and what is found in it.

    Attributes:
        states: how many there are.
        found: what goes wrong.
    """

    bounds: Bounds
    states: int
    found: AbstractSet[Wrong] = frozenset()

    def check(self) -> Check[Wrong, Move]:
        """See what is found."""
        return check(self.bounds)

    def __str__(self) -> str:
        bounds = self.bounds
        said = [f"{bounds.processors} processors", " ".join(bounds.verbs)]
        said += [f"{what} {many}" for what, many in bounds.budget._asdict().items() if many]
        said += [f"{bounds.at_once} at once"] * (bounds.at_once > 1)
        said += ["no checkpoints"] * (not bounds.checkpoints)
        said += ["started paused"] * bounds.paused
        return ", ".join(filter(None, said))


def row(
    *verbs: Verb,
    states: int,
    processors: int = 2,
    found: AbstractSet[Wrong] = frozenset(),
    at_once: int = 1,
    checkpoints: bool = True,
    paused: bool = False,
    **budget: int,
) -> Row:
    """A row of the table: verbs, and how often what may go wrong."""
    bounds = Bounds(processors, verbs, Budget(**budget), at_once, checkpoints, paused)
    return Row(bounds, states, found)


PAUSED = Verb.PAUSE, Verb.RESUME
STARTED = Verb.GONE, Verb.START
STARTED_PAUSED = *STARTED, Verb.RESUME
STOPPED_TWICE = Verb.PAUSE, Verb.PAUSE, Verb.RESUME
STOPPED_AGAIN = *PAUSED, Verb.PAUSE
REMOVED_TWICE = Verb.GONE, *STARTED
THREE = Verb.TRIGGER, Verb.RESCHEDULE, Verb.PAUSE

SMALL = (
    row(states=5_121, outages=2),
    row(*PAUSED, states=11_559, outages=1),
    row(*PAUSED, states=441, deaths=1),
    row(*PAUSED, states=2_730, repairs=1),
    row(Verb.PAUSE, Verb.PAUSE, states=231, deaths=1),
    row(*STARTED, states=787, deaths=1),
    row(*STARTED, states=5_311, repairs=1),
    row(*STARTED_PAUSED, states=5_297, repairs=1, paused=True),
    row(*PAUSED, states=549, processors=3, deaths=1),
    row(states=3_192, repairs=2, deaths=1),
    # Confirmations that are lost.
    row(states=5_080, races=2, outages=1),
    row(*PAUSED, states=1_342, races=1),
    row(*STARTED, states=1_965, races=1),
    row(states=4_806, recalls=1, outages=1),
    row(states=1_004, recalls=1, races=1),
    row(states=2_574, processors=3, repairs=1, races=1),
    # Creators that overtake each other.
    row(Verb.TRIGGER, states=2_412, repairs=1, at_once=2),
    row(Verb.RESCHEDULE, states=2_412, repairs=1, at_once=2),
    row(*PAUSED, states=495, at_once=2),
    row(*PAUSED, states=864, deaths=1, at_once=2),
    row(*STOPPED_TWICE, states=879, at_once=2),
    row(*STOPPED_AGAIN, states=2_460, at_once=2),
    row(Verb.TRIGGER, Verb.PAUSE, states=1_047, at_once=2),
    row(*THREE, states=12_786, at_once=3),
    row(Verb.RESCHEDULE, *PAUSED, states=6_696, at_once=3),
    row(*STARTED, states=762, at_once=2),
    row(Verb.TRIGGER, states=324, processors=3, deaths=1, at_once=2),
    row(*REMOVED_TWICE, states=2_000, at_once=3),
    row(*STARTED_PAUSED, states=1_068, at_once=3, paused=True),
    # Tokens that are lost, or late.
    row(states=9_148, stopped=1, outages=1),
    row(*PAUSED, states=3_861, stopped=1),
    row(states=1_134, lost=1, outages=1),
    row(*PAUSED, states=681, lost=1),
    row(states=4_352, stopped=1, lost=1, races=1),
    # A journal that has forgotten.
    row(*PAUSED, states=1_119, forgets=1),
    row(states=2_379, forgets=1, outages=1),
    row(states=957, forgets=1, repairs=1),
    row(*PAUSED, states=660, forgets=1, checkpoints=False, found=UNNOTED),
    row(states=4_469, forgets=1, outages=1, checkpoints=False, found=FAILED_NODE),
    # Runs that stop their loop.
    row(states=3_198, stops=1, outages=1, races=1),
    row(*PAUSED, states=792, stops=1, at_once=2),
    row(Verb.RESCHEDULE, states=3_546, stops=1, repairs=1, at_once=2),
    row(states=442, stops=1, repairs=1, deaths=1),
    row(Verb.RESUME, states=144, stops=1, lost=1),
    row(Verb.RESUME, states=1_942, stops=1, lost=1, repairs=1),
    # Failed nodes.
    row(states=48, processors=1, doublings=1),
    row(states=3_245, doublings=1, found=FAILED_NODE),
    row(states=4_323, unheard=1, outages=1, found=FAILED_NODE),
    row(states=1_871, unheard=1, races=1, found=FAILED_NODE),
    row(states=1_846, late=1, found=FAILED_NODE),
)
"""Some seconds each."""

LARGE = (
    row(states=34_791, outages=3),
    row(states=33_201, processors=3, outages=2),
    row(*PAUSED, states=44_447, processors=3, outages=1),
    row(*PAUSED, states=26_691, outages=1, deaths=1),
    row(*PAUSED, states=66_005, outages=1, races=1),
    row(Verb.TRIGGER, states=19_204, deaths=1, outages=1),
    row(*STARTED_PAUSED, states=17_721, outages=1, paused=True),
    row(*PAUSED, states=31_846, outages=1, at_once=2),
    row(*PAUSED, states=9_354, repairs=1, at_once=2),
    row(*PAUSED, *STARTED, states=13_676, at_once=2),
    row(*STARTED, states=61_837, outages=1, at_once=2),
    row(*STARTED, states=20_049, repairs=1, at_once=2),
    row(Verb.TRIGGER, Verb.PAUSE, states=74_488, outages=1, at_once=2),
    row(Verb.TRIGGER, *PAUSED, states=128_820, repairs=1, at_once=3),
    row(Verb.TRIGGER, states=30_573, repairs=2, at_once=3),
    row(*PAUSED, states=105_299, lost=1, outages=1, at_once=2),
    row(*STARTED, states=43_287, forgets=1, repairs=1),
    row(Verb.RESCHEDULE, states=15_016, stops=1, outages=1),
    row(Verb.TRIGGER, states=15_688, stops=1, outages=1),
    row(Verb.RESUME, states=24_174, stops=1, outages=1, forgets=1),
    row(*PAUSED, states=21_566, stops=1, outages=1),
    row(states=45_099, doublings=1, forgets=1, found=FAILED_NODE),
    row(*PAUSED, states=81_169, doublings=1, found=FAILED_NODE),
    row(*PAUSED, states=51_411, late=1, found=FAILED_NODE),
)
"""Up to some minutes each, on a machine that does nothing else."""
