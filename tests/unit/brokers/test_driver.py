"""What our connections change of their driver: nothing, for anybody else in the program."""

import subprocess
import sys

import aiormq
import pytest

from scheduler.brokers.amqp import driver

SEEN_BY_OTHERS = """
import logging, sys
import aiormq


def contents(owner):
    found = {}
    for name, value in vars(owner).items():
        found[name] = dict(value) if isinstance(value, dict) else value
        if isinstance(value, type) and value.__module__.startswith(("aiormq", "pamqp")):
            found[name] = value, dict(vars(value))
    return found


def seen():
    modules = [each for name, each in MODULES.items() if name.startswith(("aiormq", "pamqp"))]
    loggers = [logging.getLogger(f"aiormq{part}") for part in ("", ".connection", ".channel")]
    settings = [(each.level, each.disabled, each.propagate, each.handlers[:]) for each in loggers]
    return [contents(module) for module in modules], settings


MODULES = dict(sys.modules)
before = seen()
import scheduler.brokers.amqp.broker
scheduler.brokers.amqp.broker.AmqpBroker("amqp://localhost/")
assert seen() == before
"""


def test_the_driver_is_unchanged_for_other_users() -> None:
    done = subprocess.run(
        [sys.executable, "-c", SEEN_BY_OTHERS], capture_output=True, text=True, check=False
    )
    if done.returncode:
        pytest.fail(done.stderr)


def test_a_driver_without_an_overridden_name_is_refused() -> None:
    class Connection:
        def __init__(self) -> None: ...

    with pytest.raises(ImportError, match=r"_Connection__reader.*tested with aiormq>=") as refused:
        driver.check_private_names(aiormq.Channel, Connection)
    assert "_Channel__close_after_failure" not in str(refused.value)
