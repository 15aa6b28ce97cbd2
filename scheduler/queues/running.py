"""What runs now: all processors are asked, and one run is ended, over the stream of roll calls.

Nothing of it is stored but in that stream, which forgets. Types and bodies:

===========================  =======================================================================
scheduler.running.question   ``stack_of``: the id of a run whose stack is to be told, or none
scheduler.running.answer     ``runs``: see `RunningRun`; ``more``: how many were left out
scheduler.cancel.question    ``run``: the id of the run that is to end; ``processors``: who is to
                             answer; ``by``: who asks for it; ``escalate``: whether it has failed
scheduler.cancel.answer      ``what``: cancelling, gone (it does not run here any more), or ended,
                             which says how (``ending``): its settlement is confirmed
===========================  =======================================================================
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from functools import partial
from typing import Any, Literal, NamedTuple, Protocol

from pydantic import BaseModel, ConfigDict, Field

from scheduler.errors import BrokerError
from scheduler.protocol.messages import Message, one_line, parsed
from scheduler.protocol.tokens import LoopId
from scheduler.queues.assembly import TIMEOUT, Assembly, Question, Turnout
from scheduler.queues.attendance import RUNNING_ANSWER, RUNNING_QUESTION
from scheduler.timing.moments import LATEST, LATEST_MS, milliseconds_since_epoch, moment_of

CANCEL, CANCEL_ANSWER = "scheduler.cancel.question", "scheduler.cancel.answer"
MOST_TOLD = 1_000  # runs of one processor
Kind = Literal["coroutine", "thread", "process"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunningRun:
    """A run that is going on.

    Attributes:
        id: what it is cancelled by: `loop#seq`, such as "report#7"; of a one-off call the id of its
            message.
        loop: the loop's name; None: it is a one-off call.
        key: which of the task's loops it is; empty for the task's own.
        seq: which tick of the loop; None for a one-off call.
        attempt: how many attempts had failed before.
        started_at: when it started, by the clock of its processor.
        deadline: when it is cancelled for its timeout, extensions included.
        executor: where its function runs.
        processor: who runs it: host, process id, and a random part.
        cancelled_by: who has asked for its end; None: nobody.
        progress: the fraction that it has told with `ctx.progress`; None: none.
        text: what it has told with that.
        stack: where it is now, outermost call first; None, unless that was asked for.
    """

    id: str
    task: str
    loop: str | None
    key: str
    seq: int | None
    attempt: int
    started_at: datetime
    deadline: datetime
    executor: Kind
    processor: str
    cancelled_by: str | None = None
    progress: float | None = None
    text: str = ""
    stack: str | None = None


class Told(NamedTuple):
    """What one processor runs, and how many runs more than it has told of."""

    runs: Sequence[RunningRun]
    more: int = 0


@dataclass(frozen=True, slots=True)
class Running(Turnout[Told]):
    """What all processors run that have answered; `unheard` names the others."""

    @property
    def runs(self) -> list[RunningRun]:
        """The runs, oldest first."""
        runs = [run for told in self.said.values() for run in told.runs]
        return sorted(runs, key=lambda run: (run.started_at, run.id))

    @property
    def more(self) -> int:
        """How many further runs there are that were not told of: they are too many."""
        return sum(told.more for told in self.said.values())


class Demand(NamedTuple):
    """That a run is to end.

    Attributes:
        by: who asks for it.
        escalate: whether it then counts as failed for the last time.
    """

    by: str
    escalate: bool = False


class What(StrEnum):
    """What a processor says of a run that is to end."""

    CANCELLING = "cancelling"
    GONE = "gone"
    ENDED = "ended"


class Reply(NamedTuple):
    """What a processor has said last of a run that is to end.

    Attributes:
        ending: how it has ended: an `Ending`, or lost, or returned.
    """

    what: What
    ending: str | None = None


class Runs(Protocol):
    """What a processor can tell of its runs, and do to them."""

    async def told(self, processor: str, stack_of: str | None) -> Sequence[RunningRun]:
        """The runs that are going on.

        Args:
            processor: its name.
            stack_of: the run whose stack is told.
        """
        ...

    def cancel(self, run: str, demand: Demand, ended: Callable[[str], None]) -> bool:
        """Have a run end; says whether there is one.

        Args:
            ended: called when it is settled, with how it has ended.
        """
        ...


class Inquiry:
    """Asks what runs, and answers, on behalf of one process.

    Args:
        assembly: it listens whenever something is asked; and all the time, where there is somebody
            to answer for.
        runs: for whom it answers; None: for nobody, it only asks.
    """

    def __init__(self, assembly: Assembly, runs: Runs | None = None) -> None:
        self._assembly = assembly
        self._asking: dict[str, Question[Told]] = {}
        self._cancelling: dict[str, Question[Reply]] = {}
        assembly.on(RUNNING_ANSWER, self._note)
        assembly.on(CANCEL_ANSWER, self._note_reply)
        if runs is not None:
            assembly.on(RUNNING_QUESTION, partial(self._hear_question, runs))
            assembly.on(CANCEL, partial(self._hear_demand, runs))

    async def ask(self, *, stack_of: str | None = None, timeout: timedelta = TIMEOUT) -> Running:
        """What all processors run now.

        Args:
            stack_of: the id of a run whose stack is to be told as well.
            timeout: how long to wait for their answers.

        Raises:
            QueueNotFound: nothing was seeded.
        """
        async with self._assembly:
            return await self._assembly.hear_all(partial(self._ask, stack_of), timeout)

    async def cancel(
        self, run: str, demand: Demand, processors: Collection[str], *, timeout: timedelta
    ) -> Mapping[str, Reply]:
        """Have a run end that these processors have; returns what each has said last in that time.

        Raises:
            BrokerError: it could not be asked for.
        """
        question = Question[Reply]()
        self._cancelling[question.id] = question
        body = {"run": run, "processors": [*processors], **demand._asdict()}

        def have_all_ended() -> bool:
            replies = [question.said.get(processor) for processor in processors]
            return all(reply and reply.what is not What.CANCELLING for reply in replies)

        async with self._assembly:
            try:
                await self._assembly.say(CANCEL, question.id, body)
                await question.until(have_all_ended, timeout)
            finally:
                del self._cancelling[question.id]
        return question.said

    async def _ask(self, stack_of: str | None, expected: int, timeout: timedelta) -> Running:
        if not expected:
            return Running(0, {})
        question = Question[Told]()
        self._asking[question.id] = question
        try:
            with suppress(BrokerError):  # not asked is not answered
                await self._assembly.say(RUNNING_QUESTION, question.id, {"stack_of": stack_of})
                await question.until(lambda: len(question.said) >= expected, timeout)
        finally:
            del self._asking[question.id]
        return Running(expected, question.said)

    def _note(self, message: Message) -> None:
        if (question := self._asking.get(message.correlation_id or "")) is not None:
            processor = message.app_id or ""
            question.note(processor, _told(processor, message))

    def _note_reply(self, message: Message) -> None:
        if (question := self._cancelling.get(message.correlation_id or "")) is not None:
            processor, reply = message.app_id or "", _reply_of(message)
            if reply.what is not What.CANCELLING or processor not in question.said:
                question.note(processor, reply)

    def _hear_question(self, runs: Runs, message: Message) -> None:
        asked = parsed(_Question, message.body, "question")
        self._assembly.answer(self._answer(runs, message.correlation_id or "", asked.stack_of))

    async def _answer(self, runs: Runs, question: str, stack_of: str | None) -> None:
        if not self._assembly.present:
            return  # who asked does not expect it
        told = await runs.told(self._assembly.processor, stack_of)
        # The one that is looked for is told of, however many there are.
        first = sorted(told, key=lambda run: run.id != stack_of)[:MOST_TOLD]
        body = {"runs": [*map(_wire, first)], "more": len(told) - len(first)}
        await self._reply(RUNNING_ANSWER, question, body)

    def _hear_demand(self, runs: Runs, message: Message) -> None:
        asked = parsed(_Demand, message.body, "question")
        if self._assembly.processor not in asked.processors:
            return
        question = message.correlation_id or ""

        def reply(what: What, ending: str | None = None) -> None:
            said = {"what": what.value, "ending": ending}
            self._assembly.answer(self._reply(CANCEL_ANSWER, question, said))

        demand = Demand(one_line(asked.by), asked.escalate)
        found = runs.cancel(asked.run, demand, partial(reply, What.ENDED))
        reply(What.CANCELLING if found else What.GONE)

    async def _reply(self, kind: str, question: str, body: Mapping[str, Any]) -> None:
        with suppress(BrokerError):  # whoever asked knows that an answer is missing
            await self._assembly.say(kind, question, body)


def _wire(run: RunningRun) -> dict[str, Any]:
    wire = {
        "id": run.id,
        "task": run.task,
        "key": run.key,
        "seq": run.seq,
        "attempt": run.attempt,
        "started_at_ms": milliseconds_since_epoch(run.started_at),
        "deadline_ms": milliseconds_since_epoch(min(run.deadline, LATEST)),
        "executor": run.executor,
        "cancelled_by": run.cancelled_by,
        "progress": run.progress,
        "text": run.text or None,
        "stack": run.stack,
    }
    return {name: value for name, value in wire.items() if value is not None}


def _told(processor: str, message: Message) -> Told:
    answer = parsed(_Answer, message.body, "answer")
    return Told([_run(processor, each) for each in answer.runs], answer.more)


def _run(processor: str, wire: "_Run") -> RunningRun:
    return RunningRun(
        id=wire.id,
        task=wire.task,
        loop=None if wire.seq is None else str(LoopId(wire.task, wire.key)),
        key=wire.key,
        seq=wire.seq,
        attempt=wire.attempt,
        started_at=moment_of(wire.started_at_ms),
        deadline=moment_of(wire.deadline_ms),
        executor=wire.executor,
        processor=processor,
        cancelled_by=wire.cancelled_by,
        progress=wire.progress,
        text=wire.text,
        stack=wire.stack,
    )


def _reply_of(message: Message) -> Reply:
    reply = parsed(_Reply, message.body, "answer")
    return Reply(reply.what, reply.ending)


class _Heard(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Question(_Heard):
    stack_of: str | None = None


class _Run(_Heard):
    id: str
    task: str
    key: str
    seq: int | None = None
    attempt: int
    started_at_ms: int = Field(ge=0, le=LATEST_MS)
    deadline_ms: int = Field(ge=0, le=LATEST_MS)
    executor: Kind
    cancelled_by: str | None = None
    progress: float | None = None
    text: str = ""
    stack: str | None = None


class _Answer(_Heard):
    runs: list[_Run]
    more: int = 0


class _Demand(_Heard):
    run: str
    processors: list[str]
    by: str
    escalate: bool = False


class _Reply(_Heard):
    what: What
    ending: str | None = None
