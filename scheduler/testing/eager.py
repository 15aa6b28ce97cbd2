"""Run sent messages at once, in place: for tests of code that sends."""

import asyncio
from collections.abc import Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from scheduler.app import Scheduler
from scheduler.brokers.contract import DEFAULT_TIMEOUT, Delivery
from scheduler.brokers.memory.broker import MemoryBroker
from scheduler.brokers.memory.connection import MemoryConnection
from scheduler.errors import UsageError
from scheduler.processor.lifespan import Lifespan
from scheduler.processor.runs import Executions, Run
from scheduler.processor.shutdown import Shutdown
from scheduler.processor.threads import Threads
from scheduler.protocol.calls import decode_call
from scheduler.protocol.messages import Message
from scheduler.timing.moments import SystemClock


@contextmanager
def eager(app: Scheduler, *, state: Any = None) -> Generator[None]:
    """Run each message to the app's tasks inside the block at once, in place.

    `await task.send(...)` returns when the task has, and raises its exception. The arguments are
    checked and travel as JSON, the functions under `@app.around` and `@app.around_sending` are
    called, the task's timeout holds, and a `def` task runs in a thread, all as in a processor.

    There is no broker, and nothing waits: `send_later` and `send_at` run at once too. Nothing is
    retried, parked or escalated: the sender gets the first failure. There are no loops, keyed or
    not, no lifespan, no rate, order or expiry, no messages of other applications, and `app.publish`
    is refused: use a `Kit` for all of these.

    Args:
        state: the value of `ctx.state` in runs.
    """
    clock = SystemClock()
    with app.lending(_EagerBroker(app, clock, state), clock, everywhere=True):
        yield


class _EagerBroker(MemoryBroker):
    """Run published messages."""

    def __init__(self, app: Scheduler, clock: SystemClock, state: Any) -> None:
        super().__init__()
        self._app = app
        self._clock = clock
        self._state = state

    async def publish(
        self,
        message: Message,
        *,
        exchange: str,
        routing_key: str,
        timeout: timedelta | None = DEFAULT_TIMEOUT,
        lane: int = 0,
    ) -> None:
        if not exchange.startswith(f"{self._app.names.prefix}."):
            raise UsageError(
                "Inside eager() nothing is published to exchanges: use a scheduler.testing.Kit."
            )
        delivery = _delivered(self._sent(message), exchange, routing_key)
        shutdown, around = Shutdown(), self._app.around_runs
        lifespan = Lifespan(self._app, None, shutdown)
        lifespan.state = self._state
        runs = Executions(self._clock, shutdown, lifespan, around, Threads(1, shutdown), 1)
        await runs.begin(self._run(delivery)).task

    def _run(self, delivery: Delivery) -> Run:
        task = self._app.tasks[delivery.routing_key.rpartition(".")[2]]
        call = decode_call(
            delivery.message,
            self._app.namespace,
            task.name,
            exchange=delivery.exchange,
            routing_key=delivery.routing_key,
        )
        now, arguments = self._clock.now(), task.arguments.load(call.args or {})
        return Run(delivery, task, call, arguments, now, received_at=now, started_at=now)

    def _open(self) -> MemoryConnection:
        raise UsageError(
            "Inside eager() messages run in place. There are no loops to start or stop, and no "
            "processor to ask: use a scheduler.testing.Kit."
        )


def _delivered(message: Message, exchange: str, routing_key: str) -> Delivery:
    async def nothing() -> None: ...

    lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    return Delivery(message, "", exchange, routing_key, False, lost, nothing, nothing)
