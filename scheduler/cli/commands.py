"""List the commands by name. Each module is loaded when its command is called."""

import errno
import gc
import importlib
import os
import platform
import sys
from collections.abc import Generator, Mapping, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated, Any, TextIO, cast

import typer
from typer.core import TyperGroup
from typer.main import get_group

WORDS, CURRENT = "COMP_WORDS", "COMP_CWORD"
MISUSE = 2
UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO, errno.EBADF)


COMMANDS: Mapping[str, tuple[str, str]] = {
    "init": ("writing", "Write a first app, its test, and a compose file with RabbitMQ."),
    "dev": ("processing", "Run everything in this process: no RabbitMQ is needed."),
    "seed": ("installation", "Declare the queues, and start loops that have not been started."),
    "run": ("processing", "Take messages and run tasks."),
    "dashboard": ("processing", "Serve a dashboard of loops, runs and failures."),
    "status": ("status", "Show where each loop is, and the backlog of tasks."),
    "census": ("installation", "Count loops, and the messages in queues and timers."),
    "next": ("schedules", "List the next times of each loop, without asking the broker."),
    "pause": ("loops", "Pause a loop, or a task with all its calls and loops."),
    "resume": ("loops", "Resume a loop at its next nominal time, or a whole task."),
    "trigger": ("loops", "Run a loop now, in addition to its schedule."),
    "send": ("messages", "Send a call to a task, and print its ID."),
    "remove": ("loops", "Remove a loop that is not in the code."),
    "sync": ("loops", "Make keyed loops match a file: start, reschedule, stop."),
    "ps": ("runs", "List the current runs: where, since when and how far."),
    "cancel": ("runs", "Cancel a run."),
    "history": ("runs", "List the history of loops, or of the calls of a task."),
    "doctor": ("installation", "Check everything that could break the guarantees."),
    "scheduled": ("loops", "List, move and cancel named one-offs."),
    "schedule": ("loops", "Override a loop's schedule without changing code."),
    "failed": ("messages", "List, show, replay, purge and restore parked messages."),
    "unsent": ("messages", "List, send and purge messages that could not be sent."),
    "topology": ("installation", "Show or export the exchanges and queues the app uses."),
    "import": ("writing", "Convert the jobs of Celery, crontabs and CronJobs to code."),
}
"""The module of each command or group, and the first sentence of its help."""
ELSEWHERE = {
    **dict.fromkeys(("beat", "celery", "start", "worker"), "run"),
    **dict.fromkeys(("call", "enqueue", "publish"), "send"),
    **dict.fromkeys(("jobs", "list", "ls", "tasks"), "status"),
    **dict.fromkeys(("kill", "revoke"), "cancel"),
    **dict.fromkeys(("flower", "web"), "dashboard"),
    **{"inspect": "ps", "logs": "history", "stop": "pause"},
    **{"delete": "remove", "help": "--help", "rm": "remove", "version": "--version"},
    **{"purge": "failed purge", "undelete": "failed restore", "retry": "failed replay"},
}
"""The names of commands in other programs of this kind, and their counterparts here."""


def loaded(name: str) -> Any:
    """Return a command or a group, from the module that declares it."""
    # What is loaded stays: to look for garbage in it, now and at exit, takes a third of the start.
    gc.disable()
    try:
        # Typer bundles click, or depends on it: no type of either can be named here.
        module: Any = importlib.import_module(f"scheduler.cli.{COMMANDS[name][0]}")
        gc.freeze()
    finally:
        gc.enable()
    group: Any = get_group(module.cli)
    return group.commands.get(name, group)


class Commands(TyperGroup):
    """List the commands, and load each when it is called, or completed."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        here = f"run {args[0]}" if args[0].endswith(".py") else ELSEWHERE.get(args[0])
        if here and not ctx.resilient_parsing:
            ctx.fail(f"No such command {args[0]!r}. Did you mean `scheduler {here}`?")
        name, found, rest = super().resolve_command(ctx, args)
        return name, found and loaded(found.name or ""), rest


cli = typer.Typer(
    name="scheduler",
    cls=Commands,
    no_args_is_help=True,
    add_completion=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
)
for _name, (_, _help) in COMMANDS.items():
    cli.command(_name, help=_help)(lambda: None)


def _print_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        from scheduler.queues.about import DISTRIBUTION

        python = platform.python_version()
        sys.stdout.write(f"scheduler {version(DISTRIBUTION)}, Python {python}\n")
        raise typer.Exit


@cli.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version",
            callback=_print_version,
            is_eager=True,
            help="Print the version of this program.",
        ),
    ] = False,
) -> None:
    """Run periodic jobs and delayed retries as TTL loops in RabbitMQ."""


def main() -> None:
    """Run the command line; exit code 0: fine, 1: something is wrong, 2: misuse."""
    if "_SCHEDULER_COMPLETE" in os.environ:
        rejoin_words(os.environ)
    with standard_streams():
        if "--json" in sys.argv:
            sys.exit(_misuse_as_json())
        cli()


def _misuse_as_json() -> int:
    """Run the command line, print the misuse it finds as JSON, and return the exit code."""
    try:
        return cli(standalone_mode=False) or 0
    except Exception as error:
        said: Any = getattr(error, "format_message", None)
        if said is None:  # it is none of the parser
            raise
        from scheduler.cli.printing import print_json

        print_json({"error": "UsageError", "message": said()})
        return MISUSE


def rejoin_words(environment: MutableMapping[str, str]) -> None:
    """Rejoin words that bash has split at their colons, as in `shop.py:app`."""
    if WORDS not in environment or CURRENT not in environment:
        return  # it is another shell
    current = int(environment[CURRENT])
    parts = environment[WORDS].split("\n")[: current + 1]
    whole = parts[:1]
    for part in parts[1:]:
        if part == ":" or whole[-1].endswith(":"):
            whole[-1] += part
        else:
            whole.append(part)
    environment[WORDS] = "\n".join(whole)
    environment[CURRENT] = str(current - len(parts) + len(whole))


@contextmanager
def standard_streams() -> Generator[None]:
    """Provide both output streams inside the block; a closed one accepts and drops everything.

    An output error is reported in a line, with exit code 1.
    """
    sys.stdout = sys.stdout or _nowhere()
    sys.stderr = sys.stderr or _nowhere()
    if (sys.stdout.encoding or "utf-8").lower() != "utf-8":  # such as cp1252 of a pipe
        cast("Any", sys.stdout).reconfigure(errors="backslashreplace")
    try:
        try:
            yield
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        _give_up_output()  # its reader has seen enough
        sys.exit(1)
    except OSError as error:
        if error.errno not in UNWRITABLE:
            raise
        _give_up_output()
        sys.stderr.write(f"scheduler: The output cannot be written: {error.strerror}.\n")
        sys.exit(1)


def _nowhere() -> TextIO:
    return Path(os.devnull).open("w", encoding="utf-8")


def _give_up_output() -> None:
    """Drop unwritten output: Python would try again at exit, and complain."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
