"""How an epoch begins: in which order, with what, and what if its creator dies on the way."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any

import pytest

from scheduler import Context, Every, Scheduler, StopLoop
from scheduler.control.beginnings import CALLING_TIMEOUT
from scheduler.control.loops import Where, whole_of
from scheduler.control.reports import Effect
from scheduler.errors import BrokerUnavailable, Unconfirmed
from scheduler.events import ConsumerInterrupted, ConsumerResumed
from scheduler.program import Program
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.roll_call import TIMEOUT
from scheduler.sending import CallTask
from scheduler.tasks.loops import Loop
from tests.faulty import Call, FaultyBroker
from tests.stage import Stage, looping, new_app, program_of

BONN, NEW = LoopId("report", "bonn"), LoopId("report", "new")
ROUND = 5.0
UNTIL_IT_GOES_ON = 10 + 5 + 2 * ROUND + 5  # its period; overdue; a round; its run


@dataclass
class Office:
    """An app with a task, each run of which is handed how many there were, and what became of it.

    Attributes:
        runs: of each key, the number of each run and what it was handed.
    """

    app: Scheduler
    report: CallTask[Any, Any, Any]
    takes: float
    runs: dict[str, list[tuple[int, Any]]] = field(
        default_factory=lambda: defaultdict[str, list[tuple[int, Any]]](list)
    )
    at_once: Counter[str] = field(default_factory=Counter[str])
    overlapped: bool = False

    @property
    def went_back(self) -> bool:
        """Whether any run did not go on from the one before."""
        return any(
            runs != [(number, number or None) for number in range(len(runs))]
            for runs in self.runs.values()
        )


def an_office(takes: float = 0) -> Office:
    app = new_app(supervision_interval=f"{ROUND}s")

    @app.task()
    async def report(ctx: Context) -> None:
        office.runs[ctx.key].append((ctx.seq, ctx.carried))
        office.at_once[ctx.key] += 1
        office.overlapped |= office.at_once[ctx.key] > 1
        await asyncio.sleep(office.takes)
        office.at_once[ctx.key] -= 1
        ctx.carry((ctx.carried or 0) + 1)

    office = Office(app, report, takes)
    return office


async def started(stage: Stage, office: Office) -> Loop:
    """The loop of Bonn, which waits for its first tick."""
    await stage.seed(office.app)
    await office.report.start("bonn", every="10s")
    return await stage.loops.find(str(BONN))


async def repair(program: Program, loop: Loop) -> None:
    await program.beginnings.repair([loop], "lost")


CREATORS: dict[str, Callable[[Program, Loop], Awaitable[object]]] = {
    "start": lambda program, loop: program.seeding.start(replace(loop, id=NEW)),
    "start again": lambda program, loop: program.seeding.start(loop),
    "pause": lambda program, loop: program.verbs.pause(loop),
    "resume": lambda program, loop: program.verbs.resume(loop),
    "trigger": lambda program, loop: program.verbs.trigger(loop),
    "reschedule": lambda program, loop: program.seeding.start(replace(loop, schedule=Every("9s"))),
    "repair": repair,
    "stop": lambda program, loop: program.removal.remove(loop),
}


async def make_ready(stage: Stage, office: Office, loop: Loop, creator: str) -> None:
    """Do what has to be done before a creator has something to do."""
    if creator == "resume":
        await stage.verbs.pause(loop)
    if creator == "start again":
        await stage.removal.remove(loop)
        office.runs.clear()


def step(call: Call) -> str:
    """The step of a creator that this is of, if it is of one."""
    match call:
        case Call("publish", message=Message(type="scheduler.roster")):
            return "append"
        case Call("publish", message=Message(type="scheduler.token")):
            return "put"
        case Call("publish", message=Message(type="scheduler.question")):
            return "call"
        case _:
            return ""


STEPS = {
    **dict.fromkeys(CREATORS, ("append", "call", "put")),  # asks whether an older token runs
    "start": ("append", "put"),  # there is no older one
    **dict.fromkeys(("pause", "stop"), ("append", "put", "call")),  # of which the journal hears
}


@pytest.mark.parametrize("creator", CREATORS)
async def test_creators_append_put_and_call_in_this_order(stage: Stage, creator: str) -> None:
    office = an_office()
    loop = await started(stage, office)
    async with stage.supervised(), FaultyBroker(stage.server) as broker:
        await asyncio.sleep(1)
        await make_ready(stage, office, loop, creator)
        await CREATORS[creator](program_of(stage.app, broker, stage.clock), loop)
        done = [name for name, _ in groupby(map(step, broker.calls)) if name]
    assert tuple(done[done.index("append") :]) == STEPS[creator]


async def behead(stage: Stage, loop: Loop, creator: str, after: str) -> None:
    """Have a creator lose its connection after a step, and with it all that it would do."""
    broker, steps = FaultyBroker(stage.server), list[str]()

    def is_the_last(call: Call) -> bool:
        steps.append(step(call))
        return steps[-1] == after and "append" in steps

    async def die(_: Call) -> None:
        await broker.__aexit__()
        raise BrokerUnavailable("It was killed.")

    broker.on("publish", where=is_the_last).then(die)
    async with broker:
        with pytest.raises(BrokerUnavailable):
            await CREATORS[creator](program_of(stage.app, broker, stage.clock), loop)


DEATHS = [(creator, step) for creator in CREATORS for step in STEPS[creator]]


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize(("creator", "after"), DEATHS)
async def test_a_creator_killed_after_any_step_leaves_a_loop_with_one_token(
    stage: Stage, creator: str, after: str, runs: bool
) -> None:
    office = an_office(takes=4)
    loop = await started(stage, office)
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(12 if runs else 17)
        assert office.at_once["bonn"] == runs
        await make_ready(stage, office, loop, creator)
        if (creator, runs) == ("trigger", True):
            assert (await stage.verbs.trigger(loop)).did is Effect.RUNNING
            return
        await behead(stage, loop, creator, after)
        before = Counter({key: len(each) for key, each in office.runs.items()})
        await asyncio.sleep(UNTIL_IT_GOES_ON)
        since = Counter({key: len(each) for key, each in office.runs.items()}) - before
        match creator:
            case "pause":
                assert (since["bonn"], await stage.where(BONN)) == (0, Where.PAUSED)
            case "stop":
                assert (since["bonn"], await office.report.list()) == (0, [])
            case "start":
                assert since["new"]
            case _:
                assert since["bonn"]
    assert not office.overlapped
    assert not office.went_back


async def test_a_loop_lost_by_the_roster_continues_from_the_journal(stage: Stage) -> None:
    office = an_office()

    @office.app.periodic(every="1h")
    async def task(ctx: Context) -> None:
        ctx.carry(f"kept {ctx.seq}")

    await stage.seed(office.app)
    async with stage.processor():
        await asyncio.sleep(2 * 3600 + 1)
    before = await stage.token(LoopId("task"))
    await stage.broker.delete(office.app.names.roster)
    (report,) = await stage.seeding.seed()
    assert report.did is Effect.REPAIRED
    async with stage.processor():
        await asyncio.sleep(1)
    token = await stage.token(before.loop)
    assert (token.seq, token.carry, token.due_at) == (2, "kept 1", before.due_at)
    assert token.epoch > before.epoch
    assert (await stage.listing()).known(before.loop) == token.epoch


async def test_a_run_with_other_arguments_is_not_continued(stage: Stage) -> None:
    await stage.seed(looping())
    await stage.work(2 * 3600 + 1)
    loop = stage.app.loop("task")
    await stage.verbs.run_beside(loop, {})
    await stage.put_again(loop.id)
    await stage.work(1)
    await stage.verbs.pause(loop)
    await stage.verbs.resume(loop)
    await stage.work(1)
    token = await stage.token(loop.id)
    assert (token.seq, token.carry) == (2, 2)


@pytest.mark.parametrize("how", ["by an operator", "by its run", "with its task"])
@pytest.mark.parametrize("is_adopted", [False, True])
async def test_a_pause_lost_by_the_roster_is_kept(stage: Stage, how: str, is_adopted: bool) -> None:
    app, carried = stage.app, list[Any]()

    @app.periodic(every="1h")
    async def task(ctx: Context) -> None:
        carried.append(ctx.carried)
        ctx.carry(ctx.seq + 1)
        if how == "by its run" and ctx.seq == 1:
            raise StopLoop("stocktaking")

    await stage.seed()
    await stage.work(2 * 3600 + 1)
    loop, whole = app.loop("task"), whole_of(app.tasks["task"])
    paused = whole if how == "with its task" else loop
    if how != "by its run":
        await stage.verbs.pause(paused, "stocktaking")
    await stage.broker.delete(app.names.roster)
    fresh = program_of(app, stage.broker, stage.clock)
    await (fresh.seeding.adopt() if is_adopted else fresh.seeding.seed())
    await stage.work(2 * 3600 + 1)
    (status,) = await fresh.survey.status(loop)
    assert (status.where, "stocktaking" in (status.reason or "")) == (Where.PAUSED, True)
    if paused is loop:  # the roster has what it needs
        await stage.broker.delete(app.names.journal)
        await fresh.installation.declare_missing()
    await fresh.verbs.resume(paused, at_once=paused is loop)
    await stage.work(2)
    assert carried == [None, 1, 1 if how == "by its run" else 2]


async def test_a_loop_started_in_a_lost_roster_waits_for_its_run(stage: Stage) -> None:
    await started(stage, office := an_office(takes=30))
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(15)
        await stage.broker.delete(roster := office.app.names.roster)
        await stage.program.installation.declare_all()
        for event in ConsumerInterrupted(roster, "deleted"), ConsumerResumed(roster):
            office.app.events.emit(event)
        assert await office.report.start("bonn", every="1s") is Effect.CREATED
        await asyncio.sleep(60)
    assert [number for number, _ in office.runs["bonn"]] == [0, 0, 1]
    assert not office.overlapped


async def test_a_pause_returns_in_time_and_tells_how_many_do_not_answer(stage: Stage) -> None:
    loop, mute = await started(stage, an_office()), FaultyBroker(stage.server)
    mute.on("publish", where=lambda call: call.message.type == "scheduler.answer").fails(
        Unconfirmed()
    )
    async with stage.supervised(), stage.supervised(over=mute):
        await asyncio.sleep(1)
        before = stage.clock.now()
        assert (await stage.verbs.pause(loop)).silent == ["an unknown processor (1)"]
        assert CALLING_TIMEOUT <= stage.clock.now() - before <= CALLING_TIMEOUT + TIMEOUT
