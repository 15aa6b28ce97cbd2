"""What happens to the lock, and what is found: nothing; and what goes wrong without each rule."""

from collections.abc import Callable, Generator
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

from scheduler.brokers.amqp.mutex import Hold, Holder, Mutexes
from tests.model.check import Check
from tests.model.lock.checker import check
from tests.model.lock.contender import Contender, requests_after
from tests.model.lock.world import Move, Wrong


@dataclass(frozen=True)
class Row:
    """A model, and what is found in it.

    Attributes:
        contenders: how many want the lock, again and again.
        kept: how many queues of holders that are gone the broker may keep at once.
        states: how many there are.
        found: what goes wrong.
    """

    contenders: int
    kept: int
    states: int
    found: AbstractSet[Wrong] = frozenset()

    def check(self) -> Check[Wrong, Move]:
        """See what is found."""
        return check(self.contenders, self.kept)

    def __str__(self) -> str:
        return f"the lock, {self.contenders} contenders" + f", kept {self.kept}" * bool(self.kept)


SMALL = (
    Row(2, kept=0, states=516),
    Row(2, kept=1, states=9_684),
    Row(2, kept=2, states=13_190),
    Row(3, kept=0, states=12_942),
)
"""A second each."""

LARGE = (
    Row(3, kept=1, states=619_706),
    Row(3, kept=2, states=758_034),
)
"""A minute or two each."""


@dataclass(frozen=True)
class Removal:
    """A rule that is not kept.

    Attributes:
        owner: whose method is replaced, and what by.
        shows: what goes wrong.
    """

    name: str
    what: str
    owner: type
    method: str
    instead: Callable[..., Any]
    shows: AbstractSet[Wrong]
    kept: int = 1

    @contextmanager
    def taken_out(self) -> Generator[None]:
        """Meanwhile, the rule is not kept."""
        requests_after.cache_clear()
        with patch.object(self.owner, self.method, self.instead):
            yield
        requests_after.cache_clear()

    def check(self) -> Check[Wrong, Move]:
        """See what is wrong without it."""
        with self.taken_out():
            return check(2, self.kept, until=self.shows)


real: Any = Mutexes
asked: Any = Contender
taken, holder_of = real._taken, asked._holder_of


async def _only_itself(self: Mutexes, name: str, deadline: float) -> Hold | None:
    hold = await taken(self, name, deadline)
    return hold and hold._replace(queue=name)


async def _not_looked(*args: Any) -> Holder:
    holder = await holder_of(*args)
    return Holder.ANOTHER if holder is Holder.GONE else holder


async def _still_so(*_: Any) -> bool:
    return True


async def _the_same(*_: Any) -> int:
    return 0


REMOVALS = (
    Removal(
        "the lock, kept",
        "who waits does not look",
        Contender,
        "_holder_of",
        _not_looked,
        {Wrong.STUCK},
    ),
    Removal(
        "the lock, held by who is next",
        "who is next does not stay so where the lock is kept",
        Mutexes,
        "_taken",
        _only_itself,
        {Wrong.TWO},
    ),
    Removal(
        "the lock, where next is kept",
        "who has taken it does not look whether that is still so",
        Contender,
        "_is_kept",
        _still_so,
        {Wrong.TWO},
        kept=2,
    ),
    Removal(
        "the lock, over one connection",
        "who has lost his connection goes on",
        Contender,
        "ready",
        _the_same,
        {Wrong.TWO},
    ),
)
