"""When a lock is taken for one that the broker keeps of a holder that is gone."""

from collections.abc import Iterator
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest

from scheduler.brokers.amqp import mutex
from scheduler.brokers.amqp.mutex import Mutexes
from scheduler.errors import Locked, Rejected, Unconfirmed, Unroutable

LOCK = "lock"
NEXT = "lock.next"
BRIEFLY = timedelta(milliseconds=100)
TAKEN = None


class OthersHaveIt(Mutexes):
    """The lock is another's all the while; what is published to it has these answers, in turn."""

    def __init__(self, answers: Iterator[Exception | None]) -> None:
        connection: Any = SimpleNamespace(connected=True, address="a broker", ready=self.ready)
        publisher: Any = SimpleNamespace(publish=self.publish)
        super().__init__(connection, publisher)
        self._answers = answers

    async def ready(self) -> str:
        return "the session"

    async def publish(self, *_: Any) -> None:
        if (answer := next(self._answers, TAKEN)) is not None:
            raise answer

    async def _declared(self, name: str) -> bool:
        return name == NEXT

    async def _delete(self, name: str) -> None: ...


@pytest.mark.parametrize(
    "between", [TAKEN, Unroutable(), Unconfirmed()], ids=["taken", "free", "lost"]
)
async def test_one_rejection_may_be_a_lost_one(
    between: Exception | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(mutex, "KNOCK_EVERY_S", 0.0)
    answers = iter([Rejected(), between, Rejected(), between])
    with pytest.raises(Locked, match=LOCK):
        async with OthersHaveIt(answers).holding(LOCK, BRIEFLY * 5):
            pytest.fail("two holders")
    assert next(answers, "all were asked for") == "all were asked for"


async def test_two_in_a_row_are_of_one_that_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mutex, "KNOCK_EVERY_S", 0.0)
    monkeypatch.setattr(mutex, "LAST_PAUSE", timedelta(0))
    answers = iter([Rejected(), TAKEN, Rejected(), Rejected()])
    async with OthersHaveIt(answers).holding(LOCK, BRIEFLY * 50) as kept:
        assert kept == LOCK
