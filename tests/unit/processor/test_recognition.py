"""What becomes of a token that comes: it is run, or its loop's line is elsewhere."""

import asyncio
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Retry, Scheduler, StopLoop
from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.control.loops import Where
from scheduler.errors import BrokerUnavailable, NoSpace, Unconfirmed
from scheduler.events import (
    ProcessorStopped,
    RunLost,
    RunSettled,
    RunStarted,
    TokenDelayed,
    TokenSuperseded,
)
from scheduler.processor import recognition
from scheduler.processor.recognition import LoopTurns
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.hatchery import NO_WAIT
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import (
    LoopId,
    Replay,
    Token,
    decode,
    encode,
    loop_named_by,
    rest_key,
    token_key,
)
from scheduler.queues.entries import ENTRY_TYPE
from scheduler.queues.listing import Listing
from scheduler.queues.roll_call import RollCall
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.schedules import Every
from tests.faulty import Call, FaultyBroker
from tests.stage import START, Stage, at_work, new_app, of, processor_of, seconds_of

TASK = LoopId("task")
KEY = token_key(TASK, NO_WAIT.key)


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


async def come_back(stage: Stage, message: Message) -> None:
    """Have the broker hand this token out again, as if a processor had lost it."""
    await stage.publish(message, KEY)
    await (await taken_from_queue(stage)).requeue()


async def as_sent(stage: Stage) -> Message:
    """The token that waits, as it travels."""
    return encode(await stage.token(TASK), "test")


async def waiting(stage: Stage) -> list[Token]:
    """The tokens of the loop that wait, but void ones."""
    known = (await stage.listing()).known(TASK)
    tokens = await stage.all_tokens()
    return [token for token in tokens if token.loop == TASK and token.epoch == known]


def runs(stage: Stage) -> list[tuple[float, int | None]]:
    """When each run of the loop started, to a tenth of a second, and its tick."""
    events = [run for run in of(RunStarted, stage.events) if run.loop == TASK]
    starts = seconds_of([run.started_at for run in events])
    return [(round(start, 1), run.seq) for start, run in zip(starts, events, strict=True)]


def superseded(stage: Stage) -> list[str]:
    return [event.reason for event in of(TokenSuperseded, stage.events)]


def is_put(call: Call) -> bool:
    """Whether it publishes a token of the loop: for its timers, its task, or the journal alone."""
    key = call.routing_key
    return call.operation == "publish" and (key == rest_key(TASK) or loop_named_by(key) == TASK)


def is_exchange(call: Call) -> bool:
    """Whether it publishes a token of the loop that waits."""
    return call.operation == "publish" and loop_named_by(call.routing_key) == TASK


def exchanges(stage: Stage) -> int:
    return len([call for call in stage.faulty.calls if is_exchange(call)])


def is_entry(call: Call) -> bool:
    return call.message.type == ENTRY_TYPE


def is_answer(call: Call) -> bool:
    return call.message.type == "scheduler.answer"


# R1: void


async def test_a_void_token_waits_for_no_free_slot(stage: Stage) -> None:
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


async def test_a_token_announces_an_unknown_epoch(stage: Stage) -> None:
    await stage.seed(app_with(takes=5))
    await asyncio.sleep(11)
    taken = await taken_from_queue(stage)
    token = decode(taken.message, "test")
    newer = encode(replace(token, epoch=token.epoch + 1), "test")
    async with stage.processor():
        await stage.publish(newer, KEY)
        await asyncio.sleep(1)
        await taken.requeue()
        await asyncio.sleep(5)
    assert runs(stage) == [(11.0, 0)]
    assert superseded(stage) == ["void"]


async def test_a_token_voided_while_it_waits_does_not_run(stage: Stage) -> None:
    app = app_with()

    @app.periodic(every="9s")
    async def busy() -> None:
        await asyncio.sleep(20)

    await stage.seed(app)
    async with stage.processor(concurrency=1):
        await asyncio.sleep(15)
        await stage.verbs.pause(app.loop("task"))
        await asyncio.sleep(20)
    assert superseded(stage) == ["void"]
    assert runs(stage) == []


async def test_a_token_is_requeued_while_the_table_of_loops_has_no_space(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(loop: LoopId) -> int:
        raise NoSpace("The disk is full.")

    await stage.seed(app_with())
    async with stage.processor() as worker:
        with monkeypatch.context() as full:
            full.setattr(worker.pipeline.recognition.turns, "known", fail)
            await asyncio.sleep(12)
        await asyncio.sleep(8)
    assert await stage.parked() == []
    assert [seq for _, seq in runs(stage)] == [0]


async def test_the_successor_of_a_void_run_goes_to_the_journal_only(stage: Stage) -> None:
    await stage.seed(app_with(takes=5))
    async with stage.processor(over=stage.faulty):
        await asyncio.sleep(12)
        await stage.verbs.pause(stage.app.loop("task"), "for lunch")
        await asyncio.sleep(100)
        assert [call.routing_key for call in stage.faulty.calls if is_put(call)] == [rest_key(TASK)]
        assert TASK not in {token.loop for token in await stage.all_tokens()}
        assert runs(stage) == [(10.0, 0)]
        assert await stage.where(TASK) is Where.PAUSED
        await stage.verbs.resume(stage.app.loop("task"))
        await asyncio.sleep(16)
    assert [seq for _, seq in runs(stage)] == [0, 1]
    assert (await stage.token(TASK)).carry == [0, 1]


# R3: redelivered


async def test_a_token_with_a_waiting_successor_does_not_run_again(stage: Stage) -> None:
    await stage.seed(app_with())
    token = await as_sent(stage)
    async with stage.processor():
        await asyncio.sleep(11)
        await stage.publish(token, KEY)  # as a node does that hands it out twice
        await asyncio.sleep(1)
        assert superseded(stage) == ["settled"]
    await come_back(stage, token)  # as if its processor had died between publish and ack
    await stage.work(1)
    assert runs(stage) == [(10.0, 0)]
    assert superseded(stage) == ["settled"] * 2


async def stop(ctx: Context) -> None:
    ctx.carry("so far")
    raise StopLoop("sold out")


async def fit_no_more(number: int) -> None: ...


@pytest.mark.parametrize(
    ("function", "ran", "reason", "seq"),
    [(stop, 1, "sold out", 1), (fit_no_more, 0, "number: Field required", 0)],
)
async def test_a_pause_missed_by_a_killed_processor_is_entered_by_the_next(
    stage: Stage, function: Any, ran: int, reason: str, seq: int
) -> None:
    old, new = new_app(), new_app()

    @old.task(name="task")
    async def before() -> None: ...

    new.task(name="task")(function)
    await stage.seed(old)
    await before.start("a", every="10s")
    loop = LoopId("task", "a")
    new.events.listen(stage.events.append)
    async with FaultyBroker(stage.server) as broker:
        whole = processor_of(new, broker, stage.clock, supervises=False)

        async def die(call: Call) -> None:
            whole.worker.abort()
            raise Unconfirmed("It went.")

        entering = broker.on("publish", where=is_entry).first(die)
        async with at_work(whole):
            await asyncio.sleep(20)
        assert entering.met
    listed = (await stage.listing())[loop]
    assert listed.entry.state is LoopState.ACTIVE
    await stage.work(2, app=new)
    listed = (await stage.listing())[loop]
    assert listed.entry.state is LoopState.PAUSED
    assert reason in listed.reason
    assert listed.checkpoint is not None
    assert listed.checkpoint.token("test").seq == seq
    assert len(of(RunStarted, stage.events)) == ran
    assert await stage.all_tokens() == [await stage.token(SUPERVISION)]


async def test_a_redelivered_token_runs_after_an_earlier_attempt_was_settled(stage: Stage) -> None:
    @stage.app.periodic(every="10s", retry=Retry(1, delays=["1s"], jitter=0))
    async def task(ctx: Context) -> None:
        await asyncio.sleep(5)
        if ctx.attempt == 1:
            raise ValueError

    await stage.seed()
    async with stage.processor():
        await asyncio.sleep(18)
        stage.server.disconnect_all()
        await asyncio.sleep(10)
    started = [(run.seq, run.attempt, run.redelivered) for run in of(RunStarted, stage.events)]
    assert started == [(0, 1, False), (0, 2, False), (0, 2, True)]
    assert len(of(RunLost, stage.events)) == 1
    assert superseded(stage) == []


async def test_settlements_of_another_life_do_not_count(stage: Stage) -> None:
    task = stage.task("task", takes=5)
    await stage.seed()
    await task.start("a", every="10s")
    async with stage.processor():
        await asyncio.sleep(32)
        await task.stop("a")
        await task.start("a", every="10s")
        await asyncio.sleep(14)
        stage.server.disconnect_all()
        await asyncio.sleep(20)
    assert [run.seq for run in of(RunStarted, stage.events)] == [0, 1, 0, 0, 1]


@pytest.mark.parametrize("meanwhile", ["works", "gets the first token", "stops"])
@pytest.mark.parametrize("is_taken", [True, False])
async def test_an_unconfirmed_put_is_repeated_unless_the_broker_has_it(
    stage: Stage, is_taken: bool, meanwhile: str
) -> None:
    await stage.seed(app_with(takes=5))
    async with stage.processor(over=stage.faulty, grace=20):
        fault = stage.faulty.on("publish", where=is_exchange, times=1)
        _ = fault.loses_its_answer() if is_taken else fault.fails(Unconfirmed("It went."))
        if meanwhile == "stops":
            stage.faulty.on("read", ".journal", times=1).fails(BrokerUnavailable("It went."))
        await asyncio.sleep(12)
        if meanwhile == "gets the first token":  # it is exchanged once the run has ended
            await stage.put_again(TASK)
        if meanwhile != "stops":
            await asyncio.sleep(8)
    assert stage.clock.now() < START + timedelta(seconds=16 if meanwhile == "stops" else 21)
    assert exchanges(stage) == (1 if is_taken else 2)
    assert [token.seq for token in await waiting(stage)] == [1]
    assert [seq for _, seq in runs(stage)] == [0]


async def test_a_redelivered_token_waits_for_the_journal_to_be_read_to_its_end(
    stage: Stage,
) -> None:
    await stage.seed(app_with(takes=5))
    async with stage.supervised(over=stage.faulty):
        unread = stage.faulty.on("read", ".journal").fails(BrokerUnavailable("It has no leader."))
        await asyncio.sleep(12)
        stage.server.disconnect_all()
        await asyncio.sleep(20)
        assert runs(stage) == [(10.0, 0)]
        assert {event.reason for event in of(TokenDelayed, stage.events)} == {"It has no leader."}
        await unread.cease()
        await asyncio.sleep(6)
    assert [seq for _, seq in runs(stage)] == [0, 0]


async def test_a_redelivered_token_runs_again_once_its_unreported_run_is_lost(stage: Stage) -> None:
    await stage.seed(app_with(takes=20))
    async with stage.supervised() as first:
        await asyncio.sleep(5)
        token = await as_sent(stage)
        await asyncio.sleep(10)
        await come_back(stage, token)
        async with stage.supervised():
            await asyncio.sleep(10)
            assert runs(stage) == [(10.0, 0)]
            first.worker.abort()
            stage.expects_two(TASK)
            await asyncio.sleep(8)
    assert runs(stage) == [(10.0, 0), (pytest.approx(25, abs=1), 0)]
    assert superseded(stage) == []


@pytest.mark.parametrize("is_first", [False, True], ids=["the same", "the first of an epoch"])
async def test_a_token_waits_for_an_older_run_on_any_processor(
    stage: Stage, is_first: bool
) -> None:
    @stage.app.periodic(every="10s", timeout="12s", concurrency=1)
    async def task(ctx: Context) -> None:
        ctx.extend("60s")
        await asyncio.sleep(40)

    await stage.seed()
    async with AsyncExitStack() as first:
        await first.enter_async_context(stage.supervised(grace=60, over=stage.faulty))
        await asyncio.sleep(5)
        token = await as_sent(stage)
        await asyncio.sleep(10)
        await (stage.put_again(TASK) if is_first else come_back(stage, token))
        async with stage.supervised():
            await asyncio.sleep(5)
            faltering = stage.faulty.on("publish", where=is_answer, times=1)
            faltering.fails(Unconfirmed("The connection faltered."))
            await asyncio.sleep(13)
            assert faltering.met
            assert runs(stage) == [(10.0, 0)]  # beyond the timeout that it began with
            await first.aclose()  # it settles, and ends
            assert stage.clock.now() >= START + timedelta(seconds=50)
            await asyncio.sleep(3)
            assert runs(stage) == [(10.0, 0)]
            assert superseded(stage) == ([] if is_first else ["settled"])


# R4: the first of an epoch


async def test_a_run_begun_before_a_wrong_repair_continues_undoubled(stage: Stage) -> None:
    await stage.seed(app_with(takes=20))
    async with stage.supervised(tasks=["task"]), stage.supervised(tasks=["task"]):
        await asyncio.sleep(15)
        await stage.put_again(TASK)
        await asyncio.sleep(47)
    assert runs(stage) == [(10.0, 0), (40.0, 1)]
    assert [run.seq for run in of(RunSettled, stage.events) if run.loop == TASK] == [0, 1]


async def test_a_first_token_waits_for_a_silent_processor_and_reports_it(stage: Stage) -> None:
    await stage.seed(app_with())
    async with stage.processor():
        await asyncio.sleep(5)
        silent = await stage.broker.consume(stage.app.names.presence, lambda _: None, prefetch=1)
        await stage.put_again(TASK)
        await asyncio.sleep(40)
        assert runs(stage) == []
        (told, *_) = of(TokenDelayed, stage.events)
        assert told.reason == (
            "waiting for older runs, or for their absence to be confirmed, by an unknown processor "
            "(1)"
        )
        await silent.cancel()
        await asyncio.sleep(4)
    assert [seq for _, seq in runs(stage)] == [0]


async def test_a_first_token_is_void_if_a_processor_knows_of_a_later_epoch(stage: Stage) -> None:
    await stage.seed(app_with())
    other, names = LoopTurns(Listing()), stage.app.names
    async with MemoryBroker(stage.server) as broker, RollCall(broker, names, other):
        other.learn(TASK, (await stage.listing()).known(TASK) + 1_000_000)
        await stage.put_again(TASK)
        await stage.work(15)
    assert runs(stage) == []
    assert superseded(stage) == ["void"] * 2  # it, and the one before it
    stage.expects_none(TASK)  # that epoch's token was never put


async def test_the_journal_is_read_back_only_to_the_last_record_of_a_loop(stage: Stage) -> None:
    await stage.seed(app_with(takes=5))
    async with stage.processor(over=stage.faulty):
        await asyncio.sleep(3612)
        stage.faulty.calls.clear()
        await stage.put_again(TASK)  # while a run goes on: it is its processor that exchanges it
        await asyncio.sleep(5)
        again = await stage.token(TASK)
        read = [
            call.position for call in stage.faulty.calls if call.target == stage.app.names.journal
        ]
    assert again.seq == 241
    assert 0 < max(read) < 30
    assert read.count(0) == 1


async def test_a_redelivered_first_token_is_acked_after_its_exchange(stage: Stage) -> None:
    await stage.seed(app_with(takes=5))
    async with stage.processor(over=stage.faulty):
        await asyncio.sleep(12)
        exchange = stage.faulty.on("publish", where=is_exchange, times=1)

        async def cut(call: Call) -> None:
            stage.server.disconnect_all()

        exchange.then(cut)
        await stage.put_again(TASK)
        await asyncio.sleep(20)
        assert exchange.met
    assert superseded(stage) == ["settled"]
    assert [seq for _, seq in runs(stage)] == [0, 1]


async def test_a_stopping_processor_requeues_a_waiting_first_token(stage: Stage) -> None:
    await stage.seed(app_with(takes=30))
    async with stage.supervised(tasks=["task"]):
        await asyncio.sleep(15)
        await stage.put_again(TASK)
        async with stage.processor(grace=20) as second:
            await asyncio.sleep(2)
            assert await stage.ready_for("task") == 0
            stopped_at = stage.clock.now()
        assert stage.clock.now() - stopped_at < timedelta(seconds=2)
        assert [event.returned for event in of(ProcessorStopped, stage.events)] == [1]
        assert second.stopping
        await stage.work(35)
    assert runs(stage) == [(10.0, 0), (50.0, 1)]


async def test_a_silent_journal_is_read_again_before_an_old_loop_continues(stage: Stage) -> None:
    await stage.seed(app_with())
    await stage.work(35)
    await asyncio.sleep(24 * 3600)
    await (await taken_from_queue(stage)).ack()
    await stage.put_again(TASK)

    def is_long_reading(call: Call) -> bool:
        reads = [each for each in stage.faulty.calls if each.target == stage.app.names.journal]
        return len([each for each in reads if each.operation == "read" and not each.position]) == 3

    silence = stage.faulty.on("read", where=is_long_reading, times=1).fails(EOFError())
    await stage.work(30, over=stage.faulty)
    assert silence.met
    assert [seq for _, seq in runs(stage)][:4] == [0, 1, 2, 3]


def test_the_settled_tokens_of_the_last_loops_are_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recognition, "MOST_REMEMBERED", 2)
    turns, token = LoopTurns(Listing()), Token(TASK, Every("1h"), START, START, epoch=4, seq=7)
    others = [replace(token, loop=LoopId("task", key)) for key in "ab"]
    for each in token, others[0], token, others[1]:
        turns.settle(each)
    turns.settle(replace(Replay.of(token), epoch=4, seq=9))  # it is next to the line
    assert [turns.is_behind(each) for each in (token, *others)] == [True, False, True]
    assert not turns.is_behind(replace(token, seq=8))


@pytest.mark.parametrize("too_early", [5, 1800])
@pytest.mark.parametrize("is_cut", [False, True])
async def test_an_early_token_returns_to_its_timers_once(
    stage: Stage, is_cut: bool, too_early: float
) -> None:
    begun = list[int]()

    @stage.app.periodic(every="1h")
    async def task(ctx: Context) -> None:
        begun.append(ctx.seq)
        await asyncio.sleep(30)

    await stage.seed()
    token = await stage.token(TASK)
    await stage.lose(TASK)
    returns = stage.faulty.on("publish", where=is_exchange, times=1)

    async def cut(_: Call) -> None:
        stage.faulty.lose()
        raise BrokerUnavailable("It went.")

    async with stage.supervised(over=stage.faulty):
        await asyncio.sleep(3600 - too_early)
        returns.then(cut) if is_cut else returns.loses_its_answer()
        await stage.timers.put_now(token)
        await asyncio.sleep(1)
        assert returns.met
        async with stage.supervised():
            await asyncio.sleep(2 * 3600)
    assert begun == [0, 1]
