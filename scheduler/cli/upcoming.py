"""`scheduler next`."""

from collections.abc import Iterator
from datetime import datetime

from scheduler.cli.loading import app_with_tasks
from scheduler.cli.meanings import meaning_of, warn_of_doubts
from scheduler.cli.printing import no_loops, print_json, print_line
from scheduler.timing.clock import SystemClock
from scheduler.timing.schedules import Schedule, describe, zone_of


def show(reference: str | None, *, count: int, as_json: bool) -> None:
    app = app_with_tasks(reference)
    warn_of_doubts(app.loops.values())
    now = SystemClock().now()
    found = [
        (str(loop), loop.schedule, list(_times(loop.schedule, now, count)))
        for loop in app.loops.values()
    ]
    if as_json:
        return print_json(
            [
                {"loop": name, "schedule": describe(schedule), "times": times}
                for name, schedule, times in found
            ]
        )
    if not found:
        tasks = ", ".join(app.tasks)
        return print_line(f"{no_loops(app)}; its tasks run when they are sent messages: {tasks}.")
    for name, schedule, times in found:
        print_line(f"{name}  ({meaning_of(schedule)})")
        for time in times:
            print_line(f"  {time.isoformat(' ', timespec='seconds')}")


def _times(schedule: Schedule, moment: datetime, count: int) -> Iterator[datetime]:
    """The next times, in the schedule's own zone, or in that of this machine."""
    for _ in range(count):
        moment = schedule.next_after(moment)
        yield moment.astimezone(zone_of(schedule))
