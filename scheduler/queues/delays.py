"""The ways of a call to its task: straight, or through the delay ladder."""

from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.protocol.calls import task_key
from scheduler.protocol.ladder import entrance, key_of
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names


async def send(
    broker: Broker, names: Names, task: str, message: Message, delay: timedelta, timeout: timedelta
) -> None:
    """Publish a call's message, confirmed, to come to its task after a delay.

    Raises:
        Unroutable: nothing was seeded for this task.
        BrokerError: it may not have been taken.
    """
    exchange, key = names.calls, task_key(task)
    if entrance(delay) is not None:
        exchange, key = names.later, key_of(delay, key)
    await broker.publish(message, exchange=exchange, routing_key=key, timeout=timeout)


async def send_again(
    broker: Broker, names: Names, task: str, message: Message, delay: timedelta, timeout: timedelta
) -> None:
    """The same for a message that has been there: it is taken, whatever became of its task.

    Raises:
        BrokerError: it may not have been taken.
    """
    unit = entrance(delay)
    exchange = names.delayed if unit is None else names.delay(unit)
    key = key_of(delay, task_key(task))
    await broker.publish(message, exchange=exchange, routing_key=key, timeout=timeout)
