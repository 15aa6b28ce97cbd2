import asyncio
import signal
from collections.abc import Iterator

import pytest

from scheduler.cli.processing import on_signal


@pytest.fixture(autouse=True)
def handlers_as_they_were() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("on_windows", [False, True])
async def test_a_signal_is_told_to_who_asked_last(
    monkeypatch: pytest.MonkeyPatch, on_windows: bool
) -> None:
    loop = asyncio.get_running_loop()
    if on_windows:
        missing = asyncio.AbstractEventLoop.add_signal_handler
        monkeypatch.setattr(type(loop), "add_signal_handler", missing)
    told: asyncio.Queue[str] = asyncio.Queue()
    on_signal(lambda _: pytest.fail("another one has asked since"))
    on_signal(told.put_nowait)
    for name in ("SIGTERM", "SIGINT", "SIGTERM"):
        signal.raise_signal(signal.Signals[name])
        assert await asyncio.wait_for(told.get(), 10) == name
