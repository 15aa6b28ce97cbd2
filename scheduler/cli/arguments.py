"""What was typed, read where it needs more than the parser: which words are the app, and spans."""

from datetime import datetime, timedelta

from scheduler.cli.loading import FORMS, names_app
from scheduler.errors import ScheduleError, UsageError
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import utc_of


def app_and_rest(app: str | None, rest: list[str], what: str) -> tuple[str | None, list[str]]:
    """APP may be left out."""
    if app is not None and not names_app(app):
        app, rest = None, [app, *rest]
    if not rest:
        raise UsageError(f"The command needs {what}: see --help.")
    return app, rest


def app_and_one(app: str | None, name: str | None, what: str) -> tuple[str | None, str]:
    """The same, where exactly one argument follows."""
    app, names = app_and_rest(app, [name] if name else [], what)
    if len(names) > 1:
        raise UsageError(f"An app is named as {FORMS}, got {names[0]!r}.")
    return app, names[0]


def span_of(option: str, text: str) -> timedelta:
    """The span that an option was given."""
    try:
        return parse_duration(text)
    except ScheduleError as error:
        raise UsageError(f"{option}: {error}") from None


def moment_of(option: str, text: str) -> datetime:
    """The moment that an option was given; without an offset, on the clock of this machine."""
    try:
        return utc_of(datetime.fromisoformat(text).astimezone())
    except (ValueError, OverflowError):
        raise UsageError(
            f"{option}: expected a moment such as 2026-06-01T09:00:00+02:00, got: {text!r}"
        ) from None
    except ScheduleError as error:
        raise UsageError(f"{option}: {error}") from None
