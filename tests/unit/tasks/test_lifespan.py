"""What can be an app's lifespan."""

import functools
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from scheduler import Scheduler
from scheduler.errors import RegistrationError


async def generator(app: Scheduler) -> AsyncGenerator[int]:
    yield 1


@contextmanager
def blocking(app: Scheduler) -> Generator[int]:
    yield 1


@asynccontextmanager
async def of_nothing() -> AsyncGenerator[int]:
    yield 1


@asynccontextmanager
async def open_pool(app: Scheduler, size: int = 1) -> AsyncGenerator[int]:
    yield size


class Container:
    @asynccontextmanager
    async def opened(self, app: Scheduler) -> AsyncGenerator["Container"]:
        yield self


@pytest.mark.parametrize(
    ("lifespan", "told"),
    [
        (generator, "decorated with contextlib.asynccontextmanager, got generator."),
        (blocking, "decorated with contextlib.asynccontextmanager, got blocking."),
        ("pool", "asynccontextmanager, got 'pool'."),
        (of_nothing, "The lifespan of_nothing cannot be called with one argument, the app: too"),
    ],
)
def test_an_invalid_lifespan_is_refused_in_one_line(lifespan: Any, told: str):
    with pytest.raises(RegistrationError) as refused:
        Scheduler("shop", lifespan=lifespan)
    assert told in str(refused.value)
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize(
    "lifespan", [open_pool, functools.partial(open_pool, size=3), Container().opened]
)
def test_functions_methods_and_partials_are_lifespans(lifespan: Callable[[Scheduler], Any]):
    assert Scheduler("shop", lifespan=lifespan).lifespan is lifespan
