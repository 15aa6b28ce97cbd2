"""A loop whose runs are in processes that fork; in some of them, something is killed."""

import os
import signal
import threading
import time
from typing import Any

from scheduler import Context, Retry, Scheduler
from scheduler.events import Event, RunFinished
from tests.integration.record import RECORD, die, note

MOMENT, *VICTIMS = os.environ.get("STRIKE", "never").split()

if os.environ.pop("OWN_GROUP", None):  # the processor: neither its fork server nor its runs
    os.setpgid(0, 0)
    os.environ["PROCESSOR"] = str(os.getpid())

app = Scheduler(os.environ["NAMESPACE"])


def strike(moment: str, seq: int, forked: int = 0) -> None:
    """Kill what is to be killed at this moment, unless that was done: one in each run."""
    if moment != MOMENT or not 1 <= seq <= len(VICTIMS):
        return
    try:
        RECORD.with_name(f"struck-{seq}").touch(exist_ok=False)
    except FileExistsError:
        return
    processor = int(os.environ["PROCESSOR"])
    note("struck", seq=seq)
    match VICTIMS[seq - 1]:
        case "child":
            die()
        case "grandchild":
            os.kill(forked, signal.SIGKILL)
        case "server":
            os.kill(os.getppid(), signal.SIGKILL)
        case "processor":
            os.kill(processor, signal.SIGKILL)
            if moment != "forked":
                time.sleep(600)  # this process ends with its processor
        case _:
            os.killpg(processor, signal.SIGTERM)


def fork_a_sleeper() -> int:
    forked = os.fork()
    if not forked:
        note("there")
        time.sleep(600)
        os._exit(0)
    return forked


def outlast(seq: int, forked: int) -> None:
    threading.main_thread().join()
    time.sleep(0.2)  # the processor has heard how the run ended, and waits for the process
    strike("after", seq, forked)


class Result:
    """Struck, or else noted as the end of its run, while its process reports it."""

    def __init__(self, ctx: Context, forked: int) -> None:
        self._seq, self._attempt, self._forked = ctx.seq, ctx.attempt, forked

    def __reduce__(self) -> Any:
        strike("reporting", self._seq, self._forked)
        note("end", seq=self._seq, attempt=self._attempt)
        return str, ("done",)


@app.periodic(
    every="200ms",
    name="loop0",
    timeout="1m",
    retry=Retry(5, initial="10ms", maximum="10ms"),
    executor="process",
)
def work(ctx: Context) -> Result:
    note("start", seq=ctx.seq, attempt=ctx.attempt, server=os.getppid())
    forked = fork_a_sleeper()
    threading.Thread(target=outlast, args=(ctx.seq, forked)).start()
    strike("begun", ctx.seq, forked)
    time.sleep(0.1)
    return Result(ctx, forked)


@app.listen
def strike_the_settlement(event: Event) -> None:
    """Strike in the processor, before the successor is published."""
    if isinstance(event, RunFinished) and str(event.loop) == "loop0":
        strike("reported", event.seq or 0)


# In the fork server, which has not told the processor of the process that it forks off.
if MOMENT == "forked" and "PROCESSOR" in os.environ and os.getpid() != int(os.environ["PROCESSOR"]):
    server = os.getpid()

    def strike_at_birth() -> None:
        if os.getpid() == server and RECORD.exists() and sum(1 for _ in RECORD.open()) > 3:
            strike("forked", 1)

    def note_birth() -> None:
        if os.getppid() == server:
            note("there")

    os.register_at_fork(before=strike_at_birth, after_in_child=note_birth)
