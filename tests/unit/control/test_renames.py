"""A task that was renamed: with `aliases=`, it takes over what its old names left."""

import asyncio
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import timedelta
from itertools import count
from typing import Any

import pytest

from scheduler import Context, Every, Retry, Scheduler, StopLoop
from scheduler.control.keyed import Started, Synced
from scheduler.control.loops import Where
from scheduler.control.reports import Effect, Report
from scheduler.dashboard.picture import Picture
from scheduler.errors import BrokerError, Unconfirmed
from scheduler.events import LoopReported, RunStarted, TaskPaused
from scheduler.processor.recognition import LoopTurns
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.failed import EVERYTHING
from scheduler.queues.listing import Listing
from scheduler.queues.roll_call import ANSWER, RollCall
from scheduler.tasks.loops import Loop, aliases_of
from scheduler.timing.moments import LoopClock
from scheduler.timing.schedules import Once
from tests.faulty import Call, FaultyBroker
from tests.stage import START, Stage, new_app, of, program_of

MINUTE = timedelta(minutes=1)
FOREIGN = ("orders", "paid", "topic")


class Shop:
    """An app before its two tasks are renamed, or after, and what was run of it.

    Attributes:
        ticks: the seq of each run of the loop, and what it was handed.
        fails: whether its runs do.
        calls: what each run of the other task was called with.
        most: how many calls went on at once.
    """

    def __init__(
        self, *, renamed: bool, takes: float = 0, back: Sequence[str] = (), **options: Any
    ) -> None:
        self.app = new_app()
        self.ticks, self.calls = list[tuple[int, int]](), list[int]()
        self.stops_at, self.fails = -1, False
        self.most = self._going = 0
        self._takes = takes
        name, aliases = ("counter", ["count"]) if renamed else ("count", back)
        self.app.periodic(every="1m", name=name, aliases=aliases, retry=Retry(0))(self.count)
        name, aliases = ("render", ["render_pdf"]) if renamed else ("render_pdf", [])
        self.app.task(name=name, retry=Retry(0), aliases=aliases, **options)(self.render)

    async def count(self, ctx: Context) -> None:
        carried = ctx.carried or 0
        self.ticks.append((ctx.seq, carried))
        await asyncio.sleep(self._takes)
        ctx.carry(carried + 1)
        if ctx.seq == self.stops_at:
            raise StopLoop("enough")
        if self.fails:
            raise ValueError("boom")

    async def render(self, page: int) -> None:
        self.calls.append(page)
        self._going += 1
        self.most = max(self.most, self._going)
        await asyncio.sleep(self._takes)
        self._going -= 1
        if page < 0:
            raise ValueError(f"no page {page}")

    async def send(self, *pages: int, after: str = "") -> None:
        (sender,) = self.app.senders.values()
        for page in pages:
            await (sender.send_later(after, page=page) if after else sender.send(page=page))


def old_shop(**options: Any) -> Shop:
    return Shop(renamed=False, **options)


def new_shop(**options: Any) -> Shop:
    return Shop(renamed=True, **options)


async def seeded(stage: Stage, **options: Any) -> tuple[Shop, Shop]:
    """The shop before, which is seeded, and the shop after."""
    await stage.seed((old := old_shop(**options)).app)
    return old, new_shop()


async def counted(stage: Stage) -> Shop:
    """The shop after, when the shop before has had two ticks."""
    _, new = await seeded(stage)
    async with stage.supervised():
        await asyncio.sleep(150)
    return new


async def renamed(stage: Stage, shop: Shop) -> dict[str, Effect]:
    """What a seed did, which is what it had planned."""
    planned = did_of(await program(stage, shop.app).seeding.plan())
    assert (did := did_of(await stage.seed(shop.app))) == planned
    return did


def did_of(reports: Iterable[Report]) -> dict[str, Effect]:
    return {str(report.loop): report.did for report in reports}


async def test_a_renamed_task_takes_over_what_its_old_name_left(stage: Stage) -> None:
    old, new = await seeded(stage)
    async with stage.supervised():
        await old.send(-1, -2, -3)
        await asyncio.sleep(20.5 * 60)
        old.fails = True
        await asyncio.sleep(60)
    assert old.ticks[-1] == (20, 20)
    await old.send(*range(10))
    await old.send(*range(10, 15), after="2m")

    assert await renamed(stage, new) == {"counter": Effect.RENAMED}
    assert await stage.program.installation.leftovers() == []
    (backlog,) = await stage.survey.backlogs()
    assert (backlog.task, backlog.ready, backlog.parked) == ("render", 10, 3)
    parked = {(each.task, each.loop) for each in await stage.parked()}
    assert parked == {("render", "render"), ("counter", "counter")}
    ran = len(old.calls)
    async with stage.supervised():
        await asyncio.sleep(150)
        await old.send(15)
        await asyncio.sleep(1)
        assert (new.ticks[:2], len(old.ticks)) == ([(21, 20), (22, 21)], 21)
        assert (sorted(new.calls), len(old.calls)) == ([*range(16)], ran)
        assert await stage.failed.replay(new.app.tasks, EVERYTHING) == 4
        await asyncio.sleep(1)
    assert new.ticks[-1] == (20, 20)
    assert sorted(new.calls)[:3] == [-3, -2, -1]
    queues = {each.queue for each in await stage.parked()}
    assert queues == {stage.app.names.failed_queue("render")}
    assert not of(LoopReported, stage.events)
    assert (await stage.history("counter"))[0] == "renamed"


async def test_recent_failures_of_the_old_name_count_for_the_new_one(stage: Stage) -> None:
    old, new = await seeded(stage)
    async with stage.processor():
        await old.send(-1)
        await asyncio.sleep(12)
    await renamed(stage, new)
    findings = await stage.program.doctor.examine()
    (calls,) = [each for each in findings if "calls failed" in each.detail]
    assert calls.about == "task render"
    picture = Picture(new.app.namespace, aliases_of(new.app))
    async for message in stage.broker.read(new.app.names.history):
        picture.hear_of_calls(message)
    (task,) = picture.calls(stage.clock.now())
    assert task == "render"


async def test_one_of_two_seeds_renames_a_loop(stage: Stage) -> None:
    new = await counted(stage)
    both = await asyncio.gather(stage.seed(new.app), stage.seed(new.app))
    did = [did_of(reports)["counter"] for reports in both]
    assert sorted(did) == [Effect.RENAMED, Effect.UNCHANGED]
    async with stage.supervised():
        await asyncio.sleep(60)
        assert new.ticks == [(2, 2)]
        assert await renamed(stage, new) == {"counter": Effect.UNCHANGED}


def loop_named(stage: Stage, task: str, key: str) -> Loop:
    (of_task,) = stage.app.select([task])
    return Loop(LoopId(task, key), of_task, Every("10m"), {"page": 1})


def program(stage: Stage, app: Scheduler) -> Any:
    return program_of(app, stage.broker, stage.clock)


async def test_a_rename_whose_seed_was_killed_is_completed_by_the_next_seed(stage: Stage) -> None:
    new, publish = await counted(stage), 0
    for publish in count(1):
        numbers = count(1)

        def is_last(_: Call, numbers: Iterator[int] = numbers, publish: int = publish) -> bool:
            return next(numbers) == publish

        async with FaultyBroker(stage.server) as broker:
            killing = broker.on("publish", where=is_last).fails(Unconfirmed("killed"))
            with suppress(BrokerError):
                await program_of(new.app, broker, stage.clock).seeding.seed()
        if not killing.met:
            break
    assert publish > 2
    await renamed(stage, new)
    async with stage.supervised():
        await asyncio.sleep(90)
    assert new.ticks[0] == (2, 2)


async def test_a_paused_loop_is_resumed_under_its_new_name(stage: Stage) -> None:
    new = await counted(stage)
    await stage.verbs.pause(stage.app.loop("count"), "stocktaking")
    assert await renamed(stage, new) == {"counter": Effect.RENAMED}
    (status,) = await stage.survey.status()
    assert (status.where, status.reason, status.seq) == (Where.PAUSED, "stocktaking", 2)
    async with stage.supervised():
        await asyncio.sleep(300)
        assert new.ticks == []
        await stage.verbs.resume(stage.app.loop("counter"))
        await asyncio.sleep(61)
    assert new.ticks == [(2, 2)]


@pytest.mark.parametrize("verb", ["stop", "pause"])
async def test_a_loop_paused_during_its_rename_stays_so(stage: Stage, verb: str) -> None:
    old, new = await seeded(stage, takes=40)
    old.stops_at = 0 if verb == "stop" else -1
    (task,) = stage.app.select(["render_pdf"])
    once = Loop(LoopId("render_pdf", "x"), task, Once(START + MINUTE), {"page": 1})
    await stage.seeding.start(once)
    async with stage.supervised(grace=60):
        await asyncio.sleep(70)
        assert (old.ticks, old.calls) == ([(0, 0)], [1])
        await renamed(stage, new)
        if verb == "pause":
            await stage.verbs.pause(stage.app.loop("counter"))
            await stage.verbs.pause(await stage.loops.find("render.x"))
        async with stage.supervised():
            await asyncio.sleep(300)
            assert (await stage.where(LoopId("counter")), new.ticks) == (Where.PAUSED, [])
    listing = await stage.listing()
    assert listing[LoopId("render", "x")].is_done
    noted = listing[LoopId("counter")].checkpoint
    assert noted is not None
    assert noted.token("test").seq == 1


async def test_keyed_loops_and_one_offs_are_renamed_as_well(stage: Stage) -> None:
    _, new = await seeded(stage)
    (task,) = stage.app.select(["render_pdf"])
    done = Once(START + 10 * MINUTE, kept=timedelta(days=1))
    loops = [
        Loop(LoopId("render_pdf", "a"), task, Every("10m"), {"page": 1}),
        Loop(LoopId("render_pdf", "b"), task, Once(START + timedelta(hours=1)), {"page": 2}),
        Loop(LoopId("render_pdf", "c"), task, done, {"page": 3}),
    ]
    await stage.seeding.start_all(loops)
    async with stage.supervised():
        await asyncio.sleep(15 * 60)
    did = await renamed(stage, new)
    assert did == dict.fromkeys(("counter", "render.a", "render.b"), Effect.RENAMED)
    (task,) = stage.app.select(["render"])
    again = await stage.seeding.start(Loop(LoopId("render", "c"), task, done, {"page": 3}))
    assert again.did is Effect.UNCHANGED
    async with stage.supervised():
        await asyncio.sleep(50 * 60)
    assert new.calls == [1, 1, 1, 1, 2, 1] or new.calls == [1, 1, 1, 1, 1, 2]


async def test_keyed_loops_of_an_old_name_are_found_before_the_seed(stage: Stage) -> None:
    old, new = await seeded(stage)
    (task,), page = stage.app.select(["render_pdf"]), {"page": 1}
    schedules = {**dict.fromkeys("abcdf", Every("10m")), "e": Once(START + 10 * MINUTE)}
    loops = [Loop(LoopId("render_pdf", key), task, each, page) for key, each in schedules.items()]
    await program(stage, new.app).installation.declare_all()
    async with stage.supervised(app=new.app):  # which continues with the old names
        await old.send(1)
        await asyncio.sleep(61)
    assert (new.ticks, new.calls) == ([(0, 0)], [1])
    await stage.seeding.start_all(loops)
    (render,) = new.app.senders.values()
    with new.app.lending(stage.broker, stage.clock):
        assert [each.key for each in await render.list()] == [*"abcdf"]
        assert [each.name for each in await render.scheduled()] == ["e"]
        await new.app.pause("render.b")
        assert await stage.where(LoopId("render_pdf", "b")) is Where.PAUSED
        await new.app.resume("render.b")
        assert [await render.stop(key) for key in "aae"] == [True, False, True]
        operator, many = program(stage, new.app), {"f": (Every("5m"), page)}
        found = await operator.loops.find("render.f")
        await operator.verbs.set_schedule(found, Every("5m"), by="me")
        assert await render.start_many(many) == Started(rescheduled=1)
        wanted = {"b": (Every("10m"), page), "c": (Every("20m"), page), **many}
        broker = FaultyBroker(stage.server)

        async def rename(_: Call) -> None:
            await stage.seed(new.app)

        removals = broker.on("publish", where=lambda call: b'"d"' in call.message.body, times=1)
        removals.first(rename)
        async with broker:
            for dry_run in True, False:
                with new.app.lending(broker, stage.clock):
                    did = await render.sync(wanted, dry_run=dry_run)
                assert did == Synced([], ["c"], ["d"], ["b", "f"])
        assert removals.met
        assert [each.key for each in await render.list()] == ["b", "c", "f"]
        assert await render.stop("b")
        assert [each.key for each in await render.list()] == ["c", "f"]


@pytest.mark.parametrize("is_of_old_code", [False, True])
async def test_a_loop_ends_by_any_name_that_it_has(stage: Stage, is_of_old_code: bool) -> None:
    old, new = await seeded(stage)
    (render,) = old.app.senders.values()
    page = {"page": 1}
    with old.app.lending(stage.broker, stage.clock):
        await render.start_many({key: (Every("10m"), page) for key in "ab"})
        await render.once("c", after="10m", args=page)
    code = old if is_of_old_code else new
    if is_of_old_code:
        await renamed(stage, new)
    (render,), broker = code.app.senders.values(), FaultyBroker(stage.server)

    async def rename(_: Call) -> None:
        await stage.seed(new.app)

    if not is_of_old_code:  # while it is removed
        broker.on("publish", where=lambda call: b'"b"' in call.message.body, times=1).first(rename)
    async with broker:
        operator = program_of(code.app, broker, stage.clock)
        found = [loop for loop in await operator.loops.look() if loop.id.key]
        assert len(found) == (0 if is_of_old_code else 3)
        (task,) = code.app.select(["render_pdf" if is_of_old_code else "render"])
        loop = Loop(LoopId("render_pdf", "b"), task, Every("10m"), page)
        assert (await operator.removal.remove(loop)).did is Effect.REMOVED
        assert (await operator.removal.remove(loop)).did is Effect.NOT_THERE
        with code.app.lending(broker, stage.clock):
            assert [await render.stop(key) for key in "aac"] == [True, False, True]
    assert [each.loop.key for each in (await stage.listing()).there if each.loop.key] == []


async def test_a_loop_of_the_code_is_not_removed_by_its_old_name(stage: Stage) -> None:
    _, new = await seeded(stage)
    operator = program(stage, new.app)
    found = await operator.loops.find("count")
    await renamed(stage, new)
    assert (await operator.removal.remove(found)).did is Effect.NOT_THERE
    assert await stage.where(LoopId("counter")) is Where.WAITING


async def test_a_name_that_another_task_has_now_ends_no_renamed_loop(stage: Stage) -> None:
    old, new = await seeded(stage)
    await stage.seeding.start(loop_named(stage, "render_pdf", "a"))
    await renamed(stage, new)
    both = new_app()
    for name in "render", "render_pdf":
        both.task(name=name)(old.render)
    with both.lending(stage.broker, stage.clock):
        assert [await both.senders[name].stop("a") for name in ("render_pdf", "render")] == [
            False,
            True,
        ]


async def test_a_loop_comes_back_by_its_old_name_though_it_was_removed(stage: Stage) -> None:
    old, new = await seeded(stage)
    await stage.seeding.start(keyed := loop_named(stage, "render_pdf", "a"))
    assert (await renamed(stage, new))["render.a"] is Effect.RENAMED
    ahead = program_of(new.app, stage.broker, LoopClock(START + MINUTE))
    await ahead.removal.remove_all([loop_named(stage, "render", "a")])
    await stage.seed(old.app)
    await stage.seeding.start(keyed)
    for did in Effect.RENAMED, Effect.UNCHANGED:
        assert (await renamed(stage, new))["render.a"] is did


async def test_a_loop_that_old_code_started_again_is_removed_by_the_next_seed(stage: Stage) -> None:
    old, new = await seeded(stage)
    await renamed(stage, new)
    await stage.verbs.pause(stage.app.loop("counter"))
    assert await renamed(stage, old) == {"count": Effect.CREATED}
    async with stage.supervised(app=old.app):
        await asyncio.sleep(5 * 60)
    assert len(old.ticks) > 3
    assert await renamed(stage, new) == {"counter": Effect.UNCHANGED, "count": Effect.REMOVED}
    await stage.verbs.resume(stage.app.loop("counter"))
    async with stage.supervised():
        await asyncio.sleep(61)
    assert new.ticks == [(0, 0)]


async def test_code_that_returns_to_an_old_name_continues_from_the_new_one(stage: Stage) -> None:
    """Also where the first token comes to a processor whose code has the new name."""
    new, back = new_shop(takes=40), old_shop(back=["counter"])
    await counted(stage)
    await renamed(stage, new)
    async with stage.supervised(grace=60):
        await asyncio.sleep(50)
        assert new.ticks == [(2, 2)]  # whose run goes on
        assert await renamed(stage, back) == {"count": Effect.RENAMED}
        await asyncio.sleep(15)
        assert len(new.ticks) == 1
        await asyncio.sleep(90)
    assert new.ticks[1:] == [(3, 3)]


async def test_a_trigger_by_old_code_lets_the_run_under_the_old_name_end(stage: Stage) -> None:
    old, new = await seeded(stage, takes=40)
    async with stage.supervised(grace=60):
        await asyncio.sleep(180)
        assert old.ticks == [(0, 0), (1, 1)]  # whose run goes on
        await renamed(stage, new)
        operator = program(stage, old.app)
        await operator.verbs.trigger(await operator.loops.find("counter"))
        async with stage.supervised(grace=60):
            await asyncio.sleep(10)
            assert new.ticks == []
            await asyncio.sleep(60)
    assert (len(old.ticks), new.ticks[0]) == (2, (2, 2))


async def test_processors_learn_of_a_pause_by_both_names(stage: Stage) -> None:
    await stage.seed(old_shop().app)
    await renamed(stage, new_shop())
    behind = LoopTurns(Listing())  # of a processor that has not read on in the roster
    async with RollCall(stage.broker, stage.app.names, behind):
        await stage.verbs.pause(stage.app.loop("counter"))
    epochs = [behind.known(LoopId(task)) for task in ("count", "counter")]
    assert epochs == [(await stage.listing()).known(LoopId("counter"))] * 2


async def test_processors_silent_at_a_resume_by_an_old_name_are_reported(stage: Stage) -> None:
    _, new = await seeded(stage)
    await stage.verbs.pause(await stage.loops.find("render_pdf", or_whole=True))
    mute = FaultyBroker(stage.server)
    mute.on("publish", where=lambda call: call.message.type == ANSWER).fails(Unconfirmed())
    async with stage.supervised(over=mute):
        await asyncio.sleep(1)
        operator = program(stage, new.app)
        report = await operator.verbs.resume(await operator.loops.find("render", or_whole=True))
    assert (report.did, len(report.silent)) == (Effect.RESUMED, 1)


async def test_a_paused_task_stays_paused_under_its_new_name(stage: Stage) -> None:
    old, new = await seeded(stage)
    await stage.verbs.pause(await stage.loops.find("render_pdf", or_whole=True), "stocktaking")
    await old.send(1)
    await program(stage, new.app).installation.declare_all()
    async with stage.supervised(app=new.app):
        await asyncio.sleep(60)
        assert new.calls == []
    await renamed(stage, new)
    (backlog,) = await stage.survey.backlogs()
    assert (backlog.pause and backlog.pause.reason, backlog.ready) == ("stocktaking", 1)
    async with stage.supervised(), stage.supervised(app=old.app):
        await new.send(2)
        await asyncio.sleep(60)
        assert (old.calls, new.calls) == ([], [])
        await stage.verbs.resume(await stage.loops.find("render", or_whole=True))
        await asyncio.sleep(60)
        assert sorted(old.calls + new.calls) == [1, 2]
        by_old_code = program(stage, old.app)
        await by_old_code.verbs.pause(await by_old_code.loops.find("render_pdf", or_whole=True))
        await stage.seeding.start(loop_named(stage, "render", "a"))
        await new.send(3)
        await asyncio.sleep(11 * 60)
        assert (await stage.survey.pauses()).keys() == {"render"}
        assert await stage.where(LoopId("render", "a")) is Where.PAUSED
        assert not of(LoopReported, stage.events)
        resumed = await stage.verbs.resume(await stage.loops.find("render", or_whole=True))
        assert resumed.did is Effect.RESUMED
        await asyncio.sleep(60)
    assert sorted(old.calls + new.calls) == [1, 1, 2, 3]


async def test_the_queues_of_all_names_share_the_limits_of_the_task(stage: Stage) -> None:
    (old, _), new = await seeded(stage), new_shop(takes=1, concurrency=2)
    await old.send(*range(4))
    await renamed(stage, new)
    await new.send(*range(4, 8))
    async with stage.supervised():
        await asyncio.sleep(4.5)
    assert (sorted(new.calls), new.most) == ([*range(8)], 2)


async def test_the_queues_of_all_names_share_the_rate_of_the_task(stage: Stage) -> None:
    (old, _), new = await seeded(stage), new_shop(rate="6/m")
    await renamed(stage, new)
    async with stage.supervised():
        for n in range(3):
            await asyncio.sleep(60)
            await asyncio.gather(old.send(n), new.send(10 + n))
        await old.send(*range(3, 6))
        await new.send(*range(13, 16))
        for pauses in (1, 2):  # either queue may be the one that waits for the turn
            await asyncio.sleep(14)
            await stage.app.pause("render")
            await asyncio.sleep(1)
            assert len(of(TaskPaused, stage.events)) == pauses
            await stage.app.resume("render")
        await asyncio.sleep(60)
    due = [60, 70, 120, 130, *range(180, 260, 10)]
    assert stage.starts("render") == pytest.approx(due, abs=0.2)
    assert sorted(new.calls) == [*range(6), *range(10, 16)]
    returns = [run.headers.get("x-delivery-count", 0) for run in of(RunStarted, stage.events)]
    assert max(returns) == 1


async def test_a_renamed_subscriber_gets_each_message_once(stage: Stage) -> None:
    def app(name: str, aliases: Sequence[str] = ()) -> Scheduler:
        app = new_app()

        @app.task(name=name, aliases=aliases, subscribe=[FOREIGN])
        async def paid(message: bytes) -> None:
            came.append(message)

        return app

    came = list[bytes]()
    await stage.seed(app("paid"))
    await stage.seed(app("settled", ["paid"]))
    await stage.broker.publish(Message(b"7"), exchange="orders", routing_key="paid")
    async with stage.supervised():
        await asyncio.sleep(1)
    assert came == [b"7"]
