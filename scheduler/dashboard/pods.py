"""Processors, as they told of themselves when the roll was called."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from scheduler.protocol.tokens import LoopId
from scheduler.queues.about import NOTHING_TOLD, About
from scheduler.queues.roll_call import Answers, InHand
from scheduler.queues.running import Running, RunningRun


@dataclass(frozen=True, slots=True)
class Pod:
    """One processor.

    Attributes:
        runs: what it runs, oldest first.
        waiting: the tokens that it has, and which wait for their turn.
        has_answered: whether it has told of this at all.
    """

    name: str
    about: About = NOTHING_TOLD
    runs: Sequence[RunningRun] = ()
    waiting: Sequence[tuple[LoopId, InHand]] = ()
    has_answered: bool = True


@dataclass(frozen=True, slots=True)
class Roll:
    """All processors, as of a moment."""

    at: datetime
    pods: Sequence[Pod]

    @property
    def versions(self) -> Sequence[str]:
        """The versions of the package that there are."""
        return sorted({pod.about.version or "unknown" for pod in self.pods if pod.has_answered})


def roll_of(answers: Answers, running: Running, at: datetime) -> Roll:
    """What a roll call, and asking what runs, have brought."""
    names = sorted({*answers.said, *running.said})
    pods = [_pod(name, answers, running) for name in names]
    return Roll(at, [*pods, *(Pod(name, has_answered=False) for name in answers.unheard)])


def _pod(name: str, answers: Answers, running: Running) -> Pod:
    told, hands = running.said.get(name), answers.said.get(name, {})
    return Pod(
        name,
        answers.about.get(name, NOTHING_TOLD),
        sorted(told.runs, key=lambda run: run.started_at) if told else (),
        [(loop, token) for loop, tokens in hands.items() for token in tokens if not token.running],
    )
