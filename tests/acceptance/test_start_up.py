"""What a command loads: nobody waits for what is not used."""

from pathlib import Path

import pytest

from tests.acceptance.conftest import SHOP, UNREACHABLE, CommandLine

SPARED = f"{Path(__file__).parent / 'apps' / 'spared.py'}:app"


def loaded(offline: CommandLine, *command: str) -> set[str]:
    """The modules that a command imports."""
    environment = {"SCHEDULER_APP": SHOP, "SCHEDULER_BROKER_URL": UNREACHABLE}
    # A program of its own: the one that others are forked off has imported all before.
    done = offline.installed(*command, PYTHONPROFILEIMPORTTIME="1", **environment)
    lines = [line for line in done.err.splitlines() if line.startswith("import time:")]
    return {line.rpartition("|")[2].strip() for line in lines}


OF_VERSION = {"scheduler.queues", "scheduler.queues.about"}


@pytest.mark.parametrize(("command", "more"), [("--help", set[str]()), ("--version", OF_VERSION)])
def test_the_list_of_commands_loads_the_parser_and_nothing_else(
    offline: CommandLine, command: str, more: set[str]
):
    modules = loaded(offline, command)
    assert {name for name in modules if name.startswith("scheduler")} == more | {
        "scheduler",
        "scheduler.__main__",
        "scheduler.cli",
        "scheduler.cli.commands",
        "scheduler.errors",
    }
    assert not modules & {"aiormq", "asyncio", "croniter", "pydantic", "rich"}


@pytest.mark.parametrize("command", ["seed --help", "failed --help"])
def test_help_loads_neither_the_app_nor_what_talks_to_a_broker(offline: CommandLine, command: str):
    assert not loaded(offline, *command.split()) & {"shop", "aiormq"}


def test_next_loads_nothing_that_talks_to_a_broker_and_draws_no_table(offline: CommandLine):
    modules = loaded(offline, "next")
    assert {"scheduler.app", "pydantic"} <= modules
    assert not modules & {"aiormq", "rich", "scheduler.control.verbs", "scheduler.processor"}
    assert "pydantic_settings" not in modules  # nor is anything set


@pytest.mark.parametrize(("command", "name"), [("topology show", "rich"), ("status", "aiormq")])
def test_what_a_command_uses_is_loaded(offline: CommandLine, command: str, name: str):
    assert name in loaded(offline, *command.split())


def test_the_garbage_collector_of_a_processor_is_spared_what_was_imported(scheduler: CommandLine):
    with scheduler.processor(SCHEDULER_APP=SPARED) as processor:
        assert processor.until("spared: ").endswith("spared: True\n")
