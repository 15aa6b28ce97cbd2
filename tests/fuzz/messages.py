"""Messages from a seed: of anybody, by every way that leads to a task, and what becomes of them."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from math import inf, nan
from random import Random
from typing import Any, NamedTuple

from scheduler.protocol.hatchery import NO_WAIT, route
from scheduler.protocol.tokens import LoopId, token_key
from scheduler.protocol.topology import Names
from tests.foreign import sized
from tests.fuzz.fates import (
    CLAIMS,
    EITHER,
    LED,
    RETRIED,
    Fate,
    Rules,
    in_time,
    keeps,
    number_in,
    record,
    rules_of_call,
    rules_of_token,
    told_by,
)
from tests.fuzz.raw import (
    LARGEST_PROPERTIES,
    ODD_BYTES,
    Refusable,
    Value,
    encoded,
    kills_3_10,
    short,
    some_bytes,
    some_headers,
    some_properties,
    some_value,
    table,
    text,
    whole,
)

ZEROS, SECOND = NO_WAIT.key, route(timedelta(seconds=1)).key
LONG_AGO, FAR_AHEAD = 1_000, 200_000_000_000_000
SENT, TICKS, SPARED = "sms", "tick", "beat"
SUBSCRIBED = "scan", "note", "paid", "fail"
MARK = re.compile(rb"\n([ \t]{20})$")
NUMBER = b"fuzz-number"
TOKEN = short(b"scheduler.token")


class Body(NamedTuple):
    """Attributes: fits says whether a task can be run with it; None: that is hard to tell."""

    data: bytes
    fits: bool | None


@dataclass(frozen=True)
class Sample:
    """A message, and where it is published.

    Attributes:
        kind: what it is like, for the report.
        fate: what may become of each copy.
        copies: in how many queues it comes.
        refusable: whether RabbitMQ does not take it.
    """

    number: int
    kind: str
    exchange: str
    key: bytes
    properties: bytes
    body: bytes
    fate: Fate
    copies: int
    refusable: bool


def business(namespace: str) -> str:
    """The exchange of somebody else's program."""
    return f"{namespace}.business"


def marked(body: bytes, number: int) -> bytes:
    """The body with its number behind it: white space, which changes no JSON."""
    return body + b"\n" + bytes(b" \t"[number >> bit & 1] for bit in range(20))


def number_of(body: bytes, headers: Mapping[str, Any]) -> int | None:
    """The number of a message, wherever it has come to."""
    if (found := MARK.search(body)) is None:
        number = headers.get(NUMBER.decode())
        return number if isinstance(number, int) else None
    return sum((byte == ord("\t")) << bit for bit, byte in enumerate(found[1]))


class Draft:
    """A message in the making: what it has, and what it is to be."""

    def __init__(self, rng: Random, body: Body) -> None:
        self.body = body
        self.properties = some_properties(rng)
        self.theirs = some_headers(rng) if rng.random() < 0.7 else []
        self.ours = dict[str, Value]()
        self.refusable = False

    def has(self, name: str) -> bool:
        return name in self.properties

    def bytes_of(self, rng: Random, number: int, *, fragile: bool) -> tuple[bytes, bytes]:
        """The properties and the body of it, with its number."""
        if fragile:
            self.theirs = [entry for entry in self.theirs if not kills_3_10(*entry)]
        entries = [*self.theirs, *((f"scheduler-{n}".encode(), v) for n, v in self.ours.items())]
        rng.shuffle(entries)
        # The body of what claims to be a token is made anew when it is sent back.
        if not self.body.data or self.properties.get("type") == TOKEN:
            entries.append((NUMBER, whole(number, "I")))
        body = marked(self.body.data, number) if self.body.data else b""
        if entries or rng.random() < 0.1:
            self.properties["headers"] = table(entries)
        properties = encoded(self.properties)
        self.refusable |= any(isinstance(each, Refusable) for each in self.properties.values())
        self.refusable |= len(properties) > LARGEST_PROPERTIES
        return properties, body


class Samples:
    """Makes messages for one namespace, one after the other.

    Args:
        fragile: whether it is a 3.10, which some headers would bring down.
    """

    def __init__(self, seed: int, names: Names, *, fragile: bool) -> None:
        self._fragile = fragile
        self._rng = Random(seed)
        self._names = names
        self._business = business(names.namespace)
        self._number = 0
        self._kinds: list[tuple[Callable[[], Sample], int]] = [
            (self._of_business, 30),
            (self._call, 20),
            (self._later, 15),
            (self._token, 15),
            (self._to_nobody, 4),
            (self._to_failed, 8),
            (self._direct, 8),
        ]

    def next(self) -> Sample:
        self._number += 1
        kinds, weights = zip(*self._kinds, strict=True)
        (make,) = self._rng.choices(kinds, weights)
        return make()

    def _sample(
        self, kind: str, draft: Draft, exchange: str, key: bytes, fate: Fate, *queues: str
    ) -> Sample:
        properties, body = draft.bytes_of(self._rng, self._number, fragile=self._fragile)
        key, copies, refusable = key[:255], len(set(queues)), draft.refusable
        return Sample(self._number, kind, exchange, key, properties, body, fate, copies, refusable)

    # What somebody else's program publishes to its own exchange.

    def _of_business(self) -> Sample:
        task = self._rng.choice(SUBSCRIBED)
        tail = b"".join(b"." + _word(self._rng) for _ in range(self._rng.randrange(3)))
        draft = Draft(self._rng, _body_for(task, self._rng))
        self._add_ours(draft, task, likely=0.15)
        copied = self._copies(draft, (*SUBSCRIBED, "nobody"), likely=0.05)
        fate = in_time(EITHER, draft.ours) if copied else self._fate_of_foreign(draft, task)
        queues = {task, *(key for key in copied if key in SUBSCRIBED)}
        key = task.encode() + tail
        return self._sample("business", draft, self._business, key, fate, *queues)

    def _copies(self, draft: Draft, among: Sequence[str], *, likely: float) -> Sequence[str]:
        """Further keys, in CC or BCC."""
        if self._rng.random() > likely or draft.has("expiration"):
            return []
        keys = self._rng.choices(among, k=self._rng.randrange(1, 12))
        name = self._rng.choice((b"CC", b"BCC"))
        if self._rng.random() < 0.1:
            draft.refusable = True
            draft.theirs.append((name, text(b"no array")))
            return []
        listed = b"".join(text(key.encode()).data for key in keys)
        draft.theirs.append((name, Value(b"A" + sized(listed))))
        return keys

    def _fate_of_foreign(self, draft: Draft, task: str) -> Fate:
        if "sent-at-ms" in draft.ours and task != "fail":
            return self._fate_of_call(draft, task)
        if task == "fail":
            return in_time(EITHER, draft.ours) & ~Fate.RUN
        if not keeps(RETRIED, told_by(draft.ours)):
            return Fate.PARKED
        return self._fate_by_body(draft)

    def _fate_by_body(self, draft: Draft) -> Fate:
        if draft.has("expiration") or draft.body.fits is None:
            return in_time(EITHER, draft.ours)
        return in_time(Fate.RUN, draft.ours) if draft.body.fits else Fate.PARKED

    # What a sender may publish.

    def _call(self) -> Sample:
        draft, fate = self._call_to(SENT)
        return self._sent("call", draft, self._names.calls, fate)

    def _later(self) -> Sample:
        draft, fate = self._call_to(SENT)
        short = text(b"1s"), text(b"2x100ms"), text(b"9x100ms")  # so that nobody waits for long
        for unit in ("192d", "5m", "s", "100ms"):
            if self._rng.random() < 0.5:
                odd = self._rng.random() < 0.2
                draft.ours[f"at-{unit}"] = some_value(self._rng) if odd else self._rng.choice(short)
        return self._sent("later", draft, self._names.later, fate)

    def _sent(self, kind: str, draft: Draft, exchange: str, fate: Fate) -> Sample:
        """What a sender sends, with keys of all kinds: each task that they call gets it once."""
        called = [f"task.{task}" for task in (SENT, *SUBSCRIBED)]
        loops = [
            token_key(LoopId(task), way) for task in (TICKS, SPARED) for way in (ZEROS, SECOND)
        ]
        others = f"{SECOND}.task.sms", "task.tick", "task.beat", "loop.tick", "#", "nobody"
        refused_keys = "retry.sms", "retry.tick"
        copied = self._copies(draft, [*called, *loops, *others, *refused_keys], likely=0.3)
        queues = {SENT, *(key.removeprefix("task.") for key in copied if key in called)}
        refused = exchange == self._names.later and not set(copied).isdisjoint(refused_keys)
        fate = in_time(EITHER, draft.ours) if copied else fate
        return self._sample(kind, draft, exchange, b"task.sms", fate, *(() if refused else queues))

    def _call_to(self, task: str) -> tuple[Draft, Fate]:
        draft = Draft(self._rng, _body_for(SENT, self._rng))
        self._add_ours(draft, task, likely=0.9)
        return draft, self._fate_of_call(draft, task)

    def _fate_of_call(self, draft: Draft, task: str) -> Fate:
        rules = rules_of_call(self._names.namespace, task)
        if not keeps(rules, told_by(draft.ours)):
            return Fate.PARKED
        if task != SENT:
            # A loop gets no calls.
            return Fate.PARKED if task == TICKS else in_time(EITHER, draft.ours)
        if number_in(draft.ours, "expires-at-ms", FAR_AHEAD) < FAR_AHEAD:
            either = in_time(EITHER, draft.ours)
            return either if draft.body.fits is not False else Fate.PARKED
        return self._fate_by_body(draft)

    def _add_ours(self, draft: Draft, task: str, *, likely: float) -> None:
        """Headers of ours: sound ones, some of which are then broken; or just some."""
        rng, namespace = self._rng, self._names.namespace
        sound = {
            "version": whole(1, "I"),
            "namespace": text(namespace.encode()),
            "task": text(task.encode()),
            "sent-at-ms": whole(1_700_000_000_000, "l"),
        }
        if rng.random() < likely:
            draft.ours.update(sound)
        if rng.random() < 0.4:
            self._break(draft, rules_of_call(namespace, task))
        for name in CLAIMS:
            if rng.random() < 0.1:
                draft.ours[name] = rng.choice((whole(1, "I"), text(b"orders"), some_value(rng)))

    def _break(self, draft: Draft, rules: Rules) -> None:
        rng = self._rng
        for name in rng.sample(list(rules), rng.choice((1, 1, 1, 2, 5))):
            roll = rng.random()
            if roll < 0.15:
                draft.ours.pop(name, None)
            elif roll < 0.3:
                draft.ours[name] = whole(
                    rng.choice((0, 1, LONG_AGO, FAR_AHEAD, 2**62, 2**63 - 1)), "l"
                )
            else:
                draft.ours[name] = some_value(rng)

    # What somebody publishes who may do more than a sender.

    def _token(self) -> Sample:
        rng, names = self._rng, self._names
        void = rng.random() < 0.1
        task, key = (SPARED, "") if void else (TICKS, f"f{self._number}")
        members, rules = self._members(task, key), rules_of_token(names.namespace, task, key)
        if rng.random() < 0.6:
            self._break_members(members, rules)
        if void:
            self._harmless(members)
        fits = not members.get("args")
        body = Body(json.dumps(members).encode(), fits)
        if members.get("schedule") in SCHEDULES:
            rules, body = {**rules, "schedule": record({})}, body._replace(fits=None)
        if broken := rng.random() < 0.2:
            body = Body(rng.choice((b"", *BROKEN)), False)
        draft = Draft(rng, body)
        typed = rng.random() < 0.95
        draft.properties["type"] = TOKEN if typed else b"\x04else"
        draft.properties["message_id"] = bytes([len(b"%d" % self._number)]) + b"%d" % self._number
        draft.properties.pop("expiration", None)
        for name in ("lead-ms", "seq", "attempt", "state"):
            if rng.random() < 0.1:
                draft.ours[name] = some_value(rng)
        sound = typed and not broken and keeps(rules, members)
        sound = sound and keeps(LED, told_by(draft.ours))
        fate = self._fate_of_token(members, body, void, sound=sound)
        routing_key = token_key(LoopId(task, key), NO_WAIT.key).encode()
        return self._sample("token", draft, names.processor, routing_key, fate, task)

    def _members(self, task: str, key: str) -> dict[str, Any]:
        """A sound token's."""
        rng = self._rng
        members: dict[str, Any] = {
            "version": 1,
            "namespace": self._names.namespace,
            "task": task,
            "key": key,
            "epoch": 1,
            "life": 0,
            "seq": rng.choice((0, 1, 7)),
            "attempt": rng.choice((0, 0, 1)),
            "state": rng.choice(("armed", "armed", "paused", "replay")),
            "scheduled_at_ms": LONG_AGO,
            "due_at_ms": LONG_AGO,
            "schedule": {"every_ms": 3_600_000},
            "args": {},
            "carry": rng.choice((None, nan, "\ud800", [[[inf]]], {"cursor": 7})),
        }
        if rng.random() < 0.1:
            members["args"] = {"n": 1}
        if rng.random() < 0.1:
            members["schedule"] = rng.choice(SCHEDULES)
        return members

    def _break_members(self, members: dict[str, Any], rules: Rules) -> None:
        rng = self._rng
        for name in rng.sample(list(rules), rng.choice((1, 1, 1, 2, 5))):
            roll, rule = rng.random(), rules[name]
            if roll < 0.15:
                members.pop(name, None)
            elif roll < 0.3 and rule.members:
                members[name] = {each: rng.choice(SOME_JSON) for each in rule.members}
            else:
                members[name] = rng.choice(SOME_JSON)

    def _harmless(self, members: dict[str, Any]) -> None:
        """Of a loop that goes on beside all this: void, or broken."""
        if type(epoch := members.get("epoch")) is int and epoch > 0:
            members["epoch"] = 1
        members["state"] = "armed"

    def _fate_of_token(
        self, members: Mapping[str, Any], body: Body, void: bool, *, sound: bool
    ) -> Fate:
        is_first = members.get("first") is True
        if type(epoch := members.get("epoch")) is int and epoch > LONG_AGO:  # it has not begun yet
            return EITHER | Fate.ACKED
        if not sound:
            # Arguments that do not fit are found when it is run; these are not.
            return Fate.PARKED | (Fate.ACKED if void or is_first else Fate(0))
        if void:
            return Fate.ACKED | (Fate.PARKED if body.fits is None else Fate(0))
        is_due = body.fits and members["due_at_ms"] <= LONG_AGO
        if is_due and not is_first and members["state"] != "replay":
            return Fate.RUN
        ends = Fate.RUN | Fate.ACKED
        return ends if body.fits else ends | Fate.PARKED

    def _to_nobody(self) -> Sample:
        draft = Draft(self._rng, _body_for("scan", self._rng))
        exchange = self._rng.choice((self._names.processor, self._names.delayed))
        head = b"loop.nobody." if exchange == self._names.processor else b"task.nobody."
        key = head + _word(self._rng)
        return self._sample("nobody", draft, exchange, key, Fate.PARKED, "")

    def _to_failed(self) -> Sample:
        draft = Draft(self._rng, _body_for(self._rng.choice((SENT, *SUBSCRIBED)), self._rng))
        self._add_ours(draft, SENT, likely=0.5)
        for name in ("loop", "reason", "error", "traceback", "at-ms", "seq"):
            if self._rng.random() < 0.3:
                draft.ours[f"parked-{name}"] = some_value(self._rng)
        key = self._rng.choice((b"task.sms", b"task.scan", b"loop.tick.x", _word(self._rng)))
        fate = Fate.PARKED | Fate.DROPPED if draft.has("expiration") else Fate.PARKED
        return self._sample("failed", draft, self._names.failed, key, fate, "")

    def _direct(self) -> Sample:
        task = self._rng.choice((SENT, TICKS, "scan", "note", "fail"))
        draft = Draft(self._rng, _body_for(task, self._rng))
        self._add_ours(draft, task, likely=0.5)
        if task in SUBSCRIBED:
            fate = self._fate_of_foreign(draft, task)
        else:
            fate = self._fate_of_call(draft, task)
        queue = self._names.processor_queue(task).encode()
        return self._sample("direct", draft, "", queue, fate, task)


def _word(rng: Random) -> bytes:
    """A word of a routing key."""
    return rng.choice((*ODD_BYTES, b"x", b"0", b"99", b"*", b"#", some_bytes(rng, 40)))


def _body_for(task: str, rng: Random) -> Body:
    match task:
        case "scan" | "fail":
            return Body(_any_bytes(rng), True)
        case "note":
            data = _any_bytes(rng)
            return Body(data, _is_text(data))
        case "paid":
            return rng.choice((Body(b'{"number": 7}', None), Body(_any_bytes(rng), None)))
        case _:
            return _body_of_call(rng)


def _is_text(data: bytes) -> bool:
    try:
        data.decode()
    except UnicodeDecodeError:
        return False
    return True


def _any_bytes(rng: Random) -> bytes:
    roll = rng.random()
    if roll < 0.05:
        return b""
    if roll < 0.06:
        return rng.randbytes(rng.choice((131_064, 300_000)))
    if roll < 0.4:
        return rng.randbytes(rng.randrange(1, 200))
    return rng.choice((*BROKEN, *MISFITS, json.dumps({"n": [1, None]}).encode(), "Grüße".encode()))


BROKEN = (
    b"phone=1",
    b'{"args": {"phone": "1"}',
    b'{"args": {"phone": "\xff"}}',
    b"[1]",
    b'"args"',
    b"null",
    b"{}",
    b'{"args": null}',
    b'{"args": [1]}',
    b'{"args":' * 50_000,
    b"[" * 100_000 + b"]" * 100_000,
    b"9" * 5000,
    b"NaN",
    b"\x00",
)
MISFITS = (
    b'{"args": {}}',
    b'{"args": {"phone": 1}}',
    b'{"args": {"phone": null}}',
    b'{"args": {"phone": "1", "times": NaN}}',
    b'{"args": {"phone": "1", "times": 1e400}}',
    b'{"args": {"phone": "1", "times": -Infinity}}',
    b'{"args": {"phone": "1", "colour": "red"}}',
    b'{"args": {"phone": "\\ud800"}}',
    b'{"args": {"phone": "1", "\\ud800": 1}}',
    b'{"args": {"phone": "1", "times": {"n": ' + b"[" * 900 + b"]" * 900 + b"}}}",
)
SOUND = (
    b'{"args": {"phone": "1"}}',
    b'{"args": {"phone": "\\u0000\\n", "times": 3}}',
    b'{"args": {"phone": "1"}, "more": [NaN, 1e400, "\\ud800"]}',
    b' {"args" : {"times": 2, "phone": ""}}',
    b'{"args": {"phone": "2"}, "args": {"phone": "1"}}',
)
UNSURE = (
    b'\xef\xbb\xbf{"args": {"phone": "1"}}',
    b'{"args": {"phone": "1", "times": "3"}}',
    b'{"args": {"phone": "1", "times": 1e3}}',
    b'{"args": {"phone": "1", "times": ' + b"9" * 400 + b"}}",
)


def _body_of_call(rng: Random) -> Body:
    roll = rng.random()
    if roll < 0.55:
        return Body(rng.choice(SOUND), True)
    if roll < 0.7:
        return Body(rng.choice(MISFITS), False)
    if roll < 0.75:
        return Body(rng.choice(UNSURE), None)
    if roll < 0.8:
        return Body(b"\xfe" + rng.randbytes(rng.randrange(60)), None)
    return Body(rng.choice((b"", *BROKEN)), False)


SCHEDULES: tuple[dict[str, Any], ...] = (
    {"cron": "0 0 30 2 *"},
    {"cron": "* * * * * *", "tz": "../../etc/passwd"},
    {"cron": "0 9 * * MON", "tz": "\u0000"},
    {"every_ms": 0},
    {"every_ms": 3155760000000},
    {"every_ms": 1, "catch_up": "all"},
    {"every_ms": 1000, "catch_up": "skip", "grace_ms": 1},
    {"every_ms": 1000, "mode": "fixed_rate", "jitter_ms": 999},
    {"cron": "* * * * *", "every_ms": 1},
    {"every_ms": 1e300},
)
SOME_JSON: tuple[Any, ...] = (
    *(None, True, False, 0, 1, -1, LONG_AGO, FAR_AHEAD, 2**62, 2**63 - 1, 10**400, 1.0, 1e300, nan),
    *("", "armed", "paused", "seeded", "succeeded", "\ud800", "\u0000\n", "x" * 5000),
    *([], [1], {}, {"n": 1}, {"verb": "seeded", "at_ms": 1}, {"every_ms": 60_000}),
)
