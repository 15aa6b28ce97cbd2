"""`scheduler status --watch`."""

import asyncio
import sys
from datetime import datetime, timedelta

from rich.console import Group
from rich.live import Live
from rich.text import Text

from scheduler.app import Scheduler
from scheduler.brokers.cancellation import cancelled
from scheduler.cli.arguments import span_of
from scheduler.cli.connecting import connected
from scheduler.cli.loading import app_with_tasks
from scheduler.cli.printing import exact, rough
from scheduler.cli.status import Picture, lines_of, picture_of
from scheduler.cli.tables import BAD, console
from scheduler.errors import BrokerError, UsageError
from scheduler.program import Program
from scheduler.timing.clock import SystemClock

LEAST = timedelta(seconds=1)
COUNT_EVERY = timedelta(seconds=30)
NO_CONNECTION = "there is no connection to the broker, it is tried again"


def watch(reference: str | None, loop: str | None, *, interval: str, as_json: bool) -> None:
    if loop is not None or as_json or not sys.stdout.isatty():
        raise UsageError(
            "--watch shows all loops in a terminal: leave out LOOP and --json, and what the output "
            "is piped to."
        )
    span = span_of("--interval", interval)
    if span < LEAST:
        raise UsageError(f"--interval is at least 1s, got {interval!r}.")
    try:
        asyncio.run(Screen(app_with_tasks(reference), span).run())
    except KeyboardInterrupt:
        return  # as one ends it


class Screen:
    """The last picture of an app, and whether it is a new one."""

    def __init__(self, app: Scheduler, interval: timedelta) -> None:
        self._app = app
        self._interval = interval
        self._console = console()
        self._picture: Picture | None = None
        self._counted_at: datetime | None = None
        self._trouble = ""

    async def run(self) -> None:
        """Show it until somebody has seen enough; that there is none at first, is an error."""
        async with connected(self._app) as program:
            with Live(console=self._console, auto_refresh=False) as live:
                while True:
                    await self.show_next(program, live)
                    await asyncio.sleep(self._interval.total_seconds())

    async def show_next(self, program: Program, live: Live) -> None:
        """Take a picture; as long as none comes, say so."""
        taking = asyncio.create_task(self._take(program), name="picture")
        try:
            while not taking.done():
                await asyncio.wait([taking], timeout=self._interval.total_seconds())
                if not taking.done():
                    away = "the broker has not answered yet"
                    self._trouble = away if program.broker.connected else NO_CONNECTION
                live.update(self._shown(), refresh=True)
            taking.result()
        finally:
            await cancelled(taking)

    async def _take(self, program: Program) -> None:
        try:
            statuses = await program.survey.status()
            now = SystemClock().now()
            is_new = self._counted_at is None or now - self._counted_at >= COUNT_EVERY
            counts = None if is_new or self._picture is None else self._picture.counts
            self._counted_at = now if is_new else self._counted_at
            self._picture = await picture_of(self._app, program, statuses, counts)
            self._trouble = ""
        except BrokerError as error:
            if self._picture is None:
                raise
            self._trouble = str(error)

    def _shown(self) -> Group:
        if self._picture is None:
            return Group(self._title())
        lines = lines_of(self._app, self._picture, self._console.width)
        return Group(self._title(), Text(""), *lines)

    def _title(self) -> Text:
        if self._picture is None:
            return Text(f"{self._app.namespace}: {self._trouble}")
        at = exact(self._picture.at)
        if self._trouble:
            return Text(f"{self._app.namespace} as it was at {at}: {self._trouble}", BAD)
        every = rough(self._interval)
        return Text(f"{self._app.namespace} at {at}, every {every} until Ctrl-C", "bold")
