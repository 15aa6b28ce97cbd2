"""Finding the app that a command is about."""

import importlib
import importlib.util
import os
import sys
import tomllib
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from scheduler.app import Scheduler
from scheduler.cli.importing import importing
from scheduler.errors import AppNotFound, UsageError

FORMS = "`module:attribute` or `path/to/file.py:attribute`"


def ready_app(reference: str | None, *, log_format: str | None = None) -> Scheduler:
    """The app that a command is about, once this process logs as the app's settings say.

    Args:
        log_format: instead of the one in the settings.

    Raises:
        AppNotFound: there is none.
        UsageError: it has no tasks, or there is no such format.
    """
    from scheduler.cli import logs

    app = app_with_tasks(reference)
    style = log_format or app.settings.log_format
    if style not in logs.FORMATTERS:
        raise UsageError(f"--log-format is {', '.join(logs.FORMATTERS)}, got {style!r}.")
    logs.configure(app.settings.log_level, style)
    app.events.listen(logs.log_event, *logs.told())
    return app


def app_with_tasks(reference: str | None) -> Scheduler:
    """The same for a command that needs no settings, and logs nothing.

    Raises:
        AppNotFound: there is none.
        UsageError: it has no tasks.
    """
    app = load_app(reference)
    if not app.tasks:
        raise UsageError(
            f"The app of namespace {app.namespace!r} has no tasks: register one with @app.periodic."
        )
    return app


def names_app(text: str) -> bool:
    """Whether an argument names an app, not a loop or a message."""
    return ":" in text or _is_file_alone(text)


def load_app(reference: str | None) -> Scheduler:
    """The app of a reference; without one, of `SCHEDULER_APP` or of pyproject.toml.

    Raises:
        AppNotFound: there is none; the message says where it was looked for, and what to write.
        UsageError: its module cannot be imported; the message says where in it, and why.
    """
    reference = reference or os.environ.get("SCHEDULER_APP") or _from_pyproject()
    if not reference:
        raise AppNotFound(
            f"No app was named. Name it as {FORMS}, set SCHEDULER_APP, or write "
            '`app = "module:attribute"` under [tool.scheduler] in pyproject.toml.'
        )
    whole = f"{reference}:app" if _is_file_alone(reference) else reference
    place, separator, attribute = whole.rpartition(":")
    if not separator or not place or not attribute:
        raise AppNotFound(f"An app is named as {FORMS}, got {reference!r}.")
    with importing(place):
        module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    return _attribute(module, attribute, whole)


def object_named(reference: str) -> object:
    """What a reference such as `module:attribute` names.

    Raises:
        AppNotFound: there is nothing of this name.
        UsageError: its module cannot be imported.
    """
    place, separator, attribute = reference.rpartition(":")
    if not separator or not place or not attribute:
        raise AppNotFound(f"It is named as {FORMS}, got {reference!r}.")
    with importing(place):
        module = _from_file(Path(place)) if place.endswith(".py") else _from_module(place)
    if not hasattr(module, attribute):
        raise AppNotFound(f"{place!r} has no {attribute!r}.")
    return getattr(module, attribute)


def _is_file_alone(text: str) -> bool:
    """Whether it is a file without an attribute, which is taken for its `:app`."""
    return text.endswith(".py") and Path(text).is_file()


def _from_pyproject() -> str | None:
    path = Path("pyproject.toml")
    if not path.is_file():
        return None
    try:
        tool: Any = tomllib.loads(path.read_text(encoding="utf-8")).get("tool")
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise AppNotFound(f"pyproject.toml cannot be read: {error}.") from None
    section = _get(tool, "scheduler")
    app = _get(section, "app")
    if app is not None and not isinstance(app, str):
        raise AppNotFound(
            'Under [tool.scheduler] in pyproject.toml, write `app = "module:attribute"`, '
            f"not {app!r}."
        )
    return app


def _get(table: Any, name: str) -> Any:
    return cast(Any, table).get(name) if isinstance(table, dict) else table


def _from_file(path: Path) -> ModuleType:
    if not path.is_file():
        raise AppNotFound(f"There is no file {str(path)!r} in {str(Path.cwd())!r}.")
    if path.stem == "scheduler":
        raise AppNotFound(
            f"{str(path)!r} would hide the package `scheduler` that it imports: rename the file."
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise AppNotFound(f"{str(path)!r} cannot be imported.")
    module = importlib.util.module_from_spec(spec)
    # As when it is run: what lies beside the file can be imported, and its classes be found.
    sys.path.insert(0, str(path.parent.resolve()))
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def _from_module(name: str) -> ModuleType:
    if not all(part.isidentifier() for part in name.split(".")):
        raise AppNotFound(f"{name!r} is not the name of a module. An app is named as {FORMS}.")
    sys.path.insert(0, str(Path.cwd()))
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name is None or not f"{name}.".startswith(f"{error.name}."):
            raise  # the module is there; one that it imports is not
        raise AppNotFound(
            f"There is no module {name!r}. Modules are looked for in {str(Path.cwd())!r} and "
            "where Python is installed; a file is named with its `.py`."
        ) from None


def _attribute(module: ModuleType, attribute: str, reference: str) -> Scheduler:
    found = getattr(module, attribute, None)
    if isinstance(found, Scheduler):
        return found
    apps = [name for name, value in vars(module).items() if isinstance(value, Scheduler)]
    hint = f"It has {', '.join(map(repr, apps))}." if apps else "It has no Scheduler at all."
    what = "no such attribute" if found is None else f"a {type(found).__name__}"
    raise AppNotFound(f"{reference!r} is not an app: {attribute!r} is {what}. {hint}")
