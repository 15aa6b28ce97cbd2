"""Call the roll: processors ask each other about their tokens, and answer, over one stream.

Questions and answers travel over one stream, which every processor follows: a broadcast that needs
no right to declare. The broker knows the number of expected answers: each processor consumes from
an empty queue. All is JSON; the correlation ID names the question, the app ID the sender, and the
type the kind. Unknown message types are ignored. `scheduler.queues.running` asks for runs; epochs
that began, and the processors' tokens of these loops, travel in these:

- a question has ``loops``: task, key and epoch of each. Its receivers know these epochs;
- an answer has the ``version`` of its package, and ``since_ms``, when its processor began;
  ``known``, the epochs that are later than those asked with; and ``hands``: of those loops, task,
  key, epoch, seq and attempt of each unacked token, 1 if it is the first of its epoch, and 1 if its
  run has begun.

A processor that leaves says so; so one that answered an earlier question, and not this one, is
missing.
"""

import asyncio
import json
import os
import socket
import uuid
from collections import defaultdict
from collections.abc import Callable, Collection, Coroutine, Generator, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import islice
from typing import Any, ClassVar, Generic, NamedTuple, Protocol, Self, TypeVar

from pydantic import ConfigDict, TypeAdapter

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker, Consumer, Delivery
from scheduler.errors import BrokerError, MessageError, QueueNotFound
from scheduler.protocol.epochs import Answer, Position
from scheduler.protocol.messages import WIRE, Message, Moment, parsed
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.queues.about import NOTHING_TOLD, About, about_this
from scheduler.queues.concurrency import Gathering
from scheduler.timing.moments import optional_milliseconds

TIMEOUT, SOON = timedelta(seconds=2), timedelta(seconds=0.5)
QUESTION, ANSWER, GOODBYE = "scheduler.question", "scheduler.answer", "scheduler.goodbye"
RUNNING_QUESTION, RUNNING_ANSWER = "scheduler.running.question", "scheduler.running.answer"
QUESTIONS, ANSWERS = (QUESTION, RUNNING_QUESTION), (ANSWER, RUNNING_ANSWER)
ASKED_AT_ONCE = 2_000
"""Loops in one question: some 100 kB."""

REMEMBERED = 1_000  # killed processors do not say that they left

A = TypeVar("A")


class Attendance:
    """Track the processors that answer roll calls."""

    def __init__(self) -> None:
        self._questions = 0
        self._last_answered: dict[str, int] = {}

    def hear(self, message: Message) -> None:
        """Note a question, an answer, or a goodbye."""
        name = message.app_id or ""
        if message.type in QUESTIONS:
            self._questions += 1
        elif message.type in (*ANSWERS, GOODBYE):
            self._last_answered.pop(name, None)
        if message.type in ANSWERS:
            self._last_answered[name] = self._questions
            if len(self._last_answered) > REMEMBERED:
                del self._last_answered[next(iter(self._last_answered))]

    def missing(self, answered: Collection[str], many: int) -> list[str]:
        """Return the `many` processors that answered most recently, but not now; more if some
        answered at the same time.
        """
        others = {name: at for name, at in self._last_answered.items() if name not in answered}
        latest = sorted(others.values(), reverse=True)[:many]
        return sorted(name for name, at in others.items() if latest and at >= latest[-1])


@dataclass(frozen=True, slots=True)
class Turnout(Generic[A]):
    """Hold the answers to a question to all processors.

    Attributes:
        expected: how many processors there are.
        said: the answers.
        missing: the processors that answered an earlier question, but not this one.
        alarm: why the broker blocks publishers, so that no processor was asked; empty: it did not.
    """

    expected: int
    said: Mapping[str, A]
    missing: Collection[str] = field(default=(), kw_only=True)
    alarm: str = field(default="", kw_only=True)

    @property
    def silent(self) -> int:
        """Return how many have not answered."""
        return max(self.expected - len(self.said), 0)

    @property
    def complete(self) -> bool:
        """Return whether all have answered: only then is no token unreported."""
        return not self.silent

    @property
    def unheard(self) -> list[str]:
        """Return the processors that have not answered, if known."""
        if len(self.missing) > self.silent > 0:
            return [f"{self.silent} of {', '.join(sorted(self.missing))}"]
        unknown = range(len(self.missing), self.silent)
        names = [
            *sorted(self.missing),
            *(f"an unknown processor ({number + 1})" for number in unknown),
        ]
        return names[: self.silent]

    @property
    def silence(self) -> str:
        """Name the processors that have not answered, in words; empty: all have."""
        if self.complete:
            return ""
        if self.alarm:
            return f"processors were not asked: the broker blocks publishers ({self.alarm})"
        return f"no answer from {', '.join(self.unheard)}"


T = TypeVar("T", bound=Turnout[Any])


@dataclass(slots=True)
class Question(Generic[A]):
    """Collect the answers to a question."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    said: dict[str, A] = field(default_factory=dict[str, A])
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, processor: str, answer: A) -> None:
        self.said[processor] = answer
        self._news.set()

    async def until(self, enough: Callable[[], bool], timeout: timedelta) -> None:
        """Wait until enough answers came, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                while not enough():
                    self._news.clear()
                    await self._news.wait()


class InHand(NamedTuple):
    """Describe an unacked token of a processor.

    Attributes:
        running: whether its run has begun, and is not settled.
    """

    position: Position
    running: bool = False


class Hands(Protocol):
    """Report a processor's state."""

    def learn(self, loop: LoopId, epoch: int) -> None:
        """Note that this epoch of a loop has begun."""
        ...

    def known(self, loop: LoopId) -> int:
        """Return the greatest epoch of a loop that it knows."""
        ...

    def in_hand(self, loop: LoopId) -> Sequence[InHand]:
        """Return the loop's tokens that it holds."""
        ...


@dataclass(frozen=True, slots=True)
class Holdings:
    """Hold the answer of a processor.

    Attributes:
        hands: its tokens of the loops of the question.
        known: the epochs that are later than those of the question.
    """

    about: About = NOTHING_TOLD
    hands: Mapping[LoopId, Sequence[InHand]] = field(default_factory=dict[LoopId, Sequence[InHand]])
    known: Mapping[LoopId, int] = field(default_factory=dict[LoopId, int])


@dataclass(frozen=True, slots=True)
class Answers(Turnout[Holdings]):
    """Hold the answers to a roll call."""

    @property
    def known(self) -> Mapping[LoopId, int]:
        """Return the later epochs that processors know."""
        known = dict[LoopId, int]()
        for holdings in self.said.values():
            for loop, epoch in holdings.known.items():
                known[loop] = max(epoch, known.get(loop, 0))
        return known

    def tokens(self, loop: LoopId) -> Iterator[InHand]:
        """Return the unacked tokens of a loop."""
        for holdings in self.said.values():
            yield from holdings.hands.get(loop, ())

    def of(self, loop: LoopId, epoch: int) -> Mapping[str, Answer | None]:
        """Return the answer of each processor for a loop, as the rules of epochs see it."""
        said = {
            name: _answer(epoch, holdings.hands.get(loop, ()))
            for name, holdings in self.said.items()
        }
        return {**said, **dict.fromkeys(self.unheard)}


def _answer(epoch: int, hands: Sequence[InHand]) -> Answer:
    # A processor that answers has learned the epoch from the question.
    running = [token.position.epoch for token in hands if token.running]
    return Answer(epoch, min(running, default=None))


@dataclass(frozen=True, slots=True)
class _LoopsQuestion:
    loops: list[tuple[str, str, int]]


@dataclass(frozen=True, slots=True)
class _LoopsAnswer:
    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    hands: list[tuple[str, str, int, int, int, int, int]]
    known: list[tuple[str, str, int]] = field(default_factory=list[tuple[str, str, int]])
    version: str = ""
    since: Moment | None = None


_ASKED, _ANSWERED = TypeAdapter(_LoopsQuestion), TypeAdapter(_LoopsAnswer)


class RollCall:
    """Take part in roll calls, for one process.

    Args:
        hands: the state to report, as a processor; None: it only asks.
        since: when the processor began.

    Attributes:
        processor: its name in messages.
    """

    def __init__(
        self,
        broker: Broker,
        names: Names,
        hands: Hands | None = None,
        since: datetime | None = None,
    ) -> None:
        self._broker = broker
        self._names = names
        self._is_member = hands is not None
        self._about = NOTHING_TOLD if hands is None else about_this(since)
        self.processor = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._handlers: dict[str, Callable[[Message], None]] = {}
        self._questions: dict[str, Question[Any]] = {}
        # Questions while another one is answered are asked as one.
        self._gathering = Gathering(self._ask_together)
        self._answering: set[asyncio.Task[None]] = set()
        self._following: Consumer | None = None
        self._presence: Consumer | None = None
        self._listeners = 0
        self._changing = asyncio.Lock()
        self._attendance = Attendance()
        self._has_read_back = False
        self.on_answer(ANSWER, _holdings_in)
        if hands is not None:
            self.on(QUESTION, lambda message: self._learn(hands, message))

    @property
    def present(self) -> bool:
        """Return whether it hears every question, and all who ask expect its answer."""
        consumers = (self._following, self._presence)
        return all(consumer is not None and consumer.active for consumer in consumers)

    async def __aenter__(self) -> Self:
        """Listen inside the block; blocks may overlap.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        async with self._changing:
            if self._following is None:
                self._following = await self._broker.follow(self._names.roll_call, self._hear)
            if self._presence is None and self._is_member:
                # An expected processor must hear the question already.
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
            # A processor that is not counted must not answer: it would count in place of a silent
            # one.
            following, self._following = self._following, None
            await following.cancel()
            presence, self._presence = self._presence, None
            if presence is not None:
                await presence.cancel()
            for answering in self._answering:
                answering.cancel()
            if presence is not None:
                with suppress(BrokerError):  # then it counts as missing for a while
                    await self.say(GOODBYE, "", {}, timeout=SOON)

    def on(self, kind: str, handler: Callable[[Message], None]) -> None:
        """Register a handler for messages of this type; it may raise `MessageError` for invalid
        ones.
        """
        self._handlers[kind] = handler

    def on_answer(self, kind: str, read: Callable[[Message], Any]) -> None:
        """Register a type of messages as answers to the questions that they name.

        Args:
            read: decodes an answer; may raise `MessageError` for invalid ones.
        """

        def note(message: Message) -> None:
            if (question := self._questions.get(message.correlation_id or "")) is not None:
                question.note(message.app_id or "", read(message))

        self.on(kind, note)

    def answer(self, kind: str, question: str, answering: Coroutine[Any, Any, Any]) -> None:
        """Answer in a separate task, for as long as this listens.

        Args:
            question: its ID.
            answering: returns the body.
        """

        async def answer() -> None:
            body = await answering
            with suppress(BrokerError):  # the caller knows that an answer is missing
                await self.say(kind, question, body)

        task = asyncio.create_task(answer(), name="roll call")
        self._answering.add(task)
        task.add_done_callback(self._answering.discard)

    async def say(
        self,
        kind: str,
        question: str,
        body: Mapping[str, Any],
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        """Publish a message to all.

        Args:
            question: the ID of the question that it is, or answers.
        """
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

    @contextmanager
    def asking(self, question: Question[A]) -> Generator[Question[A]]:
        """Collect the answers to a question inside the block."""
        self._questions[question.id] = question
        try:
            yield question
        finally:
            del self._questions[question.id]

    async def ask(self, kind: str, body: Mapping[str, Any], turnout: type[T]) -> T:
        """Ask all processors.

        An observer reads over the same connection, so it publishes nothing while the broker would
        block it for that.

        Args:
            kind: the type of the question.
            turnout: holds its answers.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        async with self:
            if not self._is_member and (alarm := await self._broker.alarm()):
                return turnout(await self._count(), {}, alarm=alarm)
            answers = await self._ask_once(kind, body, turnout, SOON)
            # A processor may have left without an answer, and is not expected any more.
            if answers.silent:
                answers = await self._ask_once(kind, body, turnout, TIMEOUT - SOON)
            if not answers.silent:
                return answers
            return replace(answers, missing=await self._missing(answers))

    async def _ask_once(
        self, kind: str, body: Mapping[str, Any], turnout: type[T], timeout: timedelta
    ) -> T:
        if not (expected := await self._count()):
            return turnout(0, {})
        with (
            self.asking(Question[Any]()) as question,
            suppress(BrokerError),  # not asked is not answered
        ):
            await self.say(kind, question.id, body)
            await question.until(lambda: len(question.said) >= expected, timeout)
        # A new processor may have answered in place of a silent one.
        return turnout(max(expected, await self._count()), question.said)

    async def _missing(self, answers: Turnout[Any]) -> list[str]:
        if not self._has_read_back:
            self._has_read_back = True  # once: many may wait for the same one
            attendance = Attendance()
            with suppress(BrokerError):
                async with aclosing(self._broker.read(self._names.roll_call)) as messages:
                    async for message in messages:
                        attendance.hear(message)
                self._attendance = attendance
        return self._attendance.missing(answers.said, answers.silent)

    async def _count(self) -> int:
        present = await self._broker.depth(self._names.presence)
        if present is None:  # then the processors are unknown
            raise QueueNotFound(
                f"There is no {self._names.presence!r} in {self._broker.address}: processors "
                "cannot be asked. Run `scheduler seed` first."
            )
        return present.consumers

    def _hear(self, message: Message) -> None:
        self._attendance.hear(message)
        handler = self._handlers.get(message.type or "")
        if handler is not None:
            with suppress(MessageError):  # from another application
                handler(message)

    async def ask_all(self, loops: Mapping[LoopId, int]) -> Answers:
        """Announce the epochs of these loops to all processors, and return their answers.

        They may have answered for other loops, too.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        return await self._gathering.ask(loops)

    async def _ask_together(self, asked: Sequence[Mapping[LoopId, int]]) -> Answers:
        epochs = defaultdict[LoopId, int](int)
        for loops in asked:
            for loop, epoch in loops.items():
                epochs[loop] = max(epoch, epochs[loop])
        body = {"loops": [(*loop, epoch) for loop, epoch in sorted(epochs.items())]}
        return await self.ask(QUESTION, body, Answers)

    def _learn(self, hands: Hands, message: Message) -> None:
        asked = parsed(_ASKED, message.body, "question")
        loops = {LoopId(task, key): epoch for task, key, epoch in asked.loops}
        for loop, epoch in loops.items():
            hands.learn(loop, epoch)
        if self.present:  # else the caller does not expect it
            self.answer(ANSWER, message.correlation_id or "", self._answered(hands, loops))

    async def _answered(self, hands: Hands, loops: Mapping[LoopId, int]) -> Mapping[str, Any]:
        later = {loop: hands.known(loop) for loop in loops}
        return {
            "version": self._about.version,
            "since_ms": optional_milliseconds(self._about.since),
            "known": [(*loop, epoch) for loop, epoch in later.items() if epoch > loops[loop]],
            "hands": [_wire(loop, token) for loop in loops for token in hands.in_hand(loop)],
        }


def in_parts(epochs: Mapping[LoopId, int]) -> Iterator[Mapping[LoopId, int]]:
    """Split a roll call, so that no question is too large."""
    loops = iter(epochs.items())
    while some := dict(islice(loops, ASKED_AT_ONCE)):
        yield some


def _wire(loop: LoopId, token: InHand) -> tuple[str | int, ...]:
    epoch, seq, attempt, joined, _ = token.position
    return *loop, epoch, seq, attempt, int(not joined), int(token.running)


def _holdings_in(message: Message) -> Holdings:
    said = parsed(_ANSWERED, message.body, "answer")
    hands = defaultdict[LoopId, list[InHand]](list)
    for task, key, epoch, seq, attempt, first, running in said.hands:
        position = Position(epoch, seq, attempt, joined=not first)
        hands[LoopId(task, key)].append(InHand(position, bool(running)))
    known = {LoopId(task, key): epoch for task, key, epoch in said.known}
    return Holdings(About(said.version, said.since), hands, known)


def _ignore(delivery: Delivery) -> None:
    """Ignore a message: the queue stays empty."""
