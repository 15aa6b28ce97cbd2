"""What supervision notes of loops that wait for long, and what that saves."""

import asyncio
from dataclasses import replace

import pytest

from scheduler import Context, Scheduler, StopLoop
from scheduler.control import notes
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.queues import roster
from scheduler.queues.checkpoints import MOST_BYTES
from tests.faulty import Call, FaultyBroker
from tests.stage import Stage, at_work, new_app, processor_of, program_of

TASK, HOUR, MINUTES = LoopId("task"), 3_600, 300
ROUNDS = 100


def app_with(every: str = "1h", *, carries: str = "so far", stops: bool = False) -> Scheduler:
    app = new_app()

    @app.periodic(every=every)
    async def task(ctx: Context) -> None:
        ctx.carry(carries)
        if stops:
            raise StopLoop("sold out")

    return app


async def noted(stage: Stage, loop: LoopId = TASK) -> Token | None:
    checkpoint = (await stage.listing())[loop].checkpoint
    return None if checkpoint is None else checkpoint.token("test")


def is_note(call: Call) -> bool:
    return call.routing_key == "test.v1.roster" and b"checkpoint" in call.message.body


async def test_what_waits_for_long_is_noted_once_for_each_time_it_waits(stage: Stage) -> None:
    await stage.seed(app_with())
    async with FaultyBroker(stage.server) as broker, stage.supervised(over=broker):
        await asyncio.sleep(ROUNDS)
        assert await noted(stage) == await stage.token(TASK)
        assert len(list(filter(is_note, broker.calls))) == 1
        await asyncio.sleep(HOUR)
        token = await stage.token(TASK)
        assert await noted(stage) == token
        assert (token.seq, token.carry) == (1, "so far")
        assert len(list(filter(is_note, broker.calls))) == 2


@pytest.mark.parametrize(("every", "is_noted"), [("1m", True), ("59s", False)])
async def test_what_is_due_soon_is_not_noted(stage: Stage, every: str, is_noted: bool) -> None:
    app = new_app()
    looked = stage.clock.now()

    @app.periodic(every=every)
    async def task() -> None: ...

    await stage.seed(app)
    token = await stage.token(TASK)
    entries = notes.Notes(stage.program.roster, await stage.listing(), "test", stage.clock)
    assert stage.clock.now() == looked
    assert await entries.take([token], 0) == is_noted


@pytest.mark.parametrize(("length", "is_noted"), [(MOST_BYTES // 2, True), (MOST_BYTES, False)])
async def test_what_carries_much_is_not_noted(stage: Stage, length: int, is_noted: bool) -> None:
    await stage.seed(app_with(carries="x" * length))
    async with stage.supervised():
        await asyncio.sleep(HOUR + ROUNDS)
        token = await stage.token(TASK)
        assert token.seq == 1
        assert (await noted(stage) == token) is is_noted


async def test_a_loop_that_its_own_run_has_paused_is_noted(stage: Stage) -> None:
    await stage.seed(app_with("10s", stops=True))
    async with stage.supervised():
        await asyncio.sleep(ROUNDS)
        token = await stage.token(TASK)
        assert await noted(stage) == token
        assert token.state is State.PAUSED
        checkpoint = (await stage.listing())[TASK].checkpoint
        assert checkpoint is not None
        assert checkpoint.until.year == 9000  # nothing comes after it until it is resumed


async def test_what_has_not_joined_its_loop_is_not_noted(stage: Stage) -> None:
    await stage.seed(app_with())
    await stage.verbs.pause(stage.app.loop("task"))
    async with stage.supervised():
        await asyncio.sleep(ROUNDS)
        assert (await stage.token(TASK)).first
        assert await noted(stage) is None


async def test_what_is_of_another_epoch_than_the_roster_knows_is_not_noted(stage: Stage) -> None:
    await stage.seed(app_with())
    token, listing = await stage.token(TASK), await stage.listing()
    known = notes.Notes(stage.program.roster, listing, "test", stage.clock)
    for epoch in token.epoch - 1, token.epoch + 1:
        assert await known.take([replace(token, epoch=epoch)], 0) == 0
    stranger = replace(token, loop=LoopId("never", "listed"))
    assert await known.take([stranger], 0) == 0
    assert await known.take([stranger, token], 3) == 4


async def test_for_a_slow_loop_that_was_lost_minutes_of_the_journal_are_read(
    stage: Stage,
) -> None:
    app = app_with()

    @app.periodic(every="10s")
    async def busy() -> None: ...

    await stage.seed(app)
    async with FaultyBroker(stage.server) as broker, stage.supervised(over=broker):
        await asyncio.sleep(HOUR + MINUTES)
        lost = await stage.token(TASK)
        assert (lost.seq, lost.carry) == (1, "so far")
        await stage.lose(TASK)
        broker.calls.clear()
        await asyncio.sleep(ROUNDS)
        again = await stage.token(TASK)
        assert again == replace(lost, epoch=again.epoch)
        assert again.epoch > lost.epoch
        read = [call for call in broker.calls if call.target == app.names.journal]
        assert 0 < max(call.position for call in read) < 50


async def test_what_was_put_since_it_was_noted_is_found(stage: Stage) -> None:
    await stage.seed(app_with())
    async with stage.supervised():
        await asyncio.sleep(ROUNDS)
    async with at_work(processor_of(stage.app, stage.broker, stage.clock, supervises=False)):
        await stage.verbs.trigger(stage.app.loop("task"))
        await asyncio.sleep(MINUTES)
        before = await noted(stage)
        assert (before and before.seq, (await stage.token(TASK)).seq) == (0, 1)
        await stage.lose(TASK)
        await stage.put_again(TASK)
        await asyncio.sleep(1)
        assert ((await stage.token(TASK)).seq, (await stage.token(TASK)).carry) == (1, "so far")


async def test_what_was_noted_in_an_earlier_life_is_forgotten(stage: Stage) -> None:
    app = new_app()

    @app.task()
    async def task(ctx: Context) -> None: ...

    await stage.seed(app)
    await task.start("a", every="1h")
    async with stage.supervised():
        await asyncio.sleep(2 * HOUR + MINUTES)
        token = await noted(stage, LoopId("task", "a"))
        assert token is not None
        assert token.seq == 2
        await task.stop("a")
        await task.start("a", every="1h")
        assert await noted(stage, LoopId("task", "a")) is None
        await stage.lose(LoopId("task", "a"))
        await asyncio.sleep(ROUNDS)
        assert (await stage.token(LoopId("task", "a"))).seq == 0


async def test_what_was_noted_is_part_of_snapshots(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(notes, "FEW", 2)
    monkeypatch.setattr(roster, "FEW", 2)
    app = new_app()

    @app.task()
    async def task() -> None: ...

    await stage.seed(app)
    keys = [LoopId("task", key) for key in "abc"]
    for loop in keys:
        await task.start(loop.key, every="1h")
    before = await stage.broker.last(app.names.snapshots)
    async with FaultyBroker(stage.server) as broker, stage.supervised(over=broker):
        await asyncio.sleep(ROUNDS)
        after = await stage.broker.last(app.names.snapshots)
        assert after is not None
        assert after != before
        assert len(list(filter(is_note, broker.calls))) == 3
        assert [await noted(stage, loop) for loop in keys] == [
            await stage.token(loop) for loop in keys
        ]


@pytest.mark.parametrize(("before", "counted", "read"), [(1, 2, 0), (2, 0, 1)])
async def test_when_so_many_were_noted_the_roster_is_read_and_they_are_counted_anew(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, before: int, counted: int, read: int
) -> None:
    monkeypatch.setattr(notes, "FEW", 2)
    await stage.seed(app_with())
    async with FaultyBroker(stage.server) as broker:
        over = program_of(stage.app, broker, stage.clock).roster
        its = notes.Notes(over, await stage.listing(), "test", stage.clock)
        assert await its.take([await stage.token(TASK)], before) == counted
    assert len([call for call in broker.calls if call.operation == "last"]) == read


@pytest.mark.parametrize("verb", ["pause", "trigger"])
async def test_for_what_was_found_in_its_slot_the_journal_is_not_read(
    stage: Stage, verb: str
) -> None:
    await stage.seed(app_with("1h"))
    async with (
        FaultyBroker(stage.server) as broker,
        at_work(processor_of(stage.app, broker, stage.clock, supervises=False)),
    ):
        await asyncio.sleep(HOUR + 60)
        loop = stage.app.loop("task")
        if verb == "pause":
            await stage.verbs.pause(loop)
            await asyncio.sleep(HOUR)
            await stage.verbs.resume(loop, at_once=True)
        else:
            await stage.verbs.trigger(loop)
        await asyncio.sleep(1)
        assert (await stage.token(TASK)).seq == 2
        assert not [call for call in broker.calls if call.target == stage.app.names.journal]
