"""What a table of models is made of: models, and rules that are taken out of one."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import Enum
from types import ModuleType
from typing import Any
from unittest.mock import patch

from tests.model.breadth import Breadth, Check
from tests.model.state import Budget


@dataclass(frozen=True)
class Row:
    """A model, and what is found in it.

    Attributes:
        search: of all states within these bounds.
        found: what goes wrong.
        states: how many there are.
    """

    search: Callable[[Any], Breadth[Any, Any, Any]]
    bounds: object
    found: AbstractSet[Enum]
    states: int

    def __str__(self) -> str:
        return str(self.bounds)

    def check(self, until: AbstractSet[Enum] = frozenset()) -> Check[Any, Any]:
        """Reach all states, and see what is wrong; end where these have been found."""
        return self.search(self.bounds).check(until)

    def without(self, what: str, owner: ModuleType | type, **instead: Any) -> "Removal":
        """Return the removal of a rule, by what is put in its place."""
        return Removal(what, self, owner, instead)


@dataclass(frozen=True)
class Removal:
    """A rule that is not kept.

    Attributes:
        what: the name of the rule, and what is done in its place.
        row: where the way to what goes wrong is short.
        owner: of what is replaced: rules, the project's code; or, of what is a step or the
            broker's, the model.
    """

    what: str
    row: Row
    owner: ModuleType | type
    instead: Mapping[str, Any]

    def check(self) -> Check[Any, Any]:
        """See what is wrong without it."""
        with patch.multiple(self.owner, **self.instead):
            return self.row.check(self.row.found)


def rows_of(
    search: Callable[[Any], Breadth[Any, Any, Any]], bounds: type[Any]
) -> Callable[..., Row]:
    """Return what makes the rows of a table: of bounds, and of how often what may go wrong."""

    def row(
        *verbs: object, states: int = 0, found: AbstractSet[Enum] = frozenset(), **limits: Any
    ) -> Row:
        budget = Budget(**{what: limits.pop(what) for what in Budget._fields if what in limits})
        limits |= {"verbs": verbs} if verbs else {}
        return Row(search, bounds(budget=budget, **limits), found, states)

    return row
