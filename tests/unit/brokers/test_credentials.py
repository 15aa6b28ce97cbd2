import asyncio
import logging
import string
from pathlib import Path
from typing import Any

import pytest
from yarl import URL

from scheduler import Settings
from scheduler.brokers.credentials import broker_urls, is_embedded, parse_url, parse_urls, user_of
from scheduler.brokers.opening import management_of
from scheduler.errors import BrokerUnavailable, SettingsError
from tests.leaks import everything_about

ODD = f"{string.printable.strip()} é漢 %41%2F+"


def settings(**values: Any) -> Settings:
    return Settings(**values)


def the_url(given: Settings) -> URL:
    (url,) = broker_urls(given)
    return url


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


def test_the_url_of_a_broker_is_taken_as_it_is():
    text = "amqps://a:b@host:1/vhost?heartbeat=0&timeout=5&name=shop&auth=external"
    assert str(parse_url(text)) == text
    url = parse_url("amqp://us%40er:p%2Fa%25ss@host/v%20ho%2Cst")
    assert (url.user, url.password, url.path) == ("us@er", "p/a%ss", "/v ho,st")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ('"amqp://a/"', r"The broker URL is in quotes: remove them\."),
        ("", r"The broker URL is empty\. Write amqp://user.*, or unset SCHEDULER_BROKER_URL"),
        ("open-sesame", "must be amqp://"),
        ("http://user:open-sesame@host/", r"must be amqp://.*, got http://\."),
        ("open:sesame://host/", r"or memory://\. The rest"),
        ("amqp:///open-sesame", "must be amqp://"),
        ("amqp://user:open-sesame@host:99999/", "a port of at most 65535"),
        ("amqp://user:open-sesame/@host/", "cannot be read"),
        # Taken at their word, these would be the port 1 of a host `user`.
        ("amqp://user:1/open-sesame@host/", "cannot be read"),
        ("amqp://user:1?open-sesame@host/", "cannot be read"),
        ("amqp://user:1#open-sesame@host/", "cannot be read"),
        ("amqp://user:1@2/open-sesame@host/", "cannot be read"),
        ("amqp://[open-sesame@host/", "cannot be read"),
        ("amqp://a/?heartbeat=open-sesame", "heartbeat in .* must be a whole number of seconds"),
        ("amqp://a/?heartbeat=-1", "heartbeat in the broker URL"),
        ("amqp://a/?heartbeat=65535", "up to 65534"),
        ("amqp://a/?timeout=5s", "timeout in the broker URL"),
        ("amqp://a/?open-sesame=5", "unknown option; expected one of auth, heartbeat, name, time"),
        ("amqp://a/?cafile=/ca.pem", "unknown option; .*for TLS, set SCHEDULER_TLS_CA_FILE"),
    ],
)
def test_another_url_is_refused_and_never_shown(text: str, told: str):
    with pytest.raises(SettingsError, match=told) as refused:
        parse_url(text)
    assert "sesame" not in everything_about(refused.value)


@pytest.mark.parametrize("comma", [",", " ,\n  "])
def test_commas_separate_the_nodes_of_a_cluster(comma: str):
    one, two = parse_urls(f"amqp://a:p,w@one/v{comma}amqp://a:p,w@two:5673/v\n")
    assert (one.host, one.port, two.host, two.port) == ("one", None, "two", 5673)
    assert {(url.user, url.password, url.path) for url in (one, two)} == {("a", "p,w", "/v")}


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("amqp://a:open-sesame@one/,amqp://a:b@two/", "must have the same password"),
        ("amqp://open-sesame@one/,amqp://b@two/", "must have the same user"),
        ("amqp://one/open-sesame,amqp://two/", "must have the same virtual host"),
        ("amqp://one/,amqps://two/", "must have the same scheme"),
        ("amqp://one/,amqp://two/?heartbeat=5", "must have the same options"),
        ("memory://,amqp://one/", "must be amqp://"),
        ("amqp://one,two/", "misplaced comma"),
        ("amqp://one/,", "misplaced comma"),
        ("amqp://a:b@one/v,//a:open-sesame@two/", "misplaced comma"),
        ("amqp://a:open-sesame@one:5672,two:5672/", "cannot be read"),
    ],
)
def test_urls_of_different_clusters_are_refused_and_never_shown(text: str, told: str):
    with pytest.raises(SettingsError, match=told) as refused:
        broker_urls(settings(broker_url=text))
    assert "sesame" not in everything_about(refused.value)
    assert not is_embedded(settings(broker_url=text))


@pytest.mark.parametrize(
    ("text", "user"),
    [
        ("amqp://a%40b:c@host/", "a@b"),
        ("amqp://host/", "guest"),  # as the driver does
        ("amqps://host/?auth=EXTERNAL", ""),
        ("amqps://a@host/?auth=external", ""),
    ],
)
def test_the_user_is_read_from_the_url(text: str, user: str):
    assert user_of(parse_url(text)) == user


@pytest.mark.parametrize(
    ("given", "urls"),
    [
        ({"broker_user": "c", "broker_password": "d"}, ["amqp://c:d@one/v", "amqp://c:d@two/v"]),
        ({"broker_password": "d"}, ["amqp://a:d@one/v", "amqp://a:d@two/v"]),
    ],
)
def test_a_user_and_a_password_are_put_into_the_urls(given: dict[str, str], urls: list[str]):
    found = broker_urls(settings(broker_url="amqp://a:b@one/v,amqp://a:b@two/v", **given))
    assert [str(url) for url in found] == urls


def test_credentials_may_be_in_files_that_are_read_again(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
):
    password = write(tmp_path / "password", f" {ODD} \n\n")
    monkeypatch.setenv("SCHEDULER_BROKER_PASSWORD_FILE", str(password))
    given = settings(
        broker_url_file=write(tmp_path / "url", "amqps://a:b@host/v\n"),
        broker_user_file=write(tmp_path / "user", "c\r\n"),
    )
    url = the_url(given)
    assert (url.scheme, url.user, url.password, url.path) == ("amqps", "c", f" {ODD} ", "/v")
    assert parse_url(str(url)) == url
    write(password, "new")
    assert the_url(given).password == "new"
    assert not is_embedded(given)
    write(tmp_path / "url", "memory://\n")
    assert is_embedded(given)


@pytest.mark.parametrize("name", ["broker_url", "broker_user", "broker_password"])
def test_an_unusable_file_is_refused_with_its_variable(name: str, tmp_path: Path):
    loop = tmp_path / "loop"
    loop.symlink_to(loop)
    (tmp_path / "binary").write_bytes(b"\xffopen-sesame")
    write(tmp_path / "empty", "\n")
    for file, told in [
        ("missing", "cannot be read: No such file or directory"),
        (".", "cannot be read: Is a directory"),
        ("loop", "cannot be read: Too many levels of symbolic links"),
        ("empty", "is empty"),
        ("binary", "is not UTF-8 text"),
    ]:
        path = tmp_path / file
        expected = f"SCHEDULER_{name.upper()}_FILE: the file {str(path)!r} {told}."
        with pytest.raises(SettingsError) as refused:
            the_url(settings(**{f"{name}_file": path}))
        assert str(refused.value) == expected
        assert "sesame" not in everything_about(refused.value)


@pytest.mark.parametrize(
    "text",
    [
        *("http://[open-sesame", "http://host:open-sesame", "ftp://open-sesame"),
        "http://user:1/open-sesame@host",
    ],
)
def test_a_management_url_that_cannot_be_used_is_refused(text: str):
    with pytest.raises(SettingsError) as refused:
        management_of(settings(management_url=text))
    expected = "SCHEDULER_MANAGEMENT_URL must be http://host:15672 or https://host:15671."
    assert str(refused.value) == expected
    assert "sesame" not in everything_about(refused.value)


@pytest.mark.parametrize("page", ["{}", "[1]", "[{}]"])
async def test_another_server_is_not_taken_for_the_management_api(page: str):
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(f"HTTP/1.0 200 OK\r\n\r\n{page}".encode())
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1") as server:
        address = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        found = management_of(settings(management_url=address))
        assert found is not None
        with pytest.raises(BrokerUnavailable, match=f"{address} is not RabbitMQ's management API"):
            await found.policies("/")


@pytest.mark.parametrize("name", ["broker_url", "broker_user", "broker_password"])
def test_a_value_and_a_file_for_the_same_are_refused(name: str):
    variable = f"SCHEDULER_{name.upper()}"
    with pytest.raises(SettingsError, match=f"{variable} and {variable}_FILE are both set"):
        settings(**{name: "amqp://open-sesame/", f"{name}_file": "/some/file"})


@pytest.mark.parametrize("name", ["broker_user", "broker_password"])
def test_an_empty_value_is_refused(monkeypatch: pytest.MonkeyPatch, name: str):
    # The driver would take it for `guest`.
    monkeypatch.setenv(f"SCHEDULER_{name.upper()}", "")
    with pytest.raises(SettingsError, match=f"SCHEDULER_{name.upper()}: .* at least 1"):
        Settings()


def test_a_password_is_never_shown(caplog: pytest.LogCaptureFixture):
    given = settings(broker_url="amqp://a:open-sesame@host/", broker_password="open-sesame")
    logging.getLogger(__name__).warning("%s %r", given, given)
    shown = [caplog.text, repr(given), repr(given.model_dump()), given.model_dump_json()]
    assert not [text for text in shown if "sesame" in text]
