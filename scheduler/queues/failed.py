"""Parked messages: what could not be run, kept with the reason, until somebody decides.

A parked message is the message as it was, with these headers added:

=================================  ========================================================
header                             holds
=================================  ========================================================
scheduler-parked-loop              whose it is: a loop, or the task of a call
scheduler-parked-reason            a `Reason`
scheduler-parked-error             the error, in a line
scheduler-parked-traceback         the end of its traceback
scheduler-parked-at-ms             when, in milliseconds since the Unix epoch
scheduler-left-out                 names of headers that it had, if they did not all fit
=================================  ========================================================

All headers of a message travel in one frame, 128 KiB unless configured, and somebody else may have
filled it. Then the largest headers are left out, those of others before ours: a message that is
parked with less can be looked at, one that cannot be parked breaks connection after connection.

Sent back, it has none of them any more, but `scheduler-replayed-at-ms`, when that was.

Of each, the journal gets a record: these headers, without the traceback, and which tick it was.

What the broker parks by itself (a message for a task that does not exist, or one that nobody could
even park) has no such headers, and no record; the broker's own death record tells its reason.
"""

import asyncio
import json
import traceback
from collections.abc import Awaitable, Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any, cast

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker, Delivery
from scheduler.errors import DeliveryLost, QueueNotFound, TooLarge, UsageError
from scheduler.protocol.calls import is_call, placed
from scheduler.protocol.messages import (
    PREFIX,
    Message,
    flat,
    one_line,
    own_headers,
    printable,
    summary_of,
)
from scheduler.protocol.tokens import State, is_token
from scheduler.protocol.topology import LOOP_KEY, Names
from scheduler.timing.clock import Clock
from scheduler.timing.moments import milliseconds_since_epoch, moment_of
from scheduler.timing.rates import Pacer, Rate

PARKED = f"{PREFIX}parked-"
LEFT_OUT = f"{PREFIX}left-out"
REPLAYED_AT = f"{PREFIX}replayed-at-ms"
PARKED_SEQ = f"{PARKED}seq"
RECORD_TYPE = "scheduler.parked"
RECORD_KEY = "scheduler.parked"
TRACEBACK_LENGTH = 4000
BROWSE_TIMEOUT = timedelta(seconds=5)
LOOKS = 200
LOOK_PAUSE = 0.01
LONGEST_HOLD = timedelta(minutes=20)  # the broker's consumer_timeout is 30 by default


class Reason(StrEnum):
    """Why a message was parked.

    One that is too large failed with retries left, and its headers leave no room for those of a
    retry: it would not have come back as it was.
    """

    EXHAUSTED = "exhausted"
    REJECTED = "rejected"
    UNDECODABLE = "undecodable"
    INVALID_ARGUMENTS = "invalid-arguments"
    EXPIRED = "expired"
    TOO_LARGE = "too-large"
    DELIVERY_LIMIT = "delivery-limit"
    BROKEN = "broken"
    REMOVED = "removed"


@dataclass(frozen=True, slots=True)
class Parked:
    """A parked message, as an operator sees it.

    Attributes:
        id: what `show`, `replay` and `purge` know it by.
        queue: the failed queue it is in.
        loop: whose it is, as far as its routing key tells: a loop, or the task of a call.
    """

    id: str
    queue: str
    loop: str
    reason: str
    error: str
    parked_at: datetime | None
    traceback: str
    message: Message
    routing_key: str

    @property
    def task(self) -> str:
        """The task that failed, as far as its queue tells; empty for what no task is known for."""
        return self.loop.split(".")[0]

    @property
    def attempts(self) -> int:
        """How many attempts were made."""
        attempts = self.message.headers.get(f"{PREFIX}attempt")
        return attempts if isinstance(attempts, int) else 0

    @property
    def first_failed_at(self) -> datetime | None:
        """When the first of a call's attempts failed; the last one was when it was parked."""
        at = self.message.headers.get(f"{PREFIX}first-failed-at-ms")
        return _moment(at) if isinstance(at, int) else None

    @property
    def headers(self) -> Mapping[str, Any]:
        """The message's own headers, without the parking headers."""
        return {
            name: value
            for name, value in own_headers(self.message.headers).items()
            if not name.startswith(PARKED)
        }


def parked(
    message: Message, routing_key: str, reason: Reason, error: BaseException, at: datetime
) -> Message:
    """The message as it is put into a failed queue."""
    frames = traceback.format_exception(error) if error.__traceback__ else []
    added = {
        "loop": one_line(_loop_of(routing_key)),
        "reason": reason.value,
        "error": summary_of(error),
        "traceback": printable("".join(frames))[-TRACEBACK_LENGTH:],
        "at-ms": milliseconds_since_epoch(at),
    }
    headers = own_headers(message.headers) | {PARKED + name: text for name, text in added.items()}
    return replace(message, headers=headers, expiration=None)


def record_of(parked: Message) -> Message:
    """What the journal is told of a parked message: words of our own, nothing that it had."""
    ours = ("loop", "reason", "error", "at-ms")
    headers = {f"{PARKED}{name}": parked.headers[f"{PARKED}{name}"] for name in ours}
    counts = {f"{PREFIX}attempt": f"{PREFIX}attempt", PARKED_SEQ: f"{PREFIX}seq"}
    found = {name: parked.headers.get(source) for name, source in counts.items()}
    headers |= {name: count for name, count in found.items() if isinstance(count, int)}
    return Message(headers=headers, type=RECORD_TYPE)


def is_record(message: Message) -> bool:
    """Whether a message of the journal tells of something that was parked."""
    return message.type == RECORD_TYPE


def lightened(message: Message, excess: int) -> Message:
    """The message without its largest headers, about so many bytes of them; a header names them.

    Those of others are left out before ours.

    Raises:
        TooLarge: it has no header that could be left out.
    """
    headers = dict(message.headers)
    left_out = [str(headers.pop(LEFT_OUT))] if LEFT_OUT in headers else []
    sizes = {name: len(name) + len(repr(value)) for name, value in headers.items()}
    if not sizes:
        raise TooLarge(excess=excess)
    for name in sorted(sizes, key=lambda name: (name.startswith(PREFIX), -sizes[name])):
        del headers[name]
        left_out.append(name)
        if (excess := excess - sizes[name]) <= 0:
            break
    headers[LEFT_OUT] = one_line(", ".join(left_out))
    return replace(message, headers=headers)


def read_parked(message: Message, queue: str, routing_key: str) -> Parked:
    """What a message in a failed queue tells; never raises, whatever the message is."""
    headers = message.headers
    at = headers.get(f"{PARKED}at-ms")
    return Parked(
        id=_id_of(message),
        queue=queue,
        loop=_loop_of(routing_key) or _loop_named_by(headers),
        reason=str(headers.get(f"{PARKED}reason") or _broker_reason(headers)),
        error=str(headers.get(f"{PARKED}error") or _broker_error(headers)),
        parked_at=_moment(at) if isinstance(at, int) else None,
        traceback=str(headers.get(f"{PARKED}traceback") or ""),
        message=message,
        routing_key=routing_key,
    )


def replayed_at(message: Message) -> datetime | None:
    """When an operator sent the message back; None: nobody did."""
    at = message.headers.get(REPLAYED_AT)
    return _moment(at) if isinstance(at, int) else None


@dataclass(frozen=True, slots=True)
class Selection:
    """Which parked messages are meant: those that fit everything that is given.

    Attributes:
        ids: None: any.
        reason: None: any.
        task: None: any.
    """

    ids: frozenset[str] | None = None
    reason: str | None = None
    task: str | None = None

    def has(self, parked: Parked) -> bool:
        """Whether this one is meant."""
        if self.ids is not None and parked.id not in self.ids:
            return False
        return self.reason in (None, parked.reason) and self.task in (None, parked.task)


EVERYTHING = Selection()


class FailedQueues:
    """The failed queues of a namespace."""

    def __init__(self, broker: Broker, names: Names, clock: Clock) -> None:
        self._broker = broker
        self._names = names
        self._clock = clock

    async def park(
        self,
        message: Message,
        routing_key: str,
        reason: Reason,
        error: BaseException,
        *,
        timeout: timedelta = DEFAULT_TIMEOUT,
    ) -> None:
        """Put a message where its routing key leads to, with the reason; the journal is told."""
        message = parked(message, routing_key, reason, error, self._clock.now())
        await self._publish(message, self._names.failed, routing_key, timeout)
        await self._broker.publish(
            record_of(message),
            exchange=self._names.scheduler,
            routing_key=RECORD_KEY,
            timeout=timeout,
        )

    async def park_taken(self, delivery: Delivery, reason: Reason, error: BaseException) -> None:
        """Park what was taken out of a queue: publish, confirm, then ack.

        Raises:
            BrokerError: it may not have been parked, and was put back.
        """
        try:
            await self.park(delivery.message, delivery.routing_key, reason, error)
        except BaseException:
            with suppress(DeliveryLost):
                await delivery.requeue()
            raise
        await delivery.ack()

    async def browse(
        self, tasks: Iterable[str], which: Selection = EVERYTHING, *, limit: int = 100
    ) -> list[Parked]:
        """The parked messages of these tasks, and those that no task is known for."""
        found: list[Parked] = []
        for queue in self._queues(tasks):
            # Of a queue that is chosen from, all has to be looked at.
            depth = limit - len(found) if which == EVERYTHING else None
            async with _Browse(self._broker, queue, depth) as deliveries:
                found += filter(which.has, map(_read, deliveries))
        return found[:limit]

    async def replay(
        self,
        tasks: Iterable[str],
        which: Selection,
        *,
        rate: Rate | None = None,
        args: Mapping[str, Any] | None = None,
    ) -> list[Parked]:
        """Send parked messages back to their tasks.

        Each is published and confirmed before it is taken out of the failed queue. A call that is
        sent back has all its attempts again.

        Args:
            rate: no more of them than this.
            args: other arguments than they had.

        Raises:
            UsageError: at this rate it would take longer than the broker lets messages be held.
        """
        pacer = Pacer(rate) if rate else None

        async def send_back(parked: Parked) -> None:
            if pacer is not None:
                await asyncio.sleep(pacer.turn())
            await self._send_back(parked, args)

        return await self._take(tasks, which, send_back, rate)

    async def purge(self, tasks: Iterable[str], which: Selection) -> list[Parked]:
        """Delete parked messages."""

        async def forget(_: Parked) -> None: ...

        return await self._take(tasks, which, forget, None)

    async def _take(
        self,
        tasks: Iterable[str],
        which: Selection,
        use: Callable[[Parked], Awaitable[None]],
        rate: Rate | None,
    ) -> list[Parked]:
        taken: list[Parked] = []
        for queue in self._queues(tasks):
            async with _Browse(self._broker, queue, None) as deliveries:
                _check_time(len(deliveries), rate)
                for delivery in tuple(deliveries):
                    if which.has(parked := _read(delivery)):
                        await use(parked)
                        await delivery.ack()
                        deliveries.remove(delivery)
                        taken.append(parked)
        return taken

    async def _send_back(self, parked: Parked, args: Mapping[str, Any] | None) -> None:
        edited = _edited(parked.message, args)
        headers = _fresh(parked) | {REPLAYED_AT: milliseconds_since_epoch(self._clock.now())}
        message = replace(edited, headers=headers, expiration=None)
        # Somebody else's may be no text, which nobody can send. It leads to no other task.
        key = parked.routing_key.encode(errors="replace").decode()
        await self._publish(message, self._names.way_in(key), key, DEFAULT_TIMEOUT)

    async def _publish(
        self, message: Message, exchange: str, routing_key: str, timeout: timedelta
    ) -> None:
        """Publish as many of its headers as fit."""
        while True:
            try:
                return await self._broker.publish(
                    message, exchange=exchange, routing_key=routing_key, timeout=timeout
                )
            except TooLarge as error:
                message = lightened(message, error.excess)

    def _queues(self, tasks: Iterable[str]) -> list[str]:
        return [*map(self._names.failed_queue, tasks), self._names.failed]


class _Browse:
    """Everything in a queue in hand at once; what is still in the list at the end goes back."""

    def __init__(self, broker: Broker, queue: str, limit: int | None) -> None:
        self._broker = broker
        self._queue = queue
        self._limit = limit
        self._left = 0
        self._deliveries: list[Delivery] = []

    async def __aenter__(self) -> list[Delivery]:
        depth = await self._broker.depth(self._queue)
        if depth is None:
            raise QueueNotFound(
                f"The queue {self._queue!r} does not exist: run `scheduler seed` first."
            )
        wanted = depth.ready if self._limit is None else min(depth.ready, self._limit)
        if wanted > 0:
            await self._collect(wanted)
        self._left = depth.ready - len(self._deliveries)
        return self._deliveries

    async def _collect(self, wanted: int) -> None:
        enough = asyncio.Event()

        def collect(delivery: Delivery) -> None:
            self._deliveries.append(delivery)
            if len(self._deliveries) >= wanted:
                enough.set()

        consumer = await self._broker.consume(self._queue, collect, prefetch=min(wanted, 65_535))
        try:
            # Another operator may hold some of them: then what came in time is what there is.
            async with asyncio.timeout(BROWSE_TIMEOUT.total_seconds()):
                await enough.wait()
        except TimeoutError:
            pass
        finally:
            await consumer.cancel()

    async def __aexit__(self, *exception: object) -> None:
        for delivery in self._deliveries:
            await delivery.requeue()
        if self._deliveries:
            await self._until_back(self._left + len(self._deliveries))

    async def _until_back(self, ready: int) -> None:
        """A broker confirms no requeue, and whoever looks next is to see what was looked at."""
        for _ in range(LOOKS):  # not for ever: another operator may have taken some of them
            depth = await self._broker.depth(self._queue)
            if depth is None or depth.ready >= ready:
                return
            await asyncio.sleep(LOOK_PAUSE)


def _edited(message: Message, args: Mapping[str, Any] | None) -> Message:
    """The message with other arguments.

    Raises:
        UsageError: it has none to change.
    """
    if args is None:
        return message
    try:
        body = json.loads(message.body) if is_call(message) or is_token(message) else None
    except (ValueError, RecursionError):
        body = None
    if not isinstance(body, dict):
        raise UsageError(
            f"The message {message.message_id!r} has no arguments to change: it was not sent by a "
            "scheduler. It stays parked."
        )
    return replace(message, body=json.dumps({**cast(dict[str, Any], body), "args": args}).encode())


def _check_time(messages: int, rate: Rate | None) -> None:
    if rate is not None and messages * rate.interval > LONGEST_HOLD.total_seconds():
        raise UsageError(
            f"{messages} messages at {rate} would take longer than the broker lets them be held. "
            "Nothing was replayed; choose a higher rate, or fewer messages."
        )


def _fresh(parked: Parked) -> dict[str, Any]:
    """A call that is replayed gets all its attempts again, and is not too old for an operator.

    A tick is run beside its loop, which has gone on.
    """
    if is_token(parked.message):
        return {**parked.headers, f"{PREFIX}state": State.REPLAY.value}
    used_up = (f"{PREFIX}attempt", f"{PREFIX}expires-at-ms")
    headers = {name: value for name, value in parked.headers.items() if name not in used_up}
    return {**_origin_of(parked.message), **headers}


def _origin_of(message: Message) -> Mapping[str, Any]:
    """Where somebody else's message was published, if the broker parked it."""
    if is_token(message) or is_call(message):
        return {}
    match message.headers.get("x-death"):
        case [{"exchange": str(exchange), "routing-keys": [str(key), *_]}, *_]:
            return placed(Message(), exchange, key).headers
        case _:
            return {}


def _read(delivery: Delivery) -> Parked:
    return read_parked(delivery.message, delivery.queue, delivery.routing_key)


def _loop_of(routing_key: str) -> str:
    if routing_key.startswith(LOOP_KEY):
        return routing_key.removeprefix(LOOP_KEY)
    _, found, task = f".{routing_key}".rpartition(".task.")
    return task if found else ""


def _loop_named_by(headers: Mapping[str, Any]) -> str:
    return str(headers.get(f"{PARKED}loop") or headers.get(f"{PREFIX}task") or "")


def _id_of(message: Message) -> str:
    name = (
        flat(message.message_id or "")
        or f"no-id-{blake2b(message.body, digest_size=6).hexdigest()}"
    )
    at = message.headers.get(f"{PARKED}at-ms")
    return name if at is None else f"{name}@{flat(str(at))}"


def _last_death(headers: Mapping[str, Any]) -> Any:
    """Why the broker moved it here; None: its delay had ended, and no queue was bound for it."""
    match headers.get("x-death"):
        case [{"reason": reason}, *_]:  # the last one comes first
            pass
        case _:
            reason = headers.get("x-first-death-reason")
    return None if reason == "expired" else reason


def _broker_reason(headers: Mapping[str, Any]) -> str:
    return str(_last_death(headers) or "unknown-task").replace("_", "-")


def _broker_error(headers: Mapping[str, Any]) -> str:
    match _last_death(headers):
        case "delivery_limit":
            return "it was delivered too often without an ack: it may kill its processors"
        case reason if reason:
            return one_line(f"the broker parked it: {reason}")
        case _:
            return "no queue of a task is bound for its routing key"


def _moment(ms: int) -> datetime | None:
    try:
        return moment_of(ms)
    except OverflowError:
        return None
