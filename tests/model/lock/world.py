"""All that can happen to the lock, and to who contends for it."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, NamedTuple

from scheduler.brokers.amqp.mutex import Holder
from tests.model.lock.contender import LOCK, NEXT, History, Request, Wish, requests_after

FREE, NOBODYS = -1, -2
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
            yield from deaths(state, which, kept)
            yield from reconnects(state, which)
    for queue in (LOCK, NEXT):
        if owner(state, queue) == NOBODYS:
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
            yield Holder.ANOTHER, state  # also where we did not wait for so long as to look
            if has_it == NOBODYS:
                yield Holder.NOBODY, state
        case Wish.LOOK:
            yield has_it == NOBODYS, state
        case Wish.FREE:
            yield None, owned(state, queue, FREE) if has_it == which else state
        case Wish.LEAVE | Wish.RECONNECT:
            yield None, state


def deaths(state: State, which: int, kept: int) -> Iterator[Move]:
    """The connection of a contender is lost. What it had is free again, or kept."""
    had = [queue for queue in (LOCK, NEXT) if owner(state, queue) == which]
    after = continued(state, which, ())
    for queue in had:
        after = owned(after, queue, FREE)
    yield Move("is gone", after, which, is_fault=True)
    for queue in had:
        after = owned(after, queue, NOBODYS)
        if [after.lock, after.next].count(NOBODYS) <= kept:
            yield Move(f"is gone, and the broker keeps {queue}", after, which, is_fault=True)


def reconnects(state: State, which: int) -> Iterator[Move]:
    """The connection of a contender is lost once while it waits for the lock."""
    history = state.contenders[which]
    lost = Request(Wish.RECONNECT, LOCK)
    if (lost, None) in history or any(each.wish is Wish.LEAVE for each in requests_after(history)):
        return
    after = state
    for queue in (LOCK, NEXT):
        if owner(state, queue) == which:
            after = owned(after, queue, FREE)
    after = continued(after, which, (*history, (lost, None)))
    yield Move(lost.wish.value, after, which, is_fault=True)


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
