"""The broker in this process, as all its connections see it."""

import uuid
from dataclasses import replace

from scheduler.brokers.memory.connection import MemoryConnection
from scheduler.brokers.memory.letters import Letter
from scheduler.brokers.memory.queues import MemoryQueue
from scheduler.brokers.memory.router import Router
from scheduler.brokers.memory.streams import Stream
from scheduler.errors import IncompatibleBroker, QueueNotFound, Rejected, Unroutable
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Topology
from scheduler.timing.clock import Clock, SystemClock


class MemoryServer:
    """A broker in this process. Connections that are given the same one see the same queues.

    Args:
        clock: tells when an entry of a stream came.

    Attributes:
        cluster: a name that no other server has.
    """

    def __init__(self, clock: Clock | None = None) -> None:
        self.router = Router(clock or SystemClock())
        self.cluster = f"memory-{uuid.uuid4().hex}"
        self.connections: list[MemoryConnection] = []

    def disconnect_all(self) -> None:
        """Break every connection. They come back at once; their deliveries do not."""
        for connection in self.connections:
            connection.detach()  # all of them first: nobody may take what another one loses
        for connection in self.connections:
            connection.lose()
        for connection in self.connections:
            connection.attach()

    def restart(self) -> None:
        """Stop the broker and start it again: all but connections is durable."""
        self.disconnect_all()

    def connect(self) -> MemoryConnection:
        connection = MemoryConnection(self.router)
        self.connections.append(connection)
        return connection

    def close(self, connection: MemoryConnection) -> None:
        self.connections.remove(connection)
        connection.detach()
        connection.lose()
        connection.wake_queues()
        connection.followers.clear()

    def declare(self, topology: Topology) -> None:
        self.router.declare(topology)
        for connection in self.connections:
            connection.attach()

    def publish(self, message: Message, exchange: str, routing_key: str) -> None:
        """Publish as anybody may: what the headers CC and BCC list are further keys."""
        copies = tuple(key for name in ("CC", "BCC") for key in message.headers.get(name, ()))
        headers = {name: value for name, value in message.headers.items() if name != "BCC"}
        self.post(Letter(replace(message, headers=headers), exchange, routing_key, copies))

    def post(self, letter: Letter) -> None:
        """Put a letter into the queues that it is for."""
        queues = self.router.route(letter)
        if not queues:
            raise Unroutable(
                f"No queue is bound for {letter.routing_key!r} of exchange {letter.exchange!r}."
            )
        full = [queue.name for queue in queues if not queue.offer(letter)]
        if full:
            raise Rejected(f"The queue {full[0]!r} is full.")

    def queue(self, name: str) -> MemoryQueue:
        if name in self.router.streams:
            raise IncompatibleBroker(f"{name!r} is a stream: it is read or followed, not consumed.")
        if name not in self.router.queues:
            raise QueueNotFound(f"There is no queue {name!r}.")
        return self.router.queues[name]

    def stream(self, name: str) -> Stream:
        if name in self.router.queues:
            raise IncompatibleBroker(
                f"{name!r} is no stream: it is consumed, not read or followed."
            )
        if name not in self.router.streams:
            raise QueueNotFound(f"There is no stream {name!r}.")
        return self.router.streams[name]
