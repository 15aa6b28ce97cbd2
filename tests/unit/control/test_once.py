"""Named one-offs: one run of each name, from wherever and however often it is asked for."""

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial
from typing import Any

import pytest

from scheduler import Context, Retry, Scheduler, StopLoop
from scheduler.control.keyed import Started
from scheduler.control.reports import Effect
from scheduler.errors import BrokerUnavailable, NotSent, ScheduleError, UnknownLoop, UsageError
from scheduler.protocol.tokens import LoopId, claims_of
from scheduler.queues.entries import ENTRY_TYPE
from scheduler.queues.roster import REMEMBERED
from scheduler.sending import CallTask
from tests.faulty import Call, FaultyBroker, Operation
from tests.stage import START, Stage

SEVEN = LoopId("remind", "order-7")
MINUTE, SECOND = timedelta(minutes=1), timedelta(seconds=1)


@dataclass
class Shop:
    """An app that reminds of orders, and what it did."""

    app: Scheduler
    remind: CallTask[Any, Any, Any]
    takes: float = 0
    raises: list[Exception] = field(default_factory=list[Exception])
    runs: list[tuple[str, int, int, int]] = field(default_factory=list[tuple[str, int, int, int]])


@pytest.fixture
async def shop(stage: Stage) -> Shop:
    """The app, seeded."""

    @stage.app.task(retry=Retry(1, delays=["10s"], jitter=0))
    async def remind(ctx: Context, order: int = 0) -> None:
        shop.runs.append((ctx.key, order, ctx.seq, ctx.attempt))
        await asyncio.sleep(shop.takes)
        if shop.raises:
            raise shop.raises.pop(0)

    shop = Shop(stage.app, remind)
    await stage.seed()
    return shop


async def is_over(stage: Stage) -> bool:
    """Whether it was removed from the roster, as its run has ended."""
    listed = (await stage.listing())[SEVEN]
    return (listed.is_gone, listed.reason) == (True, "done")


@pytest.mark.parametrize("pause", [0, 89.99, 91])
async def test_a_one_off_is_the_same_when_repeated(stage: Stage, shop: Shop, pause: float) -> None:
    wanted: Any = {"at": START + 90 * SECOND, "args": {"order": 7}}
    async with stage.processor():
        assert await shop.remind.once("order-7", **wanted) is Effect.CREATED
        (waiting,) = await shop.remind.scheduled()
        assert (waiting.name, waiting.at, waiting.args) == ("order-7", *wanted.values())
        await asyncio.sleep(pause)
        assert await shop.remind.once("order-7", **wanted) is Effect.UNCHANGED
        await asyncio.sleep(100)
        assert await shop.remind.scheduled() == []
        assert not await shop.remind.stop("order-7")
        assert await shop.remind.once("order-7", **wanted) is Effect.UNCHANGED
        assert await is_over(stage)
        assert (shop.runs, stage.starts("remind.order-7")) == ([("order-7", 7, 0, 1)], [90])
        assert await stage.history("remind.order-7") == ["seeded", "succeeded"]
        await asyncio.sleep(REMEMBERED.total_seconds())
        assert await shop.remind.once("order-7", **wanted) is Effect.CREATED


@pytest.mark.parametrize(
    ("change", "runs", "began"),
    [
        ({"at": START + 120 * SECOND, "args": {"order": 7}}, [7], [120]),
        ({"at": START + 90 * SECOND, "args": {"order": 8}}, [8], [90]),
        ({"after": "20s", "args": {"order": 9}}, [9], [30]),
    ],
)
async def test_a_waiting_one_off_is_moved(
    stage: Stage, shop: Shop, change: dict[str, Any], runs: list[int], began: list[float]
) -> None:
    async with stage.supervised():
        await shop.remind.once("order-7", at=START + 90 * SECOND, args={"order": 7})
        await asyncio.sleep(10)
        assert await shop.remind.once("order-7", **change) is Effect.RESCHEDULED
        await asyncio.sleep(200)
    assert [run[1] for run in shop.runs] == runs
    assert stage.starts("remind.order-7") == pytest.approx(began, abs=0.5)


@pytest.mark.parametrize(
    ("raised", "runs", "parked"),
    [
        ([ValueError()], [1, 2], 0),
        ([ValueError(), ValueError()], [1, 2], 1),
        ([StopLoop("no more")], [1], 0),
    ],
)
async def test_a_one_off_is_over_however_its_run_ends(
    stage: Stage, shop: Shop, raised: list[Exception], runs: list[int], parked: int
) -> None:
    shop.raises += raised
    async with stage.supervised():
        await shop.remind.once("order-7")
        await asyncio.sleep(30)
        assert await is_over(stage)
    assert [run[3] for run in shop.runs] == runs
    assert len(await stage.parked()) == parked


def is_a_token(call: Call) -> bool:
    return claims_of(call.message).get("task") == "remind"


def says_gone(call: Call) -> bool:
    return call.message.type == ENTRY_TYPE and b'"gone"' in call.message.body


async def test_verbs_on_a_one_off_that_has_run_are_refused(stage: Stage, shop: Shop) -> None:
    async with stage.supervised():
        await shop.remind.once("order-7", after="1s")
        loop = await stage.loops.find("remind.order-7")
        await asyncio.sleep(3)
        for verb in stage.verbs.pause, stage.verbs.resume, stage.verbs.trigger:
            with pytest.raises(UnknownLoop, match=r"order-7 has already run and cannot be changed"):
                await verb(loop)
        assert await is_over(stage)


MOVED: dict[str, Any] = {"at": START + 60 * SECOND, "args": {"order": 8}}


@pytest.mark.parametrize("verb", ["die", "pause", "pause shortly", "trigger", "put again"])
@pytest.mark.parametrize(
    ("becomes", "orders"), [("itself", [7]), ("moved", [7, 8]), ("recurring", [7, 0, 0])]
)
async def test_a_one_off_moved_during_its_run_runs_again(
    stage: Stage, shop: Shop, becomes: str, orders: list[int], verb: str
) -> None:
    shop.takes = 30
    changes = {
        "moved": lambda: shop.remind.once("order-7", **MOVED),
        "recurring": lambda: shop.remind.start("order-7", every="1m"),
    }
    async with stage.supervised():
        await shop.remind.once("order-7", args={"order": 7})
        await asyncio.sleep(5)
        if change := changes.get(becomes):
            if verb == "die":  # between the entry and the token
                async with FaultyBroker(stage.server) as faulty:
                    faulty.on("publish", where=is_a_token).fails(BrokerUnavailable("It died."))
                    with shop.app.lending(faulty, stage.clock), pytest.raises(BrokerUnavailable):
                        await change()
            else:
                assert await change() is Effect.RESCHEDULED
            assert await change() is Effect.UNCHANGED
        loop = await stage.loops.find("remind.order-7")
        match verb:
            case "pause" | "pause shortly":
                assert (await stage.verbs.pause(loop)).did is Effect.PAUSED
                await asyncio.sleep(60 if verb == "pause" else 1)
                if not await is_over(stage):
                    assert (await stage.verbs.resume(loop)).did is Effect.RESUMED
            case "trigger":
                await stage.verbs.trigger(loop)
            case "put again":
                await stage.program.beginnings.repair([loop], "lost")
            case _:
                pass
        await asyncio.sleep(300)
        assert await is_over(stage) is (becomes != "recurring")
        if becomes == "moved":
            assert await shop.remind.once("order-7", **MOVED) is Effect.UNCHANGED
    assert [run[1] for run in shop.runs[:3]] == orders


@pytest.mark.parametrize("paused", [False, True])
async def test_an_end_missed_by_a_killed_processor_is_entered(
    stage: Stage, shop: Shop, paused: bool
) -> None:
    shop.takes = 30
    doomed = FaultyBroker(stage.server)
    doomed.on("publish", where=says_gone).fails(BrokerUnavailable("It died."))
    async with stage.supervised(over=doomed, grace=0.1):
        await shop.remind.once("order-7")
        await asyncio.sleep(29)
        if paused:
            await stage.verbs.pause(await stage.loops.find("remind.order-7"))
        await asyncio.sleep(5)
        assert not await is_over(stage)
    async with stage.supervised():
        await asyncio.sleep(60)
        assert await is_over(stage)
        assert await shop.remind.scheduled() == []
    assert len(shop.runs) == 1


async def test_a_one_off_whose_token_was_lost_runs(stage: Stage, shop: Shop) -> None:
    await shop.remind.once("order-7", after="10s")
    await stage.lose(SEVEN)
    async with stage.supervised():
        await asyncio.sleep(60)
        assert await is_over(stage)
    assert [run[0] for run in shop.runs] == ["order-7"]


async def test_a_seed_does_not_change_one_offs(stage: Stage, shop: Shop) -> None:
    async with stage.processor():
        await shop.remind.once("done")
        await shop.remind.once("waits", after="1h")
        await asyncio.sleep(5)
        dids = {report.did for report in await stage.seeding.seed()}
        await asyncio.sleep(5)
    assert dids == {Effect.UNCHANGED}
    assert [run[0] for run in shop.runs] == ["done"]


async def test_keyed_loops_and_one_offs_are_listed_and_stopped_apart(shop: Shop) -> None:
    await shop.remind.start("daily", every="1d")
    await shop.remind.once("order-7", after="1h")
    assert [loop.key for loop in await shop.remind.list()] == ["daily"]
    assert (await shop.remind.sync({})).stopped == ["daily"]
    assert [each.name for each in await shop.remind.scheduled()] == ["order-7"]
    assert [await shop.remind.stop("order-7") for _ in range(2)] == [True, False]
    assert await shop.remind.scheduled() == []
    assert await shop.remind.once("order-7", after="1h") is Effect.CREATED


async def test_a_unique_one_off_does_not_replace_one_of_its_name(stage: Stage, shop: Shop) -> None:
    shop.takes = 5
    async with stage.supervised():
        for pause, did, order in (
            (0, Effect.CREATED, 1),
            (0.5, Effect.UNCHANGED, 2),  # it waits
            (2, Effect.UNCHANGED, 3),  # it runs
            (10, Effect.UNCHANGED, 4),  # it has run, and its name is kept
            (60, Effect.CREATED, 5),
        ):
            await asyncio.sleep(pause)
            args = {"order": order}
            assert await shop.remind.once("order-7", unique="30s", after="1s", args=args) is did
        at = stage.clock.now() + MINUTE
        for name, unique in ("order-8", "30s"), ("order-9", "0s"):
            for order, did in (6, Effect.CREATED), (7, Effect.UNCHANGED):
                args = {"order": order}
                assert await shop.remind.once(name, unique=unique, at=at, args=args) is did
        await asyncio.sleep(100)
        assert await is_over(stage)
    assert [run[1] for run in shop.runs] == [1, 5, 6, 6]


async def test_a_unique_call_is_not_repeated(stage: Stage, shop: Shop) -> None:
    unique = shop.remind.options(unique="1m")
    async with stage.supervised():
        names = [await unique.send(order) for order in (1, 1, 2)]
        with pytest.raises(UsageError, match="does not support unique="):
            await unique.send_many([{"order": 1}])
        await asyncio.sleep(10)
        names.append(await unique.send(order=1))
        await asyncio.sleep(120)
        names.append(await unique.send_later("5s", 1))
        names.append(await unique.send_at(stage.clock.now() + MINUTE, 1))
        await asyncio.sleep(100)
    assert len(set(names)) == 2
    assert all(name.startswith("remind.u-") for name in names)
    assert [run[1] for run in shop.runs] == [1, 2, 1]


async def test_unique_is_refused_with_options_of_a_message(shop: Shop) -> None:
    for name, value in ("priority", 1), ("headers", {"a": 1}), ("message_id", "m"):
        options: Any = {name: value}
        with pytest.raises(UsageError, match=f"combined with {name}="):
            shop.remind.options(unique="1m", **options)
        with pytest.raises(UsageError, match=f"combined with {name}="):
            shop.remind.options(unique="1m").options(**options)
    with pytest.raises(ScheduleError, match="unique: expected a number and a unit"):
        shop.remind.options(unique="soon")


@pytest.mark.parametrize(
    ("name", "given", "error", "message"),
    [
        ("a b", {}, UsageError, "A key has 1 to 100"),
        ("order-7", {"at": START, "after": "1s"}, UsageError, "got both at= and after="),
        (
            "order-7",
            {"at": datetime(2026, 6, 1)},  # noqa: DTZ001 - that is the point
            ScheduleError,
            r"The moment of remind\.order-7: expected an aware moment",
        ),
        (
            "order-7",
            {"at": "10m"},
            ScheduleError,
            r"datetime, got: '10m'\. For a delay, use after=",
        ),
        ("order-7", {"after": "soon"}, ScheduleError, "soon"),
        ("order-7", {"unique": "-1s"}, ScheduleError, "-1s"),
        ("order-7", {"args": {"oder": 7}}, UsageError, "oder"),
    ],
)
async def test_a_wrong_name_moment_or_argument_is_refused(
    shop: Shop, name: str, given: dict[str, Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        await shop.remind.once(name, **given)
    assert await shop.remind.scheduled() == []


async def test_an_operation_that_is_not_confirmed_or_answered_is_given_up_after_30_s(
    stage: Stage, shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    not_confirmed = r"remind\.order-7 was not confirmed within 30 s"
    alarm = "for 30 s: a memory or disk alarm blocks"
    operations: list[tuple[Operation, Callable[[], Awaitable[object]], type[Exception], str]] = [
        ("publish", partial(shop.remind.once, "order-7"), NotSent, not_confirmed),
        ("read", shop.remind.scheduled, BrokerUnavailable, alarm),
        ("read", partial(shop.app.pause, "remind", "a test"), BrokerUnavailable, alarm),
    ]
    for hangs, operation, error, told in operations:
        monkeypatch.setattr(FaultyBroker, "is_blocked", hangs == "read")
        async with FaultyBroker(stage.server) as broker:
            broker.on(hangs).first(lambda call: asyncio.sleep(3600))
            began = stage.clock.now()
            with shop.app.lending(broker, stage.clock), pytest.raises(error, match=told):
                await operation()
            assert stage.clock.now() - began <= 33 * SECOND


async def test_the_time_of_a_start_begins_once_the_roster_is_read(stage: Stage, shop: Shop) -> None:
    async with FaultyBroker(stage.server) as slow:
        slow.on("read", ".roster", times=1).first(lambda call: asyncio.sleep(60))
        with shop.app.lending(slow, stage.clock):
            assert await shop.remind.once_many({"order-7": "1h"}) == Started(created=1)


async def test_many_one_offs_are_started_once(stage: Stage, shop: Shop) -> None:
    many = {f"order-{n}": (START + timedelta(seconds=60 + n % 3), {"order": n}) for n in range(30)}
    async with stage.processor():
        assert await shop.remind.once_many(many) == Started(created=30)
        assert await shop.remind.once_many(many.items()) == Started(unchanged=30)
        moved = [("order-7", "2m"), ("order-8", many["order-8"])]
        assert await shop.remind.once_many(moved) == Started(rescheduled=1, unchanged=1)
        assert await shop.remind.once_many(moved, unique="1m") == Started(unchanged=2)
        again = await shop.remind.once_many([("order-7", "3m")], unique="0s")
        assert again == Started(unchanged=1)
        await asyncio.sleep(180)
        assert await shop.remind.once_many([("order-8", many["order-8"])]) == Started(unchanged=1)
    assert sorted(name for name, *_ in shop.runs) == sorted(many)
    assert sorted(stage.starts())[:-1] == [60.0] * 10 + [61.0] * 9 + [62.0] * 10
    wrong: Any
    for wrong, told in (
        (("order-1", "soon"), "The moment of remind.order-1"),
        (("order-1", ("1m", 7)), "The arguments of remind.order-1 must be a mapping"),
    ):
        with pytest.raises(UsageError, match=told):
            await shop.remind.once_many([wrong])
