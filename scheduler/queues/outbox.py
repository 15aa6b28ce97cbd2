"""Send messages: now, later, or at a moment; each is confirmed, stored, or fails with an error."""

import asyncio
import itertools
import math
import os
import sys
import threading
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from types import MappingProxyType
from typing import Any, NamedTuple, TypeVar

from scheduler.brokers.contract import DEFAULT_TIMEOUT, IN_FLIGHT, Broker, cancelled
from scheduler.brokers.properties import encoded, encoded_key
from scheduler.errors import (
    AccessRefused,
    Blocked,
    BrokerUnavailable,
    ConfirmationTimeout,
    MessageError,
    NotAllSent,
    NotSent,
    Rejected,
    SchedulerError,
    Unroutable,
)
from scheduler.events import (
    CallNotSent,
    CallSending,
    CallSent,
    Emit,
    MessageStored,
    StoredDelayed,
    StoredSent,
)
from scheduler.middleware import AroundSending, Sending, send_through
from scheduler.protocol.calls import new_call
from scheduler.protocol.hatchery import check_length
from scheduler.protocol.messages import Message, summary_of, unshared
from scheduler.protocol.topology import Names
from scheduler.queues.timers import send
from scheduler.queues.unsent import MessageId, Unsent, UnsentStore
from scheduler.tasks.retries import Retry
from scheduler.timing.durations import SECOND, ZERO
from scheduler.timing.moments import Clock
from scheduler.timing.pacing import backoff, dice
from scheduler.user_code import run_despite

R = TypeVar("R")

DEADLINE = timedelta(seconds=30)
FIRST_PAUSE, LAST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=5)
FLOW_CONTROL = Blocked, Rejected, ConfirmationTimeout
LOOK_EVERY = 5 * SECOND
CLAIM = 2 * DEFAULT_TIMEOUT  # longer than a process tries one message


class Posting(NamedTuple):
    """Describe how a call is sent, besides its arguments.

    Attributes:
        delay: how long from now.
        at: the moment, instead.
        given: how the delay was written, for errors.
        headers: travel with the message, through every delay and retry.
        deadline: how long to try to get it confirmed; None: as long as the policy says.
        retry_sending: how to try again under flow control; None: as the policy says.
        in_order: whether it may not come before others that were sent before.
    """

    delay: timedelta = timedelta(0)
    at: datetime | None = None
    given: str | None = None
    expires: timedelta | None = None
    priority: int | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    headers: Mapping[str, Any] = MappingProxyType({})
    deadline: timedelta | None = None
    retry_sending: Retry | None = None
    in_order: bool = True


OneOfMany = tuple[Mapping[str, Any], Posting]
"""A call sent with others: its arguments, and its posting."""


@dataclass(frozen=True, slots=True)
class SendPolicy:
    """Set the defaults for sending messages."""

    deadline: timedelta = DEADLINE
    retry: Retry = field(default_factory=lambda: Retry(sys.maxsize))


class BorrowedConnection(NamedTuple):
    """Borrow a connection, valid in one event loop, or in all if `loop` is None."""

    broker: Broker
    clock: Clock
    loop: asyncio.AbstractEventLoop | None


class OwnConnection:
    """Hold the connection that an outbox has opened in one event loop.

    Attributes:
        opened: closes the broker; None: it is not connected.
        entered: how many blocks keep it open.
        closed: whether it is over, for the messages that are being sent, too.
        connecting: connects when the broker is back, to send the stored messages.
    """

    def __init__(self) -> None:
        self.opening = asyncio.Lock()
        self.broker: Broker | None = None
        self.opened: AsyncExitStack | None = None
        self.entered = 0
        self.closed = False
        self.connecting: asyncio.Task[None] | None = None


class Outbox:
    """Send the messages of a namespace, over one connection for each event loop.

    It opens the connection on first use, or borrows one. While connected to RabbitMQ, it also sends
    the messages in the fallback store.

    Args:
        connect: makes a broker, not yet opened.
        emit: called with the events of each message.
        around: the middleware of each call.
        fallback: stores unsent messages; None: `NotSent` is raised.
        policy: returns the defaults.
    """

    def __init__(
        self,
        names: Names,
        clock: Clock,
        connect: Callable[[], Broker],
        emit: Emit,
        around: Sequence[AroundSending] = (),
        fallback: UnsentStore | None = None,
        policy: Callable[[], SendPolicy] = SendPolicy,
    ) -> None:
        self._names = names
        self._clock = clock
        self._connect = connect
        self._emit = emit
        self._around = around
        self._fallback = fallback
        self._policy = policy
        self._resending: dict[Broker, asyncio.Task[None]] = {}
        self._lent: list[BorrowedConnection] = []
        self._own: dict[asyncio.AbstractEventLoop, OwnConnection] = {}

    def use(self, broker: Broker, clock: Clock, *, everywhere: bool = False) -> None:
        """Send over a borrowed connection in this event loop, or in all."""
        self._lent.append(
            BorrowedConnection(broker, clock, None if everywhere else asyncio.get_running_loop())
        )
        self._resend_over(broker)

    def release(self, broker: Broker) -> None:
        """Stop using this connection."""
        self._lent = [lent for lent in self._lent if lent.broker is not broker]
        if (resending := self._resending.pop(broker, None)) is not None:
            resending.cancel()

    @property
    def clock(self) -> Clock:
        """Return the clock of the borrowed connection, or the machine's."""
        lent = self._lent_here
        return self._clock if lent is None else lent.clock

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Broker]:
        """Return the open connection; without one, open one during the block."""
        if self.is_open:
            yield await self._current(self._own_here())
        else:
            async with self._connect() as broker:
                yield broker

    @property
    def is_open(self) -> bool:
        """Return whether this event loop has, or will have, a connection that its owner closes."""
        own = self._own.get(asyncio.get_running_loop())
        return self._broker_here is not None or (own is not None and own.entered > 0)

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """Return the event loop of a borrowed embedded broker: no other can reach it."""
        embedded = (each.loop for each in reversed(self._lent) if each.broker.info.is_embedded)
        return next(embedded, None)

    async def open(self) -> None:
        """Connect now, rather than on first use; with a fallback, later if the broker is not
        reachable. Each call has its own `close`.
        """
        own = self._own_here()
        own.entered += 1  # so that another block does not close it in the meantime
        try:
            await self._current(own)
        except BaseException as error:
            if self._fallback is None or not isinstance(error, BrokerUnavailable):
                await self.close()
                raise
            self._connect_later(own)

    async def close(self) -> None:
        """Close the connection of this event loop, if this opened it and no other block uses it.

        Messages that are still being sent over it are stored, or fail.
        """
        own = self._own_here()
        own.entered -= 1
        if own.entered > 0:
            return
        del self._own[asyncio.get_running_loop()]
        own.closed = True
        if own.connecting is not None:
            await cancelled(own.connecting)
        if own.broker is not None:
            self.release(own.broker)
        if own.opened is not None:
            await own.opened.aclose()

    def _own_here(self) -> OwnConnection:
        if (own := self._own.get(loop := asyncio.get_running_loop())) is None:
            # A program may end an event loop, and begin another, any number of times.
            for ended in [each for each in tuple(self._own) if each.is_closed()]:
                self._own.pop(ended, None)
            own = self._own[loop] = OwnConnection()
        return own

    @property
    def _lent_here(self) -> BorrowedConnection | None:
        if not self._lent:
            return None
        # A connection belongs to the event loop that opened it.
        loop = asyncio.get_running_loop()
        return next((lent for lent in reversed(self._lent) if lent.loop in (loop, None)), None)

    @property
    def _broker_here(self) -> Broker | None:
        if (lent := self._lent_here) is not None:
            return lent.broker
        own = self._own.get(asyncio.get_running_loop())
        return None if own is None or own.opened is None else own.broker

    async def _current(self, own: OwnConnection) -> Broker:
        if (broker := self._broker_here) is None:
            async with own.opening:
                if own.opened is None and not own.closed:
                    opened = AsyncExitStack()
                    own.broker = await opened.enter_async_context(self._connect())
                    own.opened = opened
                    if own.closed:
                        await opened.aclose()
            if own.closed:
                raise BrokerUnavailable("The connection was closed before it was used.")
            assert (broker := own.broker) is not None
        self._resend_over(broker)
        return broker

    def _connect_later(self, own: OwnConnection) -> None:
        """Connect when the broker is back, though the program may send nothing more."""
        if self._broker_here is not None or own.closed:
            return
        if own.connecting is None or own.connecting.done():
            own.connecting = asyncio.create_task(self._keep_connecting(own), name="reconnect")

    async def _keep_connecting(self, own: OwnConnection) -> None:
        while True:
            await asyncio.sleep(LOOK_EVERY.total_seconds())
            try:
                await self._current(own)
                return
            except SchedulerError as error:
                self._emit(StoredDelayed(0, str(error)))

    async def send(self, task: str, args: Mapping[str, Any], posting: Posting) -> MessageId:
        """Send a call, confirmed; return its message ID.

        Raises:
            NotSent: it was not confirmed within the deadline, nor stored.
            Unroutable: nothing was seeded for this task.
            TooLarge: the broker does not accept so large a message.
            UsageError: its delay is too long.
        """
        id, headers = posting.message_id or str(uuid.uuid4()), unshared(dict(posting.headers))
        sending = Sending(task, id, args, headers)
        await send_through(self._around, sending, partial(self._send, sending, posting))
        return MessageId(sending.message_id, sending.stored)

    async def _send(self, asked: Sending, posting: Posting) -> None:
        now = self.clock.now()
        # In UTC: Python subtracts wall-clock times if two moments have the same zone.
        due_at = max(posting.at or now + posting.delay, now).astimezone(UTC)
        check_length(due_at - now, given=posting.given or posting.at)
        call = asked.task, asked.message_id
        sending = CallSending(*call, dict(asked.headers), asked.arguments, due_at)
        self._emit(sending)
        try:
            message = new_call(
                self._names.namespace,
                asked.task,
                asked.arguments,
                message_id=asked.message_id,
                sent_at=now,
                due_at=due_at,
                not_before=posting.at,
                expires_at=None if posting.expires is None else due_at + posting.expires,
                priority=posting.priority,
                correlation_id=posting.correlation_id,
                headers=sending.headers,
            )
            error = await self._deliver(Unsent(None, asked.task, message, due_at, now), posting)
        except BaseException as error:
            self._emit(CallNotSent(*call, error))
            raise
        asked.confirmed, asked.stored = error is None, error is not None
        self._emit(CallSent(*call) if error is None else CallNotSent(*call, error))

    async def publish(
        self, exchange: str, key: str, message: Message, posting: Posting
    ) -> MessageId:
        """Publish a message to an exchange of another application, confirmed; return its ID.

        Raises:
            NotSent: it was not confirmed within the deadline, nor stored.
            Unroutable: there is no such exchange, or no queue is bound to it for this key.
            Unencodable: no message can carry its key, a header or a property.
        """
        now = self.clock.now()
        id = posting.message_id or str(uuid.uuid4())
        message = replace(message, message_id=id, timestamp=now)
        encoded(message)
        encoded_key(key)
        error = await self._deliver(Unsent(exchange, key, message, now, now), posting)
        return MessageId(id, error is not None)

    async def send_all(self, task: str, calls: Sequence[OneOfMany]) -> list[MessageId]:
        """Send many calls concurrently; return their message IDs, in order.

        A call that cannot be sent, such as one that is too large, does not affect the others. After
        any other failure, no further call is sent; after one is stored, all are stored.

        Raises:
            NotAllSent: some were confirmed, not all.
            BrokerError, MessageError, UsageError: as with one; none was confirmed.
        """
        ids: list[MessageId | None] = [None] * len(calls)
        waiting, errors = deque(enumerate(calls)), list[Exception]()

        async def send_some() -> None:
            deadline: timedelta | None = None
            while waiting:
                number, (args, posting) = waiting.popleft()
                if deadline is not None:
                    posting = posting._replace(deadline=deadline)
                try:
                    ids[number] = id = await self.send(task, args, posting)
                except MessageError as error:  # an error of this call alone
                    errors.append(error)
                except Exception as error:
                    errors.append(error)
                    waiting.clear()
                else:
                    if id.stored:
                        deadline = ZERO

        await asyncio.gather(*(send_some() for _ in range(min(IN_FLIGHT, len(calls)))))
        sent = [id for id in ids if id is not None]
        if errors and sent:
            detail = f"{len(sent)} of {len(ids)} messages for {task!r} were sent: {errors[0]}"
            raise NotAllSent(detail, ids=[*ids]) from errors[0]
        if errors:
            raise errors[0]
        return sent

    async def send_stored(self, broker: Broker) -> int:
        """Send the messages in the fallback store, over a connection; return the number confirmed.

        Messages claimed by another process are left to it. A failed one is tried again when its
        claim has ended.
        """
        total = 0
        while self._fallback is not None and (
            sent := await self._send_some(self._fallback, broker)
        ):
            total += sent
        return total

    async def _send_some(self, store: UnsentStore, broker: Broker) -> int:
        claimed = await asyncio.to_thread(store.read, most=IN_FLIGHT, claim=CLAIM)
        confirmed, errors = list[Unsent](), list[SchedulerError]()

        async def send_again(unsent: Unsent) -> None:
            try:
                await self._publish(broker, unsent, DEFAULT_TIMEOUT)
                confirmed.append(unsent)
            except SchedulerError as error:
                errors.append(error)

        try:
            await asyncio.gather(*map(send_again, claimed))
        finally:
            if confirmed:
                await asyncio.to_thread(store.remove, [each.id for each in confirmed])
        if errors:
            self._emit(StoredDelayed(len(errors), str(errors[0])))
        for each in confirmed:
            self._emit(StoredSent(each.id, each.target))
        return len(confirmed)

    def _resend_over(self, broker: Broker) -> None:
        # An in-process broker must not get messages that were stored to outlive a process.
        if self._fallback is None or broker in self._resending or broker.info.is_embedded:
            return
        self._resending[broker] = asyncio.create_task(
            self._resend(broker), name="messages that are stored"
        )

    async def _resend(self, broker: Broker) -> None:
        while True:
            if broker.connected and not broker.is_blocked:
                try:
                    await self.send_stored(broker)
                except Exception as error:  # the store may be the user's
                    self._emit(StoredDelayed(0, summary_of(error)))
            await asyncio.sleep(LOOK_EVERY.total_seconds())

    async def _deliver(self, unsent: Unsent, posting: Posting) -> NotSent | None:
        """Send a message, or store it; return why it was stored."""
        own = self._own_here()
        try:
            return await self._insist(own, unsent, posting)
        except NotSent as error:
            not_sent = error
        again = f"Send it again with the same id ({unsent.id}) if running it twice does no harm."
        if self._fallback is None:
            raise NotSent(f"{not_sent} {again}")
        try:
            given_up = replace(unsent, stored_at=self.clock.now())
            await asyncio.to_thread(self._fallback.keep, given_up)
        except Exception as error:
            raise NotSent(
                f"{not_sent} Storing it failed, too: {summary_of(error)}. {again}"
            ) from error
        self._emit(MessageStored(unsent.id, unsent.target, str(not_sent)))
        self._connect_later(own)
        return not_sent

    async def _insist(self, own: OwnConnection, unsent: Unsent, posting: Posting) -> None:
        policy, loop = self._policy(), asyncio.get_running_loop()
        deadline = policy.deadline if posting.deadline is None else posting.deadline
        retry, attempts = posting.retry_sending or policy.retry, itertools.count()
        unreachable = itertools.chain([0.0], backoff(FIRST_PAUSE, LAST_PAUSE))
        end, reason = loop.time() + deadline.total_seconds(), "It was not tried."
        while loop.time() < end:
            try:
                broker = await self._connected(own, end)
                left = timedelta(seconds=max(end - loop.time(), 0.001))
                return await self._publish(
                    broker, unsent, min(left, DEFAULT_TIMEOUT), in_order=posting.in_order
                )
            except FLOW_CONTROL as error:
                wait, reason = retry.delay_after(next(attempts), None, dice.random()), str(error)
                pause = math.inf if wait is None else wait.total_seconds()
            except BrokerUnavailable as error:
                pause, reason = next(unreachable), str(error)
            if loop.time() + pause >= end:
                break
            await asyncio.sleep(pause)
            if own.closed and self._broker_here is None:  # a new connection would stay open
                raise NotSent(
                    f"The message for {unsent.target!r} was not confirmed before the connection "
                    f"was closed: {reason}"
                )
        raise NotSent(
            f"The message for {unsent.target!r} was not confirmed within "
            f"{deadline.total_seconds():g} s: {reason}"
        )

    async def _publish(
        self, broker: Broker, unsent: Unsent, timeout: timedelta, *, in_order: bool = True
    ) -> None:
        if broker.is_blocked:
            raise Blocked(f"A memory or disk alarm of {broker.address} blocks senders.")
        if unsent.exchange is not None:
            return await broker.publish(
                unsent.message, exchange=unsent.exchange, routing_key=unsent.key, timeout=timeout
            )
        delay = max(unsent.due_at - self.clock.now(), ZERO)
        try:
            await send(
                broker,
                self._names,
                unsent.key,
                unsent.message,
                delay,
                timeout,
                in_order=in_order,
            )
        except Unroutable:
            raise Unroutable(
                f"The broker has no queue for the task {unsent.key!r}: nothing was sent. "
                "Run `scheduler seed` with the app that has the task."
            ) from None
        except AccessRefused as error:
            from scheduler.protocol.administration import command, rights_to_send

            info, rights = broker.info, rights_to_send(self._names)
            grant = command(rights, user=info.user or "USER", vhost=info.vhost)
            raise AccessRefused(f"{error} A user that only sends needs: {grant}") from None

    async def _connected(self, own: OwnConnection, end: float) -> Broker:
        if (broker := self._broker_here) is not None:
            return broker
        try:
            async with asyncio.timeout_at(end):
                return await self._current(own)
        except TimeoutError:
            raise BrokerUnavailable("The broker did not respond while connecting.") from None


async def run_in(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in another event loop, and wait for it without blocking this one."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(main, loop))


class BlockingBridge:
    """Run coroutines in one extra thread, for callers without an event loop, or with a short-lived
    one.
    """

    def __init__(self) -> None:
        self._forget()
        # A forked process has no such thread, and perhaps a lock that stays locked.
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def run(self, main: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine to its end, and wait for it.

        Raises:
            RuntimeError: called where an event loop is running, which this would block.
        """
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run_coroutine_threadsafe(main, self._started()).result()
        main.close()
        raise RuntimeError(
            "The blocking form was called in a coroutine, and would block its event loop: "
            "await the form without `blocking` instead."
        )

    async def run_beside(self, main: Coroutine[Any, Any, R]) -> R:
        """Run a coroutine in that thread, and wait for it without blocking this event loop."""
        return await run_in(self._started(), main)

    def _forget(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=run_despite, args=[self._loop], name="scheduler sender", daemon=True
                ).start()
            return self._loop
