"""What is sent runs at once, in place."""

import asyncio
import threading
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from scheduler import Context, Retry, RetryLater, Scheduler
from scheduler.errors import InvalidArguments, TooLarge, UsageError
from scheduler.middleware import CallNext, Sending, SendNext
from scheduler.testing import eager
from tests.stage import new_app


async def test_a_sent_call_has_run_when_send_returns() -> None:
    app, ran = new_app(), list[Any]()

    @app.task
    async def greet(ctx: Context, name: str, on: date | None = None) -> None:
        ran.append((name, on, ctx.message.headers["trace"], ctx.attempt, ctx.task, ctx.state))

    with eager(app, state="pool"):
        sender = greet.options(headers={"trace": "a"})
        message_id = await sender.send("Ada", on=date(2026, 3, 1))
        assert ran == [("Ada", date(2026, 3, 1), "a", 1, "greet", "pool")]
        assert isinstance(message_id, str)
        await sender.send_later("1d", "Bob")
        await sender.send_at(datetime.now(UTC) + timedelta(days=300), "Cyd")
        await sender.send_many([{"name": "Dan"}, {"name": "Eve"}])
    assert [each[0] for each in ran] == ["Ada", "Bob", "Cyd", "Dan", "Eve"]


async def test_progress_works_without_a_processor(app: Scheduler) -> None:
    @app.task
    async def work(ctx: Context) -> None:
        ctx.progress(0.5, "half")
        with pytest.raises(UsageError, match="a fraction from 0 to 1"):
            ctx.progress(50)

    with eager(app):
        await work.send()
        for asking in (app.running(), app.cancel("work")):
            with pytest.raises(UsageError, match="no processor to ask"):
                await asking


@pytest.mark.parametrize("error", [ConnectionError("down"), RetryLater("1s")])
async def test_a_failure_raises_in_the_sender_without_retry(error: Exception) -> None:
    app, attempts = new_app(), list[int]()

    @app.task(retry=Retry(3, delays=["1s"]))
    async def call(ctx: Context) -> None:
        attempts.append(ctx.attempt)
        raise error

    with eager(app):
        with pytest.raises(type(error)) as raised:
            await call.send()
        with pytest.raises(type(error)):
            await call.send()
    assert raised.value is error
    assert attempts == [1, 1]


async def test_arguments_are_checked_and_travel_as_json() -> None:
    app, got = new_app(), list[object]()

    @app.task
    async def greet(name: str, tags: list[str]) -> None:
        got.append(tags)

    tags = ["a"]
    with eager(app):
        await greet.send("Ada", tags)
        with pytest.raises(InvalidArguments):
            await greet.send(7, tags)  # pyright: ignore[reportArgumentType]
        with pytest.raises(TooLarge):
            await greet.options(headers={"long": "x" * 200_000}).send("Ada", [])
    assert got == [tags]
    assert got[0] is not tags


async def test_middleware_runs_and_its_sends_run_too() -> None:
    app, log = new_app(), list[Any]()

    @app.around
    async def run(ctx: Context, call_next: CallNext) -> None:
        log.append(f"run {ctx.message.headers['by']}")
        await call_next()

    @app.around_sending
    async def send(sending: Sending, send_next: SendNext) -> None:
        sending.headers["by"] = "me"
        await send_next()
        log.append("sent")

    @app.task
    async def greet() -> None:
        log.append("greet")
        await inner.send()

    @app.task
    async def inner() -> None:
        log.append(asyncio.get_running_loop())

    with eager(app):
        await greet.send()
    here = asyncio.get_running_loop()
    assert log == ["run me", "greet", "run me", here, "sent", "sent"]


def test_plain_functions_run_in_threads_and_can_send() -> None:
    app, threads = new_app(), list[int]()

    @app.task
    def shrink() -> None:
        threads.append(threading.get_ident())

    with eager(app):
        shrink.blocking.send()
    assert len(threads) == 1
    assert threads != [threading.get_ident()]


async def test_timeouts_apply_loops_do_not_run_and_the_block_ends_it() -> None:
    app, ran = new_app(), list[str]()

    @app.task(timeout="20ms")
    async def poll() -> None:
        ran.append("here")
        await asyncio.Event().wait()

    with eager(app):
        with pytest.raises(UsageError, match="^Inside eager.. messages run in place"):
            await poll.start("berlin", every="1m")
        with pytest.raises(TimeoutError, match=r"longer than its timeout of 0\.02 s"):
            await poll.send()
    async with app:
        await poll.send()
    assert ran == ["here"]
