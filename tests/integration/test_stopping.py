"""A processor that stops while many messages are on their way to it."""

import asyncio
from contextlib import closing

import pytest

from scheduler import Scheduler
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import ProcessorStopped
from scheduler.testing import recording
from tests.integration.test_outages import tokens
from tests.stage import processor_of, program_of

LOOPS = 30


@pytest.mark.usefixtures("swept")
async def test_a_stopping_processor_gives_each_message_back_once(
    app: Scheduler, broker_url: str
) -> None:
    async def nothing() -> None: ...

    for number in range(LOOPS):
        app.periodic(every="100ms", name=f"loop{number}")(nothing)
    queues = [app.names.processor_queue(task) for task in app.tasks]
    async with AmqpBroker(broker_url) as broker:
        await program_of(app, broker).seeding.seed()
        async with asyncio.timeout(20):
            while not all([(await broker.depth(queue)).ready for queue in queues]):  # pyright: ignore[reportOptionalMemberAccess]  # noqa: ASYNC110 - broker
                await asyncio.sleep(0.05)
        with recording(app) as events:
            ours = processor_of(app, broker, supervises=False)
            ours.worker.stop()
            await ours.run()
        (stopped,) = [event for event in events if isinstance(event, ProcessorStopped)]
        # One that came back to us would count against its limit of deliveries.
        assert stopped.returned <= LOOPS
        assert await tokens(app, broker) == LOOPS


def test_a_connection_that_was_closed_leaves_no_task_behind(broker_url: str) -> None:
    async def connect() -> None:
        async with AmqpBroker(broker_url):
            pass

    for _ in range(20):  # one in two did
        with closing(asyncio.new_event_loop()) as loop:
            loop.run_until_complete(connect())
            assert asyncio.all_tasks(loop) == set()
