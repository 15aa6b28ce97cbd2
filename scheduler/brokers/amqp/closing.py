"""The end of the driver's connections and channels: being told of it."""

import asyncio
from typing import Any, cast

from aiormq.abc import AbstractChannel, AbstractConnection

from scheduler.brokers.amqp.refusals import reply


def closing_of(resource: AbstractConnection | AbstractChannel) -> asyncio.Future[Any]:
    """Done when a connection or channel is gone."""
    return cast(asyncio.Future[Any], resource.closing)  # pyright: ignore[reportUnknownMemberType, reportAttributeAccessIssue]


def lost_with(channel: AbstractChannel) -> asyncio.Future[None]:
    """Done when the channel is gone, and with it what was delivered over it."""
    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def lose(_: asyncio.Future[Any]) -> None:
        if not lost.done():
            lost.set_result(None)

    closing_of(channel).add_done_callback(lose)
    return lost


def reason_of(closed: asyncio.Future[Any]) -> str:
    """Why a connection or channel is gone, in the broker's words if it gave any."""
    error = None if closed.cancelled() else closed.exception()
    return "closed" if error is None else reply(error)
