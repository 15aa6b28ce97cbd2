"""An app on the embedded broker, in virtual time."""

import asyncio
import math
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from scheduler import Context, Retry, Scheduler, Settings
from scheduler.brokers.contract import DEFAULT_TIMEOUT, Broker, Delivery, Depth
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.server import MemoryServer
from scheduler.control.loops import Where
from scheduler.control.reports import Report
from scheduler.errors import QueueNotFound
from scheduler.events import Event, LoopRepaired, RunStarted
from scheduler.middleware import LifespanFunction
from scheduler.processor.processor import Processor, Worker
from scheduler.program import Program, processor
from scheduler.protocol.epochs import LoopState, is_void
from scheduler.protocol.messages import Message
from scheduler.protocol.tokens import LOOP_KEY, LoopId, Token, claims_of, decode, is_token
from scheduler.protocol.topology import Names, QueueType, topology
from scheduler.queues.entries import RosterEntry, messages_of
from scheduler.queues.failed import FailedQueues, ParkedMessage
from scheduler.queues.journal import Journal, LoopRecord
from scheduler.queues.listing import Listing
from scheduler.queues.outbox import Posting
from scheduler.queues.roster import Roster
from scheduler.queues.timers import Lead, Timers, send_again
from scheduler.sending import CallTask
from scheduler.tasks.tasks import SUPERVISION
from scheduler.testing import run_virtually
from scheduler.timing.moments import Clock, LoopClock, SystemClock
from tests.faulty import FaultyBroker

START = datetime(2026, 6, 1, 12, tzinfo=UTC)
SYSTEM_CLOCK = SystemClock()
E = TypeVar("E", bound=Event)
# A message of another application, with all properties that there are.
FOREIGN = Message(
    b'{"number": 7}',
    {"traceparent": "00-ab-cd-01", "n": 5, "nested": {"a": [None, True]}},
    content_type="application/json; charset=utf-8",
    message_id="m",
    correlation_id="c",
    type="order",
    priority=3,
    timestamp=START,
    content_encoding="identity",
    reply_to="answers",
    app_id="orders",
)


def of(kind: type[E], events: list[Event]) -> list[E]:
    return [event for event in events if isinstance(event, kind)]


def new_app(
    queue_type: QueueType = "quorum", *, lifespan: LifespanFunction | None = None, **settings: Any
) -> Scheduler:
    # In memory, so that what a test forgets to lend a connection to reaches no broker.
    url: Any = "memory://"
    chosen = Settings(broker_url=url, queue_type=queue_type, **settings)
    return Scheduler("test", chosen, lifespan=lifespan)


def an_app(namespace: str, loops: Iterable[str]) -> Scheduler:
    """An app that has loops of these names, which do nothing."""
    app = Scheduler(namespace)

    async def nothing() -> None: ...

    for name in loops:
        app.periodic(every="1h", name=name)(nothing)
    return app


def looping(
    *names: str,
    every: str = "1h",
    takes: float = 0,
    raised: Exception | None = None,
    retry: Retry | None = None,
    **settings: Any,
) -> Scheduler:
    """An app with a loop of each name, or `task`, whose runs count up what they carry."""
    app = new_app(**settings)

    async def count(ctx: Context) -> None:
        await asyncio.sleep(takes)
        if raised:
            raise raised
        ctx.carry((ctx.carried or 0) + 1)

    for name in names or ("task",):
        app.periodic(every=every, name=name, retry=retry)(count)
    return app


@asynccontextmanager
async def at_work(process: Processor) -> AsyncGenerator[None]:
    """Have a processor work until the block ends."""
    running = asyncio.create_task(process.run())
    try:
        yield
    finally:
        process.worker.stop()
        await running


def processor_of(
    app: Scheduler,
    broker: Broker,
    clock: Clock = SYSTEM_CLOCK,
    *,
    tasks: Iterable[str] | None = None,
    concurrency: int = 10,
    grace: float = 5,
    supervises: bool = True,
) -> Processor:
    """A processor; a whole one answers to roll calls, and supervises."""
    return processor(
        app,
        broker,
        clock,
        tasks=app.select(tasks),
        concurrency=concurrency,
        grace=timedelta(seconds=grace),
        supervises=supervises,
    )


def program_of(app: Scheduler, broker: Broker, clock: Clock = SYSTEM_CLOCK) -> Program:
    return Program(app, broker, clock)


def failed_of(names: Names, broker: Broker, clock: Clock = SYSTEM_CLOCK) -> FailedQueues:
    return FailedQueues(broker, names, clock)


def timers_of(names: Names, broker: Broker, clock: Clock = SYSTEM_CLOCK) -> Timers:
    return Timers(broker, names, clock, Lead(timedelta(0)))


def journal_of(names: Names, broker: Broker) -> Journal:
    return Journal(broker, names)


def heard_of(*tokens: Token) -> LoopRecord:
    """What a reader of the journal has heard of a loop, after these tokens."""
    heard = LoopRecord()
    for token in tokens:
        heard.note(token)
    return heard


def roster_of(names: Names, broker: Broker, clock: Clock = SYSTEM_CLOCK) -> Roster:
    return Roster(broker, names, clock)


async def append_blindly(broker: Broker, names: Names, entries: Iterable[RosterEntry]) -> None:
    """Append entries and notes to the roster, without reading which of them are accepted."""
    for message in messages_of(entries):
        await broker.publish(message, exchange=names.control, routing_key=names.roster)


class Stage:
    """An embedded broker in virtual time, for one app and as many processors as the test starts.

    Attributes:
        app: a new one, unless another is seeded; all but the clock, the server and the broker are
            of the one that was.
        events: what it has told.
        faulty: a connection of a processor that a test makes fail.
    """

    def __init__(self, clock: LoopClock) -> None:
        self.app = new_app()
        self.clock = clock
        self.server = MemoryServer(clock)
        self.broker = MemoryBroker(self.server)
        self.faulty = FaultyBroker(self.server)
        self.events: list[Event] = []
        self._exceptions = dict[LoopId, int]()
        self._some_stay_in_hand = False
        self._unseen = list[dict[str, Any]]()
        asyncio.get_running_loop().set_exception_handler(lambda _, each: self._unseen.append(each))

    async def seed(self, app: Scheduler | None = None, *, paused: bool = False) -> list[Report]:
        """Play this app, or the new one: record its events, send its messages, seed its loops."""
        self.app = app = app or self.app
        self.program = program = program_of(app, self.broker, self.clock)
        self.seeding, self.verbs, self.removal = program.seeding, program.verbs, program.removal
        self.loops, self.survey, self.timers = program.loops, program.survey, program.timers
        self.failed, self.journal = program.failed, program.journal
        app.events.listen(self.events.append)
        app.outbox.use(self.broker, self.clock)
        return await self.seeding.seed(paused=paused)

    def task(
        self,
        name: str,
        *,
        takes: float = 0,
        raised: BaseException | None = None,
        in_attempts: float = math.inf,
        **options: Any,
    ) -> CallTask[..., ..., Any]:
        """Give the app a task that takes so long, and raises this in its first attempts."""

        @self.app.task(name=name, **options)
        async def run(ctx: Context, n: int = 0) -> None:
            await asyncio.sleep(takes)
            if raised is not None and ctx.attempt <= in_attempts:
                raise raised

        return run

    @asynccontextmanager
    async def processor(
        self,
        grace: float = 5,
        concurrency: int = 10,
        app: Scheduler | None = None,
        over: MemoryBroker | None = None,
    ) -> AsyncGenerator[Worker]:
        """The worker of a processor alone: nobody supervises."""
        async with self._connected(over or MemoryBroker(self.server)) as broker:
            alone = processor_of(
                app or self.app,
                broker,
                self.clock,
                concurrency=concurrency,
                grace=grace,
                supervises=False,
            )
            async with at_work(alone):
                yield alone.worker

    async def work(
        self,
        seconds: float,
        *,
        concurrency: int = 10,
        grace: float = 5,
        app: Scheduler | None = None,
        over: MemoryBroker | None = None,
    ) -> None:
        """Have a processor work for so long."""
        async with self.processor(grace, concurrency, app, over):
            await asyncio.sleep(seconds)

    @asynccontextmanager
    async def supervised(
        self,
        *,
        app: Scheduler | None = None,
        tasks: Sequence[str] | None = None,
        grace: float = 5,
        over: MemoryBroker | None = None,
    ) -> AsyncGenerator[Processor]:
        """A whole processor: a worker that answers to roll calls, and supervises."""
        async with self._connected(over or MemoryBroker(self.server)) as broker:
            whole = processor_of(app or self.app, broker, self.clock, tasks=tasks, grace=grace)
            async with at_work(whole):
                yield whole

    @asynccontextmanager
    async def _connected(self, broker: MemoryBroker) -> AsyncGenerator[MemoryBroker]:
        """A connection of a processor, which gives back or settles all before it closes it."""
        async with broker:
            yield broker
            kept = [hold.queue.name for hold in broker.holds]
            assert bool(kept) is self._some_stay_in_hand, f"a processor ended with {kept} in hand"

    async def check(self) -> None:
        """What holds at the end of every test, whatever it did.

        No task is left behind, none has failed unseen, nothing is in hand, and each loop that there
        is has one token.
        """
        left = asyncio.all_tasks() - {asyncio.current_task()}
        assert not left, f"tasks are left behind: {left}"
        assert not self._unseen, f"nobody saw: {self._unseen}"
        in_hand = [hold.queue.name for each in self.server.connections for hold in each.holds]
        assert not in_hand, f"messages of {in_hand} are in hand"
        if hasattr(self, "program"):
            expected, found = await self.expected(), await self.tokens_by_loop()
            assert found == expected, f"tokens: {found}, expected: {expected}"

    def expects_none(self, loop: LoopId) -> None:
        """At the end there is no token of this loop: the test took it away for good."""
        self._exceptions[loop] = 0

    def expects_two(self, loop: LoopId) -> None:
        """At the end there are two: the test ends before those who hold them have met."""
        self._exceptions[loop] = 2

    def expects_some_in_hand(self, some: bool = True) -> None:
        """A processor ends with messages in hand: what they wait for outlasts its patience."""
        self._some_stay_in_hand = some

    async def expected(self) -> Counter[LoopId]:
        """How many tokens there must be of each loop that was seeded and not removed.

        A paused loop has none, nor has a named one-off that has run.
        """
        listing = await self.listing()
        resting = await self._resting(listing)
        loops = [each.loop for each in listing.there] if listing else self.app.loops
        found = dict.fromkeys((SUPERVISION, *(each for each in loops if each not in resting)), 1)
        return Counter(found | self._exceptions)

    async def _resting(self, listing: Listing) -> set[LoopId]:
        tokens = await self.survey.last_tokens(self.survey.loops(listing))
        done = {name for name, token in tokens.items() if token.rests}
        paused = (each for each in listing.there if each.entry.state is LoopState.PAUSED)
        return done | {each.loop for each in paused}

    async def listing(self) -> Listing:
        """What the roster says; nothing, if it is gone."""
        try:
            return await self.program.roster.read()
        except QueueNotFound:
            return Listing()

    async def tokens_by_loop(self) -> Counter[LoopId]:
        """How many tokens of each loop wait in the timers, or are ready, that are not void."""
        found, listing = Counter[LoopId](), await self.listing()
        for token in await self.all_tokens():
            found[token.loop] += not is_void(token.epoch, listing.known(token.loop))
        return found

    async def all_tokens(self, *, losing: LoopId | None = None) -> list[Token]:
        """The tokens that wait in the timers or are ready, void ones too.

        Args:
            losing: the loop whose tokens are taken away for good.
        """
        names, tokens = self.app.names, list[Token]()
        places = f"{names.prefix}.hatchery.", names.processor_queue("")
        async with MemoryBroker(self.server) as broker:
            for queue in [each for each in self.server.queues if each.startswith(places)]:
                while taken := await broker.get(queue):
                    if not is_token(taken.message):
                        continue
                    tokens.append(token := decode(taken.message, names.namespace))
                    if token.loop == losing:
                        await taken.ack()
        return tokens

    async def token(self, loop: LoopId) -> Token:
        """The latest of a loop's tokens, which waits for its time."""
        tokens = [each for each in await self.all_tokens() if each.loop == loop]
        assert tokens, f"no token of {loop} waits"
        return max(tokens, key=lambda each: each.position)

    async def put_again(self, loop: LoopId) -> None:
        """Repair a loop, whether or not it has to be."""
        await self.program.beginnings.repair([self.app.loop(str(loop))], "lost")

    async def lose(self, loop: LoopId) -> None:
        """Take away the tokens of a loop that wait in the timers or are ready."""
        assert any(each.loop == loop for each in await self.all_tokens(losing=loop))

    async def crowd(self, tokens: Iterable[Token]) -> None:
        """Put more tokens of a loop, as a node does that hands one out twice."""
        for token in tokens:
            await self.timers.put(token)

    async def where(self, loop: LoopId) -> Where:
        """Where the token of a loop is, as an operator is told."""
        (where,) = [each.where for each in await self.survey.status() if each.loop.id == loop]
        return where

    async def history(self, loop: str | None = None) -> list[str]:
        """What the journal tells of a loop, in a word each."""
        return [entry.what async for entry in self.journal.entries(loop=loop)]

    def repairs(self) -> list[tuple[str, str]]:
        """What supervision has mended: loop and kind."""
        return [(str(event.loop), event.kind) for event in of(LoopRepaired, self.events)]

    async def tokens(self) -> int:
        found = await self.tokens_by_loop()
        return found.total() - found[SUPERVISION]

    async def publish(self, message: Message, routing_key: str, exchange: str = "") -> None:
        """Publish as a message of this key comes to its task, unless another exchange is named."""
        names = self.app.names
        exchange = exchange or (
            names.processor if routing_key.startswith(LOOP_KEY) else names.delayed
        )
        await self.broker.publish(message, exchange=exchange, routing_key=routing_key)

    async def parked(self) -> list[ParkedMessage]:
        return await self.failed.browse(self.app.tasks)

    async def waiting(self) -> int:
        """How many messages, but those of supervision, are in the queues, and in no hand."""
        names = self.app.names
        not_theirs = (
            *(names.journal, names.roster, names.snapshots, names.roll_call, names.presence),
            names.imprint,
        )
        queues = {queue.name for queue in self.app.topology().queues}.difference(not_theirs)
        there = [queue for name, queue in self.server.queues.items() if name in queues]
        letters = [letter for queue in there for letter in queue.letters()]
        return sum(claims_of(each.message).get("task") != SUPERVISION.task for each in letters)

    async def ready(self, queue: str) -> int:
        """How many messages are in a queue, which is there, and in no hand."""
        return (await self._depth(queue)).ready

    async def ready_for(self, task: str) -> int:
        """How many messages wait for a task, in no hand."""
        return await self.ready(self.app.names.processor_queue(task))

    async def consumers_of(self, task: str) -> int:
        return (await self._depth(self.app.names.processor_queue(task))).consumers

    async def _depth(self, queue: str) -> Depth:
        depth = await self.broker.depth(queue)
        assert depth is not None, f"there is no queue {queue}"
        return depth

    async def send(self, task: str, message_id: str | None = None, **args: Any) -> str:
        """Send a call of any task; return its ID."""
        return await self.app.outbox.send(task, args, Posting(message_id=message_id))

    def starts(self, loop: str | None = None) -> list[float]:
        """When each run started, of one loop or of all, in seconds since the beginning."""
        runs = [run for run in of(RunStarted, self.events) if loop in (None, str(run.loop))]
        return seconds_of([run.started_at for run in runs])


def seconds_of(moments: Sequence[datetime]) -> list[float]:
    return [round((moment - START).total_seconds(), 3) for moment in moments]


def hatched(
    delays: Sequence[timedelta], queue_type: QueueType
) -> list[tuple[timedelta, timedelta]]:
    """Send a message of each delay, all at once.

    Returns:
        Each delay and when its message came, in the order in which they came.
    """
    names, arrived = Names("test"), list[tuple[timedelta, timedelta]]()

    async def perform() -> None:
        loop, all_here = asyncio.get_running_loop(), asyncio.Event()
        began = loop.time()

        def receive(delivery: Delivery) -> None:
            after = timedelta(seconds=round(loop.time() - began, 4))
            arrived.append((delays[int(delivery.message.body)], after))
            if len(arrived) == len(delays):
                all_here.set()

        async with MemoryBroker() as broker:
            await broker.declare(topology("test", ["t"], called=["t"], queue_type=queue_type))
            await broker.consume(names.processor_queue("t"), receive, prefetch=len(delays))
            for number, delay in enumerate(delays):
                message = Message(str(number).encode())
                await send_again(broker, names, "t", message, delay, DEFAULT_TIMEOUT)
            await all_here.wait()

    run_virtually(perform())
    return arrived
