"""Who may look at the dashboard, and do what; and whether a request is theirs. Pure."""

import hashlib
import hmac
import ipaddress
import secrets
from collections.abc import Awaitable, Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlsplit

from starlette.requests import Request

from scheduler.errors import UsageError
from scheduler.spelling import no_such

ACTIONS = (
    "pause",
    "resume",
    "trigger",
    "remove",
    "start",
    "schedule",
    "look",
    "replay",
    "edit",
    "purge",
    "examine",
    "roll-call",
    "running",
    "cancel",
)
"""All that can be done from the dashboard."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")
NOBODY_KNOWN = "somebody at this machine"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Somebody who may look.

    Attributes:
        name: told in the roster of what they do.
        may: what they may do, of `ACTIONS`; "all"; or "read-only": nothing.
    """

    name: str
    may: Literal["all", "read-only"] | Collection[str] = "read-only"

    def __post_init__(self) -> None:
        if self.may in ("all", "read-only"):
            return
        for action in self.may:
            if action not in ACTIONS:
                raise UsageError(no_such("action", str(action), ACTIONS))

    def can(self, action: str) -> bool:
        return self.may == "all" or (self.may != "read-only" and action in self.may)


Access = Callable[[Request], Visitor | None | Awaitable[Visitor | None]]
"""Who asks: a function of the request; None: nobody who may look."""


def local_access(request: Request) -> Visitor | None:
    """Whoever asks from this machine, under its own name, and not through a proxy."""
    client = request.client.host if request.client else ""
    is_direct = not any(name in request.headers for name in FORWARDED)
    if is_direct and _is_loopback(client) and host_of(request.headers) in LOCAL_NAMES:
        return Visitor(NOBODY_KNOWN, "all")
    return None


def host_of(headers: Mapping[str, str]) -> str:
    """The name by which a request knows us, without the port."""
    try:
        return urlsplit(f"//{headers.get('host', '')}").hostname or ""
    except ValueError:
        return ""


def is_local(host: str) -> bool:
    """Whether only this machine reaches what is bound to this address."""
    return host == "localhost" or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


class FormTokens:
    """The tokens by which forms of our own pages are known."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)

    def token(self, visitor: Visitor) -> str:
        return hmac.new(self._secret, visitor.name.encode(), hashlib.sha256).hexdigest()

    def refusal(self, headers: Mapping[str, str], token: str, visitor: Visitor) -> str | None:
        """Why a form is not taken for one of ours; None: it is one."""
        if headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return "The form was sent from the page of another site."
        origin = headers.get("origin")
        if origin is not None and urlsplit(origin).netloc != headers.get("host"):
            return "The form was sent from the page of another site."
        if not hmac.compare_digest(token.encode(), self.token(visitor).encode()):
            return "The form is older than this dashboard, or somebody else's."
        return None


def visitor_of(told: object) -> Visitor | None:
    """What `access=` has returned, checked.

    Raises:
        UsageError: it is neither a `Visitor` nor None.
    """
    if told is None or isinstance(told, Visitor):
        return told
    raise UsageError(
        f"access= returns a Visitor, or None for nobody, got {told!r}. Nobody was let in."
    )
