"""Browse the messages of a queue from its head on, however many there are.

A message is passed by leaving it unacked, until the end. It comes in pages: a page is a consumer
that is cancelled once it is complete, so only the broker holds the messages, and a few of their
tags are kept here.
"""

import asyncio
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field

from scheduler.brokers.amqp.connection import Connection
from scheduler.brokers.amqp.consumers import DeliveryChannel
from scheduler.brokers.amqp.driver import DriverChannel, closed, lost_with
from scheduler.brokers.amqp.frames import RawMessage
from scheduler.brokers.amqp.session import Session
from scheduler.brokers.contract import Delivery
from scheduler.errors import BrokerError, BrokerUnavailable

PAGE = 500
# RabbitMQ scans all unacked messages of a channel at each ack, and the channels of a connection are
# limited.
KEPT_BY_CHANNEL = 5000
CHANNELS = 20
# RabbitMQ 3.10 shuffles messages that are requeued to a quorum queue together, if there are more.
BACK_AT_ONCE = 32
SILENCE = 0.5
SILENCES = 10
LOOKS = 200
LOOK_PAUSE = 0.01


@dataclass(slots=True, eq=False)
class Keeper:
    """Hold the channel of a page, with its unacked messages.

    Attributes:
        steps: the tags up to which messages are requeued, one step after the other.
    """

    channel: DriverChannel
    lost: asyncio.Future[None]
    kept: int = 0
    steps: list[int] = field(default_factory=list[int])

    def keep(self, unacked: set[int]) -> None:
        tags = sorted(unacked)
        self.kept += len(tags)
        self.steps += tags[BACK_AT_ONCE - 1 :: BACK_AT_ONCE]
        if len(tags) % BACK_AT_ONCE:
            self.steps.append(tags[-1])

    async def give_back(self) -> None:
        for tag in self.steps:
            self.channel.settle(tag, requeue=True, multiple=True)
        await closed(self.channel)  # before messages of the next one can overtake it


class Browsing:
    """Iterate over the messages of a queue.

    Inside the block, all browsed messages stay unacked; at its end they are requeued.
    """

    def __init__(self, connection: Connection, queue: str, limit: int) -> None:
        self._connection = connection
        self._queue = queue
        self._left = limit
        self._keepers: list[Keeper] = []
        self._arrived: deque[RawMessage] = deque()
        self._page: DeliveryChannel | None = None

    async def __aenter__(self) -> "Browsing":
        return self

    def __aiter__(self) -> "Browsing":
        return self

    async def __anext__(self) -> Delivery:
        if not self._arrived:
            await self._turn_page()
        if self._page is None or not self._arrived:
            raise StopAsyncIteration
        return self._page.delivery(self._arrived.popleft(), self._queue, lost=self._page.lost)

    async def __aexit__(self, *exception: object) -> None:
        """Requeue all unacked messages, and wait until they are in place."""
        self._keep_page()
        # The broker has requeued the messages of a lost channel.
        kept = 0 if self._is_lost else sum(keeper.kept for keeper in self._keepers)
        with suppress(BrokerError):
            ready = await self._ready() if kept else 0
            for keeper in self._keepers:
                with suppress(BrokerError), self._connection.translated:
                    await keeper.give_back()
            if kept:
                await self._until_back(ready + kept)

    @property
    def _is_lost(self) -> bool:
        return any(keeper.lost.done() for keeper in self._keepers)

    async def _turn_page(self) -> None:
        self._keep_page()
        wanted = min(PAGE, self._left)
        if not wanted:
            return
        session = await self._connection.ready()
        self._expect_all_kept()
        with self._connection.translated:
            keeper = await self._keeper(session)
            self._page = DeliveryChannel(self._connection, keeper.channel, keeper.lost)
            with session.awaiting_answer():
                await self._read(keeper, wanted)
        self._left -= len(self._arrived)

    async def _keeper(self, session: Session) -> Keeper:
        """Return the keeper for the channel of the next page."""
        last = self._keepers[-1] if self._keepers else None
        if last is None or (last.kept >= KEPT_BY_CHANNEL and len(self._keepers) < CHANNELS):
            channel = await session.open_channel()
            self._keepers.append(Keeper(channel, lost_with(channel)))
        return self._keepers[-1]

    async def _read(self, keeper: Keeper, wanted: int) -> None:
        full: asyncio.Future[None] = asyncio.get_running_loop().create_future()

        def lay_out(raw: RawMessage) -> None:
            self._arrived.append(raw)
            if len(self._arrived) == wanted and not full.done():  # its reader may have gone
                full.set_result(None)

        tag = await keeper.channel.consume(self._queue, lay_out, prefetch=wanted)
        await self._until_there(full)
        await keeper.channel.cancel(tag)

    async def _until_there(self, full: asyncio.Future[None]) -> None:
        """Wait for a page; another reader may hold the missing messages."""
        lost = [keeper.lost for keeper in self._keepers]
        arrived, silences, none_is_ready = 0, 0, False
        while not any(future.done() for future in (full, *lost)):
            await asyncio.wait([full, *lost], timeout=SILENCE, return_when=asyncio.FIRST_COMPLETED)
            silences = silences + 1 if len(self._arrived) == arrived else 0
            if silences == SILENCES or (silences and none_is_ready):
                return
            arrived, none_is_ready = len(self._arrived), silences > 0 and not await self._ready()
        self._expect_all_kept()

    def _expect_all_kept(self) -> None:
        if self._is_lost:
            raise BrokerUnavailable(
                f"The connection was lost while browsing the queue {self._queue!r}; its messages "
                "were requeued."
            )

    def _keep_page(self) -> None:
        if self._page is not None:
            unseen = {raw.tag for raw in self._arrived}
            self._keepers[-1].keep(self._page.leave_all() | unseen)
        self._page = None
        self._arrived.clear()

    async def _until_back(self, wanted: int) -> None:
        """Wait until messages are back: no requeue is confirmed, and the next reader needs them."""
        ready, looks = await self._ready(), LOOKS
        while ready < wanted and looks:  # with a limit: another reader may hold some of them
            await asyncio.sleep(LOOK_PAUSE)
            before, ready = ready, await self._ready()
            looks = LOOKS if ready > before else looks - 1

    async def _ready(self) -> int:
        depth = await self._connection.depth(self._queue)
        return depth.ready if depth else 0
