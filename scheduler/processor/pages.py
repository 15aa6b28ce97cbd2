"""Pages about a processor, over HTTP: by a thread, which answers when the event loop cannot."""

import os
import socket
import threading
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from socketserver import ThreadingMixIn
from typing import Any
from wsgiref.simple_server import WSGIRequestHandler, WSGIServer
from wsgiref.types import StartResponse, WSGIApplication, WSGIEnvironment

from scheduler.errors import PortUnavailable

SLOWEST_CLIENT_S = 5.0


@contextmanager
def serving(port: int, pages: Mapping[str, WSGIApplication]) -> Generator[None]:
    """Answer at a port of all addresses, inside the block.

    Args:
        pages: what answers, by path.

    Raises:
        PortUnavailable: the port is taken, or may not be listened on.
    """
    try:
        listening = _listening(port)
    except OSError as error:
        raise PortUnavailable(
            f"Port {port} cannot be listened on: {os.strerror(error.errno or 0)}. Nothing was "
            "started. Choose another one: two processors on one machine need a port each."
        ) from None
    with _Server(listening, pages) as server:
        threading.Thread(target=server.serve_forever, name=f"pages {port}", daemon=True).start()
        try:
            yield
        finally:
            server.shutdown()


def _listening(port: int) -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", port))


class _Server(ThreadingMixIn, WSGIServer):
    daemon_threads = True

    def __init__(self, listening: socket.socket, pages: Mapping[str, WSGIApplication]) -> None:
        # Not bound by its own means: http.server would look up a name for the address, which takes
        # long where DNS does not answer.
        super().__init__(listening.getsockname()[:2], _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.server_name, self.server_port = listening.getsockname()[:2]
        self.setup_environ()
        self.set_app(self._answer)
        self._pages = pages

    def _answer(self, environ: WSGIEnvironment, start: StartResponse) -> Any:
        page = self._pages.get(environ.get("PATH_INFO", ""))
        if page is not None:
            return page(environ, start)
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [f"There are: {', '.join(self._pages)}\n".encode()]


class _Handler(WSGIRequestHandler):
    timeout = SLOWEST_CLIENT_S

    def log_message(self, format: str, *args: Any) -> None:
        """Not a line per probe."""
