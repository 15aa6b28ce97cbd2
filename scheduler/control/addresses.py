"""Whether the addresses of the broker can be used, and are those of one cluster."""

import asyncio
from collections.abc import Sequence
from contextlib import AsyncExitStack

from scheduler.brokers.contract import Broker
from scheduler.control.doctor import Finding
from scheduler.errors import BrokerError

ABOUT = "addresses of the broker"


async def check_addresses(nodes: Sequence[Broker]) -> Finding:
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
        clusters = {node.info.cluster for node in reached}
        if len(clusters) > 1:
            return Finding(
                ABOUT,
                "problem",
                "not of one cluster: "
                + ", ".join(f"{node.address} is of {node.info.cluster!r}" for node in reached),
                "Name the nodes of one cluster only: each broker would have loops of its own.",
            )
    if refusals:
        return Finding(
            ABOUT,
            "warning",
            f"{len(refusals)} of {len(nodes)} cannot be used: {' '.join(map(str, refusals))}",
            "The other addresses are used. Fix it or remove it from SCHEDULER_BROKER_URL.",
        )
    return Finding(ABOUT, "ok", f"{len(nodes)}, and all of them answer")
