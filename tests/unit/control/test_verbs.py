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
from tests.stage import START, Inspecting, Stage, new_app, of, seconds_of, staged

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


def test_a_pause_keeps_the_loop_from_running_until_it_is_resumed() -> None:
    app = looping(every="1m")

    async def play(stage: Stage) -> None:
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

    staged(app, play)


def test_resumed_at_once_it_runs_at_once() -> None:
    async def play(stage: Stage) -> None:
        async with stage.processor():
            await stage.verbs.pause(the_loop(stage))
            await asyncio.sleep(10)
            assert (await stage.verbs.resume(the_loop(stage), at_once=True)).did is Did.RESUMED
            await asyncio.sleep(1)
        assert stage.starts() == [10.0]

    staged(looping(), play)


def test_a_trigger_has_the_one_token_hatch_now() -> None:
    async def play(stage: Stage) -> None:
        async with stage.processor():
            await asyncio.sleep(10)
            assert (await stage.verbs.trigger(the_loop(stage))).did is Did.TRIGGERED
            await asyncio.sleep(10)
            assert (await stage.token(TASK)).due_at == START + timedelta(seconds=10 + HOUR)
        assert stage.starts() == [10.0]
        assert await stage.tokens() == 1
        assert await stage.history("task") == ["seeded", "triggered", "succeeded"]

    staged(looping(), play)


def test_a_paused_loop_is_not_triggered() -> None:
    async def play(stage: Stage) -> None:
        await stage.verbs.pause(the_loop(stage))
        assert (await stage.verbs.trigger(the_loop(stage))).did is Did.IS_PAUSED
        assert (await stage.token(TASK)).state is State.PAUSED

    staged(looping(), play)


@pytest.mark.parametrize(
    ("verb", "did"),
    [("pause", Did.PAUSED), ("resume", Did.NOT_PAUSED), ("trigger", Did.RUNNING)],
)
def test_during_a_run_a_verb_waits_for_its_end_or_does_nothing(verb: str, did: Did) -> None:
    app = looping(takes=60)

    async def play(stage: Stage) -> None:
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

    staged(app, play)


def test_paused_and_resumed_during_a_run_it_goes_on_when_that_has_ended() -> None:
    app = looping(takes=60)

    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await stage.verbs.trigger(the_loop(stage))
            await asyncio.sleep(10)
            await stage.verbs.pause(the_loop(stage))
            assert (await stage.verbs.resume(the_loop(stage))).did is Did.GUARDED
            await asyncio.sleep(60)
            token = await stage.token(TASK)
            assert (token.state, token.seq, token.carry) == (State.ARMED, 1, 1)

    staged(app, play)


def test_resumed_after_its_run_was_lost_it_goes_on_where_it_was() -> None:
    async def play(stage: Stage) -> None:
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

    staged(looping(), play)


def test_a_token_that_was_on_its_way_does_not_go_on_beside_its_pause() -> None:
    app = looping(every="5s")

    async def play(stage: Stage) -> None:
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

    staged(app, play)


class Racing(Inspecting):
    """A broker that takes a token at the same moment as a run's, which is the first in the slot."""

    def __init__(self, stage: Stage, token: Token) -> None:
        super().__init__(stage.server)
        self._stage = stage
        self._token: Token | None = token

    async def inspect(self, message: Message, exchange: str, routing_key: str) -> None:
        if self._token is not None and routing_key == "loop.task":
            assert await self._stage.hatchery.offer(self._token)
            self._token = None
            occupant = await self._stage.hatchery.take(TASK)
            assert occupant is not None
            self._requeuing = asyncio.create_task(occupant.delivery.requeue())


def test_nor_does_one_that_is_put_at_the_same_moment() -> None:
    async def play(stage: Stage) -> None:
        token = replace(await stage.token(TASK), seq=1)
        await stage.lose(TASK)
        async with Racing(stage, token) as broker:
            program = Program(stage.app, broker, stage.clock)
            assert (await program.verbs.pause(the_loop(stage))).did is Did.PAUSED
        assert await stage.tokens() == 1
        left = await stage.token(TASK)
        assert (left.seq, left.state) == (1, State.PAUSED)

    staged(looping(), play)


def test_pausing_a_loop_that_runs_does_not_wait_for_its_end() -> None:
    async def play(stage: Stage) -> None:
        async with stage.supervised():
            await stage.verbs.trigger(the_loop(stage))
            await asyncio.sleep(10)
            before = stage.clock.now()
            await stage.verbs.pause(the_loop(stage))
            assert stage.clock.now() - before < SECOND

    staged(looping(takes=60), play)


def test_it_is_guarded_where_processors_do_not_tell_whether_it_was() -> None:
    async def play(stage: Stage) -> None:
        async with stage.processor():
            await stage.verbs.trigger(the_loop(stage))
            await asyncio.sleep(10)
            await stage.lose(TASK)
            await stage.verbs.pause(the_loop(stage))
            report = await stage.verbs.resume(the_loop(stage))
            assert report.token is not None
            assert (report.did, report.token.state) == (Did.GUARDED, State.GUARD)
            assert (report.token.seq, report.token.carry) == (1, 1)

    staged(looping(), play)


class Unconfirming(Inspecting):
    """A broker that confirms no token."""

    async def inspect(self, message: Message, exchange: str, routing_key: str) -> None:
        if routing_key == "loop.task":
            raise Unconfirmed("Not confirmed.")


@pytest.mark.parametrize("verb", ["pause", "trigger"])
def test_a_verb_that_fails_leaves_the_token_where_it_was(verb: str) -> None:
    async def play(stage: Stage) -> None:
        before = await stage.token(TASK)
        async with Unconfirming(stage.server) as broker:
            program = Program(stage.app, broker, stage.clock)
            with pytest.raises(Unconfirmed):
                await getattr(program.verbs, verb)(the_loop(stage))
            assert await stage.token(TASK) == before

    staged(looping(), play)


def test_what_is_in_the_way_and_cannot_be_parked_is_left_where_it_was() -> None:
    async def play(stage: Stage) -> None:
        await stage.lose(TASK)
        await stage.publish(Message(b"garbage"), "loop.task", stage.app.names.scheduler)
        async with Unconfirming(stage.server) as broker:
            with pytest.raises(Unconfirmed):
                await Program(stage.app, broker, stage.clock).verbs.pause(the_loop(stage))
            assert await stage.tokens() == 1
        assert (await stage.verbs.pause(the_loop(stage))).did is Did.PAUSED
        (parked,) = await stage.parked()
        assert parked.reason == "undecodable"

    staged(looping(), play)


@pytest.mark.parametrize("verb", ["pause", "resume", "trigger"])
def test_what_was_never_seeded_is_told(verb: str) -> None:
    async def play(stage: Stage) -> None:
        await stage.broker.delete(stage.app.names.hatchery(TASK))
        with pytest.raises(QueueNotFound, match="loop task is not in.*Nothing was changed"):
            await getattr(stage.verbs, verb)(the_loop(stage))

    staged(looping(), play)


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
def test_what_a_seed_does(deed: Deed, every: str, did: Did) -> None:
    app = looping(every=every)

    async def play(stage: Stage) -> None:
        await deed(stage)
        states: dict[Deed, State] = {
            pause: State.PAUSED,
            lose: State.GUARD,
            delete_slot: State.GUARD,
        }
        (report,) = await Program(app, stage.broker, stage.clock).seeding.seed()
        assert report.did is did
        assert report.token is not None
        assert report.token.state is states.get(deed, State.ARMED)
        assert report.token.schedule == Every(every)
        assert await stage.tokens() == 1

    staged(looping(), play)


def test_a_seed_tells_of_each_loop_what_it_did() -> None:
    async def play(stage: Stage) -> None:
        await stage.seeding.seed()
        seeded = of(LoopSeeded, stage.events)
        assert [(str(each.loop), each.did) for each in seeded] == [
            *(("task", "created"), ("other", "created")),
            *(("task", "unchanged"), ("other", "unchanged")),
        ]

    staged(looping("task", "other"), play)


def test_a_plan_says_what_a_seed_would_do_and_does_nothing() -> None:
    async def play(stage: Stage) -> None:
        plans = [
            await Program(looping(every=every), stage.broker, stage.clock).planning.plan()
            for every in ("1h", "2h")
        ]
        assert [report.did for (report,) in plans] == [Did.UNCHANGED, Did.RESCHEDULED]
        assert (await stage.token(TASK)).schedule == Every("1h")
        await delete_slot(stage)
        (report,) = await stage.program.planning.plan()
        assert report.did is Did.CREATED
        assert await stage.where(TASK) is Where.UNSEEDED

    staged(looping(), play)


# Remove, and prune


def test_a_loop_of_the_code_is_not_removed() -> None:
    async def play(stage: Stage) -> None:
        with pytest.raises(UsageError, match="The loop task is in the code, which would start it"):
            await stage.removal.remove(the_loop(stage))
        assert await stage.where(TASK) is Where.WAITING

    staged(looping(), play)


def newer(stage: Stage) -> Program:
    """The verbs of a version of the app that has `task` only."""
    return Program(looping(), stage.broker, stage.clock)


def test_a_loop_that_the_code_does_not_have_is_removed_with_its_queues() -> None:
    async def play(stage: Stage) -> None:
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

    staged(looping("task", "gone"), play)


def test_only_a_seed_that_was_told_to_prunes() -> None:
    async def play(stage: Stage) -> None:
        program = newer(stage)
        assert [(str(each.loop), each.did) for each in await program.seeding.seed()] == [
            ("task", Did.UNCHANGED)
        ]
        assert (await stage.token(GONE)).seq == 0
        assert [(str(each.loop), each.did) for each in await program.seeding.seed(prune=True)] == [
            *(("task", Did.UNCHANGED), ("gone", Did.REMOVED))
        ]
        assert len(await program.seeding.seed(prune=True)) == 1

    staged(looping("task", "gone"), play)


def test_what_is_in_the_queue_of_a_task_that_is_removed_is_parked() -> None:
    old = looping("task", "gone")

    async def play(stage: Stage) -> None:
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

    staged(old, play)


def test_all_the_loops_of_a_task_that_is_gone_are_pruned() -> None:
    old = looping("task", "gone")

    @old.task()
    async def report() -> None: ...

    async def play(stage: Stage) -> None:
        for key in ("a", "b"):
            await report.start(key, every="1h")
        pruned = [str(each.loop) for each in await newer(stage).seeding.seed(prune=True)]
        assert pruned == ["task", "gone", "report.a", "report.b"]
        left = [await stage.broker.depth(queue.name) for queue in looping().topology().queues]
        assert None not in left
        assert await stage.broker.depth(stage.app.names.processor_queue("report")) is None

    staged(old, play)


def test_while_older_processors_work_on_a_task_its_queue_stays() -> None:
    old = looping("task", "gone", every="1m")

    async def play(stage: Stage) -> None:
        async with stage.processor():
            await asyncio.sleep(1)
            await newer(stage).seeding.seed(prune=True)
            depth = await stage.broker.depth(stage.app.names.processor_queue("gone"))
            assert depth is not None
            assert depth.consumers == 1
            await asyncio.sleep(120)
        assert await stage.history("gone") == ["seeded", "removed"]

    staged(old, play)


def test_a_removal_has_the_journal_forget_where_the_loop_was() -> None:
    async def play(stage: Stage) -> None:
        assert set(
            await stage.journal.last_tokens({TASK, GONE}, since=None, within=10 * SECOND)
        ) == {TASK, GONE}
        await newer(stage).seeding.seed(prune=True)
        assert set(
            await stage.journal.last_tokens({TASK, GONE}, since=None, within=10 * SECOND)
        ) == {TASK}

    staged(looping("task", "gone"), play)
