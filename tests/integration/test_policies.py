"""Policies of operators that match our queues, too: what they do to each kind of message."""

import asyncio
import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import Context, Reject, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.contract import Broker
from tests.integration.shop import eventually
from tests.rabbitmq import PrivateNode
from tests.stage import at_work, processor_of, program_of

POLICIES: dict[str, dict[str, Any]] = {
    "none": {},
    "message-ttl": {"message-ttl": 1000},
    "dead-letter-exchange": {"dead-letter-exchange": "amq.fanout"},
    "max-length that rejects": {"max-length": 1, "overflow": "reject-publish"},
    "max-length that drops": {"max-length": 1, "overflow": "drop-head"},
    "expires": {"expires": 2000},
}
EARLY = timedelta(milliseconds=50)
WATCHED_S = 10.0


@pytest.fixture(scope="module")
def node() -> Iterator[PrivateNode]:
    with PrivateNode() as node:
        yield node


@dataclass
class Fates:
    """What became of each kind of message, in words."""

    paused_loop: str
    waiting_loops: str
    finished_one_off: str
    delayed_calls: str
    parked_messages: str


class Scene:
    """An app with a message of each kind."""

    def __init__(self, url: str, namespace: str) -> None:
        self.runs: list[tuple[str, timedelta]] = []
        settings: Any = {"broker_url": url, "supervision_interval": "2s"}
        self.app = app = Scheduler(namespace, Settings(**settings))
        self.events: list[Any] = []
        app.listen(self.events.append)

        def note(ctx: Context, name: str) -> None:
            self.runs.append((name, datetime.now(UTC) - ctx.scheduled_at))

        @app.periodic(every="3s", mode="fixed_rate")
        async def waiting(ctx: Context) -> None:
            note(ctx, "waiting")

        @app.periodic(every="3s", mode="fixed_rate")
        async def waiting_too(ctx: Context) -> None:
            note(ctx, "waiting")

        @app.periodic(every="2s", mode="fixed_rate")
        async def paused(ctx: Context) -> None:
            note(ctx, "paused")

        @app.periodic(every="1h")
        async def once(ctx: Context) -> None:
            note(ctx, "once")

        @app.task
        async def call(ctx: Context) -> None:
            note(ctx, "call")

        @app.task
        async def fails() -> None:
            raise Reject("no")

        self.once, self.call, self.fails = once, call, fails

    async def prepare(self, broker: Broker) -> None:
        program = program_of(self.app, broker)
        await program.seeding.seed()
        async with at_work(processor_of(self.app, broker)):
            await program.verbs.pause(self.app.loop("paused"))
            await self.once.once("done", after="100ms")
            for _ in range(2):
                await self.fails.send()
            failed = self.app.names.failed_queue("fails")

            async def is_ready() -> bool:
                depth = await broker.depth(failed)
                return any(name == "once" for name, _ in self.runs) and depth.ready == 2

            await eventually(is_ready)
        self.runs.clear()

    async def play(self, broker: Broker) -> Fates:
        errors: list[str] = []
        async with at_work(processor_of(self.app, broker)):
            for _ in range(2):
                try:
                    await self.call.send_later("6s")
                except Exception as error:
                    errors.append(type(error).__name__)
            await asyncio.sleep(WATCHED_S)
        depth = await broker.depth(self.app.names.failed_queue("fails"))
        return Fates(
            self._fate("paused"),
            self._fate("waiting"),
            self._fate("once"),
            self._fate("call") + "".join(f", {error}" for error in errors),
            "gone with its queue" if depth is None else f"{depth.ready} of 2 there",
        )

    def _fate(self, name: str) -> str:
        late = [late for each, late in self.runs if each == name]
        early = [-each.total_seconds() for each in late if each < -EARLY]
        told = f"{len(late)} runs"
        return f"{told}, {len(early)} early by up to {max(early):.1f} s" if early else told


@pytest.mark.timeout(120)
@pytest.mark.parametrize("policy", POLICIES)
async def test_table(node: PrivateNode, namespace: str, policy: str) -> None:
    scene = Scene(node.url, namespace)
    async with AmqpBroker(node.url, emit=scene.app.events.emit) as broker, asyncio.timeout(90):
        await scene.prepare(broker)
        if POLICIES[policy]:
            node.ctl(
                "set_policy", "blanket", ".*", json.dumps(POLICIES[policy]), "--apply-to", "queues"
            )
            await asyncio.sleep(1)
        try:
            fates = await scene.play(broker)
        finally:
            node.ctl("clear_policy", "blanket") if POLICIES[policy] else None
    print(f"\n== {policy}: {asdict(fates)}")
    from collections import Counter

    print(Counter(type(e).__name__ for e in scene.events))
