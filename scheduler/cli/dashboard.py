"""Serve the dashboard: `scheduler dashboard`."""

import asyncio
import inspect
from collections.abc import Sequence
from pathlib import Path
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


@command(cli, "dashboard", asks=False, prints=False)
def show(
    reference: AppArgument = None,
    host: Annotated[
        str,
        typer.Option(
            help="The address to listen on. If other machines can reach it, --access, "
            "--basic-auth, --user-header or --read-only is required."
        ),
    ] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(min=0, max=65535, help="The port; 0: any free port.")
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
    basic_auth: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="A file with a user on each line: NAME:PASSWORD or NAME:PASSWORD:ACTIONS. ACTIONS "
            "is all, read-only, or a list such as pause,resume.",
        ),
    ] = None,
    user_header: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The header in which an authenticating proxy names the user. Needs --trust.",
        ),
    ] = None,
    trust: Annotated[
        list[str] | None,
        typer.Option(
            metavar="ADDRESS", help="An address or a network of that proxy. Can be repeated."
        ),
    ] = None,
    root_path: Annotated[
        str, typer.Option(metavar="PREFIX", help="The path at which a proxy shows the dashboard.")
    ] = "",
    redact: Annotated[
        str | None,
        typer.Option(
            metavar="MODULE:FUNCTION",
            help="A function of a task's name and a value that returns the value to show.",
        ),
    ] = None,
    log_format: LogFormat = None,
) -> None:
    """Serve a dashboard of loops, runs and failures.

    The dashboard follows the journal and the roster, so it works without a processor. The command
    needs the extra `dashboard`.

    Example: scheduler dashboard shop:app --port 8080
    """
    dashboard.require()
    app = ready_app(reference, log_format=log_format)
    remote_broker(app)  # rejects the embedded one
    if sum(each is not None for each in (access, basic_auth, user_header)) > 1:
        raise UsageError("Give one of --access, --basic-auth and --user-header.")
    if (user_header is None) != (not trust):
        raise UsageError("--user-header and --trust belong together: give both, or none.")
    pages = dashboard.dashboard(
        app,
        access=_access(access, basic_auth, user_header, trust or (), host, read_only),
        read_only=read_only,
        redact=None if redact is None else cast("dashboard.Redact", object_named(redact)),
    )
    asyncio.run(_serve(app, pages, host, port, root_path))


def _access(
    reference: str | None,
    users: Path | None,
    header: str | None,
    trusted: Sequence[str],
    host: str,
    read_only: bool,
) -> "dashboard.Access | None":
    """Return the access rules, which other machines need; None: this machine alone."""
    from scheduler.dashboard.access import Visitor, basic_access, header_access, is_local

    if header is not None:
        return header_access(header, trusted)
    if users is not None:
        try:
            return basic_access(users.read_text().splitlines())
        except (OSError, ValueError) as error:
            raise UsageError(f"--basic-auth: {users} cannot be read: {error}.") from None
    if reference is not None:
        found: Any = object_named(reference)
        if not callable(found) or inspect.isclass(found):
            raise UsageError(f"--access names a function of the request, got {reference!r}.")
        return cast("dashboard.Access", found)
    if is_local(host):
        return None
    if not read_only:
        raise UsageError(
            f"Other machines can reach {host!r}, and would have all rights. Nothing was started: "
            "give --access, --basic-auth, --user-header or --read-only, or omit --host."
        )
    return lambda _: Visitor("anybody", "read-only")


async def _serve(app: Scheduler, pages: Any, host: str, port: int, root_path: str) -> None:
    from scheduler.dashboard.serving import prefixed, serving

    stopped = asyncio.Event()
    on_signal(lambda _: stopped.set())
    if prefix := f"/{root_path.strip('/')}".rstrip("/"):
        pages = prefixed(pages, prefix)
    async with serving(pages, host, port) as address:
        print_line(f"the dashboard of {app.namespace}: {address}")
        await stopped.wait()
