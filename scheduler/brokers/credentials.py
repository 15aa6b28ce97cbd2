"""Read the broker's address and the credentials from the settings, and keep them secret.

Files are read at each call, so that a changed secret needs no restart.
"""

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.errors import SettingsError
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
TLS_OPTIONS = ("cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl")


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
    """Return whether the broker is the embedded one."""
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
    if options := [name for name in TLS_OPTIONS if name in url.query]:
        raise SettingsError(
            f"The broker URL has options for TLS ({', '.join(options)}), which are not used: set "
            "SCHEDULER_TLS_CA_FILE, SCHEDULER_TLS_CERT_FILE, SCHEDULER_TLS_KEY_FILE or "
            "SCHEDULER_TLS_VERIFY instead."
        )
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
    """Return the contents of a file that a setting names."""
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
            f"The broker URL has an unknown option; expected one of {', '.join(URL_OPTIONS)}. "
            "It is not shown, as it may be part of a password."
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
