"""Serve the dashboard: running, due and failed work, and actions on it.

It follows the journal and the roster, and asks no processor; needs the extra `dashboard`
(Starlette, Jinja2, uvicorn).
"""

import importlib.util
from typing import TYPE_CHECKING, Any

from scheduler.errors import SettingsError
from scheduler.queues.about import DISTRIBUTION

if TYPE_CHECKING:
    from collections.abc import Callable

    from scheduler.app import Scheduler
    from scheduler.brokers.contract import Broker
    from scheduler.dashboard.access import Access, Redact, Visitor
else:

    def __getattr__(name):
        if name not in ("Access", "Redact", "Visitor"):
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        require()
        from scheduler.dashboard import access

        return getattr(access, name)


__all__ = ["Access", "Visitor", "dashboard"]

NEEDED = ("starlette", "jinja2", "uvicorn", "python_multipart")


def require() -> None:
    """Raise SettingsError unless the packages of the dashboard are installed."""
    if missing := [name for name in NEEDED if importlib.util.find_spec(name) is None]:
        raise SettingsError(
            f"The dashboard needs {', '.join(missing)}, which this Python does not have. Nothing "
            f"was started: pip install '{DISTRIBUTION}[dashboard]'."
        )


def dashboard(
    app: "Scheduler",
    *,
    access: "Access | None" = None,
    read_only: bool = False,
    connect: "Callable[[], Broker] | None" = None,
    redact: "Redact | None" = None,
) -> Any:
    """Return an ASGI application that shows an app; run it alone or mount it in another one.

    It connects when it is started, or at the first request, with the settings of the app.

    Args:
        access: a function of the request, plain or coroutine, that returns a `Visitor`, or None
            to deny access. Without it, only this machine has access, directly; and to everything.
        read_only: disable all actions.
        connect: makes the connection, which is not open yet; by default that of the settings.
        redact: a function of the name of a task and a value, that returns what visitors are shown
            of it: of arguments and headers (by name), of carried values, and of the text of a
            foreign message. Errors and tracebacks are shown as they are.

    Raises:
        SettingsError: the extra `dashboard` is not installed; or the broker is the embedded one,
            and `connect` is missing.
    """
    require()
    from scheduler.dashboard.routes import build

    return build(app, access=access, read_only=read_only, connect=connect, redact=redact)
