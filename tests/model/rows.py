"""What a table of models is made of: models, and rules that are taken out of one."""

from collections.abc import Generator, Mapping
from collections.abc import Set as AbstractSet
from contextlib import contextmanager
from dataclasses import dataclass
from types import ModuleType
from typing import Any, Generic, TypeVar
from unittest.mock import patch

B = TypeVar("B")
W = TypeVar("W")


@dataclass(frozen=True)
class Row(Generic[B, W]):
    """A model, and what is found in it.

    Attributes:
        states: how many there are.
        found: what goes wrong.
    """

    bounds: B
    states: int
    found: AbstractSet[W] = frozenset()

    def __str__(self) -> str:
        return str(self.bounds)


@dataclass(frozen=True)
class Removal(Generic[B, W]):
    """A rule that is not kept.

    Attributes:
        owner: of what is replaced: rules, the project's code; or, of what is a step or the
            broker's, the model.
        bounds: where the way to what goes wrong is short.
        shows: what goes wrong.
    """

    name: str
    what: str
    owner: ModuleType | type
    instead: Mapping[str, Any]
    bounds: B
    shows: AbstractSet[W]

    @contextmanager
    def taken_out(self) -> Generator[None]:
        """Meanwhile, the rule is not kept."""
        with patch.multiple(self.owner, **self.instead):
            yield
