"""Judge all loops again and again: only those that may have changed since."""

from collections.abc import Iterable, Sequence
from datetime import datetime, timedelta
from heapq import heappop, heappush

from scheduler.brokers.contract import Depth
from scheduler.control.loops import Where, due_at_of, put_of, where
from scheduler.dashboard.picture import DAY, LoopPicture, Picture
from scheduler.dashboard.standing import FAILING, Standing
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.tokens import LoopId
from scheduler.queues.listing import RosterEntry
from scheduler.tasks.loops import App, queues_of
from scheduler.tasks.tasks import DEFAULT_TASK_TIMEOUT, SUPERVISION
from scheduler.timing.durations import SECOND

VERY_LATE = timedelta(minutes=1)
SETTLED = (Where.WAITING, Where.PAUSED, Where.UNSEEDED, Where.REMOVED, Where.UNHEARD)
"""The states that last until a message, or the next time of the loop."""
AT_ONCE = 1_000  # other loops, that are judged each time


class Standings:
    """Judge each loop of the code, and each in the broker."""

    def __init__(self, app: App, picture: Picture) -> None:
        self._app, self._picture = app, picture
        self._known = dict[LoopId, Standing]()
        self._sorted: list[LoopId] | None = None
        self._of_tasks = dict[str, RosterEntry | None]()
        self._unsettled = set[LoopId]()
        self._unsettled_at: datetime | None = None
        self._times = list[tuple[datetime, LoopId]]()
        self._time_of = dict[LoopId, datetime]()
        picture.changed.update(picture.loops)

    def at(self, now: datetime) -> Sequence[Standing]:
        """Return the standings at a moment, by name."""
        for loop in [*self._to_judge(now)]:
            self._judge(loop, now)
        if self._sorted is None:
            self._sorted = sorted(self._known, key=lambda loop: self._known[loop].name)
        return [self._known[loop] for loop in self._sorted]

    def _to_judge(self, now: datetime) -> Iterable[LoopId]:
        """Return the loops with news, and those whose time has come, or that depend on queues."""
        loops, self._picture.changed = self._picture.changed, set()
        # The picture has no news of these: they are unseeded, or beyond its limit.
        loops.update(loop for loop in self._app.loops if loop not in self._picture.loops)
        while self._times and self._times[0][0] < now:
            time, loop = heappop(self._times)
            if self._time_of.get(loop) == time:
                loops.add(loop)
        of_tasks = {task: self._picture.listing.of_task(task) for task in self._of_tasks}
        if changed := {task for task in of_tasks if of_tasks[task] is not self._of_tasks[task]}:
            loops.update(loop for loop in self._known if loop.task in changed)
        self._of_tasks = of_tasks
        pause = SECOND * (len(self._unsettled) // AT_ONCE)
        if self._unsettled_at is None or now - self._unsettled_at >= pause:
            self._unsettled_at = now
            loops |= self._unsettled
        return loops

    def _judge(self, loop: LoopId, now: datetime) -> None:
        standing = self._standing(loop, now)
        if (standing is None) is not (self._known.get(loop) is None):
            self._sorted = None
        self._time_of.pop(loop, None)
        self._unsettled.discard(loop)
        if standing is None:
            self._known.pop(loop, None)
            return
        self._known[loop] = standing
        if loop.task not in self._of_tasks:
            self._of_tasks[loop.task] = self._picture.listing.of_task(loop.task)
        if standing.state not in SETTLED:
            self._unsettled.add(loop)
        elif (time := self._until(standing)) is not None and time >= now:
            self._time_of[loop] = time
            heappush(self._times, (time, loop))

    def _until(self, standing: Standing) -> datetime | None:
        """Return when a settled loop may change without news; None: never."""
        loop, due_at = standing.loop, None
        if standing.state is Where.WAITING and loop.listed is not None:
            put = None if loop.token is None else put_of(loop.token)
            due_at = due_at_of(loop.listed, put, self._of_tasks[loop.id.task])
        if standing.was_late is None or loop.latest is None:
            return due_at
        over_at = loop.latest.started_at + DAY
        return over_at if due_at is None else min(due_at, over_at)

    def _standing(self, name: LoopId, now: datetime) -> Standing | None:
        """Judge one loop; None: there is none of this name, or no longer."""
        app, listing = self._app, self._picture.listing
        code, loop = app.loops.get(name), self._picture.loops.get(name)
        if loop is None:
            if code is None:
                return None
            loop = LoopPicture(name, listing.get(name))
        listed, task = loop.listed, app.tasks.get(name.task)
        if name == SUPERVISION or (code is None and (listed is None or listed.is_gone)):
            return None
        schedule = listed.schedule if listed is not None else code and code.schedule
        assert schedule is not None
        depth = self._picture.depth_of(queues_of(app, name.task))
        timeout = task.timeout if task else DEFAULT_TASK_TIMEOUT
        state = state_of(loop, now, depth, timeout, listing.of_task(name.task))
        in_code = code is not None or (bool(name.key) and task is not None)
        late, failures = _lateness(loop, now), _failures(loop)
        pause = None if loop.is_paused else listing.pause_of(name.task)
        return Standing(str(name), state, loop, schedule, in_code, failures, late, pause)


def state_of(
    loop: LoopPicture,
    now: datetime,
    depth: Depth | None,
    timeout: timedelta,
    of_task: RosterEntry | None = None,
) -> Where:
    """Return where a loop is, by the depth of its task's queue and the pause of its task."""
    listed, token = loop.listed, loop.token
    if listed is None and token is not None:  # the roster was not read yet
        entry = Entry(token.epoch, LoopState.ACTIVE, token.life)
        listed = RosterEntry(loop.id, token.schedule, token.args, entry, at=now)
    put = None if token is None else put_of(token)
    return where(listed, put, now, depth, of_task=of_task, timeout=timeout)


def _failures(loop: LoopPicture) -> int:
    count = 0
    for run in reversed(loop.runs):
        if run.last.ending not in FAILING:
            break
        count += 1
    return count


def _lateness(loop: LoopPicture, now: datetime) -> timedelta | None:
    latest = loop.latest
    if latest is None or latest.last.late <= VERY_LATE or now - latest.started_at > DAY:
        return None
    return latest.last.late
