"""The steps of creators and of processors that start, in their order."""

from enum import Enum

from scheduler.protocol import epochs
from scheduler.protocol.epochs import Position, Verb


class Step(Enum):
    APPEND = "appends its entry"
    EXCHANGE = "exchanges the first token"
    PUT = "puts the first token"
    CALL = "calls the roll until all subscribed processors know the epoch"
    SUBSCRIBE = "subscribes to roll calls"
    READ = "reads the roster"


STARTING = Step.SUBSCRIBE, Step.READ


def steps_of(verb: Verb, token: Position | None) -> tuple[Step, ...]:
    """C: of a creator, whose epoch begins with this token, if there is one."""
    exchange = () if token is None or token.joined else (Step.EXCHANGE,)
    put = () if token is None else (Step.PUT,)
    call = (Step.CALL,) if verb in epochs.CALLING else ()
    return Step.APPEND, *exchange, *put, *call
