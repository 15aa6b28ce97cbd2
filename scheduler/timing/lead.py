"""How long before its time a message leaves its timer queue, so that its run starts on the dot."""

from datetime import datetime, timedelta

SHORTEST = timedelta(milliseconds=20)
"""A quorum slot refuses the next token for some milliseconds after one left: it comes later."""

MILLISECOND = timedelta(milliseconds=1)
SPARE = 1.5
HALF_LIFE = timedelta(seconds=30)


class Lead:
    """What the way from a timer queue to a processor takes, learned from what it took lately.

    Args:
        longest: it is never longer; 0: what waits leaves when it is due.
    """

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest
        self._trip = longest / (2 * SPARE)
        self._learned_at: datetime | None = None

    @property
    def length(self) -> timedelta:
        """How long before its time a message is to leave, in whole milliseconds."""
        return min(max(self._trip * SPARE, SHORTEST), self._longest) // MILLISECOND * MILLISECOND

    def learn(self, trip: timedelta, now: datetime) -> None:
        """Take note of what the way of one message took; a long one is forgotten by and by."""
        passed = max(now - (self._learned_at or now), timedelta(0))
        self._trip = min(max(trip, self._trip * 0.5 ** (passed / HALF_LIFE)), self._longest)
        self._learned_at = now
