"""What visitors can do: what is asked before, and what is begun then, as the commands do it."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import urlencode

from scheduler.control.reports import Report
from scheduler.dashboard import wording
from scheduler.dashboard.answers import look_at, roll_of, told_of, words_of
from scheduler.dashboard.forms import Form
from scheduler.dashboard.operations import Operation, Work
from scheduler.dashboard.site import Site
from scheduler.dashboard.standing import AT_REST
from scheduler.errors import InvalidArguments, UsageError
from scheduler.program import Program
from scheduler.queues.failed import FailedQueues, Parked, Selection
from scheduler.spelling import counted
from scheduler.tasks.loops import Loop
from scheduler.timing.schedules import Schedule

MANY = 2
MOST_TOLD = 100
TICKS = 3
RIGHT_OF = {"now": "resume", "schedule-set": "schedule", "schedule-clear": "schedule"}


@dataclass(frozen=True, slots=True)
class LoopVerb:
    """Something that is done to loops.

    Attributes:
        says: what it will do, for people who have not done it yet.
        ends: whether it cannot be taken back, so that it is asked for twice.
        of_tasks: whether it is done to whole tasks as well.
    """

    name: str
    says: str
    do: Callable[[Program, Loop, str], Awaitable[Report]]
    ends: bool = False
    of_tasks: bool = False


LOOP_VERBS = {
    verb.name: verb
    for verb in (
        LoopVerb(
            "pause",
            "No run of it begins any more until it is resumed. A run that is going on ends.",
            lambda it, loop, why: it.verbs.pause(loop, why or "paused from the dashboard"),
            of_tasks=True,
        ),
        LoopVerb(
            "resume",
            "If it is paused, it goes on at its next nominal time.",
            lambda it, loop, _: it.verbs.resume(loop),
            of_tasks=True,
        ),
        LoopVerb(
            "now",
            "If it is paused, it goes on, and runs at once.",
            lambda it, loop, _: it.verbs.resume(loop, at_once=True),
        ),
        LoopVerb(
            "trigger",
            "If it waits, it runs now, besides its schedule. Paused or running, it is left alone.",
            lambda it, loop, _: it.verbs.trigger(loop),
        ),
        LoopVerb(
            "remove",
            "It ends for good, with its place in the schedule and what it carries. A run that is "
            "going on is its last. Only loops that the code does not start can be removed.",
            lambda it, loop, _: it.removal.remove(loop),
            ends=True,
        ),
    )
}


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


class Begun(NamedTuple):
    """What a form asks for, in words; what does it; and the page to return to, if another one."""

    what: str
    work: Work
    to: str = ""


class Actions:
    """All that can be done, by the name of the action."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._acts: Mapping[str, Callable[[Form], Begun]] = {
            **dict.fromkeys(LOOP_VERBS, self._on_loops),
            "start": self._start,
            "schedule-set": self._set_schedule,
            "schedule-clear": self._clear_schedule,
            "replay": self._replay,
            "edit": self._edit,
            "purge": self._purge,
            "look": self._look,
            "examine": self._examine,
            "roll-call": self._call_the_roll,
            "running": self._ask_what_runs,
            "cancel": self._cancel,
        }
        self._questions: Mapping[str, Callable[[Form], Question | None]] = {
            **dict.fromkeys(LOOP_VERBS, self._ask_of_verb),
            "start": self._ask_of_start,
            "schedule-set": self._ask_of_schedule,
            "purge": self._ask_of_purge,
            "cancel": self._ask_of_cancel,
        }

    def are_allowed(self, form: Form) -> bool:
        return self._site.can(form.visitor, RIGHT_OF.get(form.action, form.action))

    def question(self, form: Form) -> Question | None:
        """Return what to ask before; None: nothing.

        Raises:
            UsageError: the form says nothing that could be done.
        """
        ask = self._questions.get(form.action)
        return None if ask is None or form.is_sure else ask(form)

    async def do(self, form: Form) -> str:
        """Do it; returns the page that tells what came of it.

        Raises:
            UsageError: the form says nothing that could be done.
        """
        if (act := self._acts.get(form.action)) is None:
            raise UsageError(f"There is no action {form.action!r}.")
        begun = act(form)
        operation = await self._site.operations.begin(begun.what, form.visitor.name, begun.work)
        return form.back(operation.id, to=begun.to)

    # Loops

    def _on_loops(self, form: Form) -> Begun:
        names, verb = form.loops(self._site.standings()), LOOP_VERBS[form.action]

        async def work(operation: Operation) -> None:
            program = self._site.program
            find = program.loops.find_or_whole if verb.of_tasks else program.loops.find
            for name in names:
                try:
                    loop = await find(name)
                    operation.tell(_told(await verb.do(program, loop, form.text("reason"))))
                except UsageError as error:
                    if len(names) == 1:
                        raise
                    operation.tell(f"{name}: {error}")

        is_one = len(names) == 1
        what = "resume and run now:" if verb.name == "now" else verb.name
        return Begun(
            f"{what} {names[0] if is_one else counted(len(names), 'loop')}",
            self._with_undo(verb.name, names[0], work) if is_one else work,
            "/loops" if verb.ends else "",  # its page is gone with it
        )

    def _with_undo(self, verb: str, name: str, work: Work) -> Work:
        """Offer to take a pause or a resumption back; tell who had paused the loop, and why."""
        if (found := self._site.standing(name)) is None:
            return work
        loop = found.loop
        was_paused, reason = loop.is_paused, loop.reason or ""
        by = f" by {loop.listed.by}" if loop.listed and loop.listed.by else ""

        async def act(operation: Operation) -> None:
            await work(operation)
            if verb == "pause" and not was_paused:
                operation.undo = "resume", {"loop": name}
            elif verb in ("resume", "now") and was_paused:
                operation.undo = "pause", {"loop": name, "reason": reason}
                operation.lines.append(f"It was paused{by}: {reason}")

        return act

    def _ask_of_verb(self, form: Form) -> Question | None:
        verb, names = LOOP_VERBS[form.action], form.loops(self._site.standings())
        if not verb.ends and len(names) < MANY:
            return None
        title = f"{verb.name.capitalize()} {counted(len(names), 'loop')}?"
        says, about = f"Of each: {verb.says}", names[:MOST_TOLD]
        return Question(title, says, about, len(names), is_grave=verb.ends)

    def _start(self, form: Form) -> Begun:
        loop = form.loop(self._site.app)
        work = self._rescheduled(lambda program: program.seeding.start(loop))
        # The page of a loop that is not there yet would not be found.
        return Begun(f"start {loop}", work, f"/loops?{urlencode({'q': str(loop)})}")

    def _ask_of_start(self, form: Form) -> Question:
        loop = form.loop(self._site.app)
        verb, says = "Start", "It runs from now on, whatever is deployed, until it is removed."
        if self._site.standing(str(loop)) is not None:
            verb = "Change"
            says = "It is there already, and goes on from where it is, with what is new of this."
        arguments = f"arguments: {', '.join(loop.args) or 'none'}"
        return self._of_schedule(f"{verb} {loop}?", says, loop.schedule, arguments)

    def _set_schedule(self, form: Form) -> Begun:
        name, schedule = form.text("loop"), form.schedule()

        async def do(program: Program) -> Report:
            loop = await program.loops.find(name)
            return await program.verbs.set_schedule(loop, schedule, by=form.visitor.name)

        return Begun(f"reschedule {name}", self._rescheduled(do))

    def _ask_of_schedule(self, form: Form) -> Question:
        name, schedule = form.text("loop"), form.schedule()
        if (found := self._site.standing(name)) is None:
            raise UsageError(f"There is no loop {name!r} any more.")
        says = "It goes on by this from now on."
        if found.loop.id in self._site.app.loops:
            says = "It goes by this from now on, whatever is seeded, until that is cleared."
        until_now = f"until now: {wording.schedule_in_words(found.schedule)}"
        return self._of_schedule(f"Reschedule {name}?", says, schedule, until_now)

    def _clear_schedule(self, form: Form) -> Begun:
        name = form.text("loop")

        async def do(program: Program) -> Report:
            return await program.verbs.clear_schedule(await program.loops.find(name))

        return Begun(f"clear the schedule of {name}", self._rescheduled(do))

    def _rescheduled(self, do: Callable[[Program], Awaitable[Report]]) -> Work:
        async def work(operation: Operation) -> None:
            report = await do(self._site.program)
            words = wording.schedule_in_words(report.loop.schedule)
            operation.tell(f"{_told(report)}; it goes by: {words}")

        return work

    def _of_schedule(self, title: str, says: str, schedule: Schedule, *more: str) -> Question:
        zone = wording.zone_name(schedule)
        ticks = wording.ticks(schedule, self._site.clock.now(), TICKS)
        times = [wording.in_full(wording.in_zone(tick, zone)) for tick in ticks]
        about = [f"from now on: {wording.schedule_in_words(schedule)}"]
        about += [*([f"next: {'; '.join(times)}"] if times else []), *more]
        doubt = wording.doubt_of(schedule)
        return Question(title, says, about, len(about), doubt, is_grave=False)

    # Parked messages

    def _replay(self, form: Form) -> Begun:
        which = form.messages()
        replay = partial(FailedQueues.replay, rate=form.rate())
        return Begun(f"replay {told_of(which)}", self._on_parked(which, replay, "replayed"))

    def _edit(self, form: Form) -> Begun:
        which = form.messages()
        replay = partial(FailedQueues.replay, args=form.args(), check=self._check)
        work = self._on_parked(which, replay, "replayed")
        return Begun(f"replay {told_of(which)} with other arguments", work)

    def _purge(self, form: Form) -> Begun:
        which = form.messages()
        work = self._on_parked(which, FailedQueues.purge, "deleted")
        return Begun(f"delete {told_of(which)}", work)

    def _ask_of_purge(self, form: Form) -> Question:
        which = form.messages()
        about = [*(which.ids or ()), *words_of(which)]
        says = "They are deleted for good, with their arguments and tracebacks."
        return Question("Delete parked messages?", says, about[:MOST_TOLD], len(about))

    def _on_parked(
        self, which: Selection, verb: Callable[..., Awaitable[object]], done: str
    ) -> Work:
        tasks = [*self._site.app.tasks] if which.task is None else [which.task]

        async def work(operation: Operation) -> None:
            def tell(parked: Parked) -> None:
                operation.tell(f"{done} {parked.id}")

            try:
                await verb(self._site.program.failed, tasks, which, tell=tell)
            finally:
                self._site.looks.clear()  # which are not so any more

        return work

    def _check(self, task: str, args: Mapping[str, Any]) -> None:
        if (spec := self._site.app.tasks.get(task)) is None:
            return
        try:
            spec.arguments.load(args)
        except InvalidArguments as error:
            raise UsageError(f"{error} The message stays parked, as it was.") from None

    def _look(self, form: Form) -> Begun:
        site, task = self._site, form.text("task")
        which = Selection(task=task or None)
        tasks = [task] if task in site.app.tasks else [*site.app.tasks]

        async def work(operation: Operation) -> None:
            look = await look_at(site.program.failed, tasks, which, site.clock.now())
            site.looks[task if task in site.app.tasks else ""] = look
            more = "" if look.is_whole else ", and there are more"
            operation.tell(f"{counted(look.count, 'message')} in {len(look.groups)} groups{more}")

        return Begun("look at what is parked", work)

    # The broker and its processors

    def _examine(self, _: Form) -> Begun:
        site = self._site

        async def work(operation: Operation) -> None:
            findings = [finding async for finding in site.program.doctor.examine()]
            site.findings = site.clock.now(), findings
            wrong = sum(finding.verdict != "ok" for finding in findings)
            operation.tell(f"{len(findings)} things were looked at, {wrong} want attention")

        return Begun("examine the broker", work)

    def _call_the_roll(self, _: Form) -> Begun:
        site = self._site

        async def work(operation: Operation) -> None:
            program, known = site.program, site.picture.listing.known
            # A waiting loop is in no processor's hand.
            loops = [each.loop.id for each in site.standings() if each.state not in AT_REST]
            answers = await program.survey.answers({loop: known(loop) for loop in loops})
            running = await program.cancellation.running()
            site.running = site.clock.now(), running
            site.roll = roll_of(answers, running, site.clock.now())
            operation.tell(f"{len(answers.said)} of {answers.expected} processors have answered")

        return Begun("call the roll", work)

    def _ask_what_runs(self, form: Form) -> Begun:
        site, stack_of = self._site, form.text("run") or None

        async def work(operation: Operation) -> None:
            running = await site.program.cancellation.running(stack_of=stack_of)
            site.running = site.clock.now(), running
            more = f", and {running.more} more" if running.more else ""
            operation.tell(f"{counted(len(running.runs), 'run')}{more}")

        return Begun("ask what runs", work)

    def _cancel(self, form: Form) -> Begun:
        site, run, by = self._site, form.text("run"), form.visitor.name
        if not run:
            raise UsageError("No run was named.")

        async def work(operation: Operation) -> None:
            report = await site.program.cancellation.cancel(run, by=by)
            ending = report.ending or "goes on, and was told to end"
            operation.tell(f"{report.run.id}: {ending}")
            site.running = site.clock.now(), await site.program.cancellation.running()

        return Begun(f"end the run {run}", work)

    def _ask_of_cancel(self, form: Form) -> Question:
        says = "It is not tried again; a loop goes on with its next tick. What it had done stays."
        return Question("End this run?", says, [form.text("run")], 1)


def _told(report: Report) -> str:
    told = f"{report.loop}: {report.did.value}"
    if report.silent:
        silent = ", ".join(report.silent)
        told += f", not confirmed by {silent}: until they answer, they may begin one more run"
    return told
