"""Runs of functions in processes of their own, which can be killed.

A thread of the processor starts the process, and hears from it over a pipe: what it logs, carries
and extends, and how it ended. A second pipe is its lifeline: when the processor dies, however that
happens, it ends, and the process ends itself. By the way, the processor asks over it where the run
is, and how far.
"""

import importlib
import logging
import multiprocessing
import os
import pickle
import signal
import threading
import traceback
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from logging.handlers import QueueHandler
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, cast

from scheduler.errors import UsageError
from scheduler.processor import threads as processor_threads
from scheduler.processor.stacks import of_thread
from scheduler.processor.threads import called
from scheduler.protocol.messages import summary_of
from scheduler.tasks.context import Context, Progress
from scheduler.tasks.tasks import Task, TaskSpec

# Not forked off the processor, whose threads may hold locks at that moment.
WAY = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
STARTING: Any = multiprocessing.get_context(WAY)  # its type has no processes
LEAVING = timedelta(seconds=5)
ORPHANED = 70
OURS = __file__, processor_threads.__file__
WRAPPED = "__wrapped__"  # where `functools.update_wrapper` puts it


Told = tuple[Progress | None, str]
"""How far the run in a process has come, and its stack."""


class ProcessEnded(Exception):
    """The process of a run ended before its function did."""


@dataclass(frozen=True)
class Job:
    """What a process is to do: the function is found there by its name."""

    task: str
    module: str
    function: str
    context: Context[Any]
    takes_context: str | None
    log_level: int


def prepare(tasks: Iterable[TaskSpec]) -> None:
    """Have what processes are forked off import the modules of these tasks, before it is needed."""
    modules = {task.function.__module__ for task in tasks if task.executor == "process"}
    if modules and WAY == "forkserver":
        STARTING.set_forkserver_preload(sorted(modules))
        importlib.import_module("multiprocessing.forkserver").ensure_running()


class Child:
    """The process of one run.

    Args:
        context: of the run: what the function does with it is done here.
    """

    def __init__(self, task: TaskSpec, context: Context[Any]) -> None:
        self._context = context
        alone = replace(
            context,
            state=None,
            _extend=_unreachable,
            _hand_on=_unreachable,
            _note_progress=_unreachable,
        )
        function, level = task.function, logging.getLogger().getEffectiveLevel()
        self._job = Job(
            task.name,
            function.__module__,
            function.__qualname__,
            alone,
            task.arguments.context,
            level,
        )
        self._starting = threading.Lock()
        self._process: BaseProcess | None = None
        self._hold: Connection | None = None
        self._asked: Future[Told] | None = None
        self._killed = False

    def run(self) -> Any:
        """Start the process, and wait for it to end; returns what its function returns.

        Raises:
            ProcessEnded: it ended before.
        """
        ours, theirs = STARTING.Pipe()
        lifeline, hold = STARTING.Pipe(duplex=False)
        with ours, hold:
            with theirs, lifeline:
                process = self._start(theirs, lifeline, hold)
            try:
                what, value = self._hear(ours)
            except (EOFError, OSError):
                raise ProcessEnded(_how_it_ended(process)) from None
            finally:
                with self._starting:
                    self._hold = None
                process.join(LEAVING.total_seconds())
                process.kill()  # it has threads, say, that do not end
                process.join()
        if what == "raised":
            error, told = value
            raise error from _Told(told)
        return value

    def kill(self) -> None:
        """End the process, now or as soon as it has started."""
        with self._starting:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def ask(self) -> Future[Told]:
        """Ask where its run is, and how far. A process that cannot answer does not."""
        with self._starting:
            if self._hold is None:
                return Future()  # there is no process, yet or any more
            if self._asked is None or self._asked.done():
                self._asked = Future()
                with suppress(OSError):  # it has just ended
                    self._hold.send("where")
            return self._asked

    def _start(self, theirs: Connection, lifeline: Connection, hold: Connection) -> BaseProcess:
        process = STARTING.Process(target=_work, args=(theirs, lifeline, self._job))
        with self._starting:
            process.start()
            self._process, self._hold = process, hold
            if self._killed:
                process.kill()
        return process

    def _hear(self, ours: Connection) -> tuple[str, Any]:
        """Do what it asks for, until it tells how it ended."""
        while True:
            what, value = ours.recv()
            match what:
                case "log":
                    logging.getLogger(value.name).handle(value)
                case "carry":
                    self._context.carry(value)
                case "extend":
                    ours.send(self._extended(value))
                case "where":
                    assert self._asked is not None
                    self._asked.set_result(value)
                case _:
                    return what, value

    def _extended(self, span: timedelta) -> datetime | Exception:
        try:
            self._context.extend(span)
        except Exception as error:
            return RuntimeError(summary_of(error))
        return self._context.deadline


def _how_it_ended(process: BaseProcess) -> str:
    process.join()
    code = process.exitcode or 0
    if code >= 0:
        return f"its process ended with the exit code {code}, before the function did"
    return f"its process was ended by {signal.Signals(-code).name}"


class _Told(Exception):
    """The traceback of an error that was raised in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _unreachable(*_: object) -> Any:
    raise UsageError("It belongs to another process.")


# What follows is done in the other process.


def _work(parent: Connection, lifeline: Connection, job: Job) -> None:
    sending, here = threading.Lock(), _Here()

    def tell(what: str, value: object) -> None:
        with sending:
            parent.send((what, value))

    serving = (lifeline, tell, here)
    threading.Thread(target=_serve, args=serving, name="lifeline", daemon=True).start()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # which a terminal sends to all its processes
    _log_to(partial(tell, "log"), job.log_level)
    context = replace(
        job.context,
        _extend=partial(_extend, tell, parent),
        _hand_on=partial(tell, "carry"),
        _note_progress=here.note,
    )
    try:
        result = _call(job, context)
    except BaseException as error:
        told = "".join(traceback.format_exception(error))
        tell("raised", (_travelling(error), told))
    else:
        tell("returned", _picklable(result))


class _Here:
    """Where the run is, and how far. Made in its thread."""

    def __init__(self) -> None:
        self._thread = threading.get_ident()
        self._progress: Progress | None = None

    def note(self, fraction: float, text: str) -> None:
        self._progress = Progress(fraction, text)

    def told(self) -> Told:
        return self._progress, of_thread(self._thread, OURS)


def _serve(lifeline: Connection, tell: Callable[[str, object], None], here: _Here) -> None:
    try:
        while True:
            tell(lifeline.recv(), here.told())
    except (EOFError, OSError):
        os._exit(ORPHANED)


def _call(job: Job, context: Context[Any]) -> Any:
    given = {job.takes_context: context} if job.takes_context else {}
    return called(partial(_function_of(job), **given, **context.arguments))


def _function_of(job: Job) -> Any:
    found: Any = importlib.import_module(job.module)
    for name in job.function.split("."):
        found = getattr(found, name)
    is_task = isinstance(found, Task)
    return getattr(cast("Any", found), WRAPPED) if is_task else found


def _extend(tell: Callable[[str, object], None], parent: Connection, span: timedelta) -> datetime:
    tell("extend", span)
    answer = parent.recv()
    if isinstance(answer, Exception):
        raise answer
    return answer


class _Records:
    """What a `QueueHandler` puts its records into."""

    def __init__(self, put: Callable[[object], None]) -> None:
        self.put_nowait = put


def _log_to(put: Callable[[object], None], level: int) -> None:
    root, records = logging.getLogger(), cast("Any", _Records(put))
    root.handlers = [QueueHandler(records)]
    root.setLevel(level)


def _travelling(error: BaseException) -> BaseException:
    """An error that can be told to another process: itself, or what it says."""
    same = _picklable(error)
    return RuntimeError(summary_of(error)) if same is None else same


def _picklable(value: Any) -> Any:
    """A value that can travel; None, if it cannot."""
    try:
        pickle.loads(pickle.dumps(value))
    except Exception:
        return None
    return value
