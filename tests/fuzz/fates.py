"""What has to become of a message, told from what it was made of: not by reading it as we do."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import cast

from tests.fuzz.raw import WRONG, Value

LATEST_MS = 221_845_392_000_000  # the year 9000
MOST = 2**62
LONGEST_MS = 3_155_760_000_000  # 100 years


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
    """What has to be a whole number within limits."""

    low: int = 0
    high: int = LATEST_MS
    required: bool = False
    nullable: bool = False

    def takes(self, told: object) -> bool:
        if told is None:
            return self.nullable
        return type(told) is int and self.low <= told <= self.high


@dataclass(frozen=True)
class Text:
    """What has to be a text; one of these, if any are given."""

    among: tuple[str, ...] = ()
    required: bool = False
    nullable: bool = False

    def takes(self, told: object) -> bool:
        if told is None:
            return self.nullable
        return isinstance(told, str) and (not self.among or told in self.among)


@dataclass(frozen=True)
class Truth:
    """What has to be true or false."""

    required: bool = False

    def takes(self, told: object) -> bool:
        return isinstance(told, bool)


@dataclass(frozen=True)
class Record:
    """What has to be an object whose members are as these rules say; any, without rules."""

    rules: "Rules"
    required: bool = False
    nullable: bool = False

    def takes(self, told: object) -> bool:
        if told is None:
            return self.nullable
        return isinstance(told, dict) and keeps(self.rules, cast(Mapping[str, object], told))


Rules = Mapping[str, Whole | Text | Truth | Record]
VERBS = "seeded", "paused", "resumed", "triggered", "rescheduled", "repaired", "removed"
ENDINGS = "succeeded", "retried", "escalated", "stopped", "skipped"
LED: Rules = {"lead-ms": Whole(high=1500)}
RETRIED: Rules = {**LED, "due-at-ms": Whole(nullable=True)}


CLAIMS = (
    *("attempt", "first-failed-at-ms", "exchange", "key", "user-id"),
    *("replayed-at-ms", "parked-reason"),
)
"""What only processors tell of a message: from anybody else, it changes nothing."""


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
        "epoch": Whole(high=MOST, required=True),
        "life": Whole(high=MOST, required=True),
        "first": Truth(),
        "seq": Whole(high=MOST, required=True),
        "attempt": Whole(high=MOST, required=True),
        "state": Text(("armed", "paused", "done", "replay"), required=True),
        "scheduled_at_ms": Whole(required=True),
        "due_at_ms": Whole(required=True),
        "reason": Text(nullable=True),
        "previous_at_ms": Whole(nullable=True),
        "schedule": Record({"every_ms": Whole(100, LONGEST_MS, required=True)}, required=True),
        "args": Record({}),
        "act": Record(
            {"verb": Text(VERBS, required=True), "at_ms": Whole(required=True)}, nullable=True
        ),
        "last": Record(
            {
                "outcome": Text(ENDINGS, required=True),
                "scheduled_at_ms": Whole(required=True),
                "started_at_ms": Whole(required=True),
                "duration_ms": Whole(required=True),
                "error": Text(nullable=True),
            },
            nullable=True,
        ),
    }


def told_by(ours: Mapping[str, Value]) -> Mapping[str, object]:
    """What headers tell."""
    return {name: value.told for name, value in ours.items()}


def keeps(rules: Rules, told: Mapping[str, object]) -> bool:
    """Whether headers of ours, or the members of an object, are as they have to be."""
    return all(
        rule.takes(told[name]) if name in told else not rule.required
        for name, rule in rules.items()
    )


def number_in(ours: Mapping[str, Value], name: str, otherwise: int) -> int:
    told = ours[name].told if name in ours else WRONG
    return told if isinstance(told, int) else otherwise
