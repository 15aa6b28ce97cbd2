"""Look for policies of the broker's operators that change the queues of an app."""

from typing import NamedTuple

from scheduler.brokers.contract import Broker
from scheduler.brokers.management import Management
from scheduler.protocol.policies import advice, harms
from scheduler.tasks.registry import App


class Found(NamedTuple):
    """A policy that changes queues of ours.

    Attributes:
        policy: its kind and name.
        detail: which queues, and what it sets.
        advice: the command that shields the namespace from it, or what to do instead.
    """

    policy: str
    detail: str
    advice: str


class PolicyWatch:
    """Looks at the policies that apply to the queues of an app.

    Args:
        management: None: they cannot be read.
    """

    def __init__(self, app: App, broker: Broker, management: Management | None) -> None:
        self._app = app
        self._broker = broker
        self._management = management

    async def found(self) -> list[Found] | None:
        """Return the policies that change the queues to their harm; None: they cannot be read.

        Raises:
            BrokerUnavailable: the management API does not answer.
            AccessRefused: its user may not read them.
        """
        if self._management is None:
            return None
        vhost = self._broker.info.vhost
        policies = await self._management.policies(vhost)
        return [
            Found(harm.about, harm.detail, advice(harm, self._app.namespace, vhost))
            for harm in harms(self._app.topology().queues, policies)
        ]
