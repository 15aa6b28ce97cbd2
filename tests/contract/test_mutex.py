"""Statement 6: one holder, and no lock outlives its holder's connection."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta

import pytest

from scheduler.brokers.contract import Broker
from scheduler.errors import BrokerUnavailable, Locked
from tests.contract.wire import PATIENCE, Wire, eventually, send, take

MOMENT = timedelta(milliseconds=200)


class Register:
    """Who is inside now, and how many there were."""

    def __init__(self) -> None:
        self.inside = 0
        self.most = 0
        self.visits = 0

    async def visit(self, broker: Broker, name: str) -> None:
        async with broker.mutex(name):
            self.inside += 1
            self.visits += 1
            self.most = max(self.most, self.inside)
            await broker.depth(name + ".nothing")  # to and fro, so that others get their chance
            self.inside -= 1


async def test_one_of_twenty_at_a_time(wire: Wire) -> None:
    name, register = wire.name("lock"), Register()
    brokers = [await wire.connect() for _ in range(4)]
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(register.visit(brokers[n % 4], name) for n in range(20)))
    assert (register.visits, register.most) == (20, 1)


async def test_tasks_of_one_connection_exclude_each_other(wire: Wire, broker: Broker) -> None:
    name, register = wire.name("lock"), Register()
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*(register.visit(broker, name) for _ in range(5)))
    assert (register.visits, register.most) == (5, 1)


async def test_locks_of_different_names_do_not_exclude_each_other(
    wire: Wire, broker: Broker
) -> None:
    async with broker.mutex(wire.name("lock")), broker.mutex(wire.name("lock"), timeout=MOMENT):
        pass


async def test_who_waits_has_its_turn_though_somebody_takes_it_again_and_again(
    wire: Wire, broker: Broker
) -> None:
    name, others = wire.name("lock"), [await wire.connect() for _ in range(2)]
    assert max(await taken_meanwhile(broker, others * 3, name)) < 10


async def taken_meanwhile(greedy: Broker, others: Sequence[Broker], name: str) -> list[int]:
    """How often somebody who takes it again and again has had it, until each of the others has."""
    taken, times, news = 0, list[int](), asyncio.Event()

    async def take_again_and_again() -> None:
        nonlocal taken
        while True:
            async with greedy.mutex(name):
                taken += 1
                news.set()
                await asyncio.sleep(0.1)

    taking = asyncio.create_task(take_again_and_again())
    try:
        for other in others:
            news.clear()
            await news.wait()
            before = taken
            async with other.mutex(name):
                times.append(taken - before)
    finally:
        taking.cancel()
        await asyncio.wait([taking])
    return times


async def test_waiting_has_an_end(wire: Wire, broker: Broker) -> None:
    name, other = wire.name("lock"), await wire.connect()
    async with broker.mutex(name):
        for contender in other, broker:
            with pytest.raises(Locked, match=name):
                async with contender.mutex(name, timeout=MOMENT):
                    pytest.fail("two holders")
    async with other.mutex(name):
        pass


async def test_waiting_in_vain_does_no_harm(wire: Wire, broker: Broker) -> None:
    name, queue = wire.name("lock"), await wire.declare_queue()
    contenders = [await wire.connect() for _ in range(4)]
    await send(broker, queue, *[b"x"] * 4)
    held = [await take(contender, queue) for contender in contenders]
    async with broker.mutex(name), asyncio.timeout(PATIENCE):
        await asyncio.gather(*(wait_in_vain(contender, name) for contender in contenders))
    # Giving up on a lock must not break the connection, which takes its deliveries with it.
    for delivery in held:
        assert not delivery.lost.done()
        await delivery.ack()


async def wait_in_vain(broker: Broker, name: str) -> None:
    for _ in range(20):
        with pytest.raises(Locked):
            async with broker.mutex(name, timeout=MOMENT / 4):
                pytest.fail("two holders")


async def test_an_error_of_the_holder_frees_the_lock(wire: Wire, broker: Broker) -> None:
    name = wire.name("lock")
    with pytest.raises(ZeroDivisionError):
        async with broker.mutex(name):
            _ = 1 / 0
    async with (await wire.connect()).mutex(name):
        pass


async def test_a_closed_connection_frees_its_lock(wire: Wire, broker: Broker) -> None:
    name, held, over = wire.name("lock"), asyncio.Event(), asyncio.Event()
    holder = wire.make_broker()

    async def hold() -> None:
        async with holder.mutex(name):
            held.set()
            await over.wait()

    async with holder:
        holding = asyncio.create_task(hold())
        await held.wait()
    async with broker.mutex(name, timeout=timedelta(seconds=PATIENCE)):
        # The old holder leaves late, and must not take the lock of the new one with it.
        over.set()
        await asyncio.wait([holding])
        with pytest.raises(Locked):
            async with (await wire.connect()).mutex(name, timeout=MOMENT):
                pytest.fail("two holders")
    await holding


async def test_a_cut_frees_the_lock(wire: Wire, broker: Broker) -> None:
    name, other = wire.name("lock"), await wire.connect()
    async with broker.mutex(name):
        await wire.cut()
        await eventually(lambda: can_lock(other, name))


async def can_lock(broker: Broker, name: str) -> bool:
    try:
        async with broker.mutex(name):
            return True
    except BrokerUnavailable:  # it has not noticed the cut before
        return False
