"""Policies of operators that match our queues, too: what each does to each kind of message.

With `-o log_cli=true`, it tells what became of each.
"""

import asyncio
import json
import logging
import shlex
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import Context, Reject, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.contract import Broker
from scheduler.control.doctor import Finding
from scheduler.events import PolicyReported
from tests.integration.shop import eventually
from tests.rabbitmq import PrivateNode
from tests.stage import at_work, processor_of, program_of

POLICIES: dict[str, dict[str, Any]] = {
    "message-ttl": {"message-ttl": 1000},
    "dead-letter-exchange": {"dead-letter-exchange": "amq.fanout"},
    "max-length that rejects": {"max-length": 1, "overflow": "reject-publish"},
    "max-length that drops": {"max-length": 1, "overflow": "drop-head"},
}
ALL = {
    "message-ttl": 1000,
    "max-length": 1,
    "max-length-bytes": 1000,
    "overflow": "reject-publish",
    "dead-letter-exchange": "amq.fanout",
    "dead-letter-routing-key": "nowhere",
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

    def __init__(self, node: PrivateNode, namespace: str) -> None:
        self.runs: list[tuple[str, timedelta]] = []
        settings: Any = {
            "broker_url": node.url,
            "management_url": node.management_url,
            "supervision_interval": "2s",
        }
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

            async def has_run() -> bool:
                return any(name == "once" for name, _ in self.runs)

            await eventually(has_run)
        self.runs.clear()

    async def play(self, broker: Broker) -> Fates:
        """Look at what becomes of them; two messages are parked meanwhile."""
        errors: list[str] = []
        async with at_work(processor_of(self.app, broker)):
            await self.fails.send()
            await self.fails.send()
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

    async def findings(self, broker: Broker) -> dict[str, Finding]:
        doctor = program_of(self.app, broker).doctor
        found = [finding async for finding in doctor.examine()]
        return {each.about: each for each in found if "polic" in each.about}


WELL = Fates("0 runs", "runs", "0 runs", "2 runs", "2 of 2 there")
CHANGED = {
    "message-ttl": {"parked_messages": "0 of 2 there"},
    "max-length that rejects": {"parked_messages": "of 2 there"},  # up to 32 come in over it
    "max-length that drops": {"parked_messages": "1 of 2 there"},
}


def assert_like(fates: Fates, expected: Fates) -> None:
    for field, told in asdict(expected).items():
        assert told in getattr(fates, field), fates


@contextmanager
def blanket(
    node: PrivateNode, definition: dict[str, Any], *, kind: str = "policy"
) -> Generator[None]:
    """A policy for all queues, inside the block."""
    node.ctl(f"set_{kind}", "blanket", ".*", json.dumps(definition), "--apply-to", "queues")
    try:
        yield
    finally:
        node.ctl(f"clear_{kind}", "blanket")


@pytest.mark.timeout(300)
@pytest.mark.parametrize("name", POLICIES)
async def test_no_policy_has_anything_run_early(
    node: PrivateNode, namespace: str, name: str
) -> None:
    scene = Scene(node, namespace)
    async with AmqpBroker(node.url, emit=scene.app.events.emit) as broker:
        await scene.prepare(broker)
        with blanket(node, POLICIES[name]):
            await asyncio.sleep(1)
            fates = await scene.play(broker)
    logging.getLogger(__name__).warning("%s: %s", name, fates)
    reported = [each.policy for each in scene.events if isinstance(each, PolicyReported)]
    assert reported == ["policy 'blanket'"]
    assert "early" not in str(fates)
    assert fates.paused_loop == fates.finished_one_off == "0 runs"
    assert_like(fates, replace(WELL, **CHANGED.get(name, {})))


@pytest.mark.timeout(300)
async def test_the_policy_that_the_doctor_names_shields_from_all_others(
    node: PrivateNode, namespace: str
) -> None:
    scene = Scene(node, namespace)
    async with AmqpBroker(node.url, emit=scene.app.events.emit) as broker:
        await scene.prepare(broker)
        assert (await scene.findings(broker))["policies"].verdict == "ok"
        with blanket(node, ALL):
            found = (await scene.findings(broker))["policy 'blanket'"]
            assert found.verdict == "problem"
            assert all(f"{key}: {value}" in found.detail for key, value in ALL.items())
            _, *shielding = shlex.split(found.advice)
            node.ctl(*shielding)
            assert (await scene.findings(broker))["policies"].verdict == "ok"
            await asyncio.sleep(1)
            fates = await scene.play(broker)
            with blanket(node, POLICIES["message-ttl"], kind="operator_policy"):
                (found,) = (await scene.findings(broker)).values()
                assert "No policy shields from an operator policy" in found.advice
    assert_like(fates, WELL)
