"""Policies of operators that match our queues, too: what each does to each kind of message."""

import asyncio
import shlex
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from scheduler import Context, Reject, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.contract import Broker
from scheduler.control.doctor import Finding
from scheduler.errors import QueueNotFound, Unroutable
from scheduler.events import PolicyReported, ProcessorStarted, QueuesMissing
from scheduler.protocol.calls import task_key
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Binding, Queue, Topology
from tests.contract.wire import until
from tests.integration.witness import Witness
from tests.rabbitmq import ManagementApi, PrivateNode
from tests.stage import at_work, processor_of, program_of
from tests.sweep import new_namespace

POLICIES: dict[str, dict[str, Any]] = {
    "message-ttl": {"message-ttl": 1000},
    "expires": {"expires": 5000},
    "delivery-limit": {"delivery-limit": 1},
    "dead-letter-exchange": {"dead-letter-exchange": "amq.fanout"},
    "dead-letter-routing-key": {"dead-letter-routing-key": "nowhere"},
    "max-length that rejects": {"max-length": 1, "overflow": "reject-publish"},
    "max-length that drops": {"max-length": 1, "overflow": "drop-head"},
}
ALL = {
    "message-ttl": 1000,
    "expires": 1000,
    "delivery-limit": 1,
    "max-length": 1,
    "max-length-bytes": 1000,
    "overflow": "reject-publish",
    "dead-letter-exchange": "amq.fanout",
    "dead-letter-routing-key": "nowhere",
    "alternate-exchange": "amq.fanout",
}
CATCHES_ALL = Topology(
    queues=(Queue("all", {"x-queue-type": "quorum"}),), bindings=(Binding("amq.fanout", "all", ""),)
)
EARLY = timedelta(milliseconds=50)
WATCHED_S = 7.0


class Scene(Witness):
    """An app with a message of each kind."""

    def __init__(self, node: PrivateNode, namespace: str) -> None:
        self.runs: list[tuple[str, timedelta]] = []
        settings: Any = {
            "broker_url": node.url,
            "management_url": node.management_url,
            "supervision_interval": "2s",
        }
        super().__init__(app := Scheduler(namespace, Settings(**settings)))

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
            await self.until_run("once", 1)

    async def play(
        self, node: PrivateNode, broker: Broker, policy: dict[str, Any], *, expire: bool
    ) -> Mapping[str, str]:
        """What becomes of them under a policy, in words; two messages are parked meanwhile."""
        errors: list[str] = []
        started = self.count(ProcessorStarted)
        async with AsyncExitStack() as stack:
            await stack.enter_async_context(at_work(processor_of(self.app, broker)))
            await self.heard(ProcessorStarted, started + 1)
            await stack.enter_async_context(blanket(node, self.app.namespace, policy))
            await asyncio.sleep(1)
            self.runs.clear()
            await self.fails.send()
            await self.fails.send()
            for _ in range(2):
                try:
                    await self.call.send_later("6s")
                except Exception as error:
                    errors.append(type(error).__name__)
            await asyncio.sleep(WATCHED_S)
            if policy is ALL or not policy.keys() & {"expires", "dead-letter-routing-key"}:
                await self.until_run("call", 2 - len(errors))
            if policy is not ALL:  # the shield is above it
                await self.heard(PolicyReported, 1)
            if expire:
                await self.heard(QueuesMissing, 1)
            with suppress(QueueNotFound):
                for _ in range(3):  # each look at it is a delivery
                    await program_of(self.app, broker).failed.browse(["fails"])
        depth = await broker.depth(self.app.names.failed_queue("fails"))
        parked = 0 if depth is None else depth.ready
        loops = {name: self._fate(name) for name in ("paused", "waiting", "once")}
        return {**loops, "call": self._fate("call", errors), "parked": f"{parked} of 2 there"}

    async def until_run(self, name: str, times: int) -> None:
        await until(lambda: sum(each == name for each, _ in self.runs) >= times)

    def _fate(self, name: str, refused: Sequence[str] = ()) -> str:
        late = [late for each, late in self.runs if each == name]
        early = [-each.total_seconds() for each in late if each < -EARLY]
        told = ", ".join((f"{len(late) + len(refused)} runs", *refused))
        return f"{told}, {len(early)} early by up to {max(early):.1f} s" if early else told

    async def is_sender_told(self, broker: Broker) -> bool:
        """Whether the sender of a call is told that there is no such task."""
        exchange, key = self.app.names.calls, task_key("nobody")
        try:
            await broker.publish(Message(b"{}"), exchange=exchange, routing_key=key)
        except Unroutable:
            return True
        return False

    async def findings(self, broker: Broker) -> dict[str, Finding]:
        """What the doctor says of policies: its check of dead-lettering would wait here."""
        check = program_of(self.app, broker).doctor._check_policies()  # pyright: ignore[reportPrivateUsage]
        return {each.about: each async for each in check}


WELL = {
    "paused": "0 runs",
    "waiting": "runs",
    "once": "0 runs",
    "call": "2 runs",
    "parked": "2 of 2 there",
}
SOME = {"parked": "of 2 there"}
"""A policy reaches one queue after the other: messages may be parked before it does."""
CHANGED = {
    # Its queues are declared again, by supervision.
    "expires": SOME | {"call": " runs"},
    "delivery-limit": SOME,  # none of them before 4.3
    "dead-letter-routing-key": {"call": "0 runs"},
    "message-ttl": SOME,
    "max-length that rejects": SOME,  # up to 32 come in over it
    "max-length that drops": SOME,
}


def assert_like(fates: Mapping[str, str], expected: Mapping[str, str]) -> None:
    for kind, told in expected.items():
        assert told in fates[kind], fates


@asynccontextmanager
async def blanket(
    node: PrivateNode, namespace: str, definition: dict[str, Any], *, kind: str = "policies"
) -> AsyncGenerator[None]:
    """A policy for everything of a namespace, inside the block."""
    assert node.management_url
    request = ManagementApi(node.management_url).request
    path = f"{kind}/%2F/blanket-{namespace}"
    to = "all" if kind == "policies" else "queues"
    wanted = {"pattern": f"^{namespace}\\.", "definition": definition, "apply-to": to}
    await asyncio.to_thread(request, "PUT", path, **wanted)
    try:
        yield
    finally:
        await asyncio.to_thread(request, "DELETE", path)


async def no_policy_has_anything_run_early(node: PrivateNode, name: str) -> None:
    scene = Scene(node, new_namespace())
    async with AmqpBroker(node.url, emit=scene.app.events.emit) as broker:
        await scene.prepare(broker)
        fates = await scene.play(node, broker, POLICIES[name], expire=name == "expires")
    reported = [each.policy for each in scene.events if isinstance(each, PolicyReported)]
    # Again, if the token of supervision is one that the policy takes away.
    assert set(reported) == {f"policy 'blanket-{scene.app.namespace}'"}, name
    assert bool(scene.count(QueuesMissing)) == (name == "expires"), name
    assert "early" not in str(fates), name
    assert fates["paused"] == fates["once"] == "0 runs", name
    assert_like(fates, WELL | CHANGED.get(name, {}))


async def the_policy_that_the_doctor_names_shields_from_all_others(node: PrivateNode) -> None:
    scene = Scene(node, namespace := new_namespace())
    async with AmqpBroker(node.url, emit=scene.app.events.emit) as broker:
        await scene.prepare(broker)
        await broker.declare(CATCHES_ALL)
        async with blanket(node, namespace, mild := {**ALL, "expires": 600_000}):
            assert not await scene.is_sender_told(broker)
            async with blanket(node, namespace, POLICIES["message-ttl"], kind="operator-policies"):
                findings = await scene.findings(broker)
            found = findings[f"operator policy 'blanket-{namespace}'"]
            assert "No policy overrides an operator policy" in found.advice
            found = findings[f"policy 'blanket-{namespace}'"]
            assert found.verdict == "problem"
            assert all(f"{key}: {value}" in found.detail for key, value in mild.items())
            _, *shielding = shlex.split(found.advice)
            await asyncio.to_thread(node.ctl, *shielding)
            assert await scene.is_sender_told(broker)
            assert (await scene.findings(broker))["policies"].verdict == "ok"
        fates = await scene.play(node, broker, ALL, expire=False)
    assert_like(fates, WELL)


@pytest.mark.timeout(300)
async def test_under_no_policy_anything_runs_early_and_the_suggested_one_shields(node: PrivateNode):
    async with asyncio.TaskGroup() as side_by_side:  # each policy is for one namespace
        side_by_side.create_task(the_policy_that_the_doctor_names_shields_from_all_others(node))
        for name in POLICIES:
            side_by_side.create_task(no_policy_has_anything_run_early(node, name))
