"""Every error of the package.

A `UsageError` is what you wrote and cannot work: change it (exit code 2, HTTP 400). A `BrokerError`
is what the broker could not do (HTTP 503). A message with a `MessageError` that was received is
parked with it.

The default message of an error is the first line of its class's docstring.
How a task says that its run ended differently is not an error: see `scheduler.tasks.outcomes`.
"""


def default_message(kind: type[BaseException]) -> str:
    """What an error says that was given no message; a class may leave its docstring to its base."""
    docstring = next(each.__doc__ for each in kind.__mro__ if each.__doc__)
    return docstring.partition("\n")[0]


class SchedulerError(Exception):
    """Something went wrong in the scheduler."""

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or default_message(type(self)))


class NoSpace(SchedulerError):
    """The temporary file of the loops cannot be written."""


class UsageError(SchedulerError):
    """This cannot work as it is written."""


class ScheduleError(UsageError):
    """A schedule, a duration or a retry policy cannot be understood."""


class RegistrationError(UsageError):
    """A task, a hook or a listener cannot be registered like this."""


class SettingsError(UsageError):
    """A setting has a value that cannot be used."""


class AppNotFound(UsageError):
    """There is no app where the command was told to look."""


class UnknownLoop(UsageError):
    """The app has no such loop."""


class MessageError(SchedulerError):
    """A message cannot be used."""


class Undecodable(MessageError):
    """The message is not one of this format."""


class Unencodable(MessageError, UsageError):
    """The message has a header or a property that no message can carry: it was not sent."""


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
    """No such run is going on."""


class CarryError(SchedulerError):
    """The carried value cannot travel in a token."""


class LifespanError(SchedulerError):
    """What the runs of a processor share could not be opened, or has ended the processor."""


class PortUnavailable(SchedulerError):
    """The port cannot be listened on."""


class BrokerError(SchedulerError):
    """The broker could not do what was asked."""


class BrokerUnavailable(BrokerError):
    """There is no connection to the broker."""


class NoReplica(BrokerUnavailable):
    """The node of the broker has no running replica of the stream; another one may have."""


class StreamTooLong(BrokerUnavailable):
    """The stream holds more than could be read in the time that there was.

    Attributes:
        reached: the offset as far as which it was read; None: none of it was.
    """

    def __init__(self, message: str | None = None, *, reached: int | None = None) -> None:
        super().__init__(message)
        self.reached = reached


class Blocked(BrokerUnavailable):
    """A memory or disk alarm of the broker blocks senders: the message was not sent."""


class Unconfirmed(BrokerUnavailable):
    """The connection went before the broker's answer came: it may or may not have been done."""


class ConfirmationTimeout(Unconfirmed):
    """The broker did not confirm the message in time: it may or may not have been taken."""


class AccessRefused(BrokerError):
    """The broker refused access: wrong credentials, or a right is missing."""


class UntrustedBroker(BrokerError):
    """The broker's certificate does not show that it is the broker: it was told nothing."""


class IncompatibleBroker(BrokerError):
    """The broker, or an object in it, would break the guarantees."""


class QueueNotFound(BrokerError):
    """The queue does not exist."""


class NotSent(BrokerError):
    """The message was not confirmed in time: it may or may not have been taken."""


class NotAllSent(NotSent):
    """Some of many messages were not confirmed.

    Attributes:
        ids: of each, in the order of the calls; None: it was not tried, or may not have been taken.
    """

    def __init__(self, message: str | None = None, *, ids: list[str | None] | None = None) -> None:
        super().__init__(message)
        self.ids: list[str | None] = ids or []


class Unroutable(BrokerError):
    """No queue is bound for the message: the broker returned it."""


class Rejected(BrokerError):
    """The queue is full: the broker rejected the message."""


class NotAllSeen(BrokerError):
    """Not all parked messages could be looked at.

    Attributes:
        left: how many of those that were there at first.
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
    """The channel of the delivery is gone: the broker has given the message back to its queue."""


class Overtaken(BrokerError):
    """Other programs changed the same loop first, again and again."""
