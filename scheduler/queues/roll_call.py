"""The roll call: telling all processors at once which epochs began, and asking what they have.

Question and answers travel over one stream, which every processor follows: a broadcast that needs
no right to declare. How many are to answer, the broker tells: each of them consumes from a queue
that nothing is ever put into. Both messages are JSON, and their correlation id names the question:

- a question has ``loops``: task, key and epoch of each. Who hears it knows these epochs;
- an answer has ``processor``; ``known``, the epochs that are later than those asked with; and
  ``hands``: of those loops, task, key, epoch, seq and attempt of each token in hand, 1 if it is the
  first of its epoch, 1 if its run has begun, and 1 if its slot does not take what comes after it.

Their app id names who asks, or answers. Whoever leaves says so; so who has answered a question
before, and not this one, is missing.
"""

import asyncio
import json
import os
import socket
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker, Consumer, Delivery
from scheduler.errors import BrokerError, MessageError, QueueNotFound
from scheduler.protocol.epochs import Answer, Position
from scheduler.protocol.messages import Message, parsed_json, validated
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.queues.attendance import ANSWER, GOODBYE, QUESTION, Attendance, attendance_of

TIMEOUT, SOON = timedelta(seconds=2), timedelta(seconds=0.5)
TOGETHER = 0.01  # seconds in which questions are gathered, to be asked as one


class InHand(NamedTuple):
    """A token that a processor has in hand.

    Attributes:
        running: whether its run has begun, and is not settled.
        refused: whether its slot does not take what comes after it, though none waits there.
    """

    position: Position
    running: bool = False
    refused: bool = False


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


@dataclass(frozen=True, slots=True)
class Answers:
    """What a roll call brought.

    Attributes:
        expected: how many processors there are.
        hands: what each of those that answered has in hand.
        known: the later epochs that they know of.
        missing: who has answered a question before, but not this one: of those that may be silent,
            who did so last.
    """

    expected: int
    hands: Mapping[str, Mapping[LoopId, Sequence[InHand]]]
    known: Mapping[LoopId, int] = field(default_factory=dict[LoopId, int])
    missing: Collection[str] = ()

    @property
    def silent(self) -> int:
        """How many have not answered."""
        return max(self.expected - len(self.hands), 0)

    @property
    def complete(self) -> bool:
        """Whether all have answered: only then does silence mean that nobody has a token."""
        return not self.silent

    @property
    def unheard(self) -> list[str]:
        """Who has not answered, as far as that can be told."""
        if len(self.missing) > self.silent > 0:
            return [f"{self.silent} of {', '.join(sorted(self.missing))}"]
        unknown = range(len(self.missing), self.silent)
        names = [*sorted(self.missing), *(f"an unknown one ({number})" for number in unknown)]
        return names[: self.silent]

    def tokens(self, loop: LoopId) -> Iterator[InHand]:
        """The tokens of a loop that are in hand."""
        for hands in self.hands.values():
            yield from hands.get(loop, ())

    def of(self, loop: LoopId, epoch: int) -> Mapping[str, Answer | None]:
        """What each processor has answered, as the rules of epochs see it."""
        said = {name: _answer(epoch, hands.get(loop, ())) for name, hands in self.hands.items()}
        return {**said, **dict.fromkeys(self.unheard)}


def _answer(epoch: int, hands: Sequence[InHand]) -> Answer:
    # Whoever answers has learned the epoch from the question.
    running = [token.position.epoch for token in hands if token.running]
    return Answer(epoch, min(running, default=None))


@dataclass(slots=True)
class _Question:
    """One roll call that is going on, and what it has brought so far."""

    loops: dict[LoopId, int]
    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    hands: dict[str, dict[LoopId, list[InHand]]] = field(
        default_factory=dict[str, dict[LoopId, list[InHand]]]
    )
    known: dict[LoopId, int] = field(default_factory=dict[LoopId, int])
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
        self.processor = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._gathering: _Question | None = None
        self._asking: dict[str, _Question] = {}
        self._answering: set[asyncio.Task[None]] = set()
        self._following: Consumer | None = None
        self._presence: Consumer | None = None
        self._listeners = 0
        self._changing = asyncio.Lock()
        self._attendance = Attendance()
        self._has_read_back = False

    @property
    def present(self) -> bool:
        """Whether it hears every question, and all who ask expect its answer."""
        consumers = (self._following, self._presence)
        return all(consumer is not None and consumer.active for consumer in consumers)

    async def __aenter__(self) -> "RollCall":
        """Listen inside the block; blocks may overlap.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        async with self._changing:
            if self._following is None:
                self._following = await self._broker.follow(self._names.roll_call, self._hear)
            if self._presence is None and self._hands is not None:
                # Who is counted must hear the question already.
                self._presence = await self._broker.consume(
                    self._names.presence, _ignore, prefetch=1
                )
            self._listeners += 1
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._listeners -= 1
        async with self._changing:
            if self._following is None or self._listeners:
                return
            # Who is not counted must not answer: it would be taken for one that is silent.
            following, self._following = self._following, None
            await following.cancel()
            presence, self._presence = self._presence, None
            if presence is not None:
                await presence.cancel()
            for answering in self._answering:
                answering.cancel()
            if presence is not None:
                with suppress(BrokerError):  # then it is taken for missing for a while
                    await self._publish(GOODBYE, "", {}, timeout=SOON)

    async def ask_all(
        self, loops: Mapping[LoopId, int], *, timeout: timedelta = TIMEOUT
    ) -> Answers:
        """Have all processors know the epochs of these loops, and tell what they have of them.

        Args:
            timeout: how long to wait for their answers.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        answers = await self._ask_once(loops, min(SOON, timeout))
        # Somebody may have left without an answer, who is not expected any more.
        rest = timeout - SOON
        if answers.silent and rest > timedelta(0):
            answers = await self._ask_once(loops, rest)
        if not answers.silent:
            return answers
        return replace(answers, missing=await self._missing(answers))

    async def _missing(self, answers: Answers) -> list[str]:
        if not self._has_read_back:
            self._has_read_back = True  # once: many may wait for the same one
            with suppress(BrokerError):
                self._attendance = await attendance_of(self._broker, self._names.roll_call)
        return self._attendance.missing(answers.hands, answers.silent)

    async def _ask_once(self, loops: Mapping[LoopId, int], timeout: timedelta) -> Answers:
        if not (expected := await self._count()):
            return Answers(0, {})
        answers = await self.ask(loops, expected=expected, timeout=timeout)
        # One that came meanwhile may have answered in place of one that is silent.
        return replace(answers, expected=max(answers.expected, await self._count()))

    async def ask(
        self, loops: Mapping[LoopId, int], *, expected: int, timeout: timedelta
    ) -> Answers:
        """The same, of so many processors."""
        question = self._gather(loops)
        question.waiting += 1
        try:
            async with asyncio.timeout(timeout.total_seconds()):
                while len(question.hands) < expected:
                    question.news.clear()
                    await question.news.wait()
        except TimeoutError:
            pass
        finally:
            question.waiting -= 1
            if not question.waiting:
                self._forget(question)
        hands = {name: _among(said, loops) for name, said in question.hands.items()}
        return Answers(expected, hands, _among(question.known, loops))

    async def _count(self) -> int:
        present = await self._broker.depth(self._names.presence)
        if present is None:  # then nobody knows who is there
            raise QueueNotFound(
                f"There is no {self._names.presence!r} in {self._broker.address}: processors "
                "cannot be asked. Run `scheduler seed` first."
            )
        return present.consumers

    def _gather(self, loops: Mapping[LoopId, int]) -> _Question:
        question = self._gathering
        if question is None:
            question = self._gathering = _Question({})
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
            await self._publish(QUESTION, question.id, {"loops": loops})

    def _hear(self, message: Message) -> None:
        self._attendance.hear(message)
        name = message.correlation_id or ""
        with suppress(MessageError):  # not ours
            if message.type == QUESTION and self._hands is not None:
                asked = validated(_Asked, parsed_json(message.body), "question")
                for task, key, epoch in asked.loops:
                    self._hands.learn(LoopId(task, key), epoch)
                answering = asyncio.create_task(self._answer(name, asked), name="roll call")
                self._answering.add(answering)
                answering.add_done_callback(self._answering.discard)
            elif message.type == ANSWER and (question := self._asking.get(name)) is not None:
                _note(question, validated(_Answered, parsed_json(message.body), "answer"))

    async def _answer(self, name: str, asked: "_Asked") -> None:
        assert self._hands is not None
        if not self.present:
            return  # who asked does not expect it
        loops = {LoopId(task, key): epoch for task, key, epoch in asked.loops}
        later = {loop: self._hands.known(loop) for loop in loops}
        answer = {
            "processor": self.processor,
            "known": [(*loop, epoch) for loop, epoch in later.items() if epoch > loops[loop]],
            "hands": [_wire(loop, token) for loop in loops for token in self._hands.in_hand(loop)],
        }
        with suppress(BrokerError):  # whoever asked knows that an answer is missing
            await self._publish(ANSWER, name, answer)

    async def _publish(
        self,
        kind: str,
        question: str,
        body: dict[str, Any],
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        await self._broker.publish(
            Message(
                json.dumps(body).encode(),
                content_type="application/json",
                type=kind,
                correlation_id=question,
                app_id=self.processor,
            ),
            exchange=self._names.control,
            routing_key=self._names.roll_call,
            timeout=timeout,
        )


def _ignore(delivery: Delivery) -> None:
    """Nothing is put there."""


def _among(said: Mapping[LoopId, Any], loops: Collection[LoopId]) -> dict[LoopId, Any]:
    return {loop: each for loop, each in said.items() if loop in loops}


def _wire(loop: LoopId, token: InHand) -> tuple[str | int, ...]:
    epoch, seq, attempt, joined = token.position
    flags = int(not joined), int(token.running), int(token.refused)
    return *loop, epoch, seq, attempt, *flags


def _note(question: _Question, answer: "_Answered") -> None:
    hands = question.hands.setdefault(answer.processor, {})
    for task, key, epoch, seq, attempt, first, running, refused in answer.hands:
        position = Position(epoch, seq, attempt, joined=not first)
        token = InHand(position, bool(running), bool(refused))
        hands.setdefault(LoopId(task, key), []).append(token)
    for task, key, epoch in answer.known:
        loop = LoopId(task, key)
        question.known[loop] = max(epoch, question.known.get(loop, 0))
    question.news.set()


class _Asked(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    loops: list[tuple[str, str, int]]


class _Answered(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    processor: str
    known: list[tuple[str, str, int]] = []
    hands: list[tuple[str, str, int, int, int, int, int, int]]
