"""Marks: who has read a stream as far as to one has read all that was confirmed before it."""

import uuid

from scheduler.protocol.messages import Message

MARK_TYPE = "scheduler.barrier"


def new_mark() -> Message:
    """A mark that is told from all others by its label."""
    return Message(label=uuid.uuid4().hex, type=MARK_TYPE)


def is_mark(message: Message) -> bool:
    return message.type == MARK_TYPE


def is_asked_for(message: Message, only: frozenset[str] | None) -> bool:
    """Whether a reader who wants these labels, or all, is handed a message."""
    return not is_mark(message) and (only is None or message.label in only)
