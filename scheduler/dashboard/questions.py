"""What is asked before something is done: it says what that will do."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from scheduler.dashboard import wording
from scheduler.dashboard.asked import Asked, NotDone
from scheduler.dashboard.operations import LOOP_VERBS
from scheduler.dashboard.parked import words_of
from scheduler.dashboard.planning import doubt_of, loop_in, schedule_in
from scheduler.dashboard.site import Site
from scheduler.errors import UsageError
from scheduler.timing.schedules import Schedule

MANY = 2
MOST_TOLD = 100
TICKS = 3


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before something is done.

    Attributes:
        about: what it is about, or what will be, in a line each; count: how many lines there are.
        doubt: what may not have been meant.
        is_grave: whether it cannot be taken back.
    """

    title: str
    says: str
    about: Sequence[str]
    count: int
    doubt: str = ""
    is_grave: bool = True


class Questions:
    """The questions of one dashboard, by the name of the action."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._of_others: dict[str, Callable[[Asked], Question]] = {
            "cancel": self._of_cancel,
            "purge": self._of_purge,
            "start": self._of_start,
            "schedule-set": self._of_schedule,
        }

    def about(self, asked: Asked) -> Question | None:
        """What to ask before; None: nothing.

        Raises:
            NotDone: the form says nothing that could be done.
        """
        if asked.is_sure:
            return None
        if asked.action in LOOP_VERBS:
            return self._of_verb(asked)
        if (question := self._of_others.get(asked.action)) is None:
            return None
        try:
            return question(asked)
        except UsageError as error:
            raise NotDone(str(error)) from error

    def _of_verb(self, asked: Asked) -> Question | None:
        verb, names = LOOP_VERBS[asked.action], asked.loops(self._site.standings())
        if not verb.ends and len(names) < MANY:
            return None
        title = f"{verb.name.capitalize()} {wording.counted(len(names), 'loop')}?"
        says, about = f"Of each: {verb.says}", names[:MOST_TOLD]
        return Question(title, says, about, len(names), is_grave=verb.ends)

    def _of_cancel(self, asked: Asked) -> Question:
        says = "It is not tried again; a loop goes on with its next tick. What it had done stays."
        return Question("End this run?", says, [asked.text("run")], 1)

    def _of_purge(self, asked: Asked) -> Question:
        which = asked.messages()
        about = [*(which.ids or ()), *words_of(which)]
        says = "They are deleted for good, with their arguments and tracebacks."
        return Question("Delete parked messages?", says, about[:MOST_TOLD], len(about))

    def _of_start(self, asked: Asked) -> Question:
        loop = loop_in(self._site.app, asked.text)
        is_there = any(each.name == str(loop) for each in self._site.standings())
        says = "It runs from now on, whatever is deployed, until it is removed."
        if is_there:
            says = "It is there already, and goes on from where it is, with what is new of this."
        about = [*self._told(loop.schedule), f"arguments: {', '.join(loop.args) or 'none'}"]
        title = f"{'Change' if is_there else 'Start'} {loop}?"
        doubt = doubt_of(loop.schedule)
        return Question(title, says, about, len(about), doubt, is_grave=False)

    def _of_schedule(self, asked: Asked) -> Question:
        name, schedule = asked.text("loop"), schedule_in(asked.text)
        found = next((each for each in self._site.standings() if each.name == name), None)
        if found is None:
            raise NotDone(f"There is no loop {name!r} any more.")
        says = "It goes on by this from now on."
        if found.loop.id in self._site.app.loops:
            says = "It goes by this from now on, whatever is seeded, until that is cleared."
        about = [*self._told(schedule), f"until now: {wording.schedule_in_words(found.schedule)}"]
        doubt = doubt_of(schedule)
        return Question(f"Reschedule {name}?", says, about, len(about), doubt, is_grave=False)

    def _told(self, schedule: Schedule) -> list[str]:
        zone = wording.zone_name(schedule)
        ticks = wording.ticks(schedule, self._site.clock.now(), TICKS)
        next_times = [wording.exact(wording.in_zone(tick, zone)) for tick in ticks]
        told = [f"from now on: {wording.schedule_in_words(schedule)}"]
        return [*told, f"next: {'; '.join(next_times)}"] if next_times else told
