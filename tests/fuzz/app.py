"""The app of a field, for commands: they look at what it parked, and run nothing."""

import os

from tests.fuzz.field import Record, app_of

app = app_of(
    os.environ["NAMESPACE"],
    os.environ["SCHEDULER_BROKER_URL"],
    "classic" if os.environ.get("SCHEDULER_QUEUE_TYPE") == "classic" else "quorum",
    Record(),
)
