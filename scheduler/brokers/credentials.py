"""Read the broker's address, the credentials and the certificates from the settings; keep secrets.

Files are read at each call, so that a changed secret needs no restart.
"""

import functools
import logging
import re
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from scheduler.errors import (
    AccessRefused,
    BrokerError,
    BrokerUnavailable,
    SettingsError,
    UntrustedBroker,
)
from scheduler.settings import Settings

if TYPE_CHECKING:
    from yarl import URL

FORM = "amqp://user:password@host:port/vhost"
UNREADABLE = (
    f"The broker URL cannot be read. Write {FORM}, with a port of at most 65535 and special "
    "characters percent-encoded; or give the password as it is in SCHEDULER_BROKER_PASSWORD."
)
URL_OPTIONS = ("auth", "heartbeat", "name", "timeout")
LONGEST_SECONDS = 65534
# A comma may be part of a password: a separator is followed by the scheme of the next URL.
BETWEEN_URLS = re.compile(r"\s*,\s*(?=[a-z]+://)", re.IGNORECASE)


def broker_urls(settings: Settings) -> Sequence["URL"]:
    """Return the URLs of the broker, with the user and the password of the settings.

    Raises:
        SettingsError: one cannot be used, or a file cannot be read; the message holds no secret.
    """
    user, user_file = settings.broker_user, settings.broker_user_file
    if user_file is not None:
        user = read_secret("SCHEDULER_BROKER_USER_FILE", user_file)
    secret, password_file = settings.broker_password, settings.broker_password_file
    password = None if secret is None else secret.get_secret_value()
    if password_file is not None:
        password = read_secret("SCHEDULER_BROKER_PASSWORD_FILE", password_file)
    urls = parse_urls(_broker_url(settings))
    if user is not None:
        urls = [url.with_user(user) for url in urls]
    return [url.with_password(password) for url in urls] if password is not None else urls


def is_embedded(settings: Settings) -> bool:
    url = _broker_url(settings)
    return url.startswith("memory:") and not BETWEEN_URLS.search(url)


def parse_urls(text: str) -> Sequence["URL"]:
    """Parse the URLs of the nodes of one cluster, separated by commas."""
    urls = [parse_url(part) for part in BETWEEN_URLS.split(text.strip())]
    for what, part in _SHARED.items():
        if len({part(url) for url in urls}) > 1:
            raise SettingsError(
                f"All broker URLs must have the same {what}. They name the nodes of one cluster, "
                f"and differ in host and port only."
            )
    return urls


def parse_url(text: str) -> "URL":
    """Parse the URL of an AMQP broker; the error does not show the text."""
    if not text:
        raise SettingsError(
            f"The broker URL is empty. Write {FORM}, or unset SCHEDULER_BROKER_URL."
        )
    if text[0] in "\"'":
        raise SettingsError(
            "The broker URL is in quotes: remove them. Docker's env files keep quotes."
        )
    url = parsed(text)
    if url is None:
        raise SettingsError(UNREADABLE)
    if url.scheme not in ("amqp", "amqps") or not url.host:
        scheme = re.match(r"\w+://", text)
        got = f", got {scheme[0]}" if scheme else ""
        raise SettingsError(
            f"The broker URL must be {FORM} (amqps:// for TLS) or memory://{got}. "
            "The rest of it is not shown, as it may hold a password."
        )
    # The text after it may be a password: none of it may count as a virtual host.
    vhost = text.partition("://")[2].partition("/")[2].partition("?")[0]
    if "," in url.host + vhost:
        raise SettingsError(
            "The broker URL has a misplaced comma. Write several URLs in full, separated by "
            f"commas: {FORM},{FORM}. Write %2C for a comma in a virtual host."
        )
    if "@" in vhost:  # and in `amqp://user:1@2/3@host/`, `3` would be shown as a virtual host
        raise SettingsError(UNREADABLE)
    _check_options(url)
    return url


def user_of(url: "URL") -> str:
    """Return the user name; empty: the broker reads it from the client certificate."""
    return "" if url.query.get("auth", "").lower() == "external" else url.user or "guest"


def read_secret(setting: str, path: Path) -> str:
    """Return the one value in a file, without the newline at its end."""
    # Undecodable bytes are replaced, because an error would contain all of them.
    value = read_file(setting, path).decode(errors="replace").rstrip("\r\n")
    if not value or "\ufffd" in value:
        wrong = "is not UTF-8 text" if value else "is empty"
        raise SettingsError(f"{setting}: the file {str(path)!r} {wrong}.")
    return value


def read_file(setting: str, path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise SettingsError(
            f"{setting}: the file {str(path)!r} cannot be read: {error.strerror}."
        ) from None


def _broker_url(settings: Settings) -> str:
    if settings.broker_url_file is not None:
        return read_secret("SCHEDULER_BROKER_URL_FILE", settings.broker_url_file)
    return settings.broker_url.get_secret_value()


_SHARED: dict[str, Callable[["URL"], object]] = {
    "scheme": lambda url: url.scheme,
    "user": lambda url: url.user,
    "password": lambda url: url.password,
    "virtual host": lambda url: url.path[1:] or "/",
    "options": lambda url: url.query_string,
}


def _check_options(url: "URL") -> None:
    if not set(URL_OPTIONS).issuperset(url.query):
        raise SettingsError(
            f"The broker URL has an unknown option; expected one of {', '.join(URL_OPTIONS)}; for "
            "TLS, set SCHEDULER_TLS_CA_FILE, SCHEDULER_TLS_CERT_FILE, SCHEDULER_TLS_KEY_FILE or "
            "SCHEDULER_TLS_VERIFY. It is not shown, as it may be part of a password."
        )
    for name in ("heartbeat", "timeout"):
        value = url.query.get(name, "0")
        if not value.isdecimal() or int(value) > LONGEST_SECONDS:
            raise SettingsError(
                f"{name} in the broker URL must be a whole number of seconds, up to "
                f"{LONGEST_SECONDS}. Its value is not shown, as it may be part of a password."
            )


def parsed(text: str) -> "URL | None":
    """Parse a URL; return None if it is none, or a password in it may seem to be its host."""
    from yarl import URL  # imported when needed: it loads slowly

    try:
        url = URL(text)
        url.port  # noqa: B018 - yarl parses the port when it is asked for
    except ValueError:
        return None
    # In `amqp://user:1/2@host/`, a slash in the password turns `user` into a host.
    return None if "@" in text and "@" not in url.authority else url


CA, CERT, KEY = "SCHEDULER_TLS_CA_FILE", "SCHEDULER_TLS_CERT_FILE", "SCHEDULER_TLS_KEY_FILE"

NOT_TLS = ("WRONG_VERSION_NUMBER", "RECORD_LAYER_FAILURE", "PACKET_LENGTH_TOO_LONG")
ABOUT_OUR_CERTIFICATE = ("CERTIFICATE", "UNKNOWN_CA", "ACCESS_DENIED", "HANDSHAKE_FAILURE")


@dataclass(frozen=True, slots=True)
class Tls:
    """Configure connections to `amqps://`.

    Attributes:
        ca_file: the trusted authorities; None: those of this machine.
        cert_file: the client certificate.
        key_file: its key; None: it is in the same file.
        verify: off: any server is accepted.
    """

    ca_file: Path | None = None
    cert_file: Path | None = None
    key_file: Path | None = None
    verify: bool = True

    def context(self, url: "URL") -> ssl.SSLContext | None:
        """Return the TLS context for a URL; None: without TLS. Reads the files again."""
        self._check(url)
        if url.scheme != "amqps":
            return None
        context = self._trusting()
        if self.cert_file is not None:
            self._show_certificate(context, self.cert_file)
        if not self.verify:
            _warn(f"{url.host}:{url.port or 5671}")
            context.check_hostname = False
            context.verify_mode = ssl.CERT_NONE
        return context

    def suspicion(self, url: "URL") -> str:
        """Explain why a broker may close a connection without a reason."""
        if url.scheme != "amqps":
            return (
                "Name the port of AMQP (5672), not that of the management pages (15672); for TLS, "
                "write amqps://."
            )
        if self.cert_file is None:
            return f"It may ask for a client certificate: set {CERT} and {KEY}."
        return f"It may reject the client certificate, {str(self.cert_file)!r}: its log says more."

    def _check(self, url: "URL") -> None:
        if self.key_file is not None and self.cert_file is None:
            raise SettingsError(f"{KEY} is set, but {CERT} is not: set both.")
        files = {CA: self.ca_file, CERT: self.cert_file}
        unused = [setting for setting, path in files.items() if path is not None]
        if unused and url.scheme != "amqps":
            raise SettingsError(
                f"{unused[0]} is set, but the broker URL begins with {url.scheme}://, and nothing "
                "would be encrypted. Write amqps://, or unset the variable."
            )

    def _trusting(self) -> ssl.SSLContext:
        if self.ca_file is None:
            return ssl.create_default_context()
        _read_pem(CA, self.ca_file)
        try:
            return ssl.create_default_context(cafile=self.ca_file)
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(
                f"{CA}: {str(self.ca_file)!r} has no usable certificate: {words_of(error)}."
            ) from None

    def _show_certificate(self, context: ssl.SSLContext, path: Path) -> None:
        _read_pem(CERT, path)
        if self.key_file is not None:
            _read_pem(KEY, self.key_file)
        try:
            context.load_cert_chain(path, self.key_file, password=self._refuse_passphrase)
        except (ssl.SSLError, OSError) as error:
            raise SettingsError(
                f"{CERT} and {KEY}: {str(path)!r} and {str(self.key_file or path)!r} are not a "
                f"certificate and its key: {words_of(error)}."
            ) from None

    def _refuse_passphrase(self) -> NoReturn:
        # OpenSSL would ask for it on the terminal, and wait.
        raise SettingsError(
            f"{KEY}: the key in {str(self.key_file or self.cert_file)!r} has a passphrase. "
            "Write it without one, into a file that only this user can read."
        )


def refusal(error: ssl.SSLError, address: str, tls: Tls) -> BrokerError:
    """Return the error for a failed handshake."""
    if isinstance(error, ssl.SSLCertVerificationError):
        said = error.verify_message.rstrip(".")
        whom = "this machine trusts" if tls.ca_file is None else f"is in {str(tls.ca_file)!r}"
        return UntrustedBroker(
            f"{address} could not be verified; no credentials were sent: {said}. Its certificate "
            "must be valid at the time of this machine, for the name in the URL, and signed by an "
            f"authority that {whom}. Set {CA} to the certificate of another authority."
        )
    reason = error.reason or ""
    if reason in NOT_TLS:
        return BrokerUnavailable(
            f"{address} does not speak TLS. Name its port for TLS (5671, unless it was configured)"
            ", or write amqp:// if the connection need not be encrypted."
        )
    if "ALERT" in reason and any(word in reason for word in ABOUT_OUR_CERTIFICATE):
        return AccessRefused(_rejected_certificate(words_of(error), address, tls))
    return BrokerUnavailable(f"The TLS handshake with {address} failed: {words_of(error)}.")


def _rejected_certificate(said: str, address: str, tls: Tls) -> str:
    if tls.cert_file is None:
        return (
            f"{address} asks for a client certificate ({said}): set {CERT} and {KEY} to one that "
            "is signed by an authority that it trusts."
        )
    return (
        f"{address} rejected the client certificate, {str(tls.cert_file)!r} ({said}): set {CERT} "
        f"and {KEY} to one that is signed by an authority that it trusts, and has not expired."
    )


def words_of(error: OSError) -> str:
    """Return the reason of an error of OpenSSL, in words."""
    if isinstance(error, ssl.SSLError) and error.reason:
        return error.reason.rpartition("ALERT_")[2].replace("_", " ").lower()
    return error.strerror or type(error).__name__


def _read_pem(setting: str, path: Path) -> None:
    if b"-----BEGIN " not in read_file(setting, path):
        raise SettingsError(
            f"{setting}: the file {str(path)!r} is not PEM: it has no line `-----BEGIN ...-----`."
        )


@functools.cache  # once, not at each reconnect
def _warn(place: str) -> None:
    logging.getLogger(__name__).warning(
        "The certificate of %s is not verified (SCHEDULER_TLS_VERIFY is off): "
        "an attacker in between can read and change everything, including the password.",
        place,
    )
