"""Ask all processors for their runs, and cancel a run, over the stream of roll calls.

Only that stream stores these messages, for a short time. Types and bodies:

===========================  =======================================================================
scheduler.running.question   ``stack_of``: the ID of a run whose stack is requested, or none
scheduler.running.answer     ``runs``: see `RunningRun`; ``more``: how many were left out
scheduler.cancel.question    ``run``: the ID of the run to cancel; ``processors``: which of them
                             answer; ``by``: who asks for it; ``escalate``: whether it has failed
scheduler.cancel.answer      ``ending``: how it has ended, once its settlement is confirmed; or
                             gone: it does not run here any more
===========================  =======================================================================
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Any, ClassVar, Literal, NamedTuple, Protocol

from pydantic import ConfigDict, Field, TypeAdapter

from scheduler.protocol.messages import WIRE, Message, Moment, one_line, parsed
from scheduler.protocol.tokens import LoopId
from scheduler.queues.roll_call import (
    RUNNING_ANSWER,
    RUNNING_QUESTION,
    Question,
    RollCall,
    Turnout,
)
from scheduler.timing.moments import LATEST

CANCEL, CANCEL_ANSWER = "scheduler.cancel.question", "scheduler.cancel.answer"
GONE = "gone"
"""The ending of a run that is not running any more."""

MOST_TOLD = 1_000  # runs of one processor
Kind = Literal["coroutine", "thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRun:
    """Describe a running run.

    Attributes:
        id: the ID to cancel it: `loop#seq`, such as "report#7"; for a one-off call the ID of its
            message.
        loop: the loop's name; None: it is a one-off call.
        key: which of the task's loops it is; empty for the task's own.
        seq: which tick of the loop; None for a one-off call.
        attempt: counted from 1.
        started_at: when it started, by the clock of its processor.
        deadline: when it is cancelled for its timeout, extensions included.
        executor: where its function runs.
        processor: its processor: host, process ID, and a random part.
        cancelled_by: who cancelled it; None: it is not cancelled.
        progress: the fraction reported with `ctx.progress`; None: none.
        text: the words reported with that.
        stack: its current stack, outermost call first; None if not requested.
    """

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    id: str
    task: str
    loop: Annotated[str | None, Field(exclude=True)] = None
    key: str
    seq: int | None = None
    attempt: int
    started_at: Moment
    deadline: Moment
    executor: Kind
    processor: Annotated[str, Field(exclude=True)] = ""
    cancelled_by: str | None = None
    progress: float | None = None
    text: str = ""
    stack: str | None = None


@dataclass(frozen=True, slots=True)
class Account:
    """List the runs of one processor, and the number of runs left out."""

    __pydantic_config__: ClassVar[ConfigDict] = WIRE

    runs: list[RunningRun]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Running(Turnout[Account]):
    """List the runs of all processors that answered; `unheard` names the others."""

    @property
    def runs(self) -> list[RunningRun]:
        """Return the runs, oldest first."""
        runs = [
            replace(run, processor=processor, loop=_loop_of(run))
            for processor, account in self.said.items()
            for run in account.runs
        ]
        return sorted(runs, key=lambda run: (run.started_at, run.id))

    @property
    def more(self) -> int:
        """Return the number of runs left out: there are too many."""
        return sum(account.more for account in self.said.values())


def _loop_of(run: RunningRun) -> str | None:
    return None if run.seq is None else str(LoopId(run.task, run.key))


class Demand(NamedTuple):
    """Request that a run ends.

    Attributes:
        by: who asks for it.
        escalate: whether it then counts as failed for the last time.
    """

    by: str
    escalate: bool = False


class Runs(Protocol):
    """Report and cancel the runs of a processor."""

    async def describe(self, processor: str, stack_of: str | None) -> Sequence[RunningRun]:
        """Return the running runs.

        Args:
            processor: its name.
            stack_of: the run whose stack is included.
        """
        ...

    def cancel(self, run: str, demand: Demand, ended: Callable[[str], None]) -> bool:
        """Cancel a run; return whether there is one.

        Args:
            ended: called with its ending when it is settled.
        """
        ...


@dataclass(frozen=True, slots=True)
class _StackRequest:
    stack_of: str | None = None


@dataclass(frozen=True, slots=True)
class _CancelRequest:
    run: str
    processors: list[str]
    by: str
    escalate: bool = False


@dataclass(frozen=True, slots=True)
class _CancelAnswer:
    ending: str


_ACCOUNT, _ENDED = TypeAdapter(Account), TypeAdapter(_CancelAnswer)
_ASKED, _DEMANDED = TypeAdapter(_StackRequest), TypeAdapter(_CancelRequest)


class Inquiry:
    """Ask for runs, and answer, for one process.

    Args:
        roll_call: listens during each question; for a processor, all the time.
        runs: the runs to report; None: it only asks.
    """

    def __init__(self, roll_call: RollCall, runs: Runs | None = None) -> None:
        self._roll_call = roll_call
        roll_call.on_answer(
            RUNNING_ANSWER, lambda message: parsed(_ACCOUNT, message.body, "answer")
        )
        roll_call.on_answer(
            CANCEL_ANSWER, lambda message: parsed(_ENDED, message.body, "answer").ending
        )
        if runs is not None:
            roll_call.on(RUNNING_QUESTION, partial(self._hear_question, runs))
            roll_call.on(CANCEL, partial(self._hear_demand, runs))

    async def ask(self, *, stack_of: str | None = None) -> Running:
        """Return the current runs of all processors.

        Args:
            stack_of: the ID of a run whose stack is included.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        return await self._roll_call.ask(RUNNING_QUESTION, {"stack_of": stack_of}, Running)

    async def cancel(
        self, run: str, demand: Demand, processors: Collection[str], *, timeout: timedelta
    ) -> Mapping[str, str]:
        """Cancel a run at these processors; return its ending at those where it ended in that time.

        It is an `Ending`, or lost, returned or gone.

        Raises:
            BrokerError: the request could not be sent.
        """
        body = {"run": run, "processors": [*processors], **demand._asdict()}
        async with self._roll_call:
            with self._roll_call.asking(Question[str]()) as question:
                await self._roll_call.say(CANCEL, question.id, body)
                await question.until(lambda: question.said.keys() >= set(processors), timeout)
        return question.said

    def _hear_question(self, runs: Runs, message: Message) -> None:
        asked = parsed(_ASKED, message.body, "question")

        async def described() -> Mapping[str, Any]:
            found = await runs.describe(self._roll_call.processor, asked.stack_of)
            # The requested run is always included, however many there are.
            first = sorted(found, key=lambda run: run.id != asked.stack_of)[:MOST_TOLD]
            known = [replace(run, deadline=min(run.deadline, LATEST)) for run in first]
            account = Account(known, more=len(found) - len(first))
            return _ACCOUNT.dump_python(account, by_alias=True, exclude_none=True)

        if self._roll_call.present:  # else the caller does not expect it
            self._roll_call.answer(RUNNING_ANSWER, message.correlation_id or "", described())

    def _hear_demand(self, runs: Runs, message: Message) -> None:
        asked = parsed(_DEMANDED, message.body, "question")
        if self._roll_call.processor not in asked.processors:
            return

        def reply(ending: str) -> None:
            async def said() -> Mapping[str, Any]:
                return {"ending": ending}

            self._roll_call.answer(CANCEL_ANSWER, message.correlation_id or "", said())

        demand = Demand(one_line(asked.by), asked.escalate)
        if not runs.cancel(asked.run, demand, reply):
            reply(GONE)
