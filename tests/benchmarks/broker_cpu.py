"""What processes of this machine take of its CPU and memory: a broker's, and others."""

import math
import os
import time
from collections.abc import Callable, Collection, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

IDLE = 0.15
"""Of a core: what a broker takes at most that has nothing to do."""
PATIENCE = 60.0


class BrokerCpu:
    """The CPU time of a broker's process, found by the port it listens on.

    Linux only, and only for a broker of this machine whose process we may look at.
    """

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        local = parts.hostname in ("localhost", "127.0.0.1", "::1")
        self._pid = _listener(parts.port or 5672) if local else None

    def __call__(self) -> float:
        """Seconds so far; not a number where it cannot be known."""
        if self._pid is None:
            return math.nan
        utime, stime, *_ = _fields_of(Path(f"/proc/{self._pid}/stat"))[11:]
        return (int(utime) + int(stime)) / os.sysconf("SC_CLK_TCK")

    def memory(self) -> float:
        """Megabytes in memory now; not a number where it cannot be known."""
        return math.nan if self._pid is None else memory_of(self._pid)


@dataclass
class Spent:
    """Attributes: all in seconds; own and broker are CPU."""

    seconds: float = math.nan
    own: float = math.nan
    broker: float = math.nan


@contextmanager
def spending(broker: BrokerCpu, own: Callable[[], float] = time.process_time) -> Generator[Spent]:
    """Count what the block takes; what it gets tells that after it."""
    spent = Spent()
    began, own_before, broker_before = time.perf_counter(), own(), broker()
    yield spent
    spent.seconds = time.perf_counter() - began
    spent.own, spent.broker = own() - own_before, broker() - broker_before


def until_idle(broker: BrokerCpu) -> None:
    """Wait until the broker has done with what was before; for a minute at most."""
    end = time.monotonic() + PATIENCE
    busy = True
    while busy and time.monotonic() < end:
        before = broker()
        time.sleep(1)
        busy = broker() - before > IDLE


def memory_of(pid: int, what: str = "VmRSS") -> float:
    """Megabytes of a process that are in memory; VmHWM: at most."""
    status = Path(f"/proc/{pid}/status").read_text().splitlines()
    (kilobytes,) = (int(line.split()[1]) for line in status if line.startswith(what))
    return kilobytes / 1024


def cpu_of(sessions: Collection[int]) -> float:
    """Seconds of CPU of all processes of these sessions, ended children included."""
    total = 0
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = _fields_of(stat)
        except OSError:
            continue
        if int(fields[3]) in sessions:  # field 6; times are fields 14 to 17
            total += sum(map(int, fields[11:15]))
    return total / os.sysconf("SC_CLK_TCK")


def _fields_of(stat: Path) -> list[str]:
    """What the kernel tells of a process, from its third field on: see proc_pid_stat(5)."""
    return stat.read_text().rpartition(")")[2].split()  # the name before it may hold anything


def _listener(port: int) -> int | None:
    sockets: set[str] = set()
    for table in (Path("/proc/net/tcp"), Path("/proc/net/tcp6")):
        if table.exists():
            rows = [line.split() for line in table.read_text().splitlines()[1:]]
            sockets |= {
                f"socket:[{row[9]}]"
                for row in rows
                if row[3] == "0A" and int(row[1].rpartition(":")[2], 16) == port
            }
    for process in Path("/proc").glob("[0-9]*"):
        try:
            # Not the proxy of a container: the broker itself.
            if not (process / "comm").read_text().startswith("beam"):
                continue
            if any(str(fd.readlink()) in sockets for fd in (process / "fd").iterdir()):
                return int(process.name)
        except OSError:
            continue
    return None
