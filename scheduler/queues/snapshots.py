"""Snapshots: what a stream has told so far, in few messages.

A snapshot begins with a message of its own, and tells what was read after that was confirmed. So
whoever has read its beginning and all its pages knows what came before, too; and what others write
meanwhile comes after the beginning. Several may be written at once, and one left half-way.
"""

import json
import uuid
from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from scheduler.protocol.messages import Message, parsed_json, validated

BEGINNING_TYPE, PAGE_TYPE = "scheduler.snapshot.beginning", "scheduler.snapshot.page"
PAGE_LENGTH = 500  # entries: some 100 KB


def new_beginning() -> Message:
    """The beginning of a snapshot, to be confirmed before that is read which it will tell."""
    return Message(type=BEGINNING_TYPE, correlation_id=uuid.uuid4().hex)


def pages(beginning: Message, entries: Sequence[Any]) -> list[Message]:
    """The pages of the snapshot with this beginning."""
    shares = [entries[at : at + PAGE_LENGTH] for at in range(0, len(entries), PAGE_LENGTH)] or [[]]
    return [
        Message(
            json.dumps({"page": number, "pages": len(shares), "entries": share}).encode(),
            content_type="application/json",
            type=PAGE_TYPE,
            correlation_id=beginning.correlation_id,
        )
        for number, share in enumerate(shares)
    ]


def is_of_snapshot(message: Message) -> bool:
    return message.type in (BEGINNING_TYPE, PAGE_TYPE)


class Snapshots:
    """The snapshots among what is read of a stream: its last part first, then earlier ones."""

    def __init__(self) -> None:
        self._others = [0]  # of each part
        self._begun: dict[str, tuple[int, int]] = {}
        self._missing: dict[str, set[int]] = {}

    @property
    def found(self) -> bool:
        """Whether one was read from its beginning to its last page."""
        return bool(self._complete())

    @property
    def since(self) -> int:
        """How many other messages came after the beginning of the last such one; or are there."""
        came = (
            sum(self._others[: part + 1]) - before
            for part, before in (self._begun[name] for name in self._complete())
        )
        return min(came, default=sum(self._others))

    def go_back(self) -> None:
        """What is heard from now on came before all that was heard so far."""
        self._others.append(0)

    def hear(self, message: Message) -> list[Any] | None:
        """The entries that a message of a snapshot tells; None: it is another one.

        Raises:
            Undecodable: it claims to be of one.
        """
        name = message.correlation_id or ""
        if not is_of_snapshot(message):
            self._others[-1] += 1
            return None
        if message.type == BEGINNING_TYPE:
            self._begun[name] = (len(self._others) - 1, self._others[-1])
            return []
        page = validated(_Page, parsed_json(message.body), "page of a snapshot")
        self._missing.setdefault(name, set(range(page.pages))).discard(page.page)
        return page.entries

    def _complete(self) -> list[str]:
        return [name for name in self._begun if self._missing.get(name) == set()]


class _Page(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)

    page: int = Field(ge=0)
    pages: int = Field(ge=1)
    entries: list[Any]
