"""Loops that are started and stopped while processors run, in virtual time."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field, replace
from datetime import timedelta
from itertools import pairwise
from typing import Any, cast

import pytest

from scheduler import Context, Cron, Every, Scheduler
from scheduler.brokers.contract import Depth
from scheduler.control import keyed
from scheduler.control.keyed import KeyedLoop, Started, Synced
from scheduler.control.reports import Effect
from scheduler.errors import InvalidArguments, ScheduleError, UsageError
from scheduler.protocol.tokens import LoopId
from scheduler.queues.concurrency import AT_ONCE
from scheduler.queues.entries import ENTRY_TYPE
from scheduler.queues.roll_call import QUESTION
from scheduler.sending import CallTask
from scheduler.timing.schedules import Once
from tests.faulty import Call, FaultyBroker
from tests.stage import START, Stage, program_of

BONN = LoopId("report", "bonn")
TWO_MINUTES = Every("2m")
BATCH = 40


@dataclass
class Office:
    """An app with a task that reports of cities, and what it did."""

    app: Scheduler
    report: CallTask[Any, Any, Any]
    runs: list[tuple[str, int, str, Any]] = field(default_factory=list[tuple[str, int, str, Any]])


@pytest.fixture
async def office(stage: Stage) -> Office:
    """The app, seeded."""

    @stage.app.task()
    async def report(ctx: Context, city: str = "nowhere") -> None:
        office.runs.append((ctx.key, ctx.seq, city, ctx.carried))
        ctx.carry(f"{city} {ctx.seq}")

    office = Office(stage.app, report)
    await stage.seed()
    return office


@pytest.mark.parametrize(
    ("again", "did", "due_in"),
    [
        ({"schedule": Every("1h")}, Effect.UNCHANGED, 3600),
        ({"every": "2h"}, Effect.RESCHEDULED, 600 + 7200),
        ({"every": "1h", "args": {"city": "Bonn"}}, Effect.RESCHEDULED, 3600),
        ({"cron": "30 12 * * *"}, Effect.RESCHEDULED, 1800),
    ],
)
async def test_starting_an_unchanged_keyed_loop_again_leaves_it_alone(
    stage: Stage, office: Office, again: Any, did: Effect, due_in: float
) -> None:
    await office.report.start("bonn", every="1h")
    began = stage.clock.now()
    await asyncio.sleep(600)
    assert await office.report.start("bonn", **again) is did
    token = await stage.token(BONN)
    assert (token.due_at - began).total_seconds() == pytest.approx(due_in, abs=1)
    (listed,) = await office.report.list()
    assert (listed.schedule, listed.args) == (token.schedule, token.args)


async def test_concurrent_starts_and_stops_share_messages(stage: Stage, office: Office) -> None:
    keys = [f"a.b+{number}@example.com" for number in range(AT_ONCE)]
    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        await asyncio.sleep(1)
        broker.calls.clear()
        did = await asyncio.gather(*(office.report.start(key, every="1m") for key in keys))
        assert did == [Effect.CREATED] * AT_ONCE
        entries = [call for call in broker.calls if call.message.type == ENTRY_TYPE]
        assert {call.operation for call in entries} == {"publish", "read"}
        assert len(entries) < AT_ONCE // 4
        await asyncio.sleep(61)
        broker.calls.clear()
        assert all(await asyncio.gather(*map(office.report.stop, keys)))
        assert [call.message.type for call in broker.calls].count(QUESTION) == 1
        assert await office.report.list() == []
        await asyncio.sleep(120)
    assert sorted(key for key, *_ in office.runs) == sorted(keys)


@pytest.mark.parametrize("kind", ["mapping", "iterator", "async iterator"])
async def test_many_loops_are_started_in_batches_and_continued_after_an_error(
    stage: Stage, office: Office, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keyed, "AT_ONCE", BATCH)
    read, started = list[str](), list[int]()
    many: dict[str, Any] = {
        f"key{n}": (TWO_MINUTES, {"city": f"{n}"}) for n in range(2 * BATCH + 7)
    }

    def pairs() -> Iterator[tuple[str, Any]]:
        for key, value in many.items():
            read.append(key)
            yield key, value

    async def pairs_of_a_database() -> AsyncIterator[tuple[str, Any]]:
        for pair in pairs():
            yield pair

    def given() -> Any:
        return {"mapping": many, "iterator": pairs(), "async iterator": pairs_of_a_database()}[kind]

    broker = FaultyBroker(stage.server)
    async with stage.supervised(over=broker):
        many["key60"] = "soon"  # breaks it off, after one batch
        with pytest.raises(UsageError, match="report.key60 is an Every") as failed:
            await office.report.start_many(given(), progress=started.append)
        (note,) = failed.value.__notes__
        assert note == f"{BATCH} loops were started; call it again to continue."
        assert read == ([] if kind == "mapping" else list(many)[:61])
        many["key60"] = TWO_MINUTES
        broker.calls.clear()
        assert await office.report.start_many(given(), progress=started.append) == Started(
            created=BATCH + 7, unchanged=BATCH
        )
        assert started == [BATCH, BATCH, 2 * BATCH, 2 * BATCH + 7]
        entries = [call for call in broker.calls if call.message.type == ENTRY_TYPE]
        assert len(entries) <= BATCH // 4
        many = {"key7": (TWO_MINUTES, {"city": "Bonn"})}
        assert await office.report.start_many(given()) == Started(rescheduled=1)
        others = [(f"key{n}", (TWO_MINUTES, {"city": f"{n}"})) for n in range(8, BATCH + 8)]
        bonn, rome = [("twice", (TWO_MINUTES, {"city": city})) for city in ("Bonn", "Rome")]
        for did in Started(1, 1, BATCH), Started(0, 2, BATCH):  # the last one counts
            assert await office.report.start_many([bonn, *others, rome]) == did
        assert await office.report.start_many([bonn, rome]) == Started(rescheduled=2)
        await asyncio.sleep(121)
    assert len(office.runs) == 2 * BATCH + 8
    assert {("key7", 0, "Bonn", None), ("twice", 0, "Rome", None)} <= set(office.runs)


async def test_many_loops_of_one_period_are_spread_over_it_and_stay_where_they_are(
    stage: Stage, office: Office, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scheduler.queues.roster.FEW", 150)
    every = Every("1h", mode="fixed_rate", jitter="1s")
    for did in Started(created=200), Started(unchanged=200):
        many = ((f"key{n}", every) for n in range(200))
        assert await office.report.start_many(many, spread=True) == did
        snapshots = await stage.broker.depth(office.app.names.snapshots)
        assert snapshots == Depth(1, 0)  # the next reader has less to read
    loops = await office.report.list()
    offsets = sorted(cast("Every", loop.schedule).offset.total_seconds() for loop in loops)
    assert max(later - one for one, later in pairwise(offsets)) < 3600 / 10
    assert all((offset * 10).is_integer() for offset in offsets)  # some may start together
    assert {replace(cast("Every", loop.schedule), offset="0s") for loop in loops} == {every}
    for schedule in Every("1h"), Every("1h", mode="fixed_rate", offset="1m"), Cron("0 9 * * *"):
        with pytest.raises(ScheduleError, match="report.key: spread= needs Every.*mode="):
            await office.report.start_many([("key", schedule)], spread=True)


async def test_each_of_many_starts_is_in_the_history(stage: Stage, office: Office) -> None:
    hourly = {f"town-{n}": Every("1h") for n in range(600)}
    await office.report.start_many(hourly)
    told = [each async for each in stage.broker.read(office.app.names.journal)]
    assert [each.type for each in told if b"report" in each.body] == ["scheduler.starts"] * 2
    started = [
        each async for each in stage.journal.entries() if each.loop.startswith("report.town-")
    ]
    assert {each.loop for each in started} == {f"report.{key}" for key in hourly}
    assert {(each.what, each.seq) for each in started} == {("seeded", 0)}
    assert all(each.by for each in started)
    assert {each.due_at for each in started} == {START + timedelta(hours=1)}


async def test_a_loop_begins_at_zero_after_a_stop(stage: Stage, office: Office) -> None:
    async with stage.supervised():
        await office.report.start("bonn", every="1m")
        await asyncio.sleep(200)
        await office.report.stop("bonn")
        await asyncio.sleep(300)
        assert (len(office.runs), stage.repairs(), await stage.survey.status()) == (3, [], [])
        assert (await stage.history("report.bonn"))[-2:] == ["succeeded", "removed"]
        assert await office.report.start("bonn", every="1m") is Effect.CREATED
        await asyncio.sleep(5)
        begun = await stage.token(BONN)
        assert (begun.seq, begun.carry) == (0, None)
        await stage.lose(BONN)
        await asyncio.sleep(60 + 5 + 15)
        assert stage.repairs() == [("report.bonn", "lost")]
        again = await stage.token(BONN)
        assert (again.seq, again.carry) == (1, "nowhere 0")


WRONG_KEYS = ["", "a b", ".a", "a.", "a..b", "@a", "ü", "a\n", "a" * 101]
ABOUT_KEYS = "A key has 1 to 100 letters"
MINUTELY: dict[str, Any] = {"every": "1m"}


@pytest.mark.parametrize(
    ("key", "options", "error", "told"),
    [
        *[(key, MINUTELY, UsageError, ABOUT_KEYS) for key in WRONG_KEYS],
        ("bonn", {}, ScheduleError, "The schedule of report.bonn: "),
        ("bonn", {**MINUTELY, "cron": "* * * * *"}, ScheduleError, "The schedule of report.bonn: "),
        ("bonn", {**MINUTELY, "args": {"city": 7}}, InvalidArguments, "city"),
    ],
)
async def test_a_wrong_key_schedule_or_argument_is_refused_and_nothing_is_started(
    office: Office, key: str, options: Any, error: type[UsageError], told: str
) -> None:
    with pytest.raises(error, match=told):
        await office.report.start(key, **options)
    if key in WRONG_KEYS:
        with pytest.raises(UsageError, match=ABOUT_KEYS):
            await office.report.stop(key)
    assert await office.report.list() == []


async def test_a_sync_starts_reschedules_and_stops_loops(stage: Stage, office: Office) -> None:
    minute, sync = Every("1m"), office.report.sync
    first = {"a": minute, "b": (minute, {"city": "Bonn"}), "c": minute}
    assert await sync(first) == Synced(["a", "b", "c"], [], [], [])
    assert await sync(first) == Synced([], [], [], ["a", "b", "c"])
    second = {"d": Cron("0 9 * * *"), "b": (minute, {"city": "Rome"}), "a": minute}
    assert await sync(second) == Synced(["d"], ["b"], ["c"], ["a"])
    a, b = KeyedLoop("a", minute, {}), KeyedLoop("b", minute, {"city": "Rome"})
    assert await office.report.list() == [a, b, KeyedLoop("d", Cron("0 9 * * *"), {})]
    assert [await office.report.stop(key) for key in ("d", "d", "never")] == [True, False, False]
    assert await office.report.list() == [a, b]
    async with stage.processor():
        await asyncio.sleep(61)
    runs = sorted((key, city) for key, _, city, _ in office.runs)
    assert runs == [("a", "nowhere"), ("b", "Rome")]


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (("b", "1m"), r"report\.b is an Every or a Cron, or a pair .* got: '1m'"),
        (("b", (Every("1m"), 5)), r"report\.b is an Every or a Cron"),
        (("b c", Every("1m")), ABOUT_KEYS),
        (("b", (Every("1m"), {"nope": 1})), "nope"),
        ("b", "Each loop must be a pair of a key and a schedule, got: 'b'"),
        (("b", Every("1m"), None), "Each loop must be a pair"),
    ],
)
async def test_nothing_is_started_if_a_loop_is_wrong(
    office: Office, wrong: Any, words: str
) -> None:
    await office.report.start("kept", every="1m")
    with pytest.raises(UsageError, match=words):
        await office.report.start_many([("a", Every("1m")), wrong])
    if len(wrong) == 2:
        with pytest.raises(UsageError, match=words):
            await office.report.sync({"a": Every("1m"), **dict([wrong])})
    assert [loop.key for loop in await office.report.list()] == ["kept"]


async def test_a_seed_keeps_concurrent_changes(stage: Stage, office: Office) -> None:
    await office.report.sync({"moved": Every("1m"), "stopped": Every("1m")})
    reads = 0

    async def change(call: Call) -> None:
        nonlocal reads
        reads += 1
        if reads == 3:  # it has chosen the loops, and reads once more to decide
            await office.report.start("moved", every="5m")
            await office.report.stop("stopped")

    async with FaultyBroker(stage.server) as broker:
        roster = office.app.names.roster
        broker.on("publish", where=lambda call: call.routing_key == roster).first(change)
        reports = await program_of(office.app, broker, stage.clock).seeding.seed()
    assert {str(report.loop): report.did for report in reports} == {
        "report.moved": Effect.UNCHANGED
    }
    assert await office.report.list() == [KeyedLoop("moved", Every("5m"), {})]


async def test_a_sync_keeps_concurrent_changes(stage: Stage, office: Office) -> None:
    await office.report.sync(dict.fromkeys("abc", TWO_MINUTES))
    a, b = [await stage.loops.find(f"report.{key}") for key in "ab"]

    async def change(_: Call) -> None:
        await stage.seeding.start(replace(a, schedule=Once(START + timedelta(hours=1))))
        await stage.removal.remove(b)

    async with FaultyBroker(stage.server) as broker:
        broker.on("publish", where=lambda call: call.message.type == ENTRY_TYPE, times=1).first(
            change
        )
        with office.app.lending(broker, stage.clock):
            assert await office.report.sync({}) == Synced([], [], ["c"], [])
    assert [each.name for each in await office.report.scheduled()] == ["a"]
