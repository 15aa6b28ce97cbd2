"""A tick that changes hands while supervision looks for it is not run twice at once."""

import asyncio
from contextlib import AsyncExitStack, suppress

from scheduler.tasks.tasks import SUPERVISION
from tests.faulty import Call, FaultyBroker
from tests.stage import Stage, new_app

ROUND = 15.0
LONGEST = 20.0


class Passing:
    """A pod that has a tick in hand whenever its queue is looked at, and not when hands are asked.

    Attributes:
        begun: set while the tick is being run.
    """

    def __init__(self, stage: Stage, task: str) -> None:
        self.begun = asyncio.Event()
        self._stage = stage
        self._task = task
        self._work = AsyncExitStack()
        self._working = False

    def looked_at_over(self, broker: FaultyBroker) -> None:
        names = self._stage.app.names
        broker.on("depth", names.processor_queue(self._task)).first(self.take)
        broker.on("depth", names.processor_queue(SUPERVISION.task)).first(self.give_back)
        broker.on("publish", where=_asks_for_hands).first(self.give_back)

    async def take(self, call: Call) -> None:
        if not self._working:
            self._working = True
            await self._work.enter_async_context(
                self._stage.supervised(tasks=[self._task], grace=0)
            )
            with suppress(TimeoutError):  # it may be on its way
                async with asyncio.timeout(LONGEST):
                    await self.begun.wait()

    async def give_back(self, call: Call | None = None) -> None:
        self._working = False
        await self._work.aclose()


def _asks_for_hands(call: Call) -> bool:
    return call.message.type == "scheduler.question"


async def test_a_tick_that_is_taken_when_its_queue_is_looked_at_is_not_run_beside(
    stage: Stage,
) -> None:
    app, going, most = new_app(), list[int](), list[int]()

    @app.periodic(every="10s", timeout="1h", concurrency=1)
    async def task() -> None:
        going.append(1)
        most.append(len(going))
        passing.begun.set()
        try:
            await asyncio.sleep(300)
        finally:
            passing.begun.clear()
            going.pop()

    @app.periodic(every="1h")
    async def other() -> None: ...

    await stage.seed(app)
    passing = Passing(stage, "task")
    await asyncio.sleep(11)
    broker = FaultyBroker(stage.server)
    passing.looked_at_over(broker)
    async with stage.supervised(tasks=["other"], over=broker):
        try:
            for _ in range(6):
                await asyncio.sleep(ROUND)
                if stage.repairs():
                    break
            async with stage.supervised(tasks=["task"]):
                await asyncio.sleep(2)
                assert max(most) == 1
        finally:
            await passing.give_back()
