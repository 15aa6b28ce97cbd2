"""What a client makes of certificates: its own, and those that servers show."""

import asyncio
import logging
import re
import ssl
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives import serialization
from yarl import URL

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.credentials import Tls, refusal
from scheduler.errors import AccessRefused, BrokerUnavailable, SettingsError, UntrustedBroker
from tests.certificates import FUTURE, HOST, PAST, Authority, Pair

SECURE = URL("amqps://host/")


@pytest.fixture
def authority(tmp_path: Path) -> Authority:
    return Authority(tmp_path / "ours")


@pytest.fixture
def pair(authority: Authority) -> Pair:
    return authority.issue("me", "me@example.org")


@asynccontextmanager
async def serving(pair: Pair) -> AsyncGenerator[int]:
    """A server that proves who it is, and then hangs up; its port."""
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    context.load_cert_chain(pair.certificate, pair.key)

    async def hang_up(_: object, writer: asyncio.StreamWriter) -> None:
        writer.close()

    async with await asyncio.start_server(hang_up, HOST, ssl=context) as server:
        yield server.sockets[0].getsockname()[1]


async def refused(port: int, tls: Tls, host: str = HOST) -> Exception:
    """Why there was no connection."""
    with pytest.raises(Exception, match=f"amqps://user@{host}:{port}/") as error:
        async with AmqpBroker(f"amqps://user:open-sesame@{host}:{port}/", tls=tls):
            pass
    assert "sesame" not in str(error.value)
    return error.value


def refusal_of(tls: Tls, url: URL = SECURE) -> str:
    """Why no connection to this URL is tried."""
    with pytest.raises(SettingsError) as error:
        tls.context(url)
    return str(error.value)


async def test_a_certificate_of_an_unknown_authority_is_not_trusted(
    authority: Authority, tmp_path: Path
):
    other = Authority(tmp_path / "theirs")
    async with serving(other.issue("server", HOST)) as port:
        ours = f"is in {str(authority.file)!r}"
        for tls, whom in [(Tls(), "this machine trusts"), (authority.tls(), ours)]:
            error = await refused(port, tls)
            assert isinstance(error, UntrustedBroker)
            assert f"signed by an authority that {whom}. Set SCHEDULER_TLS_CA_FILE" in str(error)
        assert isinstance(await refused(port, other.tls()), BrokerUnavailable)  # it hangs up


@pytest.mark.parametrize(
    ("issued_to", "valid", "connected_to", "told"),
    [
        (HOST, {}, "localhost", r"sent: Hostname mismatch.*\. Its certificate must be valid"),
        ("localhost", {}, HOST, "sent: IP address mismatch"),
        (HOST, {"not_after": PAST}, HOST, "sent: certificate has expired"),
        (HOST, {"not_before": FUTURE}, HOST, "sent: certificate is not yet valid"),
    ],
)
async def test_an_invalid_certificate_is_not_trusted(
    authority: Authority, issued_to: str, valid: dict[str, Any], connected_to: str, told: str
):
    async with serving(authority.issue("server", issued_to, **valid)) as port:
        error = await refused(port, authority.tls(), connected_to)
    assert isinstance(error, UntrustedBroker)
    assert re.search(told, str(error))


async def test_without_verification_any_certificate_is_accepted_with_one_warning(
    authority: Authority, caplog: pytest.LogCaptureFixture
):
    pair = authority.issue("server", "other.example", not_after=PAST)
    async with serving(pair) as port:
        for _ in range(3):
            error = await refused(port, Tls(verify=False))
            assert isinstance(error, BrokerUnavailable)  # it is the server that hangs up
    (told,) = [each for each in caplog.records if "not verified" in each.message]
    assert told.levelno == logging.WARNING
    assert f"{HOST}:{port}" in told.message
    assert "SCHEDULER_TLS_VERIFY" in told.message


SHOWN = Tls(cert_file=Path("me.pem"))


@pytest.mark.parametrize(
    ("reason", "tls", "kind", "told"),
    [
        ("TLSV13_ALERT_CERTIFICATE_REQUIRED", Tls(), AccessRefused, "asks for a client certifi"),
        ("SSLV3_ALERT_CERTIFICATE_EXPIRED", SHOWN, AccessRefused, "'me.pem' (certificate expired)"),
        ("WRONG_VERSION_NUMBER", Tls(), BrokerUnavailable, "does not speak TLS"),
        ("TLSV1_ALERT_PROTOCOL_VERSION", SHOWN, BrokerUnavailable, "failed: protocol version."),
    ],
)
def test_a_failed_handshake_is_explained(reason: str, tls: Tls, kind: type[Exception], told: str):
    failure = ssl.SSLError(1, "[SSL] some words")
    failure.reason = reason
    error = refusal(failure, "amqps://host/", tls)
    assert type(error) is kind
    assert str(error).startswith(("amqps://host/ ", "The TLS handshake with amqps://host/ "))
    assert told in str(error)


async def test_a_server_that_hangs_up_may_want_a_certificate(authority: Authority, pair: Pair):
    async with serving(authority.issue("server", HOST)) as port:
        without = await refused(port, authority.tls())
        assert "closed the connection before it was open" in str(without)
        assert "set SCHEDULER_TLS_CERT_FILE and SCHEDULER_TLS_KEY_FILE" in str(without)
        shown = await refused(port, authority.tls(pair))
        assert f"may reject the client certificate, {str(pair.certificate)!r}" in str(shown)


def test_by_default_the_broker_must_prove_who_it_is(authority: Authority):
    for tls in (Tls(), authority.tls()):
        context = tls.context(SECURE)
        assert context
        assert context.verify_mode is ssl.CERT_REQUIRED
        assert context.check_hostname
        assert context.minimum_version >= ssl.TLSVersion.TLSv1_2
    # Instead of those of the machine; and files are read again.
    tls = authority.tls()
    trusted = tls.context(SECURE)
    assert trusted
    assert len(trusted.get_ca_certs()) == 1
    authority.file.write_text("")
    assert "SCHEDULER_TLS_CA_FILE" in refusal_of(tls)


def test_a_certificate_and_its_key_may_be_in_one_file(tmp_path: Path, pair: Pair):
    both = tmp_path / "both.pem"
    both.write_bytes(pair.key.read_bytes() + pair.certificate.read_bytes())
    assert Tls(cert_file=both).context(SECURE)


def test_an_unreadable_file_is_refused_with_its_variable(tmp_path: Path, pair: Pair):
    text = tmp_path / "text"
    text.write_text("no certificate\n")
    for path, told in [
        (tmp_path / "missing", "cannot be read: No such file or directory"),
        (text, "is not PEM: it has no line `-----BEGIN ...-----`"),
    ]:
        for tls, setting in [
            (Tls(ca_file=path), "SCHEDULER_TLS_CA_FILE"),
            (Tls(cert_file=path), "SCHEDULER_TLS_CERT_FILE"),
            (Tls(cert_file=pair.certificate, key_file=path), "SCHEDULER_TLS_KEY_FILE"),
        ]:
            assert refusal_of(tls) == f"{setting}: the file {str(path)!r} {told}."


def test_a_pem_file_without_a_certificate_is_refused(
    tmp_path: Path, authority: Authority, pair: Pair
):
    other = authority.issue("other", "other@example.org")
    garbled = tmp_path / "garbled.pem"
    garbled.write_text("-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n")
    for tls, told in [
        (Tls(ca_file=garbled), "garbled.pem' has no usable certificate: "),
        (Tls(ca_file=pair.key), "me.key' has no usable certificate: "),
        (Tls(cert_file=garbled, key_file=pair.key), "are not a certificate and its key: "),
        (Tls(cert_file=pair.certificate), "are not a certificate and its key: "),
        (Tls(cert_file=pair.certificate, key_file=other.key), "its key: key values mismatch"),
    ]:
        assert told in refusal_of(tls)


def test_a_key_with_a_passphrase_is_refused(pair: Pair):
    key = serialization.load_pem_private_key(pair.key.read_bytes(), None)
    pair.key.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(b"open-sesame"),
        )
    )
    told = refusal_of(Tls(cert_file=pair.certificate, key_file=pair.key))
    assert "me.key' has a passphrase. Write it without one" in told


def test_files_that_would_not_be_used_are_refused(authority: Authority, pair: Pair):
    plain = URL("amqp://host/")
    assert Tls().context(plain) is None
    unused = "is set, .* amqp://, and nothing would"
    for tls, url, told in [
        (authority.tls(), plain, f"SCHEDULER_TLS_CA_FILE {unused}"),
        (Tls(cert_file=pair.certificate), plain, f"SCHEDULER_TLS_CERT_FILE {unused}"),
        (Tls(key_file=pair.key), SECURE, "SCHEDULER_TLS_KEY_FILE is set, but SCHEDULER_TLS"),
    ]:
        assert re.search(told, refusal_of(tls, url))
