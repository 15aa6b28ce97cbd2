"""Learn how early a message leaves its timer queue so that its run starts on time."""

from datetime import datetime, timedelta

from scheduler.timing.durations import MILLISECOND, ZERO

SHORTEST = timedelta(milliseconds=20)
"""The shortest lead: a quorum queue needs some milliseconds after a token left."""

SPARE = 1.5
HALF_LIFE = timedelta(seconds=30)


class Lead:
    """Learn the transit time from a timer queue to a processor.

    Args:
        longest: the upper limit; 0: messages leave when they are due.
    """

    def __init__(self, longest: timedelta) -> None:
        self._longest = longest
        self._trip = longest / (2 * SPARE)
        self._learned_at: datetime | None = None

    @property
    def length(self) -> timedelta:
        """Return how long before its time a message leaves, in whole milliseconds."""
        return min(max(self._trip * SPARE, SHORTEST), self._longest) // MILLISECOND * MILLISECOND

    def learn(self, trip: timedelta, now: datetime) -> None:
        """Add the transit time of one message; spikes decay exponentially."""
        passed = max(now - (self._learned_at or now), ZERO)
        self._trip = min(max(trip, self._trip * 0.5 ** (passed / HALF_LIFE)), self._longest)
        self._learned_at = now
