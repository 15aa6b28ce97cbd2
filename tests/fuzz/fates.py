"""What has to become of a message, told from what it was made of: not by reading it as we do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto

from tests.fuzz.raw import WRONG, Value

LATEST_MS = 221_845_392_000_000  # the year 9000
MOST = 2**62


class Fate(Flag):
    """How a message ends: each copy of it in one of these ways, once.

    ACKED is what becomes of a token without a run: it is void, or exchanged, or waits on.
    """

    RUN = auto()
    PARKED = auto()
    ACKED = auto()
    DROPPED = auto()


EITHER = Fate.RUN | Fate.PARKED


@dataclass(frozen=True)
class Whole:
    """A header that has to be a whole number within limits."""

    low: int = 0
    high: int = LATEST_MS
    required: bool = False
    nullable: bool = False

    def takes(self, told: object) -> bool:
        if told is None:
            return self.nullable
        return isinstance(told, int) and self.low <= told <= self.high


@dataclass(frozen=True)
class Text:
    """A header that has to be a text; one of these, if any are given."""

    among: tuple[str, ...] = ()
    required: bool = False
    nullable: bool = False

    def takes(self, told: object) -> bool:
        if told is None:
            return self.nullable
        return isinstance(told, str) and (not self.among or told in self.among)


Rules = Mapping[str, Whole | Text]
VERBS = "seeded", "paused", "resumed", "triggered", "rescheduled", "repaired", "removed"
ENDINGS = "succeeded", "retried", "escalated", "stopped", "skipped"
RETRIED: Rules = {
    "due-at-ms": Whole(nullable=True),
    "attempt": Whole(high=MOST),
    "first-failed-at-ms": Whole(nullable=True),
    "exchange": Text(nullable=True),
    "key": Text(nullable=True),
}


def rules_of_call(namespace: str, task: str) -> Rules:
    return {
        **RETRIED,
        "version": Whole(1, 1, required=True),
        "namespace": Text((namespace,), required=True),
        "task": Text((task,), required=True),
        "sent-at-ms": Whole(required=True),
        "expires-at-ms": Whole(nullable=True),
    }


def rules_of_token(namespace: str, task: str, key: str) -> Rules:
    return {
        "version": Whole(1, 1, required=True),
        "namespace": Text((namespace,), required=True),
        "task": Text((task,), required=True),
        "key": Text((key,), required=bool(key)),
        "epoch": Whole(high=MOST),
        "life": Whole(high=MOST),
        "first": Whole(0, 1),
        "known": Whole(0, 1),
        "seq": Whole(high=MOST, required=True),
        "attempt": Whole(high=MOST, required=True),
        "state": Text(("armed", "paused", "replay"), required=True),
        "scheduled-at-ms": Whole(required=True),
        "due-at-ms": Whole(required=True),
        "reason": Text(nullable=True),
        "previous-at-ms": Whole(nullable=True),
        "act": Text(VERBS, nullable=True),
        "acted-at-ms": Whole(),
        "last-outcome": Text(ENDINGS, nullable=True),
        "last-scheduled-at-ms": Whole(),
        "last-started-at-ms": Whole(),
        "last-duration-ms": Whole(),
        "last-error": Text(nullable=True),
    }


def keeps(rules: Rules, ours: Mapping[str, Value]) -> bool:
    """Whether these headers of ours are as they have to be."""
    return all(
        rule.takes(ours[name].told) if name in ours else not rule.required
        for name, rule in rules.items()
    )


def number_in(ours: Mapping[str, Value], name: str, otherwise: int) -> int:
    told = ours[name].told if name in ours else WRONG
    return told if isinstance(told, int) else otherwise
