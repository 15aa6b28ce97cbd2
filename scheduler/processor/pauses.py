"""Loops that their own run has paused: the journal hears it, then the roster."""

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Delivery
from scheduler.control.acting import actor
from scheduler.processor.publishing import PatientPublisher
from scheduler.protocol.epochs import Entry, LoopState, Verb, begun
from scheduler.protocol.tokens import State, Token
from scheduler.protocol.topology import Names
from scheduler.queues.checkpoints import checkpoint_of
from scheduler.queues.listing import Listed, Listing
from scheduler.queues.roll_call import RollCall
from scheduler.queues.roster import Roster
from scheduler.queues.timers import Timers
from scheduler.timing.clock import Clock
from scheduler.timing.moments import LATEST_MS, moment_of


class Pauses:
    """Pauses loops on behalf of a processor.

    Args:
        listing: the roster, as it is followed.
    """

    def __init__(
        self,
        names: Names,
        timers: Timers,
        roster: Roster,
        roll_call: RollCall,
        listing: Listing,
        publisher: PatientPublisher,
        clock: Clock,
    ) -> None:
        self._names = names
        self._timers = timers
        self._roster = roster
        self._roll_call = roll_call
        self._listing = listing
        self._publisher = publisher
        self._clock = clock

    async def rest(self, delivery: Delivery, token: Token) -> None:
        """Publish a token that waits nowhere, and pause its loop if it says so.

        Raises:
            DeliveryLost, BrokerError: it may not be known.
        """
        await self._publisher.insist(
            delivery, lambda: self._timers.tell(token, timeout=AS_LONG_AS_IT_TAKES)
        )
        await self.enter(delivery, token)

    async def enter(self, delivery: Delivery, token: Token) -> None:
        """Append that a loop is paused to the roster, if it is, unless another epoch has begun.

        May be done again: of entries with the same base, the first one counts.
        """
        if token.state is not State.PAUSED:
            return
        now = self._clock.now()
        beginning = begun(
            Verb.PAUSE,
            Entry(token.epoch, LoopState.ACTIVE, token.life),
            at_ms=self._roster.next_epoch_ms(),
        )
        assert beginning is not None
        listed = self._listing.get(token.loop)
        entry = Listed(
            token.loop,
            token.schedule,
            token.args,
            beginning.entry,
            token.reason or "",
            by=actor(self._roll_call.processor),
            at=now,
            checkpoint=checkpoint_of(token, self._names.namespace, moment_of(LATEST_MS)),
            override=None if listed is None else listed.override,
        )
        await self._publisher.insist(delivery, lambda: self._roster.note([entry]))
