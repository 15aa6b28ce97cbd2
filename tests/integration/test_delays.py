"""The timers of calls on a real broker: on time, whatever is sent beside it and whatever dies."""

import asyncio
import signal
import statistics
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from time import monotonic

import pytest

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import RunReturned, RunSettled
from tests.contract.wire import eventually
from tests.integration.conftest import Field
from tests.integration.shop import Run, Shop
from tests.warm import Program

pytestmark = pytest.mark.timeout(180)

CLERK = f"{Path(__file__).parent / 'apps' / 'clerk.py'}:app"
STEP = 0.1
# What a busy machine may add to a delay, on top of the step of the timers.
SLACK = 2.0
# After this the broker tries again what it could not dead-letter, at the earliest.
HELD_UP = 60.0


def random_delays(count: int) -> list[float]:
    random = Random(1)
    return [random.randint(100, 3000) / 1000 for _ in range(count)]


def lateness(runs: list[Run]) -> list[float]:
    return [(run.at - run.due_at).total_seconds() for run in runs]


async def test_messages_of_random_delays_all_arrive_and_none_is_early(
    shop: Shop, record_property: Callable[[str, object], None]
) -> None:
    delays = random_delays(200)
    async with shop.app, shop.working("work"):
        began = monotonic()
        await asyncio.gather(
            *(shop.work.send_later(f"{delay}s", n) for n, delay in enumerate(delays))
        )
        sending = monotonic() - began  # a delay counts from its send, which waits for the others
        await shop.until(lambda: shop.count(RunSettled) == len(delays))
    assert Counter(run.value for run in shop.runs) == Counter(range(len(delays)))
    late = lateness(shop.runs)
    cuts = statistics.quantiles(late, n=100)
    record_property("lateness p50/p99, ms", f"{cuts[49] * 1000:.0f}/{cuts[98] * 1000:.0f}")
    assert min(late) >= 0
    assert cuts[49] < STEP + SLACK + sending


async def test_what_waits_is_held_by_the_broker_and_by_no_processor(shop: Shop) -> None:
    queue = f"{shop.app.names.prefix}.later.2x6h"  # though some time passes until it is sent
    async with shop.app, shop.working("work") as broker:
        await asyncio.gather(*(shop.work.send_later("13h", n) for n in range(100)))
        depth = await broker.depth(queue)
        assert depth is not None
        assert (depth.ready, depth.consumers) == (100, 0)
        await shop.work.send(1)
        await shop.until(lambda: shop.count(RunSettled) == 1)
    assert shop.count(RunReturned) == 0


async def test_messages_to_a_task_that_was_deleted_are_kept_and_delay_nobody(shop: Shop) -> None:
    old = Shop(shop.url, shop.namespace)

    @old.app.task()
    async def gone() -> None: ...

    await old.seed()
    names = old.app.names
    async with old.app, shop.app, shop.working("work") as broker:
        await asyncio.gather(*(gone.send_later("1.1s") for _ in range(50)))
        await broker.delete(names.processor_queue("gone"))
        await broker.delete(names.failed_queue("gone"))
        await asyncio.gather(*(shop.work.send_later("1.2s", n) for n in range(50)))
        await shop.until(lambda: len(shop.runs) == 50)
        late = lateness(shop.runs)
        assert min(late) >= 0
        assert max(late) < HELD_UP

        await shop.until_parked(broker, 50)
        lost = await shop.parked(broker)
    assert {(each.queue, each.task, each.reason) for each in lost} == {
        (names.failed, "gone", "unknown-task")
    }


# What dies meanwhile


@pytest.fixture
def clerks(shop: Shop, tmp_path: Path) -> Iterator[Field]:
    """Processes of the clerk's app, and what they wrote down."""
    field = Field(shop.url, shop.namespace, "quorum", tmp_path / "record", app=CLERK)
    yield field
    field.kill()


def work(clerks: Field, **environment: str) -> Program:
    """Start a processor that takes messages from now on."""
    return clerks.start("run", "--tasks", "work,fails", "--json", **environment)


async def test_every_message_is_run_though_a_processor_is_killed(shop: Shop, clerks: Field) -> None:
    def seen() -> set[int]:
        return {note["n"] for note in clerks.notes("work")}

    delays = random_delays(300)
    doomed = work(clerks)
    async with shop.app:
        await asyncio.gather(
            *(shop.work.send_later(f"{delay}s", n) for n, delay in enumerate(delays))
        )
    await clerks.until(lambda: len(seen()) >= 20)
    work(clerks)
    doomed.send_signal(signal.SIGKILL)
    assert doomed.wait(timeout=30) == -signal.SIGKILL
    await clerks.until(lambda: len(seen()) == len(delays))
    assert all(note["late"] >= 0 for note in clerks.notes("work"))


@pytest.mark.parametrize(
    ("moment", "attempts", "copies"),
    [
        # Killed in mid run, or before anything was published: at least once means again.
        ("RunStarted@1", [1, 2, 3], 1),
        ("RunFinished@1", [1, 1, 2, 3], 1),
        ("RunFinished@3", [1, 2, 3, 3], 1),
        # Killed between the confirmed retry and the ack: the one that is redelivered is run again.
        ("SuccessorConfirmed@1", [1, 1, 2, 2, 3, 3], 2),
        ("RunSettled@1", [1, 1, 2, 2, 3, 3], 2),  # acks are written together, a moment later
        # Killed between the confirmed parking and the ack.
        ("MessageParked@3", [1, 2, 3, 3], 2),
        ("Escalated@3", [1, 2, 3, 3], 2),
    ],
)
async def test_a_message_that_fails_for_ever_is_not_lost_at_any_moment(
    shop: Shop, clerks: Field, moment: str, attempts: list[int], copies: int
) -> None:
    name = await shop.fails.send(1)
    await shop.app.outbox.close()
    doomed = work(clerks, KILL_AT=moment)
    await clerks.until(lambda: bool(clerks.notes("killed")))
    assert doomed.wait(timeout=30) == -signal.SIGKILL
    work(clerks)
    names = shop.app.names
    async with AmqpBroker(shop.url) as broker:

        async def all_parked() -> bool:
            depth = await broker.depth(names.failed_queue("fails"))
            return depth is not None and depth.ready >= copies

        await eventually(all_parked)
        parked = await shop.failed(broker).browse(["fails"])
    assert len(parked) == copies
    assert {each.message.message_id for each in parked} == {name}
    assert {(each.reason, each.error, each.attempts) for each in parked} == {
        ("exhausted", "ValueError: boom 1", 3)
    }
    assert sorted(note["attempt"] for note in clerks.notes("fails")) == attempts
