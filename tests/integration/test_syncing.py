"""Keyed loops made equal to a mapping, on a real broker."""

from typing import Any

from scheduler import Context, Every, Scheduler, Settings
from scheduler.brokers.contract import Broker
from scheduler.protocol.topology import QueueType
from scheduler.timing.clock import SystemClock
from tests.integration.shop import eventually
from tests.stage import at_work, processor_of, program_of
from tests.sweep import clear

KEYS = [f"user-{number}" for number in range(60)]


async def test_many_loops_become_those_of_a_mapping(
    broker: Broker, broker_url: str, namespace: str, queue_type: QueueType
) -> None:
    settings: dict[str, Any] = {"queue_type": queue_type}
    app, ran = Scheduler(namespace, Settings(**settings)), set[tuple[str, int]]()

    @app.task
    async def digest(ctx: Context, user: int = 0) -> None:
        ran.add((ctx.key, user))

    await program_of(app, broker).seeding.seed()
    try:
        with app.lending(broker, SystemClock()):
            first = {key: (Every("300ms"), {"user": 1}) for key in KEYS[:40]}
            assert len((await digest.sync(first)).started) == 40
            second = {key: (Every("300ms"), {"user": 2}) for key in KEYS[20:]}
            synced = await digest.sync(second)
            assert [len(each) for each in (synced.started, synced.rescheduled, synced.stopped)] == [
                20,
                20,
                20,
            ]
            assert len((await digest.sync(second)).unchanged) == 40
            assert {loop.key for loop in await digest.list()} == set(KEYS[20:])
        async with at_work(processor_of(app, broker)):

            async def all_have() -> bool:
                return len(ran) >= 40

            await eventually(all_have)
        assert ran == {(key, 2) for key in KEYS[20:]}
    finally:
        await clear(broker_url, app.topology())
