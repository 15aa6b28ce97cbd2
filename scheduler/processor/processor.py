"""A processor: a worker, its part in supervision, and its answers to roll calls."""

from collections.abc import Collection, Sequence
from datetime import timedelta

from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.control.supervision import Supervisor
from scheduler.processor.worker import Worker
from scheduler.protocol.messages import LoopId
from scheduler.queues.roll_call import Claims, RollCall, Settled
from scheduler.tasks.tasks import TaskSpec
from scheduler.timing.clock import Clock


class Processor:
    """One process that works on tasks until it is stopped.

    Args:
        tasks: the tasks to work on.
        concurrency: how many runs may go on at once, over all tasks.
        grace: how long `stop` lets runs finish before they are cancelled and requeued.

    Attributes:
        worker: does the work.
    """

    def __init__(
        self,
        app: Scheduler,
        broker: Broker,
        clock: Clock,
        *,
        tasks: Sequence[TaskSpec],
        concurrency: int,
        grace: timedelta,
    ) -> None:
        self._tasks = tasks
        self._roll_call = RollCall(broker, app.names, self)
        self._supervisor = Supervisor(app, broker, clock, self._roll_call)
        self.worker = Worker(
            app,
            broker,
            clock,
            tasks=(*tasks, self._supervisor.task),
            concurrency=concurrency,
            grace=grace,
            roll_call=self._roll_call,
        )

    async def run(self) -> None:
        """Process messages until `stop` is called.

        What was never seeded is seeded, if the broker's user may declare.

        Raises:
            QueueNotFound: something was never seeded, and we may not do it.
        """
        await self._supervisor.prepare(self._tasks)
        async with self._roll_call, self._supervisor:
            await self.worker.run()

    def stop(self) -> None:
        """Take no more messages, and end when those in hand are settled. May be called again."""
        self.worker.stop()

    def abort(self) -> None:
        """Stop, and do not wait for runs: cancel them and give their messages back."""
        self.worker.abort()

    @property
    def stopping(self) -> bool:
        """Whether it was told to stop, and takes no more messages."""
        return self.worker.stopping

    def in_hand(self) -> Claims:
        """The tokens that this processor has, and how far each has come."""
        return self.worker.in_hand()

    def running(self) -> Claims:
        """Those of them whose run has begun, and is not settled."""
        return self.worker.running()

    def refused(self) -> Collection[LoopId]:
        """The loops whose slot takes no token from it, though none waits there."""
        return self.worker.refused()

    def settled(self) -> Settled:
        """The last token that it has put for each loop."""
        return self.worker.settled()
