"""`scheduler doctor --live`: what a probe asks every few seconds."""

import typer

from scheduler.cli.loading import ready_app
from scheduler.cli.printing import print_json, print_line
from scheduler.errors import UsageError
from scheduler.processor import health
from scheduler.settings import Settings


def show(reference: str | None, port: int | None, *, as_json: bool) -> None:
    # The app is loaded only if nothing else says the port.
    port = port or Settings().health_port or ready_app(reference).settings.health_port
    if port is None:
        raise UsageError(
            "No port is known at which the processor tells of its health: give --health-port or "
            "SCHEDULER_HEALTH_PORT to `scheduler run`, and the same to this."
        )
    live, why = health.ask(port)
    if as_json:
        print_json({"live": live, "why": why})
    else:
        print_line("the processor lives" if live else f"the processor does not live: {why}")
    if not live:
        raise typer.Exit(1)
