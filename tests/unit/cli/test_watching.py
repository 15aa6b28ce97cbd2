"""A watch while the broker is away: the last picture stays, and it is said."""

import asyncio
from collections.abc import Sequence
from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console

from scheduler.cli.arguments import LIMIT
from scheduler.cli.status import Screen
from scheduler.control.status import Choice
from scheduler.errors import BrokerUnavailable
from scheduler.program import Program
from tests.faulty import FaultyBroker
from tests.stage import Stage, an_app, program_of

SECOND = timedelta(seconds=1)


async def lines_after(screen: Screen, program: Program) -> Sequence[str]:
    console = Console(file=StringIO(), width=200)
    with console.capture() as captured:
        console.print(await screen.next(program))
    return captured.get().splitlines()


@pytest.fixture
async def screen(stage: Stage) -> Screen:
    await stage.seed(app := an_app("test", ["report"]))
    return Screen(app, Choice(), SECOND)


async def test_the_last_picture_stays_while_the_broker_is_away(
    stage: Stage, screen: Screen
) -> None:
    async with FaultyBroker(stage.server) as broker:
        program = program_of(stage.app, broker, stage.clock)
        away = broker.on("read").fails(BrokerUnavailable("It has gone."))
        with pytest.raises(BrokerUnavailable):  # there is no picture yet
            await screen.next(program)
        await away.cease()
        title, _, *picture = await lines_after(screen, program)
        assert title.endswith("every 1 s until Ctrl-C")
        assert picture[1].startswith("report  waiting")
        away = broker.on("read").fails(BrokerUnavailable("It has gone."))
        said, _, *same = await lines_after(screen, program)
        assert (said.endswith(": It has gone."), same) == (True, picture)
        await away.cease()
        title, *_ = await lines_after(screen, program)
        assert title.endswith("every 1 s until Ctrl-C")


@pytest.mark.parametrize(
    ("takes", "alarm", "why"),
    [
        (0, "", "it responds, but not to all"),
        (0, "low on disk", "it is low on disk, and blocks publishers"),
        (60, "", "it is connected, and silent"),
    ],
)
async def test_a_round_that_takes_longer_than_the_limit_is_given_up(
    stage: Stage,
    screen: Screen,
    monkeypatch: pytest.MonkeyPatch,
    takes: int,
    alarm: str,
    why: str,
) -> None:
    LIMIT.set(3 * SECOND)
    async with FaultyBroker(stage.server) as broker:
        program = program_of(stage.app, broker, stage.clock)
        await lines_after(screen, program)
        hangs = broker.on("read").first(lambda _: asyncio.sleep(60))
        monkeypatch.setattr(broker, "alarm", lambda: asyncio.sleep(takes, alarm))
        said, *_ = await lines_after(screen, program)
        assert f"memory:// has not responded within 3s: {why}" in said
        monkeypatch.undo()
        await hangs.cease()
        title, *_ = await lines_after(screen, program)
        assert title.endswith("every 1 s until Ctrl-C")
