"""Run a job in a separate process.

Results are checked here, in that process: an error about a value that cannot travel is sent as
text.
"""

import base64
import importlib
import json
import logging
import os
import pickle
import signal
import socket
import sys
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from multiprocessing.util import Finalize
from time import monotonic
from typing import Any, NoReturn, cast

from scheduler.errors import CarryError, UsageError
from scheduler.processor import threads as processor_threads
from scheduler.processor.stacks import of_thread
from scheduler.processor.threads import called
from scheduler.protocol.messages import summary_of
from scheduler.tasks.context import Context, Progress
from scheduler.tasks.tasks import Task, TaskSpec
from scheduler.timing.durations import MICROSECOND
from scheduler.user_code import UserCode, traceback_of

STOPPING = signal.SIGINT, signal.SIGTERM
ORPHANED = 70
CHUNK = 64 * 1024
LAST = -1_000_000
PLAIN = str, int, float, bool, type(None)
OURS = __file__, processor_threads.__file__
WRAPPED = "__wrapped__"  # where `functools.update_wrapper` puts it

Whereabouts = tuple[Progress | None, str]
"""The progress of a run, and its stack."""


@dataclass(frozen=True)
class Job:
    """Describe the job of a process, which finds the function by its name."""

    module: str
    function: str
    context: Context[Any]
    takes_context: str | None
    carries: bool
    log_level: int

    @classmethod
    def of(cls, task: TaskSpec, context: Context[Any], *, carries: bool) -> "Job":
        """Describe a run, without objects that cannot travel to another process."""
        alone = replace(
            context,
            state=None,
            _extend=_unreachable,
            _hand_on=_unreachable,
            _note_progress=_unreachable,
        )
        return cls(
            task.function.__module__,
            task.function.__qualname__,
            alone,
            task.arguments.context,
            carries,
            logging.getLogger().getEffectiveLevel(),
        )


class Lines:
    """Send a word and a value over a socket, as a line of JSON."""

    def __init__(self, connected: socket.socket) -> None:
        self._socket = connected
        self._rest = bytearray()

    def send(self, what: str, value: Any = None) -> None:
        self._socket.sendall(json.dumps([what, value]).encode() + b"\n")

    def read(self) -> Sequence[tuple[str, Any]] | None:
        """Wait until data arrives, and return its whole lines; None: the end."""
        try:
            data = self._socket.recv(CHUNK)
        except OSError:
            data = b""
        if not data:
            return None
        self._rest += data
        if b"\n" not in data:
            return []
        *whole, self._rest = self._rest.split(b"\n")
        return [tuple(json.loads(line)) for line in whole]


def work(theirs: socket.socket, job: Job) -> None:
    """Do a job, and report how it ended."""
    _become_own_session()
    ProcessSide(theirs).work(job)


class ProcessSide:
    """Hold a process's side of its run. Made in the thread of the run."""

    def __init__(self, connected: socket.socket) -> None:
        self._process = os.getpid()
        self._thread = threading.get_ident()
        self._socket = connected
        self._lines = Lines(connected)
        self._telling = threading.Lock()
        self._begun = threading.Event()
        self._progress: Progress | None = None

    def work(self, job: Job) -> None:
        """Wait until the job may begin, do it, and report how it ended."""
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._let_go)
        root = logging.getLogger()
        root.handlers = [_LogSender(self.send)]
        root.setLevel(job.log_level)
        threading.Thread(target=self._listen, name="processor", daemon=True).start()
        self._begun.wait()
        self._begun_at = monotonic()
        try:
            result = _call(job, self._context(job))
        except Exception as error:
            self.send("raised", _report_of(error))
        else:
            self.send("returned", _pickled(result))
        Finalize(None, self._leave, exitpriority=LAST)

    def send(self, what: str, value: Any) -> None:
        if os.getpid() != self._process:  # it was forked off the one that may
            _unreachable()
        with self._telling:
            self._lines.send(what, value)

    def _context(self, job: Job) -> Context[Any]:
        return replace(
            job.context,
            _extend=partial(self._extend, job.context.started_at),
            _hand_on=partial(self.send, "carry") if job.carries else refuse_to_carry,
            _note_progress=self._note_progress,
        )

    def _listen(self) -> None:
        try:
            while (heard := self._lines.read()) is not None:
                for what, _ in heard:
                    if what == "go":
                        self._begun.set()
                    else:  # where is it?
                        fraction, text = self._progress or (None, "")
                        begun = self._begun.is_set()
                        stack = of_thread(self._thread, OURS) if begun else ""
                        self.send("where", [fraction, text, stack])
        finally:
            _end_session()

    def _leave(self) -> None:
        """Run the exit handlers, then wait to be killed, with all forks."""
        ended: Any = threading
        ended._shutdown()  # as at the end of a process
        sys.stdout.flush()
        sys.stderr.flush()
        self.send("left", None)
        threading.Event().wait()

    def _extend(self, started_at: datetime, span: timedelta) -> datetime:
        self.send("extend", span // MICROSECOND)
        return started_at + timedelta(seconds=monotonic() - self._begun_at) + span

    def _note_progress(self, progress: Progress) -> None:
        self._progress = progress

    def _let_go(self) -> None:
        """Leave the processor to the parent of this forked process."""
        for number in STOPPING:
            if signal.getsignal(number) is _stay:
                signal.signal(number, signal.SIG_DFL)
        root = logging.getLogger()
        if any(isinstance(each, _LogSender) for each in root.handlers):
            root.handlers = [logging.StreamHandler()]
        self._socket.close()


def refuse_to_carry(_: Any) -> NoReturn:
    """Reject carrying in a run that has no next one."""
    raise CarryError("A one-off run has no next run to carry to: only loops carry.")


def raise_error_of(report: dict[str, Any]) -> NoReturn:
    """Raise the error of a process: itself, or its text."""
    error = unpickled(report["pickled"])
    if not isinstance(error, Exception):
        error = RuntimeError(report["summary"])
    raise error from _RemoteTraceback(report["traceback"])


def unpickled(text: str | None) -> Any:
    """Unpickle a value of a process; None if that fails here."""
    if text is None:
        return None
    try:
        with UserCode("unpickling"):
            return pickle.loads(base64.b64decode(text))
    except Exception:
        return None


class _RemoteTraceback(Exception):
    """Show the traceback of an error that was raised in another process."""

    def __str__(self) -> str:
        return f"\n{self.args[0]}"


def _unreachable(*_: object) -> NoReturn:
    raise UsageError("It belongs to another process.")


def _become_own_session() -> None:
    """Start a session, which is killed with all its forks, and survive signals to stop."""
    if hasattr(os, "setsid"):
        os.setsid()
    for number in STOPPING:
        # Not ignored: the programs that this one starts would inherit that.
        signal.signal(number, _stay)
        if hasattr(signal, "siginterrupt"):
            signal.siginterrupt(number, False)
    if hasattr(signal, "pthread_sigmask"):
        signal.pthread_sigmask(signal.SIG_UNBLOCK, STOPPING)


def _stay(*_: object) -> None:
    """Stay until the processor ends this process."""


def _end_session() -> NoReturn:
    """End this process, and all its forks: the processor is gone."""
    if hasattr(os, "killpg"):
        os.killpg(0, signal.SIGKILL)
    os._exit(ORPHANED)


def _call(job: Job, context: Context[Any]) -> Any:
    given = {job.takes_context: context} if job.takes_context else {}
    with UserCode("the module of the task"):
        function = _function_of(job)
    return called(partial(function, **given, **context.arguments))


def _function_of(job: Job) -> Any:
    found: Any = importlib.import_module(job.module)
    for name in job.function.split("."):
        found = getattr(found, name)
    is_task = isinstance(found, Task)
    return getattr(cast("Any", found), WRAPPED) if is_task else found


def _report_of(error: Exception) -> dict[str, str | None]:
    return {
        "pickled": _pickled(error),
        "summary": summary_of(error),
        "traceback": "".join(traceback_of(error)),
    }


def _pickled(value: Any) -> str | None:
    """Pickle a value; None if that fails."""
    try:
        with UserCode("pickling"):
            pickle.loads(data := pickle.dumps(value))
    except Exception:
        return None
    return base64.b64encode(data).decode()


class _LogSender(logging.Handler):
    """Send log records to the processor, in plain values."""

    def __init__(self, send: Callable[[str, Any], None]) -> None:
        super().__init__()
        self._send = send

    def emit(self, record: logging.LogRecord) -> None:
        try:
            with UserCode("a log record"):
                fields = {name: _plain(value) for name, value in vars(record).items()}
                fields |= {"msg": record.getMessage(), "args": None, "exc_info": None}
                if record.exc_info and not record.exc_text:
                    fields["exc_text"] = logging.Formatter().formatException(record.exc_info)
            self._send("log", fields)
        except Exception:
            self.handleError(record)


def _plain(value: Any) -> Any:
    if type(value) in PLAIN:
        return value
    try:
        return json.loads(json.dumps(value, default=repr, skipkeys=True))
    except Exception as error:
        return f"({type(value).__name__}, which cannot be shown: {type(error).__name__})"
