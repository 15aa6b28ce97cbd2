"""A queue that nobody else can have, and that takes no message: as if its holder were gone."""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

import aiormq
from pamqp.common import Arguments

TAKES_NOTHING: Arguments = {
    "x-max-length": 0,
    "x-overflow": "reject-publish",
    "x-queue-type": "classic",
}


@asynccontextmanager
async def kept(url: str, *queues: str) -> AsyncGenerator[None]:
    """Meanwhile, the broker keeps these queues, so it seems."""
    async with await aiormq.connect(url) as connection:
        channel = await connection.channel()
        for queue in queues:
            await channel.queue_declare(queue, exclusive=True, arguments=TAKES_NOTHING)
        yield
