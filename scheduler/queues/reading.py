"""Reading a stream to its end: up to a mark that one has written oneself.

After that one has read all that was confirmed before. Where nothing comes for a while, one has not.
"""

import uuid
from collections.abc import AsyncGenerator
from contextlib import aclosing
from datetime import datetime, timedelta

from scheduler.brokers.contract import Broker
from scheduler.errors import BrokerUnavailable, QueueNotFound, Unroutable
from scheduler.protocol.messages import Message

MARK = "scheduler.mark"
# For so long nothing may come, where something must: a busy broker takes its time.
UNTIL_MARK = timedelta(seconds=5)


async def read_to_end(
    broker: Broker, stream: str, *, exchange: str, routing_key: str, since: datetime | None = None
) -> AsyncGenerator[Message]:
    """What a stream holds, oldest first, with nothing left out that was confirmed before.

    Args:
        exchange, routing_key: how a mark comes into the stream.
        since: without what came before this moment; None: from the first on.

    Raises:
        QueueNotFound: there is no such stream.
        BrokerUnavailable: it could not be read to its end.
    """
    mark = Message(b"", type=MARK, correlation_id=uuid.uuid4().hex)
    try:
        await broker.publish(mark, exchange=exchange, routing_key=routing_key)
    except Unroutable:
        raise QueueNotFound(f"There is no {stream!r} in {broker.address}.") from None
    async with aclosing(broker.read(stream, since=since, quiet=UNTIL_MARK)) as messages:
        async for message in messages:
            if message.type != MARK:
                yield message
            elif message.correlation_id == mark.correlation_id:
                return
    # A node of a cluster that was cut off, say, hands out nothing, or old things only.
    raise BrokerUnavailable(f"{stream!r} in {broker.address} could not be read to its end.")
