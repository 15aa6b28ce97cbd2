"""What the dashboard costs: how soon pages come, what its process takes, what viewers are sent.

    python tests/benchmarks/viewing.py [--url amqp://...] [--loops 10000] [--rate 100]
        [--seconds 600] [--crowd 400] [--crowd-seconds 60]

A dashboard reads back the journal of a processor that works on so many loops. Then each page is
asked for some times; and its CPU is counted while nobody looks, while one viewer does, and while a
crowd does, each at another page.
"""

import argparse
import asyncio
import os
import re
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, cycle, islice
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.benchmarks.broker_cpu import cpu_of, memory_of
from tests.benchmarks.costs import Load, fleet, ours
from tests.benchmarks.growth import warm_up
from tests.browser.working import shown as answering
from tests.rabbitmq import shared_broker

PAGES = (
    *("/", "/loops", "/loops?by=loop", "/loops?sort=last", "/loops?q=k7", "/loop?name=loop.k0"),
    *("/running", "/tasks", "/failed", "/calendar", "/processors", "/journal"),
)
APP = "tests.benchmarks.fleets.ours:app"
TIMES = 5
OPENED_EVERY_S = 3.0
APART_S = 1.5
"""Longer than a page is kept for others who ask for the same."""

READ_BACK_WITHIN_S = 300
STILL_READING = "Reading the journal back"
UNKNOWN_YET = "Loading the loops"


class Answer(NamedTuple):
    """A page that was asked for."""

    ms: float
    size: int
    html: str


class Visit(NamedTuple):
    """How long it took to open a page, and the bytes that came of what was new."""

    opened_ms: float
    size: int


@dataclass(frozen=True)
class Dashboard:
    """Its process, and where it answers."""

    pid: int
    host: str
    port: int

    @property
    def cpu(self) -> float:
        """Seconds so far."""
        return cpu_of([self.pid])

    @property
    def memory(self) -> float:
        """Megabytes."""
        return memory_of(self.pid)

    async def get(self, path: str, viewer: int = 0) -> Answer:
        """Ask for a page."""
        began = time.perf_counter()
        reader, writer = await self._ask(path, viewer)
        answer = await reader.read()
        took = (time.perf_counter() - began) * 1000
        writer.close()
        head, _, body = answer.partition(b"\r\n\r\n")
        if b" 200 " not in head.partition(b"\r\n")[0]:
            raise RuntimeError(f"{path} was answered by {head.decode()}")
        return Answer(took, len(answer), body.decode())

    async def watch(
        self, path: str, seconds: float, all_open: asyncio.Barrier, viewer: int = 0
    ) -> "Visit":
        """Look at a page once all are open."""
        page = await self.get(path, viewer)
        live = re.search(r'data-live="([^"]+)"', page.html)
        assert live, path
        reader, writer = await self._ask(live[1].replace("&amp;", "&"), viewer)
        await reader.readuntil(b"\r\n\r\n")
        count = 0
        await all_open.wait()
        try:
            async with asyncio.timeout(seconds):
                while got := await reader.read(1 << 16):
                    count += len(got)
        except TimeoutError:
            return Visit(page.ms, count)
        finally:
            writer.close()
        raise RuntimeError(f"The news of {path} have ended.")

    async def _ask(
        self, path: str, viewer: int
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        # A client has a limit of live pages: each viewer asks from an address of their own.
        ours = f"127.0.{viewer // 250}.{viewer % 250 + 1}", 0
        reader, writer = await asyncio.open_connection(self.host, self.port, local_addr=ours)
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: {self.host}:{self.port}\r\n"
            "Connection: close\r\n\r\n".encode()
        )
        await writer.drain()
        return reader, writer


@contextmanager
def shown(app: str, environment: Mapping[str, str]) -> Generator[Dashboard]:
    """Have a dashboard of an app."""
    with answering("dashboard", app, "--port", "0", **environment) as program:
        parts = urlsplit(program.address)
        assert parts.port
        yield Dashboard(program.process.pid, parts.hostname or "", parts.port)


async def begin(dashboard: Dashboard) -> None:
    """Wait until it has read all back, and tell what that has taken."""
    began, cpu, memory = time.monotonic(), dashboard.cpu, dashboard.memory
    waited = list[float]()
    for missing in UNKNOWN_YET, STILL_READING:
        async with asyncio.timeout(READ_BACK_WITHIN_S):
            page = await dashboard.get("/")
            while missing in page.html:
                await asyncio.sleep(0.1)
                page = await dashboard.get("/")
        waited.append(time.monotonic() - began)
    listed, read = waited
    say(
        f"start: all loops known after {listed:.1f} s, the journal read back after {read:.1f} s "
        f"({dashboard.cpu - cpu:.1f} s of CPU); {memory:.0f} MB, then {dashboard.memory:.0f} MB"
    )


async def ask_for_pages(dashboard: Dashboard) -> None:
    say(f"{'page':24}{'first':>9}{'median':>9}{'slowest':>9}{'size':>10}")
    for path in PAGES:
        answers: list[Answer] = []
        for _ in range(TIMES):
            await asyncio.sleep(APART_S)
            answers.append(await dashboard.get(path))
        took = [each.ms for each in answers]
        times = f"{took[0]:6.0f} ms{statistics.median(took):6.0f} ms{max(took):6.0f} ms"
        say(f"{path:24}{times}{answers[-1].size / 1024:7.0f} KB")


async def look(dashboard: Dashboard, paths: Sequence[str], seconds: float) -> None:
    """Have a viewer for each of these look for so long, and tell what that has taken.

    Beside a crowd, somebody opens a page every few seconds.
    """
    all_open = asyncio.Barrier(len(paths) + 1)
    watching = [
        asyncio.create_task(dashboard.watch(path, seconds, all_open, number))
        for number, path in enumerate(paths)
    ]
    await all_open.wait()
    cpu, began = dashboard.cpu, time.monotonic()
    slowest = 0.0
    for page in cycle(PAGES) if len(paths) > 1 else ():
        if time.monotonic() + OPENED_EVERY_S > began + seconds:
            break
        await asyncio.sleep(OPENED_EVERY_S)
        slowest = max(slowest, (await dashboard.get(page)).ms)
    await asyncio.sleep(max(began + seconds - time.monotonic(), 0))
    visits = await asyncio.gather(*watching)
    passed = time.monotonic() - began
    by_page = defaultdict[str, list[float]](list)
    for path, visit in zip(paths, visits, strict=True):
        by_page[path].append(visit.size / passed)
    core = (dashboard.cpu - cpu) / passed
    line = f"{len(paths):3} viewers, {passed:4.0f} s: {core:7.2%} of a core"
    if visits:
        sent = sum(each.size for each in visits)
        line += f", {sent / passed / len(paths) / 1024:6.2f} KB a second to each"
    line += f", {dashboard.memory:5.0f} MB"
    say(f"{line}; a page took up to {slowest:.0f} ms" if slowest else line)
    if len(visits) > 1:
        opened = sorted(each.opened_ms for each in visits)
        half, last = opened[len(opened) // 2], opened[-1]
        say(f"      opened at once: half of them after {half:.0f} ms, all after {last:.0f} ms")
    if len(by_page) > 1:
        for path, rates in [*by_page.items()][: len(PAGES)]:
            say(f"      {path:24}{statistics.mean(rates) / 1024:8.2f} KB a second")


async def measure(dashboard: Dashboard, options: argparse.Namespace) -> None:
    await begin(dashboard)
    await ask_for_pages(dashboard)
    await look(dashboard, [], options.crowd_seconds)
    await look(dashboard, ["/"], options.seconds)
    of_loops = (f"/loop?name=loop.k{number}" for number in range(1, options.loops))
    crowd = [*islice(chain(PAGES, of_loops), options.crowd)]
    await look(dashboard, crowd, options.crowd_seconds)


def say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main() -> None:
    parser = argparse.ArgumentParser(description="What the dashboard costs.")
    parser.add_argument("--url", help="a RabbitMQ; else the one that the tests would use")
    parser.add_argument("--loops", type=int, default=10_000)
    parser.add_argument("--rate", type=float, default=100, help="runs a second, of all loops")
    parser.add_argument("--seconds", type=float, default=600, help="with one viewer")
    parser.add_argument("--crowd", type=int, default=400)
    parser.add_argument("--crowd-seconds", type=float, default=60)
    options = parser.parse_args()
    url = options.url or shared_broker(str(os.getpid()))
    every = options.loops / options.rate
    load = Load(f"{options.loops} x {every:g} s", options.loops, spread=True, every=every)
    say(f"{load.name}: {options.rate:g} runs a second")
    with fleet(ours(1), load, url) as working:
        warm_up(working, load)
        with shown(APP, working.environment) as dashboard:
            asyncio.run(measure(dashboard, options))


if __name__ == "__main__":
    main()
