from typing import Any

import pytest

from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.control.addresses import check_addresses
from scheduler.errors import BrokerUnavailable
from scheduler.protocol.topology import Names
from scheduler.timing.clock import LoopClock


class AwayBroker(MemoryBroker):
    async def __aenter__(self) -> Any:
        raise BrokerUnavailable("Cannot connect to amqp://two/: refused.")


@pytest.mark.parametrize(
    ("others", "verdict", "detail"),
    [
        ([], "ok", "2, and all of them answer"),
        ([AwayBroker()], "warning", "1 of 3 cannot be used: Cannot connect to amqp://two/: ref"),
        ([MemoryBroker()], "problem", "not of one cluster: memory:// knows nothing of memory://"),
    ],
)
async def test_addresses_are_those_of_one_cluster(
    clock: LoopClock, others: list[MemoryBroker], verdict: str, detail: str
):
    cluster = MemoryServer()
    nodes = [MemoryBroker(cluster), *others, MemoryBroker(cluster)]
    finding = await check_addresses(nodes, Names("shop"))
    assert finding.verdict == verdict
    assert finding.detail.startswith(detail)
    assert bool(finding.advice) is (verdict != "ok")


async def test_where_the_lock_is_held_by_somebody_else_nothing_is_taken_for_apart(clock: LoopClock):
    names, cluster = Names("shop"), MemoryServer()
    async with MemoryBroker(cluster) as other, other.mutex(names.lock):
        finding = await check_addresses([MemoryBroker(cluster), MemoryBroker(cluster)], names)
    assert finding.verdict == "ok"
