"""How long to wait: between attempts, and between turns at a rate."""

import asyncio
from datetime import timedelta
from itertools import islice
from random import Random
from typing import Any

import pytest

from scheduler.errors import RegistrationError
from scheduler.testing import run_virtually
from scheduler.timing import pacing
from scheduler.timing.pacing import Pacer, Rate, backoff, parse_rate

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


@pytest.mark.parametrize(
    ("text", "count", "seconds", "interval"),
    [
        ("50/s", 50, 1, 0.02),
        ("100/m", 100, 60, 0.6),
        ("10/h", 10, 3600, 360.0),
        ("999999999/s", 999_999_999, 1, pytest.approx(1e-9)),
    ],
)
def test_a_rate_is_a_number_per_time(text: str, count: int, seconds: int, interval: float):
    rate = parse_rate(text)
    assert rate == Rate(count, seconds * SECOND)
    assert rate.interval == interval
    assert str(rate) == text


@pytest.mark.parametrize(
    "text",
    ["", "50", "/s", "0/s", "1.5/s", "50/d", "50 / s", "5/s5/s", "٣/s", "1234567890/s", 5, b"5/s"],
)
def test_another_rate_is_refused_with_an_example(text: Any):
    with pytest.raises(RegistrationError, match='such as "50/s" or "100/m", got '):
        parse_rate(text)


def turns(rate: str, after: list[float]) -> list[float]:
    """When the turns come that are asked for at these moments."""

    async def perform() -> list[float]:
        loop, pacer, given = asyncio.get_running_loop(), Pacer(parse_rate(rate)), list[float]()
        for moment in after:
            await asyncio.sleep(max(moment - loop.time(), 0))
            wait = pacer.wait  # who asks for it takes no turn
            assert pacer.wait == pacer.turn() == wait
            given.append(round(loop.time() + wait, 3))
        return given

    return run_virtually(perform())


@pytest.mark.parametrize(
    ("rate", "asked", "given"),
    [
        ("2/s", [0, 0, 0, 0], [0, 0.5, 1, 1.5]),
        ("2/s", [0, 0.1, 5, 5], [0, 0.5, 5, 5.5]),  # what was not used is not saved up
        ("10/h", [0, 0, 0], [0, 360, 720]),
    ],
)
def test_turns_are_spread_evenly_and_there_is_no_burst(
    rate: str, asked: list[float], given: list[float]
):
    assert turns(rate, asked) == given
