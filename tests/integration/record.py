"""What a process under test writes down, for the test that started it."""

import json
import os
import signal
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from scheduler.brokers.amqp.broker import AmqpBroker
from scheduler.events import Event, RunEvent
from scheduler.tasks.tasks import SUPERVISION

RECORD = Path(os.environ["RECORD"])


def note(what: str, **facts: object) -> None:
    """Append a line; O_APPEND keeps the lines of many processes whole."""
    line = {"at": time.monotonic(), "pid": os.getpid(), "what": what, **facts}
    with RECORD.open("a") as file:
        file.write(json.dumps(line) + "\n")


def notes() -> list[dict[str, Any]]:
    """What was noted so far."""
    # The last line may be seen before it was written to its end.
    whole = RECORD.read_text().rpartition("\n")[0] if RECORD.exists() else ""
    return [json.loads(line) for line in whole.splitlines()]


def die() -> None:
    """End this process, as `kill -9` does."""
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(event: Event) -> None:
    """End this process at the event that KILL_AT names; of a run, also by its seq or attempt."""
    moment, _, number = os.environ.get("KILL_AT", "").partition("@")
    if type(event).__name__ != moment:
        return
    seq = None
    if isinstance(event, RunEvent):
        seq = event.seq
        count = event.attempt if seq is None else seq
        if event.loop == SUPERVISION or number not in ("", str(count)):
            return
    note("killed", seq=seq)
    die()


def die_after(steps: int) -> None:
    """End this process so once it has changed the broker so often."""
    left = steps

    def deadly(step: Callable[..., Awaitable[Any]]) -> Callable[..., Awaitable[Any]]:
        async def done(*args: Any, **kwargs: Any) -> Any:
            nonlocal left
            result = await step(*args, **kwargs)
            left -= 1
            if left == 0:
                die()
            return result

        return done

    for name in "declare", "unbind", "publish", "delete":
        setattr(AmqpBroker, name, deadly(getattr(AmqpBroker, name)))


if "KILL_AFTER" in os.environ:
    die_after(int(os.environ["KILL_AFTER"]))
