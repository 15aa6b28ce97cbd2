"""The way of a call to its task: straight, or through the delay ladder."""

from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.protocol.calls import task_key
from scheduler.protocol.ladder import entrance, key_of
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names


async def post(
    broker: Broker, names: Names, task: str, message: Message, delay: timedelta, timeout: timedelta
) -> None:
    """Publish a call's message, confirmed, to come to its task after a delay.

    Raises:
        Unroutable: nothing was seeded for this task.
        BrokerError: it may not have been taken.
    """
    unit = entrance(delay)
    await broker.publish(
        message,
        exchange=names.processor if unit is None else names.delay(unit),
        routing_key=task_key(task) if unit is None else key_of(delay, task_key(task)),
        timeout=timeout,
    )
