"""A lock whose holder is gone, which the broker has not noticed: it holds nothing up."""

import asyncio
import re
from contextlib import AsyncExitStack, suppress
from datetime import timedelta

import pytest
from yarl import URL

from scheduler import Scheduler, Settings
from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.errors import BrokerUnavailable, Locked
from scheduler.events import Connected, LoopRepaired
from scheduler.protocol.topology import NEXT, next_to
from tests.contract.proxy import Proxy
from tests.contract.test_mutex import Register, taken_meanwhile
from tests.contract.wire import PATIENCE, eventually
from tests.integration.test_outages import Witness, working
from tests.kept import kept
from tests.rabbitmq import PrivateNode, Users
from tests.stage import program_of

LONG = timedelta(seconds=3)


async def wait_in_vain(broker: AmqpBroker, lock: str) -> None:
    with pytest.raises(Locked, match=lock):
        async with broker.mutex(lock, timeout=LONG):
            pytest.fail("two holders")


@pytest.fixture
def lock(namespace: str) -> str:
    return f"{namespace}.lock"


either = pytest.mark.parametrize("ending", ["", NEXT], ids=["the lock", "who is next"])


@either
async def test_a_holder_that_is_gone_holds_nobody_up(
    broker_url: str, lock: str, ending: str
) -> None:
    register = Register()
    async with AmqpBroker(broker_url) as broker, AmqpBroker(broker_url) as other:
        async with kept(broker_url, lock + ending), asyncio.timeout(PATIENCE):
            visits = [register.visit(each, lock) for each in (broker, other) * 3]
            await asyncio.gather(*visits)
        await register.visit(other, lock)
    assert (register.visits, register.most) == (7, 1)


@either
async def test_who_waits_has_its_turn_though_somebody_takes_it_again_and_again(
    broker_url: str, lock: str, ending: str
) -> None:
    connected = AmqpBroker(broker_url), AmqpBroker(broker_url)
    async with connected[0] as greedy, connected[1] as other, kept(broker_url, lock + ending):
        assert max(await taken_meanwhile(greedy, [other] * 3, lock)) < 4


async def test_it_stays_locked_while_who_is_next_has_it(broker_url: str, lock: str) -> None:
    async with AmqpBroker(broker_url) as broker, AmqpBroker(broker_url) as other:
        async with AsyncExitStack() as meanwhile:
            await meanwhile.enter_async_context(kept(broker_url, lock))
            async with broker.mutex(lock):
                await wait_in_vain(other, lock)
                await meanwhile.aclose()
                await wait_in_vain(other, lock)
        async with other.mutex(lock):
            pass


async def test_who_loses_his_connection_loses_his_place(
    broker_url: str, proxy: Proxy, lock: str
) -> None:
    through = str(URL(broker_url).with_port(proxy.port))
    async with AmqpBroker(broker_url) as broker, AmqpBroker(through) as other:
        async with broker.mutex(lock), asyncio.timeout(PATIENCE):
            waiting = asyncio.create_task(visited(other, lock))
            await eventually(lambda: is_locked(broker, next_to(lock)))
            proxy.cut()
            with pytest.raises(BrokerUnavailable, match="The connection to"):
                await waiting
        await visited(other, lock)


async def visited(broker: AmqpBroker, lock: str) -> None:
    async with broker.mutex(lock):
        pass


async def is_locked(broker: AmqpBroker, queue: str) -> bool:
    try:
        await broker.depth(queue)
    except Locked:
        return True
    return False


@either
async def test_where_both_are_kept_it_is_waited_for_until_one_is_free(
    broker_url: str, lock: str, ending: str
) -> None:
    (other,) = {lock, next_to(lock)} - {lock + ending}
    first, then = kept(broker_url, lock + ending), kept(broker_url, other)
    async with AmqpBroker(broker_url) as broker, asyncio.timeout(PATIENCE), then:
        async with first:
            await wait_in_vain(broker, lock)
            waiting = asyncio.create_task(visited(broker, lock))
            await asyncio.sleep(LONG.total_seconds())  # until it has seen both
            assert not waiting.done()
        await waiting


async def test_a_holder_that_takes_long_keeps_it_and_is_sent_nothing_that_stays(
    broker_url: str, lock: str
) -> None:
    connected = AmqpBroker(broker_url), AmqpBroker(broker_url)
    async with connected[0] as broker, connected[1] as other, broker.mutex(lock):
        await wait_in_vain(other, lock)
        depth = await broker.depth(lock)
    assert depth is not None
    assert depth.ready == 0


async def test_who_may_not_write_to_the_default_exchange_cannot_tell_and_waits_in_vain(
    broker_url: str, lock: str, users: Users
) -> None:
    ours = f"^{re.escape(lock)}"
    refused, allowed = (
        AmqpBroker(users.add(configure=ours, write=write, read=ours))
        for write in (ours, f"{ours}|^amq.default$")
    )
    async with refused, allowed, kept(broker_url, lock):
        await wait_in_vain(refused, lock)
        await wait_in_vain(refused, lock)
        async with allowed.mutex(lock, timeout=LONG):
            pass


# A broker that has really not noticed

KEEP = """
{{ok, Queue}} = rabbit_amqqueue:lookup(rabbit_misc:r(<<"/">>, queue, <<"{queue}">>)),
persistent_term:put(kept, Queue).
"""
PUT_BACK = """
Queue = persistent_term:get(kept),
case erlang:function_exported(rabbit_db_queue, set, 1) of
    true -> rabbit_db_queue:set(Queue);
    false -> [mnesia:dirty_write(Table, Queue) || Table <- [rabbit_queue, rabbit_durable_queue]]
end.
"""


@pytest.mark.timeout(120)
async def test_a_loop_is_repaired_though_the_broker_keeps_the_lock_of_one_that_is_gone(
    namespace: str,
) -> None:
    app = Scheduler(namespace, Settings(supervision_interval=timedelta(seconds=1)))
    witness, lock = Witness(app), app.names.lock

    @app.periodic(every="1h")
    async def rare() -> None: ...

    with PrivateNode(management=False) as node:
        async with working(app, node.url, supervises=True) as broker:
            async with AmqpBroker(node.url) as holder, holder.mutex(lock):
                await asyncio.to_thread(node.ctl, "eval", KEEP.format(queue=lock))
            await asyncio.to_thread(node.ctl, "eval", PUT_BACK)
            await broker.purge(app.names.hatchery(app.loop("rare").id))
            await witness.until(LoopRepaired, 1)
            await program_of(app, broker).verbs.pause(app.loop("rare"))
            told = f"the broker keeps {lock!r} of a holder that is gone"
            assert await told_of_lock(app, broker) == [told]
            await asyncio.to_thread(node.restart)
            await witness.until(Connected, 1)
            await eventually(lambda: is_free(app, broker))


async def is_free(app: Scheduler, broker: AmqpBroker) -> bool:
    with suppress(BrokerUnavailable):  # RabbitMQ 4.3 ends connections when it has just started
        return not await told_of_lock(app, broker)
    return False


@either
async def test_the_doctor_tells_which_of_the_two_is_kept(
    app: Scheduler, broker_url: str, ending: str
) -> None:
    queue = app.names.lock + ending
    async with AmqpBroker(broker_url) as broker, kept(broker_url, queue):
        told = f"the broker keeps {queue!r} of a holder that is gone"
        assert await told_of_lock(app, broker) == [told]


async def told_of_lock(app: Scheduler, broker: AmqpBroker) -> list[str]:
    findings = program_of(app, broker).doctor.examine()
    return [finding.detail async for finding in findings if finding.about == "lock"]
