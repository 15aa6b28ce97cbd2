"""Publish tokens and calls into their timers, or past them."""

from dataclasses import replace
from datetime import datetime, timedelta

from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker
from scheduler.protocol.calls import retry_key, task_key
from scheduler.protocol.hatchery import AT, LONGEST, NO_WAIT, STEP, Route, route
from scheduler.protocol.messages import LEAD, Message
from scheduler.protocol.tokens import Token, encode, rest_key, token_key
from scheduler.protocol.topology import Names
from scheduler.timing.durations import MILLISECOND, ZERO
from scheduler.timing.moments import Clock, milliseconds, milliseconds_since_epoch
from scheduler.timing.schedules import Once

SHORTEST_LEG = timedelta(minutes=1)
SHORTEST_LEAD_MS = 20
"""A quorum queue needs some milliseconds after a token left."""

SPARE = 1.5
HALF_LIFE = timedelta(seconds=30)


class Lead:
    """Learn how early a token leaves its timers so that its run starts on time: the transit time
    from a timer to a processor, and some to spare.

    Args:
        longest: the upper limit; 0: messages leave when they are due.

    Attributes:
        length: how long before its time a message leaves, in whole milliseconds.
    """

    def __init__(self, longest: timedelta) -> None:
        self._longest_ms = longest / MILLISECOND
        self._trip_ms = self._longest_ms / (2 * SPARE)
        self._learned_at: datetime | None = None
        self.length = self._length()

    def learn(self, trip: timedelta, now: datetime) -> None:
        """Add the transit time of one message; spikes decay exponentially."""
        passed = max(now - (self._learned_at or now), ZERO)
        decayed = self._trip_ms * 0.5 ** (passed / HALF_LIFE)
        self._trip_ms = min(max(trip / MILLISECOND, decayed), self._longest_ms)
        self._learned_at, self.length = now, self._length()

    def _length(self) -> timedelta:
        wanted = max(self._trip_ms * SPARE, SHORTEST_LEAD_MS)
        return timedelta(milliseconds=int(min(wanted, self._longest_ms)))


class Timers:
    """Put tokens into the shared timers of a namespace.

    Its methods raise `Unroutable` if the namespace was not seeded, and another `BrokerError` if the
    token may not have been published.

    Attributes:
        lead: how long before its time a token leaves its timers.
    """

    def __init__(self, broker: Broker, names: Names, clock: Clock, lead: Lead) -> None:
        self._broker = broker
        self._namespace = names.namespace
        self._exchanges = names.hatchery_exchange(0), names.hatchery_exchange(1)
        self._clock = clock
        self.lead = lead

    async def put(self, token: Token, *, timeout: timedelta | None = DEFAULT_TIMEOUT) -> None:
        """Publish a token so that it arrives shortly before it is due, confirmed.

        A wait that is too long for the timers is cut: the processor puts the token again.
        """
        way, held = self._way(token)
        await self._publish(token, token_key(token.loop, way.key), held, timeout)

    async def start(self, token: Token) -> None:
        """Publish the token of a new loop as `put` does, but not to the journal.

        Its entry in the roster is its note. And a million starts would drop all else from the
        journal.
        """
        way, held = self._way(token)
        # The exchange of the longest unit is that of the journal too.
        unit, key = 0 if way.digits[0] else 1, token_key(token.loop, way.key)
        await self._publish(token, key, held, DEFAULT_TIMEOUT, unit)

    def _way(self, token: Token) -> tuple[Route, timedelta]:
        """Return the timers for a token, and how long its processor holds it after them."""
        now = self._clock.now()
        due_in, longest = max(token.due_at - now, ZERO), longest_leg(token, now)
        if due_in > longest:  # it arrives too early, and is put again
            return route(longest), ZERO
        lead = min(self.lead.length, due_in)
        way = route(due_in - lead)
        return way, way.rest + lead

    async def put_now(self, token: Token) -> None:
        """Publish a token so that it arrives at once, whenever it is due, confirmed."""
        await self._publish(token, token_key(token.loop, NO_WAIT.key), ZERO, DEFAULT_TIMEOUT)

    async def record(self, token: Token, *, timeout: timedelta | None = DEFAULT_TIMEOUT) -> None:
        """Publish a token to the journal alone, confirmed."""
        await self._publish(token, rest_key(token.loop), ZERO, timeout)

    async def _publish(
        self, token: Token, key: str, held: timedelta, timeout: timedelta | None, unit: int = 0
    ) -> None:
        await self._broker.publish(
            encode(token, self._namespace, lead=held),
            exchange=self._exchanges[unit],
            routing_key=key,
            timeout=timeout,
            in_order=False,
        )


def longest_leg(token: Token, now: datetime) -> timedelta:
    """Return how long a token may wait in the timers at a time.

    A named one-off may be moved again and again, as a debouncer does, and each move leaves a void
    token until that leaves its timer. So a moved one waits as long as its epoch is old, at least
    `SHORTEST_LEG`: only the moves of the last minute leave tokens.
    """
    if not waits_in_legs(token):
        return LONGEST
    age_ms = max(milliseconds_since_epoch(now) - token.epoch, 0)
    return min(max(timedelta(milliseconds=age_ms), SHORTEST_LEG), LONGEST)


def waits_in_legs(token: Token) -> bool:
    """Return whether a token returns from its timers now and then, before it is due."""
    return isinstance(token.schedule, Once) and token.epoch != token.life


async def send(
    broker: Broker,
    names: Names,
    task: str,
    message: Message,
    delay: timedelta,
    timeout: timedelta | None,
    *,
    in_order: bool = True,
) -> None:
    """Publish a call's message, confirmed, to arrive at its task after a delay.

    Args:
        in_order: it may not come before others that were sent before.

    Raises:
        Unroutable: nothing was seeded for this task.
        BrokerError: it may not have been queued.
    """
    message, waits = _routed(message, delay)
    exchange = names.later if waits else names.calls
    await broker.publish(
        message,
        exchange=exchange,
        routing_key=task_key(task),
        timeout=timeout,
        in_order=in_order,
    )


async def send_again(
    broker: Broker,
    names: Names,
    task: str,
    message: Message,
    delay: timedelta,
    timeout: timedelta | None,
) -> None:
    """Publish a retried call's message: it is accepted, even if its task is gone.

    A delay that is too long for the timers is cut: the processor sends it again.

    Raises:
        BrokerError: it may not have been queued.
    """
    message, waits = _routed(message, min(max(delay, ZERO), LONGEST))
    exchange = names.later_exchange(0) if waits else names.delayed
    await broker.publish(message, exchange=exchange, routing_key=retry_key(task), timeout=timeout)


def _routed(message: Message, delay: timedelta) -> tuple[Message, bool]:
    """Write a message's timers, and its remaining hold, into its headers.

    Delays that are not whole steps leave up to one step early to absorb transit time.

    Returns:
        The message, and whether it uses any timer.
    """
    lead = min(delay, STEP)
    way = route(delay - lead)
    headers = {name: value for name, value in message.headers.items() if not name.startswith(AT)}
    if delay:
        headers |= {**way.headers, LEAD: milliseconds(way.rest + lead)}
    return replace(message, headers=headers), any(way.digits)
