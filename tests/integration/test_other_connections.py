"""A program that uses the driver itself has connections of its own: ours leave them alone."""

import struct
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

import aiormq
import pytest
from aiormq.abc import DeliveredMessage
from aiormq.exceptions import AMQPConnectionError, InvalidFrameError
from pamqp.commands import Basic

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.amqp.driver import closing_of
from scheduler.errors import IncompatibleBroker
from scheduler.events import Connected, Event
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Topology
from tests.contract.proxy import Proxy
from tests.contract.wire import RabbitWire, eventually, take

CUT_TO_32_BITS = 0.10000000149011612
NO_CALENDAR_HAS_IT = 2**63
NOW = datetime(2026, 11, 22, tzinfo=UTC)


class Foreign(Basic.Properties):
    """The properties of a message whose publisher writes what it likes for a timestamp."""

    def encode_property(self, name: str, value: Any) -> bytes:
        if name == "timestamp":
            return struct.pack(">Q", NO_CALENDAR_HAS_IT)
        return super().encode_property(name, value)


async def test_its_floats_are_as_wide_as_they_were(broker_url: str) -> None:
    async with RabbitWire("quorum", broker_url) as wire:
        queue = await wire.declare_queue()
        other = await aiormq.connect(broker_url)
        channel = await other.channel()
        headers: Any = {"price": 0.1}
        properties = Basic.Properties(headers=headers)
        await channel.basic_publish(b"", routing_key=queue, properties=properties)
        await wire.broker.publish(Message(headers=headers), exchange="", routing_key=queue)
        for price in CUT_TO_32_BITS, 0.1:
            taken: DeliveredMessage = await channel.basic_get(queue, no_ack=True)
            assert (taken.header.properties.headers or {})["price"] == price
        await other.close()


async def test_a_queue_that_it_has_for_itself_is_none_of_ours(broker_url: str) -> None:
    async with RabbitWire("classic", broker_url) as wire:
        queue = wire.queue()
        other = await aiormq.connect(broker_url)
        await (await other.channel()).queue_declare(queue.name, exclusive=True)
        with pytest.raises(IncompatibleBroker, match=f"exclusive access .* '{queue.name}'"):
            await wire.broker.declare(Topology(queues=(queue,)))
        await other.close()


async def test_what_breaks_its_connection_is_only_a_message_to_ours(broker_url: str) -> None:
    async with RabbitWire("quorum", broker_url) as wire:
        queue = await wire.declare_queue()
        other = await aiormq.connect(broker_url)
        channel = await other.channel()
        await channel.basic_publish(b"a", routing_key=queue, properties=Foreign(timestamp=NOW))
        with pytest.raises(InvalidFrameError):
            await channel.basic_get(queue)
        delivery = await take(wire.broker, queue)
        assert delivery.message.timestamp is None
        assert "scheduler-timestamp" in delivery.message.headers
        await delivery.ack()


async def test_its_log_lines_are_kept_and_ours_are_told_once(
    broker_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    url, events = urlsplit(broker_url), list[Event]()

    async def is_back() -> bool:
        return any(isinstance(event, Connected) for event in events)

    async with Proxy(url.hostname or "", url.port or 5672) as proxy:
        through = f"amqp://{url.username}:{url.password}@127.0.0.1:{proxy.port}{url.path}"
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
