"""What becomes of tokens that are lost, doubled or in the way, in virtual time."""

import asyncio
import math
from contextlib import AsyncExitStack
from dataclasses import replace
from typing import Any

import pytest

from scheduler import Context, Every, Scheduler
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.control.doubles import Trail
from scheduler.control.loops import hatchery_of
from scheduler.control.status import Where
from scheduler.control.supervision import LOOKED_AT_IN_A_ROUND, Memory
from scheduler.errors import BrokerUnavailable, QueueNotFound, Rejected, Unconfirmed
from scheduler.events import (
    CensusTaken,
    LoopReported,
    PlaceLost,
    ProcessorStarted,
    RunStarted,
    SupervisionDelayed,
    TokenDelayed,
)
from scheduler.protocol.epochs import Watch
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import TOKEN_TYPE, LoopId, State
from scheduler.protocol.topology import Queue, Topology, routing_key
from scheduler.tasks.tasks import SUPERVISION
from scheduler.testing import recording
from scheduler.timing.durations import SECOND
from scheduler.timing.moments import milliseconds_since_epoch
from tests.faulty import Call, Fault, FaultyBroker, not_allowed
from tests.stage import START, Stage, new_app, of, processor_of, program_of, seconds_of

TASK, BONN = LoopId("task"), LoopId("report", "bonn")
ROUND = 15.0
FIRST_ROUND = START + ROUND * SECOND
LONG = (
    "The stream 'test.v1.journal' could not be read to its end in time: it holds too much. "
    "It is read on."
)
TWO_ROUNDS = 2 * ROUND + 2  # with the time for a roll call each


def mute(stage: Stage) -> tuple[FaultyBroker, Fault]:
    """A broker for a processor that does not answer to roll calls, until that ceases."""
    broker = FaultyBroker(stage.server)
    silence = broker.on("publish", where=is_answer).fails(Unconfirmed())
    return broker, silence


def counting(every: str = "10m", **options: Any) -> tuple[Scheduler, list[Any]]:
    """An app with a loop that hands on how often it ran; and what each run was handed."""
    app, carried = new_app(), list[Any]()

    @app.periodic(every=every, **options)
    async def task(ctx: Context) -> None:
        carried.append((ctx.seq, ctx.carried))
        ctx.carry((ctx.carried or 0) + 1)

    return app, carried


def is_answer(call: Call) -> bool:
    return call.message.type == "scheduler.answer"


async def run_once(stage: Stage) -> None:
    """Have the loop run, so that its token is no longer a new one."""
    await stage.verbs.trigger(stage.app.loop("task"))
    await asyncio.sleep(1)


def starts_of(loop: str, stage: Stage) -> list[float]:
    runs = [run for run in of(RunStarted, stage.events) if str(run.loop) == loop]
    return seconds_of([run.started_at for run in runs])


# Lost


@pytest.mark.parametrize("timeout", ["10s", "1h"])
async def test_a_token_that_is_gone_is_put_again_within_two_rounds(
    stage: Stage, timeout: str
) -> None:
    app, carried = counting(timeout=timeout)
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        before = await stage.token(TASK)
        await stage.lose(TASK)
        assert await stage.where(TASK) is Where.LOST
        await asyncio.sleep(TWO_ROUNDS)
        again = await stage.token(TASK)
        assert again.epoch > before.epoch
        assert replace(again, epoch=before.epoch) == before
        assert (again.seq, again.carry) == (1, 1)
        assert await stage.where(TASK) is Where.WAITING
        await asyncio.sleep(600)
    assert carried == [(0, None), (1, 1)]
    assert stage.repairs() == [("task", "lost")]
    assert await stage.history("task") == [
        *("seeded", "triggered", "succeeded", "repaired", "succeeded")
    ]


async def test_a_token_of_another_format_is_parked_and_its_loop_goes_on(stage: Stage) -> None:
    app, carried = counting()
    await stage.seed(app)
    await stage.lose(TASK)
    foreign = Message(b'{"format":"another"}', type=TOKEN_TYPE, expiration=600 * SECOND)
    await stage.publish(foreign, routing_key(TASK), app.names.scheduler)
    async with stage.supervised():
        await asyncio.sleep(TWO_ROUNDS + 600)
    assert [each.reason for each in await stage.parked()] == ["undecodable"]
    assert carried == [(0, None)]


async def test_nobody_looks_into_the_slot_of_a_loop_that_goes_on(stage: Stage) -> None:
    app, _ = counting(every="2s")
    await stage.seed(app)
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(4 * ROUND + 1)
        slot = app.names.hatchery(TASK)
        looked = [call for call in broker.calls if (call.operation, call.target) == ("get", slot)]
        assert looked == []
        await stage.lose(TASK)
        await asyncio.sleep(3 * ROUND + 2)
        assert stage.repairs() == [("task", "lost")]


@pytest.mark.parametrize("for_hours", [0, 24])
async def test_a_paused_token_that_is_gone_is_paused_again_and_resumed_from_where_it_was(
    stage: Stage, for_hours: int
) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        await stage.verbs.pause(app.loop("task"), "stocktaking")
    await asyncio.sleep(for_hours * 3600)
    await stage.lose(TASK)
    async with stage.supervised():
        await asyncio.sleep(TWO_ROUNDS)
        again = await stage.token(TASK)
        assert (again.state, again.reason) == (State.PAUSED, "stocktaking")
        await stage.verbs.resume(app.loop("task"), at_once=True)
        await asyncio.sleep(2)
    assert carried == [(0, None), (1, 1)]
    assert stage.repairs() == [("task", "lost")]


async def test_a_token_that_the_journal_does_not_know_is_a_new_one(stage: Stage) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(1)
        await stage.broker.delete(app.names.journal)
        await stage.lose(TASK)
        await asyncio.sleep(TWO_ROUNDS)
        assert stage.repairs() == [("task", "lost")]
        await asyncio.sleep(600)
    assert carried == [(0, None)]


async def test_a_loop_does_not_begin_anew_because_the_journal_is_not_to_be_read(
    stage: Stage,
) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
    await stage.lose(TASK)
    broker = FaultyBroker(stage.server)
    cut_off = broker.on("read", ".journal", where=lambda call: call.position > 0)
    cut_off.fails(EOFError())
    async with stage.supervised(over=broker):
        await asyncio.sleep(10 * ROUND)
        assert stage.repairs() == [("task", "lost")]
        assert await stage.where(TASK) is Where.RUNNING
        delayed = [event.reason for event in of(TokenDelayed, stage.events)]
        assert any("'test.v1.journal' could not be read to its end" in each for each in delayed)
        await cut_off.cease()
        await asyncio.sleep(ROUND)
        assert await stage.where(TASK) is Where.WAITING
        await asyncio.sleep(600)
    assert carried == [(0, None), (1, 1)]
    assert await stage.history("task") == [
        *("seeded", "triggered", "succeeded", "repaired", "succeeded")
    ]


@pytest.mark.parametrize(("seconds_a_message", "parts"), [(0.05, 1), (0.5, 3)])
async def test_a_loop_for_which_the_journal_is_long_waits_for_it_and_keeps_no_other_waiting(
    stage: Stage, seconds_a_message: float, parts: int
) -> None:
    app, carried = counting()

    @app.periodic(every="10m")
    async def other() -> None: ...

    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        await stage.verbs.pause(app.loop("task"), "stocktaking")
    for _ in range(600):
        await stage.publish(Message(), "loop.nobody", app.names.scheduler)
    await asyncio.sleep(12 * 3600)
    async with stage.supervised():
        await asyncio.sleep(1)  # in which the other one runs, which was due
    stage.events.clear()
    await stage.lose(TASK)
    await stage.lose(LoopId("other"))
    broker = FaultyBroker(stage.server)
    broker.on("read", ".journal").first(lambda call: asyncio.sleep(seconds_a_message))
    async with stage.supervised(over=broker):
        await asyncio.sleep(TWO_ROUNDS)
        assert set(stage.repairs()) == {("task", "lost"), ("other", "lost")}
        again = await stage.token(TASK)
        assert (again.state, again.reason) == (State.PAUSED, "stocktaking")
        await stage.verbs.resume(app.loop("task"), at_once=True)
        await asyncio.sleep(1300)
        assert len(starts_of("other", stage)) == 2  # nobody was kept waiting
    assert carried[:2] == [(0, None), (1, 1)]
    delayed = {event.reason for event in of(TokenDelayed, stage.events)}
    assert delayed == ({LONG} if parts > 1 else set())


async def test_a_loop_is_lost_only_when_it_was_nowhere_twice(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(ROUND - 1)
        await stage.lose(TASK)
        await asyncio.sleep(ROUND - 1)
        assert len(of(CensusTaken, stage.events)) == 1
        assert stage.repairs() == []
        await asyncio.sleep(ROUND)
        assert stage.repairs() == [("task", "lost")]


async def test_a_loop_that_was_seen_in_between_is_not_lost_the_next_time_it_is_missed(
    stage: Stage,
) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised():
        for _ in range(3):
            occupant = await stage.hatchery.take(TASK)
            assert occupant is not None
            await asyncio.sleep(ROUND + 3)
            await stage.hatchery.leave(occupant)
            await asyncio.sleep(ROUND)
    assert len(of(CensusTaken, stage.events)) >= 5
    assert stage.repairs() == []


async def test_a_long_run_is_claimed_and_left_alone(stage: Stage) -> None:
    app = new_app()

    @app.periodic(every="10s", timeout="2h")
    async def task() -> None:
        await asyncio.sleep(3600)

    await stage.seed(app)
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(3000)
        assert await stage.where(TASK) is Where.RUNNING
        await asyncio.sleep(650)
        assert starts_of("task", stage) == [10.0, 3620.0]
    assert len(of(CensusTaken, stage.events)) > 200
    assert stage.repairs() == []


# Where not all answer


async def test_while_not_all_answer_a_token_that_is_nowhere_is_left_to_its_run(
    stage: Stage,
) -> None:
    app = new_app()

    @app.periodic(every="10s")
    async def task(ctx: Context) -> None:
        await asyncio.sleep(300)
        ctx.carry("done")

    await stage.seed(app)
    async with stage.supervised(over=mute(stage)[0]):
        await asyncio.sleep(200)
        assert await stage.where(TASK) is Where.RUNNING
        await asyncio.sleep(115)
        token = await stage.token(TASK)
        assert (token.state, token.seq, token.carry) == (State.ARMED, 1, "done")
        assert seconds_of([token.due_at]) == [320.0]
    assert starts_of("task", stage) == [10.0]
    assert stage.repairs() == []


@pytest.mark.parametrize("is_paused", [False, True])
async def test_a_token_that_was_lost_is_put_again_once_all_answer(
    stage: Stage, is_paused: bool
) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        if is_paused:
            await stage.verbs.pause(app.loop("task"), "stocktaking")
    before = await stage.token(TASK)
    await stage.lose(TASK)
    broker, silence = mute(stage)
    async with stage.supervised(over=broker):
        await asyncio.sleep(10 * ROUND)
        assert stage.repairs() == []
        await silence.cease()
        await asyncio.sleep(TWO_ROUNDS)
        again = await stage.token(TASK)
        assert (again.state, again.reason) == (before.state, before.reason)
        assert is_paused or again == replace(before, epoch=again.epoch)
    assert stage.repairs() == [("task", "lost")]


async def test_a_round_in_which_not_all_answer_speaks_neither_for_nor_against(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    broker, silence = mute(stage)
    silence.times = 0
    async with stage.supervised(over=broker):
        await asyncio.sleep(ROUND - 1)
        await stage.lose(TASK)
        await asyncio.sleep(2)
        silence.times = math.inf
        await asyncio.sleep(5 * ROUND)
        assert stage.repairs() == []
        await silence.cease()
        await asyncio.sleep(ROUND + 3)
        assert stage.repairs() == [("task", "lost")]


# Void, and in the way


async def test_an_old_paused_token_that_is_in_the_way_is_cleared(stage: Stage) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        await stage.verbs.pause(app.loop("task"))
        void = await stage.token(TASK)
        await stage.verbs.resume(app.loop("task"))
        current = await stage.token(TASK)
        await stage.lose(TASK)
        await stage.crowd([void])
        await stage.crowd([current])
        await asyncio.sleep(TWO_ROUNDS)
        again = await stage.token(TASK)
        assert again.epoch > current.epoch
        assert (again.state, again.seq, again.carry) == (State.ARMED, 1, 1)
        assert await stage.tokens() == 1
        await asyncio.sleep(600)
    assert stage.repairs() == [("task", "lost")]
    assert carried == [(0, None), (1, 1)]


async def test_a_repair_that_is_wrong_does_no_harm(stage: Stage) -> None:
    app, at_once, seqs = new_app(), list[int](), list[int]()

    @app.periodic(every="10s")
    async def task(ctx: Context) -> None:
        seqs.append(ctx.seq)
        at_once.append(at_once[-1] + 1 if at_once else 1)
        await asyncio.sleep(8)
        at_once.append(at_once[-1] - 1)

    await stage.seed(app)
    loop = app.loop("task")
    async with stage.supervised(), stage.supervised():
        for seconds in (5, 8, 13, 21):  # it waits, it runs
            await asyncio.sleep(seconds)
            watch = Watch((await stage.listing()).known(TASK))
            await stage.program.repairs.repair([(loop, watch)], "lost")
        await asyncio.sleep(60)
    assert max(at_once) == 1
    assert seqs == list(range(len(seqs)))
    assert len(seqs) >= 5


async def test_a_loop_of_which_another_epoch_began_meanwhile_is_not_repaired(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    watch = Watch((await stage.listing()).known(TASK), misses=2)
    await stage.verbs.pause(app.loop("task"))
    paused = await stage.token(TASK)
    await stage.program.repairs.repair([(app.loop("task"), watch)], "lost")
    assert await stage.token(TASK) == paused
    assert stage.repairs() == []


# Without a queue


async def test_a_hatchery_queue_that_is_gone_is_declared_and_the_loop_goes_on(stage: Stage) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        await stage.broker.delete(app.names.hatchery(TASK))
        assert await stage.where(TASK) is Where.UNSEEDED
        await asyncio.sleep(ROUND + 3)
        assert stage.repairs() == [("task", "adopted")]
        await asyncio.sleep(600)
    assert reported(stage.events) == []
    assert of(PlaceLost, stage.events) == []
    assert carried == [(0, None), (1, 1)]


async def test_a_loop_that_lost_its_queue_and_the_journal_is_told_to_have_lost_its_place(
    stage: Stage,
) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        await stage.broker.delete(app.names.hatchery(TASK))
        await stage.broker.delete(app.names.journal)
        await asyncio.sleep(ROUND + 600)
    assert stage.repairs() == [("task", "adopted")]
    assert of(PlaceLost, stage.events) == [PlaceLost(TASK)]
    assert carried[:2] == [(0, None), (0, None)]


async def test_a_loop_that_had_never_run_has_no_place_to_lose(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised():
        await stage.broker.delete(app.names.hatchery(TASK))
        await asyncio.sleep(ROUND + 3)
    assert stage.repairs() == [("task", "adopted")]
    assert of(PlaceLost, stage.events) == []


@pytest.mark.parametrize("queue", ["roster", "snapshots", "journal", "roll_call", "presence"])
async def test_what_all_loops_share_is_declared_again_and_a_lost_loop_goes_on(
    stage: Stage, queue: str
) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        name = getattr(app.names, queue)
        await stage.broker.delete(name)
        await asyncio.sleep(ROUND + 3)
        assert await stage.broker.depth(name) is not None
        await stage.lose(TASK)
        await asyncio.sleep(TWO_ROUNDS)
        assert stage.repairs() == [("task", "lost")]
        await asyncio.sleep(600)
    assert len(carried) == 2


async def test_when_everything_is_deleted_all_comes_back(stage: Stage) -> None:
    app = new_app()
    for name in ("task", "other"):

        @app.periodic(every="1m", name=name)
        async def beat() -> None: ...

    await stage.seed(app)
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
    assert set(stage.repairs()) == {
        *(("_supervision", "adopted"), ("task", "adopted"), ("other", "adopted"))
    }


class BreakingOff(MemoryBroker):
    """Loses its connection in the middle of a declaration: all queues are there, and not bound."""

    tries = 0

    async def declare(self, topology: Topology) -> None:
        self.tries += 1
        if self.tries == 1:
            await super().declare(replace(topology, bindings=()))
            raise BrokerUnavailable("It went.")
        await super().declare(topology)


@pytest.mark.parametrize("is_all", [False, True])
async def test_what_is_declared_is_declared_to_its_end_though_the_connection_goes(
    stage: Stage, is_all: bool
) -> None:
    app, carried = counting()
    await stage.seed(app)
    for queue in app.topology().queues:
        if is_all or queue.name != app.names.roster:
            await stage.broker.delete(queue.name)
    async with stage.supervised(over=BreakingOff(stage.server)), stage.supervised():
        await asyncio.sleep(700)
    assert carried


async def test_who_may_have_lost_the_mutex_with_its_connection_begins_nothing(stage: Stage) -> None:
    await stage.seed(app := new_app())
    broker = FaultyBroker(stage.server)
    broker.on("declare", times=1).fails(BrokerUnavailable("It went."))
    published = broker.on("publish")
    async with broker:
        with pytest.raises(BrokerUnavailable, match="It went"):
            await program_of(app, broker, stage.clock).seeding.seed()
    assert not published.met


async def test_a_broker_that_lost_everything_gets_back_what_the_roster_said(stage: Stage) -> None:
    app, _ = counting()

    @app.task()
    async def report(city: str = "") -> None: ...

    await stage.seed(app)
    await report.start("bonn", every="1h", args={"city": "Bonn"})
    await report.start("koeln", every="1h")
    await report.stop("koeln")
    await stage.verbs.pause(app.loop("task"), "stocktaking")
    before = await stage.listing()
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(1)
        for queue in (*app.topology().queues, *slots(stage, BONN)):
            await stage.broker.delete(queue.name)
        await asyncio.sleep(TWO_ROUNDS)
    after = await stage.listing()
    for loop in (TASK, BONN):
        said = replace(
            after[loop], entry=before[loop].entry, by="", at=before[loop].at, checkpoint=None
        )
        assert said == replace(before[loop], by="")
        assert after.known(loop) > before.known(loop)
        assert after[loop].entry.life == before[loop].entry.life
    paused = await stage.token(TASK)
    assert (paused.state, paused.reason) == (State.PAUSED, "stocktaking")
    assert (await stage.token(BONN)).args == {"city": "Bonn"}
    assert [loop.key for loop in await report.list()] == ["bonn"]


async def test_a_broker_that_kept_nothing_but_snapshots_gets_back_what_they_say(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.queues.roster.FEW", 0)
    app, _ = counting()
    await stage.seed(app)
    await stage.verbs.pause(app.loop("task"), "stocktaking")
    before = await stage.program.roster.compacted()
    for queue in app.topology().queues:
        if queue.name != app.names.snapshots:
            await stage.broker.delete(queue.name)
    async with stage.supervised():
        await asyncio.sleep(1)
    after = await stage.listing()
    assert after[TASK].reason == "stocktaking"
    assert after.known(TASK) > before.known(TASK) > 1
    paused = await stage.token(TASK)
    assert (paused.state, paused.epoch) == (State.PAUSED, after.known(TASK))


def slots(stage: Stage, *loops: LoopId) -> list[Queue]:
    return [queue for loop in loops for queue in hatchery_of(stage.app, loop).queues]


def release(*loops: str, every: str) -> Scheduler:
    app = new_app()

    async def beat() -> None: ...

    for name in loops:
        app.periodic(every=every, name=name)(beat)
    return app


@pytest.mark.parametrize("is_new", [False, True])
async def test_an_old_release_brings_back_neither_a_removed_loop_nor_an_old_schedule(
    stage: Stage, is_new: bool
) -> None:
    old, latest = release("task", "other", every="1h"), release("task", every="2h")
    await stage.seed(old)
    async with AsyncExitStack() as processors:
        if not is_new:
            await processors.enter_async_context(stage.supervised())
            await asyncio.sleep(1)
        await program_of(latest, stage.broker, stage.clock).seeding.seed(prune=True)
        if is_new:
            await stage.broker.delete(old.names.hatchery(SUPERVISION))
            await processors.enter_async_context(stage.supervised())
        await stage.broker.delete(old.names.hatchery(TASK))
        await asyncio.sleep(TWO_ROUNDS)
    assert (await stage.token(TASK)).schedule == Every("2h")
    assert [str(each.loop) for each in (await stage.listing()).there] == ["_supervision", "task"]
    assert await stage.broker.depth(old.names.hatchery(LoopId("other"))) is None
    assert ("task", "adopted") in stage.repairs()
    assert of(CensusTaken, stage.events)[-1].counted == 1


async def test_who_may_not_declare_is_told_what_to_do_and_starts_nothing(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    await stage.broker.delete(app.names.roster)
    async with not_allowed(stage.server) as broker:
        with pytest.raises(QueueNotFound, match="'test.v1.roster' is not in.*scheduler seed"):
            await processor_of(app, broker, stage.clock).run()


# Stuck


def stuck(stage: Stage, loop: LoopId = TASK, *, may_declare: bool) -> FaultyBroker:
    """A broker that keeps a token back: its queue shows none and takes none until it is deleted."""
    broker = FaultyBroker(stage.server) if may_declare else not_allowed(stage.server)
    refusing = broker.on("publish", ".scheduler", key=f"loop.{loop}").fails(Rejected())
    broker.on("delete", f".hatchery.{loop}").then(refusing.cease)
    return broker


@pytest.mark.parametrize("may_declare", [True, False])
async def test_a_slot_that_keeps_its_token_back_is_made_anew(
    stage: Stage, may_declare: bool
) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
    await stage.lose(TASK)
    if not may_declare:
        stage.expects_none(TASK)
    async with stage.supervised(over=stuck(stage, may_declare=may_declare)):
        await asyncio.sleep(7 * ROUND)
        repairs = [repair for repair in stage.repairs() if repair[0] == "task"]
        if may_declare:
            assert repairs == [("task", "lost")]
            again = await stage.token(TASK)
            assert (again.seq, again.carry) == (1, 1)
            await asyncio.sleep(600)
    assert reported(stage.events) == ([] if may_declare else [("task", "stuck")])
    assert carried == ([(0, None), (1, 1)] if may_declare else [(0, None)])


@pytest.mark.parametrize("is_first", [True, False])
@pytest.mark.parametrize("may_declare", [True, False])
async def test_a_slot_that_refuses_what_comes_after_the_token_in_hand_is_made_anew_for_it(
    stage: Stage, may_declare: bool, is_first: bool
) -> None:
    app, carried = counting()
    await stage.seed(app)
    if not may_declare:
        stage.expects_some_in_hand()
    if is_first:
        await stage.verbs.trigger(app.loop("task"))
    else:
        await asyncio.sleep(600)
    async with stage.supervised(over=stuck(stage, may_declare=may_declare)):
        await asyncio.sleep(7 * ROUND)
        told = [("task", "stuck")]
        assert stage.repairs() == (told if may_declare else [])
        assert reported(stage.events) == ([] if may_declare else told)
        if may_declare:
            again = await stage.token(TASK)
            assert (again.seq, again.carry) == (1, 1)
    assert carried == ([] if is_first and not may_declare else [(0, None)])


class Swallowing(FaultyBroker):
    """A broker that confirms a token and has it nowhere, until its queue is deleted."""

    async def publish(self, message: Message, *, routing_key: str, **options: Any) -> None:
        is_swallowed = routing_key == "loop.task" and not self.has_deleted
        to = "loop.nobody" if is_swallowed else routing_key  # of which the journal hears
        await super().publish(message, routing_key=to, **options)

    @property
    def has_deleted(self) -> bool:
        return any(call.operation == "delete" for call in self.calls)


async def test_a_slot_in_which_tokens_vanish_is_made_anew(stage: Stage) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
    await stage.lose(TASK)
    async with stage.supervised(over=Swallowing(stage.server)):
        await asyncio.sleep(7 * ROUND)
        assert [kind for loop, kind in stage.repairs() if loop == "task"] == [*("lost", "stuck")]
        await asyncio.sleep(600)
    assert carried == [(0, None), (1, 1)]


# The loop itself


async def test_supervision_comes_back_when_its_own_token_is_gone(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(20)
        await stage.lose(SUPERVISION)
        stage.events.clear()
        await asyncio.sleep(4 * ROUND)
        assert stage.repairs() == [("_supervision", "lost")]
        stage.events.clear()
        await asyncio.sleep(4 * ROUND)
        assert 3 <= len(of(CensusTaken, stage.events)) <= 5


@pytest.mark.parametrize("may_declare", [True, False])
async def test_a_token_of_supervision_that_is_kept_back_gets_a_new_slot_or_is_told_of(
    stage: Stage, may_declare: bool
) -> None:
    app, _ = counting()
    await stage.seed(app)
    await stage.lose(SUPERVISION)
    if not may_declare:
        stage.expects_none(SUPERVISION)
    async with stage.supervised(over=stuck(stage, SUPERVISION, may_declare=may_declare)):
        await asyncio.sleep(16 * ROUND)
    assert stage.repairs() == ([("_supervision", "lost")] if may_declare else [])
    assert reported(stage.events) == ([] if may_declare else [("_supervision", "stuck")])
    assert bool(of(CensusTaken, stage.events)) is may_declare


async def test_supervision_comes_back_when_its_own_queue_is_gone(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(20)
        await stage.broker.delete(app.names.hatchery(SUPERVISION))
        stage.events.clear()
        await asyncio.sleep(4 * ROUND)
        assert of(CensusTaken, stage.events)


async def test_a_queue_of_supervision_that_may_not_be_declared_is_told_within_a_round(
    stage: Stage,
) -> None:
    app, _ = counting()
    await stage.seed(app)
    stage.expects_none(SUPERVISION)
    async with stage.supervised(over=not_allowed(stage.server)):
        await asyncio.sleep(1)
        await stage.broker.delete(app.names.hatchery(SUPERVISION))
        await asyncio.sleep(1.2 * ROUND)
        (delayed,) = of(SupervisionDelayed, stage.events)
    assert "Lost loops are not repaired; run `scheduler seed`" in delayed.reason


async def test_supervision_is_looked_after_again_when_the_connection_is_back(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised():
        await asyncio.sleep(20)
        await stage.lose(SUPERVISION)
        with monkeypatch.context() as away:
            away.setattr(MemoryBroker, "connected", False)
            await asyncio.sleep(4 * ROUND)
            assert stage.repairs() == []
        await asyncio.sleep(4 * ROUND)
        assert stage.repairs() == [("_supervision", "lost")]


async def test_supervision_is_looked_after_though_that_failed_once(
    stage: Stage, caplog: pytest.LogCaptureFixture
) -> None:
    app, _ = counting()
    await stage.seed(app)
    await stage.lose(SUPERVISION)
    broker = FaultyBroker(stage.server)
    broker.on("get", app.names.hatchery(SUPERVISION), times=1).fails(RuntimeError("A bug."))
    async with stage.supervised(over=broker):
        await asyncio.sleep(5 * ROUND)
    assert [record.getMessage() for record in caplog.records] == [
        "Looking after supervision failed"
    ]
    assert stage.repairs() == [("_supervision", "lost")]


async def test_where_there_is_no_loop_a_round_counts_none(stage: Stage) -> None:
    await stage.seed(new_app())
    async with stage.supervised():
        await asyncio.sleep(ROUND + 1)
        assert (await stage.token(SUPERVISION)).carry is not None  # it has come to its end
    assert [(each.counted, each.loops) for each in of(CensusTaken, stage.events)] == [(0, 0)]


@pytest.mark.parametrize(
    "carried",
    ["garbage", {"cursor": "many"}, [1], {"cursor": -7}]
    + [{"cursor": 1, **wrong} for wrong in ({"noted": -1}, {"trail": {"read_at_ms": -1}})],
)
async def test_what_another_version_remembered_is_forgotten(stage: Stage, carried: Any) -> None:
    app, _ = counting()
    await stage.seed(app)
    occupant = await stage.hatchery.take(SUPERVISION)
    assert occupant is not None
    await occupant.delivery.ack()
    assert await stage.hatchery.offer(replace(occupant.token, carry=carried))
    async with stage.supervised():
        await asyncio.sleep(ROUND + 1)
        carry = (await stage.token(SUPERVISION)).carry
        reached = carry["trail"]["reached"]
        assert isinstance(reached, int)
        trail = Trail(read_at_ms=milliseconds_since_epoch(FIRST_ROUND), reached=reached)
        forgotten = Memory(trail=trail, noted=1)  # it waits for an hour
        assert carry == forgotten.model_dump()
    assert [census.counted for census in of(CensusTaken, stage.events)] == [1]
    assert of(SupervisionDelayed, stage.events) == []


async def test_a_round_that_the_broker_fails_at_is_told_and_forgets_nothing(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    broker = FaultyBroker(stage.server)
    failing = broker.on("depth", app.names.snapshots)
    async with stage.supervised(over=broker):
        await stage.lose(TASK)
        await asyncio.sleep(ROUND + 5)
        failing.fails(BrokerUnavailable("It has no leader."))
        await asyncio.sleep(ROUND)
        assert stage.repairs() == []
        assert [event.reason for event in of(SupervisionDelayed, stage.events)] == [
            "It has no leader."
        ]
        await failing.cease()
        await asyncio.sleep(ROUND)
        assert stage.repairs() == [("task", "lost")]
        assert len(of(CensusTaken, stage.events)) == 2


async def test_a_round_looks_at_so_many_loops_and_the_next_at_the_next(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    app, number, in_a_round = new_app(), 50, 20
    assert LOOKED_AT_IN_A_ROUND == 1000
    monkeypatch.setattr("scheduler.control.supervision.LOOKED_AT_IN_A_ROUND", in_a_round)

    async def nothing() -> None: ...

    for n in range(number):
        app.periodic(every="30d", name=f"task{n}")(nothing)

    await stage.seed(app)
    async with stage.supervised():
        lost = [LoopId(f"task{n}") for n in (0, 19, 20, 40, 49)]
        for loop in lost:
            await stage.lose(loop)
        await asyncio.sleep(5 * (ROUND + 2))
        assert {loop for loop, kind in stage.repairs() if kind == "lost"} == set(map(str, lost))
        assert await stage.tokens() == number
    counted = [census.counted for census in of(CensusTaken, stage.events)]
    assert all(in_a_round <= each <= in_a_round + len(lost) for each in counted)


# Reports


def reported(events: list[Any]) -> list[tuple[str, str]]:
    return [(str(event.loop), event.trouble) for event in of(LoopReported, events)]


async def test_a_loop_that_the_code_does_not_have_is_reported_once(stage: Stage) -> None:
    old, _ = counting()
    new = new_app()

    @new.periodic(every="1m")
    async def other() -> None: ...

    await stage.seed(old)
    with recording(new) as events:
        async with stage.supervised(app=new):
            await asyncio.sleep(10 * ROUND)
    assert reported(events) == [("task", "orphan")]
    assert (await stage.token(TASK)).seq == 0


async def test_a_loop_that_is_due_where_nobody_consumes_is_reported_whenever_it_comes_to_that(
    stage: Stage,
) -> None:
    app = new_app()
    for name in ("task", "other"):

        @app.periodic(every="1m", name=name)
        async def beat() -> None: ...

    await stage.seed(app)
    async with stage.supervised(tasks=["other"]):
        await asyncio.sleep(200)
        assert reported(stage.events) == [("task", "unattended")]
        async with stage.supervised(tasks=["task"]):
            await asyncio.sleep(100)
        await asyncio.sleep(200)
    assert reported(stage.events) == [("task", "unattended")] * 2
    assert stage.repairs() == []


async def test_a_queue_that_may_not_be_declared_is_reported(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    stage.expects_none(TASK)
    await stage.broker.delete(app.names.hatchery(TASK))
    async with stage.supervised(over=not_allowed(stage.server)):
        await asyncio.sleep(5 * ROUND)
    assert reported(stage.events) == [("task", "missing")]


async def test_a_processor_that_is_still_preparing_answers_to_no_roll_call(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    await stage.broker.delete(app.names.hatchery(SUPERVISION))
    async with FaultyBroker(stage.server) as somebody, stage.program.roll_call as asking:
        lock = AsyncExitStack()
        await lock.enter_async_context(somebody.mutex(app.names.lock))
        async with stage.supervised():
            await asyncio.sleep(10)
            assert of(ProcessorStarted, stage.events) == []
            answers = await asking.ask({TASK: 1}, expected=1, timeout=2 * SECOND)
            assert answers.said == {}
            await lock.aclose()
            await asyncio.sleep(5)
            answers = await asking.ask({TASK: 1}, expected=1, timeout=2 * SECOND)
            assert len(answers.said) == 1
