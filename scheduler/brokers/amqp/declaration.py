"""A topology that is made to exist."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import TypeVar

from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelNotFoundEntity

from scheduler.brokers.amqp.asking import asking
from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.contract import missing_exchange
from scheduler.events import QueueDeclared
from scheduler.protocol.topology import Binding, Exchange, Queue, Topology

D = TypeVar("D")

# A quorum queue takes its time; more at once make a broker no faster.
CHANNELS = 16


async def declare(connection: Connection, topology: Topology) -> None:
    if topology.exchanges:
        async with asking(connection, at_once=False) as channel:
            for exchange in topology.exchanges:
                await _declare_exchange(channel, exchange)

    async def declare_queue(channel: AbstractChannel, queue: Queue) -> None:
        await channel.queue_declare(queue.name, durable=True, arguments=dict(queue.arguments))
        connection.emit(QueueDeclared(queue.name))

    await _over_channels(connection, declare_queue, topology.queues)
    await _over_channels(connection, _bind, topology.bindings)


async def unbind(connection: Connection, bindings: Iterable[Binding]) -> None:
    async with asking(connection, at_once=False) as channel:
        for binding in bindings:
            arguments = dict(binding.arguments)
            await channel.queue_unbind(
                binding.destination, binding.source, binding.routing_key, arguments=arguments
            )


async def _over_channels(
    connection: Connection,
    act: Callable[[AbstractChannel, D], Awaitable[None]],
    subjects: Sequence[D],
) -> None:
    """Do something to each, over a few channels at once."""

    async def do(mine: Sequence[D]) -> None:
        async with asking(connection, at_once=False) as channel:
            for subject in mine:
                await act(channel, subject)

    shares = [share for n in range(CHANNELS) if (share := subjects[n::CHANNELS])]
    # All to their end: aiormq is not to be interrupted.
    ended = await asyncio.gather(*map(do, shares), return_exceptions=True)
    for error in ended:
        if error is not None:
            raise error


async def _bind(channel: AbstractChannel, binding: Binding) -> None:
    bind = channel.queue_bind if binding.to == "queue" else channel.exchange_bind
    arguments = dict(binding.arguments)
    await bind(binding.destination, binding.source, binding.routing_key, arguments=arguments)


async def _declare_exchange(channel: AbstractChannel, exchange: Exchange) -> None:
    try:
        await channel.exchange_declare(
            exchange.name,
            exchange_type=exchange.type,
            passive=exchange.passive,
            durable=True,
            arguments=dict(exchange.arguments),
        )
    except ChannelNotFoundEntity:
        raise missing_exchange(exchange.name) from None
