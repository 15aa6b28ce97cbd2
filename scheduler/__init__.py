"""Periodic jobs and delayed retries as TTL loops in RabbitMQ."""

from scheduler.app import Scheduler
from scheduler.context import Context
from scheduler.errors import (
    AccessRefused,
    AppNotFound,
    BrokerError,
    BrokerUnavailable,
    CarryError,
    DeliveryLost,
    IncompatibleBroker,
    InvalidArguments,
    Locked,
    MessageError,
    NotSent,
    PortUnavailable,
    QueueNotFound,
    RegistrationError,
    Rejected,
    ScheduleError,
    SchedulerError,
    SettingsError,
    Unconfirmed,
    Undecodable,
    UnknownLoop,
    Unroutable,
    UsageError,
)
from scheduler.outcomes import Reject, RetryLater, StopLoop
from scheduler.retries import Retry
from scheduler.schedules import Cron, Every
from scheduler.settings import Settings

__all__ = [
    "AccessRefused",
    "AppNotFound",
    "BrokerError",
    "BrokerUnavailable",
    "CarryError",
    "Context",
    "Cron",
    "DeliveryLost",
    "Every",
    "IncompatibleBroker",
    "InvalidArguments",
    "Locked",
    "MessageError",
    "NotSent",
    "PortUnavailable",
    "QueueNotFound",
    "RegistrationError",
    "Reject",
    "Rejected",
    "Retry",
    "RetryLater",
    "ScheduleError",
    "Scheduler",
    "SchedulerError",
    "Settings",
    "SettingsError",
    "StopLoop",
    "Unconfirmed",
    "Undecodable",
    "UnknownLoop",
    "Unroutable",
    "UsageError",
]
