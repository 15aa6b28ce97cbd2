"""The path of a run: the modules and lines of the package that one run of a loop visits.

`python -m tests.path` prints them, from the decoding of its token to the ack, on the embedded
broker; `python -m tests.path amqp://...` on a RabbitMQ. Nothing listens to events, and the run is
a common one: neither the first of its epoch nor redelivered.
"""

import asyncio
import sys
import uuid
from collections import defaultdict
from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import fields
from datetime import datetime, timedelta
from types import FrameType
from typing import Any

from scheduler import Scheduler, Settings
from scheduler.brokers.contract import Delivery
from scheduler.brokers.opening import broker_of
from scheduler.processor.pipeline import Pipeline
from scheduler.program import Program, processor
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.moments import SystemClock
from tests import shape

RUNS = 3  # before the one that is followed
_is_followed: ContextVar[bool] = ContextVar("followed", default=False)


class Followed(Pipeline):
    """Follow one delivery through the steps of a processor."""

    def __post_init__(self) -> None:
        super().__post_init__()
        self.lines = defaultdict[str, set[int]](set)
        self.handled = 0

    async def handle(self, delivery: Delivery, task: TaskSpec) -> datetime | None:
        self.handled += 1
        if self.handled != RUNS + 1:
            return await super().handle(delivery, task)
        _is_followed.set(True)
        sys.settrace(self._trace)
        try:
            return await super().handle(delivery, task)
        finally:
            sys.settrace(None)

    def _trace(self, frame: FrameType, event: str, _: Any) -> Any:
        file = frame.f_code.co_filename
        if not file.startswith(str(shape.ROOT)):
            return None
        if event == "line" and _is_followed.get():
            self.lines[file].add(frame.f_lineno)
        return self._trace


async def path_of_a_run(url: str = "memory://") -> Mapping[str, int]:
    """Return how many lines are visited in each module."""
    app = Scheduler(f"path-{uuid.uuid4().hex[:8]}", Settings.model_validate({"broker_url": url}))
    enough = asyncio.Event()

    @app.periodic(every="100ms")
    async def report() -> None:
        if pipeline.handled > RUNS + 1:
            enough.set()

    clock = SystemClock()
    async with broker_of(app.settings, emit=app.events.emit) as broker:
        await Program(app, broker, clock).seeding.seed()
        grace = timedelta(seconds=1)
        process = processor(
            app, broker, clock, tasks=[report.spec], concurrency=1, grace=grace, supervises=False
        )
        parts = {
            each.name: getattr(process.worker.pipeline, each.name) for each in fields(Pipeline)
        }
        process.worker.pipeline = pipeline = Followed(**parts)
        running = asyncio.create_task(process.run())
        await asyncio.wait_for(enough.wait(), 30)
        process.worker.stop()
        await running
        if not broker.info.is_embedded:
            for queue in app.topology().queues:
                await broker.delete(queue.name)
    names = {str(module.path): name for name, module in shape.modules().items()}
    return {names[file]: len(lines) for file, lines in sorted(pipeline.lines.items())}


def main() -> None:
    found, modules = asyncio.run(path_of_a_run(*sys.argv[1:])), shape.modules()
    for name, visited in found.items():
        sys.stdout.write(f"{name:30}{visited:4} of {modules[name].lines:4}\n")
    whole = sum(modules[name].lines for name in found)
    sys.stdout.write(f"{len(found)} modules, {sum(found.values())} lines visited of {whole}\n")


if __name__ == "__main__":
    main()
