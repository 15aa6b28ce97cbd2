from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.errors import RegistrationError, SettingsError, UnknownLoop
from scheduler.events import ConsumerResumed, Event, ProcessorStopped, RunEvent, RunSettled
from scheduler.protocol.tokens import LoopId


async def run() -> None: ...


@pytest.fixture
def app() -> Scheduler:
    app = Scheduler("shop")
    for name in ("poll_orders", "send_report", "clean"):
        app.periodic(every="1h", name=name)(run)
    return app


def one_too_many(event: Event, level: str) -> None: ...


NO_LISTENER = "The listener .* (cannot be called with one arg|must be a function, got)"
NO_HOOK = "The escalation hook .* (cannot be called with one|must be a function, got)"
WRONG: list[tuple[Callable[[Any], Any], str]] = [
    (lambda app: app.task(name="clean")(run), "two tasks named 'clean' in 'shop'.*another name="),
    (lambda app: app.periodic("5m"), r"write @app.periodic\(every='5m'\)"),
    (lambda app: app.periodic(every="1s", max=3), "takes no max=; it takes every=, .*grace="),
    (lambda app: app.task(max_retries=3), "@app.task takes no max_retries=; it takes name=, "),
    # Aliases
    (lambda app: app.task(aliases=["clean"])(run), "a name of 'clean' and cannot be one of 'run'"),
    (lambda app: app.task(name="old")(run), "'old' is a name of 'new' .* as well: leave it out"),
    (
        lambda app: app.task(aliases="clean")(run),
        r"must be a list of .*\[\"old_name\"\], got 'clean'",
    ),
    (lambda app: app.task(aliases=["_supervision"])(run), "aliases of run must be a list of"),
    (lambda app: app.task(aliases=["x"], ordered=True)(run), "an ordered task has none"),
    # Namespaces
    (lambda _: Scheduler(), "Scheduler cannot be called like this: missing .* 'namespace'"),  # pyright: ignore[reportCallIssue]
    (lambda _: Scheduler(5), "A namespace must have 1 to 64 letters, .*, got 5"),  # pyright: ignore[reportArgumentType]
    # Functions that take one event
    *((lambda app, f=f: app.listen(f), NO_LISTENER) for f in (one_too_many, lambda: None, "print")),
    *((lambda app, f=f: app.on_escalation(f), NO_HOOK) for f in (one_too_many, lambda: None, "x")),
]


@pytest.mark.parametrize(("register", "told"), WRONG, ids=range(len(WRONG)))
def test_a_wrong_registration_is_refused_with_what_to_write(
    app: Scheduler, register: Callable[[Scheduler], Any], told: str
):
    app.task(name="new", aliases=["old"])(run)
    with pytest.raises(RegistrationError, match=told):
        register(app)
    assert set(app.tasks) == {"poll_orders", "send_report", "clean", "new"}
    assert len(app.loops) == 3
    assert app.escalation_hooks == []


def test_hooks_may_be_coroutine_functions_and_listeners_may_not(app: Scheduler):
    async def slow(event: Event) -> None: ...

    listener: Any = slow
    app.on_escalation(slow)
    with pytest.raises(RegistrationError, match=r"The listener .*slow.* is a coroutine function"):
        app.listen(listener)
    for listener in (list[Event]().append, print, partial(one_too_many, level="info")):
        app.listen(listener)
    app.events.emit(Event())


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (None, ["poll_orders", "send_report", "clean"]),
        ([], []),
        (["clean", "poll_orders"], ["clean", "poll_orders"]),
        (iter(["clean"]), ["clean"]),
    ],
)
def test_tasks_are_selected_by_name(app: Scheduler, names: Iterable[str] | None, found: list[str]):
    assert [task.name for task in app.select(names)] == found
    assert app.loop("poll_orders").id == LoopId("poll_orders")
    with pytest.raises(UnknownLoop, match="There is no loop 'pol_orders'; did you mean 'poll_or"):
        app.loop("pol_orders")
    with pytest.raises(UnknownLoop, match="There is no task 'send_raport'; did you mean 'send_rep"):
        app.select(["clean", "send_raport"])


def test_settings_are_read_when_they_are_needed(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCHEDULER_CONCURRENCY", "many")
    app = Scheduler("shop")
    with pytest.raises(SettingsError, match="SCHEDULER_CONCURRENCY"):
        _ = app.settings
    monkeypatch.setenv("SCHEDULER_CONCURRENCY", "7")
    assert app.settings.concurrency == 7
    assert app.settings is app.settings


def test_a_listener_may_choose_kinds_of_events(app: Scheduler):
    some: list[Event] = []
    app.events.emit(ProcessorStopped(0))
    app.events.listen(some.append, RunEvent, ProcessorStopped)
    run = RunSettled(LoopId("clean"), 1, 0, "id")
    for event in (ProcessorStopped(1), ConsumerResumed("queue"), run):
        app.events.emit(event)
    assert some == [ProcessorStopped(1), run]
    assert app.events.listeners_of(RunSettled)
    assert not app.events.listeners_of(ConsumerResumed)
    app.events.forget(some.append)
    assert not app.events.listeners_of(RunSettled)


def test_a_failure_of_a_listener_is_logged(app: Scheduler, caplog: pytest.LogCaptureFixture):
    heard: list[Event] = []

    @app.listen
    def broken(event: Event) -> None:
        raise ValueError("no")

    app.listen(heard.append)
    app.events.emit(ProcessorStopped(0))
    assert "ValueError: no" in caplog.text
    app.events.forget(broken)
    app.events.emit(ProcessorStopped(1))
    assert heard == [ProcessorStopped(0), ProcessorStopped(1)]
    assert len(caplog.records) == 1
