"""Translate the driver's errors into the package's errors."""

import asyncio
import re

from aiormq.exceptions import (
    AMQPError,
    ChannelAccessRefused,
    ChannelInvalidStateError,
    ChannelLockedResource,
    ChannelNotFoundEntity,
    ChannelPreconditionFailed,
)

from scheduler.errors import (
    AccessRefused,
    IncompatibleBroker,
    NoReplica,
    OtherArguments,
    QueueNotFound,
    Rejected,
    SchedulerError,
    TooLarge,
    Unconfirmed,
    Unroutable,
)

# A stream is read from a node with a replica. A node that restarts does not have one at once.
NO_REPLICA = "replica on the local node"
OTHER_ARGUMENT = re.compile(r"inequivalent arg '(?P<argument>[^']+)' for queue '(?P<queue>[^']+)'")
TOO_LARGE = re.compile(r"message size \d+.* larger than (?:configured )?max size (?P<limit>\d+)")


class ReturnedMessage(AMQPError):
    """The message of this routing key was returned: there is no queue for it."""


class Refused(AMQPError):
    """The queue rejected the message."""


class Translation:
    """Translate the driver's errors inside a block; add the address of the broker."""

    __slots__ = ("_address",)

    def __init__(self, address: str) -> None:
        self._address = address

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if error is not None and (ours := _translation(error, self._address)) is not None:
            raise ours from None


def reply(error: BaseException) -> str:
    """Return the words of a driver's error, without its wrapping."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if words := [str(word) for word in error.args if isinstance(word, str) and word]:
        return " ".join(words).rstrip(".")
    wordless = type(error) in (Exception, asyncio.CancelledError)
    return "closed" if wordless else type(error).__name__


def _translation(error: BaseException, address: str) -> SchedulerError | None:
    match error:
        case ReturnedMessage(args=(key,)):
            return Unroutable(f"{address} has no queue bound for the routing key {key!r}.")
        case Refused():
            return Rejected()
        case ChannelNotFoundEntity():
            return QueueNotFound(reply(error))
        case ChannelPreconditionFailed() | ChannelLockedResource():
            return _unmet(reply(error), f"{address} refused: {reply(error)}.")
        case ChannelAccessRefused():
            return AccessRefused(f"{address} refused: {reply(error)}.")
        case _ if _is_lost_connection(error):
            return Unconfirmed(
                f"The connection to {address} was lost before the broker responded: {reply(error)}."
            )
        case _:
            return None


def _unmet(condition: str, text: str) -> SchedulerError:
    if (large := TOO_LARGE.search(condition)) is not None:
        return TooLarge(text, limit=int(large["limit"]))
    if NO_REPLICA in condition:
        return NoReplica(
            f"{text} It may be starting; if this persists, `rabbitmq-streams add_replica` gives "
            "the node one."
        )
    text = f"{text} Nothing was changed."
    if (other := OTHER_ARGUMENT.search(condition)) is not None:
        return OtherArguments(text, **other.groupdict())
    return IncompatibleBroker(text)


def _is_lost_connection(error: BaseException) -> bool:
    match error:
        case AMQPError() | ChannelInvalidStateError() | ConnectionError() | RuntimeError():
            return True
        case asyncio.CancelledError():
            # aiormq cancels calls on a channel that closes; only a cancelled task means this one.
            task = asyncio.current_task()
            return task is not None and not task.cancelling()
        case _:
            # aiormq's word for calls on a connection that ended without a reason.
            return type(error) is Exception
