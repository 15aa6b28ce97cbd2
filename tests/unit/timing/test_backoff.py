from datetime import timedelta
from itertools import islice
from random import Random

import pytest

from scheduler.timing import pacing
from scheduler.timing.pacing import backoff

SECOND = timedelta(seconds=1)


def test_waits_double_up_to_the_last():
    waits = backoff(SECOND / 4, 3 * SECOND, jitter=0)
    assert list(islice(waits, 5)) == [0.25, 0.5, 1, 2, 3]


@pytest.mark.parametrize(
    ("options", "shortest"), [({}, 0.5), ({"jitter": 0.25}, 0.75), ({"jitter": 1}, 0)]
)
def test_waits_are_shortened_at_random(
    monkeypatch: pytest.MonkeyPatch, options: dict[str, float], shortest: float
):
    monkeypatch.setattr(pacing, "dice", Random(1))
    waits = list(islice(backoff(SECOND, SECOND, **options), 500))
    assert shortest <= min(waits) < shortest + 0.01
    assert 0.99 < max(waits) <= 1
