"""Reach the broker of an app's settings, for a limited time."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from datetime import timedelta, tzinfo
from typing import TypeVar

from scheduler.app import Scheduler
from scheduler.brokers.contract import LOOK_EVERY, Broker, is_stalled
from scheduler.brokers.credentials import is_embedded
from scheduler.brokers.opening import broker_of
from scheduler.cli.arguments import LIMIT
from scheduler.control.doctor import explaining_refusals
from scheduler.errors import BrokerError, BrokerUnavailable, SettingsError
from scheduler.program import Program
from scheduler.protocol.administration import Rights, rights_to_process
from scheduler.timing.durations import format_duration
from scheduler.timing.moments import SystemClock
from scheduler.timing.schedules import zone_of

T = TypeVar("T")
Zones = Mapping[str, tzinfo | None]

LEAVING = timedelta(seconds=2)


def ask(
    app: Scheduler,
    question: Callable[[Program], Awaitable[T]],
    rights: Rights | None = None,
    *,
    is_long: bool = False,
) -> T:
    """Run an operation over a separate connection, within the limit of --timeout.

    Args:
        is_long: only the time counts in which the broker is silent or blocks the connection.
    """

    async def answer() -> T:
        loop = asyncio.get_running_loop()
        begun_at = loop.time()
        async with connected(app, rights) as program:
            spent = timedelta(seconds=loop.time() - begun_at)
            return await limited(program.broker, question(program), spent, is_long=is_long)

    return asyncio.run(answer())


async def limited(
    broker: Broker,
    question: Awaitable[T],
    spent: timedelta = timedelta(0),
    *,
    is_long: bool = False,
) -> T:
    """Await an operation over a broker's connection, of whose limit a part was spent: see `ask`."""
    answer, left = asyncio.ensure_future(question), LIMIT.get() - spent
    try:
        while left > timedelta(0):
            pause = min(LOOK_EVERY, left)
            done, _ = await asyncio.wait([answer], timeout=pause.total_seconds())
            if done:
                return answer.result()
            left = LIMIT.get() if is_long and not is_stalled(broker) else left - pause
        raise await unanswered(broker)
    finally:
        answer.cancel()
        await asyncio.wait([answer], timeout=LEAVING.total_seconds())


async def unanswered(broker: Broker) -> BrokerUnavailable:
    """Make the error of a command whose limit is over."""
    return BrokerUnavailable(
        f"{broker.address} has not responded within {format_duration(LIMIT.get())}: "
        f"{await _why_late(broker)}."
    )


async def _why_late(broker: Broker) -> str:
    """Say why a broker has not responded everything yet."""
    if not broker.connected:
        return "there is no connection to it"
    alarm = "a memory or disk alarm blocks it" if broker.is_blocked else ""
    if not alarm and broker.silence <= LOOK_EVERY:
        with suppress(TimeoutError):
            async with asyncio.timeout(LEAVING.total_seconds()):
                if not (low := await broker.alarm()):
                    return "it responds, but not to all of it in time; raise --timeout"
                alarm = f"it is {low}, and blocks publishers"
    if alarm:
        return f"{alarm} (see `rabbitmqctl status`)"
    return "it is connected, and silent; check its nodes, or raise --timeout"


@asynccontextmanager
async def connected(app: Scheduler, rights: Rights | None = None) -> AsyncGenerator[Program]:
    """Connect to the broker of the settings, with the rights of a processor by default."""
    broker, stack = remote_broker(app), AsyncExitStack()
    try:
        async with asyncio.timeout(LIMIT.get().total_seconds()):
            await stack.enter_async_context(broker)
    except TimeoutError:
        raise await unanswered(broker) from None
    try:
        with explaining_refusals(broker, rights or rights_to_process(app.names)):
            yield Program(app, broker, SystemClock())
    finally:
        with suppress(TimeoutError):  # a broker that hangs does not confirm the close
            async with asyncio.timeout(LEAVING.total_seconds()):
                await stack.aclose()


def remote_broker(app: Scheduler, *, patient: bool = False) -> Broker:
    """Return the broker of the settings, not yet connected."""
    require_remote(app)
    return broker_of(app.settings, emit=app.events.emit, patient=patient)


def require_remote(app: Scheduler) -> None:
    """Reject the embedded broker, which no other process can reach."""
    if is_embedded(app.settings):
        raise SettingsError(
            "memory:// lives within one process, which no other process can reach: use "
            "`scheduler dev`, or set SCHEDULER_BROKER_URL to a RabbitMQ."
        )


async def zones_of_loops(app: Scheduler, program: Program) -> Zones:
    """Return the zone of each loop's schedule, by its name; None: that of this machine."""
    try:
        known = await program.loops.look()
    except BrokerError:  # no reason to show less: without the roster, the code knows most
        known = list(app.loops.values())
    return {str(each): zone_of(each.schedule) for each in known}
