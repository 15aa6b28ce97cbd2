"""Who holds up the event loop is told while it does, and counted when it goes on."""

import asyncio
import itertools
import logging
import threading
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from scheduler.events import Event, EventLoopBlocked
from scheduler.processor import watchdog
from scheduler.processor.watchdog import BLOCKED_AFTER, Watchdog

AT_ONCE = timedelta(milliseconds=20)
PATIENCE_S = 10


class Ear(logging.Handler):
    """Hears the warning, in the watchdog's thread."""

    def __init__(self) -> None:
        super().__init__()
        self.heard = threading.Event()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        self.heard.set()


@pytest.fixture(autouse=True)
def short_interval(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "ASK_AGAIN_S", 0.1)


@pytest.fixture
def ear() -> Iterator[Ear]:
    ear, logger = Ear(), logging.getLogger("scheduler.processor.watchdog")
    logger.addHandler(ear)
    yield ear
    logger.removeHandler(ear)


def line_of(mark: str) -> int:
    lines = Path(__file__).read_text().splitlines()
    return next(number for number, line in enumerate(lines, 1) if line.endswith(f"# {mark}"))


def never(event: Event) -> None:
    pytest.fail(f"nobody blocked it: {event}")


async def block_until_told(ear: Ear, watched: Watchdog) -> None:
    assert watched.block is None
    assert ear.heard.wait(PATIENCE_S)  # blocks
    assert watched.block is not None


async def test_a_blocking_task_is_reported_once_with_its_line(ear: Ear) -> None:
    told: asyncio.Queue[Event] = asyncio.Queue()
    with Watchdog(told.put_nowait, after=AT_ONCE) as watched:
        await asyncio.create_task(block_until_told(ear, watched), name="run report #7")
        event = await asyncio.wait_for(told.get(), PATIENCE_S)
        assert watched.block is None
    place = f"{__file__}:{line_of('blocks')} (block_until_told), in {threading.__file__}:"
    assert isinstance(event, EventLoopBlocked)
    assert event.by == "run report #7"
    assert event.place.startswith(place)
    assert event.took >= AT_ONCE
    assert len(ear.lines) == 1
    assert ear.lines[0].startswith(f"the event loop is blocked by run report #7, at {place}")


async def test_a_blocking_callback_is_reported(ear: Ear) -> None:
    told: asyncio.Queue[Event] = asyncio.Queue()
    with Watchdog(told.put_nowait, after=AT_ONCE):
        asyncio.get_running_loop().call_soon(ear.heard.wait, PATIENCE_S)
        event = await asyncio.wait_for(told.get(), PATIENCE_S)
    assert isinstance(event, EventLoopBlocked)
    assert event.by == "a callback"


async def test_an_idle_event_loop_is_not_reported(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where nobody blocks it, it was the machine that stood still: here, the answer is late."""
    loop, looked = asyncio.get_running_loop(), asyncio.Event()
    tell, look = loop.call_soon_threadsafe, Watchdog.look
    found: list[object] = []

    def keep_back(_: object) -> None:
        """It is not woken up for it: what is looked at is a loop at rest."""

    def note(watchdog: Watchdog) -> tuple[str, str] | None:
        found.append(look(watchdog))
        if len(found) == 3:
            tell(looked.set)
        return None

    monkeypatch.setattr(loop, "call_soon_threadsafe", keep_back)
    monkeypatch.setattr(Watchdog, "look", note)
    with Watchdog(never, after=timedelta(0)):
        await looked.wait()
    assert found[:3] == [None] * 3
    assert not ear.lines


async def test_a_call_that_stops_all_threads_is_reported_with_its_line(
    ear: Ear, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Such as a regular expression that goes astray: the watchdog stands still as well."""
    told: asyncio.Queue[Event] = asyncio.Queue()
    now = itertools.count(0, 2 * (BLOCKED_AFTER.total_seconds() + watchdog.ASK_AGAIN_S))
    monkeypatch.setattr(watchdog, "monotonic", lambda: next(now))
    with Watchdog(told.put_nowait) as watched:
        began = asyncio.get_running_loop().time()
        await asyncio.create_task(block_until_told(ear, watched), name="run report #7")
        assert asyncio.get_running_loop().time() - began < BLOCKED_AFTER.total_seconds()
        assert isinstance(await asyncio.wait_for(told.get(), PATIENCE_S), EventLoopBlocked)
