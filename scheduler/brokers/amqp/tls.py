"""Configure TLS: trusted authorities, the client certificate, and causes of failed handshakes."""

import functools
import logging
import ssl
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from yarl import URL

from scheduler.brokers.credentials import read_file
from scheduler.errors import (
    AccessRefused,
    BrokerError,
    BrokerUnavailable,
    SettingsError,
    UntrustedBroker,
)

CA, CERT, KEY = "SCHEDULER_TLS_CA_FILE", "SCHEDULER_TLS_CERT_FILE", "SCHEDULER_TLS_KEY_FILE"

# X509_V_ERR_... of OpenSSL (https://docs.openssl.org/3.0/man3/X509_STORE_CTX_get_error/).
NOT_YET_VALID, EXPIRED, OTHER_HOST, OTHER_ADDRESS = 9, 10, 62, 64
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

    def context(self, url: URL) -> ssl.SSLContext | None:
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

    def suspicion(self, url: URL) -> str:
        """Explain why a broker may close a connection without a reason."""
        if url.scheme != "amqps":
            return (
                "Name the port of AMQP (5672), not that of the management pages (15672); for TLS, "
                "write amqps://."
            )
        if self.cert_file is None:
            return f"It may ask for a client certificate: set {CERT} and {KEY}."
        return f"It may reject the client certificate, {str(self.cert_file)!r}: its log says more."

    def _check(self, url: URL) -> None:
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
        return UntrustedBroker(
            f"{address} could not be verified; no credentials were sent: {_doubt(error, tls)}"
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


def _doubt(error: ssl.SSLCertVerificationError, tls: Tls) -> str:
    said = error.verify_message.rstrip(".")
    match error.verify_code:
        case code if code == EXPIRED:
            return "its certificate has expired. Renew it, or check the clock of this machine."
        case code if code == NOT_YET_VALID:
            return "its certificate is not valid yet. Check the clock of this machine."
        case code if code in (OTHER_HOST, OTHER_ADDRESS):
            return (
                f"its certificate is for another name ({said}). Connect by a name in the "
                "certificate, or give the broker one with this name."
            )
        case _:
            whom = "this machine trusts" if tls.ca_file is None else f"is in {str(tls.ca_file)!r}"
            return (
                f"its certificate is not signed by an authority that {whom} ({said}). "
                f"Set {CA} to the certificate of the authority that signed it."
            )


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
