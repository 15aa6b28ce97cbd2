"""Whether the addresses of the broker can be used, and are those of one cluster."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.doctor import Finding
from scheduler.errors import AccessRefused, BrokerError, Locked
from scheduler.protocol.topology import Names

ABOUT = "addresses of the broker"
SHORTLY = timedelta(seconds=1)
AT_ONCE = timedelta(0)


async def check_addresses(nodes: Sequence[Broker], names: Names) -> Finding:
    """Try all of them.

    Args:
        nodes: one for each address, not yet connected.
    """
    async with AsyncExitStack() as connections:
        opened = await asyncio.gather(
            *map(connections.enter_async_context, nodes), return_exceptions=True
        )
        refusals = [each for each in opened if isinstance(each, BaseException)]
        for unexpected in refusals:
            if not isinstance(unexpected, BrokerError):
                raise unexpected
        reached = [each for each in opened if not isinstance(each, BaseException)]
        if apart := await _apart(reached, names.lock):
            return Finding(
                ABOUT,
                "problem",
                f"not of one cluster: {reached[0].address} knows nothing of {', '.join(apart)}",
                "Name the nodes of one cluster only: each broker would have loops of its own.",
            )
    if refusals:
        return Finding(
            ABOUT,
            "warning",
            f"{len(refusals)} of {len(nodes)} cannot be used: {' '.join(map(str, refusals))}",
            "The others are taken meanwhile. Mend it, or name it no more in SCHEDULER_BROKER_URL.",
        )
    return Finding(ABOUT, "ok", f"{len(nodes)}, and all of them answer")


async def _apart(nodes: Sequence[Broker], lock: str) -> list[str]:
    """The addresses of those that have a lock to give while the first one has given it away."""
    try:
        if len(nodes) > 1:
            async with nodes[0].mutex(lock, timeout=SHORTLY):
                return [node.address for node in nodes[1:] if await _gives(node, lock)]
    except (AccessRefused, Locked):
        pass  # it cannot be told: of rights, and of who holds locks, other findings tell
    return []


async def _gives(node: Broker, lock: str) -> bool:
    try:
        async with node.mutex(lock, timeout=AT_ONCE):
            return True
    except Locked:
        return False
