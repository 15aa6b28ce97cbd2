"""A task whose queue is spread over shards, and whose number of shards changes."""

import asyncio
from collections.abc import Iterable
from contextlib import suppress
from itertools import count

import pytest

from scheduler import Context, Every, Scheduler
from scheduler.brokers.contract import Depth
from scheduler.control.keyed import Keyed
from scheduler.errors import QueueNotFound, UsageError
from scheduler.events import MessageParked, RunStarted
from scheduler.protocol.tokens import LoopId, slice_of
from scheduler.tasks.loops import queues_of
from scheduler.tasks.tasks import SUPERVISION
from tests.faulty import Call, FaultyBroker, Operation
from tests.stage import Stage, new_app, of, processor_of, program_of

KEYS = [f"k{number}" for number in range(12)]
LOOPS = len(KEYS) + 1
WRITES: tuple[Operation, ...] = "declare", "unbind", "publish", "delete"


class Killed(Exception):
    """The program ends here."""


def an_app(shards: int) -> Scheduler:
    app = new_app()

    @app.periodic(every="10s", name="poll", shards=shards)
    async def poll(ctx: Context) -> None: ...

    return app


async def seeded(stage: Stage, shards: int) -> Scheduler:
    await stage.seed(app := an_app(shards))
    await Keyed(app.tasks["poll"], app.operations).start_many(dict.fromkeys(KEYS, Every("10s")))
    return app


async def depths_of(stage: Stage, queues: Iterable[str]) -> list[Depth | None]:
    return [await stage.broker.depth(queue) for queue in queues]


async def test_shards_are_counted_and_limited_as_one_task(stage: Stage) -> None:
    app, running, most = new_app(), 0, 0

    @app.periodic(every="10s", shards=4, concurrency=6)
    async def poll(ctx: Context) -> None:
        nonlocal running, most
        running, most = running + 1, max(most, running + 1)
        await asyncio.sleep(1)
        running -= 1

    await stage.seed(app)
    await poll.start_many(dict.fromkeys(KEYS, Every("10s")))
    await asyncio.sleep(11)
    queues = queues_of(app, "poll")
    assert queues == [f"test.v1.processor.poll{end}" for end in ("", ".1", ".2", ".3")]
    shards = [slice_of(LoopId("poll", key)) % 4 for key in ("", *KEYS)]
    waiting = [Depth(shards.count(shard), 0) for shard in range(4)]
    assert await depths_of(stage, queues) == waiting
    assert (await stage.survey.depths(["poll"]))["poll"] == Depth(LOOPS, 0)
    async with stage.processor() as worker:
        await asyncio.sleep(0.5)
        assert worker.listening == [*queues]
        depth = (await stage.survey.depths(["poll"]))["poll"]
        assert depth == Depth(LOOPS - 6, 1)
        assert {each.processors for each in await stage.survey.status()} == {1}
        await asyncio.sleep(8)
        assert most == 6
        assert worker.silent == []


@pytest.mark.parametrize(("old", "new", "then"), [(1, 4, 1), (1, 4, 4), (4, 2, 1)])
async def test_a_killed_change_doubles_no_token(
    stage: Stage, old: int, new: int, then: int
) -> None:
    await seeded(stage, old)
    for steps in count(1):
        await stage.seed(an_app(old))
        await asyncio.sleep(15)
        left = steps

        async def die(call: Call) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        async with FaultyBroker(stage.server) as broker:
            for operation in WRITES:
                broker.on(operation).then(die)
            with suppress(Killed):
                await program_of(an_app(new), broker, stage.clock).seeding.seed()
        await asyncio.sleep(1)
        await stage.seed(an_app(then))
        async with stage.processor():
            await asyncio.sleep(25)
        assert await stage.tokens_by_loop() == await stage.expected(), steps
        assert await stage.program.installation.old_shards() == {}
        if left > 0:
            assert steps > 10
            break
    assert not of(MessageParked, stage.events)


async def test_a_token_is_not_lost_during_a_change_of_shards(stage: Stage) -> None:
    app = await seeded(stage, 1)

    async def wait(call: Call) -> None:
        await asyncio.sleep(12)

    for shards in 4, 1:
        async with FaultyBroker(stage.server) as broker, stage.processor():
            broker.on("unbind", times=2).then(wait)
            app = an_app(shards)
            await program_of(app, broker, stage.clock).seeding.seed()
        await stage.seed(app)
        stage.events.clear()
        async with stage.processor():
            await asyncio.sleep(25)
        ran = {event.loop for event in of(RunStarted, stage.events)}
        assert len(ran) == LOOPS
        assert await stage.tokens_by_loop() == await stage.expected()
    assert await stage.parked() == []


async def test_a_shard_is_kept_while_old_processors_consume_it(stage: Stage) -> None:
    old = await seeded(stage, 2)
    queue = queues_of(old, "poll")[1]
    async with stage.processor():
        await asyncio.sleep(1)
        await stage.seed(new := an_app(1))
        assert await stage.program.installation.old_shards() == {queue: Depth(0, 1)}
        findings = {each.about: each for each in await stage.program.doctor.examine()}
        assert findings[f"queue {queue}"].verdict == "warning"
        told = "shards= of the task 'poll' is 2 here, and 1 in .*Run `scheduler seed`"
        with pytest.raises(UsageError, match=told):
            await processor_of(old, stage.broker, stage.clock).run()
        await stage.broker.delete(queues_of(new, "poll")[0])
        with pytest.raises(QueueNotFound, match="only a seed .* queues of former"):
            await processor_of(new, stage.broker, stage.clock).run()
        await stage.seed(new)
        await asyncio.sleep(25)
    await stage.seed(new)
    assert await stage.program.installation.old_shards() == {}
    assert await stage.broker.depth(queue) is None


async def test_old_code_repairs_no_loop_of_a_shard_that_it_does_not_know(stage: Stage) -> None:
    old = await seeded(stage, 1)
    new = an_app(4)
    async with stage.supervised(app=old):
        await asyncio.sleep(15)
        await stage.seed(new)
        stage.events.clear()
        old.events.listen(stage.events.append)
        await asyncio.sleep(100)  # some rounds of supervision
        assert stage.repairs() == []
        async with stage.supervised(app=new):
            await asyncio.sleep(25)
    ran = {event.loop for event in of(RunStarted, stage.events)}
    assert len(ran - {SUPERVISION}) == LOOPS


async def test_only_a_seed_changes_the_number_of_shards(stage: Stage) -> None:
    await seeded(stage, 1)
    app = an_app(2)
    program = program_of(app, stage.broker, stage.clock)
    assert await program.installation.declare_missing() == set()
    with pytest.raises(UsageError, match="shards= of the task 'poll' is 2 here, and 1 in"):
        await processor_of(app, stage.broker, stage.clock).run()
    # A shard that an operator has deleted is declared again, with its bindings.
    await stage.seed(app)
    queue = queues_of(app, "poll")[1]
    await stage.broker.delete(queue)
    assert await program.installation.declare_missing() == {queue}
    async with stage.processor():
        await asyncio.sleep(25)


async def test_a_task_that_is_removed_leaves_no_shard(stage: Stage) -> None:
    old = await seeded(stage, 3)
    await asyncio.sleep(15)
    new = new_app()
    new.periodic(every="1h", name="other")(lambda: None)
    await stage.seed(new)
    await stage.seeding.seed(prune=True)
    assert await depths_of(stage, queues_of(old, "poll")) == [None] * 3
    assert len(await stage.failed.browse(["poll"], limit=100)) == LOOPS
