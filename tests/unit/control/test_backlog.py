"""What waits for the tasks that are sent messages."""

import asyncio

from scheduler import Retry, Scheduler
from scheduler.control.status import Backlog, Counts
from scheduler.protocol.messages import Message
from scheduler.queues.outbox import Posting
from scheduler.timing.durations import parse_duration
from tests.stage import Stage, new_app, program_of


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
    survey = program_of(app or stage.app, stage.broker, stage.clock).survey
    waiting = (await stage.tokens_by_loop()).total() if hasattr(stage, "app") else 0
    return await survey.counts(waiting)


async def send(stage: Stage, *names: str) -> None:
    mail = stage.app.select(["mail"])[0]
    for name in names:
        arguments = mail.arguments.bind(name)
        await stage.app.outbox.send("mail", arguments, Posting())


async def test_messages_wait_are_taken_and_are_parked(stage: Stage) -> None:
    await stage.seed(shop())
    await send(stage, "ada", "nobody", "bob")
    assert await stage.survey.backlogs() == [Backlog("mail", ready=3, processors=0, parked=0)]
    async with stage.processor():
        await asyncio.sleep(1)
        assert await stage.survey.backlogs() == [Backlog("mail", ready=0, processors=1, parked=1)]


async def test_a_task_that_was_never_seeded_has_no_backlog(stage: Stage) -> None:
    await stage.seed(shop())
    names = stage.app.names
    await stage.broker.delete(names.processor_queue("mail"))
    await stage.broker.delete(names.failed_queue("mail"))
    assert await stage.survey.backlogs() == [Backlog("mail", ready=None, processors=0, parked=0)]


async def test_what_is_parked_or_delayed_is_counted_and_loops_that_the_code_does_not_have(
    stage: Stage,
) -> None:
    await stage.seed(shop())
    assert await counts(stage) == Counts()
    await send(stage, "nobody", "nobody")
    await stage.publish(Message(), "task.gone", exchange=stage.app.names.rerouted)
    async with stage.processor():
        await asyncio.sleep(1)
    mail = stage.app.select(["mail"])[0]
    for delay in ("1.1s", "5m", "40d"):
        posting = Posting(delay=parse_duration(delay))
        await stage.app.outbox.send("mail", mail.arguments.bind("ada"), posting)
    assert await counts(stage) == Counts(parked=3, delayed=3)
    other = new_app()
    other.periodic(every="1h")(nothing)
    assert await counts(stage, other) == Counts(parked=1, orphans=("loop",))


async def test_nothing_is_counted_where_nothing_was_seeded(stage: Stage) -> None:
    assert await counts(stage, shop()) == Counts()


async def nothing() -> None: ...
