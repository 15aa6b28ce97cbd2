"""The broker in process against a model of lists: nothing lost, nothing doubled, order kept."""

import asyncio
import math
from dataclasses import dataclass
from datetime import timedelta

from hypothesis import given, settings
from hypothesis import strategies as st

from scheduler.brokers.contract import Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import Rejected
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Queue, QueueType, Topology
from scheduler.testing import run_virtually

LIMIT = 6


@dataclass
class Item:
    number: int
    expires: float
    returned: bool = False

    @property
    def body(self) -> bytes:
        return b"%d" % self.number


class Comparison:
    """A queue that dead-letters into another one, and what lists make of the same steps."""

    def __init__(self, queue_type: QueueType, ttl_ms: int | None) -> None:
        self.queue_type: QueueType = queue_type
        self.ttl_ms = ttl_ms
        self.server = MemoryServer()
        self.broker = MemoryBroker(self.server)
        self.ready: list[Item] = []
        self.held: list[tuple[Item, Delivery]] = []
        self.dead: list[Item] = []
        self.published = 0

    async def declare(self) -> None:
        arguments = {
            "x-queue-type": self.queue_type,
            "x-dead-letter-exchange": "",
            "x-dead-letter-routing-key": "dead",
            "x-overflow": "reject-publish",
            "x-max-length": {"classic": LIMIT, "quorum": LIMIT - 1}[self.queue_type],
            **({} if self.ttl_ms is None else {"x-message-ttl": self.ttl_ms}),
        }
        await self.broker.declare(Topology(queues=(Queue("dead"), Queue("queue", arguments))))

    async def publish(self, ttl_ms: int | None) -> None:
        limits = [limit / 1000 for limit in (ttl_ms, self.ttl_ms) if limit is not None]
        item = Item(self.published, self.now() + min(limits, default=math.inf))
        expiration = None if ttl_ms is None else timedelta(milliseconds=ttl_ms)
        try:
            await self.broker.publish(
                Message(item.body, expiration=expiration), exchange="", routing_key="queue"
            )
        except Rejected:
            assert len(self.ready) >= LIMIT
        else:
            assert len(self.ready) < LIMIT
            self.published += 1
            self.ready.append(item)

    async def get(self, _: int) -> None:
        delivery = await self.broker.get("queue")
        if not self.ready:
            assert delivery is None
            return
        item = self.ready.pop(0)
        assert delivery
        assert (delivery.message.body, delivery.redelivered) == (item.body, item.returned)
        self.held.append((item, delivery))

    async def ack(self, place: int) -> None:
        if self.held:
            _, delivery = self.held.pop(place % len(self.held))
            await delivery.ack()

    async def requeue(self, place: int) -> None:
        if self.held:
            item, delivery = self.held.pop(place % len(self.held))
            await delivery.requeue()
            self.put_back(item)

    async def cut(self, _: int) -> None:
        self.server.disconnect_all()
        held, self.held = self.held, []
        for item, delivery in held:
            assert delivery.lost.done()
            self.put_back(item)

    async def wait(self, ms: int) -> None:
        await asyncio.sleep(ms / 1000)

    def put_back(self, item: Item) -> None:
        item.returned = True
        if self.queue_type == "classic":
            before = [other for other in self.ready if other.number < item.number]
        else:
            before = [other for other in self.ready if other.returned]
        self.ready.insert(len(before), item)
        self.expire()

    def expire(self) -> None:
        while self.ready and self.ready[0].expires <= self.now():
            self.dead.append(self.ready.pop(0))

    def now(self) -> float:
        return asyncio.get_running_loop().time()

    async def check(self) -> None:
        self.expire()
        await asyncio.sleep(0)  # the timers that are due at this moment
        for name, items in ("queue", self.ready), ("dead", self.dead):
            depth = await self.broker.depth(name)
            assert depth
            assert depth.ready == len(items)

    async def check_all(self) -> None:
        """See that every message is where it should be, in its order."""
        while self.ready:
            await self.get(0)
            await self.check()
        for item in self.dead:
            delivery = await self.broker.get("dead")
            assert delivery
            assert delivery.message.body == item.body


PLACES = st.integers(0, 5)
STEPS = st.one_of(
    st.tuples(st.just("publish"), st.none() | st.integers(0, 120)),
    st.tuples(st.just("publish"), st.none()),
    st.tuples(st.just("get"), st.just(0)),
    st.tuples(st.just("get"), st.just(0)),
    st.tuples(st.just("ack"), PLACES),
    st.tuples(st.just("requeue"), PLACES),
    st.tuples(st.just("requeue"), PLACES),
    st.tuples(st.just("wait"), st.integers(1, 100)),
    st.tuples(st.just("cut"), st.just(0)),
)


@settings(max_examples=150)
@given(
    queue_type=st.sampled_from(["classic", "quorum"]),
    ttl_ms=st.sampled_from([None, 150]),
    steps=st.lists(STEPS, min_size=20, max_size=60),
)
def test_a_queue_does_what_lists_would_do(
    queue_type: QueueType, ttl_ms: int | None, steps: list[tuple[str, int | None]]
) -> None:
    async def compare() -> None:
        comparison = Comparison(queue_type, ttl_ms)
        async with comparison.broker:
            await comparison.declare()
            for name, argument in steps:
                await getattr(comparison, name)(argument)
                await comparison.check()
            await comparison.check_all()

    run_virtually(compare())
