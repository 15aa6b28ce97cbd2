"""List every error of the package.

A `UsageError` is what you wrote and cannot work: change it (exit code 2, HTTP 400). A `BrokerError`
is what the broker could not do (HTTP 503). A message with a `MessageError` that was received is
parked with it.

The default message of an error is the first line of its class's docstring.
How a task says that its run ended differently is not an error: see `scheduler.tasks.retries`.
"""

__all__ = [
    "AccessRefused",
    "AppNotFound",
    "Blocked",
    "BrokerError",
    "BrokerUnavailable",
    "CarryError",
    "ConfirmationTimeout",
    "DeliveryLost",
    "IncompatibleBroker",
    "InvalidArguments",
    "LifespanError",
    "MessageError",
    "NoReplica",
    "NoSpace",
    "NotAllSeen",
    "NotAllSent",
    "NotRunning",
    "NotSent",
    "OtherArguments",
    "Overtaken",
    "PortUnavailable",
    "QueueNotFound",
    "RegistrationError",
    "Rejected",
    "ScheduleError",
    "SchedulerError",
    "SettingsError",
    "StreamTooLong",
    "TooLarge",
    "Unconfirmed",
    "Undecodable",
    "Unencodable",
    "UnknownLoop",
    "Unroutable",
    "UntrustedBroker",
    "UsageError",
]


def default_message(kind: type[BaseException]) -> str:
    """Return the default message: the first docstring line of the nearest class that has one."""
    docstring = next(each.__doc__ for each in kind.__mro__ if each.__doc__)
    return docstring.partition("\n")[0]


class SchedulerError(Exception):
    """The scheduler failed."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or default_message(type(self)))


class NoSpace(SchedulerError):
    """The temporary file of the loops cannot be written."""


class UsageError(SchedulerError):
    """The call or configuration is invalid."""


class ScheduleError(UsageError):
    """The schedule, duration or retry policy is invalid."""


class RegistrationError(UsageError):
    """The task, hook or listener cannot be registered."""


class SettingsError(UsageError):
    """The value of a setting is invalid."""


class AppNotFound(UsageError):
    """No app was found at the given location."""


class UnknownLoop(UsageError):
    """The app has no loop of this name."""


class MessageError(SchedulerError):
    """The message is invalid."""


class Undecodable(MessageError):
    """The message does not have the expected format."""


class Unencodable(MessageError, UsageError):
    """The message was not sent: a header or property cannot be encoded."""


class InvalidArguments(MessageError, UsageError):
    """The arguments of the message do not fit the task."""


class TooLarge(MessageError, UsageError):
    """The message is larger than the broker accepts.

    Attributes:
        excess: by how many bytes its headers do not fit in a frame; 0: its body is too large.
        limit: how many bytes a body may have; 0: its headers are too large.
    """

    def __init__(self, message: str | None = None, *, excess: int = 0, limit: int = 0) -> None:
        super().__init__(message)
        self.excess = excess
        self.limit = limit


class NotRunning(SchedulerError):
    """No run with this ID is running."""


class CarryError(SchedulerError):
    """The carried value does not fit into a token."""


class LifespanError(SchedulerError):
    """The lifespan of the app failed to open, or ended the processor."""


class PortUnavailable(SchedulerError):
    """The port is not available."""


class BrokerError(SchedulerError):
    """The broker could not complete the operation."""


class BrokerUnavailable(BrokerError):
    """The broker is not reachable."""


class NoReplica(BrokerUnavailable):
    """The node has no running replica of the stream; another node may have one."""


class StreamTooLong(BrokerUnavailable):
    """The stream was not read to its end: it is too long for the time, or the broker paused.

    Attributes:
        reached: the offset up to which it was read; None: nothing was read.
    """

    def __init__(self, message: str | None = None, *, reached: int | None = None) -> None:
        super().__init__(message)
        self.reached = reached


class Blocked(BrokerUnavailable):
    """The message was not sent: a memory or disk alarm of the broker blocks publishers."""


class Unconfirmed(BrokerUnavailable):
    """The connection was lost before the response: the operation may or may not be complete."""


class ConfirmationTimeout(Unconfirmed):
    """The broker did not confirm the message in time: it may or may not be queued."""


class AccessRefused(BrokerError):
    """The broker refused access: the credentials are wrong, or a permission is missing."""


class UntrustedBroker(BrokerError):
    """The broker's certificate could not be verified; no credentials were sent."""


class IncompatibleBroker(BrokerError):
    """The broker, or an object in it, would break the guarantees."""


class QueueNotFound(BrokerError):
    """The queue does not exist."""


class NotSent(BrokerError):
    """The message was not confirmed in time: it may or may not be queued."""


class NotAllSent(NotSent):
    """Some messages of a batch were not confirmed.

    Attributes:
        ids: the message IDs in the order of the calls; None: not tried, or possibly not queued.
    """

    def __init__(self, message: str | None = None, *, ids: list[str | None] | None = None) -> None:
        super().__init__(message)
        self.ids: list[str | None] = ids or []


class Unroutable(BrokerError):
    """The message is unroutable: no queue is bound for it."""


class Rejected(BrokerError):
    """The broker rejected the message because the queue is full."""


class NotAllSeen(BrokerError):
    """Not all parked messages could be read.

    Attributes:
        left: the number of the messages that were not read.
    """

    def __init__(self, message: str | None = None, *, left: int = 0) -> None:
        super().__init__(message)
        self.left = left


class OtherArguments(IncompatibleBroker):
    """The queue exists with other arguments.

    Attributes:
        queue: its name.
        argument: the first that differs.
    """

    def __init__(self, message: str | None = None, *, queue: str = "", argument: str = "") -> None:
        super().__init__(message)
        self.queue = queue
        self.argument = argument


class DeliveryLost(BrokerError):
    """The channel of the delivery closed; the broker requeued the message."""


class Overtaken(BrokerError):
    """The change was given up: other programs kept changing the same loop first."""
