"""Define arguments and options that several commands share, and read them."""

import functools
import inspect
import io
import json
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from contextvars import ContextVar
from datetime import datetime, timedelta
from typing import Annotated, Any, ParamSpec, cast

import typer
from typer.core import TyperGroup

from scheduler.app import Scheduler
from scheduler.cli.loading import is_app_named, load_app, names_app
from scheduler.cli.printing import print_error
from scheduler.errors import ScheduleError, SchedulerError, UsageError
from scheduler.spelling import no_such
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import utc_of

P = ParamSpec("P")


LIMIT = ContextVar("limit", default=timedelta(seconds=30))
"""The --timeout of a command: how long the broker may be silent."""

TIMEOUT = inspect.Parameter(
    "timeout",
    inspect.Parameter.KEYWORD_ONLY,
    default="30s",
    annotation=Annotated[str, typer.Option(help="How long to wait for the broker.")],
)


class Group(TyperGroup):
    """List the commands of a group if a name is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(no_such("command", args[0], self.commands))
        return super().resolve_command(ctx, args)


def new_group(help: str | None = None) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(help=help, cls=Group, no_args_is_help=True, rich_markup_mode=None)


def command(
    group: typer.Typer, name: str, *, asks: bool = True, more: bool = False
) -> Callable[[Callable[P, bool | None]], Callable[P, None]]:
    """Register a command; exit with 1 if it returns False or fails, with 2 if it was misused.

    Args:
        asks: whether it asks the broker, and has a limit for that.
        more: whether it reads arguments that are none of its parameters.
    """

    def register(function: Callable[P, bool | None]) -> Callable[P, None]:
        @functools.wraps(function)
        def exiting(*args: P.args, **kwargs: P.kwargs) -> None:
            limit = kwargs.pop("timeout", None)
            try:
                if asks and limit is not None:
                    LIMIT.set(parse_duration(str(limit), "--timeout"))
                is_fine = function(*args, **kwargs)
            except SchedulerError as error:
                print_error(error, bool(kwargs.get("as_json")))
                raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error
            if is_fine is False:
                raise typer.Exit(1)

        if asks:
            signature = inspect.signature(function)
            parameters = [*signature.parameters.values(), TIMEOUT]
            vars(exiting)["__signature__"] = signature.replace(parameters=parameters)
        unknown = dict.fromkeys(("allow_extra_args", "ignore_unknown_options"), more)
        group.command(name, context_settings=unknown)(exiting)
        return exiting

    return register


# A shell completes names in the code of the app, besides commands and options. The broker is not
# asked, so keyed loops are missing. Without an app, or if its import fails, there are no
# completions and no errors: the user is in the middle of a line.


def _app_to_complete(context: typer.Context) -> Scheduler | None:
    # Before an option that has no value yet, arguments are not given to their parameters.
    reference = context.params.get("reference") or next(iter(context.args), None)
    # Output of the code would count as completions.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            return load_app(reference)
        except (SchedulerError, SystemExit):
            return None


def _loops(context: typer.Context) -> list[str]:
    app = _app_to_complete(context)
    return [] if app is None else [str(loop) for loop in app.loops]


def _loops_and_tasks(context: typer.Context) -> list[str]:
    return [*dict.fromkeys([*_loops(context), *tasks_to_complete(context)])]


def _loops_if_any(context: typer.Context) -> list[str]:
    """Complete LOOP in the place of APP, which may be left out."""
    has_loop = any(each.name == "loop" for each in context.command.params)
    return _loops(context) if has_loop else []


def tasks_to_complete(context: typer.Context) -> list[str]:
    app = _app_to_complete(context)
    return [] if app is None else list(app.tasks)


def one_more_task(context: typer.Context, incomplete: str) -> list[str]:
    """Complete a comma-separated list of tasks, whose last name is incomplete."""
    *before, _ = incomplete.split(",")
    others = [name for name in tasks_to_complete(context) if name not in before]
    return [",".join([*before, name]) for name in others]


AppArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        autocompletion=_loops_if_any,
        help="module:attribute or path/to/file.py:attribute (of either alone: app); else "
        "SCHEDULER_APP, else [tool.scheduler] app in pyproject.toml, here or in a folder above.",
    ),
]
LoopArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="LOOP",
        autocompletion=_loops,
        help="The loop, as `scheduler status` names it: report, or digest.user-42 of a keyed one. "
        "Required.",
    ),
]
LoopOrTask = Annotated[
    str | None,
    typer.Argument(
        metavar="LOOP_OR_TASK",
        autocompletion=_loops_and_tasks,
        help="The loop, as `scheduler status` names it: report, or digest.user-42 of a keyed one; "
        "or a task that gets calls, with all its calls and loops. Required.",
    ),
]
OneLoop = Annotated[
    str | None,
    typer.Argument(metavar="LOOP", autocompletion=_loops, help="Only this loop, instead of all."),
]
RunArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="RUN",
        autocompletion=_loops,
        help="The run, as `scheduler ps` names it: report#7 or report, of a loop; the ID of a "
        "message, or a unique prefix of it, of a call. Required.",
    ),
]
OneTask = Annotated[
    str | None,
    typer.Option("--task", autocompletion=tasks_to_complete, help="Select by task."),
]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Only print what would change.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
LogFormat = Annotated[
    str | None,
    typer.Option(
        help="text, dated (text with the date and the UTC offset) or json; else "
        "SCHEDULER_LOG_FORMAT, else text."
    ),
]
HealthPort = Annotated[
    int | None,
    typer.Option(
        min=1,
        max=65535,
        help="The port of /livez and /readyz of a processor; else "
        "SCHEDULER_HEALTH_PORT, else none.",
    ),
]


def app_and_any(reference: str | None, names: list[str]) -> tuple[str | None, list[str]]:
    """Split APP, which may be left out, from the arguments behind it."""
    if reference is not None and not names_app(reference):
        return None, [reference, *names]
    return reference, names


def app_and_loop(reference: str | None, loop: str | None) -> tuple[str | None, str | None]:
    """Split APP from a LOOP, either of which may be left out."""
    if loop is None and reference and not names_app(reference) and is_app_named():
        return None, reference
    return reference, loop


def app_and_one(reference: str | None, name: str | None, what: str) -> tuple[str | None, str]:
    """Split APP from the argument behind it, which is required."""
    reference, name = app_and_loop(reference, name)
    if name is None:
        load_app(reference)  # a missing app is the first thing to report
        raise UsageError(f"The command needs {what}: see --help.")
    return reference, name


def json_object(option: str, text: str) -> dict[str, Any]:
    """Parse the JSON object of an option."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(
            f"{option}: expected a JSON object such as '{{\"n\": 1}}', got {text!r}: {error}."
        ) from None
    if not isinstance(value, dict):
        raise UsageError(f"{option}: expected a JSON object such as '{{\"n\": 1}}', got {text!r}.")
    return cast("dict[str, Any]", value)


def moment_of(option: str, text: str) -> datetime:
    """Parse the moment of an option; without an offset, on the clock of this machine."""
    try:
        return utc_of(datetime.fromisoformat(text).astimezone())
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option}: expected a moment such as 2026-06-01T09:00:00+02:00, got: {text!r}"
        ) from None
    except ScheduleError as error:
        raise UsageError(f"{option}: {error}") from None
