"""Tasks that can be sent messages: `send`, `send_later`, `send_at`."""

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any, Generic, ParamSpec, TypeVar

from scheduler.brokers.properties import encoded
from scheduler.control.keyed import Connect, Keyed
from scheduler.errors import Unencodable, UsageError
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names
from scheduler.queues.outbox import BlockingBridge, Outbox, Posting, run_in
from scheduler.tasks.tasks import Task, TaskSpec
from scheduler.timing.durations import Duration, parse_duration, shown

P = ParamSpec("P")  # how the task is called in place
Q = ParamSpec("Q")  # how it is sent: the same, without its Context
R = TypeVar("R")
TRAVELLING = "priority", "correlation_id", "message_id", "headers"


class Sender(Generic[Q]):
    """Sends calls of one task."""

    def __init__(self, spec: TaskSpec, outboxes: "Outboxes", posting: Posting) -> None:
        self._spec = spec
        self._outboxes = outboxes
        self._posting = posting

    def options(
        self,
        *,
        priority: int | None = None,
        expires: Duration | None = None,
        correlation_id: str | None = None,
        message_id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        deadline: Duration | None = None,
    ) -> "Sender[Q]":
        """The same sender, with other options for what it sends.

        Args:
            priority: higher ones go first, where the queue has priorities: 0 to 5 on classic
                queues, where none is 0; 0 to 31 on quorum queues from RabbitMQ 4.3 on, where none
                is 4; before, in RabbitMQ 4, two classes, up to 4 and above.
            expires: how long after its time the message is still worth a run, such as "1h".
            correlation_id: travels with the message.
            message_id: identifies the message; a new UUID by default.
            headers: travel with the message.
            deadline: how long to try to have it confirmed; 30 s by default.

        Raises:
            UsageError: one of them cannot travel in a message.
        """
        given: dict[str, Any] = {
            "priority": priority,
            "expires": None if expires is None else parse_duration(expires),
            "correlation_id": correlation_id,
            "message_id": message_id,
            "headers": headers,
            "deadline": None if deadline is None else parse_duration(deadline),
        }
        known = {name: value for name, value in given.items() if value is not None}
        travelling = {name: known[name] for name in TRAVELLING if name in known}
        try:
            encoded(Message(**travelling))
        except Unencodable as error:
            raise UsageError(f"An option for {self._spec.name!r} cannot be sent. {error}") from None
        return Sender(self._spec, self._outboxes, replace(self._posting, **known))

    async def send(self, *args: Q.args, **kwargs: Q.kwargs) -> str:
        """Have the task run as soon as a processor is free; returns the message id.

        When this returns, the broker has confirmed the message.

        Raises:
            InvalidArguments: they do not fit the task.
            NotSent: the broker did not confirm it in time.
            Unroutable: the task was never seeded.
        """
        return await self._post(self._posting, args, kwargs)

    async def send_later(self, delay: Duration, /, *args: Q.args, **kwargs: Q.kwargs) -> str:
        """Have the task run after a delay, such as "10m": never early, in steps of 100 ms."""
        posting = replace(self._posting, delay=parse_duration(delay), given=shown(delay))
        return await self._post(posting, args, kwargs)

    async def send_at(self, when: datetime, /, *args: Q.args, **kwargs: Q.kwargs) -> str:
        """Have the task run at a moment, which must be aware; one that has passed means now."""
        if when.tzinfo is None:
            raise UsageError(
                f"send_at takes an aware datetime, got {when.isoformat()} without a time zone."
            )
        return await self._post(
            replace(self._posting, at=when, given=when.isoformat()), args, kwargs
        )

    @property
    def blocking(self) -> "BlockingSender[Q]":
        """The same, for callers that are not coroutines."""
        return BlockingSender(self, self._outboxes.bridge)

    def _post(
        self, posting: Posting, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, str]:
        arguments = self._spec.arguments.bind(*args, **kwargs)
        return self._outboxes.send(self._spec.name, arguments, posting)


class BlockingSender(Generic[Q]):
    """Sends calls of one task, and waits until they are confirmed."""

    def __init__(self, sender: Sender[Q], bridge: BlockingBridge) -> None:
        self._sender = sender
        self._bridge = bridge

    def send(self, *args: Q.args, **kwargs: Q.kwargs) -> str:
        """As `Sender.send`."""
        return self._bridge.run(self._sender.send(*args, **kwargs))

    def send_later(self, delay: Duration, /, *args: Q.args, **kwargs: Q.kwargs) -> str:
        """As `Sender.send_later`."""
        return self._bridge.run(self._sender.send_later(delay, *args, **kwargs))

    def send_at(self, when: datetime, /, *args: Q.args, **kwargs: Q.kwargs) -> str:
        """As `Sender.send_at`."""
        return self._bridge.run(self._sender.send_at(when, *args, **kwargs))


@dataclass(frozen=True, slots=True)
class Outboxes:
    """The outbox of coroutines, and the one of blocking callers beside it."""

    main: Outbox
    beside: Outbox
    bridge: BlockingBridge

    async def send(self, task: str, args: Mapping[str, Any], posting: Posting) -> str:
        """Send over the connection of this event loop, if somebody opened one and will close it.

        One that is opened in passing goes into the thread beside: an event loop that ends cannot
        close it in good order.
        """
        if self.main.is_open:
            return await self.main.send(task, args, posting)
        if (home := self.main.home) is not None:
            return await run_in(home, self.main.send(task, args, posting))
        return await self.bridge.run_beside(self.beside.send(task, args, posting))


class PeriodicTask(Task[P, R], Keyed):
    """A task that is a loop, and can have more. Calling it runs the function in place."""

    def __init__(
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        spec: TaskSpec,
        names: Names,
        connect: Connect,
    ) -> None:
        Task.__init__(self, function, spec)  # pyright: ignore[reportUnknownMemberType]
        Keyed.__init__(self, spec, names, connect)


class CallTask(Task[P, R], Sender[Q], Keyed, Generic[P, Q, R]):
    """A task that runs when it is sent a message. Calling it runs the function in place."""

    def __init__(
        self,
        function: Callable[P, Coroutine[Any, Any, R]],
        spec: TaskSpec,
        names: Names,
        connect: Connect,
        outboxes: "Outboxes",
    ) -> None:
        Task.__init__(self, function, spec)  # pyright: ignore[reportUnknownMemberType]
        Keyed.__init__(self, spec, names, connect)
        Sender.__init__(self, spec, outboxes, Posting(expires=spec.expires))  # pyright: ignore[reportUnknownMemberType]
