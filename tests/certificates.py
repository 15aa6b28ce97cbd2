"""An authority, and what it signs, as files for a broker and its clients."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, NamedTuple

import trustme

from scheduler.brokers.credentials import Tls
from tests.rabbitmq import as_nodes_see

HOST = "127.0.0.1"
DAY = timedelta(days=1)
NOW = datetime.now(UTC)
PAST, FUTURE = NOW - 30 * DAY, NOW + 30 * DAY


class Pair(NamedTuple):
    """The files of a certificate and of its key."""

    certificate: Path
    key: Path


class Authority:
    """Signs certificates, and writes them down in a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._directory.mkdir(exist_ok=True)
        self._ca = trustme.CA()
        self.file = directory / "ca.pem"
        self._ca.cert_pem.write_to_path(self.file)

    def issue(self, name: str, *identities: str, **validity: Any) -> Pair:
        """A certificate for hosts or people, and its key."""
        issued = self._ca.issue_cert(*identities, **validity)
        pair = Pair(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        pair.certificate.write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
        issued.private_key_pem.write_to_path(pair.key)
        return pair

    def tls(self, pair: Pair | None = None, **options: Any) -> Tls:
        """Trust this authority, and show a certificate."""
        if pair is None:
            return Tls(self.file, **options)
        return Tls(self.file, pair.certificate, pair.key, **options)


def listener(port: int, authority: Authority, server: Pair) -> str:
    """Lines for rabbitmq.conf: TLS on this port, for clients that show a certificate."""
    return (
        f"listeners.ssl.1 = {HOST}:{port}\n"
        f"ssl_options.cacertfile = {as_nodes_see(authority.file)}\n"
        f"ssl_options.certfile = {as_nodes_see(server.certificate)}\n"
        f"ssl_options.keyfile = {as_nodes_see(server.key)}\n"
        "ssl_options.verify = verify_peer\n"
        "ssl_options.fail_if_no_peer_cert = true\n"
        # With TLS 1.2 a refusal always arrives; with 1.3 the connection's end may overtake it.
        "ssl_options.versions.1 = tlsv1.2\n"
    )
