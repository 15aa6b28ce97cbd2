"""Declare the exchanges and queues of an app, check them, recreate them, and remove old ones.

A broker does not report the arguments of a queue, and only users who may declare can compare them.
So each seed leaves an imprint in a queue of one message: a JSON object with these members.

===================  =================================================================
version              1, the version of this format
app                  the module of the app
queues               the arguments of each queue that code or settings may change
shards               of a task with shards, or with queues of former ones: the numbers of
                     shards for which queues may be bound, the current one last
===================  =================================================================

The arguments of a queue cannot be changed, so a migration recreates it under the same name, while a
second one replaces it:

1. the second one is declared, and gets the new messages
2. the messages of the first one move to the second one
3. the first one is deleted, and declared again
4. all messages move back in the same way
5. the second one is deleted

Each message is confirmed in one before it is acked in the other. A killed migration leaves both
queues, and the next one repeats all steps. A message that another application publishes while both
are bound is in both, and runs twice. The tokens in a timer, and that of supervision, are lost:
their loops continue from the journal, as after any loss.

To change the number of shards of a task, only bindings change, while processors run:

1. the new queues are declared, and the imprint gets the new number besides the old ones
2. for each exchange in turn, all bindings of the old numbers are removed, then those of the new
   one are declared: no token comes to two queues
3. the messages of queues that are not needed any more move to the others, in the way above
4. such a queue is deleted if it is empty and has no consumer; else the next seed repeats 3

A token that comes between the two parts of step 2 waits in `unrouted`, and is routed again after 5
seconds, by the exchange that was changed first. A killed seed leaves its record in the imprint, so
the next one repeats all steps, whatever number it has.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from datetime import timedelta
from functools import partial
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from scheduler.brokers.contract import AS_LONG_AS_IT_TAKES, Depth, is_empty, ready_in
from scheduler.brokers.opening import management_of
from scheduler.errors import (
    BrokerUnavailable,
    OtherArguments,
    QueueNotFound,
    Unconfirmed,
    Undecodable,
    UnknownLoop,
    UsageError,
)
from scheduler.protocol.administration import Harm, harms
from scheduler.protocol.calls import is_call, placed, unclaimed
from scheduler.protocol.messages import FORMAT_VERSION, Message, compact_json, own_headers, parsed
from scheduler.protocol.tokens import MOVED, SLICES
from scheduler.protocol.topology import Queue, Topology, bindings_of_loops, topology
from scheduler.queues.concurrency import side_by_side
from scheduler.queues.failed import Reason
from scheduler.queues.heads import look_into
from scheduler.queues.namespace import Namespace
from scheduler.queues.timers import send_again
from scheduler.spelling import counted
from scheduler.tasks.loops import App, left_by_renames, queues_of, served, shards_of
from scheduler.tasks.tasks import SUPERVISION
from scheduler.timing.durations import ZERO
from scheduler.timing.pacing import backoff

IMPRINT_TYPE = "scheduler.imprint"
LOOKS = 50  # if many start at once, another one holds it for a moment
FIRST_PAUSE, LAST_PAUSE = timedelta(seconds=0.1), timedelta(seconds=3)
LONGEST_ABSENCE = timedelta(minutes=5)

# The reason of a change, by the argument that it changes: the first difference counts.
QUEUE_TYPE = "SCHEDULER_QUEUE_TYPE"
OF_SETTINGS = {
    "x-queue-type": QUEUE_TYPE,
    "x-max-age": "SCHEDULER_JOURNAL_MAX_AGE",
    "x-max-length-bytes": "SCHEDULER_JOURNAL_MAX_BYTES",
}
OF_TASKS = {
    "x-single-active-consumer": "ordered=",
    "x-delivery-limit": "ordered=",
    "x-max-priority": "the use",
}
Arguments = Mapping[str, Any]
Number = Annotated[int, Field(strict=True, ge=1, le=SLICES)]
Numbers = Annotated[tuple[Number, ...], Field(min_length=1)]


@dataclass(frozen=True, slots=True)
class Imprint:
    """Record the last seed.

    Attributes:
        app: the module of the app.
        queues: the arguments of each.
        shards: for which numbers of shards a task may have bound queues, the current one last; a
            task that is not in it has one queue.
    """

    app: str
    queues: Mapping[str, Arguments]
    shards: Mapping[str, Numbers] = field(default_factory=dict[str, Numbers])
    version: Annotated[int, Field(strict=True, ge=1, le=1)] = FORMAT_VERSION


_IMPRINT = TypeAdapter(Imprint)


@dataclass(frozen=True, slots=True)
class Leftover:
    """Describe a task that is not in the code, and its queues.

    Attributes:
        ready: messages that wait for a processor; None: it has no processor queue any more.
        parked: messages that wait for an operator; None: it has no failed queue any more.
        processors: consume its messages: they run older code.
    """

    task: str
    ready: int | None
    parked: int | None
    processors: int = 0

    def __str__(self) -> str:
        counts = f"{self.ready or 0} ready, {self.parked or 0} parked"
        return f"{self.task} ({counts}, {counted(self.processors, 'processor')})"


def with_failed_queues(app: App, leftovers: Iterable[Leftover]) -> list[str]:
    """Return the tasks of the code, and those that left it but kept their failed queue."""
    return [*app.tasks, *(each.task for each in leftovers if each.parked is not None)]


class Installation:
    """Manage the exchanges and queues of an app in a broker."""

    def __init__(self, namespace: Namespace) -> None:
        self._app, self._broker = namespace.app, namespace.broker
        self._names, self._failed = namespace.app.names, namespace.failed
        self._management = management_of(self._app.settings)

    async def imprint(self) -> Imprint | None:
        """Return the last imprint; None: none, or it is unreadable."""
        try:
            found = await self._last_message()
            return found and parsed(_IMPRINT, found.body, "imprint")
        except (QueueNotFound, Undecodable):  # of another version: the next seed replaces it
            return None

    async def _last_message(self) -> Message | None:
        # RabbitMQ 3.10 may close a connection (INTERNAL_ERROR) over which a queue is read that
        # another seed has just declared. A look takes nothing, so look once more.
        with suppress(Unconfirmed):
            return await look_into(self._broker, self._names.imprint, LOOKS)
        return await look_into(self._broker, self._names.imprint, LOOKS)

    async def other_app(self) -> str | None:
        """Return the module of the app that owns the namespace; None: this one, or none."""
        imprint = await self.imprint()
        return None if imprint is None or self._is_ours(imprint) else imprint.app

    async def require(self, tasks: Iterable[str] = ()) -> None:
        """Reject the namespace of another app, and queues of tasks declared for other code.

        Raises:
            UsageError: the message says what to change.
        """
        if (imprint := await self.imprint()) is None:
            return
        if not self._is_ours(imprint):
            raise UsageError(
                f"The namespace {self._app.namespace!r} in {self._broker.address} belongs "
                f"to another app: it was seeded from the module {imprint.app!r}, and this one is "
                f"in {self._app.module!r}, or has none of its tasks. Nothing was started or "
                "changed. Give this app its own namespace, "
                'Scheduler("..."); or, if it is the same app that has moved, run '
                "`scheduler seed --take-over` once."
            )
        wanted, of_tasks = shards_of(self._app), set[str]()
        for task in tasks:
            numbers = self._numbers(imprint, task)
            if numbers and numbers[-1] != wanted[task]:
                raise UsageError(
                    f"shards= of the task {task!r} is {wanted[task]} here, and {numbers[-1]} in "
                    f"{self._broker.address}. Nothing was started. Run `scheduler seed` of this "
                    "release first; or, if this is an old one, start the new one."
                )
            of_tasks |= set(queues_of(self._app, task))
        for queue in self._app.topology().queues:
            known = imprint.queues.get(queue.name)
            if queue.name in of_tasks and known is not None and known != queue.arguments:
                explained = self._explained(queue.name, known, queue.arguments)
                raise UsageError(f"{explained} Nothing was started.")

    async def _seeded_of_others(self, imprint: Imprint | None) -> dict[str, Arguments]:
        """Return the arguments of the queues of such tasks, by task."""
        seeded = {} if imprint is None else self._seeded(imprint)
        found, names = dict[str, Arguments](), self._names
        for task in seeded.keys() - served(self._app).keys():
            queues = [names.processor_queue(task), names.failed_queue(task)]
            if len(await self.absent(queues)) < len(queues):
                found[task] = seeded[task]
        return found

    def _seeded(self, imprint: Imprint) -> dict[str, Arguments]:
        """Return the arguments of the queues of tasks, by task; of shards, those of the first."""
        prefix = self._names.processor_queue("")
        named = {
            queue.removeprefix(prefix): arguments
            for queue, arguments in imprint.queues.items()
            if queue.startswith(prefix)
        }
        return {
            task: arguments
            for task, arguments in named.items()
            if "." not in task and task != SUPERVISION.task
        }

    def _numbers(self, imprint: Imprint | None, task: str) -> Numbers:
        """Return the numbers of shards for which queues of a task may be bound; empty: none is."""
        if imprint is None or self._names.processor_queue(task) not in imprint.queues:
            return ()
        return imprint.shards.get(task, (1,))

    def _is_ours(self, imprint: Imprint) -> bool:
        """Return whether an imprint is of this app: of its module, and not of other tasks alone.

        Of an app with one task, that task may have been renamed.
        """
        seeded, own = self._seeded(imprint).keys(), served(self._app).keys()
        is_like = min(len(seeded), len(own)) < 2 or not seeded.isdisjoint(own)
        return imprint.app == self._app.module and is_like

    async def leave_imprint(
        self, before: Imprint | None = None, *, being_migrated: Collection[str] = ()
    ) -> None:
        """Replace the imprint by that of this app, confirmed.

        Args:
            before: the previous imprint, with the tasks that are gone.
            being_migrated: queues that are not migrated yet.
        """
        names = self._names
        kept, others = {names.journal, *self._of_tasks}, await self._seeded_of_others(before)
        queues = {names.processor_queue(task): others[task] for task in others} | {
            queue.name: {} if queue.name in being_migrated else dict(queue.arguments)
            for queue in self._app.topology().queues
            if queue.name in kept
        }
        numbers = {task: self._numbers(before, task) for task in others}
        for task, shards in shards_of(self._app).items():
            old = self._names.processor_queues(task, max(shards, *self._numbers(before, task), 1))
            there = len(await self.absent(old[shards:])) < len(old[shards:])
            numbers[task] = (len(old), shards) if there else (shards,)
        sharded = {task: each for task, each in numbers.items() if each != (1,)}
        await self._leave(Imprint(self._app.module, queues, sharded))

    async def _leave(self, imprint: Imprint) -> None:
        body = compact_json(_IMPRINT.dump_python(imprint))
        message = Message(body, content_type="application/json", type=IMPRINT_TYPE)
        control, key = self._names.control, self._names.imprint
        await self._broker.publish(message, exchange=control, routing_key=key)

    async def absent(self, queues: Iterable[str]) -> list[str]:
        """Return those of these queues that do not exist."""
        names = list(queues)
        depths = await side_by_side(self._broker.depth, names)
        return [name for name, depth in zip(names, depths, strict=True) if depth is None]

    async def declare_all(self) -> set[str]:
        """Declare all that the code needs; return the queues that were missing."""
        wanted = self._app.topology()
        gone = await self.absent(queue.name for queue in wanted.queues)
        try:
            await self._declare(wanted)
        except OtherArguments as error:
            raise await self.refusal_of(error) from None
        return set(gone)

    async def declare_missing(self, *only: str) -> set[str]:
        """Declare missing queues, with their bindings; return them.

        Args:
            only: the queues to check; none: all that the code needs.

        Raises:
            AccessRefused: this user may not declare.
        """
        wanted = self._app.topology()
        gone = set(await self.absent(only or (queue.name for queue in wanted.queues)))
        if gone & self._of_tasks.keys():
            # Bound for two numbers of shards, some would get the same tokens.
            resharded = self._resharded(await self.imprint())
            gone -= {queue for task in resharded for queue in queues_of(self._app, task)}
        if gone:
            await self._declare(wanted.only(gone))
        return gone

    def _resharded(self, imprint: Imprint | None) -> dict[str, Numbers]:
        """Return the tasks that have another number of shards now, each with all its numbers."""
        return {
            task: (*(each for each in numbers if each != shards), shards)
            for task, shards in shards_of(self._app).items()
            if (numbers := self._numbers(imprint, task)) not in ((), (shards,))
        }

    async def spread(self, before: Imprint | None) -> None:
        """Lead the tokens of tasks to their shards, if the number of them has changed.

        Args:
            before: the last imprint.
        """
        changed = self._resharded(before)
        if before is None or not changed:
            return
        queues = {name for task in changed for name in queues_of(self._app, task)}
        new = await self.absent(queues)
        await self._declare(Topology(queues=self._app.topology().only(new).queues))
        await self._leave(replace(before, shards={**before.shards, **changed}))
        for task, numbers in changed.items():
            await self._to_the_end(partial(self._lead_to_shards, task, numbers))
            for queue in self._names.processor_queues(task, max(numbers))[numbers[-1] :]:
                await self._drain(queue, task)

    async def _lead_to_shards(self, task: str, numbers: Numbers) -> None:
        names = self._names
        there = bindings_of_loops(names, task, numbers[-1])
        of_old = (bindings_of_loops(names, task, number) for number in numbers[:-1])
        old = dict.fromkeys(each for bindings in of_old for each in bindings if each not in there)
        for exchange in dict.fromkeys(each.source for each in there):
            await self._broker.unbind(each for each in old if each.source == exchange)
            mine = tuple(each for each in there if each.source == exchange)
            await self._broker.declare(Topology(bindings=mine))

    async def _drain(self, queue: str, task: str) -> None:
        """Move the messages of a queue that is not bound any more; delete it if it is unused."""
        await self._move(queue, task)
        depth = await self._broker.depth(queue)
        if depth is not None and not (depth.ready or depth.consumers):
            await self._broker.delete(queue)

    async def shards(self) -> dict[str, int]:
        """Return how many queues each task may have in the broker, with those of former shards."""
        imprint, tasks = await self.imprint(), served(self._app)
        known = {task: self._numbers(imprint, task) for task in tasks}
        return {task: max(numbers) for task, numbers in known.items() if numbers}

    async def old_shards(self) -> dict[str, Depth]:
        """Return the queues of tasks that have fewer shards now, as far as they still exist.

        The next seed moves their messages. Those who consume from them run older code.
        """
        imprint = await self.imprint()
        return {
            queue: depth
            for task in served(self._app)
            if (numbers := self._numbers(imprint, task))
            for queue in self._names.processor_queues(task, max(numbers))[numbers[-1] :]
            if (depth := await self._broker.depth(queue)) is not None
        }

    async def _declare(self, wanted: Topology) -> None:
        await self._to_the_end(partial(self._declare_once, wanted))

    async def _to_the_end(self, step: Callable[[], Awaitable[None]]) -> None:
        """Take a step over all outages: once it has begun, an existing queue counts as bound."""
        try:
            await step()
        except BrokerUnavailable:
            with suppress(TimeoutError):
                async with asyncio.timeout(LONGEST_ABSENCE.total_seconds()):
                    for pause in backoff(FIRST_PAUSE, LAST_PAUSE):
                        await asyncio.sleep(pause)
                        with suppress(BrokerUnavailable):
                            return await step()
            raise

    async def _declare_once(self, wanted: Topology) -> None:
        await self._broker.declare(wanted)
        if left := left_by_renames(self._app):
            await self._broker.unbind(left)

    async def harms(self) -> list[Harm] | None:
        """Return the effects of policies of the broker's operators; None: unknown.

        Raises:
            BrokerUnavailable: the management API does not answer.
            AccessRefused: its user may not read them.
        """
        if self._management is None:
            return None
        policies = await self._management.policies(self._broker.info.vhost)
        wanted, ours = self._app.topology(), f"{self._names.prefix}."
        exchanges = (each for each in wanted.exchanges if each.name.startswith(ours))
        return harms((*wanted.queues, *exchanges), policies)

    async def refusal_of(self, error: OtherArguments) -> UsageError:
        """Return the cause of a failed declaration, in words of the app."""
        imprint = await self.imprint()
        declared: Arguments = imprint.queues.get(error.queue, {}) if imprint else {}
        wanted = {queue.name: queue.arguments for queue in self._app.topology().queues}
        known = declared or {**wanted[error.queue], error.argument: None}
        explained = self._explained(error.queue, known, wanted[error.queue])
        return UsageError(f"{explained} Nothing was changed.")

    def _explained(self, queue: str, known: Arguments, wanted: Arguments) -> str:
        names = self._names
        if not known:
            return f"A migration of {queue!r} is incomplete: rerun `scheduler seed --migrate`."
        kept = (
            "starts a new journal: loops continue, and `scheduler history` starts empty"
            if queue in (names.journal, names.history)
            else "recreates the queue and keeps its messages"
        )
        return (
            f"{queue!r} was declared before {self._changed(queue, known, wanted)} was changed. "
            "Change it back; or stop all processors of the app and run `scheduler seed --migrate`, "
            f"which {kept}."
        )

    def _changed(self, queue: str, known: Arguments, wanted: Arguments) -> str:
        """Name the change, as users write it."""
        tasks = self._of_tasks
        for argument in (*OF_SETTINGS, *OF_TASKS):
            if known.get(argument) == wanted.get(argument):
                continue
            if argument in OF_SETTINGS:
                return OF_SETTINGS[argument]
            if queue in tasks:
                return f"{OF_TASKS[argument]} of the task {tasks[queue]!r}"
        return QUEUE_TYPE

    async def leftovers(self) -> list[Leftover]:
        """Return the tasks that were seeded, have a queue, and are not in the code, by name."""
        others = await self._seeded_of_others(imprint := await self.imprint())
        return [await self._leftover(task, self._numbers(imprint, task)) for task in sorted(others)]

    async def tasks_with_failed_queues(self) -> list[str]:
        """Return the tasks of the code, and those that left it but kept their failed queue."""
        return with_failed_queues(self._app, await self.leftovers())

    async def _leftover(self, task: str, numbers: Numbers) -> Leftover:
        queues = self._names.processor_queues(task, max(numbers, default=1))
        known = [depth for each in queues if (depth := await self._broker.depth(each)) is not None]
        failed = await self._broker.depth(self._names.failed_queue(task))
        return Leftover(
            task,
            sum(each.ready for each in known) if known else None,
            None if failed is None else failed.ready,
            max((each.consumers for each in known), default=0),
        )

    async def remove_tasks(self, tasks: Iterable[str]) -> None:
        """Park the messages of tasks, and delete their queues; senders get an error from then on.

        A queue with consumers is left alone, and so is a failed queue with messages.
        """
        # Each waits for messages that another reader may hold.
        await side_by_side(partial(self._remove_task, await self.imprint()), tasks)

    async def _remove_task(self, imprint: Imprint | None, task: str) -> None:
        numbers = self._numbers(imprint, task) or (1,)
        left, names = await self._leftover(task, numbers), self._names
        if left.processors:
            return
        # Senders get an error from here on, so no message arrives between the last look and the
        # end.
        queues, called = names.processor_queues(task, max(numbers)), [task]
        for number in numbers:
            of_task = topology(names.namespace, [task], called=called, shards={task: number})
            await self._broker.unbind(
                each
                for each in of_task.bindings
                if each.destination in queues or each.source == names.later_sent
            )
        error = UnknownLoop(f"The task {task!r} was removed, with this message in its queue.")
        for queue in queues:
            async with aclosing(ready_in(self._broker, queue)) as waiting:
                async for delivery in waiting:
                    await self._failed.park_taken(delivery, Reason.REMOVED, error)
            if await self._broker.depth(queue) is not None:
                await self._broker.delete(queue)
        failed = names.failed_queue(task)
        if (await self._leftover(task, numbers)).parked == 0 and await is_empty(
            self._broker, failed
        ):
            await self._broker.delete(failed)

    async def migrate(self) -> None:
        """Recreate queues, or delete those whose messages can be replaced.

        Raises:
            UsageError: one of them has consumers. Nothing was changed.
        """
        wanted = self._app.topology()
        misfits = [queue.name for queue in wanted.queues if await self._is_misfit(queue)]
        for queue in misfits:
            depth = await self._broker.depth(queue)
            if depth is not None and depth.consumers:
                processors = counted(depth.consumers, "processor")
                raise UsageError(
                    f"{queue!r} must be recreated, but has {processors}. "
                    "Nothing was changed: stop all processors of the app, then rerun this."
                )
        await self._broker.declare(wanted.only({self._names.imprint}))
        before = await self.imprint()
        await self.leave_imprint(before, being_migrated=misfits)
        for queue in misfits:
            await self._clear_away(queue, wanted.only({queue}))
        for queue, task in self._of_tasks.items():
            await self._bring_back(task, wanted.only({queue}))

    @property
    def _of_tasks(self) -> Mapping[str, str]:
        return {queue: task for task in served(self._app) for queue in queues_of(self._app, task)}

    async def _is_misfit(self, queue: Queue) -> bool:
        if await self._broker.depth(queue.name) is None:
            return False
        try:
            await self._broker.declare(Topology(queues=(queue,)))
        except OtherArguments:
            return True
        return False

    async def _clear_away(self, queue: str, wanted: Topology) -> None:
        if (task := self._of_tasks.get(queue)) is not None:
            second = wanted.in_place_of(queue, self._names.moving(queue))
            await self._lead(wanted, second)
            await self._move(queue, task)
        await self._broker.delete(queue)

    async def _bring_back(self, task: str, wanted: Topology) -> None:
        (queue,) = (each.name for each in wanted.queues)
        moving = self._names.moving(queue)
        if await self._broker.depth(moving) is not None:
            await self._lead(wanted.in_place_of(queue, moving), wanted)
            await self._move(moving, task)
            await self._broker.delete(moving)

    async def _lead(self, away: Topology, there: Topology) -> None:
        """Redirect the messages of one queue to another."""
        # A timer's unroutable messages wait, so they must not be in both queues.
        patient = self._names.processor, self._names.delayed
        at_once = tuple(each for each in there.bindings if each.source not in patient)
        await self._broker.declare(replace(there, bindings=at_once))
        queues = {queue.name for queue in away.queues}
        await self._broker.unbind(each for each in away.bindings if each.destination in queues)
        await self._broker.declare(there)

    async def _move(self, source: str, task: str) -> None:
        """Send all messages of a queue to their task again, unchanged."""
        async with aclosing(ready_in(self._broker, source)) as waiting:
            async for delivery in waiting:
                message = delivery.message
                sent = replace(message, headers=own_headers(message.headers), expiration=None)
                if delivery.exchange in self._names.token_exchanges:
                    # Its run may have been settled; or it is in two queues, if this is killed now.
                    await self._broker.publish(
                        replace(sent, headers={**sent.headers, MOVED: True}),
                        exchange=self._names.processor,
                        routing_key=delivery.routing_key,
                        timeout=AS_LONG_AS_IT_TAKES,
                    )
                else:
                    if not self._names.bring_retries(delivery.exchange, delivery.routing_key):
                        sent = unclaimed(sent)
                    if not is_call(message):
                        sent = placed(sent, delivery.exchange, delivery.routing_key)
                    await send_again(
                        self._broker, self._names, task, sent, ZERO, AS_LONG_AS_IT_TAKES
                    )
                await delivery.ack()
