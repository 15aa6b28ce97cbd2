from typing import Any

import pytest

from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.control.addresses import check_addresses
from scheduler.errors import BrokerUnavailable
from scheduler.timing.clock import LoopClock


class AwayBroker(MemoryBroker):
    async def __aenter__(self) -> Any:
        raise BrokerUnavailable("Cannot connect to amqp://two/: refused.")


@pytest.mark.parametrize(
    ("others", "verdict", "detail"),
    [
        ([], "ok", "2, and all of them answer"),
        ([AwayBroker()], "warning", "1 of 3 cannot be used: Cannot connect to amqp://two/: ref"),
        ([MemoryBroker()], "problem", "not of one cluster: memory:// is of 'memory-"),
    ],
)
async def test_addresses_are_those_of_one_cluster(
    clock: LoopClock, others: list[MemoryBroker], verdict: str, detail: str
):
    cluster = MemoryServer()
    nodes = [MemoryBroker(cluster), *others, MemoryBroker(cluster)]
    finding = await check_addresses(nodes)
    assert finding.verdict == verdict
    assert finding.detail.startswith(detail)
    assert bool(finding.advice) is (verdict != "ok")
