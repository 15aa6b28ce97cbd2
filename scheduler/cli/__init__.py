"""The command line: `commands` declares what can be typed, a module for each subject does it.

Those are loaded when they are first asked for: help needs none of them.
"""

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from scheduler.cli import (
        completion,
        dashboarding,
        diagnosis,
        failed,
        history,
        imports,
        liveness,
        printing,
        processing,
        runs,
        scheduled,
        schedules,
        seeding,
        status,
        syncing,
        topology,
        upcoming,
        verbs,
        versions,
        watching,
    )
else:

    def __getattr__(name):
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return importlib.import_module(f"{__name__}.{name}")


__all__ = [
    "completion",
    "dashboarding",
    "diagnosis",
    "failed",
    "history",
    "imports",
    "liveness",
    "printing",
    "processing",
    "runs",
    "scheduled",
    "schedules",
    "seeding",
    "status",
    "syncing",
    "topology",
    "upcoming",
    "verbs",
    "versions",
    "watching",
]
