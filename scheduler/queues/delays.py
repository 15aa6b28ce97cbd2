"""The ways of a call to its task: straight, or through the timers of calls."""

from dataclasses import replace
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.protocol.calls import task_key
from scheduler.protocol.hatchery import STEP, Route, route
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
    exchange, key = names.calls, task_key(task)
    message, way = _routed(message, delay)
    if any(way.digits):
        exchange, key = names.later, f"{way.key}.{key}"
    await broker.publish(message, exchange=exchange, routing_key=key, timeout=timeout)


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
    message, way = _routed(message, delay)
    exchange, key = names.later_exchange(way.first), f"{way.key}.{task_key(task)}"
    await broker.publish(message, exchange=exchange, routing_key=key, timeout=timeout)


def _routed(message: Message, delay: timedelta) -> tuple[Message, Route]:
    """Find the timers of a delay, and tell the processor how long to hold what comes out of them.

    The message leaves its timers up to a step early, because its way through them takes time.
    """
    lead = min(delay, STEP)
    way = route(delay - lead)
    if not delay:
        return message, way
    held = {LEAD: milliseconds(way.rest + lead)}
    return replace(message, headers={**message.headers, **held}), way
