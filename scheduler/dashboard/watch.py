"""Ask the broker and the processors what no stream tells, as long as visitors look.

A visitor who may only read sees the same answers: the dashboard asks, not the visitor. If the user
of the broker may only read, nothing is asked, and pages show what the journal says.
"""

import asyncio
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any

from scheduler.brokers.contract import Broker, unless_stalled
from scheduler.control.doctor import Finding
from scheduler.control.installation import with_failed_queues
from scheduler.dashboard.picture import Picture
from scheduler.errors import AccessRefused, NotAllSeen, Rejected, SchedulerError, Unroutable
from scheduler.program import Program
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.about import NOTHING_TOLD, About
from scheduler.queues.failed import FailedQueues, ParkedMessage, Selection
from scheduler.queues.roll_call import Answers, Holdings, InHand
from scheduler.queues.running import Running, RunningRun
from scheduler.tasks.loops import App
from scheduler.timing.durations import SECOND
from scheduler.timing.moments import Clock

FAILED, RUNNING, PROCESSORS, DOCTOR = "/failed", "/running", "/processors", "/doctor"
BEAT = SECOND
ASK_EVERY, ASK_SELDOM = 5 * SECOND, 15 * SECOND  # each opens a connection, to see alarms
LOOK_EVERY, LOOK_SELDOM = 5 * SECOND, timedelta(minutes=1)
MANY = 1_000  # parked messages, from which reading all of them is slow
MOST_OF_A_GROUP, MOST_KEPT, MOST_LOOKED_AT = 200, 1_000, 10_000  # of them
LEFTOVERS_EVERY = 10 * SECOND
EXAMINE_EVERY = timedelta(minutes=1)
MOST_KNOWN = 500
KNOWN_FOR = timedelta(days=7)
TOGETHER = timedelta(minutes=10)


@dataclass(slots=True)
class AnswerGroup:
    """Group the messages of one task that were parked for one kind of error.

    Attributes:
        error: of the latest of them.
        messages: the first of them.
    """

    task: str
    reason: str
    kind: str
    error: str
    count: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    messages: list[ParkedMessage] = field(default_factory=list[ParkedMessage])

    def add(self, at: datetime | None) -> None:
        self.count += 1
        if at is not None:
            self.first_at = min(self.first_at or at, at)
            self.last_at = max(self.last_at or at, at)


@dataclass(frozen=True, slots=True)
class Look:
    """Report a look at parked messages; it is whole if all of them were read."""

    at: datetime
    groups: Sequence[AnswerGroup]
    is_whole: bool

    @property
    def count(self) -> int:
        return sum(group.count for group in self.groups)


async def look_at(
    failed: FailedQueues, tasks: Iterable[str], which: Selection, now: datetime
) -> Look:
    """Read parked messages; keep the first of each group."""
    groups: dict[tuple[str, str, str], AnswerGroup] = {}
    seen, kept, is_whole = 0, 0, False
    async with aclosing(failed.look(tasks, which)) as looked_at:
        with suppress(NotAllSeen):
            async for parked in looked_at:
                key = parked.task, parked.reason, parked.kind
                group = groups.setdefault(key, AnswerGroup(*key, error=parked.error))
                group.add(parked.parked_at)
                if len(group.messages) < MOST_OF_A_GROUP and kept < MOST_KEPT:
                    group.messages.append(parked)
                    kept += 1
                if (seen := seen + 1) >= MOST_LOOKED_AT:
                    break
            else:
                is_whole = True
    found = sorted(groups.values(), key=lambda group: -group.count)
    return Look(now, found, is_whole)


@dataclass(frozen=True, slots=True)
class Pod:
    """Describe one processor.

    Attributes:
        waiting: its tokens that wait for their turn.
        has_answered: whether it has reported its runs.
    """

    name: str
    about: About = NOTHING_TOLD
    runs: Sequence[RunningRun] = ()
    waiting: Sequence[tuple[LoopId, InHand]] = ()
    has_answered: bool = True


@dataclass(frozen=True, slots=True)
class Roll:
    """List all processors, as of a moment."""

    at: datetime
    pods: Sequence[Pod]

    @property
    def versions(self) -> Sequence[str]:
        return sorted({pod.about.version or "unknown" for pod in self.pods if pod.has_answered})


def roll_of(answers: Answers, running: Running, at: datetime) -> Roll:
    """Combine the answers to a roll call and to a question about runs."""
    names = sorted({*answers.said, *running.said})
    pods = [_pod(name, answers, running) for name in names]
    return Roll(at, [*pods, *(Pod(name, has_answered=False) for name in answers.unheard)])


def _pod(name: str, answers: Answers, running: Running) -> Pod:
    account, holdings = running.said.get(name), answers.said.get(name, Holdings())
    return Pod(
        name,
        holdings.about,
        sorted(account.runs, key=lambda run: run.started_at) if account else (),
        [
            (loop, token)
            for loop, tokens in holdings.hands.items()
            for token in tokens
            if not token.running
        ],
    )


@dataclass(frozen=True, slots=True)
class SeenProcessor:
    """Describe a processor that has answered, and when it did last."""

    about: About
    last_at: datetime


@dataclass(frozen=True, slots=True)
class Rollout:
    """Describe processors that started together; `version` is empty if it was seen before."""

    at: datetime
    count: int
    version: str = ""


class Watch:
    """Hold the latest answers, and renew them.

    Attributes:
        looks: the parked messages last read, by task; under "", of all tasks.
        running: the last known runs, and when processors were asked.
        roll: the processors, as of the last roll call.
        seen: all processors that have answered.
        findings: those of the last examination by the doctor, and when it began.

    Args:
        loops: returns the loops of which processors may hold tokens, with their epochs.
    """

    def __init__(
        self,
        picture: Picture,
        clock: Clock,
        is_viewed: Callable[[str], bool],
        loops: Callable[[], Mapping[LoopId, int]],
    ) -> None:
        self.looks: dict[str, Look] = {}
        self.running: tuple[datetime, Running] | None = None
        self.roll: Roll | None = None
        self.seen: dict[str, SeenProcessor] = {}
        self.findings: tuple[datetime, Sequence[Finding]] | None = None
        self._refusal = ""
        self._alarm = ""
        self._looking = asyncio.Lock()
        self._taking = 0
        self._silent = self._silent_before = 0
        self._picture, self._clock = picture, clock
        self._is_viewed, self._loops = is_viewed, loops
        self._parked: dict[str, object] = {}
        self._program: Program
        self._broker: Broker | None = None

    @property
    def alarm(self) -> str:
        """Return why the broker blocks publishers; empty: it does not, as far as known.

        It answers nothing over a connection that it blocks: processors cannot be counted either.
        """
        if self._broker is not None and self._broker.is_blocked:
            return self._alarm or "low on memory or disk"
        return self._alarm

    @property
    def refusal(self) -> str:
        """Return why processors cannot be asked; empty: they can."""
        blocks = f"the broker blocks publishers, {self.alarm}." if self.alarm else ""
        return self._refusal or blocks

    @property
    def silent(self) -> int:
        """Return how many processors have not answered twice in a row."""
        return min(self._silent, self._silent_before)

    @property
    def gone(self) -> Sequence[tuple[str, SeenProcessor]]:
        """Return the processors that have left, the latest first."""
        if self.roll is None:
            return []
        named = " ".join(pod.name for pod in self.roll.pods)
        left = [(name, seen) for name, seen in self.seen.items() if name not in named]
        return sorted(left, key=lambda each: each[1].last_at, reverse=True)

    @property
    def rollouts(self) -> Sequence[Rollout]:
        """Return when processors started, those within ten minutes together."""
        found, known = list[Rollout](), set[str]()
        starts = sorted(
            (seen.about.since, seen.about.version)
            for seen in self.seen.values()
            if seen.about.since is not None
        )
        for at, version in starts:
            new = "" if version in known else version
            known.add(version)
            last = found[-1] if found else None
            if last is not None and at - last.at < TOGETHER and not (new and last.version):
                found[-1] = Rollout(last.at, last.count + 1, last.version or new)
            else:
                found.append(Rollout(at, 1, new))
        return found

    async def run(self, program: Program) -> None:
        """Renew the answers, until cancelled. The broker must be open."""
        self._program, self._broker = program, program.broker
        async with asyncio.TaskGroup() as group:
            for name, renew in (
                ("leftovers", self._find_leftovers),
                ("processors", self._ask_in_turn),
                ("parked messages", self._look_in_turn),
                ("doctor", self._examine),
            ):
                group.create_task(self._again_and_again(renew), name=name)

    async def _again_and_again(self, renew: Callable[[], Coroutine[Any, Any, timedelta]]) -> None:
        while True:
            pause = BEAT
            if self._is_viewed("") and self._program.broker.connected:
                with suppress(SchedulerError):  # the picture tells if the broker is away
                    pause = await renew()
            await asyncio.sleep(pause.total_seconds())

    async def _find_leftovers(self) -> timedelta:
        self._picture.leave(await self._program.installation.leftovers())
        return LEFTOVERS_EVERY

    async def _examine(self) -> timedelta:
        if not self._is_viewed(DOCTOR):
            return BEAT
        self.findings = self._clock.now(), await self._program.doctor.examine()
        self._picture.version += 1
        return EXAMINE_EVERY

    # Processors

    async def _ask_in_turn(self) -> timedelta:
        is_detailed = self._is_viewed(RUNNING) or self._is_viewed(PROCESSORS)
        asked_at = self.running[0] if self.running else None
        if asked_at and not is_detailed and self._clock.now() - asked_at < ASK_SELDOM:
            return BEAT
        if self.running is None:
            self._refusal = await self._find_refusal()
        if self._refusal:
            return ASK_SELDOM
        await self.ask(self._loops() if self._is_viewed(PROCESSORS) else {})
        return ASK_EVERY

    async def _find_refusal(self) -> str:
        """Return why this user may not ask: a refused question would look like silence."""
        broker, names = self._program.broker, self._program.app.names
        self._alarm = await broker.alarm()
        if not self._alarm:
            try:
                await broker.publish(Message(), exchange=names.control, routing_key=names.presence)
            except AccessRefused as error:
                return str(error)
            except (Unroutable, Rejected):  # no queue is bound for this
                pass
        return ""

    async def ask(self, loops: Mapping[LoopId, int], *, stack_of: str | None = None) -> Running:
        """Ask all processors for their runs, and for their tokens of these loops.

        In an alarm, none is asked, and the answers from before stay.

        Raises:
            BrokerUnavailable: an alarm blocks the connection, or the broker does not respond.
        """
        async with unless_stalled(self._program.broker):
            answers = await self._program.roll_call.ask_all(loops)
            running = await self._program.cancellation.running(stack_of=stack_of)
        now = self._clock.now()
        silent = 0 if answers.alarm else answers.silent
        self._silent, self._silent_before = silent, self._silent
        self._alarm = answers.alarm
        self._picture.version += 1
        if answers.alarm:
            return running
        self.running, self.roll = (now, running), roll_of(answers, running, now)
        for name, holdings in answers.said.items():
            self.seen[name] = SeenProcessor(holdings.about, now)
        recent = [item for item in self.seen.items() if now - item[1].last_at < KNOWN_FOR]
        self.seen = dict(sorted(recent, key=lambda item: item[1].last_at)[-MOST_KNOWN:])
        return running

    # Parked messages

    @asynccontextmanager
    async def taking(self) -> AsyncGenerator[None]:
        """Take parked messages inside the block: no look holds any of them."""
        self._taking += 1
        try:
            async with self._looking:
                pass  # it has ended
            yield
        finally:
            self._taking -= 1

    async def _look_in_turn(self) -> timedelta:
        for task in ("", *with_failed_queues(self._program.app, self._picture.leftovers)):
            if self._is_viewed(f"{FAILED}?{task}"):
                known, changed = self.looks.get(task), self._parked.get(task) != self._counts()
                is_old = known and self._clock.now() - known.at >= LOOK_SELDOM
                if known is None or (changed and (known.count < MANY or is_old)):
                    await self.look(task)
                    return LOOK_EVERY
        return BEAT

    async def look(self, task: str = "") -> None:
        """Read the parked messages of a task, or of all, unless an action takes some."""
        async with self._looking:
            if self._taking:
                return
            counts, app = self._counts(), self._program.app
            which = Selection(task=task or None)
            tasks = [task] if task else with_failed_queues(app, self._picture.leftovers)
            look = await look_at(self._program.failed, tasks, which, self._clock.now())
            self.looks[task], self._parked[task] = look, counts
        self._picture.version += 1

    def _counts(self) -> object:
        """Return what changes when a message is parked, replayed or deleted."""
        known = parked_in_each(self._program.app, self._picture)
        return known, sum(group.count for group in self._picture.parked.values())


def failed_queues_in(app: App, picture: Picture) -> list[str]:
    """Return all queues of parked messages."""
    tasks = with_failed_queues(app, picture.leftovers)
    return [*map(app.names.failed_queue, tasks), app.names.failed]


def parked_in_each(app: App, picture: Picture) -> list[int]:
    """Count the parked messages in each failed queue of an app, as far as they are known."""
    queues = failed_queues_in(app, picture)
    return [depth.ready for queue in queues if (depth := picture.depths.get(queue)) is not None]


def parked_in(app: App, picture: Picture) -> int | None:
    """Count the parked messages of an app; None: unknown yet."""
    known = parked_in_each(app, picture)
    return sum(known) if known else None
