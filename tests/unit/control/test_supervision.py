"""What becomes of tokens that are lost, doubled or in the way, in virtual time."""

import asyncio
import itertools
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from scheduler import Context, Scheduler
from scheduler.brokers.contract import DEFAULT_QUIET
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.control.recovery import CONSUMER_TIMEOUT, GUARD_GRACE
from scheduler.control.status import Where
from scheduler.control.supervision import LOOKED_AT_IN_A_ROUND, Memory
from scheduler.errors import AccessRefused, BrokerUnavailable, QueueNotFound, Rejected
from scheduler.events import CensusTaken, LoopReported, RunStarted, SupervisionDelayed
from scheduler.processor.processor import Processor
from scheduler.program import processor
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, State, Verb
from scheduler.protocol.topology import Topology
from scheduler.tasks.tasks import SUPERVISION
from scheduler.testing import recording
from tests.stage import Inspecting, NotAllowed, Stage, new_app, of, seconds_of, staged

TASK = LoopId("task")
ROUND = 15.0
TWO_ROUNDS = 2 * ROUND + 2  # with the time for a roll call each


class Mute(Inspecting):
    """The connection of a processor whose answers to roll calls get lost, until it speaks."""

    speaks = False

    async def inspect(self, message: Message, exchange: str, routing_key: str) -> None:
        if message.type == "scheduler.answer" and not self.speaks:
            raise BrokerUnavailable


def counting(every: str = "10m", **options: Any) -> tuple[Scheduler, list[Any]]:
    """An app with a loop that hands on how often it ran; and what each run was handed."""
    app, carried = new_app(), list[Any]()

    @app.periodic(every=every, **options)
    async def task(ctx: Context) -> None:
        carried.append((ctx.seq, ctx.carried))
        ctx.carry((ctx.carried or 0) + 1)

    return app, carried


async def run_once(stage: Stage) -> None:
    """Have the loop run, so that its token is no longer a new one."""
    await stage.verbs.trigger(stage.app.loop("task"))
    await asyncio.sleep(1)


def starts_of(loop: str, stage: Stage) -> list[float]:
    runs = [run for run in of(RunStarted, stage.events) if str(run.loop) == loop]
    return seconds_of([run.started_at for run in runs])


# Lost


@pytest.mark.parametrize("timeout", ["10s", "1h"])
def test_a_token_that_is_gone_is_put_again_within_two_rounds(timeout: str) -> None:
    app, carried = counting(timeout=timeout)

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await run_once(stage)
            before = await stage.token(TASK)
            await stage.lose(TASK)
            assert await stage.where(TASK) is Where.LOST
            await asyncio.sleep(TWO_ROUNDS)
            again = await stage.token(TASK)
            assert replace(again, act=None) == before
            assert (again.seq, again.carry) == (1, 1)
            assert again.act is not None
            assert again.act.verb is Verb.REPAIRED
            assert await stage.where(TASK) is Where.WAITING
            await asyncio.sleep(600)
        assert carried == [(0, None), (1, 1)]
        assert stage.repairs() == [("task", "lost")]
        assert await stage.history("task") == [
            *("seeded", "triggered", "succeeded", "repaired", "succeeded")
        ]

    staged(app, play)


@pytest.mark.parametrize("for_hours", [0, 24])
def test_a_paused_token_that_is_gone_is_paused_again(for_hours: int) -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await run_once(stage)
            await stage.verbs.pause(app.loop("task"), "stocktaking")
            await asyncio.sleep(for_hours * 3600)
            await stage.lose(TASK)
            await asyncio.sleep(TWO_ROUNDS)
            again = await stage.token(TASK)
            assert (again.state, again.reason) == (State.PAUSED, "stocktaking")
            assert (again.seq, again.carry) == (1, 1)

    staged(app, play)


def test_a_token_that_the_journal_does_not_know_is_a_new_one() -> None:
    app, carried = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await stage.broker.delete(app.names.journal)
            await stage.lose(TASK)
            await asyncio.sleep(TWO_ROUNDS)
            assert stage.repairs() == [("task", "lost")]
            await asyncio.sleep(600)
        assert carried == [(0, None)]

    staged(app, play)


class Forgetful(MemoryBroker):
    """A broker that hands out only the beginning of the journal, as a node that was cut off."""

    known = 1

    async def read(
        self, stream: str, *, since: datetime | None = None, quiet: timedelta = DEFAULT_QUIET
    ) -> AsyncGenerator[Message]:
        entries = itertools.count()
        async for message in super().read(stream, since=since, quiet=quiet):
            if stream.endswith(".journal") and next(entries) >= self.known:
                return
            yield message


def test_a_loop_does_not_begin_anew_because_the_journal_is_not_to_be_read() -> None:
    app, carried = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await run_once(stage)
        await stage.lose(TASK)
        async with Forgetful(stage.server) as broker, working_over(broker, stage):
            await asyncio.sleep(10 * ROUND)
            assert stage.repairs() == []
            (told,) = {event.reason for event in of(SupervisionDelayed, stage.events)}
            assert told == "The journal in memory:// could not be read to its end within 20 s."
            broker.known = 1000
            await asyncio.sleep(ROUND + 2)
            assert stage.repairs() == [("task", "lost")]
            await asyncio.sleep(600)
        assert carried == [(0, None), (1, 1)]
        assert await stage.history("task") == [
            *("seeded", "triggered", "succeeded", "repaired", "succeeded")
        ]

    staged(app, play)


class Slow(MemoryBroker):
    """A broker with so much in its journal that some seconds' worth of it are read in a second."""

    async def read(
        self, stream: str, *, since: datetime | None = None, quiet: timedelta = DEFAULT_QUIET
    ) -> AsyncGenerator[Message]:
        async for message in super().read(stream, since=since, quiet=quiet):
            await asyncio.sleep(0.05 if stream.endswith(".journal") else 0)
            yield message


def test_a_loop_for_which_the_journal_is_too_long_keeps_no_other_one_waiting() -> None:
    app, _ = counting()

    @app.periodic(every="10m")
    async def other() -> None: ...

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await stage.verbs.pause(app.loop("task"), "stocktaking")
            await asyncio.sleep(12 * 3600 + 60)
        await stage.lose(TASK)
        await stage.lose(LoopId("other"))
        async with Slow(stage.server) as broker, working_over(broker, stage):
            await asyncio.sleep(30 * ROUND)
            assert stage.repairs() == [("other", "lost")]
            assert of(SupervisionDelayed, stage.events)
            assert reported(stage.events) == []
        assert await stage.where(TASK) is Where.LOST
        (report, _) = await stage.seeding.seed()
        assert report.token is not None
        assert (report.token.state, report.token.reason) == (State.PAUSED, "stocktaking")

    staged(app, play)


def test_a_loop_is_lost_only_when_it_was_nowhere_twice() -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await asyncio.sleep(ROUND - 1)
            await stage.lose(TASK)
            await asyncio.sleep(ROUND - 1)
            assert len(of(CensusTaken, stage.events)) == 1
            assert stage.repairs() == []
            await asyncio.sleep(ROUND)
            assert stage.repairs() == [("task", "lost")]

    staged(app, play)


def test_a_long_run_is_claimed_and_left_alone() -> None:
    app = new_app()

    @app.periodic(every="10s", timeout="2h")
    async def task() -> None:
        await asyncio.sleep(3600)

    async def play(stage: Stage) -> None:
        async with stage.supervised(), stage.supervised():
            await asyncio.sleep(3000)
            assert await stage.where(TASK) is Where.RUNNING
            await asyncio.sleep(650)
        assert len(of(CensusTaken, stage.events)) > 200
        assert starts_of("task", stage) == [10.0, 3620.0]
        assert stage.repairs() == []

    staged(app, play)


# Where not all answer


def test_a_run_that_nobody_claims_is_guarded_and_its_own_token_replaces_the_guard() -> None:
    app = new_app()

    @app.periodic(every="10s")
    async def task(ctx: Context) -> None:
        await asyncio.sleep(300)
        ctx.carry("done")

    async def play(stage: Stage) -> None:
        async with stage.supervised(over=Mute(stage.server)):
            await asyncio.sleep(200)
            assert (await stage.token(TASK)).state is State.GUARD
            assert await stage.where(TASK) is Where.RUNNING
            assert stage.repairs() == [("task", "guarded")]
            await asyncio.sleep(115)
            token = await stage.token(TASK)
            assert (token.state, token.seq, token.carry) == (State.ARMED, 1, "done")
            assert seconds_of([token.due_at]) == [320.0]
        assert starts_of("task", stage) == [10.0]
        assert await stage.tokens() == 1

    staged(app, play)


def test_once_all_answer_a_guard_makes_room_for_the_token_that_was_lost() -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised(over=(mute := Mute(stage.server))):
            await run_once(stage)
            before = await stage.token(TASK)
            await stage.lose(TASK)
            await asyncio.sleep(TWO_ROUNDS)
            assert (await stage.token(TASK)).state is State.GUARD
            mute.speaks = True
            await asyncio.sleep(TWO_ROUNDS)
            assert replace(await stage.token(TASK), act=None) == before
        assert stage.repairs() == [("task", "guarded"), ("task", "lost")]

    staged(app, play)


def test_if_they_never_do_the_guard_hatches_and_the_loop_goes_on_where_it_was() -> None:
    app, carried = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised(over=Mute(stage.server)):
            await run_once(stage)
            await stage.lose(TASK)
            await asyncio.sleep((CONSUMER_TIMEOUT + GUARD_GRACE).total_seconds() + TWO_ROUNDS)
            assert carried == [(0, None), (1, 1)]
            assert (await stage.token(TASK)).seq == 2

    staged(app, play)


def test_a_paused_token_that_is_gone_needs_no_answers() -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised(over=Mute(stage.server)):
            await run_once(stage)
            await stage.verbs.pause(app.loop("task"), "stocktaking")
            before = await stage.token(TASK)
            await stage.lose(TASK)
            await asyncio.sleep(ROUND + 3)
            assert replace(await stage.token(TASK), act=before.act) == before
        assert stage.repairs() == [("task", "lost")]

    staged(app, play)


# Doubled


@pytest.mark.parametrize("more", [1, 2])
def test_of_several_tokens_in_a_slot_the_furthest_is_left(more: int) -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            token = await stage.token(TASK)
            await stage.crowd(replace(token, seq=seq, carry=seq) for seq in range(1, 1 + more))
            depth = await stage.broker.depth(app.names.hatchery(TASK))
            assert depth is not None
            assert depth.ready == 1 + more
            await asyncio.sleep(ROUND + 1)
            assert await stage.tokens() == 1
            left = await stage.token(TASK)
            assert (left.seq, left.carry) == (more, more)
        assert stage.repairs() == [("task", "doubled")]
        assert (await stage.history("task")).count("repaired") == 1

    staged(app, play)


# Without a queue


def test_a_hatchery_queue_that_is_gone_is_declared_and_the_loop_goes_on() -> None:
    app, carried = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await run_once(stage)
            await stage.broker.delete(app.names.hatchery(TASK))
            assert await stage.where(TASK) is Where.UNSEEDED
            await asyncio.sleep(ROUND + 3)
            assert stage.repairs() == [("task", "adopted")]
            await asyncio.sleep(600)
        assert carried == [(0, None), (1, 1)]

    staged(app, play)


def test_when_everything_is_deleted_all_comes_back() -> None:
    app = new_app()
    for name in ("task", "other"):

        @app.periodic(every="1m", name=name)
        async def beat() -> None: ...

    async def play(stage: Stage) -> None:
        async with stage.supervised(), stage.supervised():
            await asyncio.sleep(70)
            for queue in app.topology().queues:
                await stage.broker.delete(queue.name)
            stage.events.clear()
            await asyncio.sleep(100)
            assert starts_of("task", stage)
            assert starts_of("other", stage)
            assert await stage.tokens() == 2
            assert of(CensusTaken, stage.events)
        assert set(stage.repairs()) == {("task", "adopted"), ("other", "adopted")}

    staged(app, play)


def processor_over(broker: MemoryBroker, stage: Stage) -> Processor:
    app, grace = stage.app, timedelta(seconds=1)
    tasks = app.select(None)
    return processor(app, broker, stage.clock, tasks=tasks, concurrency=1, grace=grace)


@asynccontextmanager
async def working_over(broker: MemoryBroker, stage: Stage) -> AsyncGenerator[None]:
    ours = processor_over(broker, stage)
    running = asyncio.create_task(ours.run())
    try:
        yield
    finally:
        ours.worker.stop()
        await running


def test_who_may_not_declare_is_told_what_to_do_and_starts_nothing() -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        await stage.broker.delete(app.names.roster)
        async with NotAllowed(stage.server) as broker:
            with pytest.raises(QueueNotFound, match="'test.v1.roster' is not in.*scheduler seed"):
                await processor_over(broker, stage).run()

    staged(app, play)


# Stuck


class Stuck(Inspecting):
    """A broker that keeps a token back: its queue shows none and takes none until it is deleted."""

    def __init__(self, stage: Stage, loop: LoopId = TASK, *, may_declare: bool) -> None:
        super().__init__(stage.server)
        self._loop = loop
        self._queue = stage.app.names.hatchery(loop)
        self._may_declare = may_declare
        self._stuck = True

    async def inspect(self, message: Message, exchange: str, routing_key: str) -> None:
        to_it = exchange.endswith(".scheduler") and routing_key == f"loop.{self._loop}"
        if self._stuck and to_it:
            raise Rejected

    async def declare(self, topology: Topology) -> None:
        self._require_right()
        await super().declare(topology)

    async def delete(self, queue: str) -> None:
        self._require_right()
        await super().delete(queue)
        self._stuck = self._stuck and queue != self._queue

    def _require_right(self) -> None:
        if not self._may_declare:
            raise AccessRefused("No right to configure.")


@pytest.mark.parametrize("may_declare", [True, False])
def test_a_slot_that_keeps_its_token_back_is_made_anew(may_declare: bool) -> None:
    app, carried = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await run_once(stage)
        await stage.lose(TASK)
        async with Stuck(stage, may_declare=may_declare) as broker, working_over(broker, stage):
            await asyncio.sleep(7 * ROUND)
            repairs = [repair for repair in stage.repairs() if repair[0] == "task"]
            if may_declare:
                assert repairs == [("task", "stuck")]
                again = await stage.token(TASK)
                assert (again.seq, again.carry) == (1, 1)
                await asyncio.sleep(600)
        assert reported(stage.events) == ([] if may_declare else [("task", "stuck")])
        assert carried == ([(0, None), (1, 1)] if may_declare else [(0, None)])

    staged(app, play)


@pytest.mark.parametrize("may_declare", [True, False])
def test_a_slot_that_refuses_the_token_in_hand_is_made_anew_for_it(may_declare: bool) -> None:
    app, carried = counting()

    async def play(stage: Stage) -> None:
        await stage.verbs.trigger(app.loop("task"))
        async with Stuck(stage, may_declare=may_declare) as broker, working_over(broker, stage):
            await asyncio.sleep(7 * ROUND)
            told = [("task", "stuck")]
            assert stage.repairs() == (told if may_declare else [])
            assert reported(stage.events) == ([] if may_declare else told)
            if may_declare:
                again = await stage.token(TASK)
                assert (again.seq, again.carry) == (1, 1)
        assert carried == [(0, None)]

    staged(app, play)


class Swallowing(MemoryBroker):
    """A broker that confirms a token and has it nowhere, until its queue is deleted."""

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta = timedelta(seconds=30),
    ) -> None:
        await super().publish(message, exchange=exchange, routing_key=routing_key, timeout=timeout)
        if not self.deleted and routing_key == "loop.task" and exchange.endswith(".scheduler"):
            await self.purge("test.v1.hatchery.task")

    deleted = False

    async def delete(self, queue: str) -> None:
        await super().delete(queue)
        self.deleted = self.deleted or queue == "test.v1.hatchery.task"


def test_a_slot_in_which_tokens_vanish_is_made_anew() -> None:
    app, carried = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await run_once(stage)
        await stage.lose(TASK)
        async with Swallowing(stage.server) as broker, working_over(broker, stage):
            await asyncio.sleep(7 * ROUND)
            assert [kind for loop, kind in stage.repairs() if loop == "task"] == [
                *("lost", "stuck")
            ]
            await asyncio.sleep(600)
        assert carried == [(0, None), (1, 1)]

    staged(app, play)


# The loop itself


def test_supervision_comes_back_when_its_own_token_is_gone() -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised(), stage.supervised():
            await asyncio.sleep(20)
            await stage.lose(SUPERVISION)
            stage.events.clear()
            await asyncio.sleep(4 * ROUND)
            assert stage.repairs() == [("_supervision", "lost")]
            stage.events.clear()
            await asyncio.sleep(4 * ROUND)
            assert 3 <= len(of(CensusTaken, stage.events)) <= 5

    staged(app, play)


@pytest.mark.parametrize("may_declare", [True, False])
def test_if_it_is_kept_back_its_slot_is_made_anew_or_that_is_told(may_declare: bool) -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        async with Stuck(stage, SUPERVISION, may_declare=may_declare) as broker:
            await stage.lose(SUPERVISION)
            async with working_over(broker, stage):
                await asyncio.sleep(16 * ROUND)
        told = [("_supervision", "stuck")]
        assert stage.repairs() == (told if may_declare else [])
        assert reported(stage.events) == ([] if may_declare else told)
        assert bool(of(CensusTaken, stage.events)) is may_declare

    staged(app, play)


def test_or_when_its_queue_is() -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        async with stage.supervised(), stage.supervised():
            await asyncio.sleep(20)
            await stage.broker.delete(app.names.hatchery(SUPERVISION))
            stage.events.clear()
            await asyncio.sleep(4 * ROUND)
            assert of(CensusTaken, stage.events)

    staged(app, play)


@pytest.mark.parametrize("carried", ["garbage", {"cursor": "many"}, [1], {"cursor": -7}])
def test_what_another_version_remembered_is_forgotten(carried: Any) -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        occupant = await stage.hatchery.take(SUPERVISION)
        assert occupant is not None
        await stage.hatchery.replace(occupant, replace(occupant.token, carry=carried))
        async with stage.supervised():
            await asyncio.sleep(ROUND + 1)
            assert (await stage.token(SUPERVISION)).carry == Memory().model_dump()
        assert [census.counted for census in of(CensusTaken, stage.events)] == [1]
        assert of(SupervisionDelayed, stage.events) == []

    staged(app, play)


def test_a_round_looks_at_so_many_loops_and_the_next_at_the_next() -> None:
    app, number = new_app(), 2500
    assert LOOKED_AT_IN_A_ROUND == 1000

    async def nothing() -> None: ...

    for n in range(number):
        app.periodic(every="30d", name=f"task{n}")(nothing)

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            lost = [LoopId(f"task{n}") for n in (0, 999, 1000, 2000, 2499)]
            for loop in lost:
                await stage.lose(loop)
            await asyncio.sleep(5 * (ROUND + 2))
            assert {loop for loop, kind in stage.repairs() if kind == "lost"} == set(map(str, lost))
            assert await stage.tokens() == number
        counted = [census.counted for census in of(CensusTaken, stage.events)]
        assert all(1000 <= each <= 1000 + len(lost) for each in counted)

    staged(app, play)


# Reports


def reported(events: list[Any]) -> list[tuple[str, str]]:
    return [(str(event.loop), event.trouble) for event in of(LoopReported, events)]


def test_a_loop_that_the_code_does_not_have_is_reported_once() -> None:
    old, _ = counting()
    new = new_app()

    @new.periodic(every="1m")
    async def other() -> None: ...

    async def play(stage: Stage) -> None:
        with recording(new) as events:
            async with stage.supervised(app=new):
                await asyncio.sleep(10 * ROUND)
        assert reported(events) == [("task", "orphan")]
        assert (await stage.token(TASK)).seq == 0

    staged(old, play)


def test_a_loop_that_is_due_where_nobody_consumes_is_reported_whenever_it_comes_to_that() -> None:
    app = new_app()
    for name in ("task", "other"):

        @app.periodic(every="1m", name=name)
        async def beat() -> None: ...

    async def play(stage: Stage) -> None:
        async with stage.supervised(tasks=["other"]):
            await asyncio.sleep(200)
            assert reported(stage.events) == [("task", "unattended")]
            async with stage.supervised(tasks=["task"]):
                await asyncio.sleep(100)
            await asyncio.sleep(200)
        assert reported(stage.events) == [("task", "unattended")] * 2
        assert stage.repairs() == []

    staged(app, play)


def test_a_queue_that_may_not_be_declared_is_reported() -> None:
    app, _ = counting()

    async def play(stage: Stage) -> None:
        await stage.broker.delete(app.names.hatchery(TASK))
        async with NotAllowed(stage.server) as broker, working_over(broker, stage):
            await asyncio.sleep(5 * ROUND)
        assert reported(stage.events) == [("task", "missing")]

    staged(app, play)
