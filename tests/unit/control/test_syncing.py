"""Keyed loops made equal to a mapping in one call."""

import asyncio
from typing import Any

import pytest

from scheduler import Context, Cron, Every, Scheduler
from scheduler.control.keyed import Synced
from scheduler.errors import BrokerUnavailable, InvalidArguments, UsageError
from scheduler.protocol.tokens import LoopId
from scheduler.sending import CallTask
from tests.faulty import Call, FaultyBroker
from tests.stage import Stage, new_app, program_of


async def with_digest(stage: Stage) -> tuple[Scheduler, CallTask[Any, Any, Any], list[str]]:
    app, ran = new_app(), list[str]()

    @app.task
    async def digest(ctx: Context, user: int = 0) -> None:
        ran.append(f"{ctx.key}:{user}")

    @app.task
    async def other(ctx: Context) -> None: ...

    await stage.seed(app)
    await other.start("a", every="1h")
    return app, digest, ran


async def listed(digest: CallTask[Any, Any, Any]) -> dict[str, Any]:
    return {loop.key: (loop.schedule, loop.args) for loop in await digest.list()}


async def test_loops_are_started_rescheduled_and_stopped(stage: Stage) -> None:
    _, digest, ran = await with_digest(stage)
    first = {"a": Every("1m"), "b": (Every("1m"), {"user": 2}), "c": Every("1m")}
    assert await digest.sync(first) == Synced(["a", "b", "c"], [], [], [])
    assert await digest.sync(first) == Synced([], [], [], ["a", "b", "c"])
    second = {"d": Cron("0 9 * * *"), "b": (Every("1m"), {"user": 3}), "a": Every("1m")}
    assert await digest.sync(second) == Synced(["d"], ["b"], ["c"], ["a"])
    assert await listed(digest) == {
        "a": (Every("1m"), {}),
        "b": (Every("1m"), {"user": 3}),
        "d": (Cron("0 9 * * *"), {}),
    }
    async with stage.processor():
        await asyncio.sleep(61)
    assert sorted(ran) == ["a:0", "b:3"]


@pytest.mark.parametrize(
    ("wrong", "error", "words"),
    [
        ({"b": "1m"}, UsageError, r"digest\.b is an Every or a Cron, or a pair .* got: '1m'"),
        ({"b": (Every("1m"), 5)}, UsageError, r"digest\.b is an Every or a Cron"),
        ({"b c": Every("1m")}, UsageError, "A key has 1 to 100 letters"),
        ({"b": (Every("1m"), {"nope": 1})}, InvalidArguments, "nope"),
    ],
)
async def test_nothing_is_done_where_one_is_wrong(
    stage: Stage, wrong: Any, error: type[Exception], words: str
) -> None:
    _, digest, _ = await with_digest(stage)
    await digest.sync({"kept": Every("1m")})
    with pytest.raises(error, match=words):
        await digest.sync({"a": Every("1m"), **wrong})
    assert set(await listed(digest)) == {"kept"}


async def test_what_could_not_be_done_is_done_by_the_next_call(stage: Stage) -> None:
    app, digest, _ = await with_digest(stage)
    await digest.sync({"old": Every("1m")})
    wanted = {"a": Every("1m"), "b": Every("1m")}
    async with FaultyBroker(stage.server) as broker:
        broker.on("publish", app.names.hatchery_exchange(1)).fails(BrokerUnavailable("It went."))
        app.outbox.release(stage.broker)
        app.outbox.use(broker, stage.clock)
        with pytest.raises(BrokerUnavailable, match="It went") as failed:
            await digest.sync(wanted)
        app.outbox.release(broker)
    assert failed.value.__notes__ == ["Some loops may have been updated; call it again."]
    app.outbox.use(stage.broker, stage.clock)
    # They are in the roster; what did not get its token, supervision finds at its first tick.
    assert await digest.sync(wanted) == Synced([], [], ["old"], ["a", "b"])
    assert set(await listed(digest)) == {"a", "b"}
    stage.expects_none(LoopId("digest", "a"))
    stage.expects_none(LoopId("digest", "b"))


async def test_a_seed_keeps_what_others_change_while_it_goes_on(stage: Stage) -> None:
    app, digest, _ = await with_digest(stage)
    await digest.sync({"moved": Every("1m"), "stopped": Every("1m")})
    reads = 0

    async def change(call: Call) -> None:
        nonlocal reads
        reads += 1
        if reads == 4:  # it has chosen the loops, and reads once more to decide
            await digest.start("moved", every="5m")
            await digest.stop("stopped")

    async with FaultyBroker(stage.server) as broker:
        broker.on("publish", where=lambda call: call.routing_key == app.names.roster).first(change)
        await program_of(app, broker, stage.clock).seeding.seed()
    assert await listed(digest) == {"moved": (Every("5m"), {})}
