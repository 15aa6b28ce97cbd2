"""Beds that operators pause and resume, and a dashboard for any ASGI server."""

import os

from scheduler import Retry, Scheduler
from scheduler.dashboard import dashboard
from scheduler.dashboard.access import basic_access

BEDS = [f"bed-{number}" for number in range(5)]
NAME, PASSWORD = "alice", "secret"


def made(namespace: str) -> Scheduler:
    app = Scheduler(namespace)

    async def nothing() -> None: ...

    for bed in BEDS:
        app.periodic(name=bed, every="1h")(nothing)

    @app.task(retry=Retry(0))
    async def letter(to: str) -> None:
        raise ValueError("no address")

    return app


if "NAMESPACE" in os.environ:
    app = made(os.environ["NAMESPACE"])
    pages = dashboard(app, access=basic_access([f"{NAME}:{PASSWORD}"]))
