"""What visitors ask to have done: read from a form, and begun."""

from collections.abc import Callable, Coroutine
from typing import Any
from urllib.parse import urlencode

from scheduler.dashboard import wording
from scheduler.dashboard.asked import Asked, NotDone
from scheduler.dashboard.doings import Doing, Work
from scheduler.dashboard.operations import LOOP_VERBS, RIGHT_OF, arguments_of
from scheduler.dashboard.parked import look_at, told_of
from scheduler.dashboard.planning import loop_in, schedule_in
from scheduler.dashboard.pods import roll_of
from scheduler.dashboard.site import Site
from scheduler.dashboard.standing import AT_REST
from scheduler.errors import UsageError
from scheduler.queues.failed import Selection
from scheduler.timing.rates import Rate, parse_rate


class Actions:
    """All that can be done, by the name of the action."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._others: dict[str, Callable[[Asked], Coroutine[Any, Any, str]]] = {
            "replay": self._replay,
            "edit": self._edit,
            "purge": self._purge,
            "look": self._look,
            "examine": self._examine,
            "roll-call": self._call_the_roll,
            "running": self._ask_what_runs,
            "cancel": self._cancel,
            "start": self._start,
            "schedule-set": self._set_schedule,
            "schedule-clear": self._clear_schedule,
        }

    def are_allowed(self, asked: Asked) -> bool:
        """Whether the visitor may do it."""
        return self._site.can(asked.visitor, RIGHT_OF.get(asked.action, asked.action))

    async def do(self, asked: Asked) -> str:
        """Do it; returns the page that tells what came of it.

        Raises:
            NotDone: the form says nothing that could be done.
        """
        if asked.action in LOOP_VERBS:
            return await self._on_loops(asked)
        if (act := self._others.get(asked.action)) is None:
            raise NotDone(f"There is no action {asked.action!r}.")
        try:
            return await act(asked)
        except UsageError as error:
            raise NotDone(str(error)) from error

    async def _on_loops(self, asked: Asked) -> str:
        names = asked.loops(self._site.standings())
        what = names[0] if len(names) == 1 else wording.counted(len(names), "loop")
        verb = "resume and run now:" if asked.action == "now" else asked.action
        work = self._site.operations.on_loops(asked.action, names, asked.text("reason"))
        if len(names) == 1:
            work = self._with_undo(asked.action, names[0], work)
        to = "/loops" if LOOP_VERBS[asked.action].ends else ""  # its page is gone with it
        return await self._begin(asked, f"{verb} {what}", work, to=to)

    def _with_undo(self, verb: str, name: str, work: Work) -> Work:
        """Offer to take a pause or a resumption back; tell who had paused the loop, and why."""
        found = (each.loop for each in self._site.standings() if each.name == name)
        if (loop := next(found, None)) is None:
            return work
        was_paused, reason = loop.is_paused, loop.reason or ""
        by = f" by {loop.listed.by}" if loop.listed and loop.listed.by else ""

        async def act(doing: Doing) -> None:
            await work(doing)
            if verb == "pause" and not was_paused:
                doing.undo = "resume", {"loop": name}
            elif verb in ("resume", "now") and was_paused:
                doing.undo = "pause", {"loop": name, "reason": reason}
                doing.lines.append(f"It was paused{by}: {reason}")

        return act

    async def _start(self, asked: Asked) -> str:
        loop = loop_in(self._site.app, asked.text)
        work = self._site.operations.start(loop)
        # The page of a loop that is not there yet would not be found.
        to = f"/loops?{urlencode({'q': str(loop)})}"
        return await self._begin(asked, f"start {loop}", work, to=to)

    async def _set_schedule(self, asked: Asked) -> str:
        name, schedule = asked.text("loop"), schedule_in(asked.text)
        work = self._site.operations.set_schedule(name, schedule)
        return await self._begin(asked, f"reschedule {name}", work)

    async def _clear_schedule(self, asked: Asked) -> str:
        name = asked.text("loop")
        work = self._site.operations.clear_schedule(name)
        return await self._begin(asked, f"clear the schedule of {name}", work)

    async def _replay(self, asked: Asked) -> str:
        which, rate = asked.messages(), _rate(asked)
        work = self._site.operations.replay(which, rate)
        return await self._begin(asked, f"replay {told_of(which)}", self._forgetting(work))

    async def _edit(self, asked: Asked) -> str:
        which, args = asked.messages(), arguments_of(asked.text("args"))
        work = self._site.operations.replay(which, None, args)
        what = f"replay {told_of(which)} with other arguments"
        return await self._begin(asked, what, self._forgetting(work))

    async def _purge(self, asked: Asked) -> str:
        which = asked.messages()
        work = self._site.operations.purge(which)
        return await self._begin(asked, f"delete {told_of(which)}", self._forgetting(work))

    def _forgetting(self, work: Work) -> Work:
        """What was looked at is not so any more, afterwards."""

        async def forget(doing: Doing) -> None:
            try:
                await work(doing)
            finally:
                self._site.looks.clear()

        return forget

    async def _look(self, asked: Asked) -> str:
        site, task = self._site, asked.text("task")
        which = Selection(task=task or None)
        tasks = [task] if task in site.app.tasks else [*site.app.tasks]

        async def work(doing: Doing) -> None:
            failed = site.program.failed
            look = await look_at(failed, tasks, which, site.clock.now())
            site.looks[task if task in site.app.tasks else ""] = look
            more = "" if look.is_whole else ", and there are more"
            doing.tell(
                f"{wording.counted(look.count, 'message')} in {len(look.groups)} groups{more}"
            )

        return await self._begin(asked, "look at what is parked", work)

    async def _examine(self, asked: Asked) -> str:
        site = self._site

        async def work(doing: Doing) -> None:
            findings = [finding async for finding in site.program.doctor.examine()]
            site.findings = site.clock.now(), findings
            wrong = sum(finding.verdict != "ok" for finding in findings)
            doing.tell(f"{len(findings)} things were looked at, {wrong} want attention")

        return await self._begin(asked, "examine the broker", work)

    async def _call_the_roll(self, asked: Asked) -> str:
        site = self._site

        async def work(doing: Doing) -> None:
            program, known = site.program, site.picture.listing.known
            # A waiting loop is in no processor's hand.
            loops = [each.loop.id for each in site.standings() if each.state not in AT_REST]
            answers = await program.survey.answers({loop: known(loop) for loop in loops})
            running = await program.cancellation.running()
            site.running = site.clock.now(), running
            site.roll = roll_of(answers, running, site.clock.now())
            doing.tell(f"{len(answers.said)} of {answers.expected} processors have answered")

        return await self._begin(asked, "call the roll", work)

    async def _ask_what_runs(self, asked: Asked) -> str:
        site, stack_of = self._site, asked.text("run") or None

        async def work(doing: Doing) -> None:
            running = await site.program.cancellation.running(stack_of=stack_of)
            site.running = site.clock.now(), running
            more = f", and {running.more} more" if running.more else ""
            doing.tell(f"{wording.counted(len(running.runs), 'run')}{more}")

        return await self._begin(asked, "ask what runs", work)

    async def _cancel(self, asked: Asked) -> str:
        site, run, by = self._site, asked.text("run"), asked.visitor.name
        if not run:
            raise NotDone("No run was named.")

        async def work(doing: Doing) -> None:
            report = await site.program.cancellation.cancel(run, by=by)
            doing.tell(f"{report.run.id}: {report.ending or 'goes on, and was told to end'}")
            site.running = site.clock.now(), await site.program.cancellation.running()

        return await self._begin(asked, f"end the run {run}", work)

    async def _begin(self, asked: Asked, what: str, work: Work, *, to: str = "") -> str:
        doing = await self._site.doings.begin(what, asked.visitor.name, work)
        return asked.back(doing, to=to)


def _rate(asked: Asked) -> Rate | None:
    try:
        return parse_rate(asked.text("rate")) if asked.text("rate") else None
    except UsageError as error:
        raise NotDone(str(error)) from error
