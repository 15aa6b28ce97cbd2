"""A task whose number of shards changes under load, while seeds and processors are killed."""

from collections import Counter, defaultdict
from typing import Any

import pytest

from scheduler import Every, Scheduler, Settings
from scheduler.brokers.contract import Broker
from scheduler.protocol.tokens import LoopId
from scheduler.protocol.topology import Names
from tests.integration.conftest import Field, at_rest, ready
from tests.tokens import count

KEYS = [f"k{number}" for number in range(20)]
MOST = 4


@pytest.fixture
def sharded(field_: Field) -> Field:
    field_.declares = the_app(field_)[0].topology()
    return field_


def the_app(field: Field) -> tuple[Scheduler, Any]:
    """The app with its most shards, to start loops and to clear up."""
    url: Any = field.url
    app = Scheduler(field.namespace, Settings(broker_url=url, queue_type=field.queue_type))

    async def nothing() -> None: ...

    return app, app.task(name="poll", shards=MOST)(nothing)


@pytest.mark.timeout(300)
async def test_every_loop_continues_while_its_queues_change(sharded: Field, broker: Broker) -> None:
    async def until_all_ran(times: int) -> None:
        """Wait until each loop has ended so many more runs."""
        before = Counter(note["loop"] for note in sharded.notes("end"))

        def all_ran() -> bool:
            now = Counter(note["loop"] for note in sharded.notes("end"))
            return all(now[f"poll.{key}"] - before[f"poll.{key}"] >= times for key in KEYS)

        await sharded.until(all_ran, seconds=60)

    sharded.call("seed", SHARDS="1")
    app, poll = the_app(sharded)
    async with app:
        await poll.start_many(dict.fromkeys(KEYS, Every("500ms")))
    old = [sharded.start("run", SHARDS="1") for _ in range(2)]
    await until_all_ran(2)
    for shards in "4", "2", "1":
        for after in 2, 4, 6:
            await sharded.until_killed("seed", SHARDS=shards, KILL_AFTER=str(after))
        sharded.call("seed", SHARDS=shards)
        new = [sharded.start("run", SHARDS=shards) for _ in range(2)]
        old[0].kill()
        old[1].terminate()
        sharded.output_of(old[1])
        old[0].wait(timeout=30)
        sharded.call("seed", SHARDS=shards)
        await until_all_ran(2)
        old = new
    sharded.stop()

    names = Names(sharded.namespace)
    loops = [LoopId("poll", key) for key in KEYS]
    assert await at_rest(lambda: count(broker, names, loops)) == dict.fromkeys(map(str, loops), 1)
    queues = names.processor_queues("poll", MOST)
    assert [await broker.depth(queue) for queue in queues[1:]] == [None] * (MOST - 1)
    assert await ready(broker, names.failed, names.failed_queue("poll")) == 0
    check_runs(sharded.notes("start") + sharded.notes("end"))


def check_runs(notes: list[dict[str, Any]]) -> None:
    """No tick was left out, or run twice but for a kill; no runs of a loop overlapped."""
    ended, running = defaultdict[str, list[int]](list), dict[str, int]()
    seen = set[tuple[str, int]]()
    for note in sorted(notes, key=lambda note: note["at"]):
        loop, seq = note["loop"], note["seq"]
        if note["what"] == "end":
            ended[loop].append(seq)
            running.pop(loop, None)
            continue
        is_again = (loop, seq) in seen
        assert loop not in running or (is_again and note["redelivered"]), note
        assert not is_again or note["redelivered"], note
        seen.add((loop, seq))
        running[loop] = seq
    for loop, seqs in ended.items():
        assert sorted(set(seqs)) == list(range(max(seqs) + 1)), loop
