"""The app in the storm: loops and one-off tasks that write down all that happens to them.

What a process of it is, the environment says: its name, its record, and two files by which the
runner tells it to die at an event, and how wrong its clock is.
"""

import asyncio
import os
import signal
from collections.abc import Generator
from contextlib import contextmanager, suppress
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

from scheduler import Context, Retry, Scheduler
from scheduler.events import (
    Connected,
    ConnectionLost,
    ConsumerInterrupted,
    ConsumerResumed,
    Event,
    MessageParked,
    ProcessorStarted,
    ProcessorStopped,
    RunEvent,
    SettlementDelayed,
)
from scheduler.timing.clock import SystemClock
from scheduler.timing.schedules import schedule_of
from tests.chaos.record import Pen

NOT_RUNS = (
    Connected,
    ConnectionLost,
    ConsumerInterrupted,
    ConsumerResumed,
    MessageParked,
    ProcessorStarted,
    ProcessorStopped,
    SettlementDelayed,
)
# Loops whose operator cannot make up his mind, and one that he paused for good.
MOODY = ("moody0", "moody1")
HELD = "held"
# Loops that carry the count of their ticks.
COUNTING = ("counting", "counting_grid")
# A release changes the schedules of these.
RELEASE = int(os.environ.get("RELEASE", "0"))
EVERY_OF_QUICK = ("500ms", "700ms")[RELEASE % 2]
RATE_OF_STEADY = ("1s", "2s")[RELEASE % 2]

app = Scheduler(os.environ.get("NAMESPACE", "storm"))
note = Pen(Path(os.environ.get("RECORD", os.devnull)), os.environ.get("WHO", "somebody"))


@contextmanager
def noted(ctx: Context) -> Generator[None]:
    """A run's body: what it says of itself at its beginning and at its end."""
    run: dict[str, Any] = {"loop": ctx.loop, "seq": ctx.seq, "attempt": ctx.attempt}
    if not ctx.routing_key.startswith("loop."):
        run |= {"seq": -1, "message": ctx.message.message_id}
    note("start", carried=ctx.carried, redelivered=ctx.redelivered, **run)
    try:
        yield
    except asyncio.CancelledError:
        note("cancelled", **run)
        raise
    except Exception:
        note("failed", **run)
        raise
    note("end", **run)


async def beat(ctx: Context) -> None:
    with noted(ctx):
        await asyncio.sleep(0.01)


async def plod(ctx: Context) -> None:
    with noted(ctx):
        await asyncio.sleep(0.3)


async def stumble(ctx: Context) -> None:
    with noted(ctx):
        if ctx.attempt == 0 and ctx.seq % 3 == 1:
            raise ValueError("not at the first attempt")


async def fall(ctx: Context) -> None:
    with noted(ctx):
        raise ValueError("never")


async def count(ctx: Context) -> None:
    with noted(ctx):
        ctx.carry((ctx.carried or 0) + 1)


def register() -> None:
    every: Any = {
        **{f"quick{n}": (beat, {"every": EVERY_OF_QUICK}) for n in range(4)},
        **{f"steady{n}": (beat, {"every": RATE_OF_STEADY, "mode": "fixed_rate"}) for n in range(3)},
        **{f"cron{n}": (beat, {"cron": "* * * * * *"}) for n in range(3)},
        **{f"slow{n}": (plod, {"every": "1s"}) for n in range(3)},
        **{f"flaky{n}": (stumble, {"every": "1s"}) for n in range(2)},
        "doomed": (fall, {"every": "2s"}),
        COUNTING[0]: (count, {"every": "500ms"}),
        COUNTING[1]: (count, {"every": "1s", "mode": "fixed_rate"}),
        **{name: (beat, {"every": "500ms"}) for name in (*MOODY, HELD)},
    }
    for name, (body, schedule) in every.items():
        app.periodic(
            schedule=schedule_of(**schedule),
            name=name,
            retry=Retry(1, delays=["200ms"], jitter=0),
        )(body)


@app.task(concurrency=50)
async def post(ctx: Context, n: int) -> None:
    with noted(ctx):
        await asyncio.sleep(0)


@app.task(concurrency=50, retry=Retry(2, delays=["100ms", "1s"], jitter=0))
async def fussy(ctx: Context, n: int) -> None:
    """Every third works at the second attempt, every tenth never."""
    with noted(ctx):
        if n % 10 == 0 or (n % 3 == 0 and ctx.attempt == 0):
            raise ValueError(f"no {n}")


@app.listen
def witness(event: Event) -> None:
    name = type(event).__name__
    if isinstance(event, RunEvent):
        about: Any = {"loop": str(event.loop), "attempt": event.attempt}
        if event.seq is None:
            about |= {"message": event.message_id}
        else:
            about |= {"seq": event.seq}
        note(name, **about)
        obey(name)
    elif isinstance(event, NOT_RUNS):
        note(name, message=getattr(event, "message_id", None) or "")
        obey(name)


ORDER = Path(os.environ.get("ORDER", os.devnull))


def obey(moment: str) -> None:
    """Die, as of `kill -9`, at the event that the order names."""
    with suppress(FileNotFoundError):
        if ORDER.read_text() == moment:
            ORDER.unlink()
            os.kill(os.getpid(), signal.SIGKILL)


def set_wrong(file: Path) -> None:
    """Have the machine's clock be wrong by as many seconds as a file says, once it is there."""
    right = SystemClock.now

    def now(self: SystemClock) -> datetime:
        with suppress(FileNotFoundError):
            return right(self) + timedelta(seconds=float(file.read_text()))
        return right(self)

    SystemClock.now = now


if "CLOCK" in os.environ:
    set_wrong(Path(os.environ["CLOCK"]))
register()
