"""What becomes of tokens that are lost, late or doubled, in virtual time."""

import asyncio
from collections.abc import Callable
from contextlib import AsyncExitStack
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from scheduler import Context, Every, StopLoop
from scheduler.brokers.contract import Depth
from scheduler.control.census import ROUNDS, Census, Memory, count, memory_of
from scheduler.control.installation import Installation
from scheduler.control.loops import Where
from scheduler.control.status import Survey
from scheduler.control.supervision import NOTED_AT_ONCE
from scheduler.errors import BrokerUnavailable, NoSpace, QueueNotFound, Rejected, TooLarge
from scheduler.events import (
    CensusTaken,
    Connected,
    ConsumerInterrupted,
    ConsumerResumed,
    LoopReported,
    MessageParked,
    PlaceLost,
    QueuesMissing,
    RunFinished,
    RunStarted,
    SupervisionDelayed,
    TokenDelayed,
)
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.hatchery import Timer, timers
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from scheduler.queues.entries import ENTRY_TYPE, RosterEntry
from scheduler.queues.roster import REMEMBERED
from scheduler.tasks.loops import SUPERVISION_TIMEOUT, loop_of
from scheduler.tasks.tasks import SUPERVISION
from scheduler.testing import recording
from scheduler.timing.durations import MILLISECOND, SECOND, ZERO
from tests.faulty import Call, FaultyBroker, not_allowed
from tests.stage import Stage, append_blindly, looping, new_app, of, program_of
from tests.unit.control.conftest import TASK

BONN = LoopId("report", "bonn")
OTHER = LoopId("other")
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


async def run_once(stage: Stage) -> None:
    """Have the loop run, so that its token is no longer a new one."""
    await stage.verbs.trigger(stage.app.loop("task"))
    await asyncio.sleep(1)


def reported(events: list[Any]) -> list[tuple[str, str]]:
    return [(str(event.loop), event.trouble) for event in of(LoopReported, events)]


# Lost


async def test_a_token_that_is_lost_is_put_again_as_soon_as_it_is_overdue(stage: Stage) -> None:
    carried = await counting(stage, timeout="1h")
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


async def test_a_keyed_loop_of_a_once_periodic_task_is_repaired(stage: Stage) -> None:
    await stage.seed(looping())
    app = new_app()
    task = app.task(name="task")(nothing)
    await stage.seed(app)
    await task.start("bonn", every="20s")
    async with stage.supervised():
        await asyncio.sleep(1)
        await stage.lose(LoopId("task", "bonn"))
        await asyncio.sleep(20 + UNTIL_FOUND)
    assert stage.repairs() == [("task.bonn", "lost")]


async def test_a_long_journal_is_read_in_parts(stage: Stage) -> None:
    stage.app.periodic(every="5s", name="other")(nothing)
    await counting(stage, every="20s")
    broker = FaultyBroker(stage.server)
    broker.on("read", ".journal", where=lambda call: call.position > 4).fails(EOFError())
    async with stage.supervised(over=broker):
        await asyncio.sleep(110)
        await stage.lose(TASK)
        await asyncio.sleep(20 + 5 * UNTIL_FOUND)
    assert stage.repairs() == [("task", "lost")]
    assert of(SupervisionDelayed, stage.events) == []


async def test_repairs_wait_until_the_journal_is_read_to_its_end(stage: Stage) -> None:
    stage.app.periodic(every="5s", name="other")(nothing)
    carried = await counting(stage, every="20s")
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(100)
        cut_off = broker.on("read", ".journal")
        cut_off.fails(EOFError())
        await asyncio.sleep(200)
        assert await stage.where(TASK) is not Where.LOST
        await stage.lose(TASK)
        await asyncio.sleep(20 + 2 * UNTIL_FOUND)
        assert await stage.where(TASK) is Where.LOST
        delayed = [event.reason for event in of(SupervisionDelayed, stage.events)]
        assert any("'test.v1.journal' could not be read to its end" in each for each in delayed)
        assert stage.repairs() == []
        await cut_off.cease()
        await asyncio.sleep(2 * ROUND)
        assert stage.repairs() == [("task", "lost")]
    assert carried == [(n, n or None) for n in range(len(carried))]


async def test_a_full_queue_does_not_prevent_the_repair_of_other_loops(stage: Stage) -> None:
    await stage.seed(looping("task", "other", every="20s"))
    for loop in TASK, LoopId("other"):
        await stage.lose(loop)
    broker = FaultyBroker(stage.server)
    full = broker.on("publish", where=lambda call: call.routing_key.startswith("loop.task."))
    full.fails(Rejected("full"))
    async with stage.supervised(over=broker):
        await asyncio.sleep(20 + UNTIL_FOUND + 2 * ROUND)
        assert full.met
        assert ("other", "lost") in stage.repairs()
        assert stage.starts("other")
        assert not stage.starts("task")
        await full.cease()
        await asyncio.sleep(UNTIL_FOUND + 2 * ROUND)
        assert stage.starts("task")
    assert of(SupervisionDelayed, stage.events) == []


async def test_a_loop_that_waits_for_a_long_journal_does_not_delay_others(stage: Stage) -> None:
    stage.app.periodic(every="10m", name="other")(nothing)
    carried = await counting(stage)
    async with stage.supervised():
        await run_once(stage)
        await stage.verbs.pause(stage.app.loop("task"), "stocktaking")
    for _ in range(600):
        await stage.publish(Message(), "loop.nobody", stage.app.names.scheduler)
    await asyncio.sleep(12 * 3600)
    broker = FaultyBroker(stage.server)
    broker.on("read", ".journal").first(lambda call: asyncio.sleep(0.5))
    async with stage.supervised(over=broker):
        await asyncio.sleep(1)
        await stage.verbs.resume(stage.app.loop("task"), at_once=True)
        stage.events.clear()
        await asyncio.sleep(1300)
        assert len(stage.starts("other")) == 2  # nobody was kept waiting
    assert carried[:2] == [(0, None), (1, 1)]
    assert {event.reason for event in of(TokenDelayed, stage.events)} == {LONG}
    assert stage.repairs() == []


async def nothing() -> None: ...


async def test_a_tick_that_is_settled_during_a_round_is_not_repaired(stage: Stage) -> None:
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
    assert [call.at for call in slow.met] == stage.starts("task") == [PERIOD + 10]
    assert stage.repairs() == []


# Wrong, and doubled


@pytest.mark.parametrize("apart", [50 * MILLISECOND, 7 * SECOND])
async def test_a_doubled_loop_is_repaired_in_two_rounds(stage: Stage, apart: timedelta) -> None:
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


@pytest.mark.parametrize("most", [7, 10_000])
async def test_many_loops_are_noted_some_at_a_time(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr("scheduler.control.census.MOST_LONG", most)

    @stage.app.task
    async def report() -> None: ...

    await stage.seed()
    loops = [loop_of(report.spec, Every("3h"), {}, f"r{n}") for n in range(2 * NOTED_AT_ONCE)]
    await stage.seeding.start_all([replace(loop, schedule=Every("4h")) for loop in loops])
    await stage.seeding.start_all(loops)  # a start needs no note, but another schedule does
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(ROUND + 2)
    notes = [
        call.message.body.count(b'"report"')
        for call in broker.calls
        if (call.operation, call.routing_key) == ("publish", stage.app.names.roster)
    ]
    assert (sum(notes), max(notes)) == (len(loops), min(most, NOTED_AT_ONCE))
    keyed = [each for each in (await stage.listing()).there if each.loop.key]
    assert all(
        each.checkpoint and each.checkpoint.token("test").epoch == each.epoch for each in keyed
    )


async def test_a_note_that_the_broker_does_not_accept_stops_no_round(stage: Stage) -> None:
    app = looping("a", "b", every="10m")
    await stage.seed(app)
    broker = FaultyBroker(stage.server)
    broker.on(
        "publish", key=app.names.roster, where=lambda call: b'"a"' in call.message.body
    ).fails(TooLarge())
    async with stage.supervised(over=broker):
        await asyncio.sleep(600 + ROUND + 2)
        listing = await stage.listing()
        noted = {name: listing[LoopId(name)].checkpoint is not None for name in "ab"}
        assert noted == {"a": False, "b": True}
        before = len(of(CensusTaken, stage.events))
        await asyncio.sleep(ROUND + 2)
        assert len(of(CensusTaken, stage.events)) == before + 1


@pytest.mark.parametrize("is_supervised", [True, False])
@pytest.mark.parametrize(
    ("pauses", "runs"),
    [
        ("while it waits", [(0, None), (1, 1)]),
        ("while it runs", [(0, None), (1, 1), (2, 2)]),
        ("by itself", [(0, None), (1, 1), (2, 1)]),
    ],
)
async def test_a_paused_loop_forgotten_by_the_journal_keeps_its_progress(
    stage: Stage, pauses: str, runs: list[Any], is_supervised: bool
) -> None:
    app, done = new_app(), list[Any]()

    @app.periodic(every="10m")
    async def task(ctx: Context) -> None:
        done.append((ctx.seq, ctx.carried))
        await asyncio.sleep(5)
        ctx.carry((ctx.carried or 0) + 1)
        if (pauses, ctx.seq) == ("by itself", 1):
            raise StopLoop("the disk is full")

    await stage.seed(app)
    loop = app.loop("task")
    async with stage.supervised() if is_supervised else stage.processor():
        await stage.verbs.trigger(loop)
        await asyncio.sleep(6)
        if pauses != "while it waits":
            await stage.verbs.trigger(loop)
            await asyncio.sleep(2)
        if pauses != "by itself":
            await stage.verbs.pause(loop)
        await asyncio.sleep(10)
        assert (await stage.listing())[TASK].entry.state is LoopState.PAUSED
        if is_supervised:
            await asyncio.sleep(ROUND + 2)
        elif pauses == "while it runs":
            return  # a run that ends after the pause is noted by supervision
        await stage.broker.delete(app.names.journal)
        await stage.program.installation.declare_all()
        await stage.verbs.resume(loop, at_once=True)
        await asyncio.sleep(6)
    assert done == runs
    were_void = [run.void for run in of(RunFinished, stage.events) if run.loop == TASK]
    assert any(were_void) is (pauses == "while it runs")


@pytest.mark.parametrize("is_compacted", [False, True])
@pytest.mark.parametrize("has_supervised", [False, True])
async def test_the_next_supervisor_enters_the_notes_that_it_skipped(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, has_supervised: bool, is_compacted: bool
) -> None:
    if is_compacted:
        monkeypatch.setattr("scheduler.queues.roster.FEW", 0)
    carried, connection = await counting(stage), FaultyBroker(stage.server)
    async with AsyncExitStack() as opened:
        first = await opened.enter_async_context(AsyncExitStack())
        if not has_supervised:
            await first.enter_async_context(stage.supervised())
        await opened.enter_async_context(stage.supervised(over=connection))
        await asyncio.sleep(PERIOD + 2 * ROUND)
        if has_supervised:
            await first.enter_async_context(stage.supervised())
            connection.detach()
            await asyncio.sleep(1)
            connection.attach()
        await asyncio.sleep(2 * PERIOD)
        await stage.broker.delete(stage.app.names.journal)
        await stage.program.installation.declare_all()
        await first.aclose()
        stage.events.clear()
        await asyncio.sleep(2 * ROUND)
        assert stage.repairs() == []
        await stage.lose(TASK)
        await asyncio.sleep(PERIOD + UNTIL_FOUND)
    assert stage.repairs() == [("task", "lost")]
    assert carried == [(0, None), (1, 1), (2, 2), (3, 3)]


# Without a queue


NAMED = "roster", "snapshots", "journal", "roll_call", "presence"
GONE: dict[str, Callable[[Names], list[str]]] = {
    **{name: lambda names, name=name: [getattr(names, name)] for name in NAMED},
    "timers": lambda names: [names.timer(timer) for timer in timers()],
    "later timer": lambda names: [names.later_timer(Timer(5, 1))],
    "processor": lambda names: [names.processor_queue("task")],
    "failed": lambda names: [names.failed_queue("call")],
}


@pytest.mark.parametrize("gone", GONE)
async def test_a_deleted_queue_is_declared_and_reported_and_its_loop_continues(
    stage: Stage, gone: str
) -> None:
    stage.app.task(name="call")(nothing)
    carried, queues = await counting(stage), GONE[gone](stage.app.names)
    async with stage.supervised():
        await run_once(stage)
        await asyncio.sleep(ROUND)  # until the roster tells how far it came
        for queue in queues:
            await stage.broker.delete(queue)
        await asyncio.sleep(4 * ROUND)  # the second look at supervision finds it lost
        assert None not in [await stage.broker.depth(queue) for queue in queues]
        if gone != "timers":
            await stage.lose(TASK)
        await asyncio.sleep(PERIOD + UNTIL_FOUND)
        assert ("task", "lost") in stage.repairs()
    assert carried == [(0, None), (1, 1)]
    assert of(QueuesMissing, stage.events) == [QueuesMissing(tuple(sorted(queues)), True)]
    assert reported(stage.events) == []


async def test_older_code_does_not_restore_a_removed_loop_after_days(stage: Stage) -> None:
    await stage.seed(looping("task", "other", supervision_interval="1h"))
    new = looping("task", supervision_interval="1h")
    newer = program_of(new, stage.broker, stage.clock)
    async with stage.supervised():
        await newer.seeding.seed(prune=True)
        await asyncio.sleep(REMEMBERED.total_seconds() + 1)
        await stage.verbs.pause(stage.app.loop("task"))  # an entry: old ones are forgotten
        await asyncio.sleep(2 * 3600)
    assert await stage.history("other") == ["seeded", "removed"]
    assert OTHER not in await newer.roster.read()


async def test_a_roster_that_a_seed_has_declared_gets_back_what_processors_know(
    stage: Stage,
) -> None:
    @stage.app.task()
    async def report() -> None: ...

    await stage.seed()
    await report.start("bonn", every="1h")
    async with stage.supervised():
        await asyncio.sleep(1)
        before = (await stage.listing())[BONN]
        await stage.broker.delete(roster := stage.app.names.roster)
        await stage.seeding.seed()
        for event in ConsumerInterrupted(roster, "deleted"), ConsumerResumed(roster):
            stage.app.events.emit(event)
        await asyncio.sleep(2 * ROUND)
    reader = program_of(stage.app, stage.broker, stage.clock)
    assert (await reader.roster.read())[BONN].entry == before.entry


async def test_a_roster_that_is_recreated_while_it_is_restored_is_restored_again(
    stage: Stage,
) -> None:
    def has_entries(call: Call) -> bool:
        return call.message.type == ENTRY_TYPE

    async def recreate(call: Call | None = None) -> None:
        await stage.broker.delete(stage.app.names.roster)
        await stage.broker.declare(stage.app.topology())
        by = "another program" if call is None else "yet another"
        other = RosterEntry(OTHER, Every("1h"), {}, Entry(7, LoopState.PAUSED, 7), by=by)
        await append_blindly(stage.broker, stage.app.names, [other])

    await stage.seed(looping("task"))
    async with stage.faulty as broker:
        program = program_of(stage.app, broker, stage.clock)
        known = dict(await program.roster.read())
        program.roster.inherits = True
        await recreate()
        broker.on("publish", where=has_entries, times=1).then(recreate)
        for _ in range(2):
            await program.seeding.restore()
    assert (await stage.listing()).keys() == {*known, OTHER}


async def another_expired(call: Call) -> None:
    raise QueueNotFound("another queue")


@pytest.mark.parametrize("may_declare", [True, False])
async def test_a_queue_that_stays_missing_is_reported_once(stage: Stage, may_declare: bool) -> None:
    await counting(stage)
    broker = FaultyBroker(stage.server) if may_declare else not_allowed(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(1)
        if may_declare:  # it is broken off before the bindings are made
            broker.on("declare", times=1).then(another_expired)
        await stage.broker.delete(queue := stage.app.names.failed_queue("task"))
        await asyncio.sleep(5 * ROUND)
    assert of(QueuesMissing, stage.events) == [QueuesMissing((queue,), may_declare)]
    assert (await stage.broker.depth(queue) is not None) == may_declare


@pytest.mark.parametrize("is_all", [False, True])
async def test_an_interrupted_declaration_is_completed(stage: Stage, is_all: bool) -> None:
    carried, topology = await counting(stage), stage.app.topology()
    lost = {queue.name for queue in topology.queues}
    if not is_all:
        lost.remove(stage.app.names.roster)
    for queue in lost:
        await stage.broker.delete(queue)
    broker = FaultyBroker(stage.server)

    async def break_off(_: Call) -> None:
        """Leave all queues there, and not bound."""
        await stage.broker.unbind(each for each in topology.bindings if each.destination in lost)
        raise BrokerUnavailable("It went.")

    broker.on("declare", times=1).then(break_off)
    async with stage.supervised(over=broker), stage.supervised():
        # Its first tick is over when it is found overdue, and no journal tells of it.
        await asyncio.sleep(1300)
    assert carried


@pytest.mark.parametrize("kept", ["", "test.v1.snapshots"])
async def test_a_broker_that_lost_everything_gets_back_what_processors_know_or_a_snapshot_says(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, kept: str
) -> None:
    monkeypatch.setattr("scheduler.queues.roster.FEW", 0)

    @stage.app.task()
    async def report(city: str = "") -> None: ...

    await counting(stage)
    await report.start("bonn", every="1h", args={"city": "Bonn"})
    await report.start("koeln", every="1h")
    await report.stop("koeln")
    await stage.verbs.pause(stage.app.loop("task"), "stocktaking")
    before = dict(await stage.listing())
    await stage.program.roster.compact()
    async with AsyncExitStack() as processors:
        if not kept:
            await processors.enter_async_context(stage.supervised())
            await asyncio.sleep(1)
        for queue in stage.app.topology().queues:
            if queue.name != kept:
                await stage.broker.delete(queue.name)
        if kept:
            await processors.enter_async_context(stage.supervised())
        await asyncio.sleep(3600 + UNTIL_FOUND + ROUND)
    after = await stage.listing()
    for loop in (TASK, BONN):
        for part in ("schedule", "args", "reason"):
            assert getattr(after[loop], part) == getattr(before[loop], part)
        assert after[loop].entry.state is before[loop].entry.state
        assert after[loop].entry.life == before[loop].entry.life
    assert after[TASK].at == before[TASK].at
    assert (await stage.token(BONN)).args == {"city": "Bonn"}
    assert [loop.key for loop in await report.list()] == ["bonn"]


# The loop itself


async def test_supervision_comes_back_when_its_own_token_is_gone(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    await counting(stage)
    other = FaultyBroker(stage.server)
    looks = other.on("read", ".journal").first(lambda call: asyncio.sleep(0))

    async def take_long(_: Installation) -> None:
        await asyncio.sleep(0.8 * ROUND)

    async with stage.supervised(), stage.supervised(over=other):
        await asyncio.sleep(20 * ROUND + 5)
        monkeypatch.setattr(Installation, "harms", take_long)
        await asyncio.sleep(20 * ROUND)
        monkeypatch.undo()
        await asyncio.sleep(2 * ROUND)
        assert looks.met == []  # each round is heard of, though many take long
        await stage.lose(SUPERVISION)
        stage.events.clear()
        await asyncio.sleep(4 * ROUND)
        assert stage.repairs() == [("_supervision", "lost")]
        stage.events.clear()
        await asyncio.sleep(4 * ROUND)
        assert 3 <= len(of(CensusTaken, stage.events)) <= 5


async def test_a_queue_of_supervision_that_stays_missing_is_reported(stage: Stage) -> None:
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
        (NoSpace("It went."), []),
        (RuntimeError("A bug."), ["Watching supervision failed"]),
    ],
)
async def test_a_lost_supervision_loop_is_repaired_though_an_attempt_failed(
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


async def test_an_endless_round_is_cancelled(stage: Stage, monkeypatch: pytest.MonkeyPatch) -> None:
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


@pytest.mark.parametrize("carried", ["garbage", {"reported": 7}])
async def test_the_memory_of_another_version_is_ignored(stage: Stage, carried: Any) -> None:
    await counting(stage)
    token = await stage.token(SUPERVISION)
    await stage.lose(SUPERVISION)
    await stage.crowd([replace(token, carry=carried)])
    async with stage.supervised():
        await asyncio.sleep(ROUND + 1)
        memory = memory_of((await stage.token(SUPERVISION)).carry)
        assert memory.reported == Memory().reported
        assert memory.tally is not None
    assert [census.loops for census in of(CensusTaken, stage.events)] == [1]
    assert of(SupervisionDelayed, stage.events) == []


async def test_loops_are_counted_from_the_last_round_if_that_was_recent(stage: Stage) -> None:
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


async def test_tokens_lost_by_a_restarted_broker_are_put_within_seconds(stage: Stage) -> None:
    app = looping(*LOOPS, every="1m", supervision_interval="1h")
    await stage.seed(app)
    async with stage.supervised(), stage.supervised(), stage.supervised():
        await asyncio.sleep(59)
        for loop in (*map(LoopId, LOOPS), SUPERVISION):
            await stage.lose(loop)
        await asyncio.sleep(2)  # in which they were due
        stage.events.clear()
        reconnect(stage)
        await asyncio.sleep(10)
        assert set(stage.repairs()) == {(name, "lost") for name in LOOPS}
        assert {str(run.loop) for run in of(RunStarted, stage.events)} >= set(LOOPS)
        assert (await stage.tokens_by_loop())[SUPERVISION] == 1


@pytest.mark.parametrize(("processors", "reconnects", "most"), [(8, 1, 8), (1, 5, 5)])
async def test_one_of_several_reconnected_processors_triggers_rounds(
    stage: Stage, processors: int, reconnects: int, most: int
) -> None:
    await stage.seed(looping(supervision_interval="1h"))
    async with AsyncExitStack() as started:
        for _ in range(processors):
            await started.enter_async_context(stage.supervised())
        await asyncio.sleep(2)
        stage.events.clear()
        for _ in range(reconnects):
            reconnect(stage)
            await asyncio.sleep(0.2)
        await asyncio.sleep(60)
    rounds = of(CensusTaken, stage.events)
    assert 5 <= len(rounds) <= most  # of 40 and 25
    assert stage.repairs() == []


# Reports


async def test_loops_that_are_not_in_the_code_are_reported_once(stage: Stage) -> None:
    await counting(stage)
    old, new = stage.app, looping("other", every="1m")
    with recording(new) as events:
        async with stage.supervised(app=new):
            await asyncio.sleep(10 * ROUND)
    assert reported(events) == [("task", "orphaned")]
    assert (await stage.token(TASK)).seq == 0
    await stage.seed(new)
    await stage.seeding.seed(prune=True)
    with recording(old) as events:
        async with stage.supervised(app=old):
            await asyncio.sleep(10 * ROUND)
    assert sorted(reported(events)) == [("other", "orphaned"), ("task", "removed")]


async def test_a_task_with_due_loops_and_no_processor_is_reported_each_time(stage: Stage) -> None:
    app = looping("task", "other", every="1m")
    report = app.task(name="report")(nothing)
    await stage.seed(app)
    for key in "bonn", "koeln":
        await report.start(key, every="1m")
    both = [("report", "unattended"), ("task", "unattended")]
    async with stage.supervised(tasks=["other"]):
        await asyncio.sleep(200)
        assert sorted(reported(stage.events)) == both
        async with stage.supervised(tasks=["report", "task"]):
            await asyncio.sleep(100)
        await asyncio.sleep(200)
    assert sorted(reported(stage.events)) == sorted(both * 2)
    assert stage.repairs() == []


async def test_a_task_whose_processor_starts_during_the_round_is_not_reported(
    stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = Survey.depths

    async def depths(self: Survey, tasks: Any, *rest: Any) -> Any:
        found = await asked(self, tasks, *rest)
        starts = set(tasks) == {"task"}  # asked again, for this one alone
        return {task: Depth(1, 1) if starts else each for task, each in found.items()}

    monkeypatch.setattr(Survey, "depths", depths)
    await stage.seed(looping("task", "other", every="1m"))
    async with stage.supervised(tasks=["other"]):
        await asyncio.sleep(200)
    assert reported(stage.events) == []


async def test_a_loop_with_a_newer_epoch_is_not_repaired(stage: Stage) -> None:
    await counting(stage)
    seen = {TASK: (await stage.listing()).known(TASK)}
    await stage.verbs.pause(stage.app.loop("task"))
    paused = (await stage.listing())[TASK]
    await stage.program.beginnings.repair([stage.app.loop("task")], "doubled", epochs=seen)
    assert (await stage.listing())[TASK] == paused
    assert stage.repairs() == []


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
