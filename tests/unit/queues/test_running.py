"""Asking what runs, and ending it, on the embedded broker and in virtual time."""

import asyncio
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from scheduler.queues.running import GONE, MOST_TOLD, Demand, Inquiry, RunningRun
from tests.unit.queues.conftest import Hand, Room, took

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

    async def describe(self, processor: str, stack_of: str | None) -> Sequence[RunningRun]:
        return [replace(run, stack="here" if run.id == stack_of else None) for run in self.has]

    def cancel(self, run: str, demand: Demand, ended: Callable[[str], None]) -> bool:
        self.demands.append((run, demand))
        self.ends.append(ended)
        return run in [each.id for each in self.has]


@pytest.fixture
def inquiry(room: Room) -> Inquiry:
    return Inquiry(room.asking)


async def seat(room: Room, runs: Runs) -> str:
    """Have a processor that has these runs; return its name."""
    (processor,) = await room.seat(Hand())
    Inquiry(processor, runs)
    return processor.processor


async def test_all_processors_tell_what_they_run(room: Room, inquiry: Inquiry) -> None:
    endless = replace(RUN, deadline=datetime(9999, 1, 1, tzinfo=UTC))
    one, other = await seat(room, Runs([endless])), await seat(room, Runs([CALL]))
    running = await inquiry.ask(stack_of=RUN.id)
    latest = datetime(9001, 1, 1, tzinfo=UTC)  # that a message can have
    found = [
        replace(RUN, processor=one, stack="here", deadline=latest),
        replace(CALL, processor=other),
    ]
    assert running.runs == sorted(found, key=lambda run: run.id)
    assert (running.complete, running.unheard, running.more) == (True, [], 0)
    assert took() < 0.02


async def test_too_many_runs_are_listed_in_part_and_counted(room: Room, inquiry: Inquiry) -> None:
    many = [replace(RUN, id=f"report#{seq}", seq=seq) for seq in range(MOST_TOLD + 2)]
    await seat(room, Runs(many))
    running = await inquiry.ask(stack_of=many[-1].id)
    assert (len(running.runs), running.more) == (MOST_TOLD, 2)
    assert [run.stack for run in running.runs if run.id == many[-1].id] == ["here"]


async def test_the_processor_of_a_run_cancels_it(room: Room, inquiry: Inquiry) -> None:
    has, has_not = Runs([RUN]), Runs([RUN])
    processor = await seat(room, has)
    await seat(room, has_not)
    asking = asyncio.create_task(inquiry.cancel(RUN.id, ADA, [processor], timeout=10 * SECOND))
    await asyncio.sleep(1)
    assert (has.demands, has_not.demands, asking.done()) == ([(RUN.id, ADA)], [], False)
    (end,) = has.ends
    end("cancelled")
    assert await asking == {processor: "cancelled"}
    assert took() < 1.1
    assert await inquiry.cancel("x#1", ADA, [processor], timeout=3 * SECOND) == {processor: GONE}
    assert took() < 1.2
    assert await inquiry.cancel(RUN.id, ADA, [processor], timeout=3 * SECOND) == {}
    assert took() == pytest.approx(4, abs=0.2)  # it was waited for so long


async def test_messages_that_cannot_be_read_are_ignored(room: Room, inquiry: Inquiry) -> None:
    processor = await seat(room, has := Runs([RUN]))
    asking = asyncio.create_task(inquiry.ask())
    await asyncio.sleep(0)
    kinds = ("running.question", "running.answer", "cancel.question", "cancel.answer", "other")
    bodies = (b"\xff", b"[]", b'{"stack_of": 7}', b'{"runs": [{}]}', b'{"run": "x"}')
    await room.say_nonsense(kinds, bodies)
    assert [run.processor for run in (await asking).runs] == [processor]
    assert has.demands == []


async def test_the_members_of_questions_and_answers(room: Room, inquiry: Inquiry) -> None:
    processor = await seat(room, has := Runs([CALL]))
    await inquiry.ask()
    asking = inquiry.cancel(CALL.id, ADA, [processor], timeout=SECOND)
    cancelling = asyncio.create_task(asking)
    await asyncio.sleep(0.5)
    has.ends[0]("escalated")
    await cancelling
    question, answer, demand, done = await room.all_said()
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
    assert json.loads(done.body) == {"ending": "escalated"}
    assert demand.correlation_id == done.correlation_id
