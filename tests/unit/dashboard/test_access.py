"""Who may look, and whose a form is."""

from base64 import b64encode
from collections.abc import Mapping

import pytest
from starlette.exceptions import HTTPException
from starlette.requests import Request

from scheduler.dashboard.access import (
    Visitor,
    basic_access,
    header_access,
    is_local,
    local_access,
    refusal_of,
    visitor_of,
)
from scheduler.errors import UsageError

ALICE, BOB = Visitor("alice", "all"), Visitor("bob", {"pause"})


def request(client: str, headers: Mapping[str, str], version: str = "1.1") -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "client": (client, 1), "headers": raw, "http_version": version}
    return Request(scope)


@pytest.mark.parametrize(
    ("client", "headers", "is_local"),
    [
        ("127.0.0.1", {"host": "localhost:8088"}, True),
        ("127.0.0.1", {"host": "127.0.0.1:8088"}, True),
        ("::1", {"host": "[::1]:8088"}, True),
        ("::1", {"host": "localhost"}, True),
        ("10.0.0.7", {"host": "localhost"}, False),
        ("127.0.0.1", {"host": "evil.example"}, False),  # a name that was bent to this machine
        ("127.0.0.1", {"host": "localhost", "x-forwarded-for": "10.0.0.7"}, False),
        ("127.0.0.1", {"host": "localhost", "forwarded": "for=10.0.0.7"}, False),
        ("127.0.0.1", {"host": "localhost", "origin": "https://ops.example"}, False),  # by a proxy
        ("127.0.0.1", {"host": "[bad"}, False),
        ("127.0.0.1", {}, False),
        ("testclient", {"host": "localhost"}, False),
    ],
)
def test_local_visitors_alone_are_let_in_by_default_and_may_do_everything(
    client: str, headers: Mapping[str, str], is_local: bool
) -> None:
    visitor = local_access(request(client, headers))
    assert (visitor is not None and visitor.can("purge")) is is_local
    by_nginx = request("127.0.0.1", {"host": "127.0.0.1:8088"}, "1.0")  # without settings
    assert local_access(by_nginx) is None


def test_a_visitor_has_their_rights() -> None:
    assert ALICE.can("purge")
    assert BOB.can("pause")
    assert not BOB.can("resume")
    assert not Visitor("eve").can("pause")
    mia = Visitor("mia", {"acknowledge", "purge", "schedule", "trigger"})
    with pytest.raises(UsageError, match="pause"):
        Visitor("carol", {"pauze"})
    assert all(map(mia.can, ["unacknowledge", "restore", "schedule-set", "schedule-clear", "run"]))


@pytest.mark.parametrize("told", ["all", True, 7])
def test_access_returns_a_visitor_or_none(told: object) -> None:
    assert visitor_of(ALICE) is ALICE
    assert visitor_of(None) is None
    with pytest.raises(UsageError, match="access denied"):
        visitor_of(told)


HERE = {"host": "ops.example:8088"}
AWAY = {"origin": "http://ops.example"}


@pytest.mark.parametrize(
    ("headers", "is_own"),
    [
        ({"sec-fetch-site": "same-origin"}, True),
        # A proxy that rewrites the host, as nginx does by default.
        ({**AWAY, "host": "127.0.0.1:8088", "sec-fetch-site": "same-origin"}, True),
        ({**HERE, "origin": "http://ops.example:8088"}, True),  # plain HTTP: no Sec-Fetch-Site
        ({**AWAY, "host": "app", "x-forwarded-host": "ops.example"}, True),
        (HERE, True),  # no browser
        ({**HERE, "origin": "null"}, False),
        ({"origin": "null"}, False),
        ({**HERE, "origin": "http://["}, False),
        ({**HERE, "origin": "http://ops.example:9999"}, False),
        ({**HERE, "origin": "http://ops.example:8088", "sec-fetch-site": "cross-site"}, False),
        ({**HERE, "sec-fetch-site": "same-site"}, False),
        ({**HERE, "sec-fetch-site": "none"}, False),
    ],
)
def test_only_an_own_form_is_accepted(headers: Mapping[str, str], is_own: bool) -> None:
    refusal = refusal_of(headers)
    assert (refusal is None) is is_own
    assert is_own or "another site" in str(refusal)


@pytest.mark.parametrize(
    ("client", "name", "who"),
    [
        ("10.1.2.3", "alice", "alice"),
        ("::1", "alice", "alice"),
        ("10.1.2.3", " ", None),
        ("192.168.0.1", "alice", None),
        ("testclient", "alice", None),
    ],
)
def test_a_trusted_proxy_names_the_user(client: str, name: str, who: str | None) -> None:
    access = header_access("X-Remote-User", ["10.0.0.0/8", "::1"])
    told = access(request(client, {"x-remote-user": name}))
    assert told == (who and Visitor(who, "all"))
    with pytest.raises(UsageError, match="expected an address"):
        header_access("X-Remote-User", ["proxy"])


def login(name: str, password: str) -> Request:
    told = b64encode(f"{name}:{password}".encode()).decode()
    return request("10.0.0.7", {"authorization": f"Basic {told}"})


def test_users_have_passwords_and_rights() -> None:
    lines = ["# ours", "", "alice:wonder", "bob:builder:pause,resume", "eve:drop:read-only"]
    access = basic_access(lines)
    assert access(login("alice", "wonder")) == Visitor("alice", "all")
    assert access(login("bob", "builder")) == Visitor("bob", ["pause", "resume"])
    assert access(login("eve", "drop")) == Visitor("eve", "read-only")
    others = (login("alice", "wünder"), login("carol", ""), login("", ""), request("::1", {}))
    for other in (*others, request("::1", {"authorization": "Basic ?"})):
        with pytest.raises(HTTPException) as refused:
            access(other)
        assert refused.value.status_code == 401
        assert "Basic" in (refused.value.headers or {})["WWW-Authenticate"]


@pytest.mark.parametrize(
    "line", ["alice", ":wonder", "alice:", "bob:$2y$05$c4", "bob:b:fly", "alice:w:read-only"]
)
def test_a_password_line_without_a_user_is_refused(line: str) -> None:
    with pytest.raises(UsageError, match=r"Line 2|fly"):
        basic_access(["alice:wonder", line])


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_loopback_addresses_are_local(host: str, local: bool) -> None:
    assert is_local(host) is local
