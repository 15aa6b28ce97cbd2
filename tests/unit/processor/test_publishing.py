"""What must not be lost is published again and again, for as long as its delivery is ours."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import timedelta

import pytest

from scheduler import Retry
from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import BrokerUnavailable, DeliveryLost, Rejected
from scheduler.events import Event, SettlementDelayed
from scheduler.processor.recognition import LAST_S, REPORT_AFTER, SILENCE, PatientPublisher
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names, topology
from scheduler.queues.failed import RECORD_KEY
from scheduler.timing.moments import LoopClock
from tests.stage import Stage, of

Publish = Callable[[], Awaitable[None]]


class Desk:
    """A publisher, and the delivery on whose behalf it publishes.

    Attributes:
        tries: when it has tried to, in seconds.
    """

    def __init__(self, server: MemoryServer, delivery: Delivery) -> None:
        self.server = server
        self.shutdown = Shutdown()
        self.events: list[Event] = []
        self.tries: list[float] = []
        self.delivery = delivery
        self._publisher = PatientPublisher(self.shutdown, self.events.append)

    async def insist(self, publish: Publish) -> None:
        async def attempt() -> None:
            self.tries.append(asyncio.get_running_loop().time())
            await publish()

        await self._publisher.insist(self.delivery, attempt)

    @property
    def pauses(self) -> list[float]:
        """What it told that it would wait, in seconds."""
        delayed = of(SettlementDelayed, self.events)
        return [event.next_in.total_seconds() for event in delayed]


@pytest.fixture
async def desk(clock: LoopClock) -> AsyncIterator[Desk]:
    server, names = MemoryServer(clock), Names("test")
    async with MemoryBroker(server) as broker:
        await broker.declare(topology("test", ["task"]))
        await broker.publish(Message(b"x"), exchange=names.processor, routing_key="loop.task.0")
        delivery = await broker.get(names.processor_queue("task"))
        assert delivery is not None
        yield Desk(server, delivery)


async def fail() -> None:
    raise BrokerUnavailable("It went.")


async def hang() -> None:
    await asyncio.sleep(3600)


async def test_publishing_is_retried_with_doubled_waits_until_confirmed(desk: Desk) -> None:
    async def fail_nine_times() -> None:
        if len(desk.tries) <= 9:
            await fail()

    await desk.insist(fail_nine_times)
    pauses = [0.05, 0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 5, 5]
    assert desk.pauses == pytest.approx(pauses)
    assert desk.tries == pytest.approx([sum(pauses[:number]) for number in range(10)], abs=1e-3)


async def test_an_unconfirmed_publish_is_reported_and_not_repeated(desk: Desk) -> None:
    async def answer_late() -> None:
        await asyncio.sleep(2.5 * REPORT_AFTER.total_seconds())

    await desk.insist(answer_late)
    assert desk.tries == [0]
    assert [(event.reason, event.next_in) for event in of(SettlementDelayed, desk.events)] == [
        (SILENCE, timedelta(seconds=30))
    ] * 2


@pytest.mark.parametrize("publish", [fail, hang])
async def test_publishing_ends_with_the_delivery(desk: Desk, publish: Publish) -> None:
    insisting = asyncio.create_task(desk.insist(publish))
    await asyncio.sleep(0.06)
    desk.server.disconnect_all()
    with pytest.raises(DeliveryLost):
        await insisting
    assert asyncio.get_running_loop().time() < 0.1


@pytest.mark.parametrize(("publish", "error"), [(fail, BrokerUnavailable), (hang, DeliveryLost)])
async def test_publishing_ends_with_the_grace_of_a_shutdown(
    desk: Desk, publish: Publish, error: type[Exception]
) -> None:
    insisting = asyncio.create_task(desk.insist(publish))
    await asyncio.sleep(10)
    desk.shutdown.begin()
    await asyncio.sleep(10)
    assert not insisting.done()
    desk.shutdown.abort()
    with pytest.raises(error):
        await insisting
    assert (now := asyncio.get_running_loop().time()) <= 25
    with pytest.raises(error):  # of a run that ends later
        await desk.insist(publish)
    assert asyncio.get_running_loop().time() <= now + LAST_S


async def test_nothing_is_published_for_a_lost_delivery(desk: Desk) -> None:
    async def go_with_the_delivery() -> None:
        # In the pause before the next try.
        asyncio.get_running_loop().call_later(0.02, desk.delivery.lost.set_result, None)
        await fail()

    with pytest.raises(DeliveryLost):
        await desk.insist(go_with_the_delivery)
    assert desk.tries == [0]


async def test_a_message_is_parked_once_though_the_journal_refuses_its_record(
    stage: Stage,
) -> None:
    work = stage.task("work", raised=ValueError("boom"), retry=Retry(0))
    await stage.seed()
    await work.send()
    refused = stage.faulty.on("publish", key=RECORD_KEY, times=3).fails(Rejected())
    await stage.work(10, over=stage.faulty)
    assert len(refused.met) == 3
    assert len(await stage.parked()) == 1
