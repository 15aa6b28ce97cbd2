"""A broker with processors that are asked, in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path

import pytest

from scheduler.brokers.memory.server import MemoryServer
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names, topology
from scheduler.queues.roll_call import QUESTION, Answers, InHand, RollCall
from scheduler.queues.unsent import SqliteStore
from scheduler.timing.moments import LoopClock
from tests.faulty import FaultyBroker

NAMES = Names("test")


@dataclass
class Hand:
    """What a processor has in hand, and knows."""

    has: Mapping[LoopId, Sequence[InHand]] = field(default_factory=dict[LoopId, Sequence[InHand]])
    epochs: dict[LoopId, int] = field(default_factory=dict[LoopId, int])

    def learn(self, loop: LoopId, epoch: int) -> None:
        self.epochs[loop] = max(epoch, self.known(loop))

    def known(self, loop: LoopId) -> int:
        return self.epochs.get(loop, 0)

    def in_hand(self, loop: LoopId) -> Sequence[InHand]:
        return self.has.get(loop, ())


class Room:
    """A broker with processors that have something in hand, and somebody who asks."""

    def __init__(self, server: MemoryServer, opened: AsyncExitStack) -> None:
        self._server = server
        self._opened = opened

    async def open(self) -> None:
        self.broker = await self.connect()
        await self.broker.declare(topology("test", []))
        asking = RollCall(self.broker, NAMES)
        self.asking = await self._opened.enter_async_context(asking)

    async def connect(self) -> FaultyBroker:
        return await self._opened.enter_async_context(FaultyBroker(self._server))

    async def seat(self, *hands: Hand) -> list[RollCall]:
        """Have a processor for each of these hands."""
        return [
            await self._opened.enter_async_context(RollCall(await self.connect(), NAMES, hand))
            for hand in hands
        ]

    async def ask(self, *loops: LoopId) -> Answers:
        return await self.asking.ask_all(dict.fromkeys(loops, 5))

    async def present(self) -> int:
        depth = await self.broker.depth(NAMES.presence)
        assert depth is not None
        return depth.consumers

    async def all_said(self) -> list[Message]:
        """All questions and answers so far."""
        return [message async for message in self.broker.read(NAMES.roll_call)]

    async def said(self) -> list[str]:
        """Their kinds."""
        return [message.type or "" for message in await self.all_said()]

    async def ask_by_hand(self, epochs: Mapping[LoopId, int]) -> None:
        """Ask without counting who is there, and leave time for answers."""
        body = {"loops": [(*loop, epoch) for loop, epoch in epochs.items()]}
        await self.say(json.dumps(body).encode(), type=QUESTION, correlation_id="by hand")
        await asyncio.sleep(1)

    async def say_nonsense(self, kinds: Iterable[str], bodies: Iterable[bytes]) -> None:
        """Each of these bodies as each of these kinds."""
        for kind, body in product(kinds, bodies):
            await self.say(body, type=f"scheduler.{kind}", correlation_id="x", app_id="y")

    async def say(self, body: bytes, **properties: str) -> None:
        message = Message(body, **properties)  # pyright: ignore[reportArgumentType]
        await self.broker.publish(message, exchange=NAMES.control, routing_key=NAMES.roll_call)


@pytest.fixture
async def broker(clock: LoopClock) -> AsyncIterator[FaultyBroker]:
    """One that can be made to fail, with what all loops share."""
    async with FaultyBroker(MemoryServer(clock)) as broker:
        await broker.declare(topology("test", []))
        yield broker


@pytest.fixture
async def room(clock: LoopClock) -> AsyncIterator[Room]:
    async with AsyncExitStack() as opened:
        room = Room(MemoryServer(clock), opened)
        await room.open()
        yield room


def took() -> float:
    return asyncio.get_running_loop().time()


@pytest.fixture
def store(tmp_path: Path) -> SqliteStore:
    """The store of messages that a program could not send."""
    return SqliteStore(str(tmp_path / "unsent.db"), "shop")
