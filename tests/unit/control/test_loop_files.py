"""Keyed loops made equal to a file, which is checked whole before anything is done."""

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from scheduler import Context, Cron, Every, Scheduler, UsageError
from scheduler.control.keyed import Keyed, Synced
from scheduler.errors import BrokerUnavailable
from tests.faulty import FaultyBroker
from tests.stage import Stage, new_app

FILE = """
[digest."user-42"]
every = "1h"
args = { user = 42, since = 2026-06-01 }

[digest."user-43"]
cron = "0 9 * * MON-FRI"
tz = "Europe/Berlin"
jitter = "5s"
catch_up = "skip"
grace = "10m"

[report.north]
every = "5m"
mode = "fixed_rate"
offset = "1m"
"""
REPORTS = '{"report": {"south": {"every": "1h"}}}'
DIGEST_43 = Cron("0 9 * * MON-FRI", tz="Europe/Berlin", jitter="5s", catch_up="skip", grace="10m")
NORTH = Every("5m", mode="fixed_rate", offset="1m")


def write(file: Path, text: str) -> None:
    file.write_text(text)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "loops.toml"


def coded() -> Scheduler:
    app = new_app()

    @app.task
    async def digest(ctx: Context, user: int = 0, since: date | None = None) -> None: ...

    @app.periodic(every="1h")
    async def report(ctx: Context) -> None: ...

    @app.task
    async def other(ctx: Context) -> None: ...

    return app


async def keyed(app: Scheduler, task: str) -> dict[str, Any]:
    of_task = Keyed(app.tasks[task], app.operations)
    return {loop.key: (loop.schedule, loop.args) for loop in await of_task.list()}


async def test_a_sync_makes_the_loops_those_of_the_file(stage: Stage, file: Path) -> None:
    await stage.seed(app := coded())
    await Keyed(app.tasks["other"], app.operations).start("a", every="1h")
    write(file, FILE)
    assert await synced(stage, file) == {
        "digest": Synced(["user-42", "user-43"], [], [], []),
        "report": Synced(["north"], [], [], []),
    }
    assert await keyed(app, "digest") == {
        "user-42": (Every("1h"), {"user": 42, "since": "2026-06-01"}),
        "user-43": (DIGEST_43, {}),
    }
    assert await keyed(app, "report") == {"north": (NORTH, {})}
    write(file, FILE.replace("user-43", "user-44").replace('"1h"', '"2h"'))
    assert await synced(stage, file) == {
        "digest": Synced(["user-44"], ["user-42"], ["user-43"], []),
        "report": Synced([], [], [], ["north"]),
    }
    assert list(await keyed(app, "other")) == ["a"]


async def synced(stage: Stage, file: Path) -> Mapping[str, Synced]:
    """What is done, which is what was planned, and planning alone changes nothing."""
    before = dict(await stage.listing())
    planned = await stage.app.sync_file(file, dry_run=True)
    assert await stage.listing() == before
    assert await stage.app.sync_file(str(file)) == planned
    return planned


async def test_a_file_may_be_json_and_leave_a_task_no_loop(stage: Stage, tmp_path: Path) -> None:
    await stage.seed(app := coded())
    file = tmp_path / "loops.json"
    write(file, REPORTS)
    await app.sync_file(file)
    assert await keyed(app, "report") == {"south": (Every("1h"), {})}
    write(file, '{"report": {}}')
    assert (await app.sync_file(file))["report"].stopped == ["south"]
    assert await keyed(app, "report") == {}
    assert [str(loop) for loop in await stage.loops.all()] == ["report"]


GOOD = '[report.north]\nevery = "5m"\n'


@pytest.mark.parametrize(
    ("format", "content", "told"),
    [
        ("toml", '[digset.a]\nevery="1h"', ", [digset]: There is no task 'digset'; did you mean"),
        ("toml", '[digest.a]\nevry="1h"', ", [digest.a]: There is no option 'evry'; did you mean"),
        ("toml", '[digest]\nevery="1h"', ", [digest.every]: expected a table of a loop, such as "),
        ("toml", "[digest.a]\nargs=5", ", [digest.a.args]: expected a table of arguments by name"),
        ("toml", f"{GOOD}[digest.a]", ", [digest.a]: expected one of every=, cron= and schedule="),
        (
            "toml",
            '[digest.a]\nevery="1h"\nargs={user="one"}',
            ", [digest.a]: The arguments do not fit digest: user: Input should be a valid integer",
        ),
        ("toml", '[digest."a b"]\nevery="1h"', """, [digest."a b"]: A key has 1 to 100 letters"""),
        ("toml", f"{GOOD}[digest.a", ": it cannot be read: Expected ']'"),
        ("toml", "", ": it names no task, so there is nothing to do."),
        ("toml", b"\xff", ": it cannot be read: 'utf-8' codec"),
        ("toml", None, ": it cannot be read: No such file or directory."),
        ("json", "[1]", ": expected an object of tasks, got: [1]."),
        (
            "json",
            '{"report": {"a": {"every": "1h"}, "b": {"every": "1h"}, "a": {"every": "2h"}}}',
            ': it cannot be read: the key "a" occurs twice in an object.',
        ),
        ("json", "[" * 100_000, ": it cannot be read: maximum recursion depth exceeded"),
    ],
    ids=range(14),
)
async def test_a_wrong_file_is_refused(
    stage: Stage, tmp_path: Path, format: str, content: str | bytes | None, told: str
) -> None:
    await stage.seed(app := coded())
    before = dict(await stage.listing())
    file = tmp_path / f"loops.{format}"
    if content is not None:
        file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(UsageError) as error:
        await app.sync_file(file)
    assert str(error.value).startswith(f"{file}{told}")
    assert str(error.value).endswith((". Nothing was changed.", "? Nothing was changed."))
    assert await stage.listing() == before


async def test_an_error_of_the_broker_says_how_far_it_came(stage: Stage, file: Path) -> None:
    await stage.seed(app := coded())
    write(file, FILE)
    async with FaultyBroker(stage.server) as broker:
        of_north = broker.on("publish", where=lambda call: b"north" in call.message.body)
        of_north.fails(BrokerUnavailable("Away"))
        with app.lending(broker, stage.clock), pytest.raises(BrokerUnavailable) as error:
            await app.sync_file(file)
    assert error.value.__notes__ == [
        "Some loops may have been updated; call it again.",
        "That was at the task 'report'; completed before it: digest.",
    ]
    assert list(await keyed(app, "digest")) == ["user-42", "user-43"]
    assert (await app.sync_file(file))["report"] == Synced(["north"], [], [], [])
