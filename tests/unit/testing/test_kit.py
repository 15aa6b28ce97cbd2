"""What a test of an app sees and does with a kit."""

import asyncio
import threading
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta

import pytest

from scheduler import Reject, Retry, Scheduler
from scheduler.errors import LifespanError, NotSent, UnknownLoop, Unroutable, UsageError
from scheduler.protocol.tokens import Ending
from scheduler.testing import Kit
from tests.stage import new_app

pytestmark = pytest.mark.usefixtures("clock")
START = datetime(2026, 3, 1, 12, tzinfo=UTC)
STAGES = Retry(2, delays=["10s", "1m"], jitter=0)


def after(seconds: float) -> datetime:
    return START + timedelta(seconds=seconds)


async def nothing() -> None: ...


async def forget(sending: object, send_next: object) -> None: ...


async def test_due_runs_run_and_later_ones_wait() -> None:
    app, greeted = new_app(), list[str]()

    @app.task
    async def greet(name: str) -> None:
        greeted.append(name)

    async with Kit(app, start=START) as kit:
        await greet.send_later("10m", "later")
        await greet.send("now")
        assert greeted == []
        await kit.run_until_idle()
        assert greeted == ["now"]
        assert kit.now == START
        await kit.advance("9m59s")
        assert greeted == ["now"]
        await kit.advance(timedelta(seconds=1))
        assert greeted == ["now", "later"]
        assert kit.now == after(600)


async def test_advancing_to_a_moment_runs_all_loops_due_then() -> None:
    app = new_app()
    app.periodic(cron="0 9 * * *", tz="UTC", name="report")(nothing)
    app.periodic(every="7h", mode="fixed_rate", name="poll")(nothing)
    async with Kit(app, start=START) as kit:
        for day in range(2, 30):
            await kit.advance_to(datetime(2026, 3, day, 9, tzinfo=UTC))
            assert kit.assert_ran("report", times=day - 1)[-1].started_at == kit.now
        days = [run.scheduled_at.day for run in kit.runs.of("report")]
        assert days == list(range(2, 30))
        assert {run.scheduled_at - run.started_at for run in kit.runs} == {timedelta(0)}


async def test_time_does_not_go_back_and_needs_aware_moments() -> None:
    naive = START.replace(tzinfo=None)
    async with Kit(new_app(), start=START) as kit:
        with pytest.raises(UsageError, match=r"^2026-03-01T11:59:00\+00:00 has passed: it is 20"):
            await kit.advance_to(after(-60))
        with pytest.raises(UsageError, match="^expected an aware moment, got: 2026-0"):
            await kit.advance_to(naive)
    with pytest.raises(UsageError, match="^expected an aware moment, got: 2026-03-"):
        Kit(new_app(), start=naive)


async def test_retries_come_when_time_has_passed_and_the_last_failure_is_parked() -> None:
    app = new_app()

    @app.task(retry=STAGES)
    async def call(number: int) -> None:
        raise ConnectionError(f"{number} is busy")

    async with Kit(app, start=START) as kit:
        await call.send(7)
        await kit.run_until_idle()
        assert [(run.attempt, run.ending) for run in kit.runs] == [(1, Ending.RETRIED)]
        assert kit.parked == []
        await kit.advance("70s")
        assert [(run.attempt, run.started_at, run.ending) for run in kit.runs] == [
            (1, START, Ending.RETRIED),
            (2, after(10), Ending.RETRIED),
            (3, after(70), Ending.ESCALATED),
        ]
        assert repr(kit.runs[-1]) == (
            "Ran(call, attempt 3 at 2026-03-01 12:01:10.000 escalated: "
            "ConnectionError('7 is busy'))"
        )
        (parked,) = kit.parked
        assert (parked.task, parked.reason, parked.attempts) == ("call", "exhausted", 3)
        assert parked.arguments == {"number": 7}
        assert repr(parked) == "Parked(call(number=7), exhausted: ConnectionError: 7 is busy)"


async def test_parked_messages_of_any_kind_are_listed_in_order(app: Scheduler) -> None:
    @app.periodic(every="1h", args={"city": "Bonn"}, retry=Retry(0))
    async def poll(city: str) -> None:
        raise OSError("down")

    @app.task(subscribe=[("orders", "order.paid")])
    async def ship(order: dict[str, int]) -> None:
        raise Reject("no such order")

    async with Kit(app, start=START) as kit:
        await kit.advance("1h")
        await kit.publish("orders", "order.paid", {"number": 1})
        await kit.run_until_idle()
        await kit.publish("orders", "order.paid", b"{")
        await kit.run_until_idle()
        assert [(each.task, each.reason, each.arguments) for each in kit.parked] == [
            ("poll", "exhausted", {"city": "Bonn"}),
            ("ship", "rejected", None),
            ("ship", "invalid-arguments", None),
        ]
        await kit.publish(app.names.processor, "task.gone", {})
        await kit.advance("1h")  # it is tried again for a while, as its queue may be on its way
        assert "unknown-task" in [each.reason for each in kit.parked]
        with pytest.raises(Unroutable):
            await kit.publish("orders", "order.lost", {})


async def test_runs_due_at_the_very_moment_are_not_missed() -> None:
    app = new_app(longest_lead=timedelta(0))
    app.periodic(cron="* * * * * *", tz="UTC", name="beat")(nothing)
    async with Kit(app, start=START.replace(microsecond=123_457)) as kit:
        for second in range(1, 20):
            await kit.advance_to(after(second))
            kit.assert_ran("beat", times=second)


async def test_sent_calls_are_listed_with_arguments_and_due_time(app: Scheduler) -> None:
    @app.task
    async def greet(name: str, times: int = 1) -> None: ...

    app.task(name="other")(nothing)

    async with Kit(app, start=START) as kit:
        await greet.options(headers={"trace": "a"}).send_later("1m", "Ada", times=2)
        message_id = await greet.send("Bob")
        assert [(each.arguments, each.due_at) for each in kit.sent] == [
            ({"name": "Ada", "times": 2}, after(60)),
            ({"name": "Bob"}, START),
        ]
        assert kit.sent[0].headers == {"trace": "a"}
        assert kit.sent[1].message_id == message_id
        assert repr(kit.sent[0]) == "Sent(greet(name='Ada', times=2), due 2026-03-01 12:01:00.000)"
        assert kit.sent.of(greet) == kit.sent.of("greet") == kit.sent
        assert kit.sent.of("other") == []
        app.around_sending(forget)
        with pytest.raises(NotSent):
            await greet.send("Cyd")
        assert len(kit.sent) == 2


async def test_records_are_filtered_by_task_or_loop_and_misspelt_names_refused() -> None:
    app = new_app()
    poll = app.task(name="poll")(nothing)
    async with Kit(app, start=START) as kit:
        await poll.start("berlin", every="1m")
        await poll.start("paris", every="30s")
        await poll.send()
        await kit.advance("1m")
        assert [run.loop for run in kit.runs.of("poll.berlin")] == ["poll.berlin"]
        assert [run.key for run in kit.runs.of("poll.paris")] == ["paris", "paris"]
        assert len(kit.runs.of(poll)) == 4
        assert kit.runs.of("poll.rome") == []
        with pytest.raises(UnknownLoop, match="^There is no task or loop 'pol'; did you mean"):
            kit.runs.of("pol")


async def test_the_clock_stops_while_threads_run() -> None:
    app, may_end = new_app(), threading.Event()

    @app.task(timeout="1s")
    def shrink() -> None:
        assert may_end.wait(30)

    async with Kit(app, start=START) as kit:
        await shrink.send()
        later = threading.Timer(0.1, may_end.set)
        later.start()
        await kit.run_until_idle()
        later.join()
        assert [run.ending for run in kit.runs] == [Ending.SUCCEEDED]
        assert kit.now == START


@pytest.mark.parametrize("ordered", [False, True])
async def test_calls_that_wait_for_their_rate_are_due(app: Scheduler, ordered: bool) -> None:
    call = app.task(name="call", rate="2/s", ordered=ordered)(nothing)
    async with Kit(app, start=START) as kit:
        await call.send_many(dict[str, str]() for _ in range(5))
        await kit.run_until_idle()
        kit.assert_ran(call, times=5)
        assert after(1.5) <= kit.now <= after(2.5)
        await app.pause("call")
        await call.send()
        async with asyncio.timeout(60):
            await kit.run_until_idle()
        kit.assert_ran(call, times=5)
        await app.resume("call")
        await kit.run_until_idle()
        kit.assert_ran(call, times=6)


async def test_an_ordered_retry_is_not_due_though_its_task_has_a_rate(app: Scheduler) -> None:
    @app.task(rate="2/s", ordered=True, retry=STAGES)
    async def call(number: int) -> None:
        if not number:
            raise ConnectionError

    async with Kit(app, start=START) as kit:
        for number in range(3):
            await call.send(number)
        await kit.run_until_idle()
        assert kit.now < after(9)
        kit.assert_ran(call, times=1)
        await kit.advance("10s")
        kit.assert_ran(call, times=2)
        await kit.advance("60s")
        kit.assert_ran(call, times=5)


async def test_only_chosen_tasks_run_and_calls_to_other_tasks_wait(app: Scheduler) -> None:
    one, other = app.task(name="one")(nothing), app.task(name="other")(nothing)
    async with Kit(app, tasks=[one], start=START) as kit:
        await one.send()
        await other.send()
        await kit.advance("1d")
        assert [run.task for run in kit.runs] == ["one"]
        assert [each.task for each in kit.sent] == ["one", "other"]
    with pytest.raises(UnknownLoop):
        Kit(app, tasks=["two"])


async def test_a_wrong_count_of_runs_lists_the_actual_runs(app: Scheduler) -> None:
    greet = app.task(name="greet")(nothing)

    @app.task
    async def fail() -> None:
        raise Reject("no")

    async with Kit(app, start=START) as kit:
        with pytest.raises(AssertionError) as none:
            kit.assert_ran(greet)
        assert str(none.value) == (
            "Expected greet to run at least once; it ran 0 times until 2026-03-01 12:00:00.000. "
            "Runs:\n    nothing"
        )
        await greet.send()
        await fail.send()
        await kit.run_until_idle()
        assert kit.assert_ran("greet") == kit.assert_ran(greet, times=1) == kit.runs.of(greet)
        with pytest.raises(AssertionError) as once:
            kit.assert_ran("greet", times=2)
        assert str(once.value).splitlines()[1:] == [
            "    greet at 2026-03-01 12:00:00.000 succeeded",
            "    fail at 2026-03-01 12:00:00.000 escalated: Reject('no')",
        ]


async def test_skipped_runs_do_not_count_as_runs(app: Scheduler) -> None:
    @app.task(concurrency=1, expires="10s")
    async def shrink() -> None:
        await asyncio.sleep(11)

    async with Kit(app, start=START) as kit:
        await shrink.send_many([{}, {}])
        await kit.run_until_idle()
        kit.assert_ran(shrink, times=1)
        assert [run.skipped for run in kit.runs] == [None, "it expired 1.0 s ago"]
        assert [each.reason for each in kit.parked] == ["expired"]


async def test_an_error_at_the_start_of_the_processor_is_raised() -> None:
    @asynccontextmanager
    async def pool(app: Scheduler) -> AsyncGenerator[None]:
        raise OSError("no database")
        yield

    begun = False
    with pytest.raises(LifespanError, match="no database"):
        async with Kit(new_app(lifespan=pool)):
            begun = True
    assert not begun


async def test_an_app_is_unchanged_after_its_kit(app: Scheduler) -> None:
    greet = app.task(name="greet")(nothing)
    for _ in range(2):
        async with Kit(app, start=START) as kit:
            await greet.send_later("1m")
            assert kit.now == START
            await kit.advance("1h")
        assert len(kit.sent) == 1
        assert not app.outbox.is_open
        assert not app.events.listeners_of(object)  # pyright: ignore[reportArgumentType]
        assert asyncio.all_tasks() == {asyncio.current_task()}


def test_the_kit_needs_virtual_time() -> None:
    async def open_kit() -> None:
        async with Kit(new_app()):
            raise AssertionError("it has begun")

    with pytest.raises(UsageError, match="^A Kit needs virtual time, and this event loop is a r"):
        asyncio.run(open_kit())
