"""The stylesheet and the script: our own, and all that pages load."""

import hashlib
from importlib.resources import files

from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
FOR_EVER = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
}


def _read() -> dict[str, bytes]:
    folder = files("scheduler.dashboard") / "static"
    return {
        each.name: each.read_bytes()
        for each in folder.iterdir()
        if each.name.rpartition(".")[2] in KINDS
    }


_ASSETS = _read()
VERSION = hashlib.sha256(b"".join(_ASSETS[name] for name in sorted(_ASSETS))).hexdigest()[:12]
"""What changes with any of them, so that browsers keep each for ever."""


async def answer(request: Request) -> Response:
    """One of them."""
    name = request.path_params["name"]
    if name not in _ASSETS:
        return PlainTextResponse("There is no such file.", 404)
    return Response(_ASSETS[name], headers=FOR_EVER, media_type=KINDS[name.rpartition(".")[2]])
