"""Who may look, and whose a form is."""

from collections.abc import Mapping

import pytest
from starlette.requests import Request

from scheduler.dashboard.access import FormTokens, Visitor, is_local, local_access, visitor_of
from scheduler.errors import UsageError

ALICE, BOB = Visitor("alice", "all"), Visitor("bob", {"pause"})


def request(client: str, headers: Mapping[str, str]) -> Request:
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "client": (client, 1), "headers": raw})


@pytest.mark.parametrize("host", ["localhost:8088", "127.0.0.1:8088", "[::1]:8088", "localhost"])
def test_this_machine_may_do_all(host: str) -> None:
    for client in ("127.0.0.1", "::1"):
        visitor = local_access(request(client, {"host": host}))
        assert visitor is not None
        assert visitor.can("purge")


@pytest.mark.parametrize(
    ("client", "headers"),
    [
        ("10.0.0.7", {"host": "localhost"}),
        ("127.0.0.1", {"host": "evil.example"}),  # a name that was bent to this machine
        ("127.0.0.1", {"host": "localhost", "x-forwarded-for": "10.0.0.7"}),
        ("127.0.0.1", {"host": "localhost", "forwarded": "for=10.0.0.7"}),
        ("127.0.0.1", {"host": "[bad"}),
        ("127.0.0.1", {}),
        ("testclient", {"host": "localhost"}),
    ],
)
def test_nobody_else_may_look(client: str, headers: Mapping[str, str]) -> None:
    assert local_access(request(client, headers)) is None


def test_a_visitor_can_do_what_they_may() -> None:
    assert ALICE.can("purge")
    assert BOB.can("pause")
    assert not BOB.can("resume")
    assert not Visitor("eve").can("pause")


def test_an_action_that_there_is_not_is_refused_with_the_nearest() -> None:
    with pytest.raises(UsageError, match="pause"):
        Visitor("carol", {"pauze"})


@pytest.mark.parametrize("told", ["all", True, 7])
def test_access_returns_a_visitor_or_nobody(told: object) -> None:
    assert visitor_of(ALICE) is ALICE
    assert visitor_of(None) is None
    with pytest.raises(UsageError, match="Nobody was let in"):
        visitor_of(told)


OURS = {
    "host": "localhost:8088",
    "origin": "http://localhost:8088",
    "sec-fetch-site": "same-origin",
}


def test_a_form_of_ours_is_taken() -> None:
    forms = FormTokens()
    assert forms.refusal(OURS, forms.token(ALICE), ALICE) is None
    assert forms.refusal({"host": "localhost:8088"}, forms.token(ALICE), ALICE) is None


@pytest.mark.parametrize(
    "headers",
    [
        {**OURS, "origin": "http://evil.example"},
        {**OURS, "origin": "null"},
        {**OURS, "origin": "http://localhost:9999"},
        {**OURS, "sec-fetch-site": "cross-site"},
        {**OURS, "sec-fetch-site": "same-site"},
        {**OURS, "sec-fetch-site": "none"},
    ],
)
def test_a_form_of_another_site_is_not(headers: Mapping[str, str]) -> None:
    forms = FormTokens()
    assert "another site" in str(forms.refusal(headers, forms.token(ALICE), ALICE))


@pytest.mark.parametrize("token", ["", "ä", "f" * 64])
def test_nor_is_one_without_the_token_that_this_visitor_was_given(token: str) -> None:
    forms = FormTokens()
    assert forms.refusal(OURS, token, ALICE) is not None
    assert forms.refusal(OURS, forms.token(BOB), ALICE) is not None


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False)],
)
def test_only_loopback_is_this_machine(host: str, local: bool) -> None:
    assert is_local(host) is local
