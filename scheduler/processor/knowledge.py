"""Know the state that a processor needs before it runs a message (P0): epochs and paused tasks."""

import asyncio
import math
from collections.abc import Callable
from contextlib import AsyncExitStack, suppress
from datetime import datetime, timedelta

from scheduler.brokers.contract import cancelled
from scheduler.errors import BrokerError, NoSpace, QueueNotFound, Undecodable
from scheduler.events import (
    Connected,
    ConnectionLost,
    ConsumerInterrupted,
    ConsumerResumed,
    Emit,
    EpochHeard,
    Event,
)
from scheduler.protocol.epochs import Entry
from scheduler.protocol.tokens import LoopId, Token
from scheduler.protocol.topology import Names
from scheduler.queues.entries import RosterEntry
from scheduler.queues.roll_call import RollCall
from scheduler.queues.roster import Following, Roster
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.pacing import backoff
from scheduler.user_code import log_of

FIRST_PAUSE, LAST_PAUSE = timedelta(milliseconds=5), timedelta(seconds=1)
CLOSING_TIMEOUT_S = 5.0
ENTERED_WITHIN_S = 5.0
INTERRUPTIONS = ConnectionLost, Connected, ConsumerInterrupted, ConsumerResumed


LastNote = tuple[Token, datetime]
"""A noted token, and the time until which it had no successor."""


class Knowledge:
    """Follow the roster, and hear the roll calls, as long as the processor is alive.

    After each interruption it restarts; until it is current, its processor runs no token, and for a
    while no call: it may not know of a pause yet.

    Attributes:
        current: set while it knows all epochs that had begun before its last interruption ended.
    """

    def __init__(self, names: Names, roster: Roster, roll_call: RollCall, emit: Emit) -> None:
        self._namespace = names.namespace
        self._queues = {names.roster, names.roll_call, names.presence}
        self._roster = roster
        self._roll_call = roll_call
        self._listing = roster.listing
        self._listing.table.on_failure = self._begin_again
        self._emit = emit
        self._following: Following | None = None
        self._turn = asyncio.Lock()
        self._is_open = False
        self.current = asyncio.Event()
        self._interrupted_at = -math.inf
        self._news = asyncio.Event()
        self._catching_up: asyncio.Task[None] | None = None
        self._opened = AsyncExitStack()

    async def __aenter__(self) -> "Knowledge":
        """Subscribe to roll calls, read the roster to its end, and follow it from there.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        await self._opened.enter_async_context(self._roll_call)
        self._opened.push_async_callback(self._stop_following)
        self._is_open = True
        await self._catch_up_patiently(fatal=QueueNotFound)
        self._roster.skip_notes()
        return self

    async def __aexit__(self, *exception: object) -> None:
        self._is_open = False  # a reconnect while it closes begins nothing
        if self._catching_up is not None:
            await cancelled(self._catching_up)
        # A broker that an alarm blocks confirms no end; closing the connection has the same effect.
        closing = asyncio.create_task(self._opened.aclose(), name="end of following")
        done, _ = await asyncio.wait([closing], timeout=CLOSING_TIMEOUT_S)
        if done:
            closing.result()

    async def soon_current(self) -> None:
        """Wait until it is current, but not for long: calls do not depend on the roster.

        If the roster cannot be read, no pause can be appended to it either.
        """
        since = asyncio.get_running_loop().time() - self._interrupted_at
        with suppress(TimeoutError):
            async with asyncio.timeout(ENTERED_WITHIN_S - since):
                await self.current.wait()

    def pause_of(self, task: TaskSpec) -> RosterEntry | None:
        """Return the entry that pauses a task by any of its names; None: it is not paused."""
        return self._listing.pause_of(task.name)

    def is_held(self, task: TaskSpec) -> bool:
        """Return whether a task is paused under any of its names, or may be."""
        return self._listing.is_held(task.name)

    async def until_held(self, task: TaskSpec, held: bool) -> None:
        """Wait until a task is paused, or is not."""
        while self.is_held(task) is not held:
            await self._news.wait()

    async def entry_of(self, first: Token) -> Entry | None:
        """Return the latest entry of a loop, of at least this epoch; None: it is late."""

        def has_come() -> bool:
            listed = self._listing.get(first.loop)
            return listed is not None and listed.epoch >= first.epoch

        with suppress(TimeoutError):
            async with asyncio.timeout(ENTERED_WITHIN_S):
                await _until(has_come)
        listed = self._listing.get(first.loop)
        return listed.entry if listed is not None and has_come() else None

    async def noted(self, first: Token) -> LastNote | None:
        """Return the noted progress of a loop before this epoch.

        None: it is not noted; or its entry, which may come after its token, does not come.
        """
        entry, listed = await self.entry_of(first), self._listing.get(first.loop)
        if entry is None or listed is None or listed.epoch != first.epoch:
            return None
        listed = await self._roster.with_last_note(listed)
        if listed.checkpoint is None:
            return None
        try:
            return listed.checkpoint.token(self._namespace), listed.checkpoint.until
        except Undecodable:  # the journal is read
            return None

    def hear(self, event: Event) -> None:
        """Note `INTERRUPTIONS`, and their ends."""
        match event:
            case ConsumerInterrupted() | ConsumerResumed() if event.queue not in self._queues:
                pass
            case ConnectionLost() | ConsumerInterrupted():
                self._interrupt()
            case Connected() | ConsumerResumed():
                self._restart()
            case _:
                pass

    def _report(self, loop: LoopId, epoch: int, lag: timedelta) -> None:
        self._emit(EpochHeard(loop, epoch, lag))
        if loop.is_whole:
            self._report_pauses()

    def _report_pauses(self) -> None:
        self._news.set()
        self._news = asyncio.Event()

    def _interrupt(self) -> None:
        self._interrupted_at = asyncio.get_running_loop().time()
        self.current.clear()
        if self._catching_up is not None:
            self._catching_up.cancel()

    def _restart(self) -> None:
        self._interrupt()
        if not self._is_open:
            return
        self._catching_up = asyncio.create_task(self._catch_up_patiently(), name="roster")

    def _begin_again(self) -> None:
        if self.current.is_set():  # else it is reading, and tries again
            self._restart()

    async def _catch_up_patiently(self, *, fatal: type[BrokerError] | tuple[()] = ()) -> None:
        for pause in backoff(FIRST_PAUSE, LAST_PAUSE):
            try:
                return await self._catch_up()
            except fatal:
                raise
            except BrokerError:
                pass  # its loss is reported
            except NoSpace as error:
                if fatal:
                    raise
                log_of(__name__).error("The roster could not be read: %s", error)
            except Exception:
                if fatal:  # it has not begun yet
                    raise
                log_of(__name__).exception("The roster could not be read")
            await asyncio.sleep(pause)

    async def _catch_up(self) -> None:
        # Roll calls report later epochs; earlier ones are in the roster.
        interrupted_at = self._interrupted_at
        await _until(self._is_subscribed)
        async with self._turn:
            await self._roster.read()
            following = self._following
            if following is None or not following.is_on:
                await self._stop_following()
                following = await self._roster.follow(self._report, self._begin_again)
                self._following = following
        self._report_pauses()
        if self._interrupted_at != interrupted_at:
            return  # the first reading: another one begins when the interruption ends
        self.current.set()
        if not following.is_on:  # it has ended by now
            self._begin_again()

    async def _stop_following(self) -> None:
        following, self._following = self._following, None
        if following is not None:
            await following.cancel()

    def _is_subscribed(self) -> bool:
        is_following = self._following is None or self._following.consumer.active
        return self._roll_call.present and is_following


async def _until(condition: Callable[[], bool]) -> None:
    for pause in backoff(FIRST_PAUSE, LAST_PAUSE):
        if condition():
            return
        await asyncio.sleep(pause)
