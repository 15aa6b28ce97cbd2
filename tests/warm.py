"""The `scheduler` program, forked off a process that has imported it already.

An interpreter takes longer to start and to import than most commands to be done. What is forked is
a process as any other: it has its own arguments, directory, environment, streams and exit code.
"""

import atexit
import functools
import gc
import importlib
import json
import os
import pkgutil
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

STREAMS = (0, 1, 2)
NUMBER = struct.Struct("!i")


class Program:
    """One `scheduler` that was started: as much of `subprocess.Popen` as tests need."""

    def __init__(self, keeper: socket.socket) -> None:
        self._keeper = keeper
        self.pid = self._told()
        self.returncode: int | None = None

    def wait(self, timeout: float | None = None) -> int:
        """The exit code, when it has ended; a signal that ended it, as a negative number."""
        if self.returncode is None:
            self._keeper.settimeout(timeout)
            try:
                self.returncode = self._told()
            except (TimeoutError, BlockingIOError):
                raise subprocess.TimeoutExpired("scheduler", timeout or 0) from None
            self._keeper.close()
        return self.returncode

    def _told(self) -> int:
        told = self._keeper.recv(NUMBER.size)
        if not told:
            raise RuntimeError("The process that keeps the program, or starts it, has died.")
        (number,) = NUMBER.unpack(told)
        return number

    def poll(self) -> int | None:
        try:
            return self.wait(0)
        except subprocess.TimeoutExpired:
            return None

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


def start(
    arguments: Sequence[str],
    directory: Path,
    environment: Mapping[str, str],
    streams: tuple[int, int, int],
) -> Program:
    """Start `scheduler` with these arguments, and these open files as its standard streams."""
    ours, keepers = socket.socketpair()
    with keepers, tempfile.TemporaryFile("w+") as request:
        json.dump([list(arguments), str(directory), dict(environment)], request)
        request.flush()
        descriptors = [*streams, request.fileno(), keepers.fileno()]
        socket.send_fds(_origin(), [b"!"], descriptors)
    return Program(ours)


@functools.cache
def _origin() -> socket.socket:
    """The process that the others are forked off: it ends when this one closes its socket."""
    ours, theirs = socket.socketpair()
    with theirs:
        origin = subprocess.Popen(
            [sys.executable, "-P", __file__, str(theirs.fileno())],
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
        )

    def end() -> None:
        ours.close()
        origin.wait()

    atexit.register(end)
    return ours


def _serve(requests: socket.socket) -> None:
    """Fork a keeper for each request; returns in the processes that are to be the program."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    while True:
        asked, descriptors, _, _ = socket.recv_fds(requests, 1, len(STREAMS) + 2)
        if not asked:
            os._exit(0)
        if os.fork() == 0:
            requests.close()
            return _keep(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)
        with suppress(ChildProcessError):
            while os.waitpid(-1, os.WNOHANG)[0]:
                pass  # a keeper that is done


def _keep(stdin: int, stdout: int, stderr: int, request: int, keeper: int) -> None:
    """Fork the program, and tell what became of it; returns in the program."""
    streams = (stdin, stdout, stderr)
    if pid := os.fork():
        for descriptor in (*streams, request):
            os.close(descriptor)
        os.write(keeper, NUMBER.pack(pid))
        _, status = os.waitpid(pid, 0)
        os.write(keeper, NUMBER.pack(os.waitstatus_to_exitcode(status)))
        os._exit(0)
    os.close(keeper)
    for ours, standard in zip(streams, STREAMS, strict=True):
        os.dup2(ours, standard)
        os.close(ours)
    with open(request) as file:
        file.seek(0)
        _become(*json.load(file))


def _become(arguments: list[str], directory: str, environment: dict[str, str]) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    os.chdir(directory)
    os.environ.clear()
    os.environ.update(environment)
    time.tzset()
    sys.argv = ["scheduler", *arguments]
    sys.path.insert(0, directory)  # as `python -m` does


def _import_all() -> None:
    """What commands import when they come to it, and what extras bring."""
    for module in pkgutil.walk_packages(scheduler.__path__, "scheduler."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)


if __name__ == "__main__":
    import scheduler
    from scheduler.cli.commands import main

    _import_all()
    gc.freeze()  # or the first collection of each program copies all of it
    _serve(socket.socket(fileno=int(sys.argv[1])))
    main()
