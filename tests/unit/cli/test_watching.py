"""A watch while the broker is away: the last picture stays, and it is said."""

import asyncio
from datetime import timedelta
from io import StringIO

import pytest
from rich.console import Console
from rich.live import Live

from scheduler.cli.arguments import LIMIT
from scheduler.cli.status import Screen
from scheduler.control.status import Choice
from scheduler.errors import BrokerUnavailable
from tests.faulty import Call, FaultyBroker
from tests.stage import Stage, an_app, program_of

SECOND = timedelta(seconds=1)


class Shown:
    """What was shown last."""

    def __init__(self) -> None:
        self._file = StringIO()
        self.live = Live(console=Console(file=self._file, width=200), auto_refresh=False)

    @property
    def lines(self) -> list[str]:
        shown = Console(file=StringIO(), width=200)
        with shown.capture() as captured:
            shown.print(self.live.renderable)
        return captured.get().splitlines()


async def test_the_last_picture_stays_while_the_broker_is_away(stage: Stage) -> None:
    app = an_app("test", ["report"])
    await stage.seed(app)
    screen, shown = Screen(app, Choice(), SECOND), Shown()
    async with FaultyBroker(stage.server) as broker:
        program = program_of(app, broker, stage.clock)
        await screen.show_next(program, shown.live)
        title, _, *picture = shown.lines
        assert title.endswith("every 1 s until Ctrl-C")
        assert picture[1].startswith("report  waiting")
        away = broker.on("read").fails(BrokerUnavailable("It has gone."))
        await screen.show_next(program, shown.live)
        said, _, *same = shown.lines
        assert (said.endswith(": It has gone."), same) == (True, picture)
        await away.cease()
        await screen.show_next(program, shown.live)
        assert shown.lines[0].endswith("every 1 s until Ctrl-C")


async def test_a_broker_that_does_not_answer_is_told_while_it_is_waited_for(stage: Stage) -> None:
    app = an_app("test", ["report"])
    await stage.seed(app)
    screen, shown = Screen(app, Choice(), SECOND), Shown()
    said = list[str]()

    async def wait(_: Call) -> None:
        await asyncio.sleep(3.5)
        said.append(shown.lines[0])

    async with FaultyBroker(stage.server) as broker:
        program = program_of(app, broker, stage.clock)
        await screen.show_next(program, shown.live)
        broker.on("read").first(wait)
        await screen.show_next(program, shown.live)
    assert ": memory:// has not responded yet: it responds, but not to all" in said[0]
    assert shown.lines[0].endswith("every 1 s until Ctrl-C")


@pytest.mark.parametrize(
    ("takes", "alarm", "why"),
    [
        (0, "", "it responds, but not to all"),
        (0, "low on disk", "it is low on disk, and blocks publishers"),
        (60, "", "it is connected, and silent"),
    ],
)
async def test_a_round_that_takes_longer_than_the_limit_is_given_up(
    stage: Stage, monkeypatch: pytest.MonkeyPatch, takes: int, alarm: str, why: str
) -> None:
    app = an_app("test", ["report"])
    await stage.seed(app)
    screen, shown = Screen(app, Choice(), SECOND), Shown()
    LIMIT.set(3 * SECOND)
    async with FaultyBroker(stage.server) as broker:
        program = program_of(app, broker, stage.clock)
        await screen.show_next(program, shown.live)
        hangs = broker.on("read").first(lambda _: asyncio.sleep(60))
        monkeypatch.setattr(broker, "alarm", lambda: asyncio.sleep(takes, alarm))
        await screen.show_next(program, shown.live)
        assert f"memory:// has not responded within 3s: {why}" in shown.lines[0]
        monkeypatch.undo()
        await hangs.cease()
        await screen.show_next(program, shown.live)
        assert shown.lines[0].endswith("every 1 s until Ctrl-C")


async def test_that_nothing_is_known_at_first_is_an_error(stage: Stage) -> None:
    app = an_app("test", ["report"])
    await stage.seed(app)
    async with FaultyBroker(stage.server) as broker:
        broker.on("read").fails(BrokerUnavailable("It has gone."))
        with pytest.raises(BrokerUnavailable):
            await Screen(app, Choice(), SECOND).show_next(program_of(app, broker), Shown().live)
