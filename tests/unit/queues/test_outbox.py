import asyncio
import itertools
import math
import os
import subprocess
import sys
import threading
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from scheduler.brokers.contract import BrokerInfo
from scheduler.brokers.memory.broker import LARGEST_BODY, MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.errors import (
    BrokerUnavailable,
    ConfirmationTimeout,
    NotAllSent,
    NotSent,
    Rejected,
    Unconfirmed,
)
from scheduler.events import (
    CallNotSent,
    CallSending,
    CallSent,
    Event,
    MessageStored,
    StoredDelayed,
    StoredSent,
)
from scheduler.protocol.topology import Names, topology
from scheduler.queues.outbox import BlockingBridge, Outbox, Posting
from scheduler.queues.unsent import SqliteStore, UnsentStore
from scheduler.tasks.retries import Retry
from scheduler.testing import run_virtually
from scheduler.timing.durations import SECOND
from scheduler.timing.moments import LoopClock
from tests.faulty import Call, FaultyBroker
from tests.stage import START, of

NAMES = Names("shop")


class Office:
    """An outbox, and the brokers that it has opened.

    Attributes:
        moods: what becomes of each publishing: it raises this, or hangs for so many seconds.
        connecting: what becomes of each connecting.
    """

    def __init__(self, clock: LoopClock, fallback: UnsentStore | None = None) -> None:
        self.clock = clock
        self.server = MemoryServer(clock)
        self.moods = list[Exception | float]()
        self.connecting = list[Exception | float]()
        self.opened: list[FaultyBroker] = []
        self.closed = 0
        self.events: list[Event] = []
        self.outbox = Outbox(NAMES, clock, self._connect, self.events.append, fallback=fallback)

    def suffers(
        self, *moods: Exception | float, connecting: Sequence[Exception | float] = ()
    ) -> None:
        self.moods += moods
        self.connecting += connecting

    def _connect(self) -> FaultyBroker:
        broker = FaultyBroker(self.server, info=BrokerInfo("RabbitMQ", "4.0.5"))

        async def connect(_: Call) -> None:
            if self.connecting:
                await suffer(self.connecting.pop(0))
            self.opened.append(broker)

        async def publish(call: Call) -> None:
            if self.moods:
                await suffer(self.moods.pop(0), call.timeout.total_seconds())
                raise ConfirmationTimeout("It did not confirm in time.")

        async def close(_: Call) -> None:
            self.closed += 1

        broker.on("connect").first(connect)
        broker.on("publish").first(publish)
        broker.on("close").first(close)
        return broker

    async def seed(self) -> None:
        async with MemoryBroker(self.server) as broker:
            await broker.declare(topology("shop", ["sms"], called=["sms"]))

    def received(self) -> int:
        return self.server.queue(NAMES.processor_queue("sms")).depth().ready


async def suffer(mood: Exception | float, timeout: float = math.inf) -> None:
    if isinstance(mood, Exception):
        raise mood
    await asyncio.sleep(min(mood, timeout))


def tries(broker: FaultyBroker) -> list[Call]:
    return [call for call in broker.calls if call.operation == "publish"]


@pytest.fixture
async def office(clock: LoopClock) -> Office:
    office = Office(clock)
    await office.seed()
    return office


AWAY = BrokerUnavailable("Cannot connect to amqp://nowhere/: refused.")


def test_a_connection_is_not_taken_from_one_event_loop_to_another() -> None:
    office = Office(LoopClock(START))

    async def send() -> None:
        await office.seed()
        await office.outbox.send("sms", {}, Posting())

    for _ in range(2):
        run_virtually(send())
    assert len(office.opened) == 2


def test_each_event_loop_opens_and_closes_its_own_connection() -> None:
    office = Office(LoopClock(START))

    async def send(then: Callable[[], object]) -> None:
        await office.seed()
        await office.outbox.open()
        await office.outbox.open()  # a block inside the other one
        then()
        await office.outbox.close()
        await office.outbox.send("sms", {}, Posting())
        await office.outbox.close()
        assert not office.outbox.is_open

    def beside() -> None:
        with ThreadPoolExecutor(1) as thread:
            thread.submit(run_virtually, send(lambda: None)).result()

    run_virtually(send(beside))
    assert (len(office.opened), office.closed) == (2, 2)
    assert [len(tries(broker)) for broker in office.opened] == [1, 1]


async def test_a_connection_that_is_lent_is_used_and_not_closed(office: Office) -> None:
    first, second = FaultyBroker(office.server), FaultyBroker(office.server)
    async with first, second:
        await office.outbox.send("sms", {}, Posting())
        for lent in (first, second):
            office.outbox.use(lent, office.clock)
        await office.outbox.send("sms", {}, Posting())
        office.outbox.release(second)
        await office.outbox.send("sms", {}, Posting())
        await office.outbox.close()
        assert (len(tries(first)), len(tries(second))) == (1, 1)
        assert first.connected
        assert office.closed == 1  # its own
        office.outbox.release(first)
        await office.outbox.send("sms", {}, Posting())
    assert (len(tries(first)), len(office.opened)) == (1, 2)


GONE = Unconfirmed("gone")
FULL, SILENT = Rejected("full"), ConfirmationTimeout("silent")


@pytest.mark.parametrize(
    ("moods", "expected"),
    [
        ([GONE] * 4, [0, 0.1, 0.2, 0.4]),
        ([FULL] * 3, [1, 1.6, 2.56]),
        ([AWAY, FULL, GONE, SILENT], [0, 1, 0.1, 1.6]),
    ],
)
async def test_sending_waits_for_faults_shorter_than_the_deadline(
    office: Office, moods: list[Exception | float], expected: list[float]
) -> None:
    """At once and as a connection is retried, but under flow control by the policy."""
    office.suffers(*moods)
    assert await office.outbox.send("sms", {}, Posting(message_id="id")) == "id"
    assert office.received() == 1
    (broker,) = office.opened
    tried_at = [call.at for call in tries(broker)]
    assert len(tried_at) == len(moods) + 1
    pauses = [b - a for a, b in itertools.pairwise(tried_at)]
    for pause, mean in zip(pauses, expected, strict=True):
        assert mean * 0.5 <= pause <= mean * 1.2


async def test_a_message_may_have_its_own_policy(office: Office, clock: LoopClock) -> None:
    office.suffers(*[FULL] * 9)
    posting = Posting(retry_sending=Retry(2, delays=["3s", "4s"], jitter=0), message_id="a")
    with pytest.raises(NotSent, match="full") as caught:
        await office.outbox.send("sms", {}, posting)
    assert [call.at for call in tries(office.opened[0])] == [0, 3, 7]
    office.moods.clear()
    await office.outbox.send("sms", {}, Posting(message_id="b", headers={"x": 1}))
    assert office.events == [
        CallSending("sms", "a", {}, {}, START),
        CallNotSent("sms", "a", caught.value),
        CallSending("sms", "b", {"x": 1}, {}, clock.now()),
        CallSent("sms", "b"),
    ]


async def test_an_alarm_delays_sending(office: Office, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(FaultyBroker, "is_blocked", True)
    asyncio.get_running_loop().call_later(3, monkeypatch.undo)
    await office.outbox.send("sms", {}, Posting())
    (tried,) = tries(office.opened[0])
    assert 3 < tried.at < 7


@pytest.mark.parametrize(
    ("moods", "connecting", "told"),
    [
        ([Rejected("The queue is full.")] * 99, [], "The queue is full"),
        ([3600.0], [], "It did not confirm in time"),
        ([], [AWAY] * 99, "Cannot connect to amqp://nowhere/: refused"),
        ([], [3600.0], "did not respond while connecting"),
    ],
    ids=["full", "silent", "away", "black hole"],
)
async def test_after_the_deadline_the_error_says_that_the_outcome_is_unknown(
    office: Office,
    moods: list[Exception | float],
    connecting: list[Exception | float],
    told: str,
) -> None:
    office.suffers(*moods, connecting=connecting)
    loop = asyncio.get_running_loop()
    began = loop.time()
    with pytest.raises(NotSent) as caught:
        await office.outbox.send("sms", {}, Posting(message_id="id", deadline=timedelta(0, 10)))
    assert 4 < loop.time() - began <= 10.01
    message = str(caught.value)
    assert message.startswith("The message for 'sms' was not confirmed within 10 s: ")
    assert told in message
    assert "Send it again with the same id (id) if running it twice" in message
    assert all(call.timeout <= timedelta(seconds=10) for b in office.opened for call in tries(b))
    office.moods.clear()
    office.connecting.clear()
    await office.outbox.send("sms", {}, Posting())  # what was, is over


async def test_a_call_that_cannot_be_sent_does_not_stop_others(office: Office) -> None:
    calls = [{"a": "x" * (LARGEST_BODY if n == 3 else 1)} for n in range(1000)]
    with pytest.raises(NotAllSent, match="999 of 1000") as failed:
        await office.outbox.send_all("sms", [(call, Posting()) for call in calls])
    assert [n for n, id in enumerate(failed.value.ids) if id is None] == [3]
    assert office.received() == 999


# The fallback


@pytest.fixture
async def stocked(clock: LoopClock, store: SqliteStore) -> AsyncIterator[Office]:
    """An office with a fallback."""
    office = Office(clock, store)
    await office.seed()
    yield office
    await office.outbox.close()


BRIEF = Posting(deadline=SECOND)


async def test_an_unsent_message_is_stored_and_sent_later(
    stocked: Office, store: SqliteStore
) -> None:
    stocked.suffers(connecting=[AWAY] * 20)
    await stocked.outbox.open()  # the program starts though the broker is away
    later = BRIEF._replace(delay=timedelta(minutes=1), message_id="later")
    ids = [
        await stocked.outbox.send("sms", {"n": 1}, BRIEF._replace(message_id="now")),
        await stocked.outbox.send("sms", {"n": 2}, later),
        await stocked.outbox.send("sms", {"n": 3}, later),
    ]
    assert ids == ["now", "later", "later"]
    assert all(id.stored for id in ids)
    assert [(each.id, each.target) for each in store.read()] == [("now", "sms"), ("later", "sms")]
    assert of(CallSent, stocked.events) == []
    assert {type(each) for each in stocked.events[-2:]} == {MessageStored, CallNotSent}

    stocked.connecting.clear()
    id = await stocked.outbox.send("sms", {}, Posting(message_id="next"))
    assert not id.stored
    await asyncio.sleep(6)
    assert store.read() == []
    assert {each.message_id for each in of(StoredSent, stocked.events)} == {"now", "later"}
    assert stocked.received() == 2
    await asyncio.sleep(60)
    assert stocked.received() == 3  # at its time, and once


@pytest.mark.parametrize("reopened", [False, True])
async def test_stored_messages_are_sent_when_the_broker_is_back_though_no_other_is(
    stocked: Office, store: SqliteStore, reopened: bool
) -> None:
    stocked.suffers(connecting=[AWAY] * 20)
    await stocked.outbox.send("sms", {}, BRIEF)
    if reopened:
        await stocked.outbox.close()
        await stocked.outbox.open()
    stocked.connecting[:] = [AWAY]
    await asyncio.sleep(20)
    assert store.read() == []
    assert stocked.received() == 1
    assert of(StoredDelayed, stocked.events) == [StoredDelayed(0, str(AWAY))]


@pytest.mark.parametrize(
    ("moods", "connecting"),
    [([], [2.0]), ([], [AWAY] * 9), ([3.0], [])],
    ids=["connects", "is away", "is silent"],
)
async def test_a_message_still_being_sent_when_the_connection_is_closed_is_stored(
    stocked: Office, moods: list[Exception | float], connecting: list[Exception | float]
) -> None:
    stocked.suffers(*moods, connecting=connecting)
    sending = asyncio.create_task(stocked.outbox.send("sms", {}, Posting()))
    await asyncio.sleep(1)
    await stocked.outbox.close()
    assert (await sending).stored
    (stored,) = of(MessageStored, stocked.events)
    assert "was not confirmed before the connection was closed" in stored.reason
    assert stocked.closed == len(stocked.opened)


async def test_a_connection_is_not_closed_while_another_block_opens_it(stocked: Office) -> None:
    stocked.suffers(connecting=[AWAY, 2.0])
    await stocked.outbox.open()
    opening = asyncio.create_task(stocked.outbox.open())
    await asyncio.sleep(1)
    await stocked.outbox.close()
    await opening
    await stocked.outbox.send("sms", {}, BRIEF)
    await stocked.outbox.close()
    assert (len(stocked.opened), stocked.closed) == (1, 1)


async def test_the_rest_of_many_is_stored_at_once(stocked: Office, store: SqliteStore) -> None:
    stocked.suffers(connecting=[AWAY] * 9999)
    ids = await stocked.outbox.send_all("sms", [({"n": n}, BRIEF) for n in range(200)])
    assert all(id.stored for id in ids)
    assert asyncio.get_running_loop().time() < 3
    assert {each.id for each in store.read()} == set(ids)


async def test_a_stored_message_does_not_delay_others(stocked: Office, store: SqliteStore) -> None:
    stocked.suffers(connecting=[AWAY] * 20)
    for name, task in (("a", "never_seeded"), ("b", "sms")):
        await stocked.outbox.send(task, {}, BRIEF._replace(message_id=name))
    stocked.connecting.clear()
    async with FaultyBroker(stocked.server) as broker:
        assert await stocked.outbox.send_stored(broker) == 1
    assert [each.id for each in store.read()] == ["a"]
    (delayed,) = of(StoredDelayed, stocked.events)
    assert delayed.count == 1
    assert "Run `scheduler seed`" in delayed.reason


async def test_the_error_of_a_fallback_that_fails_tells_why_it_was_needed(clock: LoopClock) -> None:
    office = Office(clock, SqliteStore("/nowhere/unsent.db", "shop"))
    office.suffers(connecting=[AWAY] * 20)
    with pytest.raises(NotSent, match="refused.* Storing it failed, too: OperationalError: unable"):
        await office.outbox.send("sms", {}, BRIEF)


async def test_an_embedded_broker_gets_nothing_stored(stocked: Office, store: SqliteStore) -> None:
    stocked.suffers(connecting=[AWAY] * 20)
    await stocked.outbox.send("sms", {}, BRIEF)
    async with MemoryBroker(stocked.server) as broker:
        stocked.outbox.use(broker, stocked.clock)
        await asyncio.sleep(6)
        stocked.outbox.release(broker)
    assert len(store.read()) == 1


# Callers without an event loop


async def thread_name() -> str:
    return threading.current_thread().name


async def test_all_callers_share_one_thread_which_blocks_no_event_loop() -> None:
    bridge, going_on = BlockingBridge(), asyncio.Event()
    asyncio.get_running_loop().call_soon(going_on.set)
    assert await bridge.run_beside(thread_name()) == "scheduler sender"
    assert going_on.is_set()
    assert await asyncio.to_thread(bridge.run, thread_name()) == "scheduler sender"


async def test_a_cancelled_call_is_cancelled_in_that_thread_too() -> None:
    bridge, begun, ended = BlockingBridge(), threading.Event(), threading.Event()

    async def waits() -> None:
        begun.set()
        try:
            await asyncio.sleep(3600)
        finally:
            ended.set()

    waiting = asyncio.create_task(bridge.run_beside(waits()))
    assert await asyncio.to_thread(begun.wait, 10)
    waiting.cancel()
    assert await asyncio.to_thread(ended.wait, 10)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs os.fork")
def test_a_process_that_is_forked_gets_a_thread_of_its_own() -> None:
    # In a process of its own: forked here, the child would be a second pytest.
    program = (
        "import os, asyncio\n"
        "from scheduler.queues.outbox import BlockingBridge\n"
        "async def one(): return 1\n"
        "bridge = BlockingBridge()\n"
        "bridge.run(one())\n"
        "child = os.fork()\n"
        "if not child: os._exit(bridge.run(one()))\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), bridge.run(one()))\n"
    )
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program], capture_output=True, text=True, timeout=60
    )
    assert (done.stderr, done.stdout) == ("", "1 1\n")
