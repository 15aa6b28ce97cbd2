"""Asking all processors at once, on the embedded broker and in virtual time."""

import asyncio
import json
from collections.abc import AsyncIterator, Collection
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names, topology
from scheduler.queues.roll_call import LINGERING, Answers, Claims, RollCall, Settled
from scheduler.timing.clock import LoopClock

NAMES = Names("test")
A, B, C = LoopId("a"), LoopId("a", "key"), LoopId("c")
PATIENCE = timedelta(seconds=2)


@dataclass
class Hand:
    """What a processor has, and has put."""

    has: Claims = field(default_factory=dict[LoopId, tuple[int, int]])
    runs: Claims = field(default_factory=dict[LoopId, tuple[int, int]])
    out: Collection[LoopId] = ()
    stopping: bool = False
    put: Settled = field(default_factory=dict[LoopId, tuple[str, tuple[int, int]]])

    def in_hand(self) -> Claims:
        return self.has

    def running(self) -> Claims:
        return self.runs

    def refused(self) -> Collection[LoopId]:
        return self.out

    def settled(self) -> Settled:
        return self.put


class Room:
    """A broker with processors that have something in hand, and somebody who asks."""

    def __init__(self, server: MemoryServer, opened: AsyncExitStack) -> None:
        self._server = server
        self._opened = opened

    async def open(self) -> None:
        self.broker = await self._opened.enter_async_context(MemoryBroker(self._server))
        await self.broker.declare(topology("test", [], []))
        asking = RollCall(self.broker, NAMES)
        self.asking = await self._opened.enter_async_context(asking)

    async def seat(self, *hands: Hand) -> None:
        """Have a processor for each of these hands."""
        for hand in hands:
            broker = await self._opened.enter_async_context(MemoryBroker(self._server))
            await self._opened.enter_async_context(RollCall(broker, NAMES, hand))

    async def ask(self, *loops: LoopId, expected: int) -> Answers:
        return await self.asking.ask(loops, expected=expected, timeout=PATIENCE)

    async def said(self) -> list[str]:
        """The kinds of all questions and answers so far."""
        return [message.type or "" async for message in self.broker.read(NAMES.roll_call)]

    async def say(self, body: bytes, **properties: str) -> None:
        message = Message(body, **properties)  # type: ignore[arg-type]
        await self.broker.publish(message, exchange=NAMES.control, routing_key=NAMES.roll_call)


@pytest.fixture
async def room(clock: LoopClock) -> AsyncIterator[Room]:
    async with AsyncExitStack() as opened:
        room = Room(MemoryServer(clock), opened)
        await room.open()
        yield room


@pytest.mark.parametrize(
    ("hands", "claims"),
    [
        ([Hand()], {}),
        ([Hand({A: (3, 0)})], {A: (3, 0)}),
        ([Hand({A: (3, 0)}), Hand({B: (0, 2)})], {A: (3, 0), B: (0, 2)}),
        ([Hand({A: (3, 0)}), Hand({A: (3, 1)}), Hand({A: (2, 9)})], {A: (3, 1)}),
        ([Hand({C: (1, 0)})], {}),
    ],
)
async def test_who_has_what_is_gathered_from_all(
    room: Room, hands: list[Hand], claims: Claims
) -> None:
    await room.seat(*hands)
    assert await room.ask(A, B, expected=len(hands)) == Answers(claims, complete=True)


async def test_what_runs_and_what_is_refused_is_told(room: Room) -> None:
    hands = Hand({A: (3, 0), B: (7, 0)}, runs={A: (3, 0)}, out=[B, C]), Hand({A: (4, 0)})

    await room.seat(*hands)
    answers = await room.ask(A, B, expected=2)
    assert answers.claims == {A: (4, 0), B: (7, 0)}
    told = {loop: {each[1:] for each in holders} for loop, holders in answers.holders.items()}
    assert told == {A: {((3, 0), True), ((4, 0), False)}, B: {((7, 0), False)}}
    assert answers.refused == {B}


async def test_what_was_put_last_is_told_by_generation(room: Room) -> None:
    hands = Hand(put={A: ("g1", (3, 0))}), Hand(put={A: ("g1", (4, 0)), B: ("g2", (1, 0))})

    await room.seat(*hands)
    answers = await room.ask(A, B, expected=2)
    assert answers.settled == {(A, "g1"): (4, 0), (B, "g2"): (1, 0)}


async def test_an_answer_is_awaited_no_longer_than_it_takes(room: Room) -> None:
    await room.seat(Hand(), Hand())
    began = asyncio.get_running_loop().time()
    await room.ask(A, expected=2)
    assert asyncio.get_running_loop().time() - began < LINGERING + 0.02


async def test_where_one_does_not_answer_in_time_the_answers_are_incomplete(room: Room) -> None:
    await room.seat(Hand({A: (1, 0)}), Hand())
    began = asyncio.get_running_loop().time()
    answers = await room.ask(A, expected=3)
    assert answers == Answers({A: (1, 0)}, complete=False)
    assert asyncio.get_running_loop().time() - began == pytest.approx(2)


async def test_a_processor_that_is_leaving_is_heard_and_not_counted(room: Room) -> None:
    await room.seat(Hand({B: (2, 0)}), Hand({A: (1, 0)}, stopping=True))
    assert await room.ask(A, B, expected=1) == Answers({A: (1, 0), B: (2, 0)}, complete=True)
    assert await room.ask(A, expected=2) == Answers({A: (1, 0)}, complete=False)


async def test_one_who_only_asks_does_not_answer(room: Room) -> None:
    assert await room.ask(A, expected=1) == Answers({}, complete=False)
    assert await room.said() == ["scheduler.question"]


async def test_questions_at_the_same_time_are_asked_as_one(room: Room) -> None:
    await room.seat(Hand({A: (1, 0), B: (2, 0)}))
    a, b, c = await asyncio.gather(*(room.ask(loop, expected=1) for loop in (A, B, C)))
    assert await room.said() == ["scheduler.question", "scheduler.answer"]
    assert (a.claims, b.claims, c.claims) == ({A: (1, 0)}, {B: (2, 0)}, {})
    await room.ask(A, expected=1)
    assert len(await room.said()) == 4


async def test_what_nobody_understands_disturbs_nobody(room: Room) -> None:
    await room.seat(Hand({A: (1, 0)}))
    asking = asyncio.create_task(room.ask(A, expected=1))
    await asyncio.sleep(0.001)
    for kind in ("scheduler.question", "scheduler.answer", "other"):
        for body in (
            b"\xff",
            b"{}",
            b"[]",
            b'{"loops": 7}',
            json.dumps({"loops": [["a"]]}).encode(),
        ):
            await room.say(body, type=kind, correlation_id="x")
    assert await asking == Answers({A: (1, 0)}, complete=True)


async def test_an_answer_to_another_question_is_none_to_this(room: Room) -> None:
    answer = {"processor": "p", "claims": [[["a", ""], [9, 0]]]}

    asking = asyncio.create_task(room.ask(A, expected=1))
    await asyncio.sleep(0.1)
    await room.say(json.dumps(answer).encode(), type="scheduler.answer", correlation_id="old")
    assert await asking == Answers({}, complete=False)
