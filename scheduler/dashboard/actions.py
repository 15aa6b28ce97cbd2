"""What visitors ask to have done: read from a form, asked for twice if need be, and begun."""

from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import FormData

from scheduler.dashboard.access import Visitor
from scheduler.dashboard.doings import Doing, Work
from scheduler.dashboard.filters import Filter
from scheduler.dashboard.operations import LOOP_VERBS, RIGHT_OF, arguments_of
from scheduler.dashboard.parked import look_at
from scheduler.dashboard.site import Site
from scheduler.errors import ScheduleError, UsageError
from scheduler.queues.failed import Selection
from scheduler.timing.rates import Rate, parse_rate

MANY = 2


class NotDone(Exception):
    """A form that says nothing that could be done."""


@dataclass(frozen=True, slots=True)
class Asked:
    """An action that somebody asks for."""

    action: str
    visitor: Visitor
    form: FormData

    def text(self, name: str) -> str:
        """A field of the form; empty if it has none."""
        return str(self.form.get(name, "")).strip()

    def texts(self, name: str) -> list[str]:
        """All fields of a name."""
        return [str(each) for each in self.form.getlist(name)]

    @property
    def is_sure(self) -> bool:
        return self.text("sure") == "yes"

    @property
    def fields(self) -> list[tuple[str, str]]:
        """What is sent again by who is sure."""
        left_out = ("token", "sure")
        return [(k, str(v)) for k, v in self.form.multi_items() if k not in left_out]

    def back(self, done: Doing | None = None) -> str:
        """The page that they came from, and what came of it."""
        parts = urlsplit(self.text("back") or "/")
        path = f"/{parts.path.lstrip('/')}"
        query = [(k, v) for k, v in parse_qsl(parts.query) if k != "done"]
        if done is not None:
            query.append(("done", done.id))
        return f"{path}?{urlencode(query)}" if query else path


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked before something is done."""

    title: str
    says: str
    about: Sequence[str]
    count: int


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
        }

    def are_allowed(self, asked: Asked) -> bool:
        """Whether the visitor may do it."""
        return self._site.can(asked.visitor, RIGHT_OF.get(asked.action, asked.action))

    def question(self, asked: Asked) -> Question | None:
        """What to ask before; None: nothing."""
        if asked.is_sure:
            return None
        if (verb := LOOP_VERBS.get(asked.action)) is not None:
            names = self._loops(asked)
            if verb.ends or len(names) >= MANY:
                title = f"{verb.name.capitalize()} {_counted(len(names), 'loop')}?"
                return Question(title, f"Of each: {verb.says}", names[:100], len(names))
        if asked.action == "cancel":
            says = (
                "It is not tried again; a loop goes on with its next tick. What it had done stays."
            )
            return Question("End this run?", says, [asked.text("run")], 1)
        if asked.action == "purge":
            which = _selection(asked)
            about = [*(which.ids or ()), *_words(which)]
            says = "They are deleted for good, with their arguments and tracebacks."
            return Question("Delete parked messages?", says, about[:100], len(about))
        return None

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
        except (UsageError, ScheduleError) as error:
            raise NotDone(str(error)) from error

    async def _on_loops(self, asked: Asked) -> str:
        names = self._loops(asked)
        what = names[0] if len(names) == 1 else _counted(len(names), "loop")
        verb = "resume and run now:" if asked.action == "now" else asked.action
        work = self._site.operations.on_loops(asked.action, names, asked.text("reason"))
        return await self._begin(asked, f"{verb} {what}", work)

    def _loops(self, asked: Asked) -> list[str]:
        """Those that are named, or all that a filter has."""
        if names := asked.texts("loop"):
            return names
        if "filter" not in asked.form:
            raise NotDone("No loop was named.")
        chosen = Filter.of(dict(parse_qsl(asked.text("filter"))))
        found = [each.name for each in chosen.choose(self._site.standings())]
        if not found:
            raise NotDone("No loop fits this filter any more.")
        return found

    async def _replay(self, asked: Asked) -> str:
        which, rate = _selection(asked), _rate(asked)
        work = self._site.operations.replay(which, rate)
        return await self._begin(asked, f"replay {_told(which)}", self._forgetting(work))

    async def _edit(self, asked: Asked) -> str:
        which, args = _selection(asked), arguments_of(asked.text("args"))
        work = self._site.operations.replay(which, None, args)
        what = f"replay {_told(which)} with other arguments"
        return await self._begin(asked, what, self._forgetting(work))

    async def _purge(self, asked: Asked) -> str:
        which = _selection(asked)
        work = self._site.operations.purge(which)
        return await self._begin(asked, f"delete {_told(which)}", self._forgetting(work))

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
            doing.tell(f"{_counted(look.count, 'message')} in {len(look.groups)} groups{more}")

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
            loops = {
                each.loop.id: site.picture.listing.known(each.loop.id) for each in site.standings()
            }
            answers = await site.program.locator.call_the_roll(loops)
            site.answers = site.clock.now(), answers
            doing.tell(f"{len(answers.said)} of {answers.expected} processors have answered")

        return await self._begin(asked, "call the roll", work)

    async def _ask_what_runs(self, asked: Asked) -> str:
        site, stack_of = self._site, asked.text("run") or None

        async def work(doing: Doing) -> None:
            running = await site.program.cancellation.running(stack_of=stack_of)
            site.running = site.clock.now(), running
            more = f", and {running.more} more" if running.more else ""
            doing.tell(f"{_counted(len(running.runs), 'run')}{more}")

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

    async def _begin(self, asked: Asked, what: str, work: Work) -> str:
        doing = await self._site.doings.begin(what, asked.visitor.name, work)
        return asked.back(doing)


def _selection(asked: Asked) -> Selection:
    """Which parked messages are meant.

    Raises:
        NotDone: none were named, or nothing is parked for such a reason.
    """
    ids = asked.texts("id")
    try:
        which = Selection(
            ids=frozenset(ids) if ids else None,
            reason=asked.text("reason") or None,
            task=asked.text("task") or None,
            kind=asked.text("kind") if "kind" in asked.form else None,
        )
    except UsageError as error:
        raise NotDone(str(error)) from error
    if which == Selection() and asked.text("all") != "yes":
        raise NotDone("No message was named.")
    return which


def _rate(asked: Asked) -> Rate | None:
    try:
        return parse_rate(asked.text("rate")) if asked.text("rate") else None
    except (ScheduleError, UsageError) as error:
        raise NotDone(str(error)) from error


def _told(which: Selection) -> str:
    if which.ids is not None:
        return next(iter(which.ids)) if len(which.ids) == 1 else f"{len(which.ids)} messages"
    return "all that is parked" + "".join(f", {each}" for each in _words(which))


def _words(which: Selection) -> list[str]:
    told = {"task": which.task, "reason": which.reason, "error": which.kind}
    return [f"{name}: {value}" for name, value in told.items() if value is not None]


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'' if count == 1 else 's'}"
