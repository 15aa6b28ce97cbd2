"""The app in the storm: loops and one-off tasks that write down all that happens to them.

What a process of it is, the environment says: its name, its release, its record, and two files by
which the runner tells it to die at a moment, and how wrong its clock is.
"""

import asyncio
import json
import os
import signal
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
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
    MessageConfirmed,
    MessageParked,
    ProcessorStarted,
    ProcessorStopped,
    RunEvent,
    SettlementDelayed,
    TokenDelayed,
)
from scheduler.protocol.tokens import claims_of
from scheduler.tasks.loops import Loop, loop_of
from scheduler.tasks.registration import schedule_of
from scheduler.timing.moments import SystemClock
from scheduler.timing.schedules import Schedule, to_wire
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
    TokenDelayed,
)
# Loops whose operator cannot make up his mind: he pauses and resumes them. The last one's runs take
# longer than its waits.
MOODY = ("moody0", "moody1", "moody_tardy")
# One that he paused for good, those that he triggers, and those that he gives other schedules.
HELD = "held"
URGED = ("urged0", "urged_tardy")
SHIFTING = ("shifting0", "shifting_tardy")
OPERATED = (*MOODY, HELD, *URGED, *SHIFTING)
# Keyed loops, that he starts and stops.
KEYS = ("one", "two", "tardy")
# Loops that carry the count of their ticks.
COUNTING = ("counting", "counting_grid")
RELEASE = int(os.environ.get("RELEASE", "0"))

app = Scheduler(os.environ.get("NAMESPACE", "storm"))
note = Pen(Path(os.environ.get("RECORD", os.devnull)), os.environ.get("WHO", "somebody"))


def released(release: int) -> Mapping[str, Schedule]:
    """The loops whose schedules a release changes."""
    quick = schedule_of(every=("500ms", "700ms", "600ms")[release % 3])
    steady = schedule_of(every=("1s", "2s", "1500ms")[release % 3], mode="fixed_rate")
    return {f"quick{n}": quick for n in range(4)} | {f"steady{n}": steady for n in range(3)}


def written(schedule: Schedule) -> str:
    """A schedule, as the notes tell it."""
    return json.dumps(to_wire(schedule), sort_keys=True)


@contextmanager
def noted(ctx: Context) -> Generator[None]:
    """A run's body: what it says of itself at its beginning and at its end."""
    run: dict[str, Any] = {"loop": ctx.loop, "seq": ctx.seq, "attempt": ctx.attempt}
    if not ctx.routing_key.startswith("loop."):
        run |= {"seq": -1, "message": ctx.message.message_id}
    note("start", carried=ctx.carried, redelivered=ctx.redelivered, **run, **token_of(ctx))
    try:
        yield
    except asyncio.CancelledError:
        note("cancelled", **run)
        raise
    except Exception:
        note("failed", **run)
        raise
    note("end", **run)


def token_of(ctx: Context) -> Mapping[str, Any]:
    """What the token of a run says of its epoch, and with which schedule it goes on."""
    if not (claims := claims_of(ctx.message)):
        return {}
    return {
        "epoch": claims["epoch"],
        "life": claims["life"],
        "schedule": json.dumps(claims["schedule"], sort_keys=True),
    }


async def beat(ctx: Context) -> None:
    with noted(ctx):
        await asyncio.sleep(0.01)


async def plod(ctx: Context) -> None:
    with noted(ctx):
        await asyncio.sleep(0.3)


async def dawdle(ctx: Context) -> None:
    """Take longer than the wait before the next run."""
    with noted(ctx):
        await asyncio.sleep(1.2)


async def stumble(ctx: Context) -> None:
    with noted(ctx):
        if ctx.attempt == 1 and ctx.seq % 3 == 1:
            raise ValueError("not at the first attempt")


async def fall(ctx: Context) -> None:
    with noted(ctx):
        raise ValueError("never")


async def count(ctx: Context) -> None:
    with noted(ctx):
        ctx.carry((ctx.carried or 0) + 1)


def body_of(name: str) -> Callable[[Context], Coroutine[Any, Any, None]]:
    return dawdle if name.endswith("tardy") else beat


def register() -> None:
    every: Any = {
        **{name: (beat, schedule) for name, schedule in released(RELEASE).items()},
        **{f"cron{n}": (beat, schedule_of(cron="* * * * * *")) for n in range(3)},
        **{f"slow{n}": (plod, schedule_of(every="1s")) for n in range(3)},
        **{f"tardy{n}": (dawdle, schedule_of(every="300ms")) for n in range(3)},
        "tardy_grid": (dawdle, schedule_of(every="300ms", mode="fixed_rate")),
        **{f"flaky{n}": (stumble, schedule_of(every="1s")) for n in range(2)},
        "doomed": (fall, schedule_of(every="2s")),
        COUNTING[0]: (count, schedule_of(every="500ms")),
        COUNTING[1]: (count, schedule_of(every="1s", mode="fixed_rate")),
        **{name: (body_of(name), schedule_of(every="500ms")) for name in OPERATED},
    }
    for name, (body, schedule) in every.items():
        app.periodic(
            schedule=schedule,
            name=name,
            retry=Retry(1, delays=["200ms"], jitter=0),
        )(body)


register()


@app.task(concurrency=50)
async def post(ctx: Context, n: int) -> None:
    with noted(ctx):
        await asyncio.sleep(0)


@app.task(concurrency=50, retry=Retry(2, delays=["100ms", "1s"], jitter=0))
async def fussy(ctx: Context, n: int) -> None:
    """Every third works at the second attempt, every tenth never."""
    with noted(ctx):
        if n % 10 == 0 or (n % 3 == 0 and ctx.attempt == 1):
            raise ValueError(f"no {n}")


@app.task(concurrency=50)
async def visit(ctx: Context) -> None:
    """What the keyed loops do."""
    await body_of(ctx.key)(ctx)


@app.task(concurrency=50)
async def remember(ctx: Context) -> None:
    """What named one-offs do."""
    await beat(ctx)
    note("done once", message=ctx.loop)


def keyed(key: str, schedule: Schedule) -> Loop:
    return loop_of(visit.spec, schedule, {}, key)


# What the broker has confirmed since the operator's verb began.
confirmed: ContextVar[list[Event]] = ContextVar("confirmed")


@app.listen
def witness(event: Event) -> None:
    name = type(event).__name__
    if isinstance(event, MessageConfirmed):
        if (of_verb := confirmed.get(None)) is not None:
            of_verb.append(event)
            obey(f"confirmed {len(of_verb)}")
    elif isinstance(event, RunEvent):
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
    """Die, as of `kill -9`, at the moment that the order names: an event, or `confirmed 3`."""
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
