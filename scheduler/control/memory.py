"""Remember what supervision has found, from round to round.

Its token carries the memory, whichever processor runs the next round. So a reader of the journal
sees what the last round counted, without asking a processor.
"""

from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict, ValidationError

from scheduler.protocol.epochs import LoopState
from scheduler.protocol.tokens import LoopId
from scheduler.queues.listing import Listing
from scheduler.queues.namespace import Namespace
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.moments import moment_of

ROUNDS = 4
"""A memory of the last rounds is up to date."""
MOST_NAMED, MOST_TASKS = 20, 200  # a token can carry a limited number


class Tally(BaseModel):
    """Count the loops of a namespace.

    Attributes:
        loops: the number of each task's loops in each state; gone ones are kept for a day.
        paused: the tasks that are paused as a whole.
        overdue: the number of loops with overdue tokens; of a task that is behind, not all.
        overdue_names: some of them.
        doubled: the number of loops with two lines of tokens.
        doubled_names: some of them.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    loops: Mapping[str, Mapping[LoopState, int]] = {}
    paused: Sequence[str] = ()
    overdue: int = 0
    overdue_names: Sequence[str] = ()
    doubled: int = 0
    doubled_names: Sequence[str] = ()


class Memory(BaseModel):
    """Carry state from one round to the next.

    Attributes:
        tally: what the round counted; None: nothing yet, or too many tasks to carry.
        counted_at_ms: when; 0: never. The roster has the progress of long waits that was put
            before.
        reported: loops whose trouble was reported.
        stuck: timers of calls that were reported.
        policies: policies that change the queues, as reported.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    tally: Tally | None = None
    counted_at_ms: int = 0
    reported: Mapping[str, str] = {}
    stuck: Sequence[str] = ()
    policies: Sequence[str] = ()

    @property
    def counted_at(self) -> datetime | None:
        return moment_of(self.counted_at_ms) if self.counted_at_ms else None


def memory_of(carried: Any) -> Memory:
    """Return the memory that a token of supervision carries; an empty one, if it carries none."""
    with suppress(ValidationError):  # of another version, for example: start afresh
        return Memory.model_validate(carried or {})
    return Memory()


async def last_memory(namespace: Namespace) -> Memory:
    """Return the memory of the last round, without writing anything; an empty one: it is unknown.

    Raises:
        QueueNotFound: nothing was seeded.
        BrokerUnavailable: the journal could not be read.
    """
    since = namespace.clock.now() - ROUNDS * namespace.app.settings.supervision_interval
    found = await namespace.journal.last_put({SUPERVISION}, since=since, is_exact=False)
    token = found.get(SUPERVISION)
    return Memory() if token is None else memory_of(token.carry)


def tally_of(listing: Listing, overdue: Sequence[LoopId], doubled: Sequence[LoopId]) -> Tally:
    """Return the tally of the roster's loops, of which these are overdue or doubled."""
    return Tally(
        loops={task: +states for task, states in listing.counts.items() if +states},
        paused=[listed.loop.task for listed in listing.pauses],
        overdue=len(overdue),
        overdue_names=list(map(str, overdue[:MOST_NAMED])),
        doubled=len(doubled),
        doubled_names=list(map(str, doubled[:MOST_NAMED])),
    )
