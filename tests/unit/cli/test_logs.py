import json
import logging
import re
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from datetime import UTC, datetime, timedelta
from string import Formatter
from typing import Any, Literal

import pytest

from scheduler import Context, Retry, Scheduler, Settings
from scheduler.cli.loading import configure, log_event, logged_events
from scheduler.events import (
    Connected,
    ConnectionRetried,
    ConsumerResumed,
    Escalated,
    Event,
    HatchedEarly,
    LoopSeeded,
    MessageParked,
    ProcessorStarted,
    QueuesMissing,
    RunEvent,
    RunFinished,
    RunReturned,
    RunSettled,
    RunStarted,
    SuccessorConfirmed,
    TicksSkipped,
)
from scheduler.processor.settlement import RunCancelled
from scheduler.protocol.tokens import Ending, LoopId, State, Token
from scheduler.tasks.retries import StopLoop
from scheduler.testing import simulate
from scheduler.timing.schedules import Every

Style = Literal["text", "dated", "json"]
DEBUG, INFO, WARNING, ERROR = logging.DEBUG, logging.INFO, logging.WARNING, logging.ERROR
NINE = datetime(2026, 6, 1, 9, 0, tzinfo=UTC)
CLOCK = r"\d\d:00:00\.000"  # in the zone of this machine
DATED = r"2026-06-\d\d \d\d:00:00[+-]\d\d:\d\d"
MS = timedelta(milliseconds=1)
ADDRESS = "amqp://shop@broker:5672/"
LOOP = LoopId("report", "berlin")
RUN = (LOOP, 12, 2, "shop/report.berlin/12/1")

NEXT = Token(LOOP, Every("1h"), NINE, NINE, seq=13)


def finished(
    ending: Ending, error: Exception | None = None, successor: Token | None = NEXT
) -> RunFinished:
    return RunFinished(
        *RUN,
        scheduled_at=NINE,
        started_at=NINE,
        duration=3 * MS,
        ending=ending,
        error=error,
        successor=successor,
    )


def started(late: timedelta, redelivered: bool = False) -> RunStarted:
    return RunStarted(*RUN, NINE, NINE, NINE + late, redelivered, None, late, 0 * MS)


FAILURE = ValueError("no\nway")
AGAIN = replace(NEXT, attempt=2)
PAUSED = replace(NEXT, state=State.PAUSED)
TOMORROW = replace(NEXT, due_at=NINE + timedelta(days=1))

LINES: list[tuple[Event, int, str]] = [
    (
        ConnectionRetried(ADDRESS, "Cannot connect to it.", 3, 250 * MS),
        WARNING,
        r"Cannot connect to it\. Trying again in 250 ms\.",
    ),
    (
        QueuesMissing(("a", "b", "c"), were_declared=True),
        ERROR,
        "a and 2 other queues did not exist, and were declared again: their messages are lost",
    ),
    (LoopSeeded(LOOP, "created", NINE), DEBUG, rf"report\.berlin created, due {DATED}"),
    (LoopSeeded(LOOP, "unchanged", None), DEBUG, r"report\.berlin unchanged"),
    (started(1 * MS), DEBUG, "started 1 ms after its time"),
    (started(12_345 * MS, True), DEBUG, r"started 12\.3 s after its time, redelivered"),
    (finished(Ending.SUCCEEDED), INFO, f"succeeded in 3 ms, next at {CLOCK}"),
    (finished(Ending.SUCCEEDED, successor=TOMORROW), INFO, f"succeeded in 3 ms, next at {DATED}"),
    (finished(Ending.SUCCEEDED, successor=None), INFO, "succeeded in 3 ms"),
    (
        replace(finished(Ending.SUCCEEDED), void=True),
        INFO,
        "succeeded in 3 ms, and was paused, changed or repaired in the meantime",
    ),
    (
        finished(Ending.RETRIED, FAILURE, AGAIN),
        WARNING,
        f"failed in 3 ms, attempt 2: ValueError: no way, again at {CLOCK}",
    ),
    (finished(Ending.ESCALATED, FAILURE), ERROR, "failed in 3 ms, attempt 2: ValueError: no way"),
    (
        finished(Ending.STOPPED, StopLoop("sold out"), PAUSED),
        WARNING,
        "stopped its loop in 3 ms: StopLoop: sold out",
    ),
    (
        finished(Ending.CANCELLED, RunCancelled("cancelled by ada@desk"), NEXT),
        WARNING,
        f"cancelled by ada@desk after 3 ms, next at {CLOCK}",
    ),
    (
        replace(finished(Ending.SKIPPED), skipped="late by 3.000 s"),
        WARNING,
        rf"skipped: late by 3\.000 s, next at {CLOCK}",
    ),
    (TicksSkipped(*RUN, 5, "overrun"), WARNING, "5 ticks skipped: the run took longer than a tick"),
    (
        HatchedEarly(*RUN, "expired", "shop.v1.hatchery.d", timedelta(hours=9)),
        WARNING,
        "9h before its time, released too early by .*message-ttl.*: it waits again.*",
    ),
    (
        HatchedEarly(*RUN, "early", "", timedelta(days=2_500_000, hours=3)),
        WARNING,
        "2500000d before its time, bypassed its timers.*",
    ),
    (
        Escalated(*RUN, FAILURE, True),
        ERROR,
        "failed for the last time: parked for replay, the loop is paused",
    ),
]
SILENT: list[Event] = [SuccessorConfirmed(*RUN), RunSettled(*RUN), Event()]


@pytest.fixture(autouse=True)
def logging_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    root.handlers.clear()  # of pytest, which would be closed
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


Log = Callable[..., str]


@pytest.fixture
def log(capsys: pytest.CaptureFixture[str]) -> Log:
    """Logs events, and returns what is on stderr then."""

    def log(*events: Event, style: Style = "text", level: str = "debug") -> str:
        configure(level, style)
        for event in events:
            log_event(event)
        return capsys.readouterr().err

    return log


def test_a_log_line_has_the_fields_of_its_event():
    kinds = [*Event.__subclasses__(), *RunEvent.__subclasses__()]
    for kind in kinds:
        named = {name for _, name, _, _ in Formatter().parse(kind.text) if name}
        assert named <= {each.name for each in fields(kind)}
        assert bool(kind.level) is (bool(kind.text) or kind.words is not Event.words)


TIME = r"\d\d:\d\d:\d\d\.\d\d\d"


@pytest.mark.parametrize(("event", "level", "words"), LINES)
def test_a_line_for_people_has_time_level_run_and_words(
    log: Log, event: Event, level: int, words: str
):
    first, *others = log(event).splitlines()
    of_run = r"report\.berlin #12  " if isinstance(event, RunEvent) else ""
    assert re.fullmatch(rf"{TIME} {logging.getLevelName(level):7} {of_run}{words}", first)
    assert bool(others) is isinstance(event, Escalated)  # only the last failure has its traceback


def test_a_log_line_may_have_date_and_offset(log: Log):
    line = log(ConsumerResumed("q"), style="dated")
    assert re.fullmatch(rf"20\d\d-\d\d-\d\d {TIME}[+-]\d\d:\d\d INFO    q delivers again\n", line)


@pytest.mark.parametrize(
    ("event", "fields"),
    [
        (
            Connected(ADDRESS, "4.1.0", 5 * MS),
            {
                "level": "info",
                "logger": "scheduler",
                "message": f"connected to {ADDRESS} (RabbitMQ 4.1.0)",
                "address": ADDRESS,
                "after_ms": 5.0,
            },
        ),
        (
            finished(Ending.RETRIED, FAILURE, AGAIN),
            {
                "level": "warning",
                "loop": "report.berlin",
                "seq": 12,
                "attempt": 2,
                "duration_ms": 3.0,
                "ending": "retried",
                "error": "ValueError: no way",
                "scheduled_at": "2026-06-01T09:00:00.000+00:00",
                "successor": {"seq": 13, "due_at": "2026-06-01T09:00:00.000+00:00"},
            },
        ),
        (ProcessorStarted("shop", ADDRESS, ("a", "b"), 9), {"tasks": ["a", "b"]}),
    ],
)
def test_a_line_for_machines_has_the_fields_of_its_event(
    log: Log, event: Event, fields: dict[str, Any]
):
    (line,) = log(event, style="json").splitlines()
    told = json.loads(line)
    assert datetime.fromisoformat(told["at"]).tzinfo
    assert {name: told[name] for name in fields} == fields


def test_no_message_id_steers_a_terminal_or_begins_a_line(log: Log):
    name = "\x1b[31m\nERROR"
    event = MessageParked("task.a", name, "undecodable", "ValueError: \x1b[31m")
    assert "\x1b" not in log(event, style="text")
    settled = RunReturned(LoopId("a"), None, 0, name)
    assert "\x1b" not in (line := log(settled, style="text"))
    assert len(line.splitlines()) == 1


FORGED = "10:46:08.320 INFO    report #12  succeeded"
HOSTILE = f"no\n{FORGED}\r{FORGED}\x1b[2J\x85{FORGED}\u2028{FORGED}"


def record_with(**fields: str) -> logging.LogRecord:
    return logging.makeLogRecord({"msg": "failed", "levelno": ERROR, "levelname": "ERROR"} | fields)


@pytest.mark.parametrize("way", ["message", "traceback", "of another process", "stack"])
@pytest.mark.parametrize("style", ["text", "dated"])
def test_nothing_that_is_logged_forges_a_line_or_steers_a_terminal(
    log: Log, capsys: pytest.CaptureFixture[str], way: str, style: Style
):
    log(style=style)
    match way:
        case "message":
            logging.getLogger("shop").warning("of outside: %s", HOSTILE)
        case "traceback":
            try:
                raise ValueError(HOSTILE)
            except ValueError:
                logging.getLogger("shop").exception("failed")
        case "of another process":
            logging.getLogger("shop").handle(record_with(exc_text=HOSTILE))
        case _:
            logging.getLogger("shop").handle(record_with(stack_info=HOSTILE))
    first, *further = capsys.readouterr().err.removesuffix("\n").splitlines()
    assert further
    assert all(line.startswith("  ") for line in further)
    assert all(line.isprintable() for line in [first, *further])


@pytest.mark.parametrize("style", ["text", "json"])
def test_minor_events_have_no_line(log: Log, style: Style):
    assert log(*SILENT, style=style) == ""


@pytest.mark.parametrize("level", [DEBUG, INFO, WARNING, ERROR])
def test_only_events_of_a_level_and_above_are_listened_to_and_logged(log: Log, level: int):
    logged = log(*(event for event, _, _ in LINES), level=logging.getLevelName(level))
    levels = re.findall(rf"^{TIME} (\w+) ", logged, re.MULTILINE)
    shown = [(event, of) for event, of, _ in LINES if of >= level]
    assert levels == [logging.getLevelName(of) for _, of in shown]
    assert {type(event) for event, _ in shown} <= set(logged_events())
    assert (RunStarted in logged_events()) is (level == DEBUG)  # there is one for each run
    assert not {type(event) for event in SILENT} & set(logged_events())


@pytest.mark.parametrize("style", ["text", "json"])
def test_the_last_failure_is_logged_with_its_traceback(log: Log, style: Style):
    try:
        try:
            raise RuntimeError("x\n" * 100_000)
        except RuntimeError as long:
            raise ValueError("no") from long
    except ValueError as error:
        logged = log(Escalated(*RUN, error, False), style=style)
    assert len(logged) < 50_000
    traceback = json.loads(logged)["traceback"] if style == "json" else logged.partition("\n  ")[2]
    assert traceback.startswith("Traceback (most recent call last)")
    assert traceback.rstrip().endswith("ValueError: no")


def app_that_logs() -> Scheduler:
    app = Scheduler("shop", Settings())

    @app.periodic(every="10s", retry=Retry(0))
    async def report(ctx: Context) -> None:
        logging.getLogger("shop").info("selling %s", "tea")
        if ctx.seq == 1:
            raise ValueError("sold out")

    return app


@pytest.mark.parametrize("style", ["text", "json"])
def test_log_records_of_a_task_name_its_run(capsys: pytest.CaptureFixture[str], style: Style):
    configure("debug", style)
    app = app_that_logs()
    app.listen(log_event)
    simulate(app, "25s")
    logging.getLogger("shop").info("selling coffee")  # in no run
    logging.getLogger("shop").warning("two\nlines", extra={"of": object()})
    lines = capsys.readouterr().err.splitlines()
    if style == "text":
        marks = [line.split("INFO    ")[1] for line in lines if "selling" in line]
        assert marks == ["report #0  selling tea", "report #1  selling tea", "selling coffee"]
        return
    told = [json.loads(line) for line in lines]  # each line is an object
    assert told[-1]["message"] == "two\nlines"
    kinds = {each.get("event") for each in told}
    assert {"LoopSeeded", "RunStarted", "RunFinished", "Escalated", "ProcessorStopped"} <= kinds
    assert [
        (each.get("loop"), each.get("seq"))
        for each in told
        if each["logger"] == "shop" and "selling" in each["message"]
    ] == [("report", 0), ("report", 1), (None, None)]
