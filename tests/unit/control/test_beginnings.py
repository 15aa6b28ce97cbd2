"""How an epoch begins: in which order, with what, and what if its creator dies on the way."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import groupby
from typing import Any

import pytest

from scheduler import Context, Every, Scheduler
from scheduler.control.beginnings import CALLING_TIMEOUT
from scheduler.control.reports import Did
from scheduler.control.status import Where
from scheduler.errors import BrokerUnavailable, Unconfirmed
from scheduler.program import Program
from scheduler.protocol.epochs import LoopState, Watch
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId, State, decode
from scheduler.queues.assembly import TIMEOUT
from scheduler.sending import CallTask
from scheduler.tasks.loops import Loop
from tests.faulty import Call, Fault, FaultyBroker, Operation
from tests.stage import START, Stage, new_app, program_of

BONN, NEW = LoopId("report", "bonn"), LoopId("report", "new")
ROUND = 5.0
UNTIL_IT_GOES_ON = 3 * ROUND + 10 + 5  # a round begun, two misses; its period; its run


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


async def started(stage: Stage, office: Office, every: str = "10s") -> Loop:
    """The loop of Bonn, which waits for its first tick."""
    await stage.seed(office.app)
    await office.report.start("bonn", every=every)
    return await stage.loops.find(str(BONN))


async def repair(program: Program, loop: Loop) -> None:
    epoch = (await program.roster.read()).known(loop.id)
    await program.repairs.repair([(loop, Watch(epoch))], "lost")


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


# The order


def step(call: Call) -> str:
    """The step of a creator that this is of, if it is of one."""
    match call:
        case Call("get" | "delete"):
            return "clear"
        case Call("publish", message=Message(type="scheduler.roster")):
            return "append"
        case Call("publish", message=Message(type="scheduler.token")):
            return "put"
        case Call("publish", message=Message(type="scheduler.question")):
            return "call"
        case _:
            return ""


STEPS = "append", "clear", "put"
WHO_CALL = {
    "pause": (*STEPS, "call"),
    "stop": ("append", "clear", "call", "put"),  # of which the journal alone hears
}


@pytest.mark.parametrize("creator", CREATORS)
async def test_the_entry_is_appended_the_slot_cleared_the_token_put_and_the_roll_called(
    stage: Stage, creator: str
) -> None:
    office = an_office()
    loop = await started(stage, office)
    async with stage.supervised(), FaultyBroker(stage.server) as broker:
        await asyncio.sleep(1)
        await make_ready(stage, office, loop, creator)
        await CREATORS[creator](program_of(stage.app, broker, stage.clock), loop)
        done = [name for name, _ in groupby(map(step, broker.calls)) if name]
    assert tuple(done[done.index("append") :]) == WHO_CALL.get(creator, STEPS)


# Death


async def behead(stage: Stage, loop: Loop, creator: str, after: str) -> None:
    """Have a creator lose its connection after a step, and with it all that it would do."""
    broker, steps = FaultyBroker(stage.server), list[str]()

    def is_the_last(call: Call) -> bool:
        steps.append(step(call))
        return steps[-1] == after and "append" in steps

    async def die(_: Call) -> None:
        await broker.__aexit__()
        raise BrokerUnavailable("It was killed.")

    operations: tuple[Operation, ...] = ("publish", "get", "delete")
    for operation in operations:
        broker.on(operation, where=is_the_last).then(die)
    async with broker:
        with pytest.raises(BrokerUnavailable):
            await CREATORS[creator](program_of(stage.app, broker, stage.clock), loop)


DEATHS = [(creator, step) for creator in CREATORS for step in WHO_CALL.get(creator, STEPS)]


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize(("creator", "after"), DEATHS)
async def test_whoever_dies_after_a_step_leaves_a_loop_that_comes_back_to_one_token(
    stage: Stage, creator: str, after: str, runs: bool
) -> None:
    office = an_office(takes=4)
    loop = await started(stage, office)
    async with stage.supervised(), stage.supervised():
        await asyncio.sleep(12 if runs else 17)
        assert office.at_once["bonn"] == runs
        await make_ready(stage, office, loop, creator)
        if (creator, runs) == ("trigger", True):
            assert (await stage.verbs.trigger(loop)).did is Did.RUNNING
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
            case "resume" if after != "put":  # and whoever resumes was told that it failed
                assert (since["bonn"], await stage.where(BONN)) == (0, Where.PAUSED)
                await stage.verbs.resume(loop, at_once=True)
                await asyncio.sleep(5)
                assert office.runs["bonn"][before["bonn"] :]
            case _:
                assert since["bonn"]
    assert not office.overlapped
    assert not office.went_back


@pytest.mark.parametrize("after", STEPS)
async def test_a_stop_whose_creator_died_can_be_done_again(stage: Stage, after: str) -> None:
    office = an_office()
    loop = await started(stage, office)
    if after != "put":
        await behead(stage, loop, "stop", after)
    there_was_one = after != "clear"  # it was gone, and only not known to be
    assert await office.report.stop("bonn") is there_was_one
    assert await stage.broker.depth(stage.app.names.hatchery(BONN)) is None
    assert await office.report.stop("bonn") is False
    assert (await stage.listing())[BONN].schedule == Every("10s")


# The slot is taken


async def test_what_takes_the_slot_before_the_first_token_is_cleared_and_gone_on_from(
    stage: Stage,
) -> None:
    office = an_office()
    loop = await started(stage, office, every="1h")
    await asyncio.sleep(1)
    token = await stage.token(BONN)
    async with FaultyBroker(stage.server) as broker:

        async def race(_: Call) -> None:
            await stage.crowd([replace(token, seq=1, carry=1), replace(token, seq=1, carry=1)])

        broker.on("publish", key="loop.report.bonn", times=1).first(race)
        await program_of(stage.app, broker, stage.clock).verbs.pause(loop)
    (waiting,) = await stage.hatchery.clear(BONN)
    assert waiting.state is State.PAUSED
    assert waiting.epoch > token.epoch
    await stage.hatchery.offer(waiting)
    await stage.verbs.resume(loop, at_once=True)
    async with stage.supervised():
        await asyncio.sleep(1)
    assert office.runs["bonn"] == [(1, 1)]


# What it goes on with


async def test_what_was_in_the_slot_goes_on_in_the_new_epoch(stage: Stage) -> None:
    loop = await started(stage, an_office(), every="1h")
    async with stage.supervised():
        await stage.verbs.trigger(loop)
        await asyncio.sleep(1)
    before = await stage.token(BONN)
    await stage.verbs.pause(loop)
    paused = await stage.token(BONN)
    assert (paused.seq, paused.carry, paused.last) == (1, 1, before.last)
    assert (paused.first, paused.life, paused.due_at) == (True, before.life, before.due_at)
    assert paused.epoch > before.epoch


async def test_what_is_of_an_earlier_life_does_not_go_on(stage: Stage) -> None:
    office = an_office()
    loop = await started(stage, office)
    async with stage.supervised():
        await asyncio.sleep(15)
    await behead(stage, loop, "stop", "append")
    assert (await stage.token(BONN)).seq == 1
    office.runs.clear()
    assert await office.report.start("bonn", every="10s") is Did.CREATED
    async with stage.supervised():
        await asyncio.sleep(25)
    assert office.runs["bonn"] == [(0, None), (1, 1)]


async def test_only_a_brand_new_loop_begins_with_a_token_that_is_run(stage: Stage) -> None:
    office = an_office()
    await started(stage, office)
    assert (await stage.token(BONN)).first is False
    await office.report.stop("bonn")
    await office.report.start("bonn", every="10s")
    assert (await stage.token(BONN)).first is True


async def test_a_loop_that_the_roster_has_lost_goes_on_from_its_slot(stage: Stage) -> None:
    app = an_office().app
    app.periodic(every="1h", name="task")(nothing)
    await stage.seed(app)
    before = replace(await stage.token(LoopId("task")), seq=7, carry="kept")
    await stage.lose(before.loop)
    assert await stage.hatchery.offer(before)
    await stage.broker.delete(app.names.roster)
    (report,) = await stage.seeding.seed()
    token = await stage.token(before.loop)
    assert (report.did, report.token) == (Did.REPAIRED, token)
    assert (token.seq, token.carry, token.life) == (7, "kept", before.life)
    assert token.epoch > before.epoch
    assert (await stage.listing()).known(before.loop) == token.epoch


async def nothing() -> None: ...


async def test_a_loop_of_which_nothing_is_left_but_its_run_does_not_begin_beside_it(
    stage: Stage,
) -> None:
    app, starts = new_app(), list[float]()

    @app.periodic(every="10s")
    async def task() -> None:
        starts.append((stage.clock.now() - START).total_seconds())
        await asyncio.sleep(60)

    await stage.seed(app)
    async with stage.processor(), stage.processor():
        await asyncio.sleep(15)
        await stage.broker.delete(app.names.hatchery(LoopId("task")))
        await stage.broker.delete(app.names.roster)
        (report,) = await stage.seeding.seed()
        assert report.did is Did.CREATED
        await asyncio.sleep(60)
    assert starts == [10.0, pytest.approx(70, abs=1.1)]


async def test_a_repair_keeps_what_the_roster_says_whatever_the_code_of_the_repairing_says(
    stage: Stage,
) -> None:
    loop = await started(stage, an_office())
    await stage.verbs.pause(loop, "stocktaking")
    before = (await stage.listing())[BONN]
    await repair(stage.program, replace(loop, schedule=Every("1s"), args={"city": "Köln"}))
    after = (await stage.listing())[BONN]
    assert (after.schedule, after.args, after.reason) == (Every("10s"), {}, "stocktaking")
    assert (after.entry.state, after.entry.life) == (LoopState.PAUSED, before.entry.life)
    assert after.epoch > before.epoch
    token = await stage.token(BONN)
    assert (token.state, token.reason, token.schedule) == (
        *(State.PAUSED, "stocktaking", Every("10s")),
    )


async def test_a_repair_relies_on_nothing_that_it_finds(stage: Stage) -> None:
    loop = await started(stage, an_office())
    waiting = await stage.token(BONN)
    await repair(stage.program, loop)
    delivery = await stage.broker.get(stage.app.names.processor_queue("report"))
    assert delivery is not None
    first = decode(delivery.message, "test")
    await delivery.requeue()
    assert (first.first, first.known) == (True, False)
    assert (first.seq, first.due_at) == (waiting.seq, waiting.due_at)


async def test_a_loop_that_its_own_run_paused_stays_so_in_a_repair(stage: Stage) -> None:
    loop = await started(stage, an_office())
    occupant = await stage.hatchery.take(BONN)
    assert occupant is not None
    await occupant.delivery.ack()
    stopped = replace(occupant.token, seq=1, state=State.PAUSED, reason="the disk is full")
    assert await stage.hatchery.offer(stopped)
    await repair(stage.program, loop)
    token = await stage.token(BONN)
    assert (token.state, token.reason, token.seq) == (State.PAUSED, "the disk is full", 1)


# All know of it


def mute(stage: Stage) -> tuple[FaultyBroker, Fault]:
    """A connection of a processor that answers to no roll call, until that ceases."""
    broker = FaultyBroker(stage.server)
    return broker, broker.on("publish", where=is_answer).fails(Unconfirmed())


def is_answer(call: Call) -> bool:
    return call.message.type == "scheduler.answer"


@pytest.mark.parametrize("verb", ["pause", "stop"])
async def test_a_pause_and_a_stop_return_when_all_processors_know(stage: Stage, verb: str) -> None:
    loop = await started(stage, an_office())
    broker, silence = mute(stage)
    async with stage.supervised(), stage.supervised(over=broker):
        await asyncio.sleep(1)
        deed = {"pause": stage.verbs.pause, "stop": stage.removal.remove}[verb]
        at_work = asyncio.create_task(deed(loop))
        await asyncio.wait([at_work], timeout=7)
        assert not at_work.done()
        await silence.cease()
        await asyncio.wait([at_work], timeout=TIMEOUT.total_seconds())
        assert (await at_work).silent == []


@pytest.mark.parametrize("verb", ["pause", "stop"])
async def test_a_pause_and_a_stop_return_in_time_and_tell_how_many_do_not_answer(
    stage: Stage, verb: str
) -> None:
    loop = await started(stage, an_office())
    broker, _ = mute(stage)
    async with stage.supervised(), stage.supervised(over=broker):
        await asyncio.sleep(1)
        deed = {"pause": stage.verbs.pause, "stop": stage.removal.remove}[verb]
        before = stage.clock.now()
        assert (await deed(loop)).silent == ["an unknown one (0)"]
        took = stage.clock.now() - before
    assert CALLING_TIMEOUT <= took <= CALLING_TIMEOUT + TIMEOUT
    assert timedelta(seconds=10) == CALLING_TIMEOUT


async def test_a_stop_that_is_done_again_tells_too_who_does_not_answer(stage: Stage) -> None:
    loop = await started(stage, an_office())
    broker, _ = mute(stage)
    async with stage.supervised(), stage.supervised(over=broker):
        await asyncio.sleep(1)
        dids = [await stage.removal.remove(loop) for _ in range(2)]
    assert [report.did for report in dids] == [Did.REMOVED, Did.NOT_THERE]
    assert [report.silent for report in dids] == [["an unknown one (0)"]] * 2


async def test_a_pause_of_a_paused_loop_begins_an_epoch_calls_the_roll_and_keeps_its_reason(
    stage: Stage,
) -> None:
    loop = await started(stage, an_office())
    await behead(stage, loop, "pause", "append")
    before = await stage.listing()
    asked: list[Message] = []
    following = await stage.broker.follow(stage.app.names.roll_call, asked.append)
    async with stage.supervised():
        await asyncio.sleep(1)
        report = await stage.verbs.pause(loop, "another one")
        await following.cancel()
    assert report.did is Did.UNCHANGED
    assert report.token is not None
    assert report.token.epoch > before.known(BONN)
    assert (report.token.state, report.token.reason) == (State.PAUSED, before[BONN].reason)
    assert [message.type for message in asked] == ["scheduler.question", "scheduler.answer"]
