"""Marks: who has read a stream as far as to one has read all that was confirmed before it."""

import uuid
from collections.abc import Generator
from contextlib import contextmanager

from scheduler.errors import BrokerUnavailable, QueueNotFound, StreamTooLong, Unroutable
from scheduler.protocol.messages import Message

MARK_TYPE = "scheduler.barrier"


def new_mark() -> Message:
    """A mark that is told from all others by its name."""
    return Message(message_id=uuid.uuid4().hex, type=MARK_TYPE)


def is_mark(message: Message) -> bool:
    return message.type == MARK_TYPE


@contextmanager
def written_into(stream: str, exchange: str, routing_key: str) -> Generator[None]:
    """Have it told, inside the block, that a mark does not get into its stream.

    Raises:
        QueueNotFound: it was published, and routed to nothing.
    """
    try:
        yield
    except Unroutable:
        raise QueueNotFound(
            f"What is published to the exchange {exchange!r} for {routing_key!r} does not get into "
            f"the stream {stream!r}: it is not there, or not bound."
        ) from None


def silent(stream: str) -> BrokerUnavailable:
    """The error of who has not found the mark, and is handed nothing."""
    return BrokerUnavailable(
        f"The stream {stream!r} could not be read to its end: nothing more came. The broker may "
        "be busy, or the node that was asked may lag behind. Try again later."
    )


def too_long(stream: str, reached: int | None) -> StreamTooLong:
    """The error of who has not found the mark by the time that was given, though much came."""
    return StreamTooLong(
        f"The stream {stream!r} could not be read to its end in time: it holds too much.",
        reached=reached,
    )
