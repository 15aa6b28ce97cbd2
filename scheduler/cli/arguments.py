"""Define commands, and the arguments and options that several of them share."""

import functools
import inspect
import io
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout
from contextvars import ContextVar
from datetime import timedelta
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from typer.core import TyperArgument, TyperCommand, TyperGroup
from typer.models import ArgumentInfo

from scheduler.cli.loading import is_app_named, load_app, names_app, ready_app
from scheduler.cli.printing import AS_JSON, Output, print_error, print_output
from scheduler.errors import SchedulerError, UsageError
from scheduler.spelling import no_such
from scheduler.timing.durations import parse_duration

F = TypeVar("F", bound=Callable[..., Output | None])

LIMIT = ContextVar("limit", default=timedelta(seconds=30))
"""The --timeout of a command: how long the broker may be silent."""


class Group(TyperGroup):
    """List the commands of a group if a name is unknown."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        if args[0] not in self.commands and not ctx.resilient_parsing:
            ctx.fail(no_such("command", args[0], self.commands))
        return super().resolve_command(ctx, args)


class StrictCommand(TyperCommand):
    """Say which arguments it takes, if there are more, or one is not text."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        for each in args:
            if any("\ud800" <= char <= "\udfff" for char in each) and not Path(each).exists():
                ctx.fail(f"{each!r} is neither UTF-8 text nor an existing file.")
        rest = super().parse_args(ctx, args)
        if rest and not (ctx.ignore_unknown_options or ctx.resilient_parsing):
            found = (each for each in self.params if isinstance(each, TyperArgument))
            takes = [each.metavar or str(each.name).upper() for each in found]
            ctx.fail(
                f"`{ctx.command_path}` takes {' '.join(takes) or 'no argument'}, and got "
                f"{' '.join(rest)} as well."
            )
        return rest


def new_group(help: str | None = None) -> typer.Typer:
    """Return an empty group of commands."""
    return typer.Typer(help=help, cls=Group, no_args_is_help=True, rich_markup_mode=None)


def command(
    group: typer.Typer, name: str, *, asks: bool = True, prints: bool = True, more: bool = False
) -> Callable[[F], F]:
    """Register a function as a command, which returns its output.

    Its parameter `app`, if there is one, is given the app that the argument APP names. The exit
    code is 1 if it has failed, and 2 if it was misused.

    Args:
        asks: whether it asks the broker, and so has the option --timeout.
        prints: whether it has the option --json.
        more: whether it reads arguments that are none of its parameters.
    """

    def register(function: F) -> F:
        own = inspect.signature(function).parameters
        behind = next(filter(_is_argument, own.values()), None)
        needed = behind if behind and behind.default is behind.empty else None

        @functools.wraps(function)
        def exiting(**given: Any) -> None:
            AS_JSON.set(given.get("as_json", False))
            try:
                if asks:
                    LIMIT.set(parse_duration(given["timeout"], "--timeout"))
                if "app" in own:
                    reference = given["reference"]
                    if behind:
                        reference, given[behind.name] = app_and_next(reference, given[behind.name])
                    given["app"] = ready_app(reference)
                if needed and not given[needed.name]:
                    metavar = needed.annotation.__metadata__[0].metavar
                    raise UsageError(f"The command needs the argument {metavar}: see --help.")
                output = function(**{name: given[name] for name in own})
                if output is not None:
                    print_output(output)
            except SchedulerError as error:
                print_error(error, AS_JSON.get())
                raise typer.Exit(2 if isinstance(error, UsageError) else 1) from error
            if output is not None and not output.is_fine:
                raise typer.Exit(1)

        shown = {**own, needed.name: needed.replace(default=None)} if needed else {**own}
        parameters = [APP if name == "app" else each for name, each in shown.items()]
        parameters += [JSON] * (prints and "as_json" not in own) + [TIMEOUT] * asks
        vars(exiting)["__signature__"] = inspect.Signature(parameters)
        unknown = {"allow_extra_args": True, "ignore_unknown_options": more}
        group.command(name, cls=StrictCommand, context_settings=unknown)(exiting)
        return function

    return register


def _is_argument(parameter: inspect.Parameter) -> bool:
    metadata = getattr(parameter.annotation, "__metadata__", ())
    return any(isinstance(each, ArgumentInfo) for each in metadata)


def app_and_next(reference: str | None, name: str | None) -> tuple[str | None, str | None]:
    """Split APP, which may be left out, from the argument behind it."""
    if name is None and reference and not names_app(reference) and is_app_named():
        return None, reference
    return reference, name


# A shell completes names in the code of the app, besides commands and options. The broker is not
# asked, so keyed loops are missing. Without an app, or if its import fails, there are no
# completions and no errors: the user is in the middle of a line.


def _names_to_complete(context: typer.Context) -> tuple[list[str], list[str]]:
    """Return the names of the app's loops, and of its tasks."""
    # Before an option that has no value yet, arguments are not given to their parameters.
    reference = context.params.get("reference") or next(iter(context.args), None)
    # Output of the code would count as completions.
    with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
        try:
            app = load_app(reference)
        except SchedulerError:
            return [], []
    return [str(loop) for loop in app.loops], [*app.tasks]


def _loops(context: typer.Context) -> list[str]:
    return _names_to_complete(context)[0]


def _loops_and_tasks(context: typer.Context) -> list[str]:
    return [*dict.fromkeys(chain(*_names_to_complete(context)))]


def _loops_if_any(context: typer.Context) -> list[str]:
    """Complete LOOP in the place of APP, which may be left out."""
    has_loop = any(each.name == "loop" for each in context.command.params)
    return _loops(context) if has_loop else []


def tasks_to_complete(context: typer.Context) -> list[str]:
    return _names_to_complete(context)[1]


AppArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="APP",
        autocompletion=_loops_if_any,
        help="The app, as module:attribute or path/to/file.py:attribute (by default: app). Else "
        "SCHEDULER_APP, else [tool.scheduler] app in pyproject.toml, here or in a parent folder.",
    ),
]
LoopArgument = Annotated[
    str,
    typer.Argument(
        metavar="LOOP",
        autocompletion=_loops,
        help="The loop, as `scheduler status` names it: report, or digest.user-42 of a keyed one. "
        "Required.",
    ),
]
OneLoopOrTask = Annotated[
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
    typer.Argument(metavar="LOOP", autocompletion=_loops, help="Show only this loop."),
]
RunArgument = Annotated[
    str,
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
Yes = Annotated[bool, typer.Option("--yes", help="Delete without confirmation.")]
Timeout = Annotated[str, typer.Option(help="Wait up to this long for the broker.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Print the changes without making them.")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for programs.")]
APP, JSON, TIMEOUT = (
    inspect.Parameter(name, kind, default=default, annotation=annotation)
    for name, kind, default, annotation in (
        ("reference", inspect.Parameter.POSITIONAL_OR_KEYWORD, None, AppArgument),
        ("as_json", inspect.Parameter.KEYWORD_ONLY, False, Json),
        ("timeout", inspect.Parameter.KEYWORD_ONLY, "30s", Timeout),
    )
)
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


def require_confirmation(question: str, *, yes: bool) -> None:
    """Ask a question, unless --yes answers it; any other answer ends the command."""
    if yes:
        return
    if AS_JSON.get():
        raise UsageError("Nothing was deleted: with --json, confirm with --yes.")
    typer.confirm(question, abort=True, err=True)
