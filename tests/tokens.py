"""Tokens in a broker: which of them wait in the timers, or are ready for their tasks."""

from collections import Counter
from collections.abc import Iterable
from contextlib import AsyncExitStack, suppress

from scheduler.brokers.contract import Broker, Delivery
from scheduler.errors import QueueNotFound
from scheduler.protocol.epochs import is_void
from scheduler.protocol.hatchery import timers
from scheduler.protocol.tokens import LoopId, Token, decode, is_token
from scheduler.protocol.topology import Names
from scheduler.queues.roster import Roster
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.moments import SystemClock


async def waiting(
    broker: Broker, names: Names, tasks: Iterable[str], *, losing: LoopId | None = None
) -> list[Token]:
    """Return all tokens that wait or are ready, void ones too.

    Args:
        losing: the loop whose tokens are taken away for good.
    """
    queues = [names.timer(timer) for timer in timers()]
    queues += [names.processor_queue(task) for task in sorted(set(tasks))]
    found = list[Token]()
    async with AsyncExitStack() as given_back:
        for queue in queues:
            while delivery := await _taken(broker, queue):
                token = (
                    decode(delivery.message, names.namespace)
                    if is_token(delivery.message)
                    else None
                )
                if token is not None:
                    found.append(token)
                if token is not None and token.loop == losing:
                    await delivery.ack()
                else:
                    given_back.push_async_callback(delivery.requeue)
    return found


async def count(
    broker: Broker, names: Names, loops: Iterable[LoopId] | None = None
) -> Counter[str]:
    """Count the tokens of loops that are not void; of these, or of all that the roster knows.

    But not of supervision: RabbitMQ lets nobody look into a queue with a single active consumer.
    """
    listing = await Roster(broker, names, SystemClock()).read()
    wanted = set(listing if loops is None else loops) - {SUPERVISION}
    found = Counter(dict.fromkeys(map(str, wanted), 0))
    for token in await waiting(broker, names, {loop.task for loop in wanted}):
        if token.loop in wanted and not is_void(token.epoch, listing.known(token.loop)):
            found[str(token.loop)] += 1
    return found


async def lose(broker: Broker, names: Names, loop: LoopId) -> int:
    """Take away the tokens of a loop for good; return how many there were."""
    tokens = await waiting(broker, names, [loop.task], losing=loop)
    return sum(token.loop == loop for token in tokens)


async def _taken(broker: Broker, queue: str) -> Delivery | None:
    with suppress(QueueNotFound):
        return await broker.get(queue)
    return None
