"""Whose a namespace is, and whether its queues fit the code that is started."""

from dataclasses import replace
from typing import Any

import pytest

from scheduler import Context, Scheduler, Settings
from scheduler.control.reports import Effect
from scheduler.errors import AccessRefused, BrokerError, QueueNotFound, Unconfirmed, UsageError
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Topology
from tests.faulty import FaultyBroker, Operation
from tests.stage import Stage, at_work, new_app, processor_of, program_of


def an_app(module: str = "shop", **task: Any) -> Scheduler:
    app = new_app()
    app.module = module

    @app.task(name="work", **task)
    async def work(ctx: Context, n: bytes = b"") -> None: ...

    return app


async def test_the_namespace_of_another_app_is_not_used(stage: Stage) -> None:
    shop, other = an_app("shop"), an_app("billing")

    async def loop(ctx: Context) -> None: ...

    shop.periodic(every="1h", name="sell")(loop)
    other.periodic(every="1h", name="bill")(loop)
    assert Scheduler("shop", Settings()).module == "test_installation"
    await stage.seed(shop)
    before = await stage.broker.depth(other.names.roster)
    program = program_of(other, stage.broker, stage.clock)
    told = r"seeded from the module 'shop', and this one is in 'billing'.*seed --take-over"
    with pytest.raises(UsageError, match=told):
        await program.seeding.seed(prune=True)
    with pytest.raises(UsageError, match=told):
        await program.seeding.plan(prune=True)
    with pytest.raises(UsageError, match=told):
        await processor_of(other, stage.broker, stage.clock).run()
    assert await stage.broker.depth(other.names.roster) == before
    findings = await program.doctor.examine()
    (finding,) = (each for each in findings if each.about == "app")
    assert finding.verdict == "problem"
    assert "'shop'" in finding.detail
    assert "loop sell" not in {finding.about for finding in findings}  # to be pruned
    assert await stage.broker.depth(other.names.processor_queue("bill")) is None
    (planned,) = await program.seeding.plan(take_over=True)
    assert (str(planned.loop), planned.did) == ("bill", Effect.CREATED)
    await program.seeding.seed(take_over=True)
    await program.seeding.seed()
    with pytest.raises(UsageError, match="seeded from the module 'billing'"):
        await stage.seeding.seed()


def tasked(*names: str) -> Scheduler:
    app = new_app()
    for name in names:
        app.task(name=name)(lambda: None)
    return app


async def test_an_app_of_the_same_module_needs_one_of_several_tasks(stage: Stage) -> None:
    await stage.seed(tasked("buy", "sell"))
    with pytest.raises(UsageError, match="this one is in 'stage', or has none of its tasks"):
        await program_of(tasked("bill", "pay"), stage.broker, stage.clock).seeding.seed()
    await program_of(tasked("bill", "sell"), stage.broker, stage.clock).seeding.seed()
    await program_of(tasked("bill"), stage.broker, stage.clock).seeding.seed()
    await program_of(tasked("invoice"), stage.broker, stage.clock).seeding.seed()


async def test_an_imprint_that_cannot_be_read_is_ignored(stage: Stage) -> None:
    await stage.seed(an_app("shop"))
    names = stage.app.names
    for body in b"", b"[]", b'{"version": 2, "app": "billing", "queues": {}}':
        await stage.broker.publish(Message(body), exchange=names.control, routing_key=names.imprint)
        assert await stage.program.installation.other_app() is None
        await stage.program.installation.require(["work"])


async def test_the_last_imprint_is_kept_though_the_connection_ends(stage: Stage) -> None:
    await stage.seed(an_app("shop"))
    async with FaultyBroker(stage.server) as broker:
        ended = broker.on("get", ".imprint", times=1).fails(Unconfirmed())
        for _ in range(3):
            await program_of(stage.app, broker, stage.clock).seeding.seed()
    assert ended.met
    assert await stage.ready(stage.app.names.imprint) == 1


async def test_an_interrupted_migration_is_completed(stage: Stage) -> None:
    await stage.seed(an_app())
    changed = an_app(ordered=True)
    program = program_of(changed, stage.broker, stage.clock)
    names, queue = changed.names, changed.names.processor_queue("work")
    second = changed.topology().in_place_of(queue, names.moving(queue))
    await program.installation.leave_imprint(being_migrated=[queue])
    for app in stage.app, changed:
        with pytest.raises(UsageError, match="is incomplete: rerun `scheduler seed --migrate`"):
            await processor_of(app, stage.broker, stage.clock).run()
    # It was killed once the queue was deleted, and what waited was in the second one.
    await stage.broker.declare(Topology(queues=second.queues))
    await stage.broker.delete(queue)
    await stage.broker.declare(replace(second, exchanges=()))
    await stage.publish(Message(b"{}", message_id="1"), "task.work")
    await program.seeding.seed(migrate=True)
    depths = [await stage.broker.depth(name) for name in (queue, names.moving(queue))]
    assert [depth and depth.ready for depth in depths] == [1, None]


@pytest.mark.parametrize(
    ("refused", "error", "said"),
    [
        ("depth", AccessRefused, "^ACCESS_REFUSED$"),
        ("declare", QueueNotFound, "presence' is not in .*, and this user may not declare it"),
    ],
)
async def test_without_the_right_to_look_a_missing_queue_is_not_reported(
    stage: Stage, refused: Operation, error: type[BrokerError], said: str
) -> None:
    await stage.seed(app := new_app())
    await stage.broker.delete(app.names.presence)
    async with FaultyBroker(stage.server) as broker:
        broker.on(refused).fails(AccessRefused("ACCESS_REFUSED"))
        with pytest.raises(error, match=said):
            async with at_work(processor_of(app, broker, stage.clock)):
                pass
