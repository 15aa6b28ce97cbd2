"""Every knob, validated once at the edge: keyword arguments, then `SCHEDULER_*`, then defaults."""

from datetime import timedelta
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, SecretStr, ValidationError
from pydantic_settings import BaseSettings, SettingsConfigDict

from scheduler.durations import parse_duration
from scheduler.errors import ScheduleError, SettingsError


def _duration(value: Any) -> timedelta:
    try:
        return parse_duration(value)
    except ScheduleError as error:
        raise ValueError(str(error)) from None


def _port(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("tcp://"):
        raise ValueError(
            "the value is one that Kubernetes sets, for a Service whose name makes the same "
            "variable: rename the Service, or set enableServiceLinks: false"
        )
    return value


DurationSetting = Annotated[timedelta, BeforeValidator(_duration)]

Port = Annotated[int, Field(ge=1, le=65535)]
PortSetting = Annotated[Port | None, BeforeValidator(_port)]


class Settings(BaseSettings):
    """How a process of the scheduler behaves.

    Each field is read from the environment as `SCHEDULER_` and its name in capitals; durations are
    written like "30s".

    Raises:
        SettingsError: a value cannot be used; the message names the variable.
    """

    model_config = SettingsConfigDict(env_prefix="SCHEDULER_", frozen=True, extra="forbid")

    broker_url: SecretStr = SecretStr("amqp://guest:guest@localhost:5672/")
    """Where RabbitMQ is; `memory://` is the embedded broker, which lives as long as the process."""

    queue_type: Literal["quorum", "classic"] = "quorum"
    """Quorum queues are replicated; classic ones are faster, and gone with their node."""

    concurrency: int = Field(default=100, ge=1, le=10_000)
    """How many runs a processor has going at most, over all tasks."""

    delivery_limit: int = Field(default=20, ge=1)
    """Deliveries without an ack after which a message is parked (quorum queues)."""

    shutdown_grace: DurationSetting = timedelta(seconds=25)
    """How long a stopping processor lets its runs finish; Kubernetes kills it after 30 s."""

    heartbeat: Annotated[DurationSetting, Field(ge=timedelta(seconds=1))] = timedelta(seconds=20)
    """How often both ends of a connection show that they live."""

    health_port: PortSetting = None
    """Where a processor answers /livez and /readyz; None: nowhere."""

    metrics_port: PortSetting = None
    """Where it answers /metrics, for Prometheus; may be the same. None: nowhere."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    log_format: Literal["text", "json"] = "text"

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SettingsError(_told(error)) from None


def _told(error: ValidationError) -> str:
    problems = [
        f"SCHEDULER_{'_'.join(map(str, problem['loc'])).upper()}: {problem['msg']}"
        for problem in error.errors(include_url=False, include_input=False)
    ]
    return "A setting cannot be used. " + "; ".join(problems) + "."
