"""The ways of a call to its task: straight, or through the delay ladder."""

from dataclasses import replace
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.protocol.calls import task_key
from scheduler.protocol.ladder import STEP, entrance, key_of
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
    message, early = _early(message, delay)
    if early:
        exchange, key = names.later, key_of(early, key)
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
    message, early = _early(message, delay)
    unit = entrance(early)
    exchange = names.delayed if unit is None else names.delay(unit)
    key = key_of(early, task_key(task))
    await broker.publish(message, exchange=exchange, routing_key=key, timeout=timeout)


def _early(message: Message, delay: timedelta) -> tuple[Message, timedelta]:
    """A delay of whole steps, after which its processor has it wait for the rest of its time.

    What does not end with a step anyhow leaves one earlier: its way through the timers takes time.
    The delays that people write are left whole, and are one hop.
    """
    steps, rest = divmod(delay, STEP)
    if not rest:
        return message, delay
    early = max(steps - 1, 0) * STEP
    lead = {LEAD: milliseconds(delay - early)}
    return replace(message, headers={**message.headers, **lead}), early
