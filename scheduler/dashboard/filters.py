"""Which loops a page shows: that is in the URL, so that it outlives reloads and can be sent."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any
from urllib.parse import urlencode

from scheduler.control.where import Where
from scheduler.dashboard.standing import Standing

PAGE = 50
SORTS: Mapping[str, Callable[[Standing], Any]] = {
    "name": lambda each: each.name,
    "due": lambda each: (
        each.loop.due_at is None,
        each.loop.due_at and each.loop.due_at.timestamp(),
    ),
    "last": lambda each: -(each.loop.runs[-1].started_at.timestamp() if each.loop.runs else 0),
    "took": lambda each: (
        -(each.loop.runs[-1].last.duration.total_seconds() if each.loop.runs else 0)
    ),
    "state": lambda each: (not each.is_failing, list(Where).index(each.state), each.name),
}


@dataclass(frozen=True, slots=True)
class Filter:
    """Which loops, in which order.

    Attributes:
        q: what their names have in them.
        state: a `Where`, or nothing.
        failing: "1": only those whose last run has failed.
        late: "1": only those of which a run of the last day began very late.
        task: only those of this task.
        page: which of them, the first being 1.
    """

    q: str = ""
    state: str = ""
    failing: str = ""
    late: str = ""
    task: str = ""
    sort: str = "name"
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "Filter":
        """What a query says, as far as it can be understood."""
        state, sort, page = query.get("state", ""), query.get("sort", ""), query.get("page", "")
        return cls(
            q=query.get("q", "").strip()[:200],
            state=state if state in list(Where) else "",
            failing="1" if query.get("failing") else "",
            late="1" if query.get("late") else "",
            task=query.get("task", "")[:100],
            sort=sort if sort in SORTS else "name",
            page=_page(page),
        )

    def but(self, **changes: Any) -> str:
        """The query of the same but for these, from its first page on."""
        return replace(self, **{"page": 1, **changes}).query

    @property
    def query(self) -> str:
        """This filter, as a URL has it."""
        defaults = asdict(Filter())
        return urlencode({k: v for k, v in asdict(self).items() if v != defaults[k]})

    @property
    def is_all(self) -> bool:
        """Whether it leaves none out."""
        return not (self.q or self.state or self.failing or self.late or self.task)

    def choose(self, standings: Sequence[Standing]) -> list[Standing]:
        """Those that are meant, of all pages."""
        words = self.q.lower().split()
        chosen = [each for each in standings if self._has(each, words)]
        if self.sort != "name":
            chosen.sort(key=SORTS[self.sort])
        return chosen

    def cut(self, chosen: Sequence[Standing]) -> Sequence[Standing]:
        """Those of its page."""
        return chosen[(self.page - 1) * PAGE : self.page * PAGE]

    def _has(self, standing: Standing, words: Sequence[str]) -> bool:
        if self.state and standing.state.value != self.state:
            return False
        if self.failing and not standing.is_failing:
            return False
        if self.late and standing.was_late is None:
            return False
        if self.task and standing.loop.id.task != self.task:
            return False
        name = standing.name.lower()
        return all(word in name for word in words)


@dataclass(frozen=True, slots=True)
class TaskFilter:
    """Which tasks: those that have this in their names, and which page of them."""

    q: str = ""
    page: int = 1

    @classmethod
    def of(cls, query: Mapping[str, str]) -> "TaskFilter":
        """What a query says, as far as it can be understood."""
        return cls(query.get("q", "").strip()[:200], _page(query.get("page", "")))

    def at(self, page: int) -> str:
        """The query of another page of the same."""
        return urlencode({"q": self.q, "page": page})

    def choose(self, tasks: Iterable[str]) -> list[str]:
        """Those that are meant, of all pages."""
        words = self.q.lower().split()
        return [task for task in tasks if all(word in task.lower() for word in words)]

    def cut(self, chosen: Sequence[str]) -> Sequence[str]:
        """Those of its page."""
        return chosen[(self.page - 1) * PAGE : self.page * PAGE]


def pages_of(chosen: Sequence[object]) -> int:
    """How many pages they fill."""
    return max((len(chosen) + PAGE - 1) // PAGE, 1)


def _page(text: str) -> int:
    return max(int(text), 1) if text.isdecimal() and len(text) < 7 else 1
