"""The table: what happens in a model, and what is found.

Nothing, but where a node of the broker fails, and where the roster lacks what the journal forgot.
"""

from collections.abc import Set as AbstractSet

from scheduler.protocol.epochs import Verb
from tests.model.checker import Search
from tests.model.moves import Wrong
from tests.model.rows import rows_of
from tests.model.state import RECURRING, Ask, Bounds, Name

FAILED_NODE: AbstractSet[Wrong] = {Wrong.OVERLAP, Wrong.BACKWARDS, Wrong.RESETTLED}
"""A token that is there twice runs twice, until S2 sees it. It must not last."""

UNNOTED: AbstractSet[Wrong] = {Wrong.FORGOTTEN, Wrong.BACKWARDS, Wrong.RESETTLED}
"""A first token goes on from what is left in the journal: checkpoints are load-bearing."""

row = rows_of(Search, Bounds)

PAUSED = Verb.PAUSE, Verb.RESUME
STARTED = Verb.REMOVE, Verb.SEED
STARTED_PAUSED = *STARTED, Verb.RESUME
STOPPED_TWICE = Verb.PAUSE, Verb.PAUSE, Verb.RESUME
STOPPED_AGAIN = *PAUSED, Verb.PAUSE
REMOVED_TWICE = Verb.REMOVE, *STARTED
MOVED, MOVED_AGAIN, MOVED_BACK = Ask(2), Ask(3), Ask(1)
REPEATING = Ask(RECURRING)
OLD, NEW = Name(0), Name(1)
THREE = Verb.TRIGGER, Verb.RESCHEDULE, Verb.PAUSE

SMALL = (
    row(states=5_121, outages=2),
    row(*PAUSED, states=804, deaths=1),
    row(*PAUSED, states=5_838, repairs=1),
    row(Verb.PAUSE, Verb.PAUSE, states=231, deaths=1),
    row(*STARTED, states=1_154, deaths=1),
    row(*STARTED_PAUSED, states=6_510, repairs=1, paused=True),
    row(*PAUSED, states=1_164, processors=3, deaths=1),
    # Confirmations that are lost.
    row(states=5_112, races=2, outages=1),
    row(*PAUSED, states=2_294, races=1),
    row(*STARTED, states=2_020, races=1),
    row(states=4_806, recalls=1, outages=1),
    row(states=1_012, recalls=1, races=1),
    # Creators that overtake each other.
    row(Verb.TRIGGER, states=7_596, repairs=1, at_once=2),
    row(*PAUSED, states=798, at_once=2),
    row(*PAUSED, states=1_485, deaths=1, at_once=2),
    row(*STOPPED_TWICE, states=1_323, at_once=2),
    row(*STOPPED_AGAIN, states=3_378, at_once=2),
    row(Verb.TRIGGER, Verb.PAUSE, states=1_581, at_once=2),
    row(*STARTED, states=1_087, at_once=2),
    row(Verb.TRIGGER, states=1_017, processors=3, deaths=1, at_once=2),
    row(*REMOVED_TWICE, states=3_274, at_once=3),
    row(*STARTED_PAUSED, states=1_393, at_once=3, paused=True),
    # Tokens that are lost, or late.
    row(*PAUSED, states=7_667, stopped=1),
    row(states=1_158, lost=1, outages=1),
    row(*PAUSED, states=1_245, lost=1),
    # A journal that has forgotten.
    row(*PAUSED, states=1_617, forgets=1),
    row(states=2_379, forgets=1, outages=1),
    row(states=1_473, forgets=1, repairs=1),
    row(*PAUSED, states=1_004, forgets=1, checkpoints=False, found=UNNOTED),
    row(states=7_956, forgets=1, outages=1, checkpoints=False, found=FAILED_NODE),
    # Runs that stop their loop.
    row(states=4_121, stops=1, outages=1, races=1),
    row(*PAUSED, states=1_326, stops=1, at_once=2),
    row(states=1_109, stops=1, repairs=1, deaths=1),
    row(Verb.RESUME, states=435, stops=1, lost=1),
    row(Verb.RESUME, states=7_481, stops=1, lost=1, repairs=1),
    # Tokens that come too early.
    row(states=1_739, early=1, outages=1),
    row(states=282, early=1, races=1),
    row(states=2_546, early=2, recalls=1),
    # First tokens that creators exchange.
    row(Verb.RESCHEDULE, states=8_643, races=1, lost=1),
    # One-offs.
    row(once=True, states=117, outages=1, races=1),
    row(MOVED, once=True, states=423, deaths=1),
    row(MOVED, *PAUSED, once=True, states=2_232),
    row(*PAUSED, once=True, states=1_985, outages=1),
    row(*PAUSED, once=True, states=6_826, outages=1, forgets=1),
    row(MOVED, MOVED_AGAIN, once=True, states=1_869),
    row(MOVED, MOVED_BACK, once=True, states=4_041, at_once=2),
    row(MOVED, REPEATING, once=True, states=1_995),
    row(Verb.REMOVE, MOVED_BACK, once=True, states=1_698, outages=1),
    row(once=True, states=523, stopped=1, lost=1),
    # Loops that are renamed, while processors with code of the old name run.
    row(NEW, states=333, old=1, deaths=1),
    row(NEW, states=5_832, old=1, repairs=1),
    row(NEW, states=1_217, old=1, races=1),
    row(NEW, states=804, old=1, lost=1),
    row(NEW, NEW, states=639, deaths=1, at_once=2),
    row(NEW, OLD, states=2_412, at_once=2),
    row(NEW, *PAUSED, states=2_259, old=1),
    row(Verb.PAUSE, NEW, Verb.RESUME, states=1_389, old=1, forgets=1),
    row(Verb.TRIGGER, NEW, states=5_742, old=1, at_once=2),
    row(NEW, Verb.RESCHEDULE, states=1_623, old=1),
    row(NEW, *STARTED, states=2_176, old=1),
    row(NEW, states=319, old=1, stops=1),
    row(NEW, Verb.PAUSE, once=True, states=386),
    row(NEW, MOVED, once=True, states=797),
    # Failed nodes.
    row(states=48, processors=1, doublings=1),
    row(states=6_840, doublings=1, found=FAILED_NODE),
    row(states=7_810, unheard=1, outages=1, found=FAILED_NODE),
    row(states=3_676, unheard=1, races=1, found=FAILED_NODE),
    row(states=3_647, late=1, found=FAILED_NODE),
)
"""Some seconds each."""

LARGE = (
    row(Verb.TRIGGER, states=15_004, outages=1),
    row(states=34_791, outages=3),
    row(*STARTED, states=6_526, repairs=1),
    row(Verb.RESCHEDULE, *PAUSED, states=14_298, at_once=3),
    row(*THREE, states=28_065, at_once=3),
    row(states=33_201, processors=3, outages=2),
    row(*PAUSED, states=77_408, processors=3, outages=1),
    row(*PAUSED, states=45_279, outages=1, deaths=1),
    row(*PAUSED, states=102_585, outages=1, races=1),
    row(Verb.TRIGGER, states=37_279, deaths=1, outages=1),
    row(*STARTED_PAUSED, states=16_456, outages=1, paused=True),
    row(*PAUSED, states=47_330, outages=1, at_once=2),
    row(*PAUSED, states=20_196, repairs=1, at_once=2),
    row(*PAUSED, *STARTED, states=20_739, at_once=2),
    row(*STARTED, states=60_577, outages=1, at_once=2),
    row(*STARTED, states=29_966, repairs=1, at_once=2),
    row(Verb.TRIGGER, Verb.PAUSE, states=74_488, outages=1, at_once=2),
    row(Verb.TRIGGER, *PAUSED, states=128_820, repairs=1, at_once=3),
    row(Verb.TRIGGER, states=30_573, repairs=2, at_once=3),
    row(*PAUSED, states=105_299, lost=1, outages=1, at_once=2),
    row(*STARTED, states=43_287, forgets=1, repairs=1),
    row(Verb.RESCHEDULE, states=15_016, stops=1, outages=1),
    row(Verb.TRIGGER, states=15_688, stops=1, outages=1),
    row(Verb.RESUME, states=24_174, stops=1, outages=1, forgets=1),
    row(*PAUSED, states=21_566, stops=1, outages=1),
    row(MOVED, *PAUSED, once=True, states=35_463, outages=1),
    row(MOVED, Verb.TRIGGER, once=True, states=32_754, outages=1),
    row(states=45_099, doublings=1, forgets=1, found=FAILED_NODE),
    row(*PAUSED, states=81_169, doublings=1, found=FAILED_NODE),
    row(*PAUSED, states=51_411, late=1, found=FAILED_NODE),
    row(Verb.TRIGGER, Verb.RESCHEDULE, states=15_126, deaths=1, at_once=2),
    row(*PAUSED, states=17_526, outages=1),
    row(states=12_651, stopped=1, outages=1),
    row(REPEATING, *PAUSED, once=True, states=10_209, deaths=1),
    row(MOVED, once=True, states=10_275, repairs=1, deaths=1),
    row(Verb.RESCHEDULE, states=11_840, stops=1, repairs=1, at_once=2),
    row(states=9_062, stopped=1, lost=1, races=1),
    row(states=6_429, processors=3, repairs=1, races=1),
    row(Verb.RESCHEDULE, states=7_596, repairs=1, at_once=2),
    row(states=9_003, repairs=2, deaths=1),
    row(NEW, states=10_816, old=1, outages=1),
    row(NEW, states=7_430, old=1, stopped=1),
    row(NEW, states=4_038, old=1, recalls=1),
    row(NEW, OLD, states=5_490, deaths=1),
    row(NEW, NEW, states=15_114, old=1, repairs=1, at_once=2),
    row(NEW, *STARTED, states=10_749, deaths=1),
    row(Verb.PAUSE, NEW, Verb.RESUME, states=5_154, old=1, deaths=1, at_once=2),
)
"""Up to some minutes each, on a machine that does nothing else."""
