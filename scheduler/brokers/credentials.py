"""Where the broker is and who we are there, as the settings say it: put together, and kept secret.

What is in a file is read at each call, so that a changed secret is taken without a restart.
"""

from pathlib import Path
from typing import TYPE_CHECKING

from scheduler.errors import SettingsError
from scheduler.settings import Settings

if TYPE_CHECKING:
    from yarl import URL

FORM = "amqp://user:password@host:port/vhost"
URL_OPTIONS = ("auth", "heartbeat", "name", "timeout")
LONGEST_SECONDS = 65534
TLS_OPTIONS = ("cafile", "capath", "cadata", "certfile", "keyfile", "no_verify_ssl")


def broker_url(settings: Settings) -> "URL":
    """The URL of the broker, with the user and the password that the settings name beside it.

    Raises:
        SettingsError: it cannot be used, or a file cannot be read; the message holds no secret.
    """
    url = parse_url(_broker_url(settings))
    user, user_file = settings.broker_user, settings.broker_user_file
    if user_file is not None:
        user = read_secret("SCHEDULER_BROKER_USER_FILE", user_file)
    if user is not None:
        url = url.with_user(user)
    secret, password_file = settings.broker_password, settings.broker_password_file
    if password_file is not None:
        url = url.with_password(read_secret("SCHEDULER_BROKER_PASSWORD_FILE", password_file))
    elif secret is not None:
        url = url.with_password(secret.get_secret_value())
    return url


def is_embedded(settings: Settings) -> bool:
    """Whether the broker is the one that lives within the process.

    Raises:
        SettingsError: the file of the URL cannot be read.
    """
    return _broker_url(settings).startswith("memory:")


def parse_url(text: str) -> "URL":
    """The URL of an AMQP broker.

    Raises:
        SettingsError: it is none; the message does not show it, as it may hold a password.
    """
    if not text:
        raise SettingsError(
            f"The broker URL is empty. Write {FORM}, or unset SCHEDULER_BROKER_URL."
        )
    url = _parsed(text)
    if url is None:
        raise SettingsError(
            f"The broker URL cannot be read. Write {FORM}, with special characters "
            "percent-encoded; or give the password as it is in SCHEDULER_BROKER_PASSWORD."
        )
    if url.scheme not in ("amqp", "amqps") or not url.host:
        raise SettingsError(
            f"The broker URL must be {FORM} (amqps:// for TLS) or memory://. "
            "What it is now is not shown, as it may hold a password."
        )
    if options := [name for name in TLS_OPTIONS if name in url.query]:
        raise SettingsError(
            f"The broker URL has options for TLS ({', '.join(options)}), which are not used: set "
            "SCHEDULER_TLS_CA_FILE, SCHEDULER_TLS_CERT_FILE, SCHEDULER_TLS_KEY_FILE or "
            "SCHEDULER_TLS_VERIFY instead."
        )
    _check_options(url)
    return url


def user_of(url: "URL") -> str:
    """Whom the broker takes us for; empty: it reads that in our certificate."""
    return "" if url.query.get("auth", "").lower() == "external" else url.user or "guest"


def read_secret(setting: str, path: Path) -> str:
    """The one value that a file holds, without the newline at its end.

    Raises:
        SettingsError: there is none.
    """
    # What cannot be decoded is replaced, because an error would carry all of it.
    value = read_file(setting, path).decode(errors="replace").rstrip("\r\n")
    if not value or "\ufffd" in value:
        wrong = "is not UTF-8 text" if value else "is empty"
        raise SettingsError(f"{setting}: the file {str(path)!r} {wrong}.")
    return value


def read_file(setting: str, path: Path) -> bytes:
    """What a file holds that a setting names.

    Raises:
        SettingsError: it cannot be read.
    """
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


def _check_options(url: "URL") -> None:
    if not set(URL_OPTIONS).issuperset(url.query):
        raise SettingsError(
            f"The broker URL has an option that is none of {', '.join(URL_OPTIONS)}. "
            "It is not shown, as it may be a part of a password."
        )
    for name in ("heartbeat", "timeout"):
        value = url.query.get(name, "0")
        if not value.isdecimal() or int(value) > LONGEST_SECONDS:
            raise SettingsError(
                f"{name} in the broker URL is a whole number of seconds, up to {LONGEST_SECONDS}. "
                "What it is now is not shown, as it may be a part of a password."
            )


def _parsed(text: str) -> "URL | None":
    from yarl import URL  # when there is one to be read: it takes long to load

    try:
        url = URL(text)
        url.port  # noqa: B018 - yarl parses the port when it is asked for
    except ValueError:
        return None
    # Of `amqp://user:1/2@host/`, a slash in the password has made `user` a host.
    return None if "@" in text and "@" not in url.authority else url
