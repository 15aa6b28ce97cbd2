"""What a real broker lets us know about the time that a message took."""

import asyncio
from datetime import timedelta

import pytest

from scheduler import Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import RunStarted
from tests.contract.wire import eventually
from tests.integration.witness import Witness
from tests.stage import at_work, of, processor_of, program_of

SECOND = timedelta(seconds=1)


@pytest.mark.usefixtures("swept")
async def test_what_waited_for_a_processor_is_told_from_what_hatched_late(
    app: Scheduler, broker_url: str
) -> None:
    witness = Witness(app)

    @app.periodic(every="500ms")
    async def beat() -> None: ...

    async with AmqpBroker(broker_url, emit=app.events.emit) as broker:
        await program_of(app, broker).seeding.seed()
        await eventually(lambda: is_ready(app, broker))
        await asyncio.sleep(2.5)  # nobody is there
        async with at_work(processor_of(app, broker, concurrency=1, grace=1, supervises=False)):
            await witness.heard(RunStarted, 2)
    first, second = of(RunStarted, witness.events)[:2]
    assert first.hatch_delay is not None
    assert first.ready_delay is not None
    # A second is all that the broker tells.
    assert first.hatch_delay < first.ready_delay
    assert 1.5 * SECOND < first.ready_delay < first.late
    assert second.hatch_delay is not None
    assert second.ready_delay is not None
    for run in (first, second):
        parts = (run.hatch_delay, run.ready_delay, run.start_delay)
        assert sum(filter(None, parts), timedelta(0)) <= run.late + SECOND


async def is_ready(app: Scheduler, broker: AmqpBroker) -> bool:
    depth = await broker.depth(app.names.processor_queue("beat"))
    return depth is not None and depth.ready > 0
