"""The entries of a stream: messages that have a place."""

from dataclasses import replace
from typing import Any, NamedTuple, cast

from aiormq.abc import DeliveredMessage

from scheduler.brokers.amqp.frames import message_of
from scheduler.protocol.messages import Message


class StreamEntry(NamedTuple):
    """A message of a stream, and where it stands there."""

    message: Message
    offset: int
    tag: int

    @classmethod
    def of(cls, taken: DeliveredMessage) -> "StreamEntry":
        message, tag = message_of(taken), taken.delivery_tag
        assert tag is not None
        offset = cast(dict[str, Any], message.headers).pop("x-stream-offset")
        return cls(replace(message, offset=offset), offset, tag)

    def continues(self, last: "StreamEntry") -> bool:
        """Whether this may come in one stream where the last one was asked for.

        A later one comes when the last one was forgotten meanwhile.
        """
        if self.offset == last.offset:
            return self.message == last.message
        return self.offset > last.offset
