"""What a search of a model has found."""

from dataclasses import dataclass
from typing import Generic, TypeVar

W = TypeVar("W")
M = TypeVar("M")


@dataclass(frozen=True)
class Check(Generic[W, M]):
    """What was found.

    Attributes:
        complete: whether all states were reached.
        found: what is wrong, each with the moves that lead there.
    """

    states: int
    complete: bool
    seconds: float
    found: dict[W, list[M]]
