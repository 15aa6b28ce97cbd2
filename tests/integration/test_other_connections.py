"""A program that uses the driver itself has connections of its own: ours leave them alone."""

import aiormq
import pytest
from aiormq.exceptions import AMQPConnectionError

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.amqp.driver import closing_of
from scheduler.errors import IncompatibleBroker
from scheduler.events import Connected, Event
from scheduler.protocol.topology import Topology
from tests.contract.proxy import Proxy
from tests.contract.wire import RabbitWire, eventually


async def test_a_queue_that_it_has_for_itself_is_none_of_ours(broker_url: str) -> None:
    async with RabbitWire("classic", broker_url) as wire:
        queue = wire.queue()
        other = await aiormq.connect(broker_url)
        await (await other.channel()).queue_declare(queue.name, exclusive=True)
        with pytest.raises(IncompatibleBroker, match=f"exclusive access .* '{queue.name}'"):
            await wire.broker.declare(Topology(queues=(queue,)))
        await other.close()


async def test_its_log_lines_are_kept_and_ours_are_told_once(
    proxy: Proxy, through: str, caplog: pytest.LogCaptureFixture
) -> None:
    events = list[Event]()

    async def is_back() -> bool:
        return any(isinstance(event, Connected) for event in events)

    async with AmqpBroker(through, emit=events.append):
        proxy.cut()
        await eventually(is_back)
        assert not [each for each in caplog.records if each.name.startswith("aiormq")]
        other = await aiormq.connect(through)
        events.clear()
        proxy.cut()
        with pytest.raises(AMQPConnectionError):
            await closing_of(other)
        await eventually(is_back)
    (told,) = [each for each in caplog.records if each.name.startswith("aiormq")]
    assert told.getMessage() == "Cancelling cause reader exited abnormally"
