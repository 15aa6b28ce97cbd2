"""The broker goes, and comes back; connections, channels and consumers are taken away."""

import asyncio
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any

import pytest

from scheduler import Context, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import Connected, ConnectionLost, RunLost, RunSettled, RunStarted
from scheduler.protocol.topology import QueueType
from tests.contract.proxy import Proxy
from tests.integration.conftest import at_rest
from tests.integration.witness import Witness
from tests.rabbitmq import PrivateNode
from tests.stage import of
from tests.sweep import clear, new_namespace
from tests.tokens import count


async def tokens(app: Scheduler, broker: AmqpBroker) -> int:
    return (await at_rest(lambda: count(broker, app.names, app.loops))).total()


# Of a quorum queue that was younger when 3.10 was killed, what is due may stay inside for ever.
OLD_ENOUGH = 5.0
CALLS = 100
OUTAGES = 2


async def outlives_its_broker(url: str, queue_type: QueueType, goes: asyncio.Barrier) -> None:
    """Have a loop and delayed calls go on over outages, which others have at the same time."""
    values: dict[str, Any] = {"broker_url": url, "queue_type": queue_type}
    app = Scheduler(new_namespace(), Settings(**values))
    witness, late, random = Witness(app), dict[int, timedelta](), Random(1)

    @app.periodic(every="200ms")
    async def beat() -> None: ...

    @app.task(concurrency=100)
    async def work(ctx: Context, n: int) -> None:
        late[n] = datetime.now(UTC) - ctx.scheduled_at

    await witness.seed(url)
    async with witness.at_work(url):
        await asyncio.sleep(OLD_ENOUGH)
        for outage in range(OUTAGES):
            sent = range(outage * CALLS, (outage + 1) * CALLS)
            await work.send_many({"n": n} for n in sent[:10])
            delays = (random.randint(100, 3000) for _ in sent[10:])
            pairs = zip(sent[10:], delays, strict=True)
            await asyncio.gather(*(work.send_later(f"{ms}ms", n) for n, ms in pairs))
            await witness.heard(RunSettled, witness.count(RunSettled) + 20)
            back = witness.count(Connected) + 1
            await goes.wait()
            await goes.wait()  # it is back
            await witness.heard(Connected, back)
            async with asyncio.timeout(40):
                while len(late) <= sent[-1]:
                    await witness.heard(RunSettled, witness.count(RunSettled) + 1)
            await witness.heard(RunSettled, witness.count(RunSettled) + 5)
    assert min(late.values()) >= timedelta(0)
    # RabbitMQ 4.3 may end connections once more when it has just started.
    lost = [each.reason for each in of(ConnectionLost, witness.events)]
    lost = [each for each in lost if "INTERNAL_ERROR" not in each]
    assert len(lost) <= OUTAGES, lost
    async with AmqpBroker(url) as broker:
        assert await tokens(app, broker) == 1
    await clear(url, app.topology())


@pytest.mark.timeout(180)
async def test_loops_and_delayed_calls_outlive_their_broker(node: PrivateNode) -> None:
    goes = asyncio.Barrier(3)
    async with asyncio.TaskGroup() as side_by_side:
        for queue_type in ("quorum", "classic"):
            side_by_side.create_task(outlives_its_broker(node.url, queue_type, goes))
        await goes.wait()
        await asyncio.to_thread(node.restart)
        await goes.wait()
        await goes.wait()
        await asyncio.to_thread(node.kill)
        await asyncio.to_thread(node.start)
        await goes.wait()


@pytest.mark.usefixtures("swept")
async def test_a_run_whose_connection_goes_is_cancelled_and_run_again(
    app: Scheduler, broker_url: str, proxy: Proxy, through: str
) -> None:
    witness = Witness(app)
    going: list[str] = []
    cut_during = asyncio.Event()

    @app.periodic(every="100ms")
    async def slow(ctx: Context) -> None:
        assert not going, "two runs at once"
        going.append(f"{ctx.seq}")
        try:
            cut_during.set()
            await asyncio.sleep(0.5)
        except asyncio.CancelledError:
            await asyncio.sleep(0.2)  # a task may take its time to clean up
            raise
        finally:
            going.clear()

    await witness.seed(broker_url)
    async with witness.at_work(through, supervises=False):
        await cut_during.wait()
        proxy.cut()
        await witness.heard(RunLost, 1)
        await witness.heard(RunSettled, 2)
        started = [event for event in witness.events if isinstance(event, RunStarted)]
        assert [run.seq for run in started[:2]] == [0, 0]
        assert [run.redelivered for run in started[:2]] == [False, True]
    async with AmqpBroker(broker_url) as broker:
        assert await tokens(app, broker) == 1
