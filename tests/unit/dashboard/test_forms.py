"""Loops and their schedules, as somebody writes them into a form."""

from types import SimpleNamespace
from typing import Any

import pytest
from starlette.datastructures import FormData

from scheduler import Cron, Every, Scheduler
from scheduler.dashboard.access import Visitor
from scheduler.dashboard.forms import Form
from scheduler.errors import UsageError
from scheduler.timing.schedules import Recurring, options_of
from tests.stage import new_app


def form(**fields: str) -> Form:
    return Form("start", Visitor("ada"), FormData(fields))


@pytest.mark.parametrize(
    "schedule",
    [
        Every("90s"),
        Every("1h", mode="fixed_rate", offset="10m", jitter="5s", catch_up="all"),
        Cron("0 9 * * MON-FRI", tz="Europe/Berlin", catch_up="skip", grace="5m"),
        Cron("*/5 * * * *"),
    ],
)
def test_a_schedule_is_written_and_read(schedule: Recurring) -> None:
    assert form(**options_of(schedule)).schedule() == schedule


def test_the_page_to_go_back_to_is_one_of_the_dashboard() -> None:
    for back, page in (
        ("/failed?task=sms&done=7", "/failed?task=sms&done=8"),
        ("https://example.com/loops", "/loops?done=8"),
        ("//example.com", "/?done=8"),
        ("http://[", "/?done=8"),
        ("", "/?done=8"),
    ):
        assert form(back=back).back("8") == page


def app() -> Scheduler:
    app = new_app()

    @app.task
    async def visit(ward: str, beds: int = 2) -> None: ...

    return app


def test_a_keyed_loop_is_read_and_the_zone_of_a_period_ignored() -> None:
    fields = {"task": "visit", "key": "n.1", "every": "1h", "tz": "Europe/Berlin"}
    loop = form(**fields, args='{"ward": "north"}').loop(app())
    assert (str(loop), loop.schedule, loop.args) == ("visit.n.1", Every("1h"), {"ward": "north"})
    assert loop.task.arguments.required == ["ward"]


HOURLY = {"every": "1h"}
DAILY = {"cron": "0 9 * * *"}
AT_MULTIPLES = "use “at multiples of the period”, or “run once for all of them”"


@pytest.mark.parametrize(
    ("fields", "told"),
    [
        ({}, "write one of them"),
        (HOURLY | DAILY, "write one of them"),
        (HOURLY | {"offset": "5m"}, "“Offset of the multiples” needs “at multiples of the period”"),
        (HOURLY | {"catch_up": "all"}, f"“run each” needs .*: {AT_MULTIPLES}"),
        (
            HOURLY | {"grace": "5m"},
            "“Skip when later than” needs “skip them”, got: “run once for all of them”",
        ),
        (HOURLY | {"jitter": "soon"}, "^“Jitter”: expected a number and a unit"),
        (DAILY | {"offset": "5m"}, "^Cron takes no “Offset of the multiples”"),
        (DAILY | {"tz": "Europe/Berlim"}, "^“by the clock of”: .*Europe/Berlin"),
        (HOURLY | {"task": "visits"}, "visit"),
        (HOURLY | {"args": "[]"}, "JSON object"),
        (HOURLY | {"args": "[" * 100_000}, "JSON object"),
        (HOURLY | {"args": '{"ward": "n", "doors": 1}'}, "doors"),
    ],
)
def test_an_invalid_loop_is_reported_by_field(fields: dict[str, str], told: str) -> None:
    loop = {"task": "visit", "key": "n", "args": '{"ward": "north"}'}
    with pytest.raises(UsageError, match=told) as error:
        form(**{**loop, **fields}).loop(app())
    assert "=" not in str(error.value)


class Name(str):
    """A name that counts how often it is looked at."""

    looks = 0

    def __str__(self) -> str:
        return self

    def __hash__(self) -> int:
        Name.looks += 1
        return super().__hash__()

    def __eq__(self, other: object) -> bool:
        Name.looks += 1
        return super().__eq__(other)


def test_each_name_of_a_bulk_action_is_looked_at_a_few_times() -> None:
    names = [Name(f"loop.{number}") for number in range(300)]
    fields = FormData([("filter", ""), *(("loop", name) for name in names)])
    bulk = Form("pause", Visitor("ada"), fields)
    standings: Any = [SimpleNamespace(name=name) for name in [*names, Name("new")]]
    assert bulk.changes(standings) == ["1 more match the filter since, and were left alone: new"]
    assert bulk.loops(standings) == names
    assert Name.looks < 10 * len(names)
