"""Find the app of a command, import its code, and log its events.

An error in that code is reported in a line, with the lines of it that led there. Each log line of a
run names its loop and seq.
"""

import importlib
import importlib.util
import json
import logging
import os
import sys
import sysconfig
import tomllib
import traceback
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager, redirect_stdout
from dataclasses import fields
from datetime import UTC, datetime, timedelta
from enum import Enum
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, cast

import scheduler
from scheduler.app import Scheduler
from scheduler.cli.printing import AS_JSON
from scheduler.errors import AppNotFound, LifespanError, UsageError
from scheduler.events import Escalated, Event, RunEvent
from scheduler.protocol.messages import flat, printable, summary_of
from scheduler.protocol.tokens import LoopId, Token
from scheduler.spelling import no_such
from scheduler.tasks.context import current_run
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.moments import time_of_day
from scheduler.user_code import traceback_of

FORMS = "`module:attribute` or `path/to/file.py:attribute`"
OURS = (str(Path(scheduler.__file__).parent), str(importlib.__file__), "<frozen ")
INSTALLED = (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib"))


def ready_app(reference: str | None, *, log_format: str | None = None) -> Scheduler:
    """Return the app of a command, after setting up logging as its settings or the format say."""
    app = app_with_tasks(reference)
    style = log_format or app.settings.log_format
    if style not in FORMATTERS:
        raise UsageError(f"--log-format is {', '.join(FORMATTERS)}, got {style!r}.")
    configure(app.settings.log_level, style)
    app.events.listen(log_event, *logged_events())
    return app


def app_with_tasks(reference: str | None) -> Scheduler:
    """Return the app of a command that needs no settings, and logs nothing."""
    app = load_app(reference)
    if not app.tasks:
        raise UsageError(
            f"The app of namespace {app.namespace!r} has no tasks: register one with @app.periodic."
        )
    return app


def names_app(text: str) -> bool:
    """Return whether an argument names an app, not a loop or a message."""
    return ":" in text or text.endswith(".py")


def load_app(reference: str | None) -> Scheduler:
    """Import the app of a reference; without one, of `SCHEDULER_APP` or of pyproject.toml.

    Raises:
        AppNotFound: there is none; the message says where it was looked for, and what to write.
        UsageError: its module cannot be imported; the message says where in it, and why.
    """
    place = Path.cwd()
    named, where = reference or os.environ.get("SCHEDULER_APP"), ""
    if not reference:
        where = " SCHEDULER_APP names it."
    if not named:
        named, place = _in_pyproject(place)
        where = f" {place / 'pyproject.toml'} names it."
    is_alone = named.endswith(".py") or ":" not in named
    whole = f"{named}:app" if is_alone else named
    # The output of a command is one JSON document, whatever its module prints.
    stdout = sys.stderr if AS_JSON.get() else sys.stdout
    try:
        with redirect_stdout(stdout):
            module, attribute = _module_and_name(whole, "An app", place)
        return _app_in(module, attribute, whole)
    except AppNotFound as error:
        raise AppNotFound(f"{error}{where}") from None


def is_app_named() -> bool:
    """Return whether SCHEDULER_APP or a pyproject.toml names an app."""
    try:
        return bool(os.environ.get("SCHEDULER_APP") or _in_pyproject(Path.cwd()))
    except AppNotFound:
        return False


def object_named(reference: str, option: str) -> object:
    """Import the object that an option names, such as `module:attribute`."""
    module, attribute = _module_and_name(reference, f"The object of {option}", Path.cwd())
    if not hasattr(module, attribute):
        raise AppNotFound(f"{reference.rpartition(':')[0]!r} has no {attribute!r}.")
    return getattr(module, attribute)


def _in_pyproject(place: Path) -> tuple[str, Path]:
    """Find the reference in a pyproject.toml, here or above, and its folder."""
    for folder in (place, *place.parents):
        section = _section(folder / "pyproject.toml")
        if unknown := section.keys() - {"app"}:
            problem = no_such("key", min(unknown), ["app"])
            raise UsageError(f"{folder / 'pyproject.toml'}, [tool.scheduler]: {problem}")
        if app := section.get("app"):
            return app, folder
    raise AppNotFound(
        f"No app was named. Name it as {FORMS}, set SCHEDULER_APP, or write "
        '`app = "module:attribute"` under [tool.scheduler] in pyproject.toml.'
    )


def _section(path: Path) -> Mapping[str, Any]:
    """Read [tool.scheduler] of a pyproject.toml; empty if there is none."""
    if not path.is_file():
        return {}
    try:
        document: Any = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AppNotFound(f"{path} cannot be read: {error}.") from None
    match document:
        case {"tool": {"scheduler": {"app": app}}} if not isinstance(app, str):
            raise AppNotFound(
                'Under [tool.scheduler] in pyproject.toml, write `app = "module:attribute"`, '
                f"not {app!r}."
            )
        case {"tool": {"scheduler": dict()}}:
            return cast("Mapping[str, Any]", document["tool"]["scheduler"])
        case _:
            return {}


def _module_and_name(reference: str, what: str, folder: Path) -> tuple[ModuleType, str]:
    """Import the module of a reference, which is relative to a folder."""
    place, _, attribute = reference.rpartition(":")
    if not place or not attribute:
        raise AppNotFound(f"{what} is named as {FORMS}, got {reference!r}.")
    with importing(place):
        is_file = place.endswith(".py")
        module = _from_file(place, folder) if is_file else _from_module(place, folder)
    return module, attribute


def _from_file(name: str, folder: Path) -> ModuleType:
    path = folder / name
    if not path.is_file():
        raise AppNotFound(f"There is no file {name!r} in {str(folder)!r}.")
    if path.stem == "scheduler":
        raise AppNotFound(
            f"{name!r} would hide the package `scheduler` that it imports: rename the file."
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise AppNotFound(f"{name!r} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # As when it is run: modules in its folder can be imported, and its classes found.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_module(name: str, folder: Path) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise AppNotFound(f"{name!r} is not the name of a module. An app is named as {FORMS}.")
    sys.path.insert(0, str(folder))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module exists; one that it imports does not
        raise AppNotFound(
            f"There is no module {name!r}. Modules are looked for in {str(folder)!r} and "
            "where Python is installed; a file is named with its `.py`, and a loop after its app."
        ) from None


def _app_in(module: ModuleType, attribute: str, reference: str) -> Scheduler:
    found = getattr(module, attribute, None)
    if isinstance(found, Scheduler):
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, Scheduler)]
    hint = f"It has {', '.join(map(repr, apps))}." if apps else "It has no Scheduler."
    if isinstance(found, FunctionType):
        hint = f"If it returns one, write `app = {attribute}()` in the module."
    problem = f"the module has no {attribute!r}"
    if found is not None:
        problem = f"{attribute!r} is of type {type(found).__name__}"
    raise AppNotFound(f"{reference!r} is not an app: {problem}. {hint}")


@contextmanager
def importing(place: str) -> Generator[None]:
    """Add the place in the imported code to errors inside the block."""
    try:
        yield
    except (AppNotFound, KeyboardInterrupt):
        raise
    except UsageError as error:
        where = "".join(f" ({each.filename}, line {each.lineno})" for each in _theirs(error)[-1:])
        raise type(error)(f"{error}{where}") from None
    except BaseException as error:  # a module that calls sys.exit() would choose the exit code
        problem = f"{place} cannot be imported: {summary_of(error)}"
        if isinstance(error, ImportError) and "no known parent package" in str(error):
            problem += "; name a module of a package as `package.module`"
        raise UsageError(_with_lines(problem, error)) from error


@contextmanager
def in_lifespan() -> Generator[None]:
    """Add the place in the lifespan to errors inside the block."""
    try:
        yield
    except LifespanError as error:
        cause = error.__cause__ or error
        raise LifespanError(_with_lines(str(error), cause)) from cause


def _with_lines(problem: str, error: BaseException) -> str:
    lines = traceback.format_list(_theirs(error))
    return printable(f"{problem}\n{''.join(lines)}".rstrip())


def _theirs(error: BaseException) -> list[traceback.FrameSummary]:
    """Return the lines of the user's code that led to an error; or else of its libraries."""
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(OURS)
    ]
    return [each for each in frames if not each.filename.startswith(INSTALLED)] or frames


logger = logging.getLogger("scheduler")
LOG_INDENT = "  "


def configure(level: str, style: str) -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(FORMATTERS[style]())
    handler.addFilter(_mark_with_run)
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)


def logged_events() -> list[type[Event]]:
    """Return the events that may have a line at the level of this process."""
    kinds = [*Event.__subclasses__(), *RunEvent.__subclasses__()]
    return [kind for kind in kinds if logger.isEnabledFor(kind.level)]


def log_event(event: Event) -> None:
    """Log an event: a listener."""
    level = event.severity
    if isinstance(event, RunEvent) and event.loop == SUPERVISION and level == logging.INFO:
        level = logging.DEBUG  # too frequent
    if level and logger.isEnabledFor(level):
        error = event.error if isinstance(event, Escalated) else None
        logger.log(level, flat(event.words), exc_info=error, extra={"event": event})


class TextFormatter(logging.Formatter):
    """Format a line: `10:46:08.320 INFO    heartbeat #12  succeeded in 3 ms, next at 10:46:09.320`

    Further lines, such as those of a traceback, are indented, so none looks like a log line.
    """

    def format(self, record: logging.LogRecord) -> str:
        name, mark = _run_of(record)
        # Enough of a message ID to tell a few apart; JSON has all of it.
        short = f"#{mark}" if isinstance(mark, int) else flat(mark)[:8]
        about = f"{name} {short}  " if name else ""
        line = f"{self.time_of(record)} {record.levelname:7} {about}{record.getMessage()}"
        text = "\n".join([line, *_details(record)])
        return printable(text).replace("\n", f"\n{LOG_INDENT}")

    def time_of(self, record: logging.LogRecord) -> str:
        """Return the time, as its line begins."""
        return time_of_day(_moment(record))


class DatedFormatter(TextFormatter):
    """Add the date and the UTC offset: `2026-11-23 10:46:08.320+01:00 INFO    ...`"""

    def time_of(self, record: logging.LogRecord) -> str:
        return _moment(record).astimezone().isoformat(" ", timespec="milliseconds")


class JsonFormatter(logging.Formatter):
    """Format one JSON object a line: at, level, logger, message, event and its fields.

    Lines of a run have its loop and seq too, those of a one-off call its task and message_id.
    """

    def format(self, record: logging.LogRecord) -> str:
        name, mark = _run_of(record)
        line: dict[str, Any] = {
            "at": _moment(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
        }
        if name and isinstance(mark, int):
            line |= {"loop": name, "seq": mark}
        elif name:
            line |= {"task": name, "message_id": mark}
        line["message"] = record.getMessage()
        if (event := getattr(record, "event", None)) is not None:
            line |= {"event": type(event).__name__} | _fields(event)
        if details := _details(record):
            line["traceback"] = "\n".join(details)
        return json.dumps(line, default=_plain)


FORMATTERS: Mapping[str, Callable[[], logging.Formatter]] = {
    "text": TextFormatter,
    "dated": DatedFormatter,
    "json": JsonFormatter,
}


def _details(record: logging.LogRecord) -> list[str]:
    text = record.exc_text  # of one that was made in another process
    if not text and record.exc_info and (error := record.exc_info[1]) is not None:
        text = "".join(traceback_of(error)).removesuffix("\n")
    return [each for each in (text, record.stack_info) if each]


def _mark_with_run(record: logging.LogRecord) -> bool:
    record.run = current_run.get()
    return True


def _run_of(record: logging.LogRecord) -> tuple[str, int | str]:
    event = getattr(record, "event", None)
    if isinstance(event, RunEvent):
        return str(event.loop), event.message_id if event.seq is None else event.seq
    return getattr(record, "run", None) or ("", 0)


def _fields(event: Event) -> dict[str, Any]:
    values = {field.name: getattr(event, field.name) for field in fields(event)}
    if isinstance(event, RunEvent):
        for already_there in ("loop", "seq", "message_id"):
            del values[already_there]
    return {
        f"{name}_ms" if isinstance(value, timedelta) else name: _plain(value)
        for name, value in values.items()
    }


def _plain(value: Any) -> Any:
    match value:
        case timedelta():
            return value / timedelta(milliseconds=1)
        case datetime():
            return value.isoformat(timespec="milliseconds")
        case BaseException():
            return summary_of(value)
        case Enum():
            return value.value
        case LoopId():
            return str(value)
        case Token():
            return {"seq": value.seq, "due_at": _plain(value.due_at)}
        case str() | int() | float() | tuple() | None:
            return cast(object, value)
        case _:
            return str(value)


def _moment(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)
