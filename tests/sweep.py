"""Clear away what tests declare, and lend them namespaces whose timers are there already.

A namespace has 150 queues and 1,000 bindings, most of them of timers, and a broker takes seconds to
declare them. So timers are emptied and kept, and the next test with queues of that type gets their
namespace.
"""

import asyncio
import sys
import tempfile
import uuid
from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from urllib.parse import urlsplit

import aiormq
from aiormq.abc import AbstractChannel
from aiormq.exceptions import ChannelNotFoundEntity

from scheduler.brokers.contract import Broker
from scheduler.cli.loading import load_app
from scheduler.errors import QueueNotFound
from scheduler.protocol.topology import Names, Topology
from scheduler.queues.concurrency import side_by_side
from tests.rabbitmq import locked

LANES = 8


async def empty(broker: Broker, queue: str) -> int:
    """Take all that is ready in a queue away; return how many messages that were.

    It is browsed: RabbitMQ has no `get` for a quorum queue with a single active consumer.
    """
    depth = await broker.depth(queue)
    if depth is None:
        raise QueueNotFound(queue)
    taken = 0
    async with broker.browse(queue, limit=depth.ready) as found:
        async for delivery in found:
            await delivery.ack()
            taken += 1
    return taken


async def sweep(broker: Broker, queues: Iterable[str]) -> None:
    """Delete queues, also if the test is being cancelled."""
    await asyncio.shield(side_by_side(broker.delete, list(queues)))


class Namespaces:
    """Namespaces that tests of this process use one after another."""

    def __init__(self) -> None:
        self._free = defaultdict[str, list[str]](list)
        self._lent = set[str]()
        self._clear = set[str]()

    @contextmanager
    def lent(self, queue_type: str) -> Generator[str]:
        """Lend a namespace for queues of a type; one that was cleared is lent again."""
        free = self._free[queue_type]
        name = free.pop() if free else new_namespace()
        self._lent.add(name)
        yield name
        self._lent.discard(name)
        if name in self._clear:
            self._clear.discard(name)
            free.append(name)

    async def clear(self, url: str, wanted: Topology) -> None:
        """Delete what a test declared in a namespace; its timers are kept if it was lent."""
        queues = [each.name for each in wanted.queues]
        namespace = queues[0].partition(".")[0]
        prefix = Names(namespace).prefix
        of_timers = f"{prefix}.hatchery.", f"{prefix}.later."
        exchanges = [each.name for each in wanted.exchanges if not each.passive]
        timers = [name for name in queues if name.startswith(of_timers)]
        kept = {*timers, *(each.source for each in wanted.bindings if each.destination in timers)}
        kept = {name for name in kept if name.startswith(of_timers)}
        keeps = namespace in self._lent
        connection = await aiormq.connect(url)
        try:
            lanes = [await connection.channel() for _ in range(LANES)]
            # Exchanges one after another: side by side, RabbitMQ 3.10 ends the connection.
            for over, delete, names in (
                (lanes[:1], _delete_exchange, exchanges),
                (lanes, _delete_queue, queues),
            ):
                gone = [name for name in names if not (keeps and name in kept)]
                await _side_by_side(over, delete, gone)
            if keeps:
                try:
                    await _side_by_side(lanes, _purge, timers)
                    self._clear.add(namespace)
                except ChannelNotFoundEntity:  # the test has deleted one, or declared none
                    self._lent.discard(namespace)
        finally:
            await connection.close()
        if keeps and namespace not in self._lent:
            await self.clear(url, wanted)


NAMESPACES = Namespaces()
clear = NAMESPACES.clear


def new_namespace() -> str:
    """Make up a namespace that no test has used."""
    return f"t{uuid.uuid4().hex[:8]}"


@contextmanager
def alone_in(url: str, namespaces: Iterable[str]) -> Generator[None]:
    """Wait for those who use these namespaces of a broker: pages and examples have them in common.

    Whoever comes first keeps others out until the block ends, in other processes as well.
    """
    with ExitStack() as stack:
        for name in sorted(set(namespaces)):
            lock = f"scheduler-tests-{urlsplit(url).port}-{name}"
            stack.enter_context(locked(Path(tempfile.gettempdir(), lock)))
        yield


async def _side_by_side(
    lanes: Sequence[AbstractChannel],
    do: Callable[[AbstractChannel, str], Awaitable[object]],
    names: Sequence[str],
) -> None:
    async def in_turn(lane: int) -> None:
        for name in names[lane :: len(lanes)]:
            await do(lanes[lane], name)

    await asyncio.gather(*map(in_turn, range(len(lanes))))


async def _delete_exchange(channel: AbstractChannel, name: str) -> None:
    await channel.exchange_delete(name)


async def _delete_queue(channel: AbstractChannel, name: str) -> None:
    await channel.queue_delete(name)


async def _purge(channel: AbstractChannel, name: str) -> None:
    """Purge a queue that has messages: to look costs a quorum queue nothing, to purge a write."""
    if (await channel.queue_declare(name, passive=True)).message_count:
        await channel.queue_purge(name)


if __name__ == "__main__":
    asyncio.run(clear(sys.argv[1], load_app(sys.argv[2]).topology()))
