"""How many processors there are for a task."""

from collections.abc import Collection

from scheduler.brokers.contract import Broker, Depth
from scheduler.protocol.topology import Names


class Processors:
    """Counts the processors of tasks.

    Args:
        resting: the tasks whose processors leave the queue while its next message has to wait.
    """

    def __init__(self, broker: Broker, names: Names, resting: Collection[str]) -> None:
        self._broker = broker
        self._names = names
        self._resting = resting

    async def of(self, task: str, queue: Depth) -> int:
        """How many consume from the queue of a task, or will when it is their turn."""
        if queue.consumers or task not in self._resting:
            return queue.consumers
        present = await self._broker.depth(self._names.presence)
        return 0 if present is None else present.consumers
