"""The app in the storm: loops and one-off tasks that write down all that happens to them.

What a process of it is, the environment says: its name, its release, its record, and two files by
which the runner tells it to die at a moment, and how wrong its clock is.
"""

import asyncio
import json
import os
import signal
from collections.abc import Awaitable, Callable, Coroutine, Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

from scheduler import Context, Retry, Scheduler
from scheduler.errors import BrokerError
from scheduler.events import Event, MessageConfirmed, RunEvent
from scheduler.protocol.tokens import claims_of
from scheduler.tasks.loops import Loop, loop_of
from scheduler.tasks.registration import schedule_of
from scheduler.timing.moments import SystemClock
from scheduler.timing.schedules import Schedule, to_wire
from tests.chaos.record import Pen

T = TypeVar("T")
Body = Callable[[Context], Coroutine[Any, Any, None]]
AGAIN = 0.3
# What the operator does to loops; the runs of the tardy ones take longer than their waits.
PAUSED_AND_RESUMED = ("moody0", "moody1", "moody_tardy")
PAUSED = "held"
TRIGGERED = ("urged0", "urged_tardy")
RESCHEDULED = ("shifting0", "shifting_tardy")
OPERATED = (*PAUSED_AND_RESUMED, PAUSED, *TRIGGERED, *RESCHEDULED)
# Keyed loops, that he starts and stops.
KEYS = ("one", "two", "tardy")
# Loops that carry the count of their ticks.
COUNTING = ("counting", "counting_grid")
RELEASE = int(os.environ.get("RELEASE", "0"))

# Of the runner: what a storm that was killed has left may reach the broker of another one.
app = Scheduler(os.environ.get("NAMESPACE", f"storm-{os.getpid()}"))
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


def lasting(seconds: float, fails: Callable[[Context], bool] = lambda ctx: False) -> Body:
    async def body(ctx: Context) -> None:
        with noted(ctx):
            await asyncio.sleep(seconds)
            if fails(ctx):
                raise ValueError(f"attempt {ctx.attempt}")

    return body


short, slow, longer_than_its_wait = lasting(0.01), lasting(0.3), lasting(1.2)


async def count(ctx: Context) -> None:
    with noted(ctx):
        ctx.carry((ctx.carried or 0) + 1)


def fails_at_first(ctx: Context) -> bool:
    return ctx.attempt == 1 and ctx.seq % 3 == 1


def body_of(name: str) -> Body:
    return longer_than_its_wait if name.endswith("tardy") else short


def register() -> None:
    every: Any = {
        **{name: (short, schedule) for name, schedule in released(RELEASE).items()},
        **{f"cron{n}": (short, schedule_of(cron="* * * * * *")) for n in range(3)},
        **{f"slow{n}": (slow, schedule_of(every="1s")) for n in range(3)},
        **{f"tardy{n}": (longer_than_its_wait, schedule_of(every="300ms")) for n in range(3)},
        "tardy_grid": (longer_than_its_wait, schedule_of(every="300ms", mode="fixed_rate")),
        **{f"flaky{n}": (lasting(0, fails_at_first), schedule_of(every="1s")) for n in range(2)},
        "doomed": (lasting(0, lambda ctx: True), schedule_of(every="2s")),
        COUNTING[0]: (count, schedule_of(every="500ms")),
        COUNTING[1]: (count, schedule_of(every="1s", mode="fixed_rate")),
        **{name: (body_of(name), schedule_of(every="500ms")) for name in OPERATED},
    }
    for name, (body, schedule) in every.items():
        app.periodic(schedule=schedule, name=name, retry=Retry(1, delays=["200ms"], jitter=0))(body)


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
    await short(ctx)
    note("done once", message=ctx.loop)


def keyed(key: str, schedule: Schedule) -> Loop:
    return loop_of(visit.spec, schedule, {}, key)


# What the broker has confirmed since the operator's verb began.
confirmed: ContextVar[list[Event]] = ContextVar("confirmed")


async def insist(verb: Callable[[], Awaitable[T]], refused: str) -> T:
    """Do it until it works, as an operator would; note each time that it does not."""
    while True:
        confirmed.set([])
        try:
            return await verb()
        except BrokerError as error:
            note(refused, detail=str(error))
            await asyncio.sleep(AGAIN)


async def side_by_side(
    activities: Callable[[asyncio.Event], Iterable[Coroutine[Any, Any, None]]],
) -> None:
    """Do all of them, until SIGTERM tells them to stop."""
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    note("ready")
    async with asyncio.TaskGroup() as group:
        for activity in activities(stopped):
            group.create_task(activity)


@app.listen
def witness(event: Event) -> None:
    name, about = type(event).__name__, dict[str, Any]()
    if isinstance(event, MessageConfirmed):
        if (of_verb := confirmed.get(None)) is not None:
            of_verb.append(event)
            obey(f"confirmed {len(of_verb)}")
        return
    if isinstance(event, RunEvent):
        about = {"loop": str(event.loop), "attempt": event.attempt}
    if isinstance(event, RunEvent) and event.seq is not None:
        about["seq"] = event.seq
    else:
        about["message"] = getattr(event, "message_id", None) or ""
    note(name, **about)
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
