"""Control access to the dashboard, and verify the origin of requests. No I/O."""

import hmac
import ipaddress
from base64 import b64decode
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import SplitResult, urlsplit

from starlette.exceptions import HTTPException
from starlette.requests import Request

from scheduler.errors import UsageError
from scheduler.spelling import no_such

ACTIONS = (
    *("pause", "resume", "trigger", "send", "remove", "start", "schedule"),
    *("replay", "edit", "purge", "acknowledge", "stack", "cancel"),
)
"""All actions of the dashboard."""
SEE = "arguments"
"""The right to see arguments, carried values, and the headers and bodies of messages."""
RIGHTS = {
    "now": "resume",
    "run": "trigger",
    "restore": "purge",
    "unacknowledge": "acknowledge",
    "schedule-set": "schedule",
    "schedule-clear": "schedule",
}
"""The right that an action needs, if that of another one."""

LOCAL_NAMES = ("localhost", "127.0.0.1", "::1")
FORWARDED = (
    *("forwarded", "via", "x-real-ip"),
    *("x-forwarded-for", "x-forwarded-host", "x-forwarded-proto"),
)
PROXIES_SPEAK = "1.0"
"""The version of HTTP of nginx without settings, which adds no header; of no browser."""
NOBODY_KNOWN = "a user of this machine"


@dataclass(frozen=True, slots=True)
class Visitor:
    """Describe a person with access.

    Attributes:
        name: recorded in the roster with their operations.
        may: the permitted actions, of `ACTIONS`; "all"; or "read-only": none. "arguments" is the
            right to see arguments, carried values, and the headers and bodies of messages; of these
            three, only "all" includes it.
    """

    name: str
    may: Literal["all", "read-only"] | Collection[str] = "read-only"

    def __post_init__(self) -> None:
        if self.may in ("all", "read-only"):
            return
        for action in self.may:
            if action not in (*ACTIONS, SEE):
                raise UsageError(no_such("action", str(action), (*ACTIONS, SEE)))

    @property
    def rights(self) -> Collection[str]:
        """Return what the visitor may do, to compare it with that of others."""
        return self.may if isinstance(self.may, str) else frozenset(self.may)

    def can(self, action: str) -> bool:
        return self.may == "all" or (self.may != "read-only" and right_of(action) in self.may)


def without_actions(visitor: Visitor) -> Visitor:
    """Return a visitor who may only look, at what they could see before."""
    return Visitor(visitor.name, [SEE] if visitor.can(SEE) else "read-only")


def right_of(action: str) -> str:
    return RIGHTS.get(action, action)


NO_ONE = Visitor("")

Access = Callable[[Request], Visitor | None | Awaitable[Visitor | None]]
"""A function of the request that returns its visitor; None: no access."""

Redact = Callable[[str, Any], Any]
"""Redacts a value before it is shown, of the task: arguments, carry, headers or a body."""


def local_access(request: Request) -> Visitor | None:
    """Return the user of this machine for a direct request from it, under its own name."""
    client = request.client.host if request.client else ""
    headers = request.headers
    is_direct = not any(name in headers for name in FORWARDED)
    is_direct = is_direct and request.scope.get("http_version") != PROXIES_SPEAK
    names = {_host_of(f"//{headers.get('host', '')}")}
    if "origin" in headers:  # a proxy at this machine may have rewritten the host
        names.add(_host_of(headers["origin"]))
    if is_direct and _is_loopback(client) and names.issubset(LOCAL_NAMES):
        return Visitor(NOBODY_KNOWN, "all")
    return None


def header_access(header: str, trusted: Sequence[str]) -> Access:
    """Return the access of users that a proxy at a trusted address or network names in a header."""
    try:
        networks = [ipaddress.ip_network(each, strict=False) for each in trusted]
    except ValueError as error:
        raise UsageError(f"--trust: expected an address such as 10.0.0.0/8: {error}.") from None

    def access(request: Request) -> Visitor | None:
        name = request.headers.get(header, "").strip()
        try:
            client = ipaddress.ip_address(request.client.host if request.client else "")
        except ValueError:
            return None
        is_trusted = any(client in network for network in networks)
        return Visitor(name, "all") if name and is_trusted else None

    return access


def basic_access(lines: Iterable[str]) -> Access:
    """Return the access of users with passwords: lines of `NAME:PASSWORD` or `NAME:PASSWORD:MAY`.

    MAY is "all", "read-only", or actions, separated by commas.
    """
    users = dict[str, tuple[bytes, Visitor]]()
    for number, line in enumerate(lines, 1):
        if not line.strip() or line.startswith("#"):
            continue
        name, _, rest = line.strip().partition(":")
        password, _, may = rest.partition(":")
        if not name or not password or password.startswith(("$", "{")):
            raise UsageError(
                f"Line {number} of the file of users: expected NAME:PASSWORD, or "
                "NAME:PASSWORD:MAY. Passwords are plain text, not hashed."
            )
        if name in users:
            raise UsageError(f"Line {number} of the file of users: {name!r} is there already.")
        rights = may or "all"
        whole = {"all": Visitor(name, "all"), "read-only": Visitor(name, "read-only")}
        visitor = whole.get(rights) or Visitor(name, rights.split(","))
        users[name] = password.encode(), visitor

    def access(request: Request) -> Visitor:
        scheme, _, given = request.headers.get("authorization", "").partition(" ")
        with suppress(ValueError):
            name, _, password = b64decode(given).decode().partition(":")
            known, visitor = users.get(name, (b"", NO_ONE))
            is_right = hmac.compare_digest(known, password.encode())
            if scheme.lower() == "basic" and known and is_right:
                return visitor
        challenge = {"WWW-Authenticate": 'Basic realm="scheduler", charset="UTF-8"'}
        raise HTTPException(401, "A name and a password are needed.", challenge)

    return access


def _parts_of(url: str) -> SplitResult:
    try:
        return urlsplit(url)
    except ValueError:
        return urlsplit("")


def _host_of(url: str) -> str:
    return _parts_of(url).hostname or ""


def is_local(host: str) -> bool:
    """Return whether only this machine reaches this address."""
    return host == "localhost" or _is_loopback(host)


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def refusal_of(headers: Mapping[str, str]) -> str | None:
    """Return why a form was not sent from a page of the dashboard; None: it was.

    A browser sends the site of a request, however a proxy rewrites the host. Over plain HTTP it
    sends only the origin. A request with neither is from no browser, and has no login.
    """
    site, origin = headers.get("sec-fetch-site"), headers.get("origin")
    if site == "same-origin" or (site is None and origin is None):
        return None
    if site is None and origin is not None:
        sent_from = _parts_of(origin).netloc
        if sent_from and sent_from in (headers.get("host"), headers.get("x-forwarded-host")):
            return None
    return (
        "The form was sent from the page of another site. Behind a proxy without TLS, configure "
        "it to forward the Host header."
    )


def visitor_of(visitor: object) -> Visitor | None:
    """Return the result of `access=`, checked."""
    if visitor is None or isinstance(visitor, Visitor):
        return visitor
    raise UsageError(f"access= must return a Visitor or None, got {visitor!r}; access denied.")
