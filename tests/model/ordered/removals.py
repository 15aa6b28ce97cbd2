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
    row(found={Wrong.ORDER}).without(
        "order, one consumer: the broker delivers to all at once", world, served=the_first_of
    ),
    row(found={Wrong.ORDER}).without(
        "order, leaving: who rests cancels its consumer, and keeps what it was delivered",
        InOrder,
        _leave=_cancel,
    ),
    row(messages=1, found={Wrong.BUSY}).without(
        "order, resting: who may not run a message yet takes it again at once",
        InOrder,
        _stay_away=nothing,
    ),
    row(messages=1, found={Wrong.BACKWARDS}).without(
        "the note, reading: nobody reads it", Order, resume=nothing
    ),
    row(messages=1, found={Wrong.EARLY}).without(
        "the note, its delay: only who noted a delay waits for its end", Order, resume=_at_once
    ),
    row(outages=3, messages=1, found={Wrong.ENDLESS}).without(
        "the note, runs that began: a run that begins is not noted", Order, begin=nothing
    ),
    row(messages=1, retries=0, stops=2, found={Wrong.FOREIGN}).without(
        "the note, runs that were interrupted: they count as if their processor had died",
        Order,
        uncount=nothing,
    ),
    row(outages=1, twins=True, found={Wrong.FOREIGN}).without(
        "the note, forgetting: it stays when its message is done with", Order, end=nothing
    ),
    row(outages=2, late=1, found={Wrong.FOREIGN}).without(
        "the note, whose: it is taken for one of any message", heads, _hash_of=always("any")
    ),
    row(found={Wrong.BACKWARDS}).without(
        "the note, back in its place: who has read it does not wait until it is there again",
        Heads,
        _until_back=nothing,
    ),
    row(outages=1, messages=1, found={Wrong.BACKWARDS}).without(
        "the note, in another's hand: who finds none does not look again", turns, LOOKS=1
    ),
)
