"""Limit how long a broker may stall while an operation waits for it."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker
from scheduler.errors import BrokerUnavailable

LOOK_EVERY = timedelta(seconds=0.5)
LOOKS = 10  # in the time that a broker may stall


def is_stalled(broker: Broker) -> bool:
    """Return whether a broker is silent, is not connected, or blocks this connection."""
    return broker.is_blocked or not broker.connected or broker.silence > LOOK_EVERY


@asynccontextmanager
async def unless_stalled(
    broker: Broker, limit: timedelta = DEFAULT_TIMEOUT
) -> AsyncGenerator[None]:
    """Interrupt the block once the broker has stalled for so long.

    RabbitMQ reads nothing from a connection that an alarm blocks: without a limit, a question
    would wait as long as the alarm lasts.

    Raises:
        BrokerUnavailable: the broker has stalled; the message says why.
    """
    loop, seconds = asyncio.get_running_loop(), limit.total_seconds()
    deadline = asyncio.timeout(seconds)

    def look() -> None:
        nonlocal looking
        if not (is_stalled(broker) or deadline.expired()):
            deadline.reschedule(loop.time() + seconds)
        looking = loop.call_later(seconds / LOOKS, look)

    # No task: a program may start thousands of loops at once.
    looking = loop.call_later(seconds / LOOKS, look)
    try:
        async with deadline:
            yield
    except TimeoutError:
        if not deadline.expired():
            raise
        raise BrokerUnavailable(
            f"{broker.address} has not responded for {seconds:g} s: {_why_stalled(broker)}. The "
            "operation may have taken effect; repeat it."
        ) from None
    finally:
        looking.cancel()


def _why_stalled(broker: Broker) -> str:
    if not broker.connected:
        return "there is no connection to it"
    if broker.is_blocked:
        return "a memory or disk alarm blocks it (see `rabbitmqctl status`)"
    return "it is connected, and silent; check its nodes"
