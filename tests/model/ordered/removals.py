"""Rules of ordered queues that are taken out, each by putting something else in its place."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from scheduler.processor.intake import InOrder
from scheduler.processor.pipeline import Order
from scheduler.processor.runs import Run
from scheduler.queues import heads
from scheduler.queues.heads import Heads
from tests.model import rows
from tests.model.breadth import Check
from tests.model.ordered import turns, world
from tests.model.ordered.state import Bounds, Budget
from tests.model.ordered.world import Move, Wrong, check


class Removal(rows.Removal[Bounds, Wrong]):
    """A rule of ordered queues that is not kept."""

    def check(self) -> Check[Wrong, Move]:
        """See what is wrong without it."""
        with self.taken_out():
            return check(self.bounds, until=self.shows)


def nothing(answer: Any = None) -> Callable[..., Any]:
    async def instead(*_: Any) -> Any:
        return answer

    return instead


resume = Order.resume


async def _at_once(self: Order, run: Run) -> None:
    await resume(self, run)
    run.head = replace(run.head, due_at=None)


async def _cancel(self: InOrder) -> None:
    inside: Any = self
    consumer, inside.consumer = inside.consumer, None
    await consumer.cancel()


REMOVALS = (
    Removal(
        "order, one consumer",
        "the broker delivers to all at once",
        world,
        {"served": lambda consumers: consumers},  # pyright: ignore[reportUnknownLambdaType]
        Bounds(),
        {Wrong.ORDER},
    ),
    Removal(
        "order, leaving",
        "who rests cancels its consumer, and keeps what it was delivered",
        InOrder,
        {"_leave": _cancel},
        Bounds(),
        {Wrong.ORDER},
    ),
    Removal(
        "order, resting",
        "who may not run a message yet takes it again at once",
        InOrder,
        {"_rest": lambda *_: 0.0},  # pyright: ignore[reportUnknownLambdaType]
        Bounds(messages=1),
        {Wrong.BUSY},
    ),
    Removal(
        "the note, reading",
        "nobody reads it",
        Order,
        {"resume": nothing()},
        Bounds(messages=1),
        {Wrong.BACKWARDS},
    ),
    Removal(
        "the note, its delay",
        "only who noted a delay waits for its end",
        Order,
        {"resume": _at_once},
        Bounds(messages=1),
        {Wrong.EARLY},
    ),
    Removal(
        "the note, runs that began",
        "a run that begins is not noted",
        Order,
        {"begin": nothing()},
        Bounds(Budget(outages=3), messages=1),
        {Wrong.ENDLESS},
    ),
    Removal(
        "the note, forgetting",
        "it stays when its message is done with",
        Order,
        {"end": nothing()},
        Bounds(Budget(outages=1), twins=True),
        {Wrong.FOREIGN},
    ),
    Removal(
        "the note, whose",
        "it is taken for one of any message",
        heads,
        {"_hash_of": lambda *_: "any"},  # pyright: ignore[reportUnknownLambdaType]
        Bounds(Budget(outages=2, late=1)),
        {Wrong.FOREIGN},
    ),
    Removal(
        "the note, back in its place",
        "who has read it does not wait until it is there again",
        Heads,
        {"_until_back": nothing()},
        Bounds(Budget(outages=1)),
        {Wrong.BACKWARDS},
    ),
    Removal(
        "the note, in another's hand",
        "who finds none does not look again",
        turns,
        {"LOOKS": 1},
        Bounds(Budget(outages=1), messages=1),
        {Wrong.BACKWARDS},
    ),
)
