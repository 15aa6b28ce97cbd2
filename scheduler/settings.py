"""Define every setting, validated once: keyword arguments, then `SCHEDULER_*`, then defaults."""

import os
import re
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Field,
    SecretStr,
    ValidationError,
    model_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict

from scheduler.errors import ScheduleError, SettingsError
from scheduler.spelling import misnamed, nearest, without_kind
from scheduler.timing.durations import (
    LONGEST,
    MILLISECOND,
    SECOND,
    ZERO,
    format_duration,
    parse_duration,
)


def _duration(value: Any) -> timedelta:
    try:
        return parse_duration(value)
    except ScheduleError as error:
        raise ValueError(str(error)) from None


def _port(value: Any) -> Any:
    if isinstance(value, str) and value.startswith("tcp://"):
        raise ValueError(
            "Kubernetes sets this variable for a Service of the same name: rename the Service, or "
            "set enableServiceLinks: false"
        )
    return value


PREFIX = "SCHEDULER_"
APP = "SCHEDULER_APP"  # is for the command line
LIKENESS = 0.7
# Set by the project's tests, or by Kubernetes for a Service whose name begins like this.
OTHERS = re.compile(
    rf"{PREFIX}(TEST_.*|(.*_)?SERVICE_(HOST|PORT)(_.*)?|(.*_)?PORT_[0-9]+_(TCP|UDP|SCTP)(_.*)?)"
)


def _from_to(least: timedelta, most: timedelta = LONGEST) -> AfterValidator:
    """Return the bounds of a duration, formatted as durations are written."""

    def check(value: timedelta) -> timedelta:
        if not least <= value <= most:
            bound = "most" if value > most else "least"
            limit = format_duration(most if value > most else least)
            raise ValueError(f"expected at {bound} {limit}, got: {format_duration(value)}")
        return value

    return AfterValidator(check)


DurationSetting = Annotated[timedelta, BeforeValidator(_duration)]

Port = Annotated[int, Field(ge=1, le=65535)]
PortSetting = Annotated[Port | None, BeforeValidator(_port)]


class Settings(BaseSettings):
    """Configure a process of the scheduler.

    Each field is read from the environment as `SCHEDULER_` and its name in capitals; durations are
    written like "30s".

    Raises:
        SettingsError: a value cannot be used; the message names the variable.
    """

    model_config = SettingsConfigDict(env_prefix=PREFIX, frozen=True, extra="forbid")

    broker_url: SecretStr = SecretStr("amqp://guest:guest@localhost:5672/")
    """The URL of RabbitMQ; for a cluster, the URLs of several nodes, separated by commas, which
    differ in host and port alone. `memory://` is the embedded broker, which lives as long as the
    process.
    """

    broker_url_file: Path | None = None
    """A file that holds the broker URL, such as a mounted secret; secret files are read again at
    each connect, so a change needs no restart.
    """

    broker_user: Annotated[str, Field(min_length=1)] | None = None
    """The user, instead of the one in the broker URL; literal, not percent-encoded."""

    broker_user_file: Path | None = None
    """A file that holds the user."""

    broker_password: Annotated[SecretStr, Field(min_length=1)] | None = None
    """The password, instead of the one in the broker URL; literal, not percent-encoded."""

    broker_password_file: Path | None = None
    """A file that holds the password."""

    tls_ca_file: Path | None = None
    """Certificates (PEM) of the authorities that may sign the broker's certificate, instead of
    those that this machine trusts. TLS is used if the broker URL begins with `amqps://`.
    """

    tls_cert_file: Path | None = None
    """The client certificate (PEM), for brokers that require one."""

    tls_key_file: Path | None = None
    """Its private key (PEM, without a passphrase), unless it is in the same file."""

    tls_verify: bool = True
    """Verify the broker's certificate. Off: any server is accepted."""

    management_url: SecretStr | None = None
    """The URL of RabbitMQ's management API, such as `http://rabbitmq:15672`: `scheduler doctor` and
    supervision look there for policies that change the queues. They use the user of the broker URL,
    who needs the tag `management`, unless this URL names another user. None: no check.
    """

    queue_type: Literal["quorum", "classic"] = "quorum"
    """Quorum queues are replicated; classic ones are faster, and lost with their node."""

    concurrency: int = Field(default=100, ge=1, le=10_000)
    """The maximum number of concurrent runs of a processor, over all tasks."""

    threads: int = Field(default=40, ge=1, le=1_000)
    """The maximum number of concurrent runs of blocking functions (`def`), each in a thread."""

    delivery_limit: int = Field(default=20, ge=1, le=99)
    """Deliveries without an ack after which a message is parked, not run (quorum queues)."""

    longest_lead: Annotated[DurationSetting, _from_to(ZERO, 200 * MILLISECOND)] = 100 * MILLISECOND
    """The maximum time before its due time that a loop's token leaves the broker, to start on time:
    the lead follows the recent transit time to a processor. 0s: when it is due.
    """

    shutdown_grace: DurationSetting = timedelta(seconds=25)
    """The time that a stopping processor gives its runs; Kubernetes kills it after 30 s."""

    heartbeat: Annotated[DurationSetting, _from_to(SECOND)] = timedelta(seconds=20)
    """The interval at which both ends of a connection show that they are alive."""

    journal_max_age: Annotated[DurationSetting, _from_to(timedelta(hours=1))] = timedelta(days=7)
    """The maximum age of the journal."""

    journal_max_bytes: int = Field(default=1_000_000_000, ge=50_000_000)
    """The maximum size of the journal; the oldest records are dropped first."""

    supervision_interval: Annotated[DurationSetting, _from_to(SECOND)] = timedelta(seconds=15)
    """The interval of supervision rounds. A change takes effect at the next `seed`."""

    send_deadline: DurationSetting = timedelta(seconds=30)
    """The time to try to send; then the message is stored (`fallback=`), or `NotSent` raised."""

    send_first_wait: Annotated[DurationSetting, _from_to(MILLISECOND)] = SECOND
    """The wait before a message is sent again under flow control: an alarm blocks senders, the
    queue is full, or the confirmation is late. After a lost connection there is no wait.
    """

    send_multiplier: float = Field(default=1.6, ge=1, le=1000)
    """The factor from each of these waits to the next."""

    send_jitter: float = Field(default=0.2, ge=0, le=1)
    """Each wait is multiplied by a random factor from 1 - jitter to 1 + jitter."""

    send_longest_wait: Annotated[DurationSetting, _from_to(MILLISECOND)] = timedelta(minutes=2)
    """The limit of these waits."""

    health_port: PortSetting = None
    """The port of /livez and /readyz on a processor; None: no port."""

    metrics_port: PortSetting = None
    """The port of /metrics, for Prometheus; may be the same. None: no port."""

    environment: str = ""
    """The name that the dashboard shows next to the app's, such as `Production`; empty: none."""

    environment_color: Literal["magenta", "cyan", "gray"] | None = None
    """The color of that name. None: magenta for production, cyan for staging, else gray."""

    log_level: Literal["debug", "info", "warning", "error"] = "info"
    """The lowest level that is logged."""

    log_format: Literal["text", "dated", "json"] = "text"
    """The log format: lines of text have the time of day on the clock of this machine; dated lines
    have the date and the UTC offset.
    """

    def __init__(self, **values: Any) -> None:
        _check_names(os.environ)
        try:
            super().__init__(**values)
            return
        except ValidationError as error:
            message = _message_of(error)
        # Raised out here, where the context does not hold the secret input.
        raise SettingsError(message)

    @model_validator(mode="after")
    def _waits_grow(self) -> Self:
        if self.send_first_wait > self.send_longest_wait:
            first, longest = _variable("send_first_wait"), _variable("send_longest_wait")
            raise ValueError(f"{first} is longer than {longest}")
        return self

    @model_validator(mode="after")
    def _value_or_file(self) -> Self:
        for name in ("broker_url", "broker_user", "broker_password"):
            values = (getattr(self, name), getattr(self, f"{name}_file"))
            if name in self.model_fields_set and None not in values:
                raise ValueError(
                    f"{_variable(name)} and {_variable(name)}_FILE are both set: leave out one"
                )
        return self


def _check_names(environment: Mapping[str, str]) -> None:
    """Reject names that are nearly the name of a setting; other names may belong to other programs.

    Raises:
        SettingsError: there is one; the message names the nearest setting.
    """
    known = {*map(_variable, Settings.model_fields), APP}
    for name in sorted({name.upper() for name in environment} - known):
        if not name.startswith(PREFIX) or OTHERS.fullmatch(name):
            continue
        if near := nearest(
            name.removeprefix(PREFIX),
            (each.removeprefix(PREFIX) for each in known),
            likeness=LIKENESS,
        ):
            raise SettingsError(f"There is no setting {name}: did you mean {_variable(near)}?")


def _message_of(error: ValidationError) -> str:
    problems = error.errors(include_input=False)
    for problem in problems:
        if problem["type"] == "extra_forbidden":
            return misnamed("Settings", str(problem["loc"][0]), Settings.model_fields)
    problems = (
        ": ".join([*map(_variable, problem["loc"]), without_kind(problem["msg"])])
        for problem in problems
    )
    return f"A setting cannot be used. {'; '.join(problems)}."


def _variable(name: object) -> str:
    return f"{PREFIX}{name}".upper()
