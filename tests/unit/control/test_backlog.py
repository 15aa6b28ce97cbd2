"""What waits for the tasks that are sent messages."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import timedelta

import pytest

from scheduler import Retry, Scheduler
from scheduler.brokers.contract import Delivery, Depth
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.control.installation import Leftover
from scheduler.control.reports import Effect
from scheduler.control.status import Counts
from scheduler.errors import Unroutable
from scheduler.protocol.messages import Message
from scheduler.queues.failed import Selection
from tests.stage import Stage, looping, new_app, program_of


class Leaderless(MemoryBroker):
    """Counts nothing, like RabbitMQ while the leaders of its queues are lost."""

    async def depth(self, queue: str) -> Depth | None:
        return await super().depth(queue) and Depth(0, 0)


class Slow(MemoryBroker):
    """Looks for a second whether a queue is empty, like RabbitMQ."""

    @asynccontextmanager
    async def browse(self, queue: str, *, limit: int) -> AsyncGenerator[AsyncGenerator[Delivery]]:
        async with super().browse(queue, limit=limit) as found:
            await asyncio.sleep(1)
            yield found


def shop() -> Scheduler:
    app = new_app()

    @app.task(retry=Retry(0))
    async def mail(to: str) -> None:
        if to == "nobody":
            raise ValueError("nobody lives there")

    @app.periodic(every="1h", name="loop")
    async def loop() -> None: ...

    return app


async def counts(stage: Stage, app: Scheduler | None = None) -> Counts:
    program = program_of(app or stage.app, stage.broker, stage.clock)
    waiting = (await stage.tokens_by_loop()).total() if hasattr(stage, "program") else 0
    return await program.survey.counts(waiting, await program.installation.leftovers())


async def send(stage: Stage, app: Scheduler, *names: str) -> None:
    app.outbox.use(stage.broker, stage.clock)
    for name in names:
        await app.senders["mail"].send(name)


async def test_parked_and_delayed_messages_and_unknown_loops_are_counted(stage: Stage) -> None:
    assert await counts(stage, shop()) == Counts()  # nothing was seeded
    await stage.seed(shop())
    assert await counts(stage) == Counts()
    await send(stage, stage.app, "nobody", "nobody")
    await stage.publish(Message(), "task.gone", exchange=stage.app.names.rerouted)
    async with stage.processor():
        await asyncio.sleep(1)
    for delay in ("1.1s", "5m", "40d"):
        await stage.app.senders["mail"].send_later(delay, "ada")
    assert await counts(stage) == Counts(parked=3, delayed=3)
    other = new_app()
    other.periodic(every="1h")(nothing)
    left = Leftover("loop", 0, 0), Leftover("mail", 0, 2)
    assert await counts(stage, other) == Counts(parked=3, orphans=("loop",), leftovers=left)


async def nothing() -> None: ...


async def test_messages_of_a_removed_task_are_reported_and_parked(stage: Stage) -> None:
    await stage.seed(shop())
    old, ran = stage.app, list[str]()
    await send(stage, old, "ada", "bob")

    renamed = new_app()

    @renamed.task()
    async def email(to: str) -> None:
        ran.append(to)

    await stage.seed(renamed)
    program = program_of(renamed, stage.broker, stage.clock)
    found = await program.installation.leftovers()
    assert found == [Leftover("loop", 0, 0), Leftover("mail", 2, 0)]
    assert (await counts(stage)).leftovers == tuple(found)
    doctor = await program.doctor.examine()
    assert [each.verdict for each in doctor if each.about == "task mail"] == ["warning"]
    async with stage.processor(app=old):
        await asyncio.sleep(1)
        await send(stage, old, "eve")
        await program.installation.remove_tasks(["mail"])
        _, mail = await program.installation.leftovers()
        assert mail.task == "mail"  # an old processor has it
        await asyncio.sleep(1)
    await send(stage, old, "ada", "bob")
    async with Leaderless(stage.server) as broker:
        await program_of(renamed, broker, stage.clock).seeding.seed(prune=True)
    assert await program.installation.leftovers() == [Leftover("mail", None, 2)]
    with pytest.raises(Unroutable):
        await send(stage, old, "late")
    with pytest.raises(Unroutable):
        await old.senders["mail"].send_later("1h", "later")
    async with stage.processor():
        await stage.failed.replay(["mail"], Selection(reason="removed"), to="email")
        await asyncio.sleep(1)
    assert sorted(ran) == ["ada", "bob"]
    await program.seeding.seed(prune=True)
    assert await program.installation.leftovers() == []


async def test_removed_tasks_are_removed_side_by_side(stage: Stage) -> None:
    await stage.seed(looping(*"abcdef"))
    async with Slow(stage.server) as broker:
        began, program = stage.clock.now(), program_of(new_app(), broker, stage.clock)
        await program.seeding.seed(prune=True)
        assert stage.clock.now() - began < timedelta(seconds=5)
        assert await program.installation.leftovers() == []


async def test_the_pause_of_a_removed_task_is_reported_and_pruned(stage: Stage) -> None:
    await stage.seed(shop())
    await stage.verbs.pause(await stage.loops.find("mail", or_whole=True), "stocktaking")
    await stage.seed(new_app())
    assert (await counts(stage)).orphans == ("loop", "the pause of mail")
    doctor = await stage.program.doctor.examine()
    assert any(each.about == "task mail" and "is paused in" in each.detail for each in doctor)
    planned = {str(each.loop): each.did for each in await stage.seeding.plan(prune=True)}
    assert planned == {"loop": Effect.REMOVED, "mail": Effect.REMOVED}
    pruned = await stage.seeding.seed(prune=True)
    assert {str(each.loop): each.did for each in pruned} == planned
    assert (await counts(stage)).orphans == ()
    await stage.seed(shop())
    assert [each.pause for each in await stage.survey.backlogs()] == [None]
