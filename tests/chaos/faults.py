"""What goes wrong: each fault strikes, lasts, and is healed.

A fault draws what it needs from the generator it is given, when it is made: so a seed repeats the
whole schedule, whatever happens meanwhile.
"""

import asyncio
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from datetime import timedelta
from random import Random

from scheduler.brokers.contract import Broker
from scheduler.control.loops import TOLERANCE
from scheduler.errors import QueueNotFound
from scheduler.protocol.hatchery import NO_WAIT, Timer, route, timers
from scheduler.protocol.tokens import encode, token_key
from tests.chaos.arena import HEARTBEAT, Arena, Member
from tests.chaos.storm import OPERATED, app
from tests.contract.proxy import Way
from tests.rabbitmq import PrivateNode
from tests.sweep import empty
from tests.tokens import lose, waiting

# Both ends notice a dead peer after three heartbeats.
UNNOTICED = 3 * HEARTBEAT
PERIODS = [timedelta(milliseconds=each) for each in (300, 500, 1000, 2000)]
LONGEST_PERIOD = 2.5
LONGEST_LOOK = 30.0
ON_THE_WAY = 6.0  # how long it may take until the moment for a fault comes


class Fault:
    """Something that goes wrong, and is put right again.

    Attributes:
        patience: within how many seconds of being healed every loop must have run again.
        between: how long it goes on, at least and at most.
    """

    patience = 10.0
    between = 0.0, 0.0

    def __init__(self, rng: Random) -> None:
        self._victim = rng.randrange(3)
        self.lasts = rng.uniform(*self.between)

    def victim(self, arena: Arena) -> Member:
        return arena.processors[self._victim]

    async def strike(self, arena: Arena) -> None:
        """Do it."""

    async def heal(self, arena: Arena) -> None:
        """Undo it. Returns when the cause is gone; what it caused may go on."""


class Calm(Fault):
    """Nothing goes wrong: how soon loops run again without it."""


class KillProcessor(Fault):
    """`kill -9`, at any moment."""

    async def strike(self, arena: Arena) -> None:
        await self.victim(arena).kill()

    async def heal(self, arena: Arena) -> None:
        self.victim(arena).start()


class KillAtStep(KillProcessor):
    """`kill -9` at a step of a settlement."""

    STEPS = (
        "RunStarted",
        "RunFinished",
        "SuccessorConfirmed",
        "RunSettled",
        "Escalated",
        "MessageParked",
    )

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._step = rng.choice(self.STEPS)

    async def strike(self, arena: Arena) -> None:
        await self.victim(arena).die_at(self._step, ON_THE_WAY)


class KillOperator(KillProcessor):
    """`kill -9` of the operator in the middle of a verb, when so much of it is confirmed.

    What he had begun is his successor's, or supervision's, to put right.
    """

    patience = 60.0

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._confirmed = rng.randint(1, 5)

    def victim(self, arena: Arena) -> Member:
        return arena.operator

    async def strike(self, arena: Arena) -> None:
        await self.victim(arena).die_at(f"confirmed {self._confirmed}", ON_THE_WAY)


class Freeze(Fault):
    """SIGSTOP of a processor for longer than the broker waits for its heartbeat; then SIGCONT."""

    between = UNNOTICED - 2, UNNOTICED + 2

    async def strike(self, arena: Arena) -> None:
        self.victim(arena).freeze()

    async def heal(self, arena: Arena) -> None:
        self.victim(arena).thaw()


class Replace(Fault):
    """SIGTERM of a processor, and a new one in its place."""

    async def strike(self, arena: Arena) -> None:
        await self.victim(arena).replace()


class Rollout(Fault):
    """A release with other schedules: seeded, then processors are replaced, one after another.

    Meanwhile connections are cut. One processor stays behind: those that come after it here, until
    the next release, work beside the others with the schedules that it has.
    """

    async def strike(self, arena: Arena) -> None:
        arena.release += 1
        await arena.seed()
        for processor in arena.processors:
            late = processor is self.victim(arena)
            await processor.replace(release=arena.release - late)
            self.victim(arena).proxy.cut()


class KillBroker(Fault):
    """`kill -9` of a node, which then starts again."""

    patience = 30.0

    def nodes(self, arena: Arena) -> Sequence[PrivateNode]:
        return [arena.nodes[self._victim % len(arena.nodes)]]

    def hit(self, node: PrivateNode) -> None:
        node.kill()

    def mend(self, node: PrivateNode) -> None:
        node.start()

    async def strike(self, arena: Arena) -> None:
        for node in self.nodes(arena):
            await asyncio.to_thread(self.hit, node)

    async def heal(self, arena: Arena) -> None:
        await asyncio.gather(*(asyncio.to_thread(self.mend, each) for each in self.nodes(arena)))


class RestartBroker(KillBroker):
    """A node is stopped in good order, and starts again."""

    def hit(self, node: PrivateNode) -> None:
        node.stop()


class DownBroker(KillBroker):
    """`kill -9` of a node, which is down for longer than a token may be late."""

    between = 12.0, 12.0


class FreezeBroker(KillBroker):
    """A node stands still for longer than anybody waits for it."""

    between = 5.0, 10.0

    def hit(self, node: PrivateNode) -> None:
        node.freeze()

    def mend(self, node: PrivateNode) -> None:
        node.thaw()


class FreezeLeader(FreezeBroker):
    """The node that leads a timer stands still, for longer than a token may be late."""

    between = TOLERANCE.total_seconds() + 1, TOLERANCE.total_seconds() + 5

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._queue = queue_of(rng.choice(PERIODS))

    async def strike(self, arena: Arena) -> None:
        listed = await asyncio.to_thread(arena.nodes[0].ctl, "list_queues", "name", "leader")
        leaders = dict(line.split("\t") for line in listed.splitlines())
        names = [node.name for node in arena.nodes]
        self._victim = names.index(leaders[self._queue])
        await super().strike(arena)


class KillEachBroker(KillBroker):
    """One node after another is killed and comes back, never two at a time."""

    def nodes(self, arena: Arena) -> Sequence[PrivateNode]:
        return arena.nodes

    def hit(self, node: PrivateNode) -> None:
        node.kill()
        node.start()

    def mend(self, node: PrivateNode) -> None:
        pass


class RollingRestart(KillEachBroker):
    """One node after another is stopped in good order and comes back, as at an upgrade."""

    def hit(self, node: PrivateNode) -> None:
        node.restart()


class KillTwoBrokers(KillBroker):
    """Two nodes of three at a time: there is no majority, until they come back."""

    def nodes(self, arena: Arena) -> Sequence[PrivateNode]:
        (spared,) = super().nodes(arena)
        return [node for node in arena.nodes if node is not spared]


class CutOffBroker(KillBroker):
    """A node is parted from the other two, and finds them again."""

    between = 0.5, 6.0

    async def strike(self, arena: Arena) -> None:
        assert arena.cluster is not None
        await asyncio.to_thread(arena.cluster.cut_off, *self.nodes(arena))

    async def heal(self, arena: Arena) -> None:
        assert arena.cluster is not None
        await asyncio.to_thread(arena.cluster.reconnect, *self.nodes(arena))


class MemoryAlarm(KillBroker):
    """The broker runs out of memory, so it thinks, and blocks all who publish."""

    patience = 10.0
    between = 0.0, 4.0
    COMMAND = "set_vm_memory_high_watermark"
    TOO_LITTLE, ENOUGH = "0.000001", "0.4"

    def hit(self, node: PrivateNode) -> None:
        node.ctl(self.COMMAND, self.TOO_LITTLE)

    def mend(self, node: PrivateNode) -> None:
        node.ctl(self.COMMAND, self.ENOUGH)


class DiskAlarm(MemoryAlarm):
    """The broker runs out of disk, so it thinks."""

    COMMAND = "set_disk_free_limit"
    TOO_LITTLE, ENOUGH = "1000000GB", "50MB"


class Cut(Fault):
    """A connection breaks after so many more bytes, in one direction: mostly in mid frame."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._victim = rng.randrange(5)
        self._octets = rng.randrange(3000)
        self._way = rng.choice(list(Way))

    def victim(self, arena: Arena) -> Member:
        return arena.members[self._victim]

    async def strike(self, arena: Arena) -> None:
        proxy = self.victim(arena).proxy
        proxy.cut_after(self._octets, self._way)
        if not await arena.until(lambda: not arena.up(self.victim(arena)), ON_THE_WAY):
            proxy.cut()  # so few bytes go over it


class HalfOpen(Cut):
    """A connection stays open, and swallows what is sent over it."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._ways = rng.choice([(Way.UP,), (Way.DOWN,), tuple(Way)])

    async def strike(self, arena: Arena) -> None:
        self.victim(arena).proxy.swallow(*self._ways)
        await arena.until(lambda: not arena.up(self.victim(arena)), ON_THE_WAY)


class Unplug(Fault):
    """All connections break, and nobody gets through for a while."""

    between = 0.0, 3.0

    async def strike(self, arena: Arena) -> None:
        for member in arena.members:
            member.proxy.closed = True
            member.proxy.cut()

    async def heal(self, arena: Arena) -> None:
        for member in arena.members:
            member.proxy.closed = False


class StepClock(Fault):
    """The clock of a processor is wrong by half a minute, until it is set right."""

    # A nominal time does not come twice: a loop that ran ahead of time waits until it is over.
    patience = 45.0
    between = 1.0, 3.0

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._wrong_by = rng.choice([-30.0, 30.0])

    async def strike(self, arena: Arena) -> None:
        self.victim(arena).set_clock_wrong(self._wrong_by)

    async def heal(self, arena: Arena) -> None:
        self.victim(arena).set_clock_right()
        # A loop may run once more, before it waits for the time that it was ahead.
        await asyncio.sleep(LONGEST_PERIOD)


class LoseToken(Fault):
    """Somebody takes the token of a loop out of its timer."""

    # It is found once it is overdue, by the next round of supervision.
    patience = LONGEST_PERIOD + 40.0

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        steady = [loop for loop in app.loops if str(loop) not in OPERATED]
        self._loop = rng.choice(steady)

    async def strike(self, arena: Arena) -> None:
        while True:
            # A look may never be answered, where the leader of a queue has just changed.
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_LOOK), arena.connected() as broker:
                    if await self._tamper(arena, broker):
                        return
            await asyncio.sleep(0.01)  # it is in hand

    async def _tamper(self, arena: Arena, broker: Broker) -> bool:
        """Do it, if there is a token; return whether there was."""
        arena.note("tampered", loop=str(self._loop))
        return bool(await lose(broker, app.names, self._loop))


class CopyToken(LoseToken):
    """Somebody publishes a token of a loop twice more."""

    patience = 60.0

    async def _tamper(self, arena: Arena, broker: Broker) -> bool:
        tokens = await waiting(broker, app.names, [self._loop.task])
        found = [token for token in tokens if token.loop == self._loop]
        if not found:
            return False
        arena.note("tampered", loop=str(self._loop))
        token = max(found, key=lambda each: each.position)
        for _ in range(2):
            await broker.publish(
                encode(token, app.namespace),
                exchange=app.names.processor,
                routing_key=token_key(self._loop, NO_WAIT.key),
            )
        return True


class PurgeTimers(Fault):
    """All that waits in the timers of tokens is gone: every loop goes on, and supervision's."""

    patience = 60.0

    def queues(self) -> Sequence[str]:
        return [app.names.timer(timer) for timer in timers()]

    async def strike(self, arena: Arena) -> None:
        async with arena.connected() as broker:
            for queue in self.queues():
                await self._empty(broker, queue)

    async def _empty(self, broker: Broker, queue: str) -> None:
        with suppress(QueueNotFound):
            await empty(broker, queue)


class DeleteTimer(PurgeTimers):
    """Somebody deletes the queue of a timer, with all that waits in it."""

    def __init__(self, rng: Random) -> None:
        super().__init__(rng)
        self._queue = queue_of(rng.choice([*PERIODS, app.settings.supervision_interval]))

    def queues(self) -> Sequence[str]:
        return [self._queue]

    async def _empty(self, broker: Broker, queue: str) -> None:
        await broker.delete(queue)


def queue_of(period: timedelta) -> str:
    """The timer in which what has such a period waits first."""
    digits = enumerate(route(period).digits)
    return next(app.names.timer(Timer(unit, count)) for unit, count in digits if count)


# How often each kind comes, beside the others.
OF_PROCESSORS: Mapping[type[Fault], int] = {
    KillProcessor: 6,
    KillAtStep: 8,
    Freeze: 3,
    KillOperator: 8,
    Replace: 4,
    Rollout: 3,
    Cut: 8,
    HalfOpen: 3,
    Unplug: 3,
    MemoryAlarm: 2,
    DiskAlarm: 2,
    StepClock: 1,
}
OF_BROKERS: Mapping[type[Fault], int] = {
    KillBroker: 3,
    RestartBroker: 2,
    FreezeBroker: 2,
    DownBroker: 2,
}
OF_CLUSTERS: Mapping[type[Fault], int] = {
    KillEachBroker: 1,
    RollingRestart: 1,
    KillTwoBrokers: 2,
    CutOffBroker: 3,
    FreezeLeader: 2,
}
# Only supervision puts these right.
OF_TOKENS: Mapping[type[Fault], int] = {
    LoseToken: 2,
    CopyToken: 2,
    PurgeTimers: 2,
    DeleteTimer: 2,
}


def name_of(kind: type[Fault]) -> str:
    """`KillProcessor` is kill-processor."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", kind.__name__).lower()


BY_NAME: Mapping[str, type[Fault]] = {
    name_of(kind): kind for kind in (Calm, *OF_PROCESSORS, *OF_BROKERS, *OF_CLUSTERS, *OF_TOKENS)
}


def schedule_of(seed: int, count: int, kinds: Mapping[type[Fault], int]) -> list[Fault]:
    """The faults of a seed, after a few calm moments to compare them with."""
    rng = Random(seed)
    drawn = rng.choices(list(kinds), list(kinds.values()), k=count)
    return [*(Calm(rng) for _ in range(3)), *(kind(rng) for kind in drawn)]
