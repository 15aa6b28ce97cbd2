"""The ways of a call to its task: straight, or through the timers of calls."""

from dataclasses import replace
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.protocol.calls import retry_key, task_key
from scheduler.protocol.hatchery import AT, STEP, route
from scheduler.protocol.messages import LEAD, Message
from scheduler.protocol.topology import Names
from scheduler.timing.durations import milliseconds


async def send(
    broker: Broker,
    names: Names,
    task: str,
    message: Message,
    delay: timedelta,
    timeout: timedelta | None,
) -> None:
    """Publish a call's message, confirmed, to come to its task after a delay.

    Raises:
        Unroutable: nothing was seeded for this task.
        BrokerError: it may not have been taken.
    """
    message, waits = _routed(message, delay)
    exchange = names.later if waits else names.calls
    await broker.publish(message, exchange=exchange, routing_key=task_key(task), timeout=timeout)


async def send_again(
    broker: Broker,
    names: Names,
    task: str,
    message: Message,
    delay: timedelta,
    timeout: timedelta | None,
) -> None:
    """The same for a message that has been there: it is taken, whatever became of its task.

    Raises:
        BrokerError: it may not have been taken.
    """
    message, waits = _routed(message, delay)
    exchange = names.later_exchange(0) if waits else names.delayed
    await broker.publish(message, exchange=exchange, routing_key=retry_key(task), timeout=timeout)


def _routed(message: Message, delay: timedelta) -> tuple[Message, bool]:
    """Write into a message which timers it takes, and how long it is held after them.

    The message leaves its timers up to a step early, because its way through them takes time.

    Returns:
        It, and whether it takes any.
    """
    lead = min(delay, STEP)
    way = route(delay - lead)
    headers = {name: value for name, value in message.headers.items() if not name.startswith(AT)}
    if delay:
        headers |= {**way.headers, LEAD: milliseconds(way.rest + lead)}
    return replace(message, headers=headers), any(way.digits)
