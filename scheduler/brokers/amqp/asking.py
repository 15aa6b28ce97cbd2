"""Asking the broker for what it seldom refuses: over a channel that is kept for the next who asks.

Where it refuses, it closes the channel, and the next one gets a new one.
"""

import asyncio
from collections.abc import AsyncGenerator, Generator
from contextlib import AbstractContextManager, asynccontextmanager, contextmanager, nullcontext

from scheduler.brokers.amqp.channels import DriverChannel
from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.session import Lease, Session


@asynccontextmanager
async def asking(connection: Connection, *, at_once: bool = True) -> AsyncGenerator[DriverChannel]:
    """A channel for the time of the block.

    Args:
        at_once: what is asked for is answered at once, unless the connection is of no use.
    """
    session = await connection.ready()
    lease = session.borrow_getter()
    try:
        with calling(connection, session, lease, at_once=at_once):
            yield await lease.channel()
    finally:
        session.return_getter(lease)


@contextmanager
def calling(
    connection: Connection, session: Session, lease: Lease, *, at_once: bool = True
) -> Generator[None]:
    """Inside the block, something is asked for over a channel that was borrowed."""
    patience: AbstractContextManager[None] = session.awaiting_answer() if at_once else nullcontext()
    try:
        with connection.translated, patience:
            yield
    except asyncio.CancelledError:
        # aiormq closes the channel over which a call was cancelled, by and by.
        if (channel := lease.give_up()) is not None:
            connection.close_soon(channel)
        raise
