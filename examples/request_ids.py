"""Middleware: an id that follows an order from message to message, and how long each task takes.

Run it with no broker at all:

    scheduler dev examples/request_ids.py:app --for 5s

Each second somebody orders; the order is charged, and the receipt is sent: three runs, of which the
first asks for the second, and that for the third. What they log begins with the same id: it is made
where a chain begins, put into a header of whatever is sent (`around_sending`), and read from there
(`around`). No task knows of it. Every other card fails at first, so that there are retries.

Another function around each run measures it, into the numbers that all runs of the processor share
(`ctx.state`), which are printed when it ends.
"""

import logging
import time
import uuid
from collections import defaultdict
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field

from scheduler import Context, Retry, Scheduler
from scheduler.middleware import CallNext, Sending, SendNext

HEADER = "request-id"

request_id: ContextVar[str] = ContextVar("request_id")


@dataclass
class Numbers:
    """What is known of a task's runs."""

    seconds: list[float] = field(default_factory=list[float])
    failed: int = 0

    def __str__(self) -> str:
        mean = 1000 * sum(self.seconds) / len(self.seconds)
        return f"{len(self.seconds)} runs, {self.failed} failed, {mean:.1f} ms each"


Timings = defaultdict[str, Numbers]


@asynccontextmanager
async def keep_timings(app: Scheduler) -> AsyncGenerator[Timings]:
    timings = Timings(Numbers)
    yield timings
    for task, numbers in timings.items():
        print(f"{task}: {numbers}")


app = Scheduler("request-ids", lifespan=keep_timings)


@app.around
async def follow_request(ctx: Context, call_next: CallNext) -> None:
    request_id.set(str(ctx.message.headers.get(HEADER) or uuid.uuid4().hex[:8]))
    await call_next()


@app.around  # inside the one above, which was registered first
async def measure(ctx: Context[Timings], call_next: CallNext) -> None:
    numbers, began = ctx.state[ctx.task], time.perf_counter()
    try:
        await call_next()
    except Exception:
        numbers.failed += 1
        raise
    finally:
        numbers.seconds.append(time.perf_counter() - began)


@app.around_sending
async def hand_on_request(sending: Sending, send_next: SendNext) -> None:
    sending.headers[HEADER] = request_id.get()
    await send_next()


@app.periodic(every="1s")
async def order(ctx: Context) -> None:
    logging.info("[%s] order %d", request_id.get(), ctx.seq)
    await charge.send(ctx.seq)


@app.task(retry=Retry(3, delays=["500ms"]))
async def charge(ctx: Context, number: int) -> None:
    if number % 2 and ctx.attempt == 1:
        raise ConnectionError("the bank does not answer")
    logging.info("[%s] order %d charged", request_id.get(), number)
    await receipt.send(number)


@app.task
async def receipt(number: int) -> None:
    logging.info("[%s] receipt of order %d sent", request_id.get(), number)
