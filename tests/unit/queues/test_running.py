"""Asking what runs, and ending it, on the embedded broker and in virtual time."""

import asyncio
import json
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import QueueNotFound, Unconfirmed
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, topology
from scheduler.queues.roll_call import RollCall
from scheduler.queues.running import MOST_TOLD, Demand, Inquiry, Reply, RunningRun, What
from scheduler.timing.clock import LoopClock
from tests.faulty import FaultyBroker
from tests.unit.queues.test_roll_call import Hand

NAMES = Names("test")
NOON = datetime(2026, 6, 15, 12, tzinfo=UTC)
RUN = RunningRun(
    id="report#7",
    task="report",
    loop="report",
    key="",
    seq=7,
    attempt=2,
    started_at=NOON,
    deadline=NOON + timedelta(minutes=10),
    executor="thread",
    processor="",
)
CALL = replace(RUN, id="5c1e", loop=None, seq=None, progress=0.5, text="half", cancelled_by="ada")
ADA = Demand("ada@desk", escalate=True)
SECOND = timedelta(seconds=1)


@dataclass
class Runs:
    """The runs of a processor."""

    has: Sequence[RunningRun] = ()
    demands: list[tuple[str, Demand]] = field(default_factory=list[tuple[str, Demand]])
    ends: list[Callable[[str], None]] = field(default_factory=list[Callable[[str], None]])

    async def told(self, processor: str, stack_of: str | None) -> Sequence[RunningRun]:
        return [replace(run, stack="here" if run.id == stack_of else None) for run in self.has]

    def cancel(self, run: str, demand: Demand, ended: Callable[[str], None]) -> bool:
        self.demands.append((run, demand))
        self.ends.append(ended)
        return run in [each.id for each in self.has]


class Room:
    """A broker, processors that run something, and somebody who asks."""

    def __init__(self, server: MemoryServer, opened: AsyncExitStack) -> None:
        self._server = server
        self._opened = opened

    async def open(self) -> None:
        self.broker = await self.connect()
        await self.broker.declare(topology("test", []))
        self.inquiry = Inquiry(RollCall(self.broker, NAMES))

    async def connect(self) -> FaultyBroker:
        return await self._opened.enter_async_context(FaultyBroker(self._server))

    async def seat(self, runs: Runs, broker: FaultyBroker | None = None) -> str:
        """Have a processor that has these runs; returns its name."""
        assembly = RollCall(broker or await self.connect(), NAMES, Hand())
        Inquiry(assembly, runs)
        await self._opened.enter_async_context(assembly)
        return assembly.processor

    async def said(self) -> list[Message]:
        return [message async for message in self.broker.read(NAMES.roll_call)]


@asynccontextmanager
async def _room(clock: LoopClock) -> AsyncGenerator[Room]:
    async with AsyncExitStack() as opened:
        room = Room(MemoryServer(clock), opened)
        await room.open()
        yield room


@pytest.fixture
async def room(clock: LoopClock) -> AsyncGenerator[Room]:
    async with _room(clock) as room:
        yield room


def took() -> float:
    return asyncio.get_running_loop().time()


async def test_what_runs_is_told_by_all(room: Room) -> None:
    one, other = await room.seat(Runs([RUN])), await room.seat(Runs([CALL]))
    running = await room.inquiry.ask()
    found = [replace(RUN, processor=one), replace(CALL, processor=other)]
    assert running.runs == sorted(found, key=lambda run: run.id)
    assert (running.complete, running.unheard, running.more) == (True, [], 0)
    assert took() < 0.02


async def test_a_stack_is_told_of_the_run_that_it_was_asked_of(room: Room) -> None:
    await room.seat(Runs([RUN, CALL]))
    told = {run.id: run.stack for run in (await room.inquiry.ask(stack_of=RUN.id)).runs}
    assert told == {RUN.id: "here", CALL.id: None}


async def test_where_there_is_no_processor_nobody_is_asked(room: Room) -> None:
    running = await room.inquiry.ask()
    assert (running.complete, running.runs) == (True, [])
    assert await room.said() == []


async def test_before_anything_is_seeded_that_is_said(room: Room) -> None:
    await room.broker.delete(NAMES.presence)
    with pytest.raises(QueueNotFound, match="processors cannot be asked"):
        await room.inquiry.ask()


async def test_who_does_not_answer_is_named_if_it_has_answered_before(room: Room) -> None:
    mute = await room.connect()
    silent = await room.seat(Runs([RUN]), mute)
    await room.seat(Runs([CALL]))
    assert (await room.inquiry.ask()).unheard == []
    mute.on("publish", NAMES.control).hangs()
    running = await room.inquiry.ask()
    assert ([run.id for run in running.runs], running.unheard) == ([CALL.id], [silent])


async def test_a_question_that_could_not_be_asked_is_answered_by_nobody(room: Room) -> None:
    await room.seat(Runs([RUN]))
    room.broker.on("publish", NAMES.control).fails(Unconfirmed())
    assert (await room.inquiry.ask()).silent == 1


async def test_of_too_many_runs_some_are_told_of_and_the_others_counted(room: Room) -> None:
    many = [replace(RUN, id=f"report#{seq}", seq=seq) for seq in range(MOST_TOLD + 2)]
    await room.seat(Runs(many))
    running = await room.inquiry.ask(stack_of=many[-1].id)
    assert (len(running.runs), running.more) == (MOST_TOLD, 2)
    assert [run.stack for run in running.runs if run.id == many[-1].id] == ["here"]


async def test_a_deadline_that_no_message_can_tell_is_told_as_the_last_that_can(
    room: Room,
) -> None:
    await room.seat(Runs([replace(RUN, deadline=datetime(9999, 1, 1, tzinfo=UTC))]))
    (run,) = (await room.inquiry.ask()).runs
    assert run.deadline == datetime(9000, 1, 1, tzinfo=UTC)


# Ending one


async def test_who_has_the_run_is_asked_and_tells_how_it_ended(room: Room) -> None:
    has, has_not = Runs([RUN]), Runs([RUN])
    processor = await room.seat(has)
    await room.seat(has_not)
    asking = asyncio.create_task(room.inquiry.cancel(RUN.id, ADA, [processor], timeout=10 * SECOND))
    await asyncio.sleep(1)
    assert (has.demands, has_not.demands, asking.done()) == ([(RUN.id, ADA)], [], False)
    (end,) = has.ends
    end("cancelled")
    assert await asking == {processor: Reply(What.ENDED, "cancelled")}
    assert took() < 1.1


async def test_where_it_has_ended_meanwhile_nobody_is_waited_for(room: Room) -> None:
    processor = await room.seat(Runs())
    replies = await room.inquiry.cancel(RUN.id, ADA, [processor], timeout=10 * SECOND)
    assert (replies, took() < 0.1) == ({processor: Reply(What.GONE)}, True)


async def test_a_run_that_does_not_end_is_waited_for_so_long(room: Room) -> None:
    processor = await room.seat(Runs([RUN]))
    replies = await room.inquiry.cancel(RUN.id, ADA, [processor], timeout=3 * SECOND)
    assert replies == {processor: Reply(What.CANCELLING)}
    assert took() == pytest.approx(3)


async def test_that_it_is_being_ended_is_no_news_once_it_has_ended(room: Room) -> None:
    processor = await room.seat(has := Runs([RUN]))
    asking = asyncio.create_task(
        room.inquiry.cancel(RUN.id, ADA, [processor, "other"], timeout=3 * SECOND)
    )
    await asyncio.sleep(1)
    has.ends[0]("cancelled")
    await asyncio.sleep(1)
    *_, cancelling, _ = await room.said()
    await room.broker.publish(
        cancelling, exchange=NAMES.control, routing_key=NAMES.roll_call, timeout=SECOND
    )
    assert await asking == {processor: Reply(What.ENDED, "cancelled")}


async def test_a_demand_that_could_not_be_sent_is_an_error(room: Room) -> None:
    processor = await room.seat(Runs([RUN]))
    room.broker.on("publish", NAMES.control).fails(Unconfirmed())
    with pytest.raises(Unconfirmed):
        await room.inquiry.cancel(RUN.id, ADA, [processor], timeout=SECOND)


# What travels


async def test_what_nobody_understands_disturbs_nobody(room: Room) -> None:
    processor = await room.seat(has := Runs([RUN]))
    asking = asyncio.create_task(room.inquiry.ask())
    await asyncio.sleep(0)
    kinds = ("running.question", "running.answer", "cancel.question", "cancel.answer", "other")
    for kind in kinds:
        for body in (b"\xff", b"[]", b'{"stack_of": 7}', b'{"runs": [{}]}', b'{"run": "x"}'):
            message = Message(body, type=f"scheduler.{kind}", correlation_id="x", app_id="y")
            await room.broker.publish(
                message, exchange=NAMES.control, routing_key=NAMES.roll_call, timeout=SECOND
            )
    assert [run.processor for run in (await asking).runs] == [processor]
    assert has.demands == []


async def test_what_a_question_and_an_answer_hold(room: Room) -> None:
    processor = await room.seat(has := Runs([CALL]))
    await room.inquiry.ask()
    asking = room.inquiry.cancel(CALL.id, ADA, [processor], timeout=SECOND)
    cancelling = asyncio.create_task(asking)
    await asyncio.sleep(0.5)
    has.ends[0]("escalated")
    await cancelling
    question, answer, demand, doing, done = await room.said()
    assert (question.type, json.loads(question.body)) == (
        *("scheduler.running.question", {"stack_of": None}),
    )
    assert answer.app_id == processor
    assert json.loads(answer.body) == {
        "runs": [
            {
                "id": "5c1e",
                "task": "report",
                "key": "",
                "attempt": 2,
                "started_at_ms": 1781524800000,
                "deadline_ms": 1781525400000,
                "executor": "thread",
                "cancelled_by": "ada",
                "progress": 0.5,
                "text": "half",
            }
        ],
        "more": 0,
    }
    assert json.loads(demand.body) == {
        "run": "5c1e",
        "processors": [processor],
        "by": "ada@desk",
        "escalate": True,
    }
    assert json.loads(doing.body) == {"what": "cancelling", "ending": None}
    assert json.loads(done.body) == {"what": "ended", "ending": "escalated"}
    assert {demand.correlation_id} == {doing.correlation_id, done.correlation_id}
