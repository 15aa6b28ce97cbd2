"""Diagnose an installation, or one processor: `scheduler doctor`; count loops: `census`."""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from typing import Annotated

import typer
from rich.text import Text

from scheduler.app import Scheduler
from scheduler.brokers.opening import nodes_of
from scheduler.cli.arguments import AppArgument, HealthPort, command, new_group
from scheduler.cli.connecting import ask
from scheduler.cli.loading import ready_app
from scheduler.cli.printing import Output
from scheduler.cli.tables import Table, paragraph
from scheduler.control.census import Figures, count
from scheduler.control.doctor import Finding, check_addresses
from scheduler.errors import UsageError
from scheduler.processor import health
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.messages import summary_of
from scheduler.queues.unsent import UnsentStore
from scheduler.settings import Settings
from scheduler.timing.moments import exact

MARKS = {"ok": "ok", "warning": "warning", "problem": "PROBLEM"}
INDENT = 9
COMMAND = "rabbitmqctl "

cli = new_group()


@command(cli, "doctor")
def doctor(
    reference: AppArgument = None,
    live: Annotated[
        bool,
        typer.Option("--live", help="Only probe whether the processor of this machine is alive."),
    ] = False,
    health_port: HealthPort = None,
) -> Output:
    """Check everything that could break the guarantees.

    The exit code is 1 if there are problems.

    Examples: scheduler doctor shop:app;
    scheduler doctor --live --health-port 8000
    """
    if live:
        return _liveness(reference, health_port)
    app = ready_app(reference)

    findings = ask(app, lambda program: program.doctor.examine())
    nodes = nodes_of(app.settings)
    if app.fallback is not None:
        findings.append(check_unsent(app.fallback))
    if len(nodes) > 1:
        findings.insert(0, asyncio.run(check_addresses(nodes)))
    is_fine = all(finding.verdict != "problem" for finding in findings)
    return Output([asdict(finding) for finding in findings], _lines(findings), is_fine)


def check_unsent(store: UnsentStore) -> Finding:
    """Check whether messages are stored that could not be sent."""
    about = "unsent messages"
    try:
        stored = store.read()
    except Exception as error:  # the store may be the user's
        return Finding(
            about,
            "problem",
            f"the fallback store cannot be read: {summary_of(error)}",
            "Until it can, sending raises NotSent instead of storing.",
        )
    if not stored:
        return Finding(about, "ok", "none is stored")
    oldest = min(each.stored_at for each in stored)
    return Finding(
        about,
        "warning",
        f"{len(stored)} stored, the oldest at {exact(oldest)}",
        "Processors send them every 5 s; `scheduler unsent send` sends them now.",
    )


def _lines(findings: Iterable[Finding]) -> Iterator[Text]:
    advice = ""
    for finding in findings:
        about, mark = f"{finding.about}: {finding.detail}", MARKS[finding.verdict]
        yield from paragraph(about, mark, indent=INDENT)
        if finding.advice and finding.advice != advice:
            is_command = finding.advice.startswith(COMMAND)  # easy to copy
            yield from paragraph(finding.advice, indent=INDENT, broken=not is_command)
        advice = finding.advice


def _liveness(reference: str | None, port: int | None) -> Output:
    # The app is loaded only if the port is not given.
    port = port or Settings().health_port or ready_app(reference).settings.health_port
    if port is None:
        raise UsageError(
            "No health port is set: give --health-port or SCHEDULER_HEALTH_PORT to `scheduler "
            "run`, and the same to this command."
        )
    live, why = health.ask(port)
    line = "the processor is alive" if live else f"the processor is not alive: {why}"
    return Output({"live": live, "why": why}, [line], is_fine=live)


NAMED = 5  # loops that are named, of many


@command(cli, "census")
def census(app: Scheduler) -> Output:
    """Count loops, and the messages in queues and timers.

    The counts of loops are those of the last round of supervision. If that is older than a minute,
    the command counts the roster, which takes a minute for a million loops. The exit code is 1 if
    loops are overdue, or have two tokens: supervision repairs them.

    Example: scheduler census shop:app
    """
    figures = ask(app, count, is_long=True)
    tally = figures.tally
    data = {
        "counted_at": figures.at,
        **tally.model_dump(),
        "ready": figures.ready,
        "timers": figures.timers,
        "later": figures.later,
        "void": figures.void,
    }
    return Output(data, _lines_of_census(figures), is_fine=not tally.overdue and not tally.doubled)


def _lines_of_census(figures: Figures) -> Iterator[str | Text]:
    tally = figures.tally
    yield from _tasks(figures).shown(sorted({*tally.loops, *figures.ready}))
    yield ""
    yield from _timers(figures).shown([*dict.fromkeys((*figures.timers, *figures.later))])
    yield ""
    if tally.paused:
        yield f"paused as a whole: {', '.join(tally.paused)}"
    yield _named("overdue", tally.overdue, tally.overdue_names)
    yield _named("doubled", tally.doubled, tally.doubled_names)
    yield f"void: at least {figures.void:,}"
    yield f"loops counted: {figures.at:%H:%M:%S %Z}"


def _tasks(figures: Figures) -> Table[str]:
    def in_state(state: LoopState) -> Callable[[str], str]:
        return lambda task: f"{figures.tally.loops.get(task, {}).get(state, 0):,}"

    return Table(
        {
            "TASK": str,
            "ACTIVE": in_state(LoopState.ACTIVE),
            "PAUSED": in_state(LoopState.PAUSED),
            "GONE": in_state(LoopState.GONE),
            "READY": lambda task: f"{figures.ready.get(task, 0):,}",
        }
    )


def _timers(figures: Figures) -> Table[str]:
    return Table(
        {
            "TIMER": str,
            "TOKENS": lambda timer: f"{figures.timers.get(timer, 0):,}",
            "CALLS": lambda timer: f"{figures.later.get(timer, 0):,}",
        }
    )


def _named(about: str, count: int, names: Sequence[str]) -> str:
    shown = ", ".join(names[:NAMED]) + (", ..." if count > NAMED else "")
    return f"{about}: {count:,}" + (f" ({shown})" if count else "")
