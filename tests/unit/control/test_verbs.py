"""The operator's verbs: what each does to a loop, and that the journal tells of it."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import timedelta

import pytest

from scheduler import Context, Every, Scheduler
from scheduler.control.reports import Did
from scheduler.control.status import Where
from scheduler.errors import QueueNotFound, Unconfirmed, UnknownLoop, UsageError
from scheduler.events import LoopSeeded, RunStarted
from scheduler.program import Program
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, State, Token
from scheduler.tasks.loops import Loop
from scheduler.timing.durations import SECOND
from tests.faulty import Call, FaultyBroker
from tests.stage import START, Stage, new_app, of, program_of, seconds_of

TASK, GONE = LoopId("task"), LoopId("gone")
HOUR = 3600.0


def looping(*names: str, every: str = "1h", takes: float = 0) -> Scheduler:
    """An app with a loop of each name, whose runs count up what they carry."""
    app = new_app()

    async def count(ctx: Context) -> None:
        await asyncio.sleep(takes)
        ctx.carry((ctx.carried or 0) + 1)

    for name in names or ("task",):
        app.periodic(every=every, name=name)(count)
    return app


def the_loop(stage: Stage) -> Loop:
    return stage.app.loop("task")


# Pause, resume, trigger


async def test_a_pause_keeps_the_loop_from_running_until_it_is_resumed(stage: Stage) -> None:
    app = looping(every="1m")
    await stage.seed(app)
    async with stage.processor():
        await asyncio.sleep(70)
        assert (await stage.verbs.pause(the_loop(stage), "stocktaking")).did is Did.PAUSED
        assert (await stage.verbs.pause(the_loop(stage))).did is Did.UNCHANGED
        await asyncio.sleep(600)
        report = await stage.verbs.resume(the_loop(stage))
        assert report.did is Did.RESUMED
        assert report.token is not None
        assert seconds_of([report.token.due_at]) == [730.0]
        assert (await stage.verbs.resume(the_loop(stage))).did is Did.NOT_PAUSED
        await asyncio.sleep(70)
    assert stage.starts() == [60.0, 730.0]
    assert await stage.history("task") == [
        *("seeded", "succeeded", "paused", "resumed", "succeeded")
    ]


async def test_a_loop_that_is_resumed_at_once_runs_at_once(stage: Stage) -> None:
    await stage.seed(looping())
    async with stage.processor():
        await stage.verbs.pause(the_loop(stage))
        await asyncio.sleep(10)
        assert (await stage.verbs.resume(the_loop(stage), at_once=True)).did is Did.RESUMED
        await asyncio.sleep(1)
    assert stage.starts() == [10.0]


async def test_a_trigger_has_the_one_token_hatch_now(stage: Stage) -> None:
    await stage.seed(looping())
    async with stage.processor():
        await asyncio.sleep(10)
        assert (await stage.verbs.trigger(the_loop(stage))).did is Did.TRIGGERED
        await asyncio.sleep(10)
        assert (await stage.token(TASK)).due_at == START + timedelta(seconds=10 + HOUR)
    assert stage.starts() == [10.0]
    assert await stage.tokens() == 1
    assert await stage.history("task") == ["seeded", "triggered", "succeeded"]


async def test_a_paused_loop_is_not_triggered(stage: Stage) -> None:
    await stage.seed(looping())
    await stage.verbs.pause(the_loop(stage))
    assert (await stage.verbs.trigger(the_loop(stage))).did is Did.IS_PAUSED
    assert (await stage.token(TASK)).state is State.PAUSED


@pytest.mark.parametrize(
    ("verb", "did"),
    [("pause", Did.PAUSED), ("resume", Did.NOT_PAUSED), ("trigger", Did.RUNNING)],
)
async def test_during_a_run_a_verb_waits_for_its_end_or_does_nothing(
    stage: Stage, verb: str, did: Did
) -> None:
    app = looping(takes=60)
    await stage.seed(app)
    async with stage.supervised():
        await stage.verbs.trigger(the_loop(stage))
        await asyncio.sleep(10)
        assert (await getattr(stage.verbs, verb)(the_loop(stage))).did is did
        await asyncio.sleep(100)
        paused = verb == "pause"
        assert await stage.where(TASK) is (Where.PAUSED if paused else Where.WAITING)
        token = await stage.token(TASK)
        assert (token.seq, token.carry) == (1, 1)
    assert len(stage.repairs()) == 0


async def test_a_loop_that_is_paused_and_resumed_during_a_run_goes_on_when_that_has_ended(
    stage: Stage,
) -> None:
    app = looping(takes=60)
    await stage.seed(app)
    async with stage.supervised():
        await stage.verbs.trigger(the_loop(stage))
        await asyncio.sleep(10)
        await stage.verbs.pause(the_loop(stage))
        assert (await stage.verbs.resume(the_loop(stage))).did is Did.GUARDED
        await asyncio.sleep(60)
        token = await stage.token(TASK)
        assert (token.state, token.seq, token.carry) == (State.ARMED, 1, 1)


async def test_a_loop_that_is_resumed_after_its_run_was_lost_goes_on_where_it_was(
    stage: Stage,
) -> None:
    await stage.seed(looping())
    async with stage.supervised():
        await stage.verbs.trigger(the_loop(stage))
        await asyncio.sleep(10)
        await stage.lose(TASK)
        await stage.verbs.pause(the_loop(stage))
        report = await stage.verbs.resume(the_loop(stage))
        assert report.token is not None
        assert (report.did, report.token.state) == (Did.RESUMED, State.ARMED)
        assert (report.token.seq, report.token.carry) == (1, 1)
        assert seconds_of([report.token.due_at]) == [pytest.approx(10 + HOUR, abs=15)]


async def test_a_token_that_was_on_its_way_does_not_go_on_beside_its_pause(stage: Stage) -> None:
    app = looping(every="5s")
    await stage.seed(app)
    async with stage.supervised():
        token = await stage.token(TASK)
        await stage.lose(TASK)
        pausing = asyncio.create_task(stage.verbs.pause(the_loop(stage), "stocktaking"))
        await asyncio.sleep(2)
        await stage.crowd([replace(token, seq=1, due_at=token.due_at + 5 * SECOND)])
        assert (await pausing).did is Did.PAUSED
        assert await stage.tokens() == 1
        left = await stage.token(TASK)
        assert (left.seq, left.state, left.reason) == (1, State.PAUSED, "stocktaking")
        await asyncio.sleep(60)
    assert not [run for run in of(RunStarted, stage.events) if run.loop == TASK]


def racing(stage: Stage, token: Token) -> FaultyBroker:
    """A broker that takes a token at the same moment as a run's, which is the first in the slot."""
    broker, requeuing = FaultyBroker(stage.server), list[asyncio.Task[None]]()

    async def race(_: Call) -> None:
        assert await stage.hatchery.offer(token)
        occupant = await stage.hatchery.take(TASK)
        assert occupant is not None
        requeuing.append(asyncio.create_task(occupant.delivery.requeue()))

    broker.on("publish", key="loop.task", times=1).first(race)
    return broker


async def test_a_token_that_is_put_at_the_same_moment_does_not_go_on_beside_its_pause(
    stage: Stage,
) -> None:
    await stage.seed(looping())
    token = replace(await stage.token(TASK), seq=1)
    await stage.lose(TASK)
    async with racing(stage, token) as broker:
        program = program_of(stage.app, broker, stage.clock)
        assert (await program.verbs.pause(the_loop(stage))).did is Did.PAUSED
    assert await stage.tokens() == 1
    left = await stage.token(TASK)
    assert (left.seq, left.state) == (1, State.PAUSED)


async def test_pausing_a_loop_that_runs_does_not_wait_for_its_end(stage: Stage) -> None:
    await stage.seed(looping(takes=60))
    stage.expects_two(TASK)
    async with stage.supervised():
        await stage.verbs.trigger(the_loop(stage))
        await asyncio.sleep(10)
        before = stage.clock.now()
        await stage.verbs.pause(the_loop(stage))
        assert stage.clock.now() - before < SECOND


async def test_a_resumed_loop_is_guarded_where_processors_do_not_tell_whether_it_runs(
    stage: Stage,
) -> None:
    await stage.seed(looping())
    async with stage.processor():
        await stage.verbs.trigger(the_loop(stage))
        await asyncio.sleep(10)
        await stage.lose(TASK)
        await stage.verbs.pause(the_loop(stage))
        report = await stage.verbs.resume(the_loop(stage))
        assert report.token is not None
        assert (report.did, report.token.state) == (Did.GUARDED, State.GUARD)
        assert (report.token.seq, report.token.carry) == (1, 1)


def unconfirming(stage: Stage) -> FaultyBroker:
    """A broker that confirms no token."""
    broker = FaultyBroker(stage.server)
    broker.on("publish", key="loop.task").fails(Unconfirmed("Not confirmed."))
    return broker


@pytest.mark.parametrize("verb", ["pause", "trigger"])
async def test_a_verb_that_fails_leaves_the_token_where_it_was(stage: Stage, verb: str) -> None:
    await stage.seed(looping())
    before = await stage.token(TASK)
    async with unconfirming(stage) as broker:
        program = program_of(stage.app, broker, stage.clock)
        with pytest.raises(Unconfirmed):
            await getattr(program.verbs, verb)(the_loop(stage))
        assert await stage.token(TASK) == before


async def test_what_is_in_the_way_and_cannot_be_parked_is_left_where_it_was(stage: Stage) -> None:
    await stage.seed(looping())
    await stage.lose(TASK)
    await stage.publish(Message(b"garbage"), "loop.task", stage.app.names.scheduler)
    async with unconfirming(stage) as broker:
        with pytest.raises(Unconfirmed):
            await program_of(stage.app, broker, stage.clock).verbs.pause(the_loop(stage))
        assert await stage.tokens() == 1
    assert (await stage.verbs.pause(the_loop(stage))).did is Did.PAUSED
    (parked,) = await stage.parked()
    assert parked.reason == "undecodable"


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger"])
async def test_what_was_never_seeded_is_told(stage: Stage, verb: str) -> None:
    await stage.seed(looping())
    stage.expects_none(TASK)
    await stage.broker.delete(stage.app.names.hatchery(TASK))
    with pytest.raises(QueueNotFound, match="loop task is not in.*Nothing was changed"):
        await getattr(stage.verbs, verb)(the_loop(stage))


# Seed


async def nothing(stage: Stage) -> None: ...


async def wait(stage: Stage) -> None:
    await asyncio.sleep(HOUR + 1)


async def pause(stage: Stage) -> None:
    await stage.verbs.pause(the_loop(stage))


async def lose(stage: Stage) -> None:
    await stage.lose(TASK)


async def delete_slot(stage: Stage) -> None:
    await stage.broker.delete(stage.app.names.hatchery(TASK))


async def delete_all(stage: Stage) -> None:
    for queue in stage.app.topology().queues:
        await stage.broker.delete(queue.name)


Deed = Callable[[Stage], Awaitable[None]]


@pytest.mark.parametrize(
    ("deed", "every", "did"),
    [
        (nothing, "1h", Did.UNCHANGED),
        (nothing, "2h", Did.RESCHEDULED),
        (wait, "1h", Did.UNCHANGED),
        (wait, "2h", Did.RESCHEDULED),
        (pause, "1h", Did.UNCHANGED),
        (pause, "2h", Did.RESCHEDULED),
        (lose, "1h", Did.GUARDED),
        (lose, "2h", Did.GUARDED),
        (delete_slot, "1h", Did.GUARDED),
        (delete_all, "1h", Did.CREATED),
    ],
)
async def test_what_a_seed_does(stage: Stage, deed: Deed, every: str, did: Did) -> None:
    app = looping(every=every)
    await stage.seed(looping())
    await deed(stage)
    states: dict[Deed, State] = {
        pause: State.PAUSED,
        lose: State.GUARD,
        delete_slot: State.GUARD,
    }
    (report,) = await program_of(app, stage.broker, stage.clock).seeding.seed()
    assert report.did is did
    assert report.token is not None
    assert report.token.state is states.get(deed, State.ARMED)
    assert report.token.schedule == Every(every)
    assert await stage.tokens() == 1


async def test_a_seed_tells_of_each_loop_what_it_did(stage: Stage) -> None:
    await stage.seed(looping("task", "other"))
    await stage.seeding.seed()
    seeded = of(LoopSeeded, stage.events)
    assert [(str(each.loop), each.did) for each in seeded] == [
        *(("task", "created"), ("other", "created")),
        *(("task", "unchanged"), ("other", "unchanged")),
    ]


async def test_a_plan_says_what_a_seed_would_do_and_does_nothing(stage: Stage) -> None:
    await stage.seed(looping())
    stage.expects_none(TASK)
    plans = [
        await program_of(looping(every=every), stage.broker, stage.clock).dry_run.plan()
        for every in ("1h", "2h")
    ]
    assert [report.did for (report,) in plans] == [Did.UNCHANGED, Did.RESCHEDULED]
    assert (await stage.token(TASK)).schedule == Every("1h")
    await delete_slot(stage)
    (report,) = await stage.program.dry_run.plan()
    assert report.did is Did.CREATED
    assert await stage.where(TASK) is Where.UNSEEDED


# Remove, and prune


async def test_a_loop_of_the_code_is_not_removed(stage: Stage) -> None:
    await stage.seed(looping())
    with pytest.raises(UsageError, match="The loop task is in the code, which would start it"):
        await stage.removal.remove(the_loop(stage))
    assert await stage.where(TASK) is Where.WAITING


def newer(stage: Stage) -> Program:
    """The verbs of a version of the app that has `task` only."""
    return program_of(looping(), stage.broker, stage.clock)


async def test_a_loop_that_the_code_does_not_have_is_removed_with_its_queues(stage: Stage) -> None:
    await stage.seed(looping("task", "gone"))
    program, names = newer(stage), stage.app.names
    assert [str(loop) for loop in await program.loops.orphans()] == ["gone"]
    orphan = await program.loops.find("gone")
    assert (await program.removal.remove(orphan)).did is Did.REMOVED
    assert await program.loops.orphans() == []
    for queue in (
        names.hatchery(GONE),
        names.processor_queue("gone"),
        names.failed_queue("gone"),
    ):
        assert await stage.broker.depth(queue) is None
    assert await stage.history("gone") == ["seeded", "removed"]
    assert (await program.removal.remove(orphan)).did is Did.NOT_THERE
    with pytest.raises(UnknownLoop):
        await program.loops.find("gone")


async def test_only_a_seed_that_was_told_to_prunes(stage: Stage) -> None:
    await stage.seed(looping("task", "gone"))
    program = newer(stage)
    assert [(str(each.loop), each.did) for each in await program.seeding.seed()] == [
        ("task", Did.UNCHANGED)
    ]
    assert (await stage.token(GONE)).seq == 0
    assert [(str(each.loop), each.did) for each in await program.seeding.seed(prune=True)] == [
        *(("task", Did.UNCHANGED), ("gone", Did.REMOVED))
    ]
    assert len(await program.seeding.seed(prune=True)) == 1


async def test_what_is_in_the_queue_of_a_task_that_is_removed_is_parked(stage: Stage) -> None:
    old = looping("task", "gone")
    await stage.seed(old)
    names = stage.app.names
    await stage.verbs.trigger(old.loop("gone"))
    await newer(stage).seeding.seed(prune=True)
    assert await stage.broker.depth(names.processor_queue("gone")) is None
    (parked,) = await stage.parked()
    assert (parked.queue, parked.loop, parked.reason) == (
        names.failed_queue("gone"),
        "gone",
        "removed",
    )
    assert "The task 'gone' was removed, with this message in its queue." in parked.error
    assert await stage.history("gone") == ["seeded", "triggered", "removed", "parked"]


async def test_all_the_loops_of_a_task_that_is_gone_are_pruned(stage: Stage) -> None:
    old = looping("task", "gone")

    @old.task()
    async def report() -> None: ...

    await stage.seed(old)
    for key in ("a", "b"):
        await report.start(key, every="1h")
    pruned = [str(each.loop) for each in await newer(stage).seeding.seed(prune=True)]
    assert pruned == ["task", "gone", "report.a", "report.b"]
    left = [await stage.broker.depth(queue.name) for queue in looping().topology().queues]
    assert None not in left
    assert await stage.broker.depth(stage.app.names.processor_queue("report")) is None


async def test_while_older_processors_work_on_a_task_its_queue_stays(stage: Stage) -> None:
    old = looping("task", "gone", every="1m")
    await stage.seed(old)
    async with stage.processor():
        await asyncio.sleep(1)
        await newer(stage).seeding.seed(prune=True)
        depth = await stage.broker.depth(stage.app.names.processor_queue("gone"))
        assert depth is not None
        assert depth.consumers == 1
        await asyncio.sleep(120)
    assert await stage.history("gone") == ["seeded", "removed"]


async def test_a_removal_has_the_journal_forget_where_the_loop_was(stage: Stage) -> None:
    await stage.seed(looping("task", "gone"))
    assert set(await stage.journal.last_tokens({TASK, GONE}, since=None, within=10 * SECOND)) == {
        TASK,
        GONE,
    }
    await newer(stage).seeding.seed(prune=True)
    assert set(await stage.journal.last_tokens({TASK, GONE}, since=None, within=10 * SECOND)) == {
        TASK
    }


# The mutex


CREATORS: dict[str, Callable[[Program, Loop], Awaitable[object]]] = {
    "seed": lambda program, _: program.seeding.seed(),
    "adopt": lambda program, _: program.seeding.adopt(patience=10 * SECOND),
    "start": lambda program, loop: program.seeding.start(loop),
    "pause": lambda program, loop: program.verbs.pause(loop),
    "resume": lambda program, loop: program.verbs.resume(loop),
    "trigger": lambda program, loop: program.verbs.trigger(loop),
    "remove": lambda program, loop: program.removal.remove(replace(loop, id=GONE)),
    "unite": lambda program, loop: program.repairs.unite(loop),
    "repair": lambda program, loop: program.repairs.repair([loop]),
    "renew": lambda program, loop: program.repairs.renew([loop]),
}


@pytest.mark.parametrize("creator", CREATORS)
async def test_whoever_may_create_a_token_waits_for_the_mutex(stage: Stage, creator: str) -> None:
    await stage.seed(looping())
    async with FaultyBroker(stage.server) as somebody, somebody.mutex(stage.app.names.lock):
        at_work = asyncio.ensure_future(CREATORS[creator](stage.program, the_loop(stage)))
        await asyncio.wait([at_work], timeout=5)
        assert not at_work.done()
    await at_work
