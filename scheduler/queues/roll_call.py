"""The roll call: asking all processors at once what they have, and had, in hand.

Question and answers travel over one stream, which every processor follows: a broadcast that needs
no right to declare. Both are JSON, and their correlation id names the question:

- a question has ``loops``;
- an answer has ``processor``; ``leaving``, whether that one is about to end; and of those loops
  ``claims``, the seq and attempt of each token that it has in hand; ``running``, the same of those
  whose run has begun; ``refused``, those whose slot does not take what it puts; and ``settled``,
  the generation, seq and attempt of the last token that it has put for each.
"""

import asyncio
import json
import uuid
from collections.abc import Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from scheduler.brokers.contract import Broker, Consumer
from scheduler.errors import BrokerError, MessageError
from scheduler.protocol.messages import Message, parsed_json, validated
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.tasks.tasks import SUPERVISION

TIMEOUT = timedelta(seconds=2)
QUESTION, ANSWER = "scheduler.question", "scheduler.answer"
TOGETHER = 0.01  # seconds in which questions are gathered, to be asked as one
# One that is about to end is not expected to answer, but may have something in hand.
LINGERING = 0.05

Progress = tuple[int, int]
Claims = Mapping[LoopId, Progress]
Settled = Mapping[LoopId, tuple[str, Progress]]


class Hands(Protocol):
    """What a processor can tell of itself."""

    @property
    def stopping(self) -> bool:
        """Whether it takes no more messages, and ends with those in hand."""
        ...

    def in_hand(self) -> Claims:
        """The tokens it has, and how far each has come."""
        ...

    def running(self) -> Claims:
        """Those of them whose run has begun, and is not settled."""
        ...

    def refused(self) -> Collection[LoopId]:
        """The loops whose slot takes no token from it, though none waits there."""
        ...

    def settled(self) -> Settled:
        """The last token that it has put for each loop: its generation, and how far it had come."""
        ...


class Holder(NamedTuple):
    """Who has a token in hand: how far that has come, and whether its run has begun."""

    processor: str
    progress: Progress
    running: bool


@dataclass(frozen=True, slots=True)
class Answers:
    """What a roll call brought.

    Attributes:
        claims: the tokens in hand, over all processors that answered.
        holders: who has them, by loop.
        refused: the loops whose slot does not take the token that is in hand.
        settled: the tokens that were put last, as (loop, generation): progress.
        complete: whether as many answered as were expected; only then does silence mean that
            nobody has a token.
    """

    claims: Claims
    complete: bool
    holders: Mapping[LoopId, Sequence[Holder]] = field(
        default_factory=dict[LoopId, Sequence[Holder]], compare=False
    )
    refused: Collection[LoopId] = frozenset()
    settled: Mapping[tuple[LoopId, str], Progress] = field(
        default_factory=dict[tuple[LoopId, str], Progress]
    )


@dataclass(slots=True)
class _Question:
    """One roll call that is going on, and what it has brought so far."""

    loops: set[LoopId]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    holders: dict[LoopId, list[Holder]] = field(default_factory=dict[LoopId, list[Holder]])
    refused: set[LoopId] = field(default_factory=set[LoopId])
    settled: dict[tuple[LoopId, str], Progress] = field(
        default_factory=dict[tuple[LoopId, str], Progress]
    )
    processors: set[str] = field(default_factory=set[str])
    news: asyncio.Event = field(default_factory=asyncio.Event)
    asked: asyncio.Task[None] | None = None
    waiting: int = 0


class RollCall:
    """Asks, and answers, on behalf of one process.

    Args:
        hands: for whom it answers; None: for nobody, it only asks.

    Attributes:
        processor: its name in what it answers.
    """

    def __init__(self, broker: Broker, names: Names, hands: Hands | None = None) -> None:
        self._broker = broker
        self._names = names
        self._hands = hands
        self.processor = uuid.uuid4().hex
        self._gathering: _Question | None = None
        self._asking: dict[str, _Question] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._consumer: Consumer | None = None
        self._listeners = 0
        self._changing = asyncio.Lock()

    async def __aenter__(self) -> "RollCall":
        """Listen inside the block; blocks may overlap.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        async with self._changing:
            if self._consumer is None:
                self._consumer = await self._broker.follow(self._names.roll_call, self._hear)
            self._listeners += 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._listeners -= 1
        async with self._changing:
            if self._consumer is None or self._listeners:
                return
            consumer, self._consumer = self._consumer, None
            await consumer.cancel()
            for answering in self._answering:
                answering.cancel()

    async def ask_all(self, loops: Collection[LoopId]) -> Answers:
        """Who has a token of these loops in hand, of all processors that supervise?

        Raises:
            QueueNotFound: nothing was seeded.
        """
        supervised = await self._broker.depth(self._names.processor_queue(SUPERVISION.task))
        expected = supervised.consumers if supervised else 0
        answers = await self.ask(loops, expected=expected, timeout=TIMEOUT)
        # Where nobody consumes, somebody may be stopping, or unable to.
        return answers if expected else replace(answers, complete=False)

    async def ask(self, loops: Collection[LoopId], *, expected: int, timeout: timedelta) -> Answers:
        """Who has a token of these loops in hand?

        Args:
            expected: how many processors there are.
            timeout: how long to wait for their answers.
        """
        question = self._gather(loops)
        question.waiting += 1
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                while len(question.processors) < expected:
                    question.news.clear()
                    await question.news.wait()
            await asyncio.sleep(LINGERING)
        except TimeoutError:
            pass
        finally:
            question.waiting -= 1
            if not question.waiting:
                self._asking.pop(question.id, None)
        about = set(loops)
        holders = {loop: tuple(who) for loop, who in question.holders.items() if loop in about}
        return Answers(
            {loop: max(holder.progress for holder in who) for loop, who in holders.items()},
            complete=len(question.processors) >= expected,
            holders=holders,
            refused=question.refused & about,
            settled={each: put for each, put in question.settled.items() if each[0] in about},
        )

    def _gather(self, loops: Collection[LoopId]) -> _Question:
        question = self._gathering
        if question is None:
            question = self._gathering = _Question(set())
            self._asking[question.id] = question
            question.asked = asyncio.create_task(self._send(question), name="roll call")
        question.loops.update(loops)
        return question

    async def _send(self, question: _Question) -> None:
        await asyncio.sleep(TOGETHER)
        self._gathering = None
        with suppress(BrokerError):  # not asked is not answered
            await self._publish(QUESTION, question.id, {"loops": sorted(question.loops)})

    def _hear(self, message: Message) -> None:
        name = message.correlation_id or ""
        with suppress(MessageError):  # not ours
            if message.type == QUESTION and self._hands is not None:
                asked = validated(_Asked, parsed_json(message.body), "question")
                answering = asyncio.create_task(self._answer(name, asked), name="roll call")
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)
            elif message.type == ANSWER and (question := self._asking.get(name)) is not None:
                _note(question, validated(_Answered, parsed_json(message.body), "answer"))

    async def _answer(self, name: str, asked: "_Asked") -> None:
        assert self._hands is not None
        loops = {LoopId(task, key) for task, key in asked.loops}
        in_hand, running = self._hands.in_hand(), self._hands.running()
        settled = self._hands.settled()
        answer = {
            "processor": self.processor,
            "leaving": self._hands.stopping,
            "claims": [(loop, in_hand[loop]) for loop in loops & in_hand.keys()],
            "running": [(loop, running[loop]) for loop in loops & running.keys()],
            "refused": sorted(loops.intersection(self._hands.refused())),
            "settled": [(loop, *settled[loop]) for loop in loops & settled.keys()],
        }
        with suppress(BrokerError):  # whoever asked knows that an answer is missing
            await self._publish(ANSWER, name, answer)

    async def _publish(self, kind: str, question: str, body: dict[str, Any]) -> None:
        await self._broker.publish(
            Message(
                json.dumps(body).encode(),
                content_type="application/json",
                type=kind,
                correlation_id=question,
            ),
            exchange=self._names.control,
            routing_key=self._names.roll_call,
        )


def _note(question: _Question, answer: "_Answered") -> None:
    if not answer.leaving:
        question.processors.add(answer.processor)
    begun = {LoopId(task, key) for (task, key), _ in answer.running}
    for (task, key), progress in answer.claims:
        loop = LoopId(task, key)
        holder = Holder(answer.processor, progress, loop in begun)
        question.holders.setdefault(loop, []).append(holder)
    question.refused.update(LoopId(task, key) for task, key in answer.refused)
    for (task, key), generation, progress in answer.settled:
        settling = LoopId(task, key), generation
        question.settled[settling] = max(progress, question.settled.get(settling, progress))
    question.news.set()


class _Asked(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    loops: list[tuple[str, str]]


class _Answered(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    processor: str
    leaving: bool = False
    claims: list[tuple[tuple[str, str], Progress]]
    running: list[tuple[tuple[str, str], Progress]] = []
    refused: list[tuple[str, str]] = []
    settled: list[tuple[tuple[str, str], str, Progress]] = []
