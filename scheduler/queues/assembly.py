"""The processors of a namespace, assembled to be asked: who is there, and who has answered.

Questions and answers travel over one stream, which every processor follows: a broadcast that needs
no right to declare. How many are to answer, the broker tells: each of them consumes from a queue
that nothing is ever put into. All is JSON; the correlation id names the question, the app id who
asks, or answers, and the type of what. Whoever does not know a type takes no notice of it.

Whoever leaves says so; so who has answered a question before, and not this one, is missing.
"""

import asyncio
import json
import os
import socket
import uuid
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, Generic, Self, TypeVar

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker, Consumer, Delivery
from scheduler.errors import BrokerError, MessageError, QueueNotFound
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names
from scheduler.queues.attendance import GOODBYE, Attendance, attendance_of

TIMEOUT, SOON = timedelta(seconds=2), timedelta(seconds=0.5)

A = TypeVar("A")


@dataclass(frozen=True, slots=True)
class Turnout(Generic[A]):
    """What a question to all processors brought.

    Attributes:
        expected: how many processors there are.
        said: what each of those said that answered.
        missing: who has answered a question before, but not this one: of those that may be silent,
            who did so last.
    """

    expected: int
    said: Mapping[str, A]
    missing: Collection[str] = field(default=(), kw_only=True)

    @property
    def silent(self) -> int:
        """How many have not answered."""
        return max(self.expected - len(self.said), 0)

    @property
    def complete(self) -> bool:
        """Whether all have answered: only then does silence mean that nobody has a thing."""
        return not self.silent

    @property
    def unheard(self) -> list[str]:
        """Who has not answered, as far as that can be told."""
        if len(self.missing) > self.silent > 0:
            return [f"{self.silent} of {', '.join(sorted(self.missing))}"]
        unknown = range(len(self.missing), self.silent)
        names = [*sorted(self.missing), *(f"an unknown one ({number})" for number in unknown)]
        return names[: self.silent]


T = TypeVar("T", bound=Turnout[Any])
Ask = Callable[[int, timedelta], Awaitable[T]]
"""Asks so many processors, and waits so long for their answers."""


@dataclass(slots=True)
class Question(Generic[A]):
    """One that is being answered, and what has been said so far."""

    id: str = field(default_factory=lambda: uuid.uuid4().hex)
    said: dict[str, A] = field(default_factory=dict[str, A])
    _news: asyncio.Event = field(default_factory=asyncio.Event)

    def note(self, processor: str, answer: A) -> None:
        """Take note of what one has said."""
        self.said[processor] = answer
        self._news.set()

    async def until(self, enough: Callable[[], bool], timeout: timedelta) -> None:
        """Wait until enough was said, or the time is over."""
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout.total_seconds()):
                while not enough():
                    self._news.clear()
                    await self._news.wait()


class Assembly:
    """One process's place among those who ask each other.

    Args:
        is_member: whether it is counted among those who answer; else it only asks.

    Attributes:
        processor: its name in what it says.
    """

    def __init__(self, broker: Broker, names: Names, *, is_member: bool) -> None:
        self._broker = broker
        self._names = names
        self._is_member = is_member
        self.processor = f"{socket.gethostname()}:{os.getpid()}:{uuid.uuid4().hex[:6]}"
        self._handlers: dict[str, Callable[[Message], None]] = {}
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

    async def __aenter__(self) -> Self:
        """Listen inside the block; blocks may overlap.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        async with self._changing:
            if self._following is None:
                self._following = await self._broker.follow(self._names.roll_call, self._hear)
            if self._presence is None and self._is_member:
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
                    await self.say(GOODBYE, "", {}, timeout=SOON)

    def on(self, kind: str, handler: Callable[[Message], None]) -> None:
        """Have messages of this type handled; what is no such message may raise `MessageError`."""
        self._handlers[kind] = handler

    def answer(self, answering: Coroutine[Any, Any, None]) -> None:
        """Answer in a task of its own, for as long as this listens."""
        task = asyncio.create_task(answering, name="roll call")
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
        """Say something to all.

        Args:
            question: the id of the question that it is, or answers.
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

    async def hear_all(self, ask: Ask[T], timeout: timedelta) -> T:
        """Ask so that all answer who are there.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        answers = await self._hear_once(ask, min(SOON, timeout))
        # Somebody may have left without an answer, who is not expected any more.
        rest = timeout - SOON
        if answers.silent and rest > timedelta(0):
            answers = await self._hear_once(ask, rest)
        if not answers.silent:
            return answers
        return replace(answers, missing=await self._missing(answers))

    async def _hear_once(self, ask: Ask[T], timeout: timedelta) -> T:
        answers = await ask(expected := await self._count(), timeout)
        # One that came meanwhile may have answered in place of one that is silent.
        now = await self._count() if expected else 0
        return replace(answers, expected=max(expected, now))

    async def _missing(self, answers: Turnout[Any]) -> list[str]:
        if not self._has_read_back:
            self._has_read_back = True  # once: many may wait for the same one
            with suppress(BrokerError):
                self._attendance = await attendance_of(self._broker, self._names.roll_call)
        return self._attendance.missing(answers.said, answers.silent)

    async def _count(self) -> int:
        present = await self._broker.depth(self._names.presence)
        if present is None:  # then nobody knows who is there
            raise QueueNotFound(
                f"There is no {self._names.presence!r} in {self._broker.address}: processors "
                "cannot be asked. Run `scheduler seed` first."
            )
        return present.consumers

    def _hear(self, message: Message) -> None:
        self._attendance.hear(message)
        handler = self._handlers.get(message.type or "")
        if handler is not None:
            with suppress(MessageError):  # not ours
                handler(message)


def _ignore(delivery: Delivery) -> None:
    """Nothing is put there."""
