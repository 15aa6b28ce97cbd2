"""What becomes of a token that comes: it is run, or its loop's line is elsewhere."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any, Literal

import pytest

from scheduler import Context, Retry, Scheduler, StopLoop
from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.control.reports import Did
from scheduler.control.status import Where
from scheduler.errors import BrokerUnavailable, Unconfirmed
from scheduler.events import (
    Connected,
    ConnectionLost,
    Event,
    ProcessorStopped,
    RunFinished,
    RunSettled,
    RunStarted,
    SuccessorConfirmed,
    TokenDelayed,
    TokenOvertaken,
    TokenSuperseded,
)
from scheduler.processor.loop_turns import LoopTurns
from scheduler.processor.recognition import DUPLICATES_EXPECTED_S
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import Ending, LoopId, State, decode, encode
from scheduler.queues.roll_call import RollCall
from scheduler.queues.roster import Listing
from tests.faulty import Call, FaultyBroker
from tests.stage import START, Stage, at_work, new_app, of, processor_of, program_of, seconds_of

TASK = LoopId("task")


def app_with(takes: float = 0, **options: Any) -> Scheduler:
    """An app with a loop that is due ten seconds after its run before, and carries its ticks."""
    app = new_app()

    @app.periodic(every="10s", concurrency=1, **options)
    async def task(ctx: Context) -> None:
        ctx.carry([*(ctx.carried or []), ctx.seq])
        await asyncio.sleep(takes)

    return app


async def taken_from_queue(stage: Stage) -> Delivery:
    """The first token that is ready for a processor, in our hand."""
    taken = await stage.broker.get(stage.app.names.processor_queue("task"))
    assert taken is not None
    return taken


async def come_back(stage: Stage, *messages: Message) -> None:
    """Have the broker hand these tokens out again, as if they had been in somebody's hand."""
    for message in messages:
        await stage.publish(replace(message, expiration=None), "loop.task")
    for delivery in [await taken_from_queue(stage) for _ in messages]:
        await delivery.requeue()


async def in_slot(stage: Stage) -> Message:
    """The token in the slot, as it travels."""
    return encode(await stage.token(TASK), "test", expiration=None)


async def change(stage: Stage, every: str = "20s") -> None:
    """Have the loop rescheduled by a version of its code that gives it another period."""
    newer = new_app()
    newer.periodic(every=every, name="task")(stage.app.tasks["task"].function)
    seeding = program_of(newer, stage.broker, stage.clock).seeding
    assert [report.did for report in await seeding.seed()] == [Did.RESCHEDULED]


def runs(stage: Stage) -> list[tuple[float, int | None]]:
    """When each run of the loop started, to a tenth of a second, and its tick."""
    events = [run for run in of(RunStarted, stage.events) if run.loop == TASK]
    starts = seconds_of([run.started_at for run in events])
    return [(round(start, 1), run.seq) for start, run in zip(starts, events, strict=True)]


def superseded(stage: Stage) -> list[str]:
    return [event.reason for event in of(TokenSuperseded, stage.events)]


def is_answer(call: Call) -> bool:
    return call.message.type == "scheduler.answer"


# A common run


async def test_a_run_costs_one_publish_and_nothing_else(stage: Stage) -> None:
    await stage.seed(app_with())
    async with (
        FaultyBroker(stage.server) as broker,
        at_work(processor_of(stage.app, broker, stage.clock, supervises=False)),
    ):
        await asyncio.sleep(5)
        broker.calls.clear()
        await asyncio.sleep(200)
        operations = [(call.operation, call.target, call.routing_key) for call in broker.calls]
    assert len(of(RunSettled, stage.events)) == 20
    assert operations == [("publish", stage.app.names.scheduler, "loop.task")] * 20


# R1: void


async def test_a_token_of_an_older_epoch_is_not_run(stage: Stage) -> None:
    await stage.seed(app_with())
    await asyncio.sleep(11)
    taken = await taken_from_queue(stage)
    await stage.verbs.pause(stage.app.loop("task"))
    async with stage.processor():
        await taken.requeue()
        await asyncio.sleep(1)
    assert runs(stage) == []
    assert superseded(stage) == ["void"]


async def test_a_token_that_is_void_when_it_comes_waits_for_no_room(stage: Stage) -> None:
    app = app_with()

    @app.periodic(every="5s")
    async def busy() -> None:
        await asyncio.sleep(3600)

    await stage.seed(app)
    await asyncio.sleep(11)
    taken = await taken_from_queue(stage)
    await stage.verbs.pause(app.loop("task"))
    async with stage.processor(concurrency=1):
        await asyncio.sleep(1)
        await taken.requeue()
        await asyncio.sleep(1)
        assert superseded(stage) == ["void"]


async def test_a_token_tells_of_its_epoch_where_nobody_else_does(stage: Stage) -> None:
    await stage.seed(app_with(takes=5))
    await asyncio.sleep(11)
    taken = await taken_from_queue(stage)
    token = decode(taken.message, "test")
    newer = encode(replace(token, epoch=token.epoch + 1), "test", expiration=None)
    async with stage.processor():
        await stage.publish(newer, "loop.task")
        await asyncio.sleep(1)
        await taken.requeue()
        await asyncio.sleep(5)
    assert runs(stage) == [(11.0, 0)]
    assert superseded(stage) == ["void"]


@pytest.mark.parametrize(
    ("verb", "times"),
    [("pause", 0), ("stop", 0), ("reschedule", 1)],  # what is due by then is in the new epoch too
)
async def test_a_token_that_becomes_void_while_it_waits_for_its_turn_is_not_run(
    stage: Stage, verb: Literal["pause", "stop", "reschedule"], times: int
) -> None:
    app = new_app()

    @app.periodic(every="10s")
    async def busy() -> None:
        await asyncio.sleep(20)

    @app.task()
    async def task() -> None: ...

    await stage.seed(app)
    await task.start("a", every="11s")
    async with stage.processor(concurrency=1):
        await asyncio.sleep(15)
        (loop,) = [each for each in await stage.loops.all() if each.id.key]
        match verb:
            case "pause":
                await stage.verbs.pause(loop)
            case "reschedule":
                await task.start("a", every="1h")
            case "stop":
                await task.stop("a")
        await asyncio.sleep(20)
    assert superseded(stage) == ["void"]
    assert len([run for run in of(RunStarted, stage.events) if run.loop.key]) == times


async def test_a_run_that_goes_on_is_not_touched_by_a_new_epoch(stage: Stage) -> None:
    await stage.seed(app_with(takes=20))
    async with stage.processor():
        await asyncio.sleep(15)
        await change(stage)
        await asyncio.sleep(17)
    assert runs(stage) == [(10.0, 0)]
    assert [run.ending for run in of(RunFinished, stage.events)] == [Ending.SUCCEEDED]
    assert len(of(RunSettled, stage.events)) == 1


async def test_what_a_run_put_beside_a_pause_does_not_run(stage: Stage) -> None:
    """A quorum slot takes another token for some milliseconds after a look into it."""
    await stage.seed(app_with(takes=5))
    broker, requeuing = FaultyBroker(stage.server), list[asyncio.Task[None]]()

    async def make_room(call: Call) -> None:
        while (occupant := await stage.hatchery.take(TASK)) is not None:
            requeuing.append(asyncio.create_task(occupant.delivery.requeue()))

    async with stage.supervised(over=broker):
        await asyncio.sleep(12)
        await stage.verbs.pause(stage.app.loop("task"), "for lunch")
        broker.on("publish", ".scheduler", key="loop.task", times=1).first(make_room)
        await asyncio.sleep(100)
        assert len(requeuing) == 1
        assert runs(stage) == [(10.0, 0)]
        assert await stage.where(TASK) is Where.PAUSED
        await stage.verbs.resume(stage.app.loop("task"))
        await asyncio.sleep(20)
    assert [seq for _, seq in runs(stage)] == [0, 1]


# R2: refused


@pytest.mark.parametrize(
    ("epochs", "ticks", "stays"),
    [(0, 0, False), (-1, 5, False), (0, 1, True), (0, 2, True), (1, 0, True)],
    ids=["behind", "of an older epoch", "as far", "ahead", "of a later epoch"],
)
async def test_what_is_put_takes_the_place_of_what_is_behind_it_alone(
    stage: Stage, epochs: int, ticks: int, stays: bool
) -> None:
    await stage.seed(app_with(takes=5))
    token = await stage.token(TASK)
    other = replace(token, epoch=token.epoch + epochs, seq=token.seq + ticks, carry="other")
    other = replace(other, due_at=stage.clock.now() + timedelta(hours=1))
    async with stage.processor():
        await asyncio.sleep(11)
        assert await stage.hatchery.offer(other)
        await asyncio.sleep(5)
    left = await stage.token(TASK)
    assert (left.epoch, left.seq) == ((other.epoch, other.seq) if stays else (token.epoch, 1))
    assert (left.carry == "other") is stays
    assert [event.by for event in of(TokenOvertaken, stage.events)] == [other] * stays
    assert len(of(RunSettled, stage.events)) == 1


# R3: redelivered


async def test_a_redelivered_token_whose_successor_waits_is_not_run_again(stage: Stage) -> None:
    await stage.seed(app_with())
    token = await in_slot(stage)
    async with stage.processor():
        await asyncio.sleep(11)
    await come_back(stage, token)  # as if its processor had died between publish and ack
    async with stage.processor():
        await asyncio.sleep(1)
    assert runs(stage) == [(10.0, 0)]
    assert superseded(stage) == ["settled"]


async def test_a_redelivered_token_whose_successor_is_elsewhere_is_not_run_again(
    stage: Stage,
) -> None:
    await stage.seed(app_with())
    stage.expects_none(TASK)

    @stage.app.listen
    def lose_the_ack(event: Event) -> None:
        if isinstance(event, SuccessorConfirmed):
            # As if another processor had the successor in hand already.
            assert stage.server.queue(stage.app.names.hatchery(TASK)).take()
            stage.server.disconnect_all()

    async with stage.processor():
        await asyncio.sleep(15)
    assert runs(stage) == [(10.0, 0)]
    assert superseded(stage) == ["settled"]


async def test_a_redelivered_token_that_was_not_settled_is_run(stage: Stage) -> None:
    await stage.seed(app_with(takes=5))
    async with stage.processor():
        await asyncio.sleep(12)
        stage.server.disconnect_all()
        await asyncio.sleep(10)
    assert runs(stage) == [(10.0, 0), (12.0, 0)]
    assert superseded(stage) == []


async def test_a_redelivered_retry_is_not_settled_by_the_attempt_that_put_it(stage: Stage) -> None:
    app = new_app()

    @app.periodic(every="10s", retry=Retry(1, delays=["1s"], jitter=0))
    async def task(ctx: Context) -> None:
        await asyncio.sleep(5)
        if not ctx.attempt:
            raise ValueError

    await stage.seed(app)
    async with stage.processor():
        await asyncio.sleep(18)
        stage.server.disconnect_all()
        await asyncio.sleep(10)
    assert [(run.seq, run.attempt) for run in of(RunStarted, stage.events)] == [
        (0, 0),
        (0, 1),
        (0, 1),
    ]


async def test_of_a_token_and_its_successor_that_come_back_together_the_successor_runs(
    stage: Stage,
) -> None:
    await stage.seed(app_with(takes=20))
    old = await in_slot(stage)
    await asyncio.sleep(11)
    taken = await taken_from_queue(stage)
    token = decode(old, "test")
    successor = replace(token, seq=token.seq + 1)
    assert await stage.hatchery.offer(successor, at_once=True)
    await taken.requeue()
    await (await taken_from_queue(stage)).requeue()
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(25)
    assert [seq for _, seq in runs(stage)] == [1]
    assert superseded(stage) == ["settled"]


async def test_what_was_settled_in_another_life_is_not_settled_in_this_one(stage: Stage) -> None:
    app = new_app()

    @app.task()
    async def task() -> None:
        await asyncio.sleep(5)

    await stage.seed(app)
    await task.start("a", every="10s")
    async with stage.processor():
        await asyncio.sleep(32)
        await task.stop("a")
        await task.start("a", every="10s")
        await asyncio.sleep(14)
        stage.server.disconnect_all()
        await asyncio.sleep(20)
    assert [run.seq for run in of(RunStarted, stage.events)] == [0, 1, 0, 0, 1]


@pytest.mark.parametrize(
    ("away_before", "again"),
    [
        (None, True),
        (0.0, False),
        (DUPLICATES_EXPECTED_S - 10, False),
        (DUPLICATES_EXPECTED_S, True),
    ],
)
async def test_what_a_broker_that_was_away_hands_on_twice_is_run_once(
    stage: Stage, away_before: float | None, again: bool
) -> None:
    await stage.seed(app_with())
    token = await in_slot(stage)
    async with stage.processor():
        await asyncio.sleep(5)
        if away_before is not None:
            stage.app.events.emit(Connected("memory://", "4.0", timedelta(seconds=9)))
            await asyncio.sleep(away_before)
        await asyncio.sleep(6)
        count = len(runs(stage))
        await stage.publish(token, "loop.task")
        await asyncio.sleep(1)
    assert len(runs(stage)) == count + again
    assert superseded(stage) == ([] if again else ["settled"])


async def test_a_redelivered_token_waits_for_the_journal_to_be_read_to_its_end(
    stage: Stage,
) -> None:
    await stage.seed(app_with(takes=5))
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        unread = broker.on("read", ".journal").fails(BrokerUnavailable("It has no leader."))
        await asyncio.sleep(12)
        stage.server.disconnect_all()
        await asyncio.sleep(20)
        assert runs(stage) == [(10.0, 0)]
        assert {event.reason for event in of(TokenDelayed, stage.events)} == {"It has no leader."}
        await unread.cease()
        await asyncio.sleep(6)
    assert [seq for _, seq in runs(stage)] == [0, 0]


@pytest.mark.parametrize("lost", [False, True])
async def test_a_token_that_came_back_waits_for_a_run_of_which_it_was_not_told(
    stage: Stage, lost: bool
) -> None:
    await stage.seed(app_with(takes=20))
    async with stage.supervised() as first:
        await asyncio.sleep(5)
        token = await in_slot(stage)
        await asyncio.sleep(10)
        await come_back(stage, token)
        async with stage.supervised():
            await asyncio.sleep(10)
            if lost:
                first.worker.abort()
                stage.expects_two(TASK)
            await asyncio.sleep(8)
    again = [(pytest.approx(25, abs=1), 0)] if lost else []
    assert runs(stage) == [(10.0, 0), *again]
    assert superseded(stage) == ([] if lost else ["settled"])


async def test_a_token_that_came_back_does_not_run_when_the_other_run_settles_and_ends(
    stage: Stage,
) -> None:
    await stage.seed(app_with(takes=20))
    async with AsyncExitStack() as first:
        await first.enter_async_context(stage.supervised(grace=60))
        await asyncio.sleep(5)
        token = await in_slot(stage)
        await asyncio.sleep(10)
        await come_back(stage, token)
        async with stage.supervised():
            await asyncio.sleep(5)
            await first.aclose()
            await asyncio.sleep(3)
            assert runs(stage) == [(10.0, 0)]
            assert superseded(stage) == ["settled"]


async def test_a_run_is_waited_for_though_its_processor_is_stopping(stage: Stage) -> None:
    await stage.seed(app_with(takes=20))
    async with stage.supervised(grace=60) as first:
        await asyncio.sleep(5)
        token = await in_slot(stage)
        await asyncio.sleep(10)
        first.worker.stop()
        await asyncio.sleep(1)
        await come_back(stage, token)
        async with stage.supervised():
            await asyncio.sleep(20)
    assert runs(stage) == [(10.0, 0)]


async def test_a_run_is_waited_for_though_it_was_given_more_time(stage: Stage) -> None:
    app = new_app()

    @app.periodic(every="10s", timeout="12s", concurrency=1)
    async def task(ctx: Context) -> None:
        ctx.extend("60s")
        await asyncio.sleep(40)

    await stage.seed(app)
    stage.expects_two(TASK)
    async with stage.supervised():
        await asyncio.sleep(5)
        token = await in_slot(stage)
        await asyncio.sleep(10)
        await come_back(stage, token)
        async with stage.supervised():
            await asyncio.sleep(33)
    assert runs(stage) == [(10.0, 0)]


async def test_a_run_is_waited_for_though_an_answer_about_it_is_missing(stage: Stage) -> None:
    await stage.seed(app_with(takes=20))
    stage.expects_two(TASK)
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(5)
        token = await in_slot(stage)
        await asyncio.sleep(10)
        await come_back(stage, token)
        async with stage.supervised():
            await asyncio.sleep(5)
            faltering = broker.on("publish", where=is_answer, times=1)
            faltering.fails(Unconfirmed("The connection faltered."))
            await asyncio.sleep(9)
            assert faltering.met
            assert runs(stage) == [(10.0, 0)]


# R4: the first of an epoch


async def test_a_first_token_waits_for_an_older_run_that_another_processor_is_in(
    stage: Stage,
) -> None:
    await stage.seed(app_with(takes=20))
    async with stage.supervised(tasks=["task"]):
        await asyncio.sleep(15)
        await stage.verbs.pause(stage.app.loop("task"))
        await stage.verbs.resume(stage.app.loop("task"), at_once=True)
        async with stage.supervised():
            await asyncio.sleep(14)
            assert runs(stage) == [(10.0, 0)]
            await asyncio.sleep(24)
    assert runs(stage) == [(10.0, 0), (pytest.approx(30, abs=1.1), 1)]
    assert (await stage.token(TASK)).carry == [0, 1]


def ready(stage: Stage) -> int:
    """How many tokens of the task wait for a processor."""
    return stage.server.queue(stage.app.names.processor_queue("task")).depth().ready


async def test_a_run_that_began_before_a_wrong_repair_goes_on_and_is_not_doubled(
    stage: Stage,
) -> None:
    await stage.seed(app_with(takes=20))
    async with stage.supervised(tasks=["task"]), stage.supervised(tasks=["task"]):
        await asyncio.sleep(15)
        await stage.put_again(TASK)
        await asyncio.sleep(47)
    assert runs(stage) == [(10.0, 0), (40.0, 1)]
    assert [run.seq for run in of(RunSettled, stage.events) if run.loop == TASK] == [0, 1]


async def test_an_older_run_is_waited_for_though_its_processor_is_stopping(stage: Stage) -> None:
    await stage.seed(app_with(takes=20))
    async with AsyncExitStack() as first:
        await first.enter_async_context(stage.supervised(grace=60))
        await asyncio.sleep(15)
        await stage.put_again(TASK)
        async with stage.supervised():
            await first.aclose()
            assert stage.clock.now() >= START + timedelta(seconds=30)
            await asyncio.sleep(5)
            assert runs(stage) == [(10.0, 0)]


async def test_an_older_run_is_waited_for_though_it_was_given_more_time(stage: Stage) -> None:
    app = new_app()

    @app.periodic(every="10s", timeout="12s", concurrency=1)
    async def task(ctx: Context) -> None:
        ctx.extend("60s")
        await asyncio.sleep(40)

    await stage.seed(app)
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(15)
        await stage.put_again(TASK)
        await asyncio.sleep(44)
    assert runs(stage) == [(10.0, 0)]


async def test_an_older_run_is_waited_for_though_an_answer_about_it_is_missing(
    stage: Stage,
) -> None:
    await stage.seed(app_with(takes=20))
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker), stage.supervised():
        await asyncio.sleep(15)
        faltering = broker.on("publish", where=is_answer, times=3)
        faltering.fails(Unconfirmed("The connection faltered."))
        await stage.put_again(TASK)
        await asyncio.sleep(22)
        assert len(faltering.met) == 3
        assert runs(stage) == [(10.0, 0)]


async def test_a_first_token_waits_for_a_processor_that_is_silent_and_tells_of_it(
    stage: Stage,
) -> None:
    await stage.seed(app_with())
    async with stage.processor():
        await asyncio.sleep(5)
        silent = await stage.broker.consume(stage.app.names.presence, lambda _: None, prefetch=1)
        await stage.put_again(TASK)
        await asyncio.sleep(40)
        assert runs(stage) == []
        (told, *_) = of(TokenDelayed, stage.events)
        assert told.reason == "it waits for older runs, or to hear of none, of: an unknown one (0)"
        await silent.cancel()
        await asyncio.sleep(4)
    assert [seq for _, seq in runs(stage)] == [0]


async def test_a_first_token_is_void_if_a_processor_knows_of_a_later_epoch(stage: Stage) -> None:
    await stage.seed(app_with())
    other, names = LoopTurns(Listing()), stage.app.names
    async with MemoryBroker(stage.server) as broker, RollCall(broker, names, other):
        await stage.put_again(TASK)
        other.learn(TASK, (await stage.listing()).known(TASK) + 1)
        async with stage.processor():
            await asyncio.sleep(15)
    assert runs(stage) == []
    assert superseded(stage) == ["void"]
    stage.expects_none(TASK)  # that epoch's token was never put


async def test_what_was_lost_is_put_again_as_it_was_to_wait_for_the_rest_of_its_time(
    stage: Stage,
) -> None:
    await stage.seed(app_with())
    async with stage.processor():
        await asyncio.sleep(25)
        lost = await stage.token(TASK)
        assert (lost.seq, lost.carry) == (2, [0, 1])
        assert lost.last is not None
        assert lost.previous_at is not None
        await stage.lose(TASK)
        await stage.put_again(TASK)
        await asyncio.sleep(1)
        epoch = (await stage.listing()).known(TASK)
        assert epoch > lost.epoch
        assert await stage.token(TASK) == replace(lost, epoch=epoch)
        await asyncio.sleep(5)
    assert runs(stage) == [(10.0, 0), (20.0, 1), (30.0, 2)]


async def test_the_journal_is_read_no_further_back_than_to_where_a_loop_is_heard_of(
    stage: Stage,
) -> None:
    await stage.seed(app_with())
    async with (
        FaultyBroker(stage.server) as broker,
        at_work(processor_of(stage.app, broker, stage.clock, supervises=False)),
    ):
        await asyncio.sleep(3605)
        await stage.lose(TASK)
        broker.calls.clear()
        await stage.put_again(TASK)
        await asyncio.sleep(1)
        again = await stage.token(TASK)
        read = [call.position for call in broker.calls if call.target == stage.app.names.journal]
    assert again.seq == 360
    assert 0 < max(read) < 30
    assert read.count(0) == 1


async def test_what_was_heard_long_ago_is_found(stage: Stage) -> None:
    app = new_app()

    @app.periodic(every="10s")
    async def task(ctx: Context) -> None:
        ctx.carry("so far")
        if ctx.seq == 1:
            raise StopLoop("sold out")

    await stage.seed(app)
    async with stage.processor():
        await asyncio.sleep(86_400)
        await stage.lose(TASK)
        await stage.put_again(TASK)
        await asyncio.sleep(1)
        token = await stage.token(TASK)
    assert (token.seq, token.carry) == (2, "so far")
    assert (token.state, token.reason) == (State.PAUSED, "sold out")


async def test_the_journal_is_not_read_for_a_loop_that_was_started_anew(stage: Stage) -> None:
    app = new_app()

    @app.task()
    async def task(ctx: Context) -> None:
        ctx.carry("of this life")
        assert ctx.carried is None or ctx.seq

    await stage.seed(app)
    await task.start("a", every="10s")
    async with (
        FaultyBroker(stage.server) as broker,
        at_work(processor_of(app, broker, stage.clock, supervises=False)),
    ):
        await asyncio.sleep(25)
        await task.stop("a")
        await task.start("a", every="10s")
        await asyncio.sleep(15)
    assert [run.seq for run in of(RunStarted, stage.events)] == [0, 1, 0]
    assert {run.ending for run in of(RunFinished, stage.events)} == {Ending.SUCCEEDED}
    assert not [call for call in broker.calls if call.target == app.names.journal]


@pytest.mark.parametrize(
    ("after_failure", "state"), [("continue", State.ARMED), ("pause", State.PAUSED)]
)
async def test_a_tick_that_was_delivered_too_often_is_not_run_again(
    stage: Stage, after_failure: str, state: State
) -> None:
    await stage.seed(app_with(after_failure=after_failure))
    await asyncio.sleep(11)
    for _ in range(stage.app.settings.delivery_limit):
        await (await taken_from_queue(stage)).requeue()  # as if it killed its processors
    async with stage.processor():
        await asyncio.sleep(1)
        (parked,) = await stage.parked()
        assert parked.reason == "delivery-limit"
        token = await stage.token(TASK)
        assert (token.seq, token.state) == (1, state)
        await asyncio.sleep(10)
    assert [seq for _, seq in runs(stage)] == ([1] if state is State.ARMED else [])


async def test_a_first_token_that_comes_back_after_it_was_exchanged_is_acked(stage: Stage) -> None:
    await stage.seed(app_with())
    async with (
        FaultyBroker(stage.server) as broker,
        at_work(processor_of(stage.app, broker, stage.clock, supervises=False)),
    ):
        await asyncio.sleep(5)
        exchange = broker.on("publish", ".scheduler", key="loop.task", times=1)

        async def cut(call: Call) -> None:
            stage.server.disconnect_all()

        exchange.then(cut)
        await stage.put_again(TASK)
        await asyncio.sleep(10)
        assert exchange.met
    assert superseded(stage) == ["settled"]
    assert [seq for _, seq in runs(stage)] == [0]


async def test_a_processor_that_stops_gives_a_first_token_back_that_still_waits(
    stage: Stage,
) -> None:
    await stage.seed(app_with(takes=30))
    async with stage.supervised(tasks=["task"]):
        await asyncio.sleep(15)
        await stage.put_again(TASK)
        async with stage.processor(grace=20) as second:
            await asyncio.sleep(2)
            assert ready(stage) == 0
            stopped_at = stage.clock.now()
        assert stage.clock.now() - stopped_at < timedelta(seconds=2)
        assert [event.returned for event in of(ProcessorStopped, stage.events)] == [1]
        assert second.stopping
        async with stage.processor():
            await asyncio.sleep(35)
    assert runs(stage) == [(10.0, 0), (50.0, 1)]


async def test_a_processor_that_stops_gives_back_what_waits_to_know_all_epochs(
    stage: Stage,
) -> None:
    await stage.seed(app_with())
    async with stage.processor(grace=20):
        await asyncio.sleep(5)
        stage.app.events.emit(ConnectionLost("memory://", "cut"))
        await asyncio.sleep(10)
        assert ready(stage) == 0
        stopped_at = stage.clock.now()
    assert stage.clock.now() - stopped_at < timedelta(seconds=2)
    assert ready(stage) == 1
    assert runs(stage) == []


async def test_a_journal_that_falls_silent_is_read_again_before_an_old_loop_goes_on(
    stage: Stage,
) -> None:
    await stage.seed(app_with())
    async with stage.processor():
        await asyncio.sleep(35)
    await asyncio.sleep(24 * 3600)
    await (await taken_from_queue(stage)).ack()
    await stage.put_again(TASK)

    def is_long_reading(call: Call) -> bool:
        reads = [each for each in broker.calls if each.target == stage.app.names.journal]
        return len([each for each in reads if each.operation == "read" and not each.position]) == 3

    async with FaultyBroker(stage.server) as broker:
        silence = broker.on("read", where=is_long_reading, times=1).fails(EOFError())
        async with at_work(processor_of(stage.app, broker, stage.clock, supervises=False)):
            await asyncio.sleep(30)
    assert silence.met
    assert [seq for _, seq in runs(stage)][:4] == [0, 1, 2, 3]
