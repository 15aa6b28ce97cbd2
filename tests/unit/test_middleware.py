"""What stands around runs and around what is sent, on the embedded broker and in virtual time."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from scheduler import Context, Reject, Retry, RetryLater, Scheduler, StopLoop
from scheduler.errors import NotAllSent, NotSent, RegistrationError, Unencodable
from scheduler.events import CallSending, Escalated, RunFinished
from scheduler.middleware import CallNext, Sending, SendNext
from scheduler.protocol.tokens import Ending
from scheduler.tasks.tasks import SUPERVISION
from scheduler.testing import simulate
from tests.stage import Stage, new_app, of


def generator(ctx: Context, call_next: CallNext) -> Any:
    yield


async def of_one(ctx: Context) -> None: ...


@pytest.mark.parametrize(
    ("function", "told"),
    [
        (generator, r"takes a coroutine function, `async def f\({0}\)`, got generator\."),
        ("f", r"takes a coroutine function, `async def f\({0}\)`, got 'f'\."),
        (of_one, r"of_one cannot be called with \({0}\): too many positional arguments\."),
    ],
)
@pytest.mark.parametrize(
    ("decorator", "parameters"),
    [("around", "ctx, call_next"), ("around_sending", "sending, send_next")],
)
def test_a_function_of_no_use_is_refused(decorator: str, parameters: str, function: Any, told: str):
    app = Scheduler("shop")
    with pytest.raises(RegistrationError, match=f"^@app.{decorator}:? {told.format(parameters)}$"):
        getattr(app, decorator)(function)
    with pytest.raises(RegistrationError, match=f"^@app.{decorator} cannot be called like this"):
        getattr(app, decorator)()


def says(said: list[Any], name: str) -> Callable[[Any, Callable[[], Awaitable[Any]]], Any]:
    async def around(subject: Any, go_on: Callable[[], Awaitable[Any]]) -> Any:
        said.append(f"{name}: {subject.task} {dict(subject.arguments)}")
        try:
            returned = await go_on()
        except Exception as error:
            said.append(f"{name}: {error!r}")
            raise
        said.append(f"{name}: {returned}")
        return returned

    return around


async def test_runs_are_surrounded_and_the_first_is_outermost(stage: Stage) -> None:
    app, said = new_app(), list[str]()
    app.around(says(said, "first"))
    app.around(says(said, "second"))

    @app.task()
    async def add(ctx: Context, one: int, other: int = 2) -> int:
        said.append("add")
        return one + other

    @app.periodic(every="1h", retry=Retry(0), args={"city": "Bonn"})
    async def report(city: str) -> None:
        raise ValueError(city)

    await stage.seed(app)
    async with stage.supervised():
        await add.send(1)
        await asyncio.sleep(3601)
    assert {run.loop for run in of(RunFinished, stage.events)} >= {SUPERVISION}
    assert said == [
        "first: add {'one': 1}",
        "second: add {'one': 1}",
        "add",
        "second: 3",
        "first: 3",
        "first: report {'city': 'Bonn'}",
        "second: report {'city': 'Bonn'}",
        "second: ValueError('Bonn')",
        "first: ValueError('Bonn')",
    ]


@pytest.mark.parametrize(
    ("outcome", "ending", "after"),
    [
        (lambda: RetryLater("1m"), Ending.RETRIED, False),
        (lambda: Reject("not today"), Ending.ESCALATED, True),
        (lambda: StopLoop("enough"), Ending.STOPPED, False),
    ],
    ids=["later", "rejected", "stopped"],
)
def test_a_run_fails_with_what_is_raised_around_it(
    outcome: Callable[[], Exception], ending: Ending, after: bool
) -> None:
    app, runs = new_app(), list[int]()

    @app.around
    async def decide(ctx: Context, call_next: CallNext) -> None:
        if after:
            await call_next()
        raise outcome()

    @app.periodic(every="1h")
    async def report(ctx: Context) -> None:
        runs.append(ctx.seq)

    first = of(RunFinished, simulate(app, "61m"))[0]
    assert (first.ending, str(first.error)) == (ending, str(outcome()))
    assert bool(runs) is after
    assert first.error is not None
    assert first.error.__traceback__ is not None
    assert first.error.__traceback__.tb_frame.f_code.co_name == "decide"  # none of ours before it


def test_a_run_whose_error_is_caught_around_it_has_succeeded() -> None:
    app, runs = new_app(), list[str]()

    @app.around
    async def spare(ctx: Context, call_next: CallNext) -> None:
        if ctx.task == "failing":
            with pytest.raises(ValueError, match="broken"):
                await call_next()

    @app.periodic(every="1h")
    async def failing() -> None:
        runs.append("failing")
        raise ValueError("broken")

    @app.periodic(every="1h")
    async def spared() -> None:
        runs.append("spared")

    finished = of(RunFinished, simulate(app, "61m"))
    assert {run.loop.task for run in finished} == {"failing", "spared"}
    assert {run.ending for run in finished} == {Ending.SUCCEEDED}
    assert set(runs) == {"failing"}


def test_a_run_that_is_not_awaited_fails(app: Scheduler) -> None:
    @app.around
    async def forget(ctx: Context, call_next: CallNext) -> object:
        return call_next()

    @app.periodic(every="1h")
    async def report() -> None: ...

    (finished, *_) = of(RunFinished, simulate(app, "61m"))
    assert str(finished.error) == "it returned a coroutine, which never ran: await it"


def test_the_timeout_of_a_task_includes_what_is_around_it(app: Scheduler) -> None:
    @app.around
    async def dawdle(ctx: Context, call_next: CallNext) -> None:
        await call_next()
        await asyncio.sleep(6)

    @app.periodic(every="1h", timeout="5s", retry=Retry(0))
    async def report() -> None: ...

    (escalated, *_) = of(Escalated, simulate(app, "61m"))
    assert "longer than its timeout of 5 s" in str(escalated.error)


class Post:
    """An app whose one task tells with which headers it was asked to run."""

    def __init__(self) -> None:
        self.app = new_app()
        self.read = list[tuple[int, dict[str, Any]]]()

        @self.app.task(retry=Retry(1, delays=["1s"]))
        async def read(ctx: Context, number: int) -> None:
            headers = ctx.message.headers
            self.read.append((number, {k: headers[k] for k in ("a", "b") if k in headers}))
            if ctx.attempt == 1:
                raise ValueError("again")

        self.task = read


async def test_headers_that_are_added_travel_through_delays(stage: Stage) -> None:
    post, said, given = Post(), list[str](), {"a": ["given"]}
    post.app.around_sending(says(said, "first"))

    @post.app.around_sending
    async def add(sending: Sending, send_next: SendNext) -> None:
        sending.headers["b"] = sending.message_id
        sending.headers.get("a", []).append("added")
        assert not sending.confirmed
        await send_next()
        assert sending.confirmed

    await stage.seed(post.app)
    async with stage.processor():
        ids = [await post.task.options(headers=given).send(1)]
        ids.append(await post.task.send_later("1m", 2))
        ids += await post.task.send_many({"number": number} for number in (3, 4))
        await asyncio.sleep(100)
    assert given == {"a": ["given"]}
    headers = [{"a": ["given", "added"], "b": ids[0]}, *({"b": id} for id in ids[1:])]
    expected = list(enumerate(headers, start=1))
    assert sorted(post.read, key=lambda each: each[0]) == [
        each for each in expected for _ in range(2)
    ]
    assert said == [
        "first: read {'number': 1}",
        "first: None",
        "first: read {'number': 2}",
        "first: None",
        "first: read {'number': 3}",
        "first: read {'number': 4}",
        "first: None",
        "first: None",
    ]


async def test_a_function_around_a_call_may_prevent_its_sending(stage: Stage) -> None:
    post = Post()

    @post.app.around_sending
    async def refuse(sending: Sending, send_next: SendNext) -> None:
        match sending.arguments["number"]:
            case 2:
                raise PermissionError("not two")
            case 3:
                return
            case 4:
                sending.headers["a"] = object()
            case 5:
                raise SystemExit(3)
            case _:
                pass
        await send_next()

    await stage.seed(post.app)
    with pytest.raises(PermissionError, match="not two"):
        await post.task.send(2)
    with pytest.raises(NotSent, match=r"The message for 'read' was not sent: .* Await send_next"):
        await post.task.send(3)
    assert of(CallSending, stage.events) == []
    with pytest.raises(Unencodable):
        await post.task.send(4)
    with pytest.raises(RuntimeError, match=r"under @app.around_sending raised SystemExit: 3"):
        await post.task.send(5)
    assert await stage.waiting() == 0
    with pytest.raises(NotAllSent, match="1 of 2 messages for 'read' were sent: not two"):
        await post.task.send_many({"number": number} for number in (1, 2))
