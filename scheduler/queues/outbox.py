"""Sending calls: now, later, or at a moment; confirmed, or an error that says so."""

import asyncio
import os
import threading
import uuid
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any, NamedTuple, TypeVar

from scheduler.brokers.contract import Broker
from scheduler.errors import (
    BrokerUnavailable,
    MessageError,
    NotAllSent,
    NotSent,
    Rejected,
    Unroutable,
)
from scheduler.events import CallNotSent, CallSending, CallSent, Emit
from scheduler.middleware import AroundSending, Sending, send_through
from scheduler.protocol.calls import new_call
from scheduler.protocol.hatchery import check_length
from scheduler.protocol.messages import Message
from scheduler.protocol.topology import Names
from scheduler.queues.delays import send
from scheduler.timing.backoff import backoff
from scheduler.timing.clock import Clock

R = TypeVar("R")

DEADLINE = timedelta(seconds=30)
FIRST_PAUSE, LAST_PAUSE = timedelta(milliseconds=100), timedelta(seconds=5)
AT_ONCE = 256  # of many calls


@dataclass(frozen=True, slots=True)
class Posting:
    """What a call is sent with, besides its arguments.

    Attributes:
        delay: how long from now.
        at: the moment, instead.
        given: how the delay or the moment was written, for errors.
        headers: travel with the message, through every delay and retry.
        deadline: how long to try to get it confirmed before giving up with `NotSent`.
    """

    delay: timedelta = timedelta(0)
    at: datetime | None = None
    given: str | None = None
    expires: timedelta | None = None
    priority: int | None = None
    correlation_id: str | None = None
    message_id: str | None = None
    headers: Mapping[str, Any] = field(default_factory=dict[str, Any])
    deadline: timedelta = DEADLINE


class Lent(NamedTuple):
    """A connection of somebody else, such as a processor, in its event loop; None: in all."""

    broker: Broker
    clock: Clock
    loop: asyncio.AbstractEventLoop | None


class Connections:
    """Connections to send over: one per event loop, opened on first use, or somebody else's.

    Args:
        connect: makes a broker, not yet opened.
    """

    def __init__(self, clock: Clock, connect: Callable[[], Broker]) -> None:
        self._clock = clock
        self._connect = connect
        self._lent: list[Lent] = []
        self._broker: Broker | None = None
        self._opened: AsyncExitStack | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._opening: asyncio.Lock | None = None

    def use(self, broker: Broker, clock: Clock, *, everywhere: bool = False) -> None:
        """Send what is sent in this event loop, or in all, over somebody else's connection."""
        self._lent.append(Lent(broker, clock, None if everywhere else asyncio.get_running_loop()))

    def release(self, broker: Broker) -> None:
        """Do not send over this connection any more."""
        self._lent = [lent for lent in self._lent if lent.broker is not broker]

    @property
    def clock(self) -> Clock:
        """The clock of whoever lent the connection, or our own."""
        lent = self._lent_here
        return self._clock if lent is None else lent.clock

    @asynccontextmanager
    async def connection(self) -> AsyncGenerator[Broker]:
        """The connection that is open; where none is, one for the time of the block."""
        if self.is_open:
            yield await self._current()
        else:
            async with self._connect() as broker:
                yield broker

    @property
    def is_open(self) -> bool:
        """Whether there is a connection for this event loop, which somebody closes."""
        return self._broker_here is not None

    @property
    def home(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of an embedded broker that was lent: it can be reached from no other."""
        embedded = (each.loop for each in reversed(self._lent) if each.broker.info.is_embedded)
        return next(embedded, None)

    async def open(self) -> None:
        """Connect now, rather than on first use."""
        await self._current()

    async def close(self) -> None:
        """Close the connection, if this opened it."""
        opened, self._opened, self._broker = self._opened, None, None
        if opened is not None and self._loop is asyncio.get_running_loop():
            await opened.aclose()

    @property
    def _lent_here(self) -> "Lent | None":
        # A connection belongs to the event loop that opened it.
        loop = asyncio.get_running_loop()
        return next((lent for lent in reversed(self._lent) if lent.loop in (loop, None)), None)

    @property
    def _broker_here(self) -> Broker | None:
        if (lent := self._lent_here) is not None:
            return lent.broker
        is_ours = self._opened is not None and self._loop is asyncio.get_running_loop()
        return self._broker if is_ours else None

    async def _current(self) -> Broker:
        if (broker := self._broker_here) is not None:
            return broker
        loop = asyncio.get_running_loop()
        if self._loop is not loop or self._opening is None:
            self._loop, self._opening = loop, asyncio.Lock()
            self._broker = self._opened = None
        async with self._opening:
            if self._opened is None:
                opened = AsyncExitStack()
                self._broker = await opened.enter_async_context(self._connect())
                self._opened = opened
        assert self._broker is not None
        return self._broker


class Outbox(Connections):
    """Sends the calls of a namespace.

    Args:
        emit: is told of each call.
        around: stand around the sending of each.
    """

    def __init__(
        self,
        names: Names,
        clock: Clock,
        connect: Callable[[], Broker],
        emit: Emit,
        around: Sequence[AroundSending] = (),
    ) -> None:
        super().__init__(clock, connect)
        self._names = names
        self._emit = emit
        self._around = around

    async def send(self, task: str, args: Mapping[str, Any], posting: Posting) -> str:
        """Send a call, confirmed; returns its message id.

        Raises:
            NotSent: it was not confirmed within the deadline.
            Unroutable: nothing was seeded for this task.
            TooLarge: the broker does not accept so large a message.
            UsageError: its delay is too long.
        """
        sending = Sending(
            task, posting.message_id or str(uuid.uuid4()), args, dict(posting.headers)
        )
        return await send_through(self._around, sending, partial(self._send, sending, posting))

    async def _send(self, asked: Sending, posting: Posting) -> None:
        now = self.clock.now()
        # In UTC: of two moments with the same zone, Python subtracts what the clocks on walls show.
        due_at = max(posting.at or now + posting.delay, now).astimezone(UTC)
        delay = due_at - now
        check_length(delay, given=posting.given)
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
            await self._insist(asked.task, message, delay, posting.deadline)
        except BaseException as error:
            self._emit(CallNotSent(*call, error))
            raise
        asked.confirmed = True
        self._emit(CallSent(*call))

    async def send_all(
        self, task: str, calls: Sequence[Mapping[str, Any]], posting: Posting
    ) -> list[str]:
        """Send many calls side by side; returns their message ids, in order.

        A call that cannot be sent, such as one that is too large, keeps no other from being sent.
        After any other failure, no further call is begun.

        Raises:
            NotAllSent: some were confirmed, not all.
            BrokerError, MessageError, UsageError: as with one; none was confirmed.
        """
        ids: list[str | None] = [None] * len(calls)
        waiting, errors = deque(enumerate(calls)), list[Exception]()

        async def send_some() -> None:
            while waiting:
                number, args = waiting.popleft()
                try:
                    ids[number] = await self.send(task, args, posting)
                except MessageError as error:  # the fault of this call alone
                    errors.append(error)
                except Exception as error:
                    errors.append(error)
                    waiting.clear()

        await asyncio.gather(*(send_some() for _ in range(min(AT_ONCE, len(calls)))))
        sent = [id for id in ids if id is not None]
        if errors and sent:
            told = f"{len(sent)} of {len(ids)} messages for {task!r} were sent: {errors[0]}"
            raise NotAllSent(told, ids=ids) from errors[0]
        if errors:
            raise errors[0]
        return sent

    async def _insist(
        self, task: str, message: Message, delay: timedelta, deadline: timedelta
    ) -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + deadline.total_seconds()
        for pause in backoff(FIRST_PAUSE, LAST_PAUSE):
            try:
                broker = await self._connected(end)
                left = timedelta(seconds=max(end - loop.time(), 0.001))
                return await send(broker, self._names, task, message, delay, left)
            except (BrokerUnavailable, Rejected) as error:
                if loop.time() + pause >= end:
                    raise NotSent(
                        f"The message for {task!r} was not confirmed within "
                        f"{deadline.total_seconds():g} s: {error} Send it again with the same "
                        f"message id ({message.message_id}) if running it twice does no harm."
                    ) from None
            except Unroutable:
                raise Unroutable(
                    f"The broker has no queue for the task {task!r}: nothing was sent. "
                    "Run `scheduler seed` with the app that has the task."
                ) from None
            await asyncio.sleep(pause)

    async def _connected(self, end: float) -> Broker:
        if (broker := self._broker_here) is not None:
            return broker
        try:
            async with asyncio.timeout_at(end):
                return await self._current()
        except TimeoutError:
            raise BrokerUnavailable("The broker did not answer when it was connected to.") from None


async def run_in(loop: asyncio.AbstractEventLoop, main: Coroutine[Any, Any, R]) -> R:
    """Run a coroutine in another event loop, and wait for it without blocking this one."""
    return await asyncio.wrap_future(asyncio.run_coroutine_threadsafe(main, loop))


class BlockingBridge:
    """Runs coroutines in one thread beside their callers, who have no event loop or a short one."""

    def __init__(self) -> None:
        self._forget()
        # A process that was forked has no such thread, and maybe a lock that nobody will release.
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
        """Run a coroutine there, and wait for it without blocking this event loop."""
        return await run_in(self._started(), main)

    def _forget(self) -> None:
        self._starting = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None

    def _started(self) -> asyncio.AbstractEventLoop:
        with self._starting:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                threading.Thread(
                    target=self._loop.run_forever, name="scheduler sender", daemon=True
                ).start()
            return self._loop
