"""Run functions in separate processes, which can be killed.

The processor and the process exchange lines of JSON over one socket: an incomplete line blocks
nothing, and values of user code are read with care. The process starts on command, sends its log
records, carries, extensions and how it ended; the processor also uses it to query progress and the
stack. When the socket closes, because the processor has died, the process ends itself.

It has a session of its own, which is killed as a group, with all its forks. The processor waits for
the end of the process, not of its socket, which other processes may have inherited.
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

from scheduler.processor.child import (
    STOPPING,
    Job,
    Lines,
    Whereabouts,
    raise_error_of,
    unpickled,
    work,
)
from scheduler.processor.threads import Unfinished
from scheduler.protocol.messages import summary_of
from scheduler.tasks.context import Context, Progress
from scheduler.tasks.tasks import TaskSpec
from scheduler.user_code import UserCode, log_of

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
    """Preload the modules of these tasks in the fork server."""
    modules = {task.function.__module__ for task in tasks if task.executor == "process"}
    if modules and WAY == "forkserver":
        STARTING.set_forkserver_preload(sorted(modules))
        with _out_of_reach():
            importlib.import_module("multiprocessing.forkserver").ensure_running()


class Child:
    """Control the process of one run, and its function's use of the context."""

    def __init__(self, task: TaskSpec, context: Context[Any], *, carries: bool) -> None:
        self._context = context
        self._job = Job.of(task, context, carries=carries)
        self._lock = threading.Lock()  # blocks the event loop: held for moments only
        self._process: _Process | None = None
        self._killed = False
        self._asked: Future[Whereabouts] | None = None

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
        """Let the process begin, and wait for its end; return the function's result."""
        process = self._process
        assert process is not None
        try:
            with suppress(OSError):  # it has ended
                self._send("go")
            ending = self._hear(process)
            if ending is None:
                raise ProcessEnded(process.how_it_ended())
        finally:
            self.close()
        what, value = ending
        if what == "raised":
            raise_error_of(value)
        return unpickled(value)

    def kill(self) -> None:
        """Kill the process, now or as soon as it has started."""
        with self._lock:
            self._killed = True
            if self._process is not None:
                self._process.kill()

    def close(self) -> None:
        """Clean up the process, if there is one."""
        with self._lock:
            process, self._process = self._process, None
        if process is not None:
            process.kill()  # its forks too; and it may have threads that do not end, for example
            process.close()
        self._answer(NOTHING_TOLD)

    def ask(self) -> Future[Whereabouts]:
        """Ask the process for its progress and stack."""
        with self._lock:
            # All who ask share one pending answer: no unread data fills its socket.
            if (answer := self._asked) is not None:
                return answer
            answer = Future[Whereabouts]()
            answer.set_running_or_notify_cancel()  # who gives up does not cancel it for others
            if self._process is None:  # yet, or any more
                answer.set_result(NOTHING_TOLD)
            else:
                self._asked = answer
        with suppress(OSError):  # it has just ended
            self._send("where")
        return answer

    def _send(self, what: str) -> None:
        with self._lock:
            if self._process is not None:
                self._process.lines.send(what)

    def _hear(self, process: "_Process") -> tuple[str, Any] | None:
        """Serve its requests until it has ended; return how its function did."""
        ending: tuple[str, Any] | None = None
        until: float | None = None
        talks = True
        while until is None or monotonic() < until:
            rest = None if until is None else until - monotonic()
            ready = wait([process.socket, process.end] if talks else [process.end], rest)
            if process.socket in ready:
                received = process.lines.read()
                talks = received is not None
                for what, value in received or ():
                    if what in ("raised", "returned"):
                        ending = what, value
                    elif what == "left":
                        return ending
                    else:
                        self._do(what, value)
            elif process.end in ready:
                break
            # It may finish its last step; other processes may have its socket.
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
                with suppress(RuntimeError):  # it has timed out
                    self._context.extend(timedelta(microseconds=value))
            case _:
                fraction, text, stack = value
                self._answer((None if fraction is None else Progress(fraction, text), stack))

    def _answer(self, whereabouts: Whereabouts) -> None:
        with self._lock:
            answer, self._asked = self._asked, None
        if answer is not None:
            answer.set_result(whereabouts)


class _Process:
    """Hold a started process that waits for its first line.

    Attributes:
        end: is readable when it has ended.
    """

    def __init__(self, job: Job) -> None:
        self.socket, theirs = socket.socketpair()
        self.lines = Lines(self.socket)
        try:
            with theirs, _out_of_reach():
                process = STARTING.Process(target=work, args=(theirs, job))
                # Its `start` would also reap all others, each of which has its thread.
                self._popen = process._Popen(process)
        except BaseException:
            self.socket.close()
            raise
        self._descriptor = _descriptor_of(self._popen.pid)
        self.end: Any = self._popen.sentinel if self._descriptor is None else self._descriptor

    def kill(self) -> None:
        """Kill it, and its forks; it may have ended."""
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
        """Return why its function did not report its end."""
        code = self._popen.wait(REAPED_WITHIN_S)
        if code is None or code == 255:  # unknown if the fork server has died
            return "its process ended before the function did"
        if code >= 0:
            return f"its process ended with the exit code {code}, before the function did"
        named = [each.name for each in signal.Signals if each == -code]
        return f"its process was ended by {named[0] if named else f'the signal {-code}'}"


def _descriptor_of(process: int) -> int | None:
    """Return a descriptor for the end of a process, independent of its fork server; None: none."""
    try:
        return os.pidfd_open(process)
    except (AttributeError, OSError):  # not on this system; or it has ended, as its parent reports
        return None


@contextmanager
def _out_of_reach() -> Generator[None]:
    """Start processes that ignore stop signals sent to all processes of a service.

    They are blocked in the fork server. The processes of runs unblock them once they ignore them.
    """
    if not hasattr(signal, "pthread_sigmask"):
        yield
        return
    # It protects itself, and unblocks signals when it has started.
    importlib.import_module("multiprocessing.resource_tracker").ensure_running()
    before = signal.pthread_sigmask(signal.SIG_BLOCK, STOPPING)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _log(fields: dict[str, Any]) -> None:
    record = logging.makeLogRecord(fields)
    logger = logging.getLogger(record.name)
    try:
        with UserCode("a filter or handler of the log"):
            logger.handle(record)
    except Exception:
        log_of(__name__).exception("A record of %s cannot be logged", record.name)
