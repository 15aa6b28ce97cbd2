"""Open the shared state of a processor's runs before the first, and close it after the last."""

import asyncio
import logging
from contextlib import AbstractAsyncContextManager
from datetime import timedelta
from typing import Any

from scheduler.errors import LifespanError
from scheduler.middleware import LifespanFunction, name_of
from scheduler.processor.shutdown import Shutdown
from scheduler.protocol.messages import summary_of
from scheduler.user_code import UserCode

CLOSING_TIMEOUT = timedelta(seconds=5)


class Lifespan:
    """Hold the state of a processor's runs. One task opens and closes it, as some libraries need.

    Attributes:
        state: the value that the app's function yielded; None without one.
        is_open: whether runs can use it: not if the processor was stopped before.
    """

    def __init__(self, app: Any, function: LifespanFunction | None, shutdown: Shutdown) -> None:
        self.state: Any = None
        self.is_open = False
        self._app = app
        self._function = function
        self._shutdown = shutdown
        self._opening: asyncio.Timeout | None = None
        self._manager: AbstractAsyncContextManager[Any] | None = None

    async def __aenter__(self) -> "Lifespan":
        if self._function is None:
            self.is_open = True
        elif not self._shutdown.begun.done():
            await self._open(self._function)
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._manager is None:
            return
        try:
            async with asyncio.timeout(CLOSING_TIMEOUT.total_seconds()):
                # However the processor ended, the code after `yield` closes the resources.
                with UserCode("it"):
                    await self._manager.__aexit__(None, None, None)
        except Exception as error:
            name = name_of(self._function)
            logging.getLogger(__name__).exception("The lifespan %s could not be closed", name)
            if kind is asyncio.CancelledError:  # a task group in it does so when a task has failed
                raise LifespanError(
                    f"The lifespan {name} has ended the processor: {summary_of(error)}"
                ) from error

    async def _open(self, function: LifespanFunction) -> None:
        self._shutdown.begun.add_done_callback(self._give_up)
        opening = asyncio.timeout(None)
        try:
            async with opening as self._opening:
                with UserCode("it"):
                    manager = function(self._app)
                    self.state = await manager.__aenter__()
            self._manager, self.is_open = manager, True
        except Exception as error:
            if not opening.expired():
                raise LifespanError(
                    f"The lifespan {name_of(function)} could not be opened, and no run was begun: "
                    f"{summary_of(error)}"
                ) from error
        finally:
            self._opening = None
            self._shutdown.begun.remove_done_callback(self._give_up)

    def _give_up(self, _: object) -> None:
        if self._opening is not None:
            self._opening.reschedule(0)
