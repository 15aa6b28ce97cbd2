"""What comes after a token that was settled before: it is looked for, and put if need be."""

import asyncio
from dataclasses import replace

import pytest

from scheduler import Context
from scheduler.errors import BrokerUnavailable
from scheduler.events import TokenSuperseded
from scheduler.protocol.tokens import Token
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.durations import SECOND
from tests.faulty import FaultyBroker
from tests.stage import Stage, new_app, of


async def come_back_settled(stage: Stage, token: Token) -> None:
    """Have a token that is due handed out again, after its successor was put, and lost."""
    held = await stage.broker.get(stage.app.names.processor_queue(token.loop.task))
    assert held is not None
    assert await stage.hatchery.offer(replace(token, seq=1, due_at=stage.clock.now() + SECOND))
    await stage.lose(token.loop)
    await held.requeue()


async def test_a_successor_that_only_the_journal_heard_of_is_put_again(
    stage: Stage,
) -> None:
    app, ran = new_app(supervision_interval="1h"), list[int]()

    @app.periodic(every="10s")
    async def report(ctx: Context) -> None:
        ran.append(ctx.seq)

    await stage.seed(app)
    loop = app.loop("report").id
    token = await stage.token(loop)
    await asyncio.sleep(11)
    await come_back_settled(stage, token)
    async with stage.supervised():
        await asyncio.sleep(3)
        assert [event.reason for event in of(TokenSuperseded, stage.events)] == ["settled"]
        assert ran == [1]
        assert stage.repairs() == [("report", "lost")]


async def test_a_successor_of_supervision_itself_is_looked_for(stage: Stage) -> None:
    await stage.seed(new_app(supervision_interval="1h"))
    token = await stage.token(SUPERVISION)
    await asyncio.sleep(3601)
    await come_back_settled(stage, token)
    async with stage.supervised():
        await asyncio.sleep(3)
        assert [event.reason for event in of(TokenSuperseded, stage.events)] == ["settled"]
        assert stage.repairs() == [(str(SUPERVISION), "lost")]


async def test_it_is_looked_for_again_when_the_connection_went_meanwhile(stage: Stage) -> None:
    app = new_app(supervision_interval="1h")

    @app.periodic(every="10s")
    async def report() -> None: ...

    await stage.seed(app)
    loop, faulty = app.loop("report").id, FaultyBroker(stage.server)
    token = await stage.token(loop)
    await asyncio.sleep(11)
    await come_back_settled(stage, token)
    looks = faulty.on(
        "depth",
        app.names.processor_queue("report"),
        where=lambda call: bool(of(TokenSuperseded, stage.events)),
        times=2,
    )
    looks.fails(BrokerUnavailable("The connection went."))
    async with stage.supervised(over=faulty):
        await asyncio.sleep(10)
        first, second = (call.at for call in looks.met)
        assert second - first == pytest.approx(1)
        assert stage.repairs() == [("report", "lost")]


async def test_a_successor_that_waits_is_left_alone(stage: Stage) -> None:
    app = new_app(supervision_interval="1h")

    @app.periodic(every="10s")
    async def report() -> None: ...

    await stage.seed(app)
    loop = app.loop("report").id
    token = await stage.token(loop)
    await asyncio.sleep(11)
    held = await stage.broker.get(app.names.processor_queue("report"))
    assert held is not None
    assert await stage.hatchery.offer(replace(token, seq=1, due_at=token.due_at + 60 * SECOND))
    await held.requeue()
    async with stage.supervised():
        await asyncio.sleep(3)
        assert [event.reason for event in of(TokenSuperseded, stage.events)] == ["settled"]
        assert stage.repairs() == []
        assert (await stage.token(loop)).epoch == token.epoch
