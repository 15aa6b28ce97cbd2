"""Parse visitors' input: filters in a URL, and forms of actions."""

import json
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from pydantic import TypeAdapter, ValidationError
from starlette.datastructures import FormData

from scheduler.control.keyed import checked_key
from scheduler.control.loops import Where
from scheduler.dashboard import wording
from scheduler.dashboard.access import SEE, Visitor
from scheduler.dashboard.standings import FAILING, MEANINGS, Standing, Workload
from scheduler.errors import ScheduleError, UsageError
from scheduler.queues.failed import ParkedMessage, Selection
from scheduler.queues.outbox import Posting
from scheduler.spelling import no_such
from scheduler.tasks.loops import App, Loop, loop_of
from scheduler.tasks.registration import schedule_of
from scheduler.tasks.tasks import TaskSpec, parse_arguments
from scheduler.timing.durations import parse_duration
from scheduler.timing.moments import UNIX_EPOCH, moment_of, parse_moment
from scheduler.timing.pacing import Rate, parse_rate
from scheduler.timing.schedules import Recurring

PAGE = 50
NEVER = timedelta(0)
SORTS: Mapping[str, tuple[str, Callable[[Standing], Any]]] = {
    "name": ("name", lambda each: each.name),
    "state": (
        "trouble first",
        lambda each: (not each.is_failing, list(Where).index(each.state), each.name),
    ),
    "due": (
        "next first",
        lambda each: (each.status.due_at is None, each.status.due_at or UNIX_EPOCH),
    ),
    "last": (
        "last run first",
        lambda each: -(each.loop.runs[-1].started_at.timestamp() if each.loop.runs else 0),
    ),
    "took": ("longest first", lambda each: -(each.loop.last.duration if each.loop.last else NEVER)),
}
TASK_SORTS: Mapping[str, tuple[str, Callable[[Workload], Any]]] = {
    "trouble": ("trouble first", lambda each: each.urgency),
    "task": ("name", lambda each: each.task),
    "loops": ("most loops first", lambda each: -each.loops),
    "failing": ("most failing first", lambda each: -each.failing),
    "rate": ("most runs first", lambda each: -each.per_minute),
    "took": ("longest first", lambda each: -(each.took or NEVER)),
    "late": ("latest first", lambda each: -(each.late or NEVER)),
}
"""The orders of loops and of tasks: in words, and the keys to sort by."""
GROUPED_FROM = 500  # loops
LABELS = {
    "every": "“Every”",
    "cron": "“Cron”",
    "tz": "“by the clock of”",
    "offset": "“Offset of the multiples”",
    "jitter": "“Jitter”",
    "catch_up": "“Missed times”",
    "grace": "“Skip when later than”",
}
"""The labels of the options of a schedule, in the form."""
CHOICES = {
    "mode=fixed_rate": "“at multiples of the period”",
    "catch_up=latest": "“run once for all of them”",
    "catch_up=skip": "“skip them”",
    "catch_up=all": "“run each”",
}
TYPED = ("args", "reason")


class Query(dict[str, str]):
    """Hold the fields of a page's address, or of its form; missing ones are empty.

    Attributes:
        sees_arguments: whether its visitor may see arguments and bodies.
    """

    def __init__(self, fields: Mapping[str, str], visitor: Visitor) -> None:
        super().__init__(fields)
        self.sees_arguments = visitor.can(SEE)

    def __missing__(self, _: str) -> str:
        return ""


@dataclass(frozen=True, slots=True)
class Filter:
    """Select and order loops or tasks, in a URL that outlives reloads and can be shared.

    Attributes:
        q: words in names.
        state: of loops; "failing" matches loops in any state.
        by: "task": in groups; "loop": one by one; empty: in groups if there are many.
    """

    q: str = ""
    page: int = 1
    state: str = ""
    task: str = ""
    sort: str = "name"
    by: str = ""

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Filter":
        """Parse a query; ignore invalid parts."""
        state, sort = query.get("state", ""), query.get("sort", "")
        return cls(
            q=query.get("q", "").strip()[:200],
            page=_page(query.get("page", "")),
            state=state if state in MEANINGS else "",
            task=query.get("task", "")[:100],
            sort=sort if sort in {*SORTS, *TASK_SORTS} else "name",
            by=by if (by := query.get("by", "")) in ("task", "loop") else "",
        )

    @classmethod
    def exactly(cls, query: str) -> "Filter":
        """Parse the query of an action; a part that was ignored would select more loops.

        Raises:
            UsageError: a part is invalid.
        """
        given = parse_qsl(query, keep_blank_values=True)
        found = cls.of(dict(given))
        known = {name: str(value) for name, value in asdict(found).items()}
        for name, value in given:
            if known.get(name) != value.strip():
                part = f"{name}={value}"
                raise UsageError(f"{part!r} is no part of a filter: no loop was selected.")
        return found

    def but(self, **changes: Any) -> str:
        """Return the query of the same filter with these changes, from its first page on."""
        return replace(self, **{"page": 1, **changes}).query

    @property
    def query(self) -> str:
        defaults = asdict(Filter())
        return urlencode({k: v for k, v in asdict(self).items() if v != defaults[k]})

    @property
    def is_all(self) -> bool:
        return not (self.q or self.state or self.task)

    def choose_names(self, names: Iterable[str]) -> list[str]:
        """Return the selected names, of all pages."""
        words = self.q.lower().split()
        return [name for name in names if all(word in name.lower() for word in words)]

    def cut(self, chosen: Sequence[Any]) -> Sequence[Any]:
        return chosen[(self.page - 1) * PAGE : self.page * PAGE]

    def choose(self, standings: Sequence[Standing]) -> list[Standing]:
        """Return the selected loops, of all pages."""
        chosen = [*standings] if self.is_all else [each for each in standings if self._has(each)]
        if self.q:
            named = {*self.choose_names(each.name for each in chosen)}
            chosen = [each for each in chosen if each.name in named]
        if self.sort != "name" and self.sort in SORTS:
            chosen.sort(key=SORTS[self.sort][1])
        return chosen

    def groups(self, total: int) -> bool:
        """Return whether the list groups this many loops by task."""
        is_plain = self.is_all and self.sort in {"name", *TASK_SORTS}
        return self.by == "task" or (not self.by and is_plain and total > GROUPED_FROM)

    def choose_tasks(
        self, works: Mapping[str, Workload], standings: Iterable[Standing]
    ) -> list[Workload]:
        """Return the tasks with selected loops, of all pages."""
        if self.state or self.task:
            having = {each.loop.id.task for each in standings if self._has(each)}
        else:
            having = works.keys()
        chosen = [works[task] for task in self.choose_names(works) if task in having]
        return sorted(chosen, key=TASK_SORTS.get(self.sort, TASK_SORTS["trouble"])[1])

    def _has(self, standing: Standing) -> bool:
        if self.state == FAILING and not standing.is_failing:
            return False
        is_in_state = self.state in ("", FAILING, standing.state.value)
        return is_in_state and self.task in ("", standing.loop.id.task)


def pages_of(chosen: Sequence[object]) -> int:
    return max((len(chosen) + PAGE - 1) // PAGE, 1)


def _page(text: str) -> int:
    return max(int(text), 1) if text.isdecimal() and len(text) < 7 else 1


@dataclass(frozen=True)
class ShownMessages(Selection):
    """Select parked messages as they were shown: none that was parked since, unless it is named."""

    until: datetime | None = None

    def has(self, parked: ParkedMessage) -> bool:
        is_later = self.until and parked.parked_at and parked.parked_at > self.until
        return not is_later and Selection.has(self, parked)


def description_of(which: Selection) -> str:
    if which.ids is not None:
        return next(iter(which.ids)) if len(which.ids) == 1 else f"{len(which.ids)} messages"
    return "all that is parked" + "".join(f", {each}" for each in words_of(which))


def words_of(which: Selection) -> list[str]:
    """Describe the selection of messages."""
    task = "unknown" if which.task == "" else which.task
    filters = {"task": task, "reason": which.reason, "error": which.kind}
    return [f"{name}: {value}" for name, value in filters.items() if value is not None]


@dataclass(frozen=True, slots=True)
class Form:
    """Parse a requested action, and its subject; invalid input raises `UsageError`."""

    action: str
    visitor: Visitor
    fields: FormData

    def text(self, name: str) -> str:
        """Return a field; empty if there is none."""
        return str(self.fields.get(name, "")).strip()

    def texts(self, name: str) -> list[str]:
        return [str(each) for each in self.fields.getlist(name)]

    def moment(self, name: str) -> datetime | None:
        """Return a field that has milliseconds since the epoch; None: there is none."""
        text = self.text(name)
        return moment_of(int(text)) if text.isdecimal() and len(text) < 15 else None

    @property
    def is_sure(self) -> bool:
        return self.text("sure") == "yes"

    @property
    def kept(self) -> list[tuple[str, str]]:
        """Return the fields to send again after the confirmation."""
        return [(k, str(v)) for k, v in self.fields.multi_items() if k != "sure"]

    @property
    def typed(self) -> dict[str, str]:
        """Return the text that the visitor has written, by field."""
        fields = [(k.removeprefix("arg."), k, v) for k, v in self.kept]
        return {name: v for name, k, v in fields if v and (k in TYPED or name != k)}

    def back(self, done: str = "", *, to: str = "") -> str:
        """Return the page to go back to, or another one, with the operation to report."""
        parts = urlsplit("/")
        with suppress(ValueError):  # the field is no URL
            parts = urlsplit(to or self.text("back"))
        path = f"/{parts.path.lstrip('/')}"
        query = [(k, v) for k, v in parse_qsl(parts.query) if k != "done"]
        if done:
            query.append(("done", done))
        return f"{path}?{urlencode(query)}" if query else path

    @property
    def names(self) -> list[str]:
        """Return the named loops: each in a field, or all in one."""
        return self.texts("loop") or self.text("loops").splitlines()

    def loops(self, standings: Sequence[Standing]) -> list[str]:
        """Return the loops that are named, or selected by a filter."""
        if names := [*dict.fromkeys(self.names)]:
            return names
        if "filter" not in self.fields:
            raise UsageError("No loop was named.")
        if not (found := self._chosen(standings)):
            raise UsageError("No loop matches this filter any more.")
        return found

    def changes(self, standings: Sequence[Standing]) -> list[str]:
        """Describe the changes since the loops of a filter were counted."""
        if "filter" not in self.fields or not (names := {*self.names}):
            return []
        more = [each for each in self._chosen(standings) if each not in names]
        if not more:
            return []
        found = wording.few(more)
        return [f"{len(more)} more match the filter since, and were left alone: {found}"]

    def _chosen(self, standings: Sequence[Standing]) -> list[str]:
        chosen = Filter.exactly(self.text("filter"))
        return [each.name for each in chosen.choose(standings)]

    def messages(self) -> ShownMessages:
        ids = self.texts("id")
        which = ShownMessages(
            ids=frozenset(ids) if ids else None,
            reason=self.text("reason") or None,
            task=self.text("task") if "task" in self.fields else None,
            kind=self.text("kind") if "kind" in self.fields else None,
            until=self.moment("until"),
        )
        if not words_of(which) and ids == [] and self.text("all") != "yes":
            raise UsageError("No message was named.")
        return which

    def arguments(self, spec: TaskSpec, known: Collection[str] = ()) -> dict[str, Any]:
        """Return the arguments that were typed field by field; empty ones have their defaults.

        Args:
            known: the names of arguments that need no default.
        """
        found, required = dict[str, Any](), {*spec.arguments.required} - {*known}
        for name, kind in spec.arguments.parameters.items():
            text = str(self.fields.get(f"arg.{name}", ""))
            if text or (kind is str and name in required):
                found[name] = _value(text, kind)
        return found

    def time(self) -> Posting:
        """Return the time for a call."""
        delay, at = self.text("in"), self.text("at")
        if delay and at:
            raise UsageError("A call has one time: write a delay or a moment, not both.")
        if delay:
            return Posting(delay=parse_duration(delay, "In"), given=delay)
        return Posting(at=parse_moment(at, "At", UTC)) if at else Posting()

    def rate(self) -> Rate | None:
        return parse_rate(self.text("rate")) if self.text("rate") else None

    def args(self, default: str = "") -> dict[str, Any]:
        return parse_arguments(self.text("args") or default, "Arguments")

    def schedule(self) -> Recurring:
        """Return the typed schedule; errors name the fields."""
        options: dict[str, Any] = {name: self.text(name) or None for name in LABELS}
        if (options["every"] is None) == (options["cron"] is None):
            raise ScheduleError("A schedule is a period or a cron expression: write one of them.")
        if options["every"] is not None:  # the zone may be prefilled
            options |= {"tz": None, "mode": "fixed_rate" if self.text("mode") else None}
        try:
            return schedule_of(**options)
        except ScheduleError as error:
            raise ScheduleError(_in_words_of_form(str(error))) from None

    def loop(self, app: App) -> Loop:
        if (spec := app.tasks.get(self.text("task"))) is None:
            raise UsageError(no_such("task", self.text("task"), app.tasks))
        args = self.args("{}")
        return loop_of(spec, self.schedule(), args, checked_key(spec, self.text("key")))


def _value(text: str, kind: Any) -> Any:
    """Return the typed value of a parameter: text for strings, else JSON."""
    if kind is not Any:
        with suppress(ValidationError):
            TypeAdapter[Any](kind).validate_json(json.dumps(text))
            return text
    with suppress(ValueError, RecursionError):
        return json.loads(text)
    return text


def _in_words_of_form(text: str) -> str:
    """Rename arguments in Python to the labels of the form."""
    text = text.replace("expression=", "cron=")
    for choice, label in CHOICES.items():
        name, _, value = choice.partition("=")
        text = text.replace(f'{name}="{value}"', label).replace(f"{name}='{value}'", label)
    text = re.sub(r"\b(\w+)=", lambda found: LABELS.get(found[1], found[0]), text)
    return re.sub(r"^(\w+)(?=:)", lambda found: LABELS.get(found[1], found[0]), text)
