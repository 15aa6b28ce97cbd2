"""All that can happen to the lock, and to who contends for it."""

from collections.abc import Iterator
from enum import Enum
from itertools import combinations
from typing import Any, NamedTuple

from scheduler.brokers.amqp.mutex import Holder
from tests.model.lock.contender import LOCK, NEXT, History, Lost, Request, Wish, requests_after

FREE, KEPT = -1, -2
"""Who has a queue, if not a contender, by number."""


class Wrong(Enum):
    """What must not be."""

    TWO = "two have the lock"
    STUCK = "nobody gets the lock any more, though one of the queues can be had"


class State(NamedTuple):
    """Who has which queue, and what each contender has been answered since it began."""

    lock: int
    next: int
    contenders: tuple[History, ...]


class Move(NamedTuple):
    """What happens, and what is so then."""

    what: str
    state: State
    which: int | None = None
    is_fault: bool = False

    @property
    def wrong(self) -> Wrong | None:
        return Wrong.TWO if inside(self.state) > 1 else None


def moves(state: State, kept: int) -> Iterator[Move]:
    """All that can happen next.

    Args:
        kept: how many queues of holders that are gone the broker may keep at once.
    """
    for which, history in enumerate(state.contenders):
        for request in requests_after(history):
            for answer, after in answers(state, which, request):
                told = f"{request.wish.value} {request.queue}{said(answer)}"
                yield Move(told, continued(after, which, (*history, (request, answer))), which)
        if history:
            yield from losses(state, which, kept)
    for queue in (LOCK, NEXT):
        if owner(state, queue) == KEPT:
            after = owned(state, queue, FREE)
            yield Move(f"the node that kept {queue} is started again", after, is_fault=True)


def answers(state: State, which: int, request: Request) -> Iterator[tuple[Any, State]]:
    """What the broker may answer, and what is so then."""
    queue = request.queue
    has_it = owner(state, queue)
    match request.wish:
        case Wish.HAVE if has_it in {FREE, which}:
            yield Holder.OURSELVES, owned(state, queue, which)
        case Wish.HAVE:
            yield Holder.ANOTHER, state  # also where we did not wait for long enough to find out
            if has_it == KEPT:
                yield Holder.GONE, state
        case Wish.LOOK:
            yield has_it == KEPT, state
        case Wish.FREE:
            yield None, owned(state, queue, FREE) if has_it == which else state
        case Wish.LEAVE:
            yield None, state


def losses(state: State, which: int, kept: int) -> Iterator[Move]:
    """The connection of a contender is lost; and it is gone, or goes on over another one."""
    history = state.contenders[which]
    waits = not any(request.wish is Wish.LEAVE for request in requests_after(history))
    goes_on = waits and (Lost(), None) not in history
    for what, after in freed(state, which, kept):
        yield Move(f"is gone{what}", continued(after, which, ()), which, is_fault=True)
        if goes_on:
            on = continued(after, which, (*history, (Lost(), None)))
            yield Move(f"loses its connection{what}", on, which, is_fault=True)


def freed(state: State, which: int, kept: int) -> Iterator[tuple[str, State]]:
    """What a contender had is free again, or some of it is kept."""
    had = [queue for queue in (LOCK, NEXT) if owner(state, queue) == which]
    for many in range(len(had) + 1):
        for keeps in combinations(had, many):
            after = state
            for queue in had:
                after = owned(after, queue, KEPT if queue in keeps else FREE)
            if [after.lock, after.next].count(KEPT) <= kept:
                yield f", and the broker keeps {' and '.join(keeps)}" if keeps else "", after


def continued(state: State, which: int, history: History) -> State:
    contenders = list(state.contenders)
    contenders[which] = history if requests_after(history) else ()
    return state._replace(contenders=tuple(contenders))


def owner(state: State, queue: str) -> int:
    return state.lock if queue == LOCK else state.next


def owned(state: State, queue: str, by: int) -> State:
    return state._replace(lock=by) if queue == LOCK else state._replace(next=by)


def said(answer: Any) -> str:
    match answer:
        case Holder():
            return f": it is of {answer.value}"
        case bool():
            return f" {'yes' if answer else 'no'}"
        case _:
            return ""


def inside(state: State) -> int:
    """How many have the lock."""
    wishes = [request.wish for each in state.contenders for request in requests_after(each)]
    return wishes.count(Wish.LEAVE)
