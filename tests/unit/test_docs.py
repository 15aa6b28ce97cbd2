"""The reference leaves nothing out: what the code has is looked up in what is told of it."""

import inspect
import re
from collections.abc import Mapping
from dataclasses import fields
from functools import cache
from pathlib import Path

import pytest

import scheduler
from docs import facts, pictures
from scheduler import Scheduler, events, metrics, testing
from scheduler.control.beginnings import REPAIRED
from scheduler.control.loops import Where
from scheduler.control.supervision import ADVICE
from scheduler.events import Event
from scheduler.protocol import calls, tokens
from scheduler.protocol.hatchery import UNITS
from scheduler.protocol.messages import MEMBERS
from scheduler.protocol.topology import Named, Names, topology
from scheduler.sending import BlockingSender, CallTask
from scheduler.settings import Settings
from tests.chaos.faults import BY_NAME

DOCS = Path(facts.__file__).parent
EVENTS = [
    each for each in vars(events).values() if inspect.isclass(each) and issubclass(each, Event)
]
HEADERS = {
    {**MEMBERS, "routing_key": "key"}.get(each.name, each.name) for each in fields(calls.Call)
} - {"args", "message"}
OF_TOKENS = {MEMBERS.get(each.name, each.name) for each in fields(tokens.Token)} - {"loop", "trace"}


@cache
def written() -> Mapping[str, str]:
    """Return the generated pages; workers that run none of these tests do not make them."""
    return facts.pages()


def test_each_setting_is_documented() -> None:
    for name in Settings.model_fields:
        (row,) = [line for line in lines("settings.md") if f"`SCHEDULER_{name.upper()}`" in line]
        assert len(row.split("|")[3]) > len("  says  "), name


@pytest.mark.parametrize(("words", "command"), list(facts.commands()))
def test_each_option_of_a_command_is_documented(words: str, command: facts.Any) -> None:
    told = written()["commands.md"].split(f"## `{words}`\n")[1].split("\n## ")[0]
    for parameter in command.params:
        assert parameter.help
        assert (parameter.metavar or parameter.opts[0]) in told


def test_each_word_for_a_state_an_ending_or_a_repair_is_documented() -> None:
    page = (DOCS / "reference/words.md").read_text(encoding="utf-8")
    cells = " ".join(re.findall(r"^\| (`[^|]+) \|", page, re.MULTILINE))
    words = {*map(str, Where), *map(str, tokens.Ending), *ADVICE, *REPAIRED}
    assert words | {"adopted", "parked", "delayed"} <= {*re.findall(r"`(\w+)`", cells)}


def test_each_metric_is_documented() -> None:
    registry = metrics.instrument(Scheduler("told"))
    names = {metric.name for metric in registry.collect() if metric.name.startswith("scheduler_")}
    told = re.findall(r"^\| `(scheduler_\w+)`", written()["metrics.md"], re.MULTILINE)
    assert {name.removesuffix("_total") for name in told} == names


@pytest.mark.parametrize("kind", EVENTS)
def test_each_event_is_documented(kind: type[Event]) -> None:
    assert "scheduler.events" in (DOCS / "reference/events.md").read_text()
    assert kind.__doc__
    assert not kind.__doc__.startswith(f"{kind.__name__}(")  # which dataclasses put there
    assert kind.__subclasses__() or f"| `{kind.__name__}` |" in written()["events.md"]


@pytest.mark.parametrize("name", [*sorted(OF_TOKENS), "version", "namespace", "task", "key"])
def test_each_member_of_a_token_is_documented(name: str) -> None:
    assert re.search(rf"\b{name}\b", f"{tokens.__doc__}".split("member of the body")[1])


@pytest.mark.parametrize("name", sorted(HEADERS))
def test_each_header_of_a_call_is_documented(name: str) -> None:
    assert re.search(rf"-{name.replace('_', '-')}\b", f"{calls.__doc__}")


def test_each_queue_and_exchange_is_documented() -> None:
    told = set(re.findall(r"^\| `(.+?)`", written()["queues.md"], re.MULTILINE))
    names = Names(facts.NAMESPACE)
    asked = [name for name, each in vars(Names).items() if isinstance(each, Named)]
    assert {getattr(names, name) for name in asked} <= told
    wanted = facts.sample()
    whole = {each.name for each in (*wanted.exchanges, *wanted.queues)}
    folded = [name for name in whole - told if not re.search(r"\.(later|hatchery)\.", name)]
    assert folded == []
    assert [row.name for row in facts.rows(wanted) if not row.says] == ["EXCHANGE"]


def test_the_documented_number_of_queues_is_right() -> None:
    table = (DOCS / "explanation/why-rabbitmq.md").read_text()
    rows = re.findall(r"^\| (\d) tasks? \| (\d+) \| (\d+) \|$", table, re.MULTILINE)
    assert len(rows) == 2
    for tasks, *told in rows:
        names = [f"task{number}" for number in range(int(tasks))]
        known = [topology("told", [*names, "supervision"], called=called) for called in ([], names)]
        assert [len(each.queues) for each in known] == list(map(int, told))
    assert f"with one task has {rows[0][1]} queues" in (DOCS.parent / "README.md").read_text()


def test_each_public_name_is_documented() -> None:
    for name in scheduler.__all__:
        assert written()["api.md"].count(f":: scheduler.{name}\n") == 1


@pytest.mark.parametrize("kind", [Scheduler, CallTask, BlockingSender])
def test_each_public_method_has_a_docstring(kind: type) -> None:
    """Without a docstring, the reference would leave it out."""
    assert f":: {kind.__module__}.{kind.__name__}" in written()["api.md"].replace(
        ":: scheduler.Scheduler", ":: scheduler.app.Scheduler"
    )
    said = {name: inspect.getdoc(getattr(kind, name)) for name in dir(kind) if name[0] != "_"}
    said |= {name: inspect.getdoc(getattr(testing, name)) for name in testing.__all__}
    assert [name for name, text in said.items() if not text] == []


def test_each_alert_has_its_runbook() -> None:
    named = re.findall(r"- alert: (\w+)", facts.ALERTS.read_text())
    assert [f"## {name}" for name in named] == [
        line for line in lines("alerts.md") if line.startswith("## ")
    ]


def test_the_picture_of_the_hatchery_shows_each_unit() -> None:
    drawn = pictures.drawn()["hatchery.svg"]
    assert [unit.name for unit in UNITS if f">{unit.name}<" not in drawn] == []


@pytest.mark.parametrize("name", ["README.md", "CONTRIBUTING.md", "SECURITY.md"])
def test_links_of_pages_outside_the_site_work(name: str) -> None:
    links = re.findall(r"\]\((?!https?:|#)([^)#]+)", (DOCS.parent / name).read_text())
    assert [link for link in links if not (DOCS.parent / link).exists()] == []


def lines(page: str) -> list[str]:
    return written()[page].splitlines()


FAULTS = (DOCS / "explanation/guarantees.md").read_text().split("## Fault by fault")[1]
ROWS = [line for line in FAULTS.splitlines() if line.startswith("| ") and "| shown by" not in line]
TESTS = {
    name: path
    for path in (DOCS.parent / "tests").rglob("test_*.py")
    for name in re.findall(r"^(?:async )?def (test_\w+)", path.read_text(encoding="utf-8"), re.M)
}


@pytest.mark.parametrize("row", ROWS, ids=[f"row {number}" for number in range(len(ROWS))])
def test_each_guarantee_under_a_fault_names_its_test_or_storm(row: str) -> None:
    *said, shown = row.split("|")[1:-1]
    names = re.findall(r"`([\w-]+)`", shown)
    assert names
    assert [name for name in names if name not in TESTS and name not in BY_NAME] == []
    storms = [BY_NAME[name] for name in names if name in BY_NAME]
    for seconds in re.findall(r"within (\d+) s", said[3]):
        assert {storm.patience for storm in storms} == {float(seconds)}


def test_each_fault_of_the_storms_is_documented() -> None:
    assert [name for name in BY_NAME if f"`{name}`" not in FAULTS] == ["calm"]
