"""Send messages to tasks: `send`, `send_later`, `send_at`, `send_many`; and `publish`."""

import json
from collections.abc import Callable, Coroutine, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import blake2b
from typing import Any, Generic, ParamSpec, TypeVar, cast

from scheduler.brokers.properties import encoded
from scheduler.control.keyed import Connect, Keyed
from scheduler.errors import InvalidArguments, Unencodable, UsageError
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LoopId
from scheduler.queues.outbox import BlockingBridge, OneOfMany, Outbox, Posting, run_in
from scheduler.queues.unsent import MessageId
from scheduler.spelling import refusing_misnamed
from scheduler.tasks.retries import Retry
from scheduler.tasks.tasks import Task, TaskSpec
from scheduler.timing.durations import Duration, parse_duration, shown
from scheduler.timing.moments import utc_of

P = ParamSpec("P")  # the parameters of a call in place
Q = ParamSpec("Q")  # the parameters of a send: the same, without its Context
R = TypeVar("R")
MOST_URGENT = 31
TRAVELLING = "priority", "correlation_id", "message_id", "headers"
Calls = Iterable[Mapping[str, Any] | tuple[Mapping[str, Any], datetime | Duration]]
"""The arguments of each call, by name, or a pair of them and when it runs."""


class Sender(Generic[Q]):
    """Send calls of one task.

    Args:
        one_offs: schedules unique calls.
        unique: for how long a call is not repeated; None: it is sent each time.
    """

    def __init__(
        self,
        spec: TaskSpec,
        outboxes: "Outboxes",
        posting: Posting,
        one_offs: Keyed,
        unique: Duration | None = None,
    ) -> None:
        self._spec = spec
        self._outboxes = outboxes
        self._posting = posting
        self._one_offs = one_offs
        self._unique = unique

    @refusing_misnamed("options", UsageError)
    def options(
        self,
        *,
        priority: int | None = None,
        expires: Duration | None = None,
        correlation_id: str | None = None,
        message_id: str | None = None,
        headers: Mapping[str, Any] | None = None,
        deadline: Duration | None = None,
        retry_sending: Retry | None = None,
        unique: Duration | None = None,
    ) -> "Sender[Q]":
        """Return a sender with other options.

        Args:
            priority: higher ones go first, if the queue has priorities: 0 to 5 on classic queues,
                where the default is 0; 0 to 31 on quorum queues from RabbitMQ 4.3 on, where the
                default is 4; before, in RabbitMQ 4, two classes, up to 4 and above.
            expires: how long after its time the message may still run, such as "1h".
            correlation_id: travels with the message.
            message_id: identifies the message; a new UUID by default.
            headers: travel with the message.
            deadline: how long to wait for the confirmation; as the settings say by default.
            retry_sending: how often to retry under flow control, within the deadline, and after
                which waits; as the settings say by default. After a lost connection there is no
                wait.
            unique: a call with the same arguments is not repeated while it waits or runs, nor for
                so long after its time. It is a named one-off then (`once`), which costs more, and
                takes no priority or headers; `send` returns its name.

        Raises:
            UsageError: one of them cannot travel in a message.
        """
        if priority is not None and (type(priority) is not int or not 0 <= priority <= MOST_URGENT):
            raise UsageError(
                f"An option for {self._spec.name!r} cannot be sent. The priority must be a whole "
                f"number from 0 to {MOST_URGENT}, got {shown(priority)}."
            )
        given: dict[str, Any] = {
            "priority": priority,
            "expires": None if expires is None else parse_duration(expires, "expires"),
            "correlation_id": correlation_id,
            "message_id": message_id,
            "headers": headers,
            "deadline": None if deadline is None else parse_duration(deadline, "deadline"),
            "retry_sending": checked_retry(retry_sending),
        }
        known = {name: value for name, value in given.items() if value is not None}
        travelling = {name: known[name] for name in TRAVELLING if name in known}
        try:
            encoded(Message(**travelling))
        except Unencodable as error:
            raise UsageError(f"An option for {self._spec.name!r} cannot be sent. {error}") from None
        posting = self._posting._replace(**known)
        kept = self._unique if unique is None else parse_duration(unique, "unique")
        if kept is not None and (others := _beside_unique(posting)):
            raise UsageError(
                f"unique= of {self._spec.name!r} cannot be combined with {', '.join(others)}."
            )
        return Sender(self._spec, self._outboxes, posting, self._one_offs, kept)

    async def send(self, *args: Q.args, **kwargs: Q.kwargs) -> MessageId:
        """Send a message to run the task as soon as possible; return the message ID.

        When this returns, the broker has confirmed the message; or the fallback store of the app
        has it, and the ID is `stored`.

        Raises:
            InvalidArguments: the arguments do not fit the task.
            NotSent: the broker did not confirm it in time, and the app has no fallback.
            Unroutable: the task was never seeded.
        """
        return await self._post(self._posting, args, kwargs)

    async def send_later(self, delay: Duration, /, *args: Q.args, **kwargs: Q.kwargs) -> MessageId:
        """Send a message to run the task after a delay, such as "10m": never early."""
        return await self._post(self._after(delay), args, kwargs)

    async def send_at(self, when: datetime, /, *args: Q.args, **kwargs: Q.kwargs) -> MessageId:
        """Send a message to run the task at an aware moment; one that has passed means now."""
        return await self._post(self._at(when), args, kwargs)

    async def send_many(
        self, calls: Calls, *, delay: Duration | None = None, at: datetime | None = None
    ) -> list[MessageId]:
        """Send a message for each call; return the message IDs, in the calls' order.

        When this returns, the broker has confirmed all of them, or the fallback store of the app
        has those whose ID is `stored`; all are checked before any is sent.

        Args:
            calls: the arguments of each, by name; or a pair of them and when it runs: an aware
                moment, or the delay.
            delay: for calls without a time of their own; None: at once.
            at: the moment for these, instead.

        Raises:
            InvalidArguments: those of one do not fit the task; none was sent.
            NotAllSent: the broker confirmed some, and says which.
            NotSent, Unroutable: as for `send`; none was confirmed.
            UsageError: `calls` is not iterable, both a delay and a moment are given, or one
                message ID for all.
        """
        if self._unique is not None:
            raise UsageError("send_many does not support unique=; send the calls one by one.")
        if delay is not None and at is not None:
            raise UsageError("send_many takes a delay or a moment, got both.")
        if self._posting.message_id is not None:
            raise UsageError("send_many gives each message its own ID: omit message_id=.")
        if not isinstance(calls, Iterable):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                "send_many takes an iterable of calls, each with its arguments by name, got "
                f"{shown(calls)}."
            )
        when = at if delay is None else delay
        posting = self._posting if when is None else self._when(when)
        bound = [self._bound(number, each, posting) for number, each in enumerate(calls)]
        name = self._spec.name
        return await self._outboxes.through(lambda outbox: outbox.send_all(name, bound))

    @property
    def blocking(self) -> "BlockingSender[Q]":
        """Return the same sender for callers that are not coroutines."""
        return BlockingSender(self, self._outboxes.bridge)

    def _post(
        self, posting: Posting, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Coroutine[Any, Any, MessageId]:
        name, arguments = self._spec.name, self._spec.arguments.bind(*args, **kwargs)
        if self._unique is not None:
            return self._post_once(posting, arguments, self._unique)
        return self._outboxes.through(lambda outbox: outbox.send(name, arguments, posting))

    async def _post_once(
        self, posting: Posting, arguments: Mapping[str, Any], unique: Duration
    ) -> MessageId:
        canonical = json.dumps(arguments, sort_keys=True).encode(errors="replace")
        name = f"u-{blake2b(canonical, digest_size=10).hexdigest()}"
        await self._one_offs.once(
            name,
            at=posting.at,
            after=posting.delay if posting.at is None else None,
            args=self._spec.arguments.load(arguments),
            unique=unique,
        )
        return MessageId(str(LoopId(self._spec.name, name)))

    def _after(self, delay: Duration) -> Posting:
        return self._posting._replace(delay=parse_duration(delay, "delay"), given=shown(delay))

    def _at(self, when: datetime) -> Posting:
        return self._posting._replace(at=utc_of(when))

    def _when(self, when: datetime | Duration) -> Posting:
        return self._at(when) if isinstance(when, datetime) else self._after(when)

    def _bound(self, number: int, call: object, posting: Posting) -> OneOfMany:
        try:
            pair = cast("tuple[Any, ...]", call) if isinstance(call, tuple) else ()
            if len(pair) == 2:
                call, posting = pair[0], self._when(pair[1])
            if not isinstance(call, Mapping):
                text = f"a call must map names to arguments, got {shown(cast('object', call))}."
                raise InvalidArguments(text)
            return self._spec.arguments.dump(cast("Mapping[str, Any]", call)), posting
        except InvalidArguments as error:
            raise InvalidArguments(f"Nothing was sent. Call {number}: {error}") from None
        except UsageError as error:
            raise UsageError(f"Nothing was sent. Call {number}: {error}") from None


class BlockingSender(Generic[Q]):
    """Send calls of one task, and wait until they are confirmed."""

    def __init__(self, sender: Sender[Q], bridge: BlockingBridge) -> None:
        self._sender = sender
        self._bridge = bridge

    def send(self, *args: Q.args, **kwargs: Q.kwargs) -> MessageId:
        """Send as `Sender.send` does."""
        return self._bridge.run(self._sender.send(*args, **kwargs))

    def send_later(self, delay: Duration, /, *args: Q.args, **kwargs: Q.kwargs) -> MessageId:
        """Send as `Sender.send_later` does."""
        return self._bridge.run(self._sender.send_later(delay, *args, **kwargs))

    def send_at(self, when: datetime, /, *args: Q.args, **kwargs: Q.kwargs) -> MessageId:
        """Send as `Sender.send_at` does."""
        return self._bridge.run(self._sender.send_at(when, *args, **kwargs))

    def send_many(
        self, calls: Calls, *, delay: Duration | None = None, at: datetime | None = None
    ) -> list[MessageId]:
        """Send as `Sender.send_many` does."""
        return self._bridge.run(self._sender.send_many(calls, delay=delay, at=at))


@dataclass(frozen=True, slots=True)
class Outboxes:
    """Hold the outbox of coroutines, and a second one for blocking callers."""

    main: Outbox
    beside: Outbox
    bridge: BlockingBridge

    async def through(self, send: Callable[[Outbox], Coroutine[Any, Any, R]]) -> R:
        """Send over the connection of this event loop, if its owner will close it.

        Otherwise send in the extra thread: an event loop that ends cannot close a connection in
        order.
        """
        if self.main.is_open:
            return await send(self.main)
        if (home := self.main.home) is not None:
            return await run_in(home, send(self.main))
        return await self.bridge.run_beside(send(self.beside))


def checked_retry(retry_sending: Retry | None) -> Retry | None:
    """Return how to retry a send, or raise `UsageError`."""
    if not isinstance(retry_sending, Retry | None):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise UsageError(
            f"retry_sending= must be a Retry, such as Retry(5), got {shown(retry_sending)}."
        )
    return retry_sending


def _beside_unique(posting: Posting) -> list[str]:
    plain = Posting()
    kept = (*TRAVELLING, "expires", "deadline", "retry_sending")
    return [f"{name}=" for name in kept if getattr(posting, name) != getattr(plain, name)]


class PeriodicTask(Task[P, R], Keyed):
    """Register a task that is a loop, and can have more. Calling it runs the function in place."""

    def __init__(self, function: Callable[P, R], spec: TaskSpec, connect: Connect) -> None:
        Task.__init__(self, function, spec)  # pyright: ignore[reportUnknownMemberType]
        Keyed.__init__(self, spec, connect)


class CallTask(Task[P, R], Sender[Q], Keyed, Generic[P, Q, R]):
    """Register a task that runs for each message. Calling it runs the function in place."""

    def __init__(
        self, function: Callable[P, R], spec: TaskSpec, connect: Connect, outboxes: Outboxes
    ) -> None:
        Task.__init__(self, function, spec)  # pyright: ignore[reportUnknownMemberType]
        Keyed.__init__(self, spec, connect)
        posting = Posting(expires=spec.expires, in_order=spec.ordered)
        Sender.__init__(self, spec, outboxes, posting, self)  # pyright: ignore[reportUnknownMemberType]
