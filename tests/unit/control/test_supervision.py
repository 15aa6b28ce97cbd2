"""What becomes of tokens that are lost, doubled or in the way, in virtual time."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest

from scheduler import Context, Scheduler
from scheduler.control.recovery import CONSUMER_TIMEOUT, GUARD_GRACE
from scheduler.control.status import Where
from scheduler.control.supervision import LOOKED_AT_IN_A_ROUND, Memory
from scheduler.errors import QueueNotFound, Rejected, Unconfirmed
from scheduler.events import (
    CensusTaken,
    LoopReported,
    ProcessorStarted,
    RunStarted,
    SupervisionDelayed,
)
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, State, Verb
from scheduler.tasks.tasks import SUPERVISION
from scheduler.testing import recording
from tests.faulty import Call, Fault, FaultyBroker, not_allowed
from tests.stage import Stage, new_app, of, processor_of, seconds_of

TASK = LoopId("task")
ROUND = 15.0
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


@pytest.mark.parametrize("for_hours", [0, 24])
async def test_a_paused_token_that_is_gone_is_paused_again(stage: Stage, for_hours: int) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
        await stage.verbs.pause(app.loop("task"), "stocktaking")
        await asyncio.sleep(for_hours * 3600)
        await stage.lose(TASK)
        await asyncio.sleep(TWO_ROUNDS)
        again = await stage.token(TASK)
        assert (again.state, again.reason) == (State.PAUSED, "stocktaking")
        assert (again.seq, again.carry) == (1, 1)


async def test_a_token_that_the_journal_does_not_know_is_a_new_one(stage: Stage) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
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
        assert stage.repairs() == []
        (told,) = {event.reason for event in of(SupervisionDelayed, stage.events)}
        assert told == "The journal in memory:// could not be read to its end within 20 s."
        await cut_off.cease()
        await asyncio.sleep(ROUND + 2)
        assert stage.repairs() == [("task", "lost")]
        await asyncio.sleep(600)
    assert carried == [(0, None), (1, 1)]
    assert await stage.history("task") == [
        *("seeded", "triggered", "succeeded", "repaired", "succeeded")
    ]


async def test_a_loop_for_which_the_journal_is_too_long_keeps_no_other_one_waiting(
    stage: Stage,
) -> None:
    app, _ = counting()

    @app.periodic(every="10m")
    async def other() -> None: ...

    await stage.seed(app)
    async with stage.supervised():
        await stage.verbs.pause(app.loop("task"), "stocktaking")
        await asyncio.sleep(12 * 3600 + 60)
    await stage.lose(TASK)
    await stage.lose(LoopId("other"))
    broker = FaultyBroker(stage.server)
    # Some seconds' worth of its journal are read in a second.
    broker.on("read", ".journal").first(lambda call: asyncio.sleep(0.05))
    async with stage.supervised(over=broker):
        await asyncio.sleep(30 * ROUND)
        assert stage.repairs() == [("other", "lost")]
        assert of(SupervisionDelayed, stage.events)
        assert reported(stage.events) == []
    assert await stage.where(TASK) is Where.LOST
    (report, _) = await stage.seeding.seed()
    assert report.token is not None
    assert (report.token.state, report.token.reason) == (State.PAUSED, "stocktaking")


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
    assert len(of(CensusTaken, stage.events)) > 200
    assert starts_of("task", stage) == [10.0, 3620.0]
    assert stage.repairs() == []


# Where not all answer


async def test_a_run_that_nobody_claims_is_guarded_and_its_own_token_replaces_the_guard(
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
        assert (await stage.token(TASK)).state is State.GUARD
        assert await stage.where(TASK) is Where.RUNNING
        assert stage.repairs() == [("task", "guarded")]
        await asyncio.sleep(115)
        token = await stage.token(TASK)
        assert (token.state, token.seq, token.carry) == (State.ARMED, 1, "done")
        assert seconds_of([token.due_at]) == [320.0]
    assert starts_of("task", stage) == [10.0]
    assert await stage.tokens() == 1


async def test_a_guard_makes_room_for_the_token_that_was_lost_once_all_answer(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    broker, silence = mute(stage)
    async with stage.supervised(over=broker):
        await run_once(stage)
        before = await stage.token(TASK)
        await stage.lose(TASK)
        await asyncio.sleep(TWO_ROUNDS)
        assert (await stage.token(TASK)).state is State.GUARD
        await silence.cease()
        await asyncio.sleep(TWO_ROUNDS)
        assert replace(await stage.token(TASK), act=None) == before
    assert stage.repairs() == [("task", "guarded"), ("task", "lost")]


async def test_where_not_all_ever_answer_the_guard_hatches_and_the_loop_goes_on(
    stage: Stage,
) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised(over=mute(stage)[0]):
        await run_once(stage)
        await stage.lose(TASK)
        await asyncio.sleep((CONSUMER_TIMEOUT + GUARD_GRACE).total_seconds() + TWO_ROUNDS)
        assert carried == [(0, None), (1, 1)]
        assert (await stage.token(TASK)).seq == 2


async def test_a_paused_token_that_is_gone_needs_no_answers(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    async with stage.supervised(over=mute(stage)[0]):
        await run_once(stage)
        await stage.verbs.pause(app.loop("task"), "stocktaking")
        before = await stage.token(TASK)
        await stage.lose(TASK)
        await asyncio.sleep(ROUND + 3)
        assert replace(await stage.token(TASK), act=before.act) == before
    assert stage.repairs() == [("task", "lost")]


# Doubled


@pytest.mark.parametrize("more", [1, 2])
async def test_of_several_tokens_in_a_slot_the_furthest_is_left(stage: Stage, more: int) -> None:
    app, _ = counting()
    await stage.seed(app)
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
    assert carried == [(0, None), (1, 1)]


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
    assert set(stage.repairs()) == {("task", "adopted"), ("other", "adopted")}


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
            assert repairs == [("task", "stuck")]
            again = await stage.token(TASK)
            assert (again.seq, again.carry) == (1, 1)
            await asyncio.sleep(600)
    assert reported(stage.events) == ([] if may_declare else [("task", "stuck")])
    assert carried == ([(0, None), (1, 1)] if may_declare else [(0, None)])


@pytest.mark.parametrize("may_declare", [True, False])
async def test_a_slot_that_refuses_the_token_in_hand_is_made_anew_for_it(
    stage: Stage, may_declare: bool
) -> None:
    app, carried = counting()
    await stage.seed(app)
    if not may_declare:
        stage.expects_some_in_hand()
    await stage.verbs.trigger(app.loop("task"))
    async with stage.supervised(over=stuck(stage, may_declare=may_declare)):
        await asyncio.sleep(7 * ROUND)
        told = [("task", "stuck")]
        assert stage.repairs() == (told if may_declare else [])
        assert reported(stage.events) == ([] if may_declare else told)
        if may_declare:
            again = await stage.token(TASK)
            assert (again.seq, again.carry) == (1, 1)
    assert carried == [(0, None)]


def swallowing(stage: Stage) -> FaultyBroker:
    """A broker that confirms a token and has it nowhere, until its queue is deleted."""
    broker = FaultyBroker(stage.server)

    async def swallow(_: Call) -> None:
        await stage.lose(TASK)

    swallowing = broker.on("publish", ".scheduler", key="loop.task").then(swallow)
    broker.on("delete", ".hatchery.task").then(swallowing.cease)
    return broker


async def test_a_slot_in_which_tokens_vanish_is_made_anew(stage: Stage) -> None:
    app, carried = counting()
    await stage.seed(app)
    async with stage.supervised():
        await run_once(stage)
    await stage.lose(TASK)
    async with stage.supervised(over=swallowing(stage)):
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
    told = [("_supervision", "stuck")]
    assert stage.repairs() == (told if may_declare else [])
    assert reported(stage.events) == ([] if may_declare else told)
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


@pytest.mark.parametrize("carried", ["garbage", {"cursor": "many"}, [1], {"cursor": -7}])
async def test_what_another_version_remembered_is_forgotten(stage: Stage, carried: Any) -> None:
    app, _ = counting()
    await stage.seed(app)
    occupant = await stage.hatchery.take(SUPERVISION)
    assert occupant is not None
    await stage.hatchery.replace(occupant, replace(occupant.token, carry=carried))
    async with stage.supervised():
        await asyncio.sleep(ROUND + 1)
        assert (await stage.token(SUPERVISION)).carry == Memory().model_dump()
    assert [census.counted for census in of(CensusTaken, stage.events)] == [1]
    assert of(SupervisionDelayed, stage.events) == []


async def test_a_round_looks_at_so_many_loops_and_the_next_at_the_next(stage: Stage) -> None:
    app, number = new_app(), 2500
    assert LOOKED_AT_IN_A_ROUND == 1000

    async def nothing() -> None: ...

    for n in range(number):
        app.periodic(every="30d", name=f"task{n}")(nothing)

    await stage.seed(app)
    async with stage.supervised():
        lost = [LoopId(f"task{n}") for n in (0, 999, 1000, 2000, 2499)]
        for loop in lost:
            await stage.lose(loop)
        await asyncio.sleep(5 * (ROUND + 2))
        assert {loop for loop, kind in stage.repairs() if kind == "lost"} == set(map(str, lost))
        assert await stage.tokens() == number
    counted = [census.counted for census in of(CensusTaken, stage.events)]
    assert all(1000 <= each <= 1000 + len(lost) for each in counted)


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


async def test_a_processor_that_does_not_consume_yet_answers_to_no_roll_call(stage: Stage) -> None:
    app, _ = counting()
    await stage.seed(app)
    for loop in (TASK, SUPERVISION):
        await stage.broker.delete(app.names.hatchery(loop))
    heard: list[tuple[str | None, bool]] = []

    def hear(message: Message) -> None:
        heard.append((message.type, bool(of(ProcessorStarted, stage.events))))

    following = await stage.broker.follow(app.names.roll_call, hear)
    async with stage.supervised():
        await asyncio.sleep(10)
    await following.cancel()
    assert ("scheduler.question", False) in heard
    assert ("scheduler.answer", False) not in heard
