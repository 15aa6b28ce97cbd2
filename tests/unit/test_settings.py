import os
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from scheduler.errors import SettingsError
from scheduler.settings import Settings

SECRET = "amqp://shop:open-sesame@broker:5672/"


@pytest.fixture(autouse=True)
def no_settings_of_this_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.upper().startswith("SCHEDULER_")]:
        monkeypatch.delenv(name)


def test_the_defaults_suit_a_broker_on_this_machine():
    settings = Settings()
    assert settings.broker_url.get_secret_value() == "amqp://guest:guest@localhost:5672/"
    assert settings.model_dump(exclude={"broker_url"}) == {
        "broker_url_file": None,
        "broker_user": None,
        "broker_user_file": None,
        "broker_password": None,
        "broker_password_file": None,
        "tls_ca_file": None,
        "tls_cert_file": None,
        "tls_key_file": None,
        "tls_verify": True,
        "management_url": None,
        "queue_type": "quorum",
        "concurrency": 100,
        "threads": 40,
        "delivery_limit": 20,
        "longest_lead": timedelta(milliseconds=100),
        "shutdown_grace": timedelta(seconds=25),
        "heartbeat": timedelta(seconds=20),
        "journal_max_age": timedelta(days=7),
        "journal_max_bytes": 1_000_000_000,
        "supervision_interval": timedelta(seconds=15),
        "send_deadline": timedelta(seconds=30),
        "send_first_wait": timedelta(seconds=1),
        "send_multiplier": 1.6,
        "send_jitter": 0.2,
        "send_longest_wait": timedelta(minutes=2),
        "health_port": None,
        "metrics_port": None,
        "environment": "",
        "environment_color": None,
        "log_level": "info",
        "log_format": "text",
    }


@pytest.mark.parametrize(
    ("variable", "text", "value"),
    [
        ("SCHEDULER_BROKER_URL", SECRET, SecretStr(SECRET)),
        ("SCHEDULER_BROKER_URL_FILE", "/run/secrets/url", Path("/run/secrets/url")),
        ("SCHEDULER_TLS_VERIFY", "off", False),
        ("SCHEDULER_DELIVERY_LIMIT", "1", 1),
        ("SCHEDULER_SHUTDOWN_GRACE", "1m30s", timedelta(seconds=90)),
        ("SCHEDULER_SHUTDOWN_GRACE", "0s", timedelta(0)),
        ("SCHEDULER_LONGEST_LEAD", "200ms", timedelta(milliseconds=200)),
        ("SCHEDULER_JOURNAL_MAX_AGE", "1h", timedelta(hours=1)),
        ("SCHEDULER_JOURNAL_MAX_BYTES", "50000000", 50_000_000),
        ("SCHEDULER_SUPERVISION_INTERVAL", "1s", timedelta(seconds=1)),
        ("SCHEDULER_METRICS_PORT", "65535", 65535),
    ],
)
def test_a_setting_is_read_from_the_environment(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, value: Any
):
    monkeypatch.setenv(variable, text)
    assert getattr(Settings(), variable.removeprefix("SCHEDULER_").lower()) == value


def test_code_overrides_the_environment(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCHEDULER_CONCURRENCY", "7")
    monkeypatch.setenv("SCHEDULER_DELIVERY_LIMIT", "8")
    settings = Settings(concurrency=3)
    assert (settings.concurrency, settings.delivery_limit) == (3, 8)


@pytest.mark.parametrize(
    ("variable", "text", "told"),
    [
        ("SCHEDULER_TLS_VERIFY", "perhaps", "valid boolean"),
        ("SCHEDULER_QUEUE_TYPE", "stream", "'quorum' or 'classic'"),
        ("SCHEDULER_CONCURRENCY", "0", "greater than or equal to 1"),
        ("SCHEDULER_CONCURRENCY", "10001", "less than or equal to 10000"),
        ("SCHEDULER_THREADS", "1001", "less than or equal to 1000"),
        ("SCHEDULER_DELIVERY_LIMIT", "0", "greater than or equal to 1"),
        ("SCHEDULER_DELIVERY_LIMIT", "100", "less than or equal to 99"),
        ("SCHEDULER_SEND_JITTER", "-1", "greater than or equal to 0"),
        ("SCHEDULER_SHUTDOWN_GRACE", "25", "a number and a unit"),
        ("SCHEDULER_HEARTBEAT", "999ms", "expected at least 1s, got: 999ms"),
        ("SCHEDULER_JOURNAL_MAX_AGE", "59m", "expected at least 1h, got: 59m"),
        ("SCHEDULER_LONGEST_LEAD", "1s", "expected at most 200ms, got: 1s"),
        ("SCHEDULER_JOURNAL_MAX_BYTES", "49999999", "equal to 50000000"),
        ("SCHEDULER_SUPERVISION_INTERVAL", "999ms", "expected at least 1s, got: 999ms"),
        ("SCHEDULER_HEALTH_PORT", "0", "greater than or equal to 1"),
        ("SCHEDULER_HEALTH_PORT", "65536", "less than or equal to 65535"),
        ("SCHEDULER_METRICS_PORT", "tcp://10.0.0.7:9100", "enableServiceLinks: false"),
        ("SCHEDULER_LOG_LEVEL", "loud", "'debug', 'info', 'warning' or 'error'"),
        ("SCHEDULER_LOG_FORMAT", "xml", "'text', 'dated' or 'json'"),
    ],
)
def test_a_bad_value_is_refused_with_its_variable(
    monkeypatch: pytest.MonkeyPatch, variable: str, text: str, told: str
):
    monkeypatch.setenv(variable, text)
    with pytest.raises(SettingsError, match=rf"{variable}: .*{told}"):
        Settings()


@pytest.mark.parametrize(
    ("variable", "meant"),
    [
        ("SCHEDULER_CONCURENCY", "SCHEDULER_CONCURRENCY"),
        ("scheduler_concurency", "SCHEDULER_CONCURRENCY"),
        ("SCHEDULER_APPS", "SCHEDULER_APP"),
    ],
)
def test_a_misspelt_variable_is_refused(monkeypatch: pytest.MonkeyPatch, variable: str, meant: str):
    monkeypatch.setenv(variable, SECRET)
    told = f"There is no setting {variable.upper()}: did you mean {meant}"
    with pytest.raises(SettingsError, match=told) as refused:
        Settings()
    assert "sesame" not in str(refused.value)


@pytest.mark.parametrize(
    "variable",
    [
        "SCHEDULER_APP",
        "SCHEDULER_TEST_BROKER_URL",
        "SCHEDULER_COLOUR",
        # what Kubernetes sets for the Services `scheduler` and `scheduler-metrics`
        "SCHEDULER_SERVICE_HOST",
        "SCHEDULER_METRICS_PORT_9090_TCP_ADDR",
    ],
)
def test_variables_of_other_programs_are_ignored(monkeypatch: pytest.MonkeyPatch, variable: str):
    monkeypatch.setenv(variable, "7")
    assert Settings().concurrency == 100


def test_bad_values_in_code_are_refused_the_same_way():
    with pytest.raises(SettingsError, match="Settings takes no colour=; it takes broker_url="):
        Settings(colour="red")
    with pytest.raises(SettingsError, match="SCHEDULER_HEARTBEAT: .*got: 5"):
        Settings(heartbeat=5)


def test_all_bad_values_are_reported_without_the_broker_url(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SCHEDULER_BROKER_URL", SECRET)
    monkeypatch.setenv("SCHEDULER_CONCURRENCY", "many")
    monkeypatch.setenv("SCHEDULER_HEARTBEAT", "soon")
    both = r"SCHEDULER_CONCURRENCY: .*; SCHEDULER_HEARTBEAT: "
    wrong: list[tuple[dict[str, Any], str]] = [
        ({}, both),
        ({"broker_url": ["open-sesame"]}, "SCHEDULER_BROKER_URL: "),
    ]
    for given, told in wrong:
        with pytest.raises(SettingsError, match=told) as refused:
            Settings(**given)
        assert "sesame" not in str(refused.value)
        # A traceback would show what it was raised from, with the input.
        assert refused.value.__context__ is None
