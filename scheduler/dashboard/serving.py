"""Serve the dashboard at a port of its own."""

import asyncio
import socket
from collections.abc import AsyncGenerator, Generator
from contextlib import asynccontextmanager, contextmanager

import uvicorn
from starlette.types import ASGIApp, Receive, Scope, Send

from scheduler.errors import PortUnavailable

GOODBYE_S = 1


class _Server(uvicorn.Server):
    """Serve without handling signals."""

    @contextmanager
    def capture_signals(self) -> Generator[None]:
        yield


@asynccontextmanager
async def serving(application: ASGIApp, host: str, port: int) -> AsyncGenerator[str]:
    """Serve inside the block; yield the address."""
    listening = _bound(host, port)
    server = _Server(
        uvicorn.Config(
            application,
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=GOODBYE_S,
        )
    )
    answering = asyncio.create_task(server.serve([listening]), name="pages of the dashboard")
    try:
        yield f"http://{f'[{host}]' if ':' in host else host}:{listening.getsockname()[1]}/"
    finally:
        server.should_exit = True
        await answering


def prefixed(application: ASGIApp, prefix: str) -> ASGIApp:
    """Return the application under a prefix of its paths, which a proxy may strip or keep."""

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http":
            path: str = scope["path"]
            if path != prefix and not path.startswith(f"{prefix}/"):
                path = prefix + path
            scope = {**scope, "root_path": prefix, "path": path}
        await application(scope, receive, send)

    return answer


def _bound(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family)
    except OSError as error:
        raise PortUnavailable(
            f"The dashboard cannot answer at {host}, port {port}: {error.strerror or error}. "
            "Nothing was started: give another --port, or --port 0 for any that is free."
        ) from None
