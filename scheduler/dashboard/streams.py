"""Share the time of one process: live pages wait for their turn to be rendered."""

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Generator
from contextlib import contextmanager
from typing import TypeVar

T = TypeVar("T")

MOST_STREAMS = 30
"""The most live pages of one client; further ones ask again every `POLL_S`."""
POLL_S = 10.0

Client = tuple[str, str]
"""The name of a visitor, and an address."""


class Turns:
    """Let live pages be rendered one after the other, in half of the time at most.

    So a page that a visitor asks for waits for one of them, however many are open: these come less
    often.
    """

    def __init__(self) -> None:
        self._lock = asyncio.Lock()

    async def take(self, render: Callable[[], Awaitable[T]]) -> T:
        """Render one, when it is its turn; then leave as much time to others."""
        async with self._lock:
            time = asyncio.get_running_loop().time
            began = time()
            result = await render()
            await asyncio.sleep(time() - began)
            return result


class Streams:
    """Count the live pages of each client."""

    def __init__(self) -> None:
        self._open = Counter[Client]()

    @contextmanager
    def opened(self, client: Client) -> Generator[bool]:
        """Count a live page inside the block; yield whether its client has too many others."""
        has_too_many = self._open[client] >= MOST_STREAMS
        self._open[client] += 1
        try:
            yield has_too_many
        finally:
            self._open[client] -= 1
            if not self._open[client]:
                del self._open[client]
