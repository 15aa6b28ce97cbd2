"""TLS with a real RabbitMQ."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.brokers.credentials import Tls
from scheduler.brokers.opening import broker_of
from scheduler.errors import AccessRefused, BrokerUnavailable
from scheduler.events import Connected, ConnectionRetried
from tests.certificates import HOST, Authority, listener
from tests.contract.proxy import Proxy
from tests.integration.witness import Witness
from tests.rabbitmq import ManagementApi, PrivateNode, directory_for_nodes, free_ports

BY_CERTIFICATE = """
auth_mechanisms.1 = PLAIN
auth_mechanisms.2 = EXTERNAL
ssl_cert_login_from = common_name
"""


@dataclass
class Secured:
    """A node with a TLS listener, the authority that both sides trust, and another one."""

    node: PrivateNode
    port: int
    authority: Authority
    stranger: Authority

    @property
    def url(self) -> str:
        return f"amqps://guest:guest@{HOST}:{self.port}/"


@pytest.fixture(scope="module")
def secured() -> Iterator[Secured]:
    (port,) = free_ports(1)
    with directory_for_nodes() as directory:
        authority, stranger = Authority(directory / "ours"), Authority(directory / "theirs")
        config = listener(port, authority, authority.issue("server", HOST)) + BY_CERTIFICATE
        with PrivateNode(config, plugins=["rabbitmq_auth_mechanism_ssl"]) as node:
            node.ctl("await_startup")  # its listener for TLS comes after the other one
            yield Secured(node, port, authority, stranger)


async def connected(url: str, tls: Tls) -> None:
    async with AmqpBroker(url, tls=tls) as broker:
        assert await broker.depth("no such queue") is None


async def test_a_client_without_a_certificate_or_tls_is_shown_what_to_set(secured: Secured) -> None:
    with pytest.raises(AccessRefused, match="asks for a client certificate") as refused:
        await connected(secured.url, secured.authority.tls())
    assert "set SCHEDULER_TLS_CERT_FILE and SCHEDULER_TLS_KEY_FILE" in str(refused.value)
    with pytest.raises(BrokerUnavailable, match=r"for TLS, write amqps://\."):
        await connected(secured.url.replace("amqps", "amqp"), Tls())


async def test_a_certificate_can_replace_user_and_password(secured: Secured) -> None:
    clara = secured.authority.issue("clara", "c@example.org", common_name="clara")
    url, tls = f"amqps://{HOST}:{secured.port}/?auth=external", secured.authority.tls(clara)
    with pytest.raises(AccessRefused, match="for the user that our certificate names: ACCESS"):
        await connected(url, tls)
    assert secured.node.management_url
    administrator = ManagementApi(secured.node.management_url)
    administrator.set_user("clara", "not needed")
    administrator.set_rights("clara", "/", "", "", ".*")
    await connected(url, tls)


async def test_files_are_read_again_at_each_connect(
    secured: Secured, namespace: str, tmp_path: Path
) -> None:
    client = secured.authority.issue("client", "client@example.org")
    trusted = tmp_path / "trusted.pem"
    trusted.write_bytes(secured.authority.file.read_bytes())
    async with Proxy(HOST, secured.port) as proxy:
        values: dict[str, Any] = {
            "broker_url": f"amqps://guest:guest@{HOST}:{proxy.port}/",
            "tls_ca_file": trusted,
            "tls_cert_file": client.certificate,
            "tls_key_file": client.key,
        }
        app = Scheduler(namespace, Settings(**values))
        witness = Witness(app)
        async with broker_of(app.settings, emit=app.events.emit) as broker:
            trusted.write_bytes(secured.stranger.file.read_bytes())
            proxy.cut()
            await witness.heard(ConnectionRetried, 1)
            trusted.unlink()
            await witness.heard(ConnectionRetried, witness.count(ConnectionRetried) + 2)
            trusted.write_bytes(secured.authority.file.read_bytes())
            await witness.heard(Connected, 1)
            assert await broker.depth("no such queue") is None
    reasons = [each.reason for each in witness.events if isinstance(each, ConnectionRetried)]
    assert "signed by an authority that is in" in reasons[0]
    assert f"SCHEDULER_TLS_CA_FILE: the file {str(trusted)!r} cannot be read" in reasons[-1]
