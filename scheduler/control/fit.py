"""Whether what is in a namespace is of this app, and its queues are as this code needs them."""

from collections.abc import Collection, Iterable, Mapping
from typing import Any

from scheduler.brokers.contract import Broker
from scheduler.errors import OtherArguments, UsageError
from scheduler.queues.imprint import Imprint, Imprints
from scheduler.tasks.registry import App
from scheduler.tasks.tasks import SUPERVISION

# What code or settings change, by the arguments that it changes: the first that differs tells.
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


class Fit:
    """Compares an app with what was seeded last."""

    def __init__(self, app: App, broker: Broker) -> None:
        self._app = app
        self._broker = broker
        self._imprints = Imprints(broker, app.names)
        self._before: Imprint | None = None

    async def require_app(self, *, take_over: bool = False) -> None:
        """Refuse the namespace of another app, unless this one takes it over.

        Raises:
            UsageError: it is; the message says what to change.
        """
        self._before = await self._imprints.read()
        if not take_over:
            self._refuse_other(self._before)

    def _refuse_other(self, imprint: Imprint | None) -> None:
        if (other := self._other_than_this(imprint)) is not None:
            raise UsageError(
                f"The namespace {self._app.namespace!r} in {self._broker.address} is that of "
                f"another app: it was seeded from the module {other!r}, and this one is in "
                f"{self._app.module!r}. Nothing was started or changed. Give this app a namespace "
                'of its own, Scheduler("..."); or, if it is the same app that has moved, run '
                "`scheduler seed --take-over` once."
            )

    async def require(self, tasks: Iterable[str]) -> None:
        """The same, and refuse queues of these tasks that were declared for other code.

        Raises:
            UsageError: the message says what to change.
        """
        imprint = await self._imprints.read()
        self._refuse_other(imprint)
        if imprint is None:
            return
        names = self._app.names
        of_tasks = {names.processor_queue(task) for task in tasks}
        for queue in self._app.topology().queues:
            known = imprint.queues.get(queue.name)
            if queue.name in of_tasks and known is not None and known != queue.arguments:
                told = self._explained(queue.name, known, queue.arguments)
                raise UsageError(f"{told} Nothing was started.")

    async def other_app(self) -> str | None:
        """The module of the app that the namespace belongs to; None: of this one, or nobody's."""
        return self._other_than_this(await self._imprints.read())

    def _other_than_this(self, imprint: Imprint | None) -> str | None:
        return None if imprint is None or imprint.app == self._app.module else imprint.app

    async def other_tasks(self) -> set[str]:
        """Return the tasks that were seeded and have a queue, and that the code does not have."""
        return set(await self._seeded_of_others(await self._imprints.read()))

    async def _seeded_of_others(self, imprint: Imprint | None) -> dict[str, Arguments]:
        """Return the arguments of the queues of such tasks, by task."""
        prefix = self._app.names.processor_queue("")
        if imprint is None:
            return {}
        seeded = {
            queue.removeprefix(prefix): arguments
            for queue, arguments in imprint.queues.items()
            if queue.startswith(prefix)
        }
        gone = seeded.keys() - {SUPERVISION.task, *self._app.tasks}
        return {task: seeded[task] for task in gone if await self._has_queue_of(task)}

    async def _has_queue_of(self, task: str) -> bool:
        names = self._app.names
        queues = names.processor_queue(task), names.failed_queue(task)
        return any([await self._broker.depth(queue) is not None for queue in queues])

    async def note(self, *, being_made_anew: Collection[str] = ()) -> None:
        """Leave the imprint of this app, after `require_app`.

        Args:
            being_made_anew: queues that are not yet as it needs them.
        """
        names = self._app.names
        kept = {names.journal, *(names.processor_queue(task) for task in self._app.tasks)}
        others = await self._seeded_of_others(self._before)
        queues = {names.processor_queue(task): others[task] for task in others} | {
            queue.name: {} if queue.name in being_made_anew else dict(queue.arguments)
            for queue in self._app.topology().queues
            if queue.name in kept
        }
        await self._imprints.leave(Imprint(app=self._app.module, queues=queues))

    async def refusal_of(self, error: OtherArguments) -> UsageError:
        """What declaring has refused, in words of the app."""
        imprint = await self._imprints.read()
        declared: Arguments = imprint.queues.get(error.queue, {}) if imprint else {}
        wanted = {queue.name: queue.arguments for queue in self._app.topology().queues}
        known = declared or {**wanted[error.queue], error.argument: None}
        told = self._explained(error.queue, known, wanted[error.queue])
        return UsageError(f"{told} What exists was left as it is.")

    def _explained(self, queue: str, known: Arguments, wanted: Arguments) -> str:
        names = self._app.names
        if not known:
            return (
                f"{queue!r} is being made anew: run `scheduler seed --migrate` again, if that was "
                "broken off."
            )
        kept = (
            "begins a new journal: loops go on, and what `scheduler history` tells begins anew"
            if queue == names.journal
            else "makes the queue anew and keeps what waits in it"
        )
        return (
            f"{queue!r} was declared before {self._changed(queue, known, wanted)} was changed. "
            "Change it back; or stop all processors of the app and run `scheduler seed --migrate`, "
            f"which {kept}."
        )

    def _changed(self, queue: str, known: Arguments, wanted: Arguments) -> str:
        """What has changed, as users write it."""
        tasks = {self._app.names.processor_queue(task): task for task in self._app.tasks}
        for argument in (*OF_SETTINGS, *OF_TASKS):
            if known.get(argument) == wanted.get(argument):
                continue
            if argument in OF_SETTINGS:
                return OF_SETTINGS[argument]
            if queue in tasks:
                return f"{OF_TASKS[argument]} of the task {tasks[queue]!r}"
        return QUEUE_TYPE
