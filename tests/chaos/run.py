"""One storm, from its first fault to its verdict."""

import asyncio
from collections import Counter
from collections.abc import Callable, Mapping, Sequence

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.errors import BrokerError
from scheduler.protocol.epochs import LoopState
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.durations import SECOND
from scheduler.timing.pacing import backoff
from tests.chaos.arena import Arena, Member
from tests.chaos.faults import BY_NAME, OF_BROKERS, OF_CLUSTERS, Fault, name_of
from tests.chaos.storm import COUNTING, app
from tests.chaos.verdict import Strike, Verdict, judge, undone
from tests.stage import failed_of, roster_of
from tests.tokens import count

# A loop that has not run by now is dead.
LONGEST_WAIT = 300.0
LONGEST_PAUSE = 128 * SECOND
START = 60.0
# Of a cluster. What a node that fails leaves behind there may show after the next fault, and take
# three rounds of supervision: tokens that are kept back, publishes that are never confirmed.
AFTERMATH = 90.0
FAILING = [name_of(kind) for kind in (*OF_BROKERS, *OF_CLUSTERS)]


async def storm(
    arena: Arena, faults: Sequence[Fault], tell: Callable[[int, Strike], None]
) -> Verdict:
    """Strike with each fault in turn, tell of each; let everything come to rest; judge."""
    if not await arena.until(lambda: all(map(arena.up, arena.processors)), START):
        raise RuntimeError(f"No processor has started: see {arena.directory}.")
    for number, fault in enumerate(faults, 1):
        await endure(arena, fault)
        tell(number, arena.pulse.strikes[-1])
    await rest(arena)
    arena.look()
    least = AFTERMATH if arena.cluster is not None else 0.0
    return judge(
        arena.notes,
        loops=map(str, app.loops),
        counting=COUNTING,
        patience=lambda kind: max(BY_NAME[kind].patience, least),
        failing=FAILING,
    )


async def endure(arena: Arena, fault: Fault) -> None:
    """One fault, until every loop has run again and every process is back."""
    arena.note("strike", detail=name_of(type(fault)))
    await fault.strike(arena)
    await asyncio.sleep(fault.lasts)
    await fault.heal(arena)
    arena.note("heal")
    while await arena.until(lambda: healed(arena) or bool(fallen(arena)), LONGEST_WAIT):
        for member in (ended := fallen(arena)):
            arena.note("ended by itself", who=member.name, detail=str(await member.ended()))
            member.start()  # as Kubernetes would
        if not ended:
            return


def fallen(arena: Arena) -> list[Member]:
    return [member for member in arena.members if not member.alive]


def healed(arena: Arena) -> bool:
    last = arena.pulse.strikes[-1]
    return last.recovered_at is not None and all(map(arena.up, arena.members))


async def rest(arena: Arena) -> None:
    """Stop everything in good order, when all messages have come to their end; count."""
    await arena.stop_the_others()
    # A verb that a fault broke off may have left its loop to supervision.
    arena.note("calm")
    await arena.until(lambda: not (arena.pulse.awaited or undone(arena.notes)), LONGEST_WAIT)
    for processor in arena.processors:
        await processor.stop()
    async with arena.connected() as broker:
        for loop, tokens in (await counted(broker)).items():
            arena.note("tokens", loop=loop, detail=str(tokens))
        for message in await parked(broker):
            arena.note("parked", message=message)


async def counted(broker: AmqpBroker) -> Mapping[str, int]:
    """The tokens of each loop that are not void, once each is as expected, or after a long wait."""
    # A broker that was killed may owe a token that has hatched: it tries again by and by. But each
    # look counts as a delivery of what is looked at, and after many of those the broker parks it.
    for pause in backoff(SECOND, LONGEST_PAUSE, jitter=0):
        listing = await roster_of(app.names, broker).read()
        try:
            counts = await count(broker, app.names)
        except BrokerError:
            if pause >= LONGEST_PAUSE.total_seconds():
                raise
            await asyncio.sleep(pause)
            continue
        # A named one-off that is done may be on its way out, with a token or without one.
        leaving = {loop for loop in counts if loop.startswith("remember.") and counts[loop] <= 1}
        counts = Counter({loop: count for loop, count in counts.items() if loop not in leaving})
        active = [
            str(each.loop)
            for each in listing.there
            if each.entry.state is LoopState.ACTIVE
            and each.loop.task not in ("remember", SUPERVISION.task)
        ]
        if +counts == Counter(active) or pause >= LONGEST_PAUSE.total_seconds():
            return counts
        await asyncio.sleep(pause)
    raise AssertionError("a backoff has no end")


async def parked(broker: AmqpBroker) -> set[str]:
    """The ids of the one-off messages in the failed queues."""
    failed = failed_of(app.names, broker)
    tasks = [name for name, task in app.tasks.items() if task.called]
    found = await failed.browse(tasks, limit=100_000)
    return {parked.message.message_id or "" for parked in found}
