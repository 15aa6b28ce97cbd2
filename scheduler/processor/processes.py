"""Runs of functions in processes of their own, which can be killed.

The processor and the process talk over one socket, in lines of JSON: a line that is broken off
holds up nothing, and nothing that user code has made is looked at without care. The process begins
when it is told to, tells what it logs, carries and extends, and how it ended; by the way, it is
asked where the run is, and how far. When the socket closes, because the processor has died, the
process ends itself.

It has a session of its own, which is killed as a group, with all that it has forked. What the
processor waits for is the end of the process, not of its socket, which others may have inherited.
"""

import importlib
import logging
import multiprocessing
import os
import signal
import socket
import threading
from collections.abc import Generator, Iterable
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import timedelta
from multiprocessing.connection import wait
from time import monotonic
from typing import Any

from scheduler.processor.child import STOPPING, Job, Lines, Whereabouts, error_of, unpickled, work
from scheduler.processor.threads import Unfinished
from scheduler.protocol.messages import summary_of
from scheduler.tasks.context import Context, Progress
from scheduler.tasks.tasks import TaskSpec
from scheduler.user_code import UserCode

# Not forked off the processor, whose threads may hold locks at that moment.
WAY = "forkserver" if "forkserver" in multiprocessing.get_all_start_methods() else "spawn"
STARTING: Any = multiprocessing.get_context(WAY)  # its type has no processes
STARTS = 3
LEAVING = timedelta(seconds=5)
REAPED_WITHIN_S = 1
NOTHING_TOLD: Whereabouts = None, ""


class ProcessEnded(Unfinished):
    """The process of a run ended before its function did."""


def prepare(tasks: Iterable[TaskSpec]) -> None:
    """Have what processes are forked off import the modules of these tasks, before it is needed."""
    modules = {task.function.__module__ for task in tasks if task.executor == "process"}
    if modules and WAY == "forkserver":
        STARTING.set_forkserver_preload(sorted(modules))
        with _out_of_reach():
            importlib.import_module("multiprocessing.forkserver").ensure_running()


class Child:
    """The process of one run; what its function does with its context is done here."""

    def __init__(self, task: TaskSpec, context: Context[Any], *, carries: bool) -> None:
        self._context = context
        self._job = Job.of(task, context, carries=carries)
        self._lock = threading.Lock()  # the event loop waits for it: held for moments only
        self._process: _Process | None = None
        self._killed = False
        self._asked = False
        self._askers: list[Future[Whereabouts]] = []

    def start(self) -> None:
        """Start the process, which then waits for `run`. It may take as long as the fork server."""
        problem = ""
        for _ in range(STARTS):
            if self._killed:
                raise ProcessEnded("it was ended before its process had started")
            try:
                process = _Process(self._job)
            except (EOFError, ConnectionError) as error:  # the fork server has died
                problem = summary_of(error)
                continue
            with self._lock:
                self._process = process
                if self._killed:
                    process.kill()
            return
        raise ProcessEnded(f"its process cannot be started: {problem}")

    def run(self) -> Any:
        """Let the process begin, and wait for it to end; returns what its function returns."""
        process = self._process
        assert process is not None
        try:
            with suppress(OSError):  # it has ended
                self._tell("go")
            ending = self._hear(process)
            if ending is None:
                raise ProcessEnded(process.how_it_ended())
        finally:
            self.close()
        what, value = ending
        if what == "raised":
            raise error_of(value)
        return unpickled(value)

    def kill(self) -> None:
        """End the process, now or as soon as it has started."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Leave nothing behind of the process, if there is one."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()  # its forks too; and it may have threads, say, that do not end
            process.close()
        self._answer(NOTHING_TOLD)

    def ask(self) -> Future[Whereabouts]:
        """Ask where its run is, and how far. A process that cannot answer does not."""
        asker: Future[Whereabouts] = Future()
        with self._lock:
            if self._process is None:  # yet, or any more
                asker.set_result(NOTHING_TOLD)
                return asker
            self._askers = [each for each in self._askers if not each.done()] + [asker]
            # One question at a time: nothing that is sent to it waits to be read.
            asks, self._asked = not self._asked, True
        if asks:
            with suppress(OSError):  # it has just ended
                self._tell("where")
        return asker

    def _tell(self, what: str, value: Any = None) -> None:
        with self._lock:
            if self._process is not None:
                self._process.lines.tell(what, value)

    def _hear(self, process: "_Process") -> tuple[str, Any] | None:
        """Do what it asks for, until it has ended; returns how its function did."""
        ending: tuple[str, Any] | None = None
        until: float | None = None
        talks = True
        while until is None or monotonic() < until:
            rest = None if until is None else until - monotonic()
            ready = wait([process.socket, process.end] if talks else [process.end], rest)
            if process.socket in ready:
                told = process.lines.read()
                talks = told is not None
                for what, value in told or ():
                    if what in ("raised", "returned"):
                        ending = what, value
                    elif what == "left":
                        return ending
                    else:
                        self._do(what, value)
            elif process.end in ready:
                break
            # What it has begun to end in, it may finish; others may have its socket.
            if until is None and (ending is not None or not talks or process.end in ready):
                until = monotonic() + LEAVING.total_seconds()
        return ending

    def _do(self, what: str, value: Any) -> None:
        match what:
            case "log":
                _log(value)
            case "carry":
                self._context.carry(value)
            case "extend":
                with suppress(OSError):  # it has just ended
                    self._tell("extended", self._extended(timedelta(microseconds=value)))
            case _:
                fraction, text, stack = value
                self._answer((None if fraction is None else Progress(fraction, text), stack))

    def _answer(self, told: Whereabouts) -> None:
        with self._lock:
            askers, self._askers, self._asked = self._askers, [], False
        for asker in askers:
            if asker.set_running_or_notify_cancel():
                asker.set_result(told)

    def _extended(self, span: timedelta) -> tuple[str | None, str]:
        """The new deadline, or why there is none."""
        try:
            self._context.extend(span)
        except Exception as error:
            return None, summary_of(error)
        return self._context.deadline.isoformat(), ""


class _Process:
    """A process that was started, and waits for its first line.

    Attributes:
        end: is readable when it has ended.
    """

    def __init__(self, job: Job) -> None:
        self.socket, theirs = socket.socketpair()
        self.lines = Lines(self.socket)
        try:
            with theirs, _out_of_reach():
                process = STARTING.Process(target=work, args=(theirs, job))
                # Its `start` would look after all others as well, each of which has its thread.
                self._popen = process._Popen(process)
        except BaseException:
            self.socket.close()
            raise
        self._descriptor = _descriptor_of(self._popen.pid)
        self.end: Any = self._popen.sentinel if self._descriptor is None else self._descriptor

    def kill(self) -> None:
        """Kill it, and what it has forked; it may have ended."""
        if hasattr(os, "killpg"):
            # It may lead no group, yet or any more.
            with suppress(ProcessLookupError, PermissionError):
                os.killpg(self._popen.pid, signal.SIGKILL)
        if self._descriptor is None:
            self._popen.kill()
            return
        with suppress(ProcessLookupError):
            signal.pidfd_send_signal(self._descriptor, signal.SIGKILL)

    def close(self) -> None:
        self.socket.close()
        self._popen.close()
        if self._descriptor is not None:
            os.close(self._descriptor)

    def how_it_ended(self) -> str:
        """Why its function has not told how it ended."""
        code = self._popen.wait(REAPED_WITHIN_S)
        if code is None or code == 255:  # of a fork server that has died, nobody hears it
            return "its process ended before the function did"
        if code >= 0:
            return f"its process ended with the exit code {code}, before the function did"
        named = [each.name for each in signal.Signals if each == -code]
        return f"its process was ended by {named[0] if named else f'the signal {-code}'}"


def _descriptor_of(process: int) -> int | None:
    """What tells of the end of a process though its fork server has ended; None: nothing does."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):  # not on this system; or it has ended, as its parent tells
        return None


@contextmanager
def _out_of_reach() -> Generator[None]:
    """Start processes that no signal to stop ends, which is sent to all processes of a service.

    It stays blocked in the fork server. The processes of runs let it through when they ignore it.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # It protects itself, and lets signals through when it has started.
    importlib.import_module("multiprocessing.resource_tracker").ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _log(told: dict[str, Any]) -> None:
    record = logging.makeLogRecord(told)
    logger = logging.getLogger(record.name)
    try:
        with UserCode("a filter or handler of the log"):
            logger.handle(record)
    except Exception:
        logging.getLogger(__name__).exception("A record of %s cannot be logged", record.name)
