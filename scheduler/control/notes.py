"""Notes of how far loops had come that wait for long (`scheduler.queues.checkpoints`)."""

from collections.abc import Iterable, Iterator
from dataclasses import replace

from scheduler.control.concurrency import side_by_side
from scheduler.protocol.tokens import Token
from scheduler.queues.checkpoints import checkpoint_of
from scheduler.queues.roster import FEW, Listed, Listing, Roster
from scheduler.timing.clock import Clock


class Notes:
    """What supervision notes in the roster of a namespace.

    Args:
        listing: the roster, as it is followed.
    """

    def __init__(self, roster: Roster, listing: Listing, namespace: str, clock: Clock) -> None:
        self._roster = roster
        self._listing = listing
        self._namespace = namespace
        self._clock = clock

    async def take(self, tokens: Iterable[Token], before: int) -> int:
        """Note tokens that wait in their slots, unless they are noted.

        Args:
            before: how many were noted since the roster was read last.

        Returns:
            How many are so now.
        """
        entries = list(self._entries(tokens))
        await side_by_side(self._roster.note, entries)
        if (noted := before + len(entries)) <= FEW:
            return noted
        await self._roster.compacted()
        return 0

    def _entries(self, tokens: Iterable[Token]) -> Iterator[Listed]:
        now = self._clock.now()
        for token in tokens:
            listed = self._listing.get(token.loop)
            if listed is None or listed.epoch != token.epoch:
                continue  # an epoch begins, or has begun
            checkpoint = checkpoint_of(token, self._namespace, now)
            if checkpoint is not None and checkpoint != listed.checkpoint:
                yield replace(listed, checkpoint=checkpoint)
