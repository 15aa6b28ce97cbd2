"""The roll call: telling all processors at once which epochs began, and asking what they have.

They are asked over the stream of `scheduler.queues.assembly`:

- a question has ``loops``: task, key and epoch of each. Who hears it knows these epochs;
- an answer has ``processor``; the ``version`` of its package, and ``since_ms``, when it began
  (those before 0.1 lack both); ``known``, the epochs that are later than those asked with; and
  ``hands``: of those loops, task, key, epoch, seq and attempt of each token in hand, 1 if it is the
  first of its epoch, and 1 if its run has begun.
"""

import asyncio
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from scheduler.brokers.contract import Broker
from scheduler.errors import BrokerError
from scheduler.protocol.epochs import Answer, Position
from scheduler.protocol.messages import Message, parsed
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.queues.about import NOTHING_TOLD, About, about_this
from scheduler.queues.assembly import TIMEOUT, Assembly, Question, Turnout
from scheduler.queues.attendance import ANSWER, QUESTION
from scheduler.timing.moments import LATEST_MS, optional_milliseconds, optional_moment

TOGETHER = 0.01  # seconds in which questions are gathered, to be asked as one


class InHand(NamedTuple):
    """A token that a processor has in hand.

    Attributes:
        running: whether its run has begun, and is not settled.
    """

    position: Position
    running: bool = False


class Hands(Protocol):
    """What a processor can tell of itself."""

    def learn(self, loop: LoopId, epoch: int) -> None:
        """Take note that this epoch of a loop has begun."""
        ...

    def known(self, loop: LoopId) -> int:
        """The greatest epoch of a loop that it knows of."""
        ...

    def in_hand(self, loop: LoopId) -> Sequence[InHand]:
        """The tokens of a loop that it has."""
        ...


Hand = dict[LoopId, list[InHand]]


@dataclass(frozen=True, slots=True)
class Answers(Turnout[Mapping[LoopId, Sequence[InHand]]]):
    """What a roll call brought: of each processor, what it has in hand.

    Attributes:
        known: the later epochs that they know of.
        about: what each has told of itself.
    """

    known: Mapping[LoopId, int] = field(default_factory=dict[LoopId, int])
    about: Mapping[str, About] = field(default_factory=dict[str, About])

    def tokens(self, loop: LoopId) -> Iterator[InHand]:
        """The tokens of a loop that are in hand."""
        for hands in self.said.values():
            yield from hands.get(loop, ())

    def of(self, loop: LoopId, epoch: int) -> Mapping[str, Answer | None]:
        """What each processor has answered, as the rules of epochs see it."""
        said = {name: _answer(epoch, hands.get(loop, ())) for name, hands in self.said.items()}
        return {**said, **dict.fromkeys(self.unheard)}


def _answer(epoch: int, hands: Sequence[InHand]) -> Answer:
    # Whoever answers has learned the epoch from the question.
    running = [token.position.epoch for token in hands if token.running]
    return Answer(epoch, min(running, default=None))


@dataclass(slots=True)
class _Question(Question[Hand]):
    """One roll call that is going on, and what it has brought so far."""

    loops: dict[LoopId, int] = field(default_factory=dict[LoopId, int])
    known: dict[LoopId, int] = field(default_factory=dict[LoopId, int])
    about: dict[str, About] = field(default_factory=dict[str, About])
    asked: asyncio.Task[None] | None = None
    waiting: int = 0


class RollCall(Assembly):
    """Asks, and answers, on behalf of one process.

    Args:
        hands: for whom it answers; None: for nobody, it only asks.
        since: when that began.
    """

    def __init__(
        self,
        broker: Broker,
        names: Names,
        hands: Hands | None = None,
        since: datetime | None = None,
    ) -> None:
        super().__init__(broker, names, is_member=hands is not None)
        self._hands = hands
        self._about = NOTHING_TOLD if hands is None else about_this(since)
        self._gathering: _Question | None = None
        self._asking: dict[str, _Question] = {}
        self.on(ANSWER, self._note)
        if hands is not None:
            self.on(QUESTION, self._learn)

    async def ask_all(
        self, loops: Mapping[LoopId, int], *, timeout: timedelta = TIMEOUT
    ) -> Answers:
        """Have all processors know the epochs of these loops, and tell what they have of them.

        Args:
            timeout: how long to wait for their answers.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        return await self.hear_all(
            lambda expected, span: self.ask(loops, expected=expected, timeout=span), timeout
        )

    async def ask(
        self, loops: Mapping[LoopId, int], *, expected: int, timeout: timedelta
    ) -> Answers:
        """The same, of so many processors."""
        if not expected:
            return Answers(0, {})
        question = self._gather(loops)
        question.waiting += 1
        try:
            await question.until(lambda: len(question.said) >= expected, timeout)
        finally:
            question.waiting -= 1
            if not question.waiting:
                self._forget(question)
        hands = {name: _among(said, loops) for name, said in question.said.items()}
        return Answers(expected, hands, _among(question.known, loops), question.about)

    def _gather(self, loops: Mapping[LoopId, int]) -> _Question:
        question = self._gathering
        if question is None:
            question = self._gathering = _Question()
            self._asking[question.id] = question
            question.asked = asyncio.create_task(self._send(question), name="roll call")
        for loop, epoch in loops.items():
            question.loops[loop] = max(epoch, question.loops.get(loop, 0))
        return question

    def _forget(self, question: _Question) -> None:
        self._asking.pop(question.id, None)
        if question is self._gathering:
            self._gathering = None
        if question.asked is not None:
            question.asked.cancel()

    async def _send(self, question: _Question) -> None:
        await asyncio.sleep(TOGETHER)
        self._gathering = None
        loops = [(*loop, epoch) for loop, epoch in sorted(question.loops.items())]
        with suppress(BrokerError):  # not asked is not answered
            await self.say(QUESTION, question.id, {"loops": loops})

    def _learn(self, message: Message) -> None:
        assert self._hands is not None
        asked = parsed(_Asked, message.body, "question")
        for task, key, epoch in asked.loops:
            self._hands.learn(LoopId(task, key), epoch)
        self.answer(self._answer(self._hands, message.correlation_id or "", asked))

    def _note(self, message: Message) -> None:
        if (question := self._asking.get(message.correlation_id or "")) is not None:
            _note(question, parsed(_Answered, message.body, "answer"))

    async def _answer(self, hands: Hands, name: str, asked: "_Asked") -> None:
        if not self.present:
            return  # who asked does not expect it
        loops = {LoopId(task, key): epoch for task, key, epoch in asked.loops}
        later = {loop: hands.known(loop) for loop in loops}
        answer = {
            "processor": self.processor,
            "version": self._about.version,
            "since_ms": optional_milliseconds(self._about.since),
            "known": [(*loop, epoch) for loop, epoch in later.items() if epoch > loops[loop]],
            "hands": [_wire(loop, token) for loop in loops for token in hands.in_hand(loop)],
        }
        with suppress(BrokerError):  # whoever asked knows that an answer is missing
            await self.say(ANSWER, name, answer)


def _among(said: Mapping[LoopId, Any], loops: Collection[LoopId]) -> dict[LoopId, Any]:
    return {loop: each for loop, each in said.items() if loop in loops}


def _wire(loop: LoopId, token: InHand) -> tuple[str | int, ...]:
    epoch, seq, attempt, joined = token.position
    return *loop, epoch, seq, attempt, int(not joined), int(token.running)


def _note(question: _Question, answer: "_Answered") -> None:
    hands = question.said.get(answer.processor, {})
    for task, key, epoch, seq, attempt, first, running in answer.hands:
        position = Position(epoch, seq, attempt, joined=not first)
        hands.setdefault(LoopId(task, key), []).append(InHand(position, bool(running)))
    for task, key, epoch in answer.known:
        loop = LoopId(task, key)
        question.known[loop] = max(epoch, question.known.get(loop, 0))
    question.about[answer.processor] = About(answer.version, optional_moment(answer.since_ms))
    question.note(answer.processor, hands)


class _Asked(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    loops: list[tuple[str, str, int]]


class _Answered(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    processor: str
    version: str = ""
    since_ms: int | None = Field(default=None, ge=0, le=LATEST_MS)
    known: list[tuple[str, str, int]] = []
    hands: list[tuple[str, str, int, int, int, int, int]]
