"""An app on a RabbitMQ that everything is published to."""

import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from pydantic import BaseModel

from scheduler import Context, Retry, Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import (
    ConnectionLost,
    ConsumerInterrupted,
    Event,
    HatchedEarly,
    LoopRepaired,
    LoopReported,
    SettlementDelayed,
    SupervisionDelayed,
    TokenSuperseded,
)
from scheduler.protocol.administration import rights_to_send
from scheduler.protocol.tokens import is_token
from scheduler.protocol.topology import Names, QueueType
from tests.foreign import Foreigner, Refused, foreigner
from tests.fuzz.messages import Sample, business, number_of
from tests.rabbitmq import Users
from tests.stage import at_work, processor_of, program_of
from tests.sweep import clear

TROUBLES = (
    ConnectionLost,
    ConsumerInterrupted,
    SettlementDelayed,
    SupervisionDelayed,
    LoopRepaired,
    LoopReported,
)
OF_SENDERS = "business", "call", "later"
PUBLISHERS = 4


class Order(BaseModel):
    number: int
    lines: list[str] = []


class Taken(Enum):
    """What a broker made of a message that was published."""

    ACCEPTED = "accepted"
    UNROUTABLE = "unroutable"
    REFUSED = "refused"


class Publisher:
    """Publishes bytes; comes back with a new connection where the broker has closed the old one.

    Args:
        url: of a user who may write everywhere.
        sender_url: of one with the rights of a sender, who publishes what a sender can.

    Attributes:
        refusals: what RabbitMQ said, without what differs from message to message.
    """

    def __init__(self, url: str, sender_url: str) -> None:
        self.refusals = Counter[str]()
        self._url, self._sender_url = url, sender_url
        self._opened = AsyncExitStack()
        self._connected = dict[str, Foreigner]()

    async def publish(self, sample: Sample) -> Taken:
        url = self._sender_url if sample.kind in OF_SENDERS else self._url
        if (one := self._connected.get(url)) is None:
            one = self._connected[url] = await self._opened.enter_async_context(foreigner(url))
        before = one.returned
        try:
            await one.publish(
                sample.properties,
                sample.body,
                exchange=sample.exchange,
                routing_key=sample.key,
                mandatory=True,
            )
        except Refused as error:
            self.refusals[str(error)[:60]] += 1
            await self.close()
            return Taken.REFUSED
        return Taken.UNROUTABLE if one.returned > before else Taken.ACCEPTED

    async def close(self) -> None:
        self._connected.clear()
        await self._opened.aclose()


class Complaints(logging.Handler):
    """Errors that were logged: each is one too many."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@dataclass
class Record:
    """What was run, and what went wrong.

    Attributes:
        runs: how often each message was run, in the end.
        acked: tokens that were acked without a run.
        waits: how many calls came before their time, and went into their timers again.
        delayed: how often each of the delayed messages of the namespace's own has run.
        beats: the seqs of a loop that runs each second.
    """

    runs: Counter[int] = field(default_factory=Counter[int])
    acked: Counter[int] = field(default_factory=Counter[int])
    waits: int = 0
    delayed: Counter[int] = field(default_factory=Counter[int])
    beats: list[int] = field(default_factory=list[int])
    troubles: list[str] = field(default_factory=list[str])

    def hear(self, event: Event) -> None:
        if isinstance(event, TROUBLES):
            self.troubles.append(repr(event)[:300])
        if isinstance(event, HatchedEarly) and event.seq is None and event.loop.task != "work":
            self.waits += 1
        if isinstance(event, TokenSuperseded):
            self.acked[int(event.message_id)] += 1

    def note(self, ctx: Context) -> None:
        """A message was run: by the one who only sent it, it was not tried before."""
        if ctx.attempt > 1 and not is_token(ctx.message):
            self.troubles.append(f"an attempt was claimed, and believed: {ctx.message!r:.300}")
        if ctx.message.headers.get("scheduler-user-id", "guest") != "guest":
            self.troubles.append(f"a user was claimed, and believed: {ctx.message!r:.300}")
        if (number := number_of(ctx.message.body, ctx.message.headers)) is None:
            self.troubles.append(f"a message without its number was run: {ctx.message!r:.300}")
        else:
            self.runs[number] += 1


@dataclass
class Field:
    """An app at work, and the means to publish to it."""

    app: Scheduler
    url: str
    broker: AmqpBroker
    publishers: list[Publisher]
    record: Record


def app_of(namespace: str, url: str, queue_type: QueueType, record: Record) -> Scheduler:
    """The app that everything is published to."""
    settings: Any = {"broker_url": url, "queue_type": queue_type, "supervision_interval": "10s"}
    app = Scheduler(namespace, Settings(**settings))

    def subscriber(name: str, retry: Retry) -> Any:
        return app.task(
            name=name,
            retry=retry,
            concurrency=50,
            subscribe=[(business(namespace), f"{name}.#", "topic")],
        )

    @app.task(retry=Retry(0), concurrency=50)
    async def sms(ctx: Context, phone: str, times: int = 1) -> None:
        record.note(ctx)

    @subscriber("scan", Retry(0))
    async def scan(ctx: Context, image: bytes) -> None:
        record.note(ctx)

    @subscriber("note", Retry(0))
    async def note(ctx: Context, words: str) -> None:
        record.note(ctx)

    @subscriber("paid", Retry(0))
    async def paid(ctx: Context, order: Order) -> None:
        record.note(ctx)

    @subscriber("fail", Retry(1, delays=["100ms"], jitter=0))
    async def fail(data: bytes) -> None:
        raise ValueError("caf\udce9 \x1b[31m")

    @app.periodic(every="1h")
    async def tick(ctx: Context) -> None:
        if number_of(ctx.message.body, ctx.message.headers) is not None:  # not its own token
            record.note(ctx)

    @app.periodic(every="1s")
    async def beat(ctx: Context) -> None:
        record.beats.append(ctx.seq)

    @app.task(concurrency=50)
    async def work(n: int) -> None:
        record.delayed[n] += 1

    app.listen(record.hear)
    return app


@asynccontextmanager
async def ploughed(
    url: str, namespace: str, queue_type: QueueType, users: Users
) -> AsyncGenerator[Field]:
    """Seed the app, and have it work until the block ends; sweep then."""
    record, complaints = Record(), Complaints()
    app = app_of(namespace, url, queue_type, record)
    to_send = rights_to_send(Names(namespace))
    sender = users.add(write=f"{to_send.write}|^{re.escape(business(namespace))}$")
    publishers = [Publisher(url, sender) for _ in range(PUBLISHERS)]
    logging.getLogger().addHandler(complaints)
    async with AsyncExitStack() as stack:
        stack.callback(logging.getLogger().removeHandler, complaints)
        broker = await stack.enter_async_context(AmqpBroker(url, emit=app.events.emit))
        await program_of(app, broker).seeding.seed()
        await stack.enter_async_context(at_work(processor_of(app, broker, concurrency=200)))
        own = await stack.enter_async_context(AmqpBroker(url, emit=app.events.emit))
        for publisher in publishers:
            stack.push_async_callback(publisher.close)
        yield Field(app, url, own, publishers, record)
    record.troubles += [f"logged: {line[-1500:]}" for line in complaints.lines]
    await clear(url, app.topology())
