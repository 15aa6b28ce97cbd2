"""Cases that were wrong once."""

import asyncio
import concurrent.futures
import logging
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import Annotated, Any, cast

import pytest
from pydantic import AfterValidator

from scheduler import Context, Reject, Retry, RetryLater, Scheduler, Settings, StopLoop
from scheduler.errors import LifespanError
from scheduler.events import MessageParked, RunFinished, RunStarted
from scheduler.middleware import CallNext
from scheduler.protocol.tokens import Ending, Token
from scheduler.tasks.retries import NamedOutcome
from scheduler.testing import DEFAULT_START, simulate
from tests.stage import new_app, of


def test_a_loop_survives_a_lone_surrogate_in_what_it_carries(app: Scheduler) -> None:
    @app.periodic(every="1m")
    async def report(ctx: Context) -> None:
        ctx.carry("\udcff")

    assert len(of(RunStarted, simulate(app, "1h"))) > 50


def test_a_run_that_carries_nothing_leaves_the_carried_value_unchanged(app: Scheduler) -> None:
    seen = list[list[object]]()

    @app.periodic(every="10s", retry=Retry(1, delays=["1s"], jitter=0))
    async def report(ctx: Context) -> None:
        if ctx.carried is None:
            ctx.carry([7])
            return
        seen.append([*ctx.carried])
        ctx.carried.append(object())
        if ctx.seq % 2:
            raise ValueError

    simulate(app, "45s")
    assert seen == [[7]] * 5


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise ValueError("no words")


class NoException(BaseException): ...


class Unspeakably(Exception):
    def __str__(self) -> str:
        raise SystemExit


def overriding(*_: object) -> Any:
    raise ValueError("overridden")


raises: Any = overriding


class Hostile(Exception):
    with_traceback = add_note = raises
    __str__ = __repr__ = __format__ = __eq__ = __reduce__ = __setattr__ = raises


RAISED = (
    *(Unspeakable, Unspeakably, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit),
    *(NoException, StopAsyncIteration, Hostile),
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
def test_a_loop_continues_after_any_exception_of_user_code(
    place: str, error: type[BaseException]
) -> None:
    events = simulate(app_that_raises(place, error), "45s")
    assert [event.seq for event in of(RunStarted, events)] == [0, 1, 2, 3]


def test_a_loop_continues_after_user_code_cancels_its_settlement(
    app: Scheduler, caplog: pytest.LogCaptureFixture
) -> None:
    cancelled = list[asyncio.Task[Any]]()

    @app.periodic(every="10s", retry=Retry(0))
    async def task() -> None:
        raise ValueError

    @app.on_escalation
    async def hook(_: object) -> None:
        settling = (each for each in asyncio.all_tasks() if each.get_name().startswith("handle"))
        for each in () if cancelled else settling:
            cancelled.append(each)
            each.cancel()

    assert [event.seq for event in of(RunStarted, simulate(app, "45s"))] == [0, 0, 1, 2]
    assert "A message of task is requeued" in caplog.text


class BrokenHandler(logging.Handler):
    def __init__(self, error: type[BaseException]) -> None:
        super().__init__()
        self._error = error

    def emit(self, record: logging.LogRecord) -> None:
        raise self._error


@pytest.mark.parametrize("error", [ConnectionError, SystemExit])
@pytest.mark.parametrize("place", ["listener", "hook"])
def test_a_loop_continues_though_a_handler_of_the_log_raises(
    place: str, error: type[BaseException]
) -> None:
    app, handler = app_that_raises(place, ValueError), BrokenHandler(error)
    logging.getLogger("scheduler").addHandler(handler)
    try:
        assert len(of(RunStarted, simulate(app, "45s"))) == 4
    finally:
        logging.getLogger("scheduler").removeHandler(handler)


class LaterSomehow(RetryLater):
    def __init__(self) -> None: ...


class LaterByText(LaterSomehow):
    delay: Any = "2s"


class LaterByNumber(LaterSomehow):
    delay: Any = 2


def give_up(_: object) -> None:
    raise SystemExit(3)


class LaterOrExit(LaterSomehow):
    delay: Any = property(give_up)


class UselessSomehow(Reject):
    def __init__(self) -> None: ...


class StopSomehow(StopLoop):
    def __init__(self) -> None: ...


@pytest.mark.parametrize(
    ("error", "said", "starts"),
    [
        (LaterSomehow, "LaterSomehow, which cannot be handled: AttributeError: ", [10, 11, 21, 22]),
        (LaterByText, "", [10, 12, 22, 24]),
        (LaterByNumber, "delay: expected a number and a unit", [10, 11, 21, 22]),
        (LaterOrExit, "cannot be handled: RuntimeError: its class raised SystemExit: 3", [10, 11]),
        (UselessSomehow, "", [10, 20, 30, 40]),
        (StopSomehow, "", [10]),
    ],
)
def test_an_outcome_may_lack_what_its_class_has(
    app: Scheduler, error: type[NamedOutcome], said: str, starts: list[int]
) -> None:
    @app.periodic(every="10s", retry=Retry(1, delays=["1s"], jitter=0))
    async def task() -> None:
        raise error

    events = simulate(app, "45s")
    begun = [(each.started_at - DEFAULT_START).total_seconds() for each in of(RunStarted, events)]
    assert [round(each) for each in begun][: len(starts)] == starts
    assert said in str(of(RunFinished, events)[0].error)


def test_a_loop_continues_after_an_error_that_traceback_cannot_format(app: Scheduler) -> None:
    place: Any = ("file", "not a number", "nor this", "text")

    @app.periodic(every="10s", retry=Retry(0))
    async def task() -> None:
        raise SyntaxError("x", place)

    parked = of(MessageParked, simulate(app, "45s"))
    assert [each.reason for each in parked] == ["exhausted"] * 4


@pytest.mark.parametrize("added", [{"x": object()}, {5: "x"}, {"x": None}, {"x": "\udcff"}])
def test_a_run_is_settled_despite_any_change_by_a_listener(app: Scheduler, added: Any) -> None:
    seen = list[tuple[Any, Any, Any]]()

    @app.periodic(every="10s", args={"sizes": [1]})
    async def task(ctx: Context, sizes: list[int]) -> None:
        seen.append((ctx.seq, sizes, ctx.carried))
        ctx.carry({"next": [ctx.seq + 1]})

    @app.listen
    def listener(event: object) -> None:
        if isinstance(event, RunFinished):
            event.trace.update(added)
            assert isinstance(successor := event.successor, Token)
            cast("dict[str, Any]", successor.args)["sizes"].append(2)
            successor.carry["next"].append(object())

    simulate(app, "45s")
    assert seen == [(0, [1], None), *((seq, [1], {"next": [seq]}) for seq in (1, 2, 3))]


@pytest.mark.parametrize("error", [*RAISED, ConnectionError])
def test_a_run_fails_if_reading_its_arguments_raises(error: type[BaseException]) -> None:
    app, raises, ran = new_app(), list[int](), list[tuple[int, int]]()

    def check(number: int) -> int:
        if raises:
            raises.pop()
            raise error
        return number

    @app.periodic(every="10s", args={"number": 1}, retry=Retry(2, delays=["1s"]))
    async def task(ctx: Context, number: Annotated[int, AfterValidator(check)]) -> None:
        if not ctx.seq:
            raises.extend([1, 2])
        ran.append((ctx.seq, ctx.attempt))

    runs = of(RunFinished, events := simulate(app, "25s"))
    endings = [Ending.SUCCEEDED, Ending.RETRIED, Ending.RETRIED, Ending.SUCCEEDED]
    assert [each.ending for each in runs] == endings
    assert ran == [(0, 1), (1, 3)]
    assert not of(MessageParked, events)


@pytest.mark.parametrize("error", [each for each in RAISED if each is not GeneratorExit])
@pytest.mark.parametrize("while_it", ["opens", "closes"])
def test_any_exception_of_a_lifespan_becomes_a_lifespan_error(
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
