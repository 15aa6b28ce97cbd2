"""What becomes of tokens that are lost, late or doubled, in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Every, Scheduler, StopLoop
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.control import supervision
from scheduler.control.census import ROUNDS, Census, Memory, count, memory_of
from scheduler.control.loops import Where
from scheduler.control.supervision import NOTED_AT_ONCE
from scheduler.errors import BrokerUnavailable, QueueNotFound, Rejected
from scheduler.events import (
    CensusTaken,
    Connected,
    LoopReported,
    MessageParked,
    PlaceLost,
    ProcessorStarted,
    QueuesMissing,
    RunStarted,
    SupervisionDelayed,
    TokenDelayed,
)
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.hatchery import Timer, timers
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, Token, decode
from scheduler.protocol.topology import Topology
from scheduler.queues.roll_call import QUESTION, Holdings, Question
from scheduler.tasks.loops import SUPERVISION_TIMEOUT, loop_of
from scheduler.tasks.tasks import SUPERVISION
from scheduler.testing import recording
from scheduler.timing.durations import MILLISECOND, SECOND, ZERO
from tests.faulty import Call, FaultyBroker, not_allowed
from tests.stage import Stage, new_app, of, processor_of, seconds_of

TASK, BONN = LoopId("task"), LoopId("report", "bonn")
ROUND = 15.0
PERIOD = 600.0
UNTIL_FOUND = 5 + ROUND + 2  # overdue, by the next round, with the time for it
LONG = (
    "The stream 'test.v1.journal' could not be read to its end in time: it holds too much. "
    "Reading continues."
)


async def counting(stage: Stage, every: str = "10m", **options: Any) -> list[Any]:
    """Seed a loop that hands on how often it ran; what each run was handed."""
    carried = list[Any]()

    @stage.app.periodic(every=every, **options)
    async def task(ctx: Context) -> None:
        carried.append((ctx.seq, ctx.carried))
        ctx.carry((ctx.carried or 0) + 1)

    await stage.seed()
    return carried


def beating(*loops: str, every: str = "1m", **settings: Any) -> Scheduler:
    app = new_app(**settings)

    async def beat() -> None: ...

    for name in loops:
        app.periodic(every=every, name=name)(beat)
    return app


async def run_once(stage: Stage) -> None:
    """Have the loop run, so that its token is no longer a new one."""
    await stage.verbs.trigger(stage.app.loop("task"))
    await asyncio.sleep(1)


def starts_of(loop: str, stage: Stage) -> list[float]:
    runs = [run for run in of(RunStarted, stage.events) if str(run.loop) == loop]
    return seconds_of([run.started_at for run in runs])


def reported(events: list[Any]) -> list[tuple[str, str]]:
    return [(str(event.loop), event.trouble) for event in of(LoopReported, events)]


# Lost


@pytest.mark.parametrize("timeout", ["10s", "1h"])
async def test_a_token_that_is_lost_is_put_again_as_soon_as_it_is_overdue(
    stage: Stage, timeout: str
) -> None:
    carried = await counting(stage, timeout=timeout)
    async with stage.supervised():
        await run_once(stage)
        before = await stage.token(TASK)
        await stage.lose(TASK)
        await asyncio.sleep(PERIOD - 1)
        assert stage.repairs() == []
        assert await stage.where(TASK) is Where.WAITING
        await asyncio.sleep(UNTIL_FOUND)
        assert stage.repairs() == [("task", "lost")]
        again = await stage.token(TASK)
        assert again.epoch > before.epoch
        assert (again.life, again.seq, again.carry) == (before.life, 2, 2)
    assert carried == [(0, None), (1, 1)]
    assert await stage.history("task") == [
        *("seeded", "triggered", "succeeded", "repaired", "succeeded")
    ]


async def test_a_loop_does_not_begin_anew_because_the_journal_is_not_to_be_read(
    stage: Stage,
) -> None:
    carried = await counting(stage)
    async with stage.supervised():
        await run_once(stage)
    await stage.lose(TASK)
    broker = FaultyBroker(stage.server)
    cut_off = broker.on("read", ".journal", where=lambda call: call.position > 0)
    cut_off.fails(EOFError())
    async with stage.supervised(over=broker):
        await asyncio.sleep(PERIOD + 10 * ROUND)
        assert await stage.where(TASK) is Where.LOST
        delayed = [event.reason for event in of(SupervisionDelayed, stage.events)]
        assert any("'test.v1.journal' could not be read to its end" in each for each in delayed)
        assert stage.repairs() == []
        await cut_off.cease()
        await asyncio.sleep(2 * ROUND)
        assert stage.repairs() == [("task", "lost")]
    assert carried == [(0, None), (1, 1)]


@pytest.mark.parametrize("cause", ["late", "cut off"])
async def test_while_the_journal_was_not_read_to_its_end_no_loop_is_taken_for_lost(
    stage: Stage, cause: str
) -> None:
    await stage.seed(beating("task", "other", every="5s"))
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(100)
        if cause == "late":
            fault = broker.on("read", ".journal").first(lambda call: asyncio.sleep(30))
        else:
            fault = broker.on("read", ".journal", where=lambda call: call.position > 4)
            fault.fails(EOFError())
        await asyncio.sleep(212)
        assert fault.met
        assert of(SupervisionDelayed, stage.events)
        assert stage.repairs() == []
        await fault.cease()
        await stage.lose(TASK)
        await asyncio.sleep(20 + UNTIL_FOUND + ROUND)
        assert stage.repairs() == [("task", "lost")]


async def test_a_queue_that_is_full_keeps_no_other_loop_from_being_repaired(stage: Stage) -> None:
    await stage.seed(beating("task", "other", every="20s"))
    for loop in TASK, LoopId("other"):
        await stage.lose(loop)
    broker = FaultyBroker(stage.server)
    full = broker.on("publish", where=lambda call: call.routing_key.startswith("loop.task."))
    full.fails(Rejected("full"))
    async with stage.supervised(over=broker):
        await asyncio.sleep(20 + UNTIL_FOUND + 2 * ROUND)
        assert full.met
        assert ("other", "lost") in stage.repairs()
        assert starts_of("other", stage)
        assert not starts_of("task", stage)
        await full.cease()
        await asyncio.sleep(UNTIL_FOUND + 2 * ROUND)
        assert starts_of("task", stage)
    assert of(SupervisionDelayed, stage.events) == []


@pytest.mark.parametrize(("seconds_a_message", "parts"), [(0.05, 1), (0.5, 3)])
async def test_a_loop_for_which_the_journal_is_long_waits_for_it_and_keeps_no_other_waiting(
    stage: Stage, seconds_a_message: float, parts: int
) -> None:
    stage.app.periodic(every="10m", name="other")(nothing)
    carried = await counting(stage)
    async with stage.supervised():
        await run_once(stage)
        await stage.verbs.pause(stage.app.loop("task"), "stocktaking")
    for _ in range(600):
        await stage.publish(Message(), "loop.nobody", stage.app.names.scheduler)
    await asyncio.sleep(12 * 3600)
    broker = FaultyBroker(stage.server)
    broker.on("read", ".journal").first(lambda call: asyncio.sleep(seconds_a_message))
    async with stage.supervised(over=broker):
        await asyncio.sleep(1)
        await stage.verbs.resume(stage.app.loop("task"), at_once=True)
        stage.events.clear()
        await asyncio.sleep(1300)
        assert len(starts_of("other", stage)) == 2  # nobody was kept waiting
    assert carried[:2] == [(0, None), (1, 1)]
    delayed = {event.reason for event in of(TokenDelayed, stage.events)}
    assert delayed == ({LONG} if parts > 1 else set())
    assert stage.repairs() == []


async def nothing() -> None: ...


async def test_of_what_waits_behind_a_backlog_a_few_are_repaired_that_were_passed_over(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.control.census.MOST_BEHIND", 2)

    @stage.app.task(concurrency=1, timeout="1h")
    async def report() -> None:
        await asyncio.sleep(20)

    await stage.seed()
    for n in range(10):
        await report.start(f"r{n}", every=f"{100 + n}s")
    lost = [LoopId("report", f"r{n}") for n in (1, 2, 3)]
    async with stage.supervised():
        await asyncio.sleep(90)
        for loop in lost:
            await stage.lose(loop)
        await asyncio.sleep(30)  # their turn would be next, behind that of r0
        assert await stage.where(LoopId("report", "r9")) is Where.READY
        assert stage.repairs() == []
        repaired = [(str(loop), "lost") for loop in lost]
        for _ in range(20 + 2 * int(ROUND)):  # r4 has run, and a round later
            if not stage.repairs():
                await asyncio.sleep(1)
        assert stage.repairs() == repaired[:2]
        await asyncio.sleep(ROUND + 1)
        assert stage.repairs() == repaired


async def test_a_tick_that_is_settled_while_a_round_looks_for_it_is_not_repaired(
    stage: Stage,
) -> None:
    @stage.app.periodic(every="10m")
    async def task() -> None:
        await asyncio.sleep(1)

    async def wait(call: Call) -> None:
        await asyncio.sleep(2)

    await stage.seed()
    await asyncio.sleep(PERIOD + 10)
    broker = FaultyBroker(stage.server)
    queue = stage.app.names.processor_queue("task")
    broker.on("depth", queue, times=2)  # is it there?
    slow = broker.on("depth", queue, times=1).first(wait)
    async with stage.supervised(over=broker):
        await asyncio.sleep(5)
    assert [call.at for call in slow.met] == starts_of("task", stage) == [PERIOD + 10]
    assert stage.repairs() == []


# Wrong, and doubled


async def test_a_repair_that_is_wrong_does_no_harm(stage: Stage) -> None:
    app, at_once, seqs = new_app(), list[int](), list[int]()

    @app.periodic(every="10s")
    async def task(ctx: Context) -> None:
        seqs.append(ctx.seq)
        at_once.append(at_once[-1] + 1 if at_once else 1)
        await asyncio.sleep(8)
        at_once.append(at_once[-1] - 1)

    await stage.seed(app)
    async with stage.supervised(), stage.supervised():
        for seconds in (5, 8, 13, 21):  # it waits, it runs
            await asyncio.sleep(seconds)
            await stage.put_again(TASK)
        await asyncio.sleep(60)
    assert max(at_once) == 1
    assert seqs == list(range(len(seqs)))
    assert len(seqs) >= 5


@pytest.mark.parametrize("apart", [50 * MILLISECOND, 7 * SECOND])
async def test_two_lines_of_a_loop_are_one_again_within_two_rounds(
    stage: Stage, apart: timedelta
) -> None:
    app, seqs = new_app(), list[int]()

    @app.periodic(every="20s")
    async def task(ctx: Context) -> None:
        seqs.append(ctx.seq)

    await stage.seed(app)
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(10)
        token = await stage.token(TASK)
        await stage.crowd([replace(token, due_at=token.due_at + apart)])
        await asyncio.sleep(20 + 2 * ROUND + 2)
        assert stage.repairs() in ([], [("task", "doubled")])  # a processor may meet both itself
        seqs.clear()
        await asyncio.sleep(200)
        assert seqs == list(range(seqs[0], seqs[0] + 10))
    assert {kind for _, kind in stage.repairs()} <= {"doubled"}


# Checkpoints


async def test_a_loop_that_waits_for_long_is_noted_so_that_the_journal_may_forget_it(
    stage: Stage,
) -> None:
    carried = await counting(stage, every="20m")
    async with stage.supervised():
        await run_once(stage)
        await asyncio.sleep(ROUND + 2)
        token = await stage.token(TASK)
        checkpoint = (await stage.listing())[TASK].checkpoint
        assert checkpoint is not None
        assert (checkpoint.token("test"), checkpoint.until) == (token, token.due_at)
    await stage.lose(TASK)
    await stage.broker.delete(stage.app.names.journal)
    async with stage.supervised():
        await asyncio.sleep(1200 - ROUND - 10)
        assert stage.repairs() == []
        await asyncio.sleep(UNTIL_FOUND + ROUND)
    assert stage.repairs() == [("task", "lost")]
    assert carried == [(0, None), (1, 1)]


@pytest.mark.parametrize("most", [7, 10_000])
async def test_many_loops_are_noted_without_holding_up_the_event_loop(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("scheduler.control.census.MOST_LONG", most)
    app, decoded = new_app(), list[Message]()

    @app.task
    async def report() -> None: ...

    def note(message: Message, namespace: str) -> Token:
        decoded.append(message)
        return decode(message, namespace)

    await stage.seed(app)
    loops = [loop_of(report.spec, Every("3h"), {}, f"r{n}") for n in range(2 * NOTED_AT_ONCE)]
    await stage.seeding.start_all([replace(loop, schedule=Every("4h")) for loop in loops])
    await stage.seeding.start_all(loops)  # a start needs no note, but another schedule does
    monkeypatch.setattr(supervision, "decode", note)
    broker, at_publish = FaultyBroker(stage.server), list[int]()

    async def look(call: Call) -> None:
        at_publish.append(len(decoded))

    broker.on("publish", key=app.names.roster).first(look)
    async with stage.supervised(over=broker):
        await asyncio.sleep(ROUND + 2)
    assert len(decoded) == len(loops)
    assert 0 < min(each for each in at_publish if each) <= NOTED_AT_ONCE
    keyed = [each for each in (await stage.listing()).there if each.loop.key]
    assert all(
        each.checkpoint and each.checkpoint.token("test").epoch == each.epoch for each in keyed
    )


async def while_it_waits(stage: Stage) -> None:
    await stage.verbs.pause(stage.app.loop("task"))


async def while_it_runs(stage: Stage) -> None:
    await stage.verbs.trigger(stage.app.loop("task"))
    await asyncio.sleep(2)
    await stage.verbs.pause(stage.app.loop("task"))
    await asyncio.sleep(10)


async def by_itself(stage: Stage) -> None:
    await stage.verbs.trigger(stage.app.loop("stopping"))
    await asyncio.sleep(10)


@pytest.mark.parametrize(
    ("pause", "name", "runs"),
    [
        (while_it_waits, "task", [(0, None), (1, 1)]),
        (while_it_runs, "task", [(0, None), (1, 1), (2, 2)]),
        (by_itself, "stopping", [(0, None), (1, 1), (2, 1)]),
    ],
)
@pytest.mark.parametrize("is_supervised", [True, False])
async def test_a_paused_loop_that_the_journal_has_forgotten_goes_on_from_where_it_was(
    stage: Stage,
    pause: Callable[[Stage], Awaitable[None]],
    name: str,
    runs: list[Any],
    is_supervised: bool,
) -> None:
    app, done = new_app(), list[Any]()

    @app.periodic(every="10m")
    async def task(ctx: Context) -> None:
        done.append((ctx.seq, ctx.carried))
        await asyncio.sleep(5)
        ctx.carry((ctx.carried or 0) + 1)

    @app.periodic(every="10m")
    async def stopping(ctx: Context) -> None:
        done.append((ctx.seq, ctx.carried))
        ctx.carry((ctx.carried or 0) + 1)
        if ctx.seq == 1:
            raise StopLoop("the disk is full")

    await stage.seed(app)
    loop = app.loop(name)
    async with stage.supervised() if is_supervised else stage.processor():
        await stage.verbs.trigger(loop)
        await asyncio.sleep(6)
        await pause(stage)
        listed = (await stage.listing())[loop.id]
        assert listed.entry.state is LoopState.PAUSED
        if is_supervised:
            await asyncio.sleep(ROUND + 2)
        elif pause is while_it_runs:
            return  # a run that ends after the pause is noted by supervision
        await stage.broker.delete(app.names.journal)
        await stage.program.installation.declare_all()
        await stage.verbs.resume(loop, at_once=True)
        await asyncio.sleep(6)
    assert done == runs


# Without a queue


@pytest.mark.parametrize("kind", ["timers", "processor queue"])
async def test_a_queue_that_is_gone_is_declared_and_the_loop_goes_on(
    stage: Stage, kind: str
) -> None:
    carried = await counting(stage)
    names = stage.app.names
    async with stage.supervised():
        await run_once(stage)
        gone = [names.processor_queue("task")]
        if kind == "timers":
            gone = [names.timer(timer) for timer in timers()]
        for queue in gone:
            await stage.broker.delete(queue)
        await asyncio.sleep(4 * ROUND)  # the second look at supervision finds it lost
        assert None not in [await stage.broker.depth(queue) for queue in gone]
        await asyncio.sleep(PERIOD)
    assert ("task", "lost") in stage.repairs() or kind != "timers"
    assert reported(stage.events) == []
    assert of(PlaceLost, stage.events) == []
    assert carried == [(0, None), (1, 1)]


@pytest.mark.parametrize("queue", ["roster", "snapshots", "journal", "roll_call", "presence"])
async def test_what_all_loops_share_is_declared_again_and_a_lost_loop_goes_on(
    stage: Stage, queue: str
) -> None:
    carried = await counting(stage)
    async with stage.supervised():
        await run_once(stage)
        await asyncio.sleep(ROUND)  # until the roster tells how far it came
        name = getattr(stage.app.names, queue)
        await stage.broker.delete(name)
        await asyncio.sleep(ROUND + 3)
        assert await stage.broker.depth(name) is not None
        await stage.lose(TASK)
        await asyncio.sleep(PERIOD + UNTIL_FOUND)
        assert stage.repairs() == [("task", "lost")]
    assert len(carried) == 2


class BreakingOff(MemoryBroker):
    """Loses its connection in the middle of a declaration: all queues are there, and not bound."""

    tries = 0

    async def declare(self, topology: Topology) -> None:
        self.tries += 1
        if self.tries == 1:
            await super().declare(replace(topology, bindings=()))
            raise BrokerUnavailable("It went.")
        await super().declare(topology)


@pytest.mark.parametrize("is_all", [False, True])
async def test_what_is_declared_is_declared_to_its_end_though_the_connection_goes(
    stage: Stage, is_all: bool
) -> None:
    carried = await counting(stage)
    for queue in stage.app.topology().queues:
        if is_all or queue.name != stage.app.names.roster:
            await stage.broker.delete(queue.name)
    async with stage.supervised(over=BreakingOff(stage.server)), stage.supervised():
        # Its first tick is over when it is found overdue, and no journal tells of it.
        await asyncio.sleep(1300)
    assert carried


async def test_a_broker_that_lost_everything_gets_back_what_the_roster_said(stage: Stage) -> None:
    @stage.app.task()
    async def report(city: str = "") -> None: ...

    await counting(stage)
    await report.start("bonn", every="1h", args={"city": "Bonn"})
    await report.start("koeln", every="1h")
    await report.stop("koeln")
    await stage.verbs.pause(stage.app.loop("task"), "stocktaking")
    before = await stage.listing()
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(1)
        for queue in stage.app.topology().queues:
            await stage.broker.delete(queue.name)
        await asyncio.sleep(3600 + UNTIL_FOUND + ROUND)
    after = await stage.listing()
    for loop in (TASK, BONN):
        for part in ("schedule", "args", "reason"):
            assert getattr(after[loop], part) == getattr(before[loop], part)
        assert after[loop].entry.state is before[loop].entry.state
        assert after[loop].entry.life == before[loop].entry.life
    assert (await stage.token(BONN)).args == {"city": "Bonn"}
    assert [loop.key for loop in await report.list()] == ["bonn"]


async def test_a_broker_that_kept_nothing_but_snapshots_gets_back_what_they_say(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.queues.roster.FEW", 0)
    await counting(stage)
    await stage.verbs.pause(stage.app.loop("task"), "stocktaking")
    before = (await stage.program.roster.read()).known(TASK)
    await stage.program.roster.compact()
    for queue in stage.app.topology().queues:
        if queue.name != stage.app.names.snapshots:
            await stage.broker.delete(queue.name)
    async with stage.supervised():
        await asyncio.sleep(3 * ROUND)
    after = await stage.listing()
    assert (after[TASK].reason, after[TASK].entry.state) == ("stocktaking", LoopState.PAUSED)
    assert after.known(TASK) >= before > 1


async def test_who_may_not_declare_is_told_what_to_do_and_starts_nothing(stage: Stage) -> None:
    await counting(stage)
    await stage.broker.delete(stage.app.names.roster)
    async with not_allowed(stage.server) as broker:
        with pytest.raises(QueueNotFound, match="'test.v1.roster' is not in.*scheduler seed"):
            await processor_of(stage.app, broker, stage.clock).run()


# The loop itself


async def test_supervision_comes_back_when_its_own_token_is_gone(stage: Stage) -> None:
    await counting(stage)
    other = FaultyBroker(stage.server)
    looks = other.on("read", ".journal").first(lambda call: asyncio.sleep(0))
    async with stage.supervised(), stage.supervised(over=other):
        await asyncio.sleep(20 * ROUND + 5)
        assert looks.met == []  # each round is heard of
        await stage.lose(SUPERVISION)
        stage.events.clear()
        await asyncio.sleep(4 * ROUND)
        assert stage.repairs() == [("_supervision", "lost")]
        stage.events.clear()
        await asyncio.sleep(4 * ROUND)
        assert 3 <= len(of(CensusTaken, stage.events)) <= 5


async def test_a_queue_of_supervision_that_may_not_be_declared_is_told_within_two_rounds(
    stage: Stage,
) -> None:
    await counting(stage)
    stage.expects_none(SUPERVISION)
    async with stage.supervised(over=not_allowed(stage.server)):
        await asyncio.sleep(1)
        await stage.broker.delete(stage.app.names.processor_queue(SUPERVISION.task))
        await asyncio.sleep(1.7 * ROUND)
        (delayed,) = of(SupervisionDelayed, stage.events)
    assert "Lost loops are not repaired; run `scheduler seed`" in delayed.reason


@pytest.mark.parametrize(
    ("error", "logged"),
    [
        (BrokerUnavailable("It went."), []),
        (RuntimeError("A bug."), ["Watching supervision failed"]),
    ],
)
async def test_supervision_is_looked_after_though_that_failed_before(
    stage: Stage, caplog: pytest.LogCaptureFixture, error: Exception, logged: list[str]
) -> None:
    await counting(stage)
    await stage.lose(SUPERVISION)
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(1)
        failing = broker.on("depth", stage.app.names.processor_queue(SUPERVISION.task)).fails(error)
        await asyncio.sleep(4 * ROUND)
        assert stage.repairs() == []
        await failing.cease()
        await asyncio.sleep(2 * ROUND)
    assert {record.getMessage() for record in caplog.records} == set(logged)
    told = {event.reason for event in of(SupervisionDelayed, stage.events)}
    assert told == (set() if logged else {"It went."})
    assert stage.repairs() == [("_supervision", "lost")]


async def test_a_round_that_does_not_end_is_broken_off_and_its_token_is_not_parked(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await counting(stage)

    async def read_on(*_: object) -> None:
        await asyncio.sleep(3600)

    async with stage.supervised():
        monkeypatch.setattr(Census, "read_on", read_on)
        await asyncio.sleep(ROUND + 1)
        monkeypatch.undo()
        await asyncio.sleep(SUPERVISION_TIMEOUT.total_seconds() + ROUND)
        assert of(MessageParked, stage.events) == []
    delayed = [event.reason for event in of(SupervisionDelayed, stage.events)]
    assert delayed == ["A round did not end within 2m50s."]
    assert of(CensusTaken, stage.events) != []


@pytest.mark.parametrize("carried", ["garbage", {"reported": 7}, [1], {"cursor": -7}])
async def test_what_another_version_remembered_is_forgotten(stage: Stage, carried: Any) -> None:
    await counting(stage)
    token = await stage.token(SUPERVISION)
    await stage.lose(SUPERVISION)
    await stage.crowd([replace(token, carry=carried)])
    async with stage.supervised():
        await asyncio.sleep(ROUND + 1)
        memory = memory_of((await stage.token(SUPERVISION)).carry)
        assert memory.reported == Memory().reported
        assert memory.tally is not None
    assert [census.counted for census in of(CensusTaken, stage.events)] == [1]
    assert of(SupervisionDelayed, stage.events) == []


async def test_loops_are_counted_as_the_last_round_found_them_if_that_was_recent(
    stage: Stage,
) -> None:
    await counting(stage)
    async with stage.supervised():
        await asyncio.sleep(ROUND + 2)
        await stage.verbs.pause(stage.app.loop("task"))
        counted = (await count(stage.program)).tally.loops
        await asyncio.sleep(ROUND)
        paused = (await count(stage.program)).tally.loops
    assert (counted["task"], paused["task"]) == ({LoopState.ACTIVE: 1}, {LoopState.PAUSED: 1})
    await stage.verbs.resume(stage.app.loop("task"))
    await asyncio.sleep(ROUNDS * ROUND)
    assert (await count(stage.program)).tally.loops["task"] == counted["task"]


# After a reconnect


LOOPS = [f"task{n}" for n in range(50)]


def reconnect(stage: Stage) -> None:
    """Have all processors learn that the broker can be reached again."""
    stage.app.events.emit(Connected("memory://", "", ZERO))


@pytest.mark.parametrize("is_with_supervision", [True, False])
async def test_what_a_broker_that_restarted_has_lost_is_put_again_within_seconds(
    stage: Stage, is_with_supervision: bool
) -> None:
    app = beating(*LOOPS, every="1m", supervision_interval="1h")
    await stage.seed(app)
    async with stage.supervised(), stage.supervised(), stage.supervised():
        await asyncio.sleep(59)
        for name in LOOPS:
            await stage.lose(LoopId(name))
        if is_with_supervision:
            await stage.lose(SUPERVISION)
        await asyncio.sleep(2)  # in which they were due
        stage.events.clear()
        reconnect(stage)
        await asyncio.sleep(10)
        assert set(stage.repairs()) == {(name, "lost") for name in LOOPS}
        assert {str(run.loop) for run in of(RunStarted, stage.events)} >= set(LOOPS)
        assert (await stage.tokens_by_loop())[SUPERVISION] == 1


async def test_of_several_processors_that_reconnect_one_triggers_supervision(
    stage: Stage,
) -> None:
    await stage.seed(beating("task", every="1h", supervision_interval="1h"))
    async with AsyncExitStack() as processors:
        for _ in range(8):
            await processors.enter_async_context(stage.supervised())
        await asyncio.sleep(2)
        stage.events.clear()
        reconnect(stage)
        await asyncio.sleep(60)
    rounds = of(CensusTaken, stage.events)
    assert 5 <= len(rounds) <= 8  # of 40 that they would have had
    assert stage.repairs() == []


# Reports


async def test_a_loop_that_the_code_does_not_have_is_reported_once(stage: Stage) -> None:
    await counting(stage)
    new = beating("other")
    with recording(new) as events:
        async with stage.supervised(app=new):
            await asyncio.sleep(10 * ROUND)
    assert reported(events) == [("task", "orphaned")]
    assert (await stage.token(TASK)).seq == 0


async def test_a_loop_that_a_newer_release_has_removed_is_reported_once(stage: Stage) -> None:
    await counting(stage)
    old = stage.app
    await stage.seed(beating("other"))
    await stage.seeding.seed(prune=True)
    with recording(old) as events:
        async with stage.supervised(app=old):
            await asyncio.sleep(10 * ROUND)
    assert ("task", "removed") in reported(events)
    assert reported(events).count(("task", "removed")) == 1


async def test_a_loop_that_is_due_where_nobody_consumes_is_reported_whenever_it_comes_to_that(
    stage: Stage,
) -> None:
    app = beating("task", "other")
    await stage.seed(app)
    async with stage.supervised(tasks=["other"]):
        await asyncio.sleep(200)
        assert reported(stage.events) == [("task", "unattended")]
        async with stage.supervised(tasks=["task"]):
            await asyncio.sleep(100)
        await asyncio.sleep(200)
    assert reported(stage.events) == [("task", "unattended")] * 2
    assert stage.repairs() == []


async def test_a_processor_that_is_still_preparing_answers_to_no_roll_call(stage: Stage) -> None:
    await counting(stage)
    await stage.broker.delete(stage.app.names.processor_queue("task"))
    broker, may_go_on = FaultyBroker(stage.server), asyncio.Event()

    async def hold(_: Call) -> None:
        await may_go_on.wait()

    broker.on("declare").first(hold)
    async with stage.program.roll_call as asking, stage.supervised(over=broker):
        await asyncio.sleep(10)
        assert of(ProcessorStarted, stage.events) == []
        with asking.asking(Question[Holdings]()) as question:
            await asking.say(QUESTION, question.id, {"loops": [(*TASK, 1)]})
            await asyncio.sleep(2)
            assert question.said == {}
        may_go_on.set()
        await asyncio.sleep(5)
        assert len((await asking.ask_all({TASK: 1})).said) == 1


async def test_a_loop_of_which_another_epoch_began_meanwhile_is_not_repaired(stage: Stage) -> None:
    await counting(stage)
    seen = {TASK: (await stage.listing()).known(TASK)}
    await stage.verbs.pause(stage.app.loop("task"))
    paused = (await stage.listing())[TASK]
    await stage.program.beginnings.repair([stage.app.loop("task")], "doubled", epochs=seen)
    assert (await stage.listing())[TASK] == paused
    assert stage.repairs() == []


async def test_a_reconnect_in_a_reconnect_begins_the_rounds_again(stage: Stage) -> None:
    await stage.seed(beating("task", every="1h", supervision_interval="1h"))
    async with stage.supervised():
        await asyncio.sleep(2)
        for _ in range(5):
            reconnect(stage)
            await asyncio.sleep(0.2)
        await asyncio.sleep(60)
    assert len(of(CensusTaken, stage.events)) == 5


async def expired(call: Call) -> None:
    raise QueueNotFound("another queue")


@pytest.mark.parametrize("declaring", ["succeeds", "is broken off", "is refused"])
@pytest.mark.parametrize("kind", ["processor", "failed", "later timer", "journal"])
async def test_a_queue_that_is_gone_is_declared_and_reported(
    stage: Stage, kind: str, declaring: str
) -> None:
    @stage.app.task
    async def call() -> None: ...

    await counting(stage)
    names = stage.app.names
    queue = {
        "processor": names.processor_queue("task"),
        "failed": names.failed_queue("call"),
        "later timer": names.later_timer(Timer(5, 1)),
        "journal": names.journal,
    }[kind]
    may_declare = declaring != "is refused"
    broker = FaultyBroker(stage.server) if may_declare else not_allowed(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(1)
        if declaring == "is broken off":  # another queue expired before it was bound
            broker.on("declare", times=1).then(expired)
        await stage.broker.delete(queue)
        await asyncio.sleep(5 * ROUND)
    assert of(QueuesMissing, stage.events) == [QueuesMissing((queue,), may_declare)]
    assert (await stage.broker.depth(queue) is not None) == may_declare


async def test_a_token_that_the_journal_does_not_know_is_a_new_one(stage: Stage) -> None:
    carried = await counting(stage, every="50s")
    async with stage.supervised():
        await run_once(stage)
        await stage.broker.delete(stage.app.names.journal)
        await stage.lose(TASK)
        await asyncio.sleep(50 + UNTIL_FOUND)
        assert stage.repairs() == [("task", "lost")]
        await asyncio.sleep(50)
    assert of(PlaceLost, stage.events) == [PlaceLost(TASK)]
    assert carried[:2] == [(0, None), (0, None)]
