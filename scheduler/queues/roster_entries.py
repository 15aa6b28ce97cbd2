"""The entries of the roster on the wire.

A message of the roster is a JSON object that holds many: ``{"entries": [...]}``. Each is an object:

====================  ============================================================
``task``, ``key``     whose entry it is
``epoch``, ``life``   the epoch that begins, and that of the loop's last start
``base``              the epoch of the entry that it follows; 0: none, or a loop that is gone
``asked``             the epoch of the last entry that neither repaired nor rescheduled the loop
``state``             active, paused or gone
``schedule, args``    with which it goes on
``reason``            why it is paused, or gone
``by``, ``at_ms``     who began the epoch, and when
``checkpoint``        how far the loop had come, where that is known (`checkpoints`)
``override``          who has set the schedule in place of the code's (``by``), and when (``at_ms``)
``inherited``         in a snapshot: only an earlier stream told of it
====================  ============================================================
"""

import json
import logging
from collections.abc import Generator, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scheduler.errors import MessageError, ScheduleError
from scheduler.protocol.epochs import Entry, LoopState
from scheduler.protocol.messages import Message, parsed_json, validated
from scheduler.protocol.tokens import LoopId
from scheduler.queues.checkpoints import WireCheckpoint, wire_of
from scheduler.queues.listing import Listed
from scheduler.tasks.loops import Override
from scheduler.timing.moments import LATEST_MS, milliseconds_since_epoch, moment_of
from scheduler.timing.schedules import from_wire, to_wire

ENTRY_TYPE = "scheduler.roster"
MOST_ENTRIES = 100
MOST_BYTES = 100_000  # the broker may accept no more


def messages_of(entries: Iterable[Listed]) -> Iterator[Message]:
    """Encode entries as messages of bounded size, one by one as they are asked for.

    An entry that is too big for the bound travels alone.
    """
    batch, size = list[str](), 0
    for listed in entries:
        entry = encoded(listed)
        if batch and (len(batch) == MOST_ENTRIES or size + len(entry) > MOST_BYTES):
            yield _message_of(batch)
            batch, size = [], 0
        batch.append(entry)
        size += len(entry)
    if batch:
        yield _message_of(batch)


def encoded(listed: Listed, *, is_inherited: bool = False) -> str:
    """Encode an entry as JSON, in ASCII and in one line."""
    wire = {
        "task": listed.loop.task,
        "key": listed.loop.key,
        "epoch": listed.epoch,
        "life": listed.entry.life,
        "base": listed.entry.base,
        "asked": listed.entry.asked,
        "state": listed.entry.state.value,
        "schedule": to_wire(listed.schedule),
        "args": dict(listed.args),
        "reason": listed.reason,
        "by": listed.by,
        "at_ms": milliseconds_since_epoch(listed.at),
        **({"checkpoint": wire_of(listed.checkpoint)} if listed.checkpoint else {}),
        **({"override": _wire_of_override(listed.override)} if listed.override else {}),
        **({"inherited": True} if is_inherited else {}),
    }
    return json.dumps(wire)


def entries_of(message: Message) -> Iterator[Listed]:
    """Decode the entries of a message; those that cannot be read are left out, with a warning."""
    entries: list[Any] = []
    with _left_out_if_bad():
        entries = validated(_Entries, parsed_json(message.body), "roster message").entries
    for entry in entries:
        with _left_out_if_bad():
            yield _listed(validated(_Entry, entry, "roster entry"))


def decoded(entry: bytes) -> tuple[Listed, bool] | None:
    """Decode an entry of a snapshot, and whether it is inherited; None: it cannot be read."""
    with _left_out_if_bad():
        wire = validated(_Entry, parsed_json(entry), "roster entry")
        return _listed(wire), wire.inherited
    return None


@contextmanager
def _left_out_if_bad() -> Generator[None]:
    try:
        yield
    except (MessageError, ScheduleError) as error:
        logging.getLogger(__name__).warning("An entry of the roster is left out: %s", error)


def _message_of(batch: list[str]) -> Message:
    body = f'{{"entries": [{", ".join(batch)}]}}'
    return Message(body.encode(), content_type="application/json", type=ENTRY_TYPE)


def _listed(wire: "_Entry") -> Listed:
    return Listed(
        LoopId(wire.task, wire.key),
        from_wire(wire.schedule),
        wire.args,
        Entry(wire.epoch, wire.state, wire.life, wire.base, wire.asked),
        wire.reason,
        wire.by,
        moment_of(wire.at_ms),
        wire.checkpoint and wire.checkpoint.checkpoint,
        wire.override and Override(wire.override.by, moment_of(wire.override.at_ms)),
    )


def _wire_of_override(override: Override) -> dict[str, Any]:
    return {"by": override.by, "at_ms": milliseconds_since_epoch(override.at)}


class _Entries(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    entries: list[Any]


class _Override(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    by: str
    at_ms: int = Field(ge=0, le=LATEST_MS)


class _Entry(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", frozen=True)

    task: str = Field(min_length=1)
    key: str = ""
    epoch: int = Field(ge=0)
    life: int = Field(ge=0)
    base: int = Field(default=0, ge=0)
    asked: int = Field(default=0, ge=0)
    state: LoopState = Field(strict=False)
    schedule: dict[str, Any]
    args: dict[str, Any] = {}
    reason: str = ""
    by: str = ""
    at_ms: int = Field(ge=0, le=LATEST_MS)
    checkpoint: WireCheckpoint | None = None
    override: _Override | None = None
    inherited: bool = False
