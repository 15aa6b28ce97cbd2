"""What has to become of a message, told from what it was made of: not by reading it as we do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Flag, auto
from typing import Any, cast

from tests.fuzz.raw import WRONG, Value

NOT_SOON_MS = 2_000_000_000_000  # the year 2033
LATEST_MS = 221_876_928_000_000  # the end of the year 9000
MOST = 2**62
LONGEST_MS = 3_155_760_000_000  # 100 years


class Fate(Flag):
    """How a message ends: each copy of it in one of these ways, once.

    ACKED is what becomes of a token without a run: it is void, or exchanged, or waits on; WAITS, of
    another message whose time has not come: it is in its timers again.
    """

    RUN = auto()
    PARKED = auto()
    ACKED = auto()
    DROPPED = auto()
    WAITS = auto()


EITHER = Fate.RUN | Fate.PARKED


@dataclass(frozen=True)
class Rule:
    """What a header, or a member of an object, has to be."""

    is_kept_by: Callable[[object], bool]
    members: "Rules | None" = None
    required: bool = False
    nullable: bool = False

    def takes(self, told: object) -> bool:
        return self.nullable if told is None else self.is_kept_by(told)


def whole(low: int = 0, high: int = LATEST_MS, **more: Any) -> Rule:
    return Rule(lambda told: type(told) is int and low <= told <= high, **more)


def text(*among: str, **more: Any) -> Rule:
    """A text; one of these, if any are given."""
    return Rule(lambda told: isinstance(told, str) and (not among or told in among), **more)


def record(members: "Rules", **more: Any) -> Rule:
    """An object whose members are as these rules say; any, without rules."""

    def is_kept_by(told: object) -> bool:
        return isinstance(told, dict) and keeps(members, cast(Mapping[str, object], told))

    return Rule(is_kept_by, members, **more)


TRUTH = Rule(lambda told: isinstance(told, bool))
Rules = Mapping[str, Rule]
VERBS = "seeded", "paused", "resumed", "triggered", "rescheduled", "repaired", "removed"
ENDINGS = "succeeded", "retried", "escalated", "stopped", "skipped"
LED: Rules = {"lead-ms": whole(high=1500)}
RETRIED: Rules = {**LED, "due-at-ms": whole(nullable=True)}


CLAIMS = (
    *("attempt", "first-failed-at-ms", "exchange", "key", "user-id"),
    *("replayed-at-ms", "parked-reason"),
)
"""What only processors tell of a message: from anybody else, it changes nothing."""


def rules_of_call(namespace: str, task: str) -> Rules:
    return {
        **RETRIED,
        "version": whole(1, 1, required=True),
        "namespace": text(namespace, required=True),
        "task": text(task, required=True),
        "sent-at-ms": whole(required=True),
        "expires-at-ms": whole(nullable=True),
    }


def rules_of_token(namespace: str, task: str, key: str) -> Rules:
    return {
        "version": whole(1, 1, required=True),
        "namespace": text(namespace, required=True),
        "task": text(task, required=True),
        "key": text(key, required=bool(key)),
        "epoch": whole(high=MOST, required=True),
        "life": whole(high=MOST, required=True),
        "first": TRUTH,
        "seq": whole(high=MOST, required=True),
        "attempt": whole(high=MOST, required=True),
        "state": text("armed", "paused", "done", "replay", required=True),
        "scheduled_at_ms": whole(required=True),
        "due_at_ms": whole(required=True),
        "reason": text(nullable=True),
        "previous_at_ms": whole(nullable=True),
        "schedule": record({"every_ms": whole(100, LONGEST_MS, required=True)}, required=True),
        "args": record({}),
        "act": record(
            {"verb": text(*VERBS, required=True), "at_ms": whole(required=True)}, nullable=True
        ),
        "last": record(
            {
                "outcome": text(*ENDINGS, required=True),
                "scheduled_at_ms": whole(required=True),
                "started_at_ms": whole(required=True),
                "duration_ms": whole(required=True),
                "error": text(nullable=True),
                "attempt": whole(high=MOST),
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


def in_time(fate: Fate, ours: Mapping[str, Value]) -> Fate:
    """What becomes of a message that would be run, if its headers tell a time that is far ahead.

    Of one that was sent in the future, its sender's clock is wrong: its time does not count.
    """
    due, sent = (number_in(ours, name, 0) for name in ("due-at-ms", "sent-at-ms"))
    if Fate.RUN not in fate or not sent < NOT_SOON_MS < due <= LATEST_MS:
        return fate
    return (fate & ~Fate.RUN) | Fate.WAITS


def number_in(ours: Mapping[str, Value], name: str, otherwise: int) -> int:
    told = ours[name].told if name in ours else WRONG
    return told if isinstance(told, int) else otherwise
