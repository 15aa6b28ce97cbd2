"""`scheduler dashboard`: the pages beside any broker."""

import asyncio
import inspect
from typing import Annotated, Any, cast

import typer

from scheduler import dashboard
from scheduler.app import Scheduler
from scheduler.cli.arguments import AppArgument, LogFormat, command, new_group
from scheduler.cli.connecting import remote_broker
from scheduler.cli.loading import object_named, ready_app
from scheduler.cli.printing import print_line
from scheduler.cli.processing import DEFAULT_PORT, on_signal
from scheduler.errors import UsageError

cli = new_group()


@command(cli, "dashboard", asks=False)
def show(
    reference: AppArgument = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to answer at. Where others reach it, --access or --read-only is "
            "needed."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0: any that is free.")
    ] = DEFAULT_PORT,
    read_only: Annotated[
        bool,
        typer.Option("--read-only", help="Disable all actions; the dashboard is read-only."),
    ] = False,
    access: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A function of the request that returns a scheduler.dashboard.Visitor, or None.",
        ),
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Show what runs in a browser.

    It follows the journal and the roster; no processor needs to be there. It needs the extra
    `dashboard`.
    """
    dashboard.require()
    app = ready_app(reference, log_format=log_format)
    remote_broker(app)  # refuses the embedded one
    asyncio.run(_serve(app, host, port, read_only, _access(access, host, read_only)))


def _access(reference: str | None, host: str, read_only: bool) -> "dashboard.Access | None":
    """Return who may look, if that is not this machine alone.

    Raises:
        UsageError: others reach it, and nobody said what they may do.
    """
    from scheduler.dashboard.access import Visitor, is_local

    if reference is not None:
        found: Any = object_named(reference)
        if not callable(found) or inspect.isclass(found):
            raise UsageError(f"--access names a function of the request, got {reference!r}.")
        return cast("dashboard.Access", found)
    if is_local(host):
        return None
    if not read_only:
        raise UsageError(
            f"Others than this machine reach {host!r}, and could do all that you can. Nothing was "
            "started: say who may do what by --access MODULE:FUNCTION, or give --read-only, or "
            "leave --host out."
        )
    return lambda _: Visitor("anybody", "read-only")


async def _serve(
    app: Scheduler,
    host: str,
    port: int,
    read_only: bool,
    access: "dashboard.Access | None",
) -> None:
    from scheduler.dashboard.serving import serving

    stopped = asyncio.Event()
    on_signal(lambda _: stopped.set())
    pages = dashboard.dashboard(app, access=access, read_only=read_only)
    async with serving(pages, host, port) as address:
        print_line(f"the dashboard of {app.namespace}: {address}")
        await stopped.wait()
