"""How long an operation on RabbitMQ takes at most."""

import asyncio
from datetime import timedelta

import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.errors import ConfirmationTimeout
from scheduler.protocol.messages import Message


@pytest.mark.usefixtures("clock")
async def test_the_wait_for_a_connection_counts_towards_the_timeout(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def connect_late(*_: object) -> None:
        await asyncio.sleep(2)

    async def hang(*_: object) -> None:
        await asyncio.sleep(3600)

    monkeypatch.setattr(AmqpBroker, "ready", connect_late)
    monkeypatch.setattr(AmqpBroker, "_publish", hang)
    broker, began = AmqpBroker("amqp://nowhere/"), asyncio.get_running_loop().time()
    timeout = timedelta(seconds=3)
    with pytest.raises(ConfirmationTimeout):
        await broker.publish(Message(), exchange="orders", routing_key="paid", timeout=timeout)
    assert asyncio.get_running_loop().time() - began == pytest.approx(3)
