"""Run periodic jobs and delayed retries as TTL loops in RabbitMQ."""

import importlib
from typing import TYPE_CHECKING

from scheduler import errors
from scheduler.errors import *  # noqa: F403

if TYPE_CHECKING:
    from scheduler.app import Scheduler
    from scheduler.settings import Settings
    from scheduler.tasks.context import Context
    from scheduler.tasks.retries import Reject, Retry, RetryLater, StopLoop
    from scheduler.timing.schedules import Cron, Every
else:
    # Loaded when first used: every import of a part of the package imports this.
    _HOMES = {
        "Context": "scheduler.tasks.context",
        "Cron": "scheduler.timing.schedules",
        "Every": "scheduler.timing.schedules",
        "Reject": "scheduler.tasks.retries",
        "Retry": "scheduler.tasks.retries",
        "RetryLater": "scheduler.tasks.retries",
        "Scheduler": "scheduler.app",
        "Settings": "scheduler.settings",
        "StopLoop": "scheduler.tasks.retries",
    }

    def __getattr__(name):
        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(importlib.import_module(_HOMES[name]), name)
        return value

    def __dir__():
        return sorted({*globals(), *__all__})


__all__: list[str] = [
    "Context",
    "Cron",
    "Every",
    "Reject",
    "Retry",
    "RetryLater",
    "Scheduler",
    "Settings",
    "StopLoop",
]
__all__ += errors.__all__
