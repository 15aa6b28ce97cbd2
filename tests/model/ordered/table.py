"""What happens to an ordered queue, and what is found: nothing, but where a node fails."""

from collections.abc import Set as AbstractSet

from tests.model.ordered.state import Bounds
from tests.model.ordered.world import World, Wrong
from tests.model.rows import rows_of

LATE_NOTE: AbstractSet[Wrong] = {Wrong.BACKWARDS, Wrong.EARLY}
"""A note that comes when the next processor has looked already takes the place of a later one."""

STOOD_STILL: AbstractSet[Wrong] = {Wrong.ENDLESS}
"""Who is not told that its message was taken back begins its run when its next owner has begun."""

row = rows_of(World, Bounds)

SMALL = (
    row(states=3_105),
    row(messages=1, retries=2, outages=1, states=7_010),
    row(messages=1, retries=0, outages=1, stops=1, states=6_078),
    row(messages=1, retries=0, stops=2, states=3_375),
    row(retries=0, recalls=1, states=1_060),
)
"""Some seconds each."""

LARGE = (
    row(messages=3, states=24_298),
    row(messages=1, outages=2, states=14_815),
    row(messages=1, stops=1, states=8_058),
    row(outages=1, states=40_866),
    row(outages=1, twins=True, states=40_866),
    row(stops=1, states=114_947),
    row(messages=1, outages=1, stops=1, states=157_998),
    row(outages=1, late=1, found=LATE_NOTE, states=95_856),
    row(outages=2, states=201_357),
    row(messages=1, retries=0, outages=1, recalls=1, found=STOOD_STILL, states=13_615),
    row(messages=1, outages=3, states=37_672),
)
"""Up to some minutes each."""
