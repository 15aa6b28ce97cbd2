"""How loops stand at a moment: pure judgements over the picture, each one sentence."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from scheduler.brokers.contract import Depth
from scheduler.control.where import Where, put_of, where
from scheduler.dashboard.picture import DAY, LoopPicture, Picture
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.tokens import Ending
from scheduler.protocol.topology import Names
from scheduler.queues.listing import Listed
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import DEFAULT_TASK_TIMEOUT, SUPERVISION
from scheduler.timing.schedules import Schedule

MANY = 3
VERY_LATE = timedelta(minutes=1)
FAILING = (Ending.RETRIED, Ending.ESCALATED)


MARKS = {
    Where.LOST: "✕",
    Where.UNATTENDED: "⚠",
    Where.LATE: "!",
    Where.UNSEEDED: "∅",
    Where.UNHEARD: "?",
    Where.READY: "◔",
    Where.RUNNING: "▶",
    Where.PAUSED: "‖",
    Where.WAITING: "○",
}
MEANINGS = {
    Where.LOST: "Overdue, and no processor has its token: supervision puts it again.",
    Where.UNATTENDED: "It is due, and no processor takes messages of its task: start one.",
    Where.LATE: "It is due, and nothing was heard of a run for longer than its task may take.",
    Where.UNSEEDED: "The code has it, the broker does not: run `scheduler seed`.",
    Where.UNHEARD: "It is seeded. The journal, as far as it was read, does not tell of it.",
    Where.READY: "It is due, and waits in the queue of its task for its turn.",
    Where.RUNNING: "It is due, and out of its queue: a processor should have it in hand.",
    Where.PAUSED: "It waits until it is resumed.",
    Where.WAITING: "It waits for its time.",
}
AT_REST = (Where.WAITING, Where.PAUSED, Where.UNSEEDED)
TROUBLES = (Where.LOST, Where.UNATTENDED, Where.LATE, Where.UNSEEDED)


@dataclass(frozen=True, slots=True)
class Standing:
    """One loop at a moment.

    Attributes:
        in_code: whether the app has it; else it is in the broker alone.
        schedule: as it was seeded.
        failures: how many of its last attempts have failed, in a row.
        was_late: how late a run of the last day began, if that was very late.
    """

    name: str
    state: Where
    loop: LoopPicture
    schedule: Schedule
    in_code: bool
    failures: int
    was_late: timedelta | None = None

    @property
    def mark(self) -> str:
        return MARKS[self.state]

    @property
    def meaning(self) -> str:
        return MEANINGS[self.state]

    @property
    def is_failing(self) -> bool:
        """Whether a tick has failed for the last time, or one is failing again and again."""
        last = self.loop.last
        return self.failures >= MANY or (last is not None and last.ending is Ending.ESCALATED)

    @property
    def is_troubled(self) -> bool:
        return self.state in TROUBLES or self.is_failing


class Standings:
    """Judges the loops of an app by a picture."""

    def __init__(self, app: App, picture: Picture) -> None:
        self._app = app
        self._picture = picture

    def all(self, now: datetime) -> list[Standing]:
        """Each loop of the code, and each that the broker has, by name."""
        names: Names = self._app.names
        of_code = {loop.id: loop for loop in self._app.loops.values()}
        pictures = self._picture.loops
        queues = {task: names.processor_queue(task) for task in {loop.task for loop in pictures}}
        found = [
            self._one(of_code.get(name), pictures.get(name) or LoopPicture(name), queues, now)
            for name in {**of_code, **pictures}
            if name != SUPERVISION
        ]
        there = [standing for standing in found if standing is not None]
        return sorted(there, key=lambda standing: standing.name)

    def _one(
        self, code: Loop | None, loop: LoopPicture, queues: Mapping[str, str], now: datetime
    ) -> Standing | None:
        listed = loop.listed
        if code is None and (listed is None or listed.is_gone):
            return None
        schedule = listed.schedule if listed is not None else code and code.schedule
        assert schedule is not None
        depth = self._picture.depths.get(queues.get(loop.id.task, ""))
        task = self._app.tasks.get(loop.id.task)
        timeout = task.timeout if task else DEFAULT_TASK_TIMEOUT
        state = state_of(loop, now, depth, timeout)
        in_code = code is not None or (bool(loop.id.key) and task is not None)
        late = _lateness(loop, now)
        return Standing(str(loop.id), state, loop, schedule, in_code, _failures(loop), late)


def state_of(loop: LoopPicture, now: datetime, depth: Depth | None, timeout: timedelta) -> Where:
    """Return where a loop is, as far as it was heard of.

    Args:
        depth: of the queue of its task; None: it is not known.
        timeout: how long a run of its task may take.
    """
    listed, token = loop.listed, loop.token
    if listed is None and token is not None:  # the roster was not read yet
        entry = Entry(token.epoch, LoopState.ACTIVE, token.life)
        listed = Listed(loop.id, token.schedule, token.args, entry, at=now)
    put = None if token is None else put_of(token)
    return where(listed, put, now, depth, timeout=timeout)


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


@dataclass(frozen=True, slots=True)
class Trouble:
    """Something that somebody should look at.

    Attributes:
        what: in a few words, such as "late".
        loops: those that it is about, the worst first.
        query: what shows them on the page of loops.
    """

    what: str
    advice: str
    loops: Sequence[Standing]
    query: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """How all loops stand: a sentence, what is wrong, and how many there are of each state.

    Attributes:
        late: of how many a run of the last day began very late.
    """

    sentence: str
    troubles: Sequence[Trouble]
    counts: Mapping[Where, int]
    late: int = 0

    @property
    def is_fine(self) -> bool:
        return not self.troubles


def verdict_of(standings: Sequence[Standing]) -> Verdict:
    """Whether all is well, in a sentence."""
    troubles = list(_troubles(standings))
    counts = Counter(standing.state for standing in standings)
    late = sum(standing.was_late is not None for standing in standings)
    return Verdict(_sentence(standings, troubles, counts), troubles, counts, late)


def _troubles(standings: Sequence[Standing]) -> Iterator[Trouble]:
    for state in TROUBLES:
        of_state = [each for each in standings if each.state is state]
        if of_state:
            of_state.sort(key=_due)
            yield Trouble(state.value, MEANINGS[state], of_state, f"state={state.value}")
    failing = sorted((each for each in standings if each.is_failing), key=lambda x: -x.failures)
    if failing:
        advice = "Their runs have raised until no retry was left, or do so again and again."
        yield Trouble("failing", advice, failing, "failing=1")


def _due(standing: Standing) -> float:
    due_at = standing.loop.due_at
    return 0.0 if due_at is None else due_at.timestamp()


def _sentence(
    standings: Sequence[Standing], troubles: Sequence[Trouble], counts: Mapping[Where, int]
) -> str:
    if not standings:
        return "This app has no loops."
    paused = counts.get(Where.PAUSED, 0)
    but = f", {paused} of them paused" if paused else ""
    if not troubles:
        everyone = "The only loop is" if len(standings) == 1 else f"All {len(standings)} loops are"
        return f"{everyone} on time{but if len(standings) > 1 else ''}."
    parts = [f"{len(trouble.loops)} {_of(trouble)}" for trouble in troubles]
    return f"Of {_counted(len(standings))}, {_listed(parts)}."


def _of(trouble: Trouble) -> str:
    verb = "is" if len(trouble.loops) == 1 else "are"
    return f"{verb} {trouble.what}"


def _counted(count: int) -> str:
    return f"{count} loop{'' if count == 1 else 's'}"


def _listed(parts: Sequence[str]) -> str:
    *others, last = parts
    return f"{', '.join(others)} and {last}" if others else last
