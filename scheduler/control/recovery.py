"""How a loop goes on whose token is not to be found: what the journal saw last, and guards."""

from collections.abc import Collection
from dataclasses import replace
from datetime import timedelta

from scheduler.brokers.contract import Broker
from scheduler.control.new_tokens import revived, with_act
from scheduler.errors import BrokerError, BrokerUnavailable, QueueNotFound
from scheduler.events import SupervisionDelayed
from scheduler.protocol.tokens import LoopId, State, Token, Verb
from scheduler.queues.journal import Journal, look_backs
from scheduler.tasks.loops import Loop
from scheduler.tasks.registry import App
from scheduler.timing.clock import Clock

GUARD_GRACE = timedelta(seconds=10)
# RabbitMQ's consumer_timeout, unless it was configured.
CONSUMER_TIMEOUT = timedelta(minutes=30)
JOURNAL_TIMEOUT = timedelta(seconds=20)  # at least


class Recovery:
    """The tokens with which loops go on.

    Args:
        patience: how long to read the journal.
    """

    def __init__(
        self, app: App, broker: Broker, clock: Clock, journal: Journal, patience: timedelta
    ) -> None:
        self._app = app
        self._broker = broker
        self._clock = clock
        self._within = max(patience, JOURNAL_TIMEOUT)
        self._journal = journal

    async def last_tokens(self, loops: Collection[Loop]) -> dict[LoopId, Token]:
        """The token of each loop as the journal saw it last; a new one, where it did not.

        Those that it cannot be read for to its end are left out, and that is told.
        """
        found, trouble = await self._read_back(loops)
        if trouble is not None:
            self._app.events.emit(SupervisionDelayed(str(trouble)))
        known = [loop for loop in loops if trouble is None or loop.id in found]
        return {loop.id: revived(loop, found.get(loop.id), self._clock.now()) for loop in known}

    async def last_token(self, loop: Loop) -> Token:
        """The same, of one loop.

        Raises:
            BrokerUnavailable: the journal could not be read to its end.
        """
        found, trouble = await self._read_back([loop])
        if trouble is not None and loop.id not in found:
            raise BrokerUnavailable(f"{trouble} {loop} was left as it is; try again.")
        return revived(loop, found.get(loop.id), self._clock.now())

    async def _read_back(
        self, loops: Collection[Loop]
    ) -> tuple[dict[LoopId, Token], BrokerError | None]:
        """The last tokens in the journal, and why it may have others."""
        found = dict[LoopId, Token]()
        try:
            mark = await self._journal.mark()
        except QueueNotFound:
            return found, None
        try:
            for since in look_backs([loop.schedule for loop in loops], self._clock):
                if missing := {loop.id for loop in loops} - found.keys():
                    found |= await self._journal.last_tokens(
                        missing, since=since, within=self._within, until=mark
                    )
        except (BrokerUnavailable, QueueNotFound) as error:
            return found, error
        return found, None

    async def guard_for(self, loop: Loop, last: Token) -> Token:
        """What stands in for the last token until a run, if there is one, must have ended."""
        if last.state is State.PAUSED:
            return last  # as good: it never hatches, and the run's own token is paused by it
        depth = await self._broker.depth(self._app.names.processor_queue(loop.id.task))
        # Without a consumer, only a processor that is stopping can still have a run.
        stopping = depth is not None and not depth.consumers
        # Otherwise the broker takes back what a processor has not acked within its time.
        grace = self._app.settings.shutdown_grace
        longest = grace if stopping else max(loop.task.timeout, CONSUMER_TIMEOUT)
        now = self._clock.now()
        due_at = max(last.due_at, now + longest + GUARD_GRACE)
        return with_act(Verb.GUARDED, replace(last, state=State.GUARD, due_at=due_at), now)
