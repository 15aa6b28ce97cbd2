"""The zones that times are told in."""

from collections.abc import Mapping
from datetime import tzinfo

from scheduler.app import Scheduler
from scheduler.errors import BrokerError
from scheduler.program import Program
from scheduler.timing.schedules import zone_of

Zones = Mapping[str, tzinfo | None]


async def zones_of_loops(app: Scheduler, program: Program) -> Zones:
    """The zone of each loop's schedule, by its name; None: that of this machine."""
    try:
        known = await program.loops.all()
    except BrokerError:  # no reason to show less: without the roster, the code knows most
        known = list(app.loops.values())
    return {str(each): zone_of(each.schedule) for each in known}
