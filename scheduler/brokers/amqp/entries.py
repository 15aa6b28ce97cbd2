"""The entries of a stream: messages that have a place."""

from typing import NamedTuple

from scheduler.brokers.amqp.frames import Taken
from scheduler.brokers.properties import decoded
from scheduler.protocol.messages import Message

OFFSET = "x-stream-offset"


class StreamEntry(NamedTuple):
    """A message of a stream, and where it stands there."""

    message: Message
    offset: int
    tag: int

    @classmethod
    def of(cls, taken: Taken) -> "StreamEntry":
        message = decoded(taken.properties, taken.body, offset=OFFSET)
        assert message.offset is not None
        return cls(message, message.offset, taken.tag)

    def continues(self, last: "StreamEntry") -> bool:
        """Whether this may come in one stream where the last one was asked for.

        A later one comes when the last one was forgotten meanwhile.
        """
        if self.offset == last.offset:
            return self.message == last.message
        return self.offset > last.offset
