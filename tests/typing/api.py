"""What type checkers say of programs: read by pyright and mypy, never run.

A line that is wrong is marked for both, and the mark itself is an error where nothing is wrong. Of
what a call in place returns, mypy says no more than Any where the function takes a `Context`.
"""

# pyright: reportUnnecessaryTypeIgnoreComment=true

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from pydantic import BaseModel

from scheduler import Context, Cron, Every, Retry, Scheduler
from scheduler.control.keyed import Started, Synced
from scheduler.control.reports import Effect, Report
from scheduler.control.verbs import CancelReport
from scheduler.events import Escalated, Event
from scheduler.middleware import CallNext, Sending, SendNext
from scheduler.queues.running import RunningRun
from scheduler.queues.unsent import MessageId

app = Scheduler("typing")


class Order(BaseModel):
    number: int


@app.task()
async def plain(phone: str, text: str = "", *, times: int = 1) -> int:
    return len(phone + text) * times


@app.task
async def bare(ctx: Context, phone: str) -> str:
    return phone


@app.task(retry=Retry(3), rate="5/s", expires="1h", expired="drop")
async def with_context(ctx: Context, phone: str, text: str = "") -> str:
    return f"{ctx.attempt} {phone} {text}"


@app.task(subscribe=[("orders", "order.paid"), ("events", "#", "topic")])
async def paid(ctx: Context, order: Order) -> None: ...


@app.task(ordered=True)
async def nothing() -> None: ...


@app.periodic(every="1h")
async def report(city: str = "Bonn") -> None: ...


async def calls(ctx: Context) -> None:
    # In place, a task is the function that it was.
    assert_type(await plain("1"), int)
    assert_type(await with_context(ctx, "1"), str)  # type: ignore[assert-type]
    assert_type(await paid(ctx, Order(number=1)), None)  # type: ignore[assert-type]
    await plain(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await with_context("1")  # pyright: ignore[reportCallIssue]

    # It is sent with the same arguments, but for its Context.
    assert_type(await plain.send("1", "hello", times=2), MessageId)
    assert_type(await paid.send(Order(number=1)), MessageId)
    assert_type(await nothing.send(), MessageId)
    await bare.send()  # pyright: ignore[reportCallIssue]
    app.task(max_retries=3)  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
    app.periodic(evry="1s")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    Retry(max=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await plain.send()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await plain.send(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await plain.send("1", "hello", 2)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await with_context.send(ctx, "1")  # pyright: ignore[reportArgumentType]
    await paid.send({"number": 1})  # pyright: ignore[reportArgumentType]

    # The delay comes first, and is no argument of the task.
    assert_type(await plain.send_later(timedelta(minutes=10), "1", times=2), MessageId)
    assert_type(await plain.send_at(datetime.now(UTC), "1"), MessageId)
    assert_type(await plain.send_many({"phone": each} for each in "12"), list[MessageId])
    assert_type(await plain.send_many([], delay="10m"), list[MessageId])
    assert_type(await plain.send_many([({"phone": "1"}, "10m")]), list[MessageId])
    await plain.send_many(["1"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    await plain.send_later(10, "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await plain.send_later("10m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    await plain.send_at("tomorrow", "1")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await with_context.send_at(datetime.now(UTC), ctx, "1")  # pyright: ignore[reportArgumentType]

    # Options keep the arguments.
    urgent = plain.options(priority=5, expires="1h", headers={"a": "b"}, deadline="5s", unique="5m")
    assert_type(await urgent.send("1"), MessageId)
    assert_type((await app.publish("orders", "order.paid", b"")).stored, bool)
    plain.options(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    plain.options(urgent=True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    # What a name stands for is any task's.
    assert_type(await plain.once("order-7", at=datetime.now(UTC), args={"phone": "1"}), Effect)
    assert_type(await report.once("bonn", after="10m", unique=timedelta(hours=1)), Effect)
    assert_type(await report.start_many({"bonn": Every("1m")}, spread=True), Started)
    assert_type(await report.once_many((each, "10m") for each in "ab"), Started)
    await report.start_many(["bonn"])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
    assert_type([each.at for each in await plain.scheduled()], list[datetime])
    await plain.once(7)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await plain.once("order-7", at="tomorrow")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await plain.once("order-7", delay="10m")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

    # A loop is not sent.
    await report("Köln")
    report.send()  # type: ignore[attr-defined]  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType]


@app.task(retry=Retry(3))
def blocking_task(ctx: Context, phone: str) -> int:
    return len(phone)


@app.periodic(every="1h")
def blocking_loop(city: str = "Bonn") -> None: ...


def blocks(ctx: Context) -> None:
    assert_type(blocking_task(ctx, "1"), int)  # type: ignore[assert-type]
    assert_type(blocking_loop("Köln"), None)
    assert_type(blocking_task.blocking.send("1"), MessageId)
    assert_type(plain.blocking.send("1", times=2), MessageId)
    assert_type(with_context.blocking.send_later("10m", "1"), MessageId)
    assert_type(plain.options(priority=1).blocking.send_at(datetime.now(UTC), "1"), MessageId)
    with_context.blocking.send()  # pyright: ignore[reportCallIssue]
    plain.blocking.send_later("10m", colour="red")  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]


class Pool(BaseModel):
    size: int = 1


@asynccontextmanager
async def open_pool(app: Scheduler) -> AsyncGenerator[Pool]:
    yield Pool()


async def undecorated(app: Scheduler) -> AsyncGenerator[Pool]:
    yield Pool()


pooled = Scheduler("typing", lifespan=open_pool)
Scheduler("typing", lifespan=undecorated)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


@pooled.task
async def with_state(ctx: Context[Pool], phone: str) -> int:
    await plain(ctx.state.size)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    return assert_type(ctx.state.size, int)


@pooled.periodic(every="1h")
async def loop_with_state(ctx: Context[Pool]) -> None:
    assert_type(ctx.state, Pool)


@pooled.around
async def around_runs(ctx: Context[Pool], call_next: CallNext) -> None:
    assert_type(ctx.state, Pool)
    await call_next()


@pooled.around
async def around_any(ctx: Context, call_next: CallNext) -> Any:
    return await call_next()


@pooled.around_sending
async def around_sendings(sending: Sending, send_next: SendNext) -> None:
    sending.headers["size"] = 1
    assert_type(await send_next(), None)


@pooled.around  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
async def around_nothing(ctx: Context) -> None: ...


@pooled.around  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
def around_plainly(ctx: Context, call_next: CallNext) -> None: ...


@pooled.around_sending  # type: ignore[type-var]  # pyright: ignore[reportArgumentType, reportUntypedFunctionDecorator]
async def around_a_run(ctx: Context, call_next: CallNext) -> None: ...


async def states(ctx: Context, pooled: Context[Pool]) -> None:
    # What names no state may be any.
    assert_type(ctx.state, Any)
    assert_type(await with_state.send("1"), MessageId)
    await with_state(ctx, "1")
    await with_state(pooled, "1")
    await with_context(pooled, "1")
    await with_state.send(pooled, "1")  # type: ignore[arg-type, call-arg]  # pyright: ignore[reportCallIssue]


async def from_a_program() -> None:
    async with app as opened:
        assert_type(opened, Scheduler)


@app.on_escalation
def hook(event: Escalated) -> None: ...


@app.on_escalation
async def coroutine_hook(event: Escalated) -> None: ...


@app.listen
def listener(event: Event) -> None: ...


app.task(expired="bin")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType]
app.task(subscribe=[("orders",)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
app.task(subscribe=[("orders", "#", "headers")])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]


async def runs(ctx: Context) -> None:
    running = await app.running(stack_of="report#7")
    assert_type(running.runs, list[RunningRun])
    assert_type(running.unheard, list[str])
    assert_type(running.runs[0].progress, float | None)
    assert_type(await app.cancel("report#7"), CancelReport)
    assert_type((await app.cancel("report", escalate=True)).ending, str | None)
    assert_type([await app.pause("mail", "no credit"), await app.resume("mail")], list[Report])
    await app.cancel("report", True)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    ctx.progress(0.4, "page 4 of 10")
    ctx.progress("40 %")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]


async def syncs() -> None:
    assert_type(await plain.sync({"a": Every("1m"), "b": (Cron("@daily"), {"times": 2})}), Synced)
    await report.sync({})
    assert_type(await plain.sync({}, dry_run=True), Synced)
    assert_type(await app.sync_file("loops.toml", dry_run=True), Mapping[str, Synced])
    await plain.sync({"a": "1m"})  # type: ignore[dict-item]  # pyright: ignore[reportArgumentType]


@app.on_escalation  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
def hook_of_nothing() -> None: ...
