"""Rules of ordered queues that are taken out, each by putting something else in its place."""

from dataclasses import replace
from typing import Any

from scheduler.processor.intake import InOrder, Order
from scheduler.processor.runs import Run
from scheduler.queues import heads
from scheduler.queues.heads import Heads
from tests.model.ordered import turns, world
from tests.model.ordered.table import row
from tests.model.ordered.world import Wrong
from tests.model.removals import always, the_first_of
from tests.model.rows import without


async def nothing(*_: Any) -> None: ...


resume = Order.resume


async def _at_once(self: Order, run: Run) -> None:
    await resume(self, run)
    run.head = replace(run.head, due_at=None)


async def _cancel(self: InOrder) -> None:
    inside: Any = self
    consumer, inside.consumer = inside.consumer, None
    await consumer.cancel()


REMOVALS = (
    without(
        "order, one consumer: the broker delivers to all at once",
        row(found={Wrong.ORDER}),
        world,
        served=the_first_of,
    ),
    without(
        "order, leaving: who rests cancels its consumer, and keeps what it was delivered",
        row(found={Wrong.ORDER}),
        InOrder,
        _leave=_cancel,
    ),
    without(
        "order, resting: who may not run a message yet takes it again at once",
        row(messages=1, found={Wrong.BUSY}),
        InOrder,
        _rest=always(0.0),
    ),
    without(
        "the note, reading: nobody reads it",
        row(messages=1, found={Wrong.BACKWARDS}),
        Order,
        resume=nothing,
    ),
    without(
        "the note, its delay: only who noted a delay waits for its end",
        row(messages=1, found={Wrong.EARLY}),
        Order,
        resume=_at_once,
    ),
    without(
        "the note, runs that began: a run that begins is not noted",
        row(outages=3, messages=1, found={Wrong.ENDLESS}),
        Order,
        begin=nothing,
    ),
    without(
        "the note, runs that were interrupted: they count as if their processor had died",
        row(messages=1, retries=0, stops=2, found={Wrong.FOREIGN}),
        Order,
        uncount=nothing,
    ),
    without(
        "the note, forgetting: it stays when its message is done with",
        row(outages=1, twins=True, found={Wrong.FOREIGN}),
        Order,
        end=nothing,
    ),
    without(
        "the note, whose: it is taken for one of any message",
        row(outages=2, late=1, found={Wrong.FOREIGN}),
        heads,
        _hash_of=always("any"),
    ),
    without(
        "the note, back in its place: who has read it does not wait until it is there again",
        row(found={Wrong.BACKWARDS}),
        Heads,
        _until_back=nothing,
    ),
    without(
        "the note, in another's hand: who finds none does not look again",
        row(outages=1, messages=1, found={Wrong.BACKWARDS}),
        turns,
        LOOKS=1,
    ),
)
