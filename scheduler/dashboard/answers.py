"""Group parked messages by task and error, as of a look at them.

A look holds them unacked for a moment, so it is only done on request.
"""

from collections.abc import Iterable, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field
from datetime import datetime

from scheduler.errors import NotAllSeen
from scheduler.protocol.tokens import LoopId
from scheduler.queues.about import NOTHING_TOLD, About
from scheduler.queues.failed import FailedQueues, ParkedMessage, Selection
from scheduler.queues.roll_call import Answers, InHand
from scheduler.queues.running import Running, RunningRun

MOST_OF_A_GROUP, MOST_KEPT = 200, 1_000
MOST_LOOKED_AT = 10_000


@dataclass(frozen=True)
class ShownMessages(Selection):
    """Select parked messages as they were shown: none that was parked since, unless it is named."""

    until: datetime | None = None

    def has(self, parked: ParkedMessage) -> bool:
        is_later = self.until and parked.parked_at and parked.parked_at > self.until
        return not is_later and Selection.has(self, parked)


@dataclass(slots=True)
class AnswerGroup:
    """Group the messages of one task that were parked for one kind of error.

    Attributes:
        error: of the latest of them.
        messages: the first of them.
        recent: the number of failures in each of the last 24 hours, the oldest first.
    """

    task: str
    reason: str
    kind: str
    error: str
    count: int = 0
    first_at: datetime | None = None
    last_at: datetime | None = None
    messages: list[ParkedMessage] = field(default_factory=list[ParkedMessage])
    recent: Sequence[int] = ()

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


def description_of(which: Selection) -> str:
    if which.ids is not None:
        return next(iter(which.ids)) if len(which.ids) == 1 else f"{len(which.ids)} messages"
    return "all that is parked" + "".join(f", {each}" for each in words_of(which))


def words_of(which: Selection) -> list[str]:
    """Describe the selection of messages."""
    filters = {"task": which.task, "reason": which.reason, "error": which.kind}
    return [f"{name}: {value}" for name, value in filters.items() if value is not None]


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
    report, hands = running.said.get(name), answers.said.get(name, {})
    return Pod(
        name,
        answers.about.get(name, NOTHING_TOLD),
        sorted(report.runs, key=lambda run: run.started_at) if report else (),
        [(loop, token) for loop, tokens in hands.items() for token in tokens if not token.running],
    )
