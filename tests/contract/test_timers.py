"""Shared timers: a token that is put into them comes to its task shortly before it is due."""

import asyncio
import uuid
from datetime import datetime, timedelta

import pytest

from scheduler.brokers.contract import Broker
from scheduler.protocol.hatchery import NO_WAIT, UNITS
from scheduler.protocol.messages import LONGEST_LEAD_MS, lead_of
from scheduler.protocol.tokens import LoopId, Token, decode, token_key
from scheduler.protocol.topology import Names, topology
from scheduler.queues.timers import Lead, Timers
from scheduler.timing.durations import MILLISECOND, ZERO, parse_duration
from scheduler.timing.schedules import Every
from tests.contract.wire import Inbox, Reader, Wire

SLACK = timedelta(seconds=10)  # on a busy machine
DELAYS = ["0s", "120ms", "440ms", "1s", "1.44s", "2s", "2.26s", "3.1s"]
# A key may have dots, and look like the digits of a delay.
KEYS = [f"{delay}.5.0" for delay in DELAYS]


@pytest.fixture
async def names(wire: Wire) -> Names:
    names = Names(f"contract{uuid.uuid4().hex[:12]}")
    await wire.declare_all(topology(names.namespace, ["t"], queue_type=wire.queue_type))
    return names


@pytest.fixture
def timers(wire: Wire, broker: Broker, names: Names) -> Timers:
    return Timers(broker, names, wire.clock, Lead(timedelta(milliseconds=40)))


def token(key: str, due_at: datetime) -> Token:
    due_at = due_at.replace(microsecond=due_at.microsecond // 1000 * 1000)  # as it travels
    return Token(LoopId("t", key), Every("1h"), due_at, due_at, epoch=1)


async def test_tokens_leave_their_timers_shortly_before_they_are_due(
    wire: Wire, broker: Broker, names: Names, timers: Timers
) -> None:
    inbox = await Inbox.open(broker, names.processor_queue("t"))
    now = wire.clock.now()
    sent = [
        token(key, now + parse_duration(delay)) for key, delay in zip(KEYS, DELAYS, strict=True)
    ]
    await asyncio.gather(*map(timers.put, sent))
    left_by = set[str]()
    for _ in sent:
        delivery = await inbox.next()
        came = decode(delivery.message, names.namespace)
        assert came in sent
        lead = lead_of(delivery.message.headers)
        assert ZERO <= lead <= LONGEST_LEAD_MS * MILLISECOND
        assert -MILLISECOND <= wire.clock.now() - (came.due_at - lead) < SLACK
        digits = delivery.routing_key.split(".")[2 : 2 + len(UNITS)]
        assert delivery.routing_key == token_key(came.loop, ".".join(digits))
        # Not the exchange to which another exchange handed it on.
        waited = [unit for unit, digit in enumerate(digits) if digit != "0"]
        assert delivery.exchange == names.hatchery_exchange(waited[-1] + 1 if waited else 0)
        assert delivery.exchange in names.token_exchanges
        left_by.add(delivery.exchange)
    assert left_by == {names.scheduler, names.hatchery_exchange(10), names.processor}


async def test_the_journal_records_each_put_and_a_resting_token_is_in_no_queue(
    wire: Wire, broker: Broker, names: Names, timers: Timers
) -> None:
    journal = await Reader.open(broker, names.journal, since="first")
    inbox = await Inbox.open(broker, names.processor_queue("t"))
    later = token("k", wire.clock.now() + timedelta(hours=1))
    await timers.record(later)
    await timers.put(later)
    await timers.put_now(later)
    bodies = await journal.bodies(3)
    assert len(set(bodies)) == 1
    delivery = await inbox.next()
    assert delivery.routing_key == token_key(later.loop, NO_WAIT.key)
    assert not lead_of(delivery.message.headers)
    assert inbox.is_empty
