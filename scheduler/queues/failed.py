"""Keep parked messages: messages that could not be run, with the reason, until an operator decides.

A parked message is the message as it was, with these headers added:

=================================  ========================================================
header                             holds
=================================  ========================================================
scheduler-parked-loop              its loop, or the task of a call
scheduler-parked-reason            a `Reason`
scheduler-parked-error             the error, in a line
scheduler-parked-traceback         the end of its traceback
scheduler-parked-at-ms             when, in milliseconds since the Unix epoch
scheduler-left-out                 names of its headers that did not fit
=================================  ========================================================

All headers of a message travel in one frame, 128 KiB unless configured, and a foreign message may
fill it. Then the largest headers are dropped, foreign ones first: an incomplete parked message can
be inspected, one that cannot be parked breaks connection after connection.

A replayed message has none of them, only `scheduler-replayed-at-ms`, the time of the replay.

A deleted message is in the trash for a day, with two more headers: `scheduler-parked-key` and
`scheduler-parked-deletion`, its routing key and the deletion that it was a part of.

The journal gets a record of each: these headers, without the traceback, and which tick it was.

Messages that the broker itself parks (for a task that does not exist, or that no processor could
park) have no such headers, and no record; the broker's death record gives the reason. If such a
message has these headers, or claims to be a tick, its sender wrote them: they are ignored, and it
is replayed as a call.
"""

import asyncio
import json
import re
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Iterable, Mapping
from contextlib import aclosing, contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from enum import StrEnum
from hashlib import blake2b
from typing import Any, cast

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker, Delivery
from scheduler.errors import (
    BrokerUnavailable,
    DeliveryLost,
    NotAllSeen,
    QueueNotFound,
    TooLarge,
    UsageError,
)
from scheduler.protocol.calls import (
    ATTEMPT,
    FIRST_FAILED_AT,
    LEFT_OUT,
    PARKED,
    is_call,
    placed,
    renamed,
    retry_key,
    task_key,
    unclaimed,
)
from scheduler.protocol.messages import (
    MOST_COUNTED,
    PREFIX,
    REPLAYED_AT,
    Message,
    flat,
    moment_in,
    one_line,
    own_headers,
    printable,
    summary_of,
)
from scheduler.protocol.tokens import LOOP_KEY, REPLAY, claims_of, is_token, loop_named_by
from scheduler.protocol.topology import TRASH_KEY, Names, is_of_task
from scheduler.spelling import no_such
from scheduler.timing.moments import Clock, milliseconds_since_epoch
from scheduler.timing.pacing import Pacer, Rate
from scheduler.user_code import traceback_of

PARKED_SEQ = f"{PARKED}seq"
TRASHED_KEY, DELETION = f"{PARKED}key", f"{PARKED}deletion"
RECORD_TYPE = "scheduler.parked"
RECORD_KEY = "scheduler.parked"
TRACEBACK_LENGTH = 4000
HALF = 500  # of a message in a traceback
NAMED = re.compile(r"""'[^']*'|"[^"]*"|[0-9][0-9a-fA-F.:_-]*""")
FEW = 4  # IDs are listed where a prefix is ambiguous
ROUND = timedelta(minutes=5)  # the broker's consumer_timeout is 30 by default


class Reason(StrEnum):
    """Name why a message was parked."""

    EXHAUSTED = "exhausted"
    REJECTED = "rejected"
    CANCELLED = "cancelled"
    UNDECODABLE = "undecodable"
    INVALID_ARGUMENTS = "invalid-arguments"
    EXPIRED = "expired"
    DELIVERY_LIMIT = "delivery-limit"
    BROKEN = "broken"
    REMOVED = "removed"


UNKNOWN_TASK = "unknown-task"
REASONS = (*map(str, Reason), UNKNOWN_TASK, "maxlen")
"""All reasons to park a message; the last ones are the broker's own."""


@dataclass(frozen=True, slots=True)
class ParkedMessage:
    """Describe a parked message for an operator.

    Attributes:
        id: the ID for `show`, `replay` and `purge`.
        queue: the failed queue it is in.
        loop: its loop or task, by its routing key.
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
        """Return the task that failed, by its queue; empty if unknown."""
        return self.loop.split(".")[0]

    @property
    def kind(self) -> str:
        """Return its error without the names and numbers in it, to group similar errors."""
        return kind_of(self.error)

    @property
    def attempts(self) -> int:
        """Return how many attempts were made."""
        return _counts_of(self.message).get(ATTEMPT, 0)

    @property
    def first_failed_at(self) -> datetime | None:
        """Return when the first of a call's attempts failed; the last one failed when it was
        parked.
        """
        return moment_in(self.message.headers, FIRST_FAILED_AT)

    @property
    def came_as_token(self) -> bool:
        """Return whether a processor parked it, and it arrived as a token."""
        return self.routing_key.startswith(LOOP_KEY) and not _is_dead(self.message)

    @property
    def headers(self) -> Mapping[str, Any]:
        """Return the message's own headers, without the parking headers."""
        return {
            name: value
            for name, value in own_headers(self.message.headers).items()
            if not name.startswith(PARKED)
        }


def parked(
    message: Message, routing_key: str, reason: Reason, error: BaseException, at: datetime
) -> Message:
    """Return the message as it is put into a failed queue."""
    # A long message leaves room for the frames.
    lines = traceback_of(error) if error.__traceback__ else []
    frames = [_shortened(each) for each in lines]
    added = {
        "loop": one_line(_loop_of(routing_key)),
        "reason": reason.value,
        "error": summary_of(error),
        "traceback": printable("".join(frames))[-TRACEBACK_LENGTH:],
        "at-ms": milliseconds_since_epoch(at),
    }
    headers = own_headers(message.headers) | {PARKED + name: text for name, text in added.items()}
    return replace(message, headers=headers, expiration=None)


def _shortened(part: str) -> str:
    return part if len(part) <= 2 * HALF else f"{part[:HALF]} … {part[-HALF:]}"


def record_of(parked: Message) -> Message:
    """Return the journal's record of a parked message, without any of its content."""
    ours = ("loop", "reason", "error", "at-ms")
    headers = {f"{PARKED}{name}": parked.headers[f"{PARKED}{name}"] for name in ours}
    return Message(headers=headers | _counts_of(parked), type=RECORD_TYPE)


def is_record(message: Message) -> bool:
    """Return whether a message of the journal records a parked message."""
    return message.type == RECORD_TYPE


def lightened(message: Message, excess: int) -> Message:
    """Remove the largest headers of a message, about `excess` bytes; a header names them.

    Foreign headers are removed first.

    Raises:
        TooLarge: it has no header that could be removed.
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


def read_parked(message: Message, queue: str, routing_key: str) -> ParkedMessage:
    """Read a message in a failed queue; never raises."""
    if _is_dead(message):
        message = unclaimed(message)
    headers = message.headers
    return ParkedMessage(
        id=_id_of(message),
        queue=queue,
        loop=_loop_of(routing_key) or _loop_named_by(headers),
        reason=str(headers.get(f"{PARKED}reason") or _broker_reason(headers)),
        error=str(headers.get(f"{PARKED}error") or _broker_error(headers)),
        parked_at=moment_in(headers, f"{PARKED}at-ms"),
        traceback=str(headers.get(f"{PARKED}traceback") or ""),
        message=message,
        routing_key=routing_key,
    )


@dataclass(frozen=True, slots=True)
class Selection:
    """Select parked messages: those that match all given conditions.

    Attributes:
        ids: None: any.
        reason: None: any.
        task: None: any.
        kind: of the error (`kind_of`); None: any.
        deletion: of messages in the trash: what deleted them; None: any.

    Raises:
        UsageError: there is no such reason to park.
    """

    ids: frozenset[str] | None = None
    reason: str | None = None
    task: str | None = None
    kind: str | None = None
    deletion: str | None = None

    def __post_init__(self) -> None:
        if self.reason not in (None, *REASONS):
            raise UsageError(no_such("reason to park", self.reason, REASONS))

    def has(self, parked: ParkedMessage) -> bool:
        """Return whether a message is selected."""
        if self.ids is not None and parked.id not in self.ids:
            return False
        return (
            self.reason in (None, parked.reason)
            and self.task in (None, parked.task)
            and self.kind in (None, parked.kind)
            and self.deletion in (None, parked.message.headers.get(DELETION))
        )


def kind_of(error: str) -> str:
    """Return an error without numbers and quoted names."""
    return NAMED.sub("…", error)


EVERYTHING = Selection()

OnEach = Callable[[ParkedMessage], None]
Check = Callable[[str, Mapping[str, Any]], None]


@dataclass(eq=False)
class FailedQueues:
    """Manage the failed queues of a namespace.

    Attributes:
        aliases: old names of tasks, and their current names: messages parked under an old name
            belong to the current task.
    """

    broker: Broker
    names: Names
    clock: Clock
    aliases: Mapping[str, str] = field(default_factory=dict[str, str])

    async def park(
        self, message: Message, routing_key: str, reason: Reason, error: BaseException
    ) -> None:
        """Park a message by its routing key, with the reason, and record it in the journal."""
        message = parked(message, routing_key, reason, error, self.clock.now())
        await self.put(message, routing_key, DEFAULT_TIMEOUT)
        await self.record(message, DEFAULT_TIMEOUT)

    async def put(self, parked: Message, routing_key: str, timeout: timedelta | None) -> None:
        """Publish a parked message to its failed queue, confirmed."""
        await self._publish(parked, self.names.failed, routing_key, timeout)

    async def record(self, parked: Message, timeout: timedelta | None) -> None:
        """Record a parked message in the journal, confirmed."""
        await self.broker.publish(
            record_of(parked),
            exchange=self.names.scheduler,
            routing_key=RECORD_KEY,
            timeout=timeout,
        )

    async def park_taken(self, delivery: Delivery, reason: Reason, error: BaseException) -> None:
        """Park a delivery: publish, confirm, then ack.

        Raises:
            BrokerError: it may not have been parked, and was requeued.
        """
        try:
            await self.park(delivery.message, delivery.routing_key, reason, error)
        except BaseException:
            with suppress(DeliveryLost):
                await delivery.requeue()
            raise
        await delivery.ack()

    async def look(
        self, tasks: Iterable[str] | None, which: Selection = EVERYTHING
    ) -> AsyncGenerator[ParkedMessage]:
        """Browse the parked messages of these tasks, and those without a known task.

        Without tasks (None), browse the deleted ones in the trash.

        They stay unacked until the end: close the iterator to stop early.

        Raises:
            NotAllSeen: some messages could not be read.
        """
        left = await self._waiting(tasks)
        with _counting(left):
            for queue, depth in left.items():
                async with self.broker.browse(queue, limit=depth) as deliveries:
                    async for delivery in deliveries:
                        left[queue] -= 1
                        if which.has(parked := self._read(delivery)):
                            yield parked

    async def browse(
        self, tasks: Iterable[str] | None, which: Selection = EVERYTHING, *, limit: int = 100
    ) -> list[ParkedMessage]:
        """Return the first of them, without those that another reader holds."""
        found: list[ParkedMessage] = []
        async with aclosing(self.look(tasks, which)) as looked_at:
            with suppress(NotAllSeen):
                while len(found) < limit and (parked := await anext(looked_at, None)):
                    found.append(parked)
        return found

    async def named(self, tasks: Iterable[str] | None, beginnings: Iterable[str]) -> dict[str, str]:
        """Resolve prefixes to IDs; a whole ID is itself.

        Raises:
            UsageError: a prefix is ambiguous.
            NotAllSeen: it may be ambiguous.
        """
        found = {beginning: set[str]() for beginning in beginnings}
        async with aclosing(self.look(tasks)) as looked_at:
            try:
                async for parked in looked_at:
                    for beginning, ids in found.items():
                        is_meant = parked.id.startswith(beginning) and len(ids) < FEW
                        if is_meant or parked.id == beginning:
                            ids.add(parked.id)
                    if all(beginning in ids for beginning, ids in found.items()):
                        break
            except NotAllSeen:
                if any(ids and beginning not in ids for beginning, ids in found.items()):
                    raise
        named = dict[str, str]()
        for beginning, ids in found.items():
            if beginning not in ids and len(ids) > 1:
                few = ", ".join(sorted(ids))
                raise UsageError(
                    f"Ambiguous ID prefix {beginning!r}: matches {few}; use a longer prefix."
                )
            if ids:
                named[beginning] = beginning if beginning in ids else ids.pop()
        return named

    async def count(self, tasks: Iterable[str] | None) -> int:
        """Count the messages that `look` browses."""
        return sum((await self._waiting(tasks)).values())

    async def replay(
        self,
        tasks: Iterable[str],
        which: Selection,
        *,
        rate: Rate | None = None,
        args: Mapping[str, Any] | None = None,
        to: str | None = None,
        check: Check = lambda task, args: None,
        on_each: OnEach = lambda parked: None,
    ) -> int:
        """Replay parked messages to their tasks; return their number.

        Each is published and confirmed before it is removed from the failed queue. A replayed call
        has all its attempts again. A message that fails again is left in the queue.

        Args:
            rate: the maximum rate.
            args: replacements for their arguments.
            to: the task for calls; None: their own.
            check: called with the task and these, before any is replayed; raises if something is
            wrong.
            on_each: called with each after its replay.

        Raises:
            NotAllSeen: some messages could not be read.
        """

        async def send_back(parked: ParkedMessage) -> None:
            body = _edited(parked, args)
            if args is not None:
                check(to or parked.task, args)
            await self._send_back(parked, body, to)

        pacer = Pacer(rate) if rate else None
        return await self._take(tasks, which, send_back, on_each, pacer)

    async def purge(
        self,
        tasks: Iterable[str],
        which: Selection,
        *,
        deletion: str = "",
        on_each: OnEach = lambda parked: None,
    ) -> int:
        """Delete parked messages; return their number. The trash keeps them for a day.

        Each is published to the trash and confirmed before it is removed from the failed queue.

        Args:
            deletion: names this deletion, to restore what it has deleted.
            on_each: called with each after its deletion.

        Raises:
            NotAllSeen: some messages could not be read.
        """

        async def discard(parked: ParkedMessage) -> None:
            message = _trashed(parked, deletion)
            await self._publish(message, self.names.failed, TRASH_KEY, DEFAULT_TIMEOUT)

        return await self._take(tasks, which, discard, on_each)

    async def restore(self, which: Selection, *, on_each: OnEach = lambda parked: None) -> int:
        """Park deleted messages again, as they were; return their number.

        Each is published and confirmed before it is removed from the trash.

        Args:
            on_each: called with each after its return.

        Raises:
            NotAllSeen: some messages could not be read.
        """

        async def park_again(parked: ParkedMessage) -> None:
            headers = dict(parked.message.headers)
            key = str(headers.pop(TRASHED_KEY, ""))
            headers.pop(DELETION, None)
            message = replace(parked.message, headers=own_headers(headers), expiration=None)
            await self._publish(message, self.names.failed, key, DEFAULT_TIMEOUT)

        return await self._take(None, which, park_again, on_each)

    async def _take(
        self,
        tasks: Iterable[str] | None,
        which: Selection,
        use: Callable[[ParkedMessage], Awaitable[None]],
        on_each: OnEach,
        pacer: Pacer | None = None,
    ) -> int:
        """Use the selected messages, and remove each; return their number."""
        left, count = await self._waiting(tasks), 0
        with _counting(left):
            for queue in left:
                async with aclosing(self._in_turn(queue, left, which, pacer)) as found:
                    async for delivery, parked in found:
                        await use(parked)
                        await delivery.ack()
                        count += 1
                        on_each(parked)
        return count

    async def _in_turn(
        self, queue: str, left: dict[str, int], which: Selection, pacer: Pacer | None
    ) -> AsyncGenerator[tuple[Delivery, ParkedMessage]]:
        """Yield the selected messages of a queue, but no newer ones, each in its turn.

        It works in rounds: a long one requeues its messages before the broker does, and the next
        one begins at the head again. Used messages are gone by then.
        """
        time, there = asyncio.get_running_loop().time, left[queue]
        wait: float | None = 0.0
        while wait is not None:
            await asyncio.sleep(wait)
            wait, used, unseen, end = None, 0, there, time() + ROUND.total_seconds()
            async with self.broker.browse(queue, limit=there) as deliveries:
                async for delivery in deliveries:
                    if which.has(parked := self._read(delivery)):
                        pause = pacer.wait if pacer else 0.0
                        if (pause or used) and time() + pause > end:
                            wait = pause
                            break
                        if pacer is not None:
                            await asyncio.sleep(pacer.turn())
                        yield delivery, parked
                        used += 1
                    unseen -= 1
                    left[queue] = min(left[queue], unseen)
            there -= used

    async def _waiting(self, tasks: Iterable[str] | None) -> dict[str, int]:
        """Count the messages in each queue."""
        waiting: dict[str, int] = {}
        for queue in self._queues(tasks):
            depth = await self.broker.depth(queue)
            if depth is None:
                raise QueueNotFound(
                    f"The queue {queue!r} does not exist: run `scheduler seed` first."
                )
            waiting[queue] = depth.ready
        return waiting

    def _queues(self, tasks: Iterable[str] | None) -> list[str]:
        if tasks is None:
            return [self.names.trash]
        wanted = list(dict.fromkeys(tasks))
        names = (*wanted, *(old for old, task in self.aliases.items() if task in wanted))
        return [*map(self.names.failed_queue, names), self.names.failed]

    def _read(self, delivery: Delivery) -> ParkedMessage:
        message, key = delivery.message, delivery.routing_key
        if delivery.queue == self.names.trash:
            key = str(message.headers.get(TRASHED_KEY) or "")
        name = delivery.queue.removeprefix(self.names.failed_queue(""))
        if (task := self.aliases.get(name)) is not None:
            message, key = renamed(message, key, name, task)
            if key.startswith(before := f"{LOOP_KEY}{name}."):
                key = f"{LOOP_KEY}{task}.{key.removeprefix(before)}"
        return read_parked(message, delivery.queue, key)

    async def _send_back(self, parked: ParkedMessage, body: bytes, to: str | None) -> None:
        headers = _fresh(parked) | {REPLAYED_AT: milliseconds_since_epoch(self.clock.now())}
        if to is not None and parked.came_as_token:
            raise UsageError(
                f"{parked.id!r} is a tick of the loop {parked.loop!r}, and cannot go to another "
                "task. It stays parked."
            )
        if to is not None and is_call(parked.message):
            headers[f"{PREFIX}task"] = to
        message = replace(parked.message, body=body, headers=headers, expiration=None)
        exchange, key = self.names.processor, parked.routing_key
        if not parked.came_as_token:
            exchange, key = self.names.delayed, retry_key(to or parked.task)
        # A foreign key may be invalid text, which cannot be sent. It leads to no other task.
        key = key.encode(errors="replace").decode()
        await self._publish(message, exchange, key, DEFAULT_TIMEOUT)

    async def _publish(
        self, message: Message, exchange: str, routing_key: str, timeout: timedelta | None
    ) -> None:
        """Publish as many of its headers as fit."""
        while True:
            try:
                return await self.broker.publish(
                    message, exchange=exchange, routing_key=routing_key, timeout=timeout
                )
            except TooLarge as error:
                if not error.excess:
                    raise
                message = lightened(message, error.excess)


def _trashed(parked: ParkedMessage, deletion: str) -> Message:
    """Return the message as it is put into the trash.

    What the broker had parked stays distinguishable from a tick: its key is that of its task, as
    the broker's own headers are lost.
    """
    is_dead, at = _is_dead(parked.message), parked.parked_at
    key = task_key(parked.task) if is_dead and parked.task else parked.routing_key
    texts = {
        "loop": one_line(parked.loop),
        "reason": parked.reason,
        "error": parked.error,
        "traceback": parked.traceback,
        "key": key.encode(errors="replace").decode(),
        "deletion": deletion,
    }
    added: dict[str, Any] = {PARKED + name: text for name, text in texts.items()}
    if at is not None:
        added[f"{PARKED}at-ms"] = milliseconds_since_epoch(at)
    headers = {**_origin_of(parked.message), **parked.headers, **added}
    return replace(parked.message, headers=headers, expiration=None)


@contextmanager
def _counting(left: Mapping[str, int]) -> Generator[None]:
    """Raise, at the end of the block, if messages were not read."""
    try:
        yield
    except (BrokerUnavailable, DeliveryLost) as error:
        raise _not_all_seen(sum(left.values()), str(error)) from error
    if any(left.values()):
        raise _not_all_seen(sum(left.values()), "Another reader holds them, or processed them.")


def _not_all_seen(left: int, why: str) -> NotAllSeen:
    return NotAllSeen(
        f"{left} of the parked messages could not be read. {why} "
        "Run the command again for the rest.",
        left=left,
    )


def _edited(parked: ParkedMessage, args: Mapping[str, Any] | None) -> bytes:
    """Return the body to replay, with new arguments if given.

    A tick is run apart from its loop, which has continued.

    Raises:
        UsageError: it has no arguments to change.
    """
    changes: dict[str, Any] = {} if args is None else {"args": args}
    message = parked.message
    if is_tick := parked.came_as_token and is_token(message):
        changes |= {"state": REPLAY, "task": parked.task}
    try:
        body = json.loads(message.body) if is_tick or is_call(message) else None
    except (ValueError, RecursionError):
        body = None
    if changes and isinstance(body, dict):
        return json.dumps({**cast(dict[str, Any], body), **changes}).encode()
    if args is None:
        return message.body
    raise UsageError(
        f"The message {message.message_id!r} has no arguments to change: it was not sent by a "
        "scheduler. It stays parked."
    )


def _fresh(parked: ParkedMessage) -> dict[str, Any]:
    """Return the headers of a replayed message.

    A call has all its attempts again, and does not expire.
    """
    used_up = (ATTEMPT, f"{PREFIX}expires-at-ms")
    headers = {name: value for name, value in parked.headers.items() if name not in used_up}
    return {**_origin_of(parked.message), **headers}


def _origin_of(message: Message) -> Mapping[str, Any]:
    """Return where a foreign message was published, if the broker parked it."""
    if is_token(message) or is_call(message):
        return {}
    match message.headers.get("x-death"):
        case [{"exchange": str(exchange), "routing-keys": [str(key), *_]}, *_]:
            return placed(Message(), exchange, key).headers
        case _:
            return {}


def _is_dead(message: Message) -> bool:
    """Return whether the broker parked it: processors send none of its headers."""
    return "x-death" in message.headers


def _loop_of(routing_key: str) -> str:
    if (loop := loop_named_by(routing_key)) is not None:
        return str(loop)
    _, _, task = routing_key.partition(".")
    return task if routing_key in (task_key(task), retry_key(task)) else ""


def _counts_of(message: Message) -> dict[str, int]:
    """Return how many attempts have failed, and which tick it was."""
    if is_token(message):
        claims = claims_of(message)
        found = {ATTEMPT: claims.get("attempt"), PARKED_SEQ: claims.get("seq")}
    else:
        found = {ATTEMPT: message.headers.get(ATTEMPT)}
    return {
        name: count
        for name, count in found.items()
        if type(count) is int and 0 <= count <= MOST_COUNTED
    }


def _loop_named_by(headers: Mapping[str, Any]) -> str:
    return str(headers.get(f"{PARKED}loop") or headers.get(f"{PREFIX}task") or "")


def _id_of(message: Message) -> str:
    name = (
        flat(message.message_id or "")
        or f"no-id-{blake2b(message.body, digest_size=6).hexdigest()}"
    )
    if name.startswith("-"):  # a command would read it as an option
        name = f"id{name}"
    at = message.headers.get(f"{PARKED}at-ms")
    return name if at is None else f"{name}@{flat(str(at))}"


def _last_death(headers: Mapping[str, Any]) -> Any:
    """Return why the broker parked it; None: its delay had ended, and no queue was bound for it."""
    match headers.get("x-death"):
        case [{"reason": "expired", "queue": str(queue)}, *_] if is_of_task(queue):
            return "expired"
        case [{"reason": reason}, *_]:  # the last one comes first
            pass
        case _:
            reason = headers.get("x-first-death-reason")
    return None if reason == "expired" else reason


def _broker_reason(headers: Mapping[str, Any]) -> str:
    return str(_last_death(headers) or UNKNOWN_TASK).replace("_", "-")


def _broker_error(headers: Mapping[str, Any]) -> str:
    match _last_death(headers):
        case "delivery_limit":
            return "it was delivered too often without an ack: it may kill its processors"
        case "expired":
            return "its own expiration was over before its turn"
        case reason if reason:
            return one_line(f"the broker parked it: {reason}")
        case _:
            return "no queue of a task is bound for its routing key"
