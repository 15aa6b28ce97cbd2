"""What a processor does next: the project's own worker is asked, on a broker that follows a script.

A worker that waits for a message has nothing in mind. So where it stands is told by what has
happened to it since, and it is brought there again by letting all of that happen.
"""

import asyncio
from asyncio import Future
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from enum import Enum
from functools import cache
from typing import Any, NamedTuple, cast
from unittest.mock import patch

from scheduler import Context, Retry, Scheduler, Settings
from scheduler.brokers.contract import Broker, Consumer, Delivery, Depth
from scheduler.errors import BrokerUnavailable, DeliveryLost
from scheduler.processor.knowledge import Knowledge
from scheduler.processor.processor import Worker
from scheduler.protocol.messages import PREFIX, Message
from scheduler.queues import heads
from scheduler.timing.moments import Clock
from tests.model.ordered.state import NOTHING_NOTED, Answer, Befell, Came, Note, Script
from tests.stage import processor_of

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
DELAY = timedelta(minutes=1)
GRACE = timedelta(days=1)
LOOKS = 2  # as good as more: what was put back is there at the second
SHORTLY = 2.0
"""Seconds: pauses that are no delay of a message."""


class Wish(Enum):
    """What a processor may wait for, besides a message."""

    GET = "gets the note"
    PUT_BACK = "puts the note back"
    DEPTH = "asks whether the note is back"
    NOTE = "notes"
    PARK = "parks"
    FORGET = "notes nothing"
    ACK = "acks"
    REQUEUE = "gives back"
    LEAVE = "leaves"
    CANCEL = "cancels its consumer"
    CONSUME = "consumes"
    RUN = "runs"
    REST = "rests"
    END = "has ended"


class Request(NamedTuple):
    """What a processor does, and waits until it is done.

    Attributes:
        number: of the message that it has in hand.
        attempt: of a run.
        note: what is noted.
        reason: for which it is parked.
        looked: whether it has looked for the note before.
    """

    wish: Wish
    number: int = -1
    attempt: int = 0
    note: Note | None = None
    reason: str = ""
    looked: bool = False


class Turn(NamedTuple):
    """Where a processor stands.

    Attributes:
        request: None: it waits for a message.
        consumes: whether it has a consumer, or would if it were connected.
    """

    request: Request | None
    consumes: bool


IDLE = Turn(None, consumes=True)


def resting(number: int) -> Script:
    """What has happened to one that rests until a delay of this message is over."""
    return (Came(number, False), Answer(False), *[Answer()] * 3)


@cache
def turn_of(script: Script, retries: int, limit: int, *, twins: bool) -> Turn:
    """Where a processor stands after all this."""
    with patch.object(heads, "LOOKS", LOOKS), patch.object(Knowledge, "soon_current", _at_once):
        return LOOP.run_until_complete(_Replay(LOOP, retries, limit, twins).through(script))


async def _at_once(self: Knowledge) -> None:
    """What the roster says is known: nothing is paused in this model."""


class _SteppedLoop(asyncio.SelectorEventLoop):
    """Its time passes when it is told; but pauses take none."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0

    def time(self) -> float:
        return self.now

    async def until_quiet(self) -> None:
        """Let everything happen that can."""
        internal = cast(Any, self)
        while True:
            await asyncio.sleep(0)
            timers = internal._scheduled
            if internal._ready or (timers and timers[0].cancelled()):
                continue
            if not timers or timers[0].when() > self.now + SHORTLY:
                return
            self.now = max(self.now, timers[0].when())


LOOP = _SteppedLoop()


class _Replay:
    """A worker, and what is asked of the world around it."""

    def __init__(self, loop: _SteppedLoop, retries: int, limit: int, twins: bool) -> None:
        self._loop = loop
        self._app = _app(self._run, retries, limit)
        self._twins = twins
        self._ticks = 0
        self._number = -1
        self._looked = False
        self._request: Request | None = None
        self._answer: Future[Any] | None = None
        self._lost: list[Future[None]] = []
        self._receive: Callable[[Delivery], object] | None = None

    async def through(self, script: Script) -> Turn:
        process = processor_of(
            self._app,
            cast(Broker, self),
            cast(Clock, self),
            supervises=False,
            grace=GRACE.total_seconds(),
        )
        working = asyncio.create_task(process.worker.run())
        await self._loop.until_quiet()
        self._reply()  # it consumes
        for each in script:
            await self._loop.until_quiet()
            self._happens(each, process.worker)
        await self._loop.until_quiet()
        ended = working.done()
        turn = Turn(Request(Wish.END) if ended else self._wished(), self._receive is not None)
        await self._finish()
        return turn

    def _wished(self) -> Request | None:
        request = self._request
        if request is None and self._receive is None:
            return Request(Wish.REST, self._number)
        if request is None or request.note is None:
            return request
        assert isinstance(written := request.note, _Written)
        return request._replace(note=written.read(self._number, self.now()))

    def _happens(self, what: Came | Answer | Befell, worker: Worker) -> None:
        match what:
            case Came(number, redelivered):
                if self._receive is not None:  # or what comes to who leaves is dropped
                    self._receive(self._delivery(number, redelivered))
            case Answer(told):
                self._reply(told)
            case Befell.TIME:
                self._ticks += 1
                self._loop.now += DELAY.total_seconds()
            case Befell.LOST:
                self._lose()
                self._break_off()
            case Befell.TAKEN_BACK:
                self._lose()
            case Befell.STOP:
                worker.stop()
            case Befell.GRACE_OVER:
                worker.abort()

    def _break_off(self) -> None:
        """Answer for the broker, as a connection does that is lost."""
        if self._request is None or self._request.wish is Wish.RUN:
            return
        wish, answer = self._request.wish, self._answer
        assert answer is not None
        self._answer = self._request = None
        if wish in (Wish.LEAVE, Wish.CANCEL):
            answer.set_result(None)
        elif wish in (Wish.ACK, Wish.REQUEUE, Wish.PUT_BACK):
            answer.set_exception(DeliveryLost)
        else:
            answer.set_exception(BrokerUnavailable("the connection is lost"))

    def _lose(self) -> None:
        for each in self._lost:
            each.set_result(None)
        self._lost = []

    async def _finish(self) -> None:
        # A processor that is cancelled shuts down, which is to be cancelled as well.
        while tasks := asyncio.all_tasks() - {asyncio.current_task()}:
            for each in tasks:
                each.cancel()
            await self._loop.until_quiet()

    async def _ask(self, wish: Wish, **more: Any) -> Any:
        assert self._answer is None, "it does one thing at a time"
        self._request = Request(wish, self._number, **more)
        self._answer = answer = self._loop.create_future()
        try:
            return await answer
        finally:
            if self._answer is answer:  # it was cancelled
                self._request = self._answer = None

    def _reply(self, told: Any = None) -> None:
        assert self._answer is not None
        answer, self._answer, self._request = self._answer, None, None
        answer.set_result(told)

    async def _run(self, attempt: int) -> None:
        if await self._ask(Wish.RUN, attempt=attempt) is False:
            raise ValueError("it failed")

    def _delivery(self, number: int, redelivered: bool) -> Delivery:
        self._number, self._looked = number, False
        message = Message(b"order" if self._twins else b"order %i" % number)
        return self._lent(message, "orders", redelivered, Wish.ACK, Wish.REQUEUE)

    def _lent(self, message: Message, exchange: str, redelivered: bool, *wishes: Wish) -> Delivery:
        """A message in the hand of the worker, and its ack and requeue."""
        lost: Future[None] = self._loop.create_future()
        self._lost.append(lost)

        def settled(wish: Wish) -> Callable[[], Any]:
            async def settle() -> None:
                if lost.done():
                    raise DeliveryLost
                self._lost.remove(lost)
                await self._ask(wish)

            return settle

        ack, requeue = map(settled, wishes)
        return Delivery(message, "queue", exchange, "paid", redelivered, lost, ack, requeue)

    # What the broker is to a worker.

    @property
    def address(self) -> str:
        return "the model"

    async def consume(
        self, queue: str, handler: Callable[[Delivery], object], *, prefetch: int
    ) -> Consumer:
        await self._ask(Wish.CONSUME)
        self._receive = handler
        return cast(Consumer, self)

    @property
    def active(self) -> bool:
        return True

    async def leave(self) -> None:
        self._receive = None
        await self._ask(Wish.LEAVE)
        self._lose()

    async def cancel(self) -> None:
        self._receive = None
        await self._ask(Wish.CANCEL)

    async def get(self, queue: str) -> Delivery | None:
        looked, self._looked = self._looked, True
        note = await self._ask(Wish.GET, looked=looked)
        if note is None:
            return None
        return self._lent(_message_of(note, self.now()), "", False, *[Wish.PUT_BACK] * 2)

    async def depth(self, queue: str) -> Depth | None:
        return Depth(await self._ask(Wish.DEPTH), 0)

    async def publish(self, message: Message, *, exchange: str, **_: Any) -> None:
        if exchange == self._app.names.control:
            forgets = not message.headers[f"{PREFIX}head-of"]
            await self._ask(Wish.FORGET if forgets else Wish.NOTE, note=_Written(message))
        elif exchange == self._app.names.failed:
            reason = message.headers[f"{PREFIX}parked-reason"]
            await self._ask(Wish.PARK, reason=reason)

    def now(self) -> datetime:
        return START + self._ticks * DELAY


class _Written(NamedTuple):
    """A note on its way, whose delay may pass meanwhile."""

    message: Message

    def read(self, number: int, now: datetime) -> Note:
        headers = {name.removeprefix(PREFIX): at for name, at in self.message.headers.items()}
        due_at = datetime.fromtimestamp(headers.get("due-at-ms", 0) / 1000, UTC)
        if not headers["head-of"]:
            return NOTHING_NOTED
        numbers = headers["attempt"], headers["begun"]
        return Note(headers["head-of"], number, *numbers, waits=due_at > now)


def _message_of(note: Note, now: datetime) -> Message:
    due_at = now + DELAY if note.waits else now
    headers = {
        "head-of": note.about,
        "attempt": note.attempt,
        "begun": note.begun,
        "due-at-ms": int(due_at.timestamp() * 1000),
    }
    return Message(headers={PREFIX + name: told for name, told in headers.items()})


@cache
def _settings(limit: int) -> Settings:
    url: Any = "memory://"
    return Settings(broker_url=url, delivery_limit=limit)


def _app(run: Callable[[int], Any], retries: int, limit: int) -> Scheduler:
    app = Scheduler("test", _settings(limit))
    retry = Retry(retries, delays=[DELAY], jitter=0)

    @app.task(ordered=True, subscribe=[("orders", "#", "topic")], retry=retry, timeout="20h")
    async def book(ctx: Context, order: bytes) -> None:
        await run(ctx.attempt - 1)  # of those that have failed

    return app
