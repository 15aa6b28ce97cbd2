"""What waits for the tasks that are sent messages."""

import asyncio

from scheduler import Retry, Scheduler
from scheduler.control.backlog import Backlog, backlogs
from scheduler.control.processors import Processors
from scheduler.queues.outbox import Posting
from scheduler.tasks.registry import resting
from tests.stage import Stage, new_app


def shop() -> Scheduler:
    app = new_app()

    @app.task(retry=Retry(0))
    async def mail(to: str) -> None:
        if to == "nobody":
            raise ValueError("nobody lives there")

    @app.periodic(every="1h", name="loop")
    async def loop() -> None: ...

    return app


async def backlog(stage: Stage) -> list[Backlog]:
    return await backlogs(
        stage.broker,
        stage.app.names,
        Processors(stage.broker, stage.app.names, resting(stage.app)),
        stage.app.tasks.values(),
    )


async def send(stage: Stage, *names: str) -> None:
    mail = stage.app.select(["mail"])[0]
    for name in names:
        arguments = mail.arguments.bind(name)
        await stage.app.outbox.send("mail", arguments, Posting())


async def test_messages_wait_are_taken_and_are_parked(stage: Stage) -> None:
    await stage.seed(shop())
    await send(stage, "ada", "nobody", "bob")
    assert await backlog(stage) == [Backlog("mail", ready=3, processors=0, parked=0)]
    async with stage.processor():
        await asyncio.sleep(1)
        assert await backlog(stage) == [Backlog("mail", ready=0, processors=1, parked=1)]


async def test_a_task_that_was_never_seeded_has_no_backlog(stage: Stage) -> None:
    await stage.seed(shop())
    names = stage.app.names
    await stage.broker.delete(names.processor_queue("mail"))
    await stage.broker.delete(names.failed_queue("mail"))
    assert await backlog(stage) == [Backlog("mail", ready=None, processors=0, parked=0)]
