"""Queues that get other arguments: what waits in them is there afterwards."""

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from typing import Any

import pytest

from scheduler import Context, Scheduler, Settings
from scheduler.brokers.contract import Broker
from scheduler.control.reports import Effect
from scheduler.errors import UsageError
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import QueueType
from tests.contract.wire import eventually, has_depth, until
from tests.stage import SYSTEM_CLOCK, at_work, processor_of, program_of
from tests.sweep import clear, new_namespace

pytestmark = pytest.mark.timeout(240)  # all queues are made several times

Ran = list[tuple[str, Any]]


class Version:
    """A version of an app: how its task is declared, and what it has run."""

    def __init__(self, url: str, namespace: str, queue_type: QueueType, **task: Any) -> None:
        settings: Any = {"broker_url": url, "queue_type": queue_type, **task.pop("settings", {})}
        self.app = app = Scheduler(namespace, Settings(**settings))
        self.ran: Ran = []

        async def work(ctx: Context, n: int) -> None:
            self.ran.append(("work", n))

        async def listen(ctx: Context, body: bytes) -> None:
            self.ran.append((ctx.routing_key, body))

        function: Any = listen if "subscribe" in task else work
        self.work = app.task(name="work", **task)(function)

        @app.periodic(every="1h")
        async def loop(ctx: Context) -> None:
            self.ran.append(("loop", ctx.seq))
            ctx.carry(ctx.seq)


@pytest.fixture
async def version(broker_url: str, namespace: str) -> AsyncIterator[Callable[..., Version]]:
    made = list[Version]()

    def make(**task: Any) -> Version:
        within, of = task.pop("within", namespace), task.pop("of", "quorum")
        made.append(Version(broker_url, within, of, **task))
        return made[-1]

    yield make
    for each in made:
        await clear(broker_url, each.app.topology())


async def send(version: Version, broker: Broker, *numbers: int) -> None:
    with version.app.lending(broker, SYSTEM_CLOCK):
        for number in numbers:
            await version.work.send(number)


async def run_all(version: Version, broker: Broker, count: int) -> Ran:
    async with at_work(processor_of(version.app, broker)):
        return await run_all_of(version, count)


async def run_all_of(version: Version, count: int) -> Ran:
    await until(lambda: len(version.ran) >= count)
    return version.ran


async def test_a_queue_is_recreated_with_its_messages_unless_it_has_consumers(
    version: Callable[..., Version], broker: Broker, namespace: str
) -> None:
    orders = f"{namespace}.orders"
    of_old = [(orders, "order.#", "topic")]
    old, new = version(subscribe=of_old), version(subscribe=of_old, ordered=True)
    await program_of(old.app, broker).seeding.seed()
    migrating = program_of(new.app, broker).seeding

    async with at_work(processor_of(old.app, broker)):
        await has_depth(broker, old.app.names.processor_queue("work"), ready=0, consumers=1)
        with pytest.raises(UsageError, match="but has 1 processor.*stop all processors"):
            await migrating.seed(migrate=True)
        await broker.publish(Message(b"cream"), exchange=orders, routing_key="order.new")
        assert await run_all_of(old, 1) == [("order.new", b"cream")]
    await broker.publish(Message(b"tea"), exchange=orders, routing_key="order.new")
    await migrating.seed(migrate=True)
    await broker.publish(Message(b"milk"), exchange=orders, routing_key="order.new")
    ran = await run_all(new, broker, 2)
    assert ran == [("order.new", b"tea"), ("order.new", b"milk")]


async def test_a_whole_namespace_can_change_the_type_of_its_queues(
    version: Callable[..., Version], broker: Broker
) -> None:
    namespace = new_namespace()  # its timers change their type as well
    old, new = version(within=namespace), version(within=namespace, of="classic")
    program = program_of(old.app, broker)
    await program.seeding.seed()
    await program.verbs.trigger(old.app.loop("loop"))
    await run_all(old, broker, 1)
    await send(old, broker, 1, 2, 3)
    program = program_of(new.app, broker)
    with pytest.raises(UsageError, match="SCHEDULER_QUEUE_TYPE"):
        await program.seeding.seed()
    await program.seeding.seed(migrate=True)
    async with at_work(processor_of(new.app, broker)):

        async def triggered() -> bool:  # once it has heard in the journal where it was
            return (await program.verbs.trigger(new.app.loop("loop"))).did is Effect.TRIGGERED

        await eventually(triggered)
        ran = await run_all_of(new, 4)
    assert sorted(ran) == [("loop", 1), *(("work", n) for n in (1, 2, 3))]


async def test_a_journal_with_another_retention_is_recreated(
    version: Callable[..., Version], broker: Broker
) -> None:
    old, new = version(), version(settings={"journal_max_age": "2d"})
    await program_of(old.app, broker).seeding.seed()
    program = program_of(new.app, broker)
    with pytest.raises(UsageError, match=r"SCHEDULER_JOURNAL_MAX_AGE.*starts a new journal"):
        await program.seeding.seed()
    await program.seeding.seed(migrate=True)
    (status,) = await program.survey.status()
    assert status.due_at is not None
    assert status.due_at > datetime.now(UTC)
