"""Cases that were wrong once."""

import asyncio
import concurrent.futures
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, cast

import pytest
from pydantic import AfterValidator, BaseModel, Field

from scheduler import (
    AppNotFound,
    Context,
    Cron,
    Every,
    RegistrationError,
    Retry,
    Scheduler,
    Settings,
    StopLoop,
    Undecodable,
)
from scheduler.cli.loading import load_app
from scheduler.errors import LifespanError
from scheduler.events import MessageParked, RunFinished, RunStarted
from scheduler.middleware import CallNext
from scheduler.processor.settlement import Finished, Returned, settle
from scheduler.protocol.messages import summary_of
from scheduler.protocol.tokens import LoopId, Token, decode, encode
from scheduler.tasks.retries import Policy
from scheduler.testing import simulate
from tests.stage import Stage

NINE = datetime(2026, 6, 1, 9, tzinfo=UTC)
MINUTE, HOUR = timedelta(minutes=1), timedelta(hours=1)
DAILY = Cron("0 9 * * *")


def token(schedule: Every | Cron = DAILY, **fields: Any) -> Token:
    timing: dict[str, Any] = {"scheduled_at": NINE, "due_at": NINE}
    return Token(LoopId("report"), schedule, **timing | fields)


def new_app() -> Scheduler:
    return Scheduler("shop", Settings())


@pytest.mark.parametrize(
    ("schedule", "missed", "following"),
    [
        (Every("1h", mode="fixed_rate"), 1, NINE + 2 * HOUR),
        (Every("1h", mode="fixed_rate", catch_up="all"), 0, NINE + HOUR),
    ],
)
def test_a_triggered_run_that_outlasts_the_coming_tick_does_not_swallow_it(
    schedule: Every, missed: int, following: datetime
) -> None:
    due = NINE + 59 * MINUTE
    triggered = token(schedule, scheduled_at=NINE + HOUR, due_at=due)
    run = Finished(triggered, due, due, NINE + 90 * MINUTE, Returned(None))
    settled = settle(run, Policy(Retry()), chance=lambda: 0.5)
    assert settled.put is not None
    assert (settled.missed, settled.put.scheduled_at) == (missed, following)


def test_the_tick_before_is_the_same_for_each_retry() -> None:
    app = new_app()
    seen: list[datetime | None] = []

    @app.periodic(every="1h", mode="fixed_rate", retry=Retry(1, delays=["1s"]))
    async def report(ctx: Context) -> None:
        seen.append(ctx.previous_at)
        if ctx.attempt == 1:
            raise ValueError

    simulate(app, "2h30m")
    assert seen[0] is None
    assert seen[1] == seen[0]
    assert seen[2] is not None
    assert seen[3] == seen[2]


def test_a_loop_survives_a_lone_surrogate_in_what_it_carries() -> None:
    app = new_app()

    @app.periodic(every="1m")
    async def report(ctx: Context) -> None:
        ctx.carry("\udcff")

    assert len([event for event in simulate(app, "1h") if isinstance(event, RunStarted)]) > 50


def test_an_error_with_a_lone_surrogate_or_an_escape_fits_a_header() -> None:
    summary = summary_of(ValueError("\udcff \x1b[31m"))
    assert summary.encode()
    assert summary.isprintable()


def test_a_retry_that_is_no_retry_is_refused() -> None:
    async def report() -> None: ...

    with pytest.raises(RegistrationError, match="Retry"):
        new_app().periodic(every="1m", retry=cast(Any, 3))(report)


class Order(BaseModel):
    number: int = Field(alias="No")


def test_arguments_with_an_alias_arrive() -> None:
    app = new_app()
    got: list[int] = []

    @app.periodic(every="1m", args={"order": Order(No=1)})
    async def ship(order: Order) -> None:
        got.append(order.number)

    events = simulate(app, "3m30s")
    assert not [event for event in events if isinstance(event, MessageParked)]
    assert got == [1, 1, 1]


@pytest.mark.parametrize("reference", [".jobs:app", "..:app", "a-b:app", "scheduler.py:app"])
def test_what_cannot_be_a_module_is_no_app(
    reference: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("scheduler.py").write_text("")
    with pytest.raises(AppNotFound):
        load_app(reference)


@pytest.mark.parametrize(
    "text", ["[tool.scheduler]\napp = 5\n", "tool = 5\n", "[tool]\nscheduler = 5\n"]
)
def test_a_pyproject_of_other_types_is_told(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("SCHEDULER_APP", raising=False)
    Path("pyproject.toml").write_text(text)
    with pytest.raises(AppNotFound):
        load_app(None)


def test_version_true_is_not_version_one() -> None:
    message = encode(token(), "shop")
    hostile = replace(message, body=message.body.replace(b'"version":1', b'"version":true'))
    with pytest.raises(Undecodable, match="version"):
        decode(hostile, "shop")


@pytest.mark.parametrize("annotation", ["datetime.Foo", "int["])
def test_any_bad_annotation_is_a_registration_error(annotation: str) -> None:
    async def report(x: int = 1) -> None: ...

    report.__annotations__["x"] = annotation
    with pytest.raises(RegistrationError):
        new_app().periodic(every="1m")(report)


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class NoException(BaseException): ...


class Unspeakably(Exception):
    def __str__(self) -> str:
        raise SystemExit


RAISED = (
    *(Unspeakable, Unspeakably, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit),
    *(NoException, StopAsyncIteration),
    pytest.param(concurrent.futures.CancelledError, id="CancelledError of a future"),
)


def app_that_raises(place: str, error: type[BaseException]) -> Scheduler:
    app = new_app()

    @app.periodic(every="10s", retry=Retry(0))
    async def task() -> None:
        if place == "task":
            raise error
        if "hook" in place:
            raise ValueError

    @app.around
    async def around(_: Context, call_next: CallNext) -> None:
        await call_next()
        if place == "middleware":
            raise error

    @app.listen
    def listener(_: object) -> None:
        if place == "listener":
            raise error

    @app.on_escalation
    def hook(_: object) -> None:
        if place == "hook":
            raise error

    @app.on_escalation
    async def coroutine_hook(_: object) -> None:
        if place == "coroutine hook":
            raise error
        if place == "hook that cancels itself" and (this := asyncio.current_task()):
            this.cancel()

    return app


@pytest.mark.parametrize("error", RAISED)
@pytest.mark.parametrize(
    "place",
    ["task", "middleware", "listener", "hook", "coroutine hook", "hook that cancels itself"],
)
def test_whatever_user_code_raises_its_loop_goes_on(place: str, error: type[BaseException]) -> None:
    app = app_that_raises(place, error)
    events = simulate(app, "45s")
    seqs = [event.seq for event in events if isinstance(event, RunStarted)]
    assert seqs == [0, 1, 2, 3]


@pytest.mark.parametrize("added", [{"x": object()}, {5: "x"}, {"x": None}, {"x": "\udcff"}])
def test_whatever_a_listener_adds_to_a_trace_its_run_is_settled(added: Any) -> None:
    app = new_app()
    app.periodic(every="10s")(sleep)

    @app.listen
    def listener(event: object) -> None:
        if isinstance(event, RunFinished):
            event.trace.update(added)

    events = simulate(app, "45s")
    assert [event.seq for event in events if isinstance(event, RunStarted)] == [0, 1, 2, 3]


@pytest.mark.parametrize("error", RAISED)
def test_whatever_reading_an_argument_raises_its_message_is_parked(
    error: type[BaseException],
) -> None:
    app, read = new_app(), list[int]()

    def check(number: int) -> int:
        read.append(number)
        if len(read) > 5:  # those before are read by who declares the loop
            raise error
        return number

    @app.periodic(every="10s", args={"number": 1})
    async def task(number: Annotated[int, AfterValidator(check)]) -> None: ...

    events = simulate(app, "2m")
    assert [event for event in events if isinstance(event, MessageParked)]


@pytest.mark.parametrize("error", [each for each in RAISED if each is not GeneratorExit])
@pytest.mark.parametrize("while_it", ["opens", "closes"])
def test_whatever_a_lifespan_raises_is_told_as_its_error(
    caplog: pytest.LogCaptureFixture, while_it: str, error: type[BaseException]
) -> None:
    @asynccontextmanager
    async def lifespan(_: Scheduler) -> AsyncGenerator[None]:
        if while_it == "opens":
            raise error
        yield
        raise error

    app = Scheduler("shop", Settings(), lifespan=lifespan)
    app.periodic(every="10s")(sleep)
    if while_it == "opens":
        with pytest.raises(LifespanError, match="could not be opened"):
            simulate(app, "45s")
    else:
        simulate(app, "45s")
        assert "could not be closed" in caplog.text


async def sleep() -> None: ...


def test_a_reason_that_is_no_text_is_made_one() -> None:
    assert StopLoop(5).reason == "5"


async def test_no_verb_during_a_run_makes_it_overlap_with_another(stage: Stage) -> None:
    app = new_app()
    going: list[int] = []
    most: list[int] = []

    @app.periodic(every="1s", timeout="1m")
    async def slow() -> None:
        going.append(1)
        most.append(len(going))
        await asyncio.sleep(10)
        going.pop()

    await stage.seed(app)
    async with stage.processor(), stage.processor():
        await asyncio.sleep(2)
        loop = app.loop("slow")
        await stage.seeding.seed()
        await stage.verbs.pause(loop)
        await stage.seeding.seed()
        await stage.verbs.resume(loop, at_once=True)
        await asyncio.sleep(60)
    assert max(most) == 1
    assert len(most) > 3
    assert await stage.tokens() == 1


async def test_a_task_that_swallows_its_cancellation_does_not_hold_up_the_shutdown(
    stage: Stage,
) -> None:
    app = new_app()

    @app.periodic(every="1s")
    async def stubborn() -> None:
        for _ in range(100):
            with suppress(asyncio.CancelledError):
                await asyncio.sleep(60)

    await stage.seed(app)
    stage.expects_some_in_hand()
    loop = asyncio.get_running_loop()
    async with stage.processor(grace=5):
        await asyncio.sleep(2)
        began = loop.time()
    assert loop.time() - began < 15
    for task in asyncio.all_tasks() - {asyncio.current_task()}:
        for _ in range(101):
            task.cancel()
            await asyncio.sleep(0)
