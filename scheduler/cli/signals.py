"""Signals to stop, on whatever system."""

import asyncio
import signal
from collections.abc import Callable


def on_signal(act: Callable[[str], object]) -> None:
    """What a signal to stop does from now on, in the running event loop; it is told its name."""
    loop = asyncio.get_running_loop()

    def hand_over(number: int, _: object) -> None:
        loop.call_soon_threadsafe(act, signal.Signals(number).name)

    for number in (signal.SIGTERM, signal.SIGINT):
        try:
            loop.add_signal_handler(number, act, number.name)
        except NotImplementedError:  # on Windows
            signal.signal(number, hand_over)
