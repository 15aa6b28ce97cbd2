"""The parts of a dashboard, put together."""

from collections.abc import Callable
from functools import partial

from starlette.applications import Starlette

from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import is_embedded
from scheduler.brokers.opening import broker_of
from scheduler.dashboard.access import Access, Forms, local_access
from scheduler.dashboard.routes import LOCAL_ONLY, Routes
from scheduler.dashboard.site import Site
from scheduler.errors import SettingsError
from scheduler.timing.clock import SystemClock


def build(
    app: Scheduler,
    *,
    access: Access | None,
    read_only: bool,
    connect: Callable[[], Broker] | None = None,
) -> Starlette:
    """A dashboard of an app, not yet started."""
    if connect is None and is_embedded(app.settings):
        raise SettingsError(
            "memory:// lives within one process, so there is nothing to look at beside it: "
            "use `scheduler dev --dashboard`, or set SCHEDULER_BROKER_URL to a RabbitMQ."
        )
    connect = connect or partial(broker_of, app.settings, emit=app.events.emit, patient=True)
    site = Site(app, connect, SystemClock(), access or local_access, read_only)
    return Routes(site, Forms(), refusal="" if access else LOCAL_ONLY).app()
