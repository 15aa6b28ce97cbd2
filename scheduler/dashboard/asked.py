"""An action that somebody asks for, and what it is about, as its form has it."""

from collections.abc import Iterable
from dataclasses import dataclass
from urllib.parse import parse_qsl, urlencode, urlsplit

from starlette.datastructures import FormData

from scheduler.dashboard.access import Visitor
from scheduler.dashboard.doings import Doing
from scheduler.dashboard.filters import Filter
from scheduler.dashboard.standing import Standing
from scheduler.errors import UsageError
from scheduler.queues.failed import Selection


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
    def is_changing(self) -> bool:
        """Whether they have been asked, and want to write something else."""
        return self.text("change") == "yes"

    @property
    def fields(self) -> list[tuple[str, str]]:
        """What is sent again by who is sure."""
        left_out = ("token", "sure", "change")
        return [(k, str(v)) for k, v in self.form.multi_items() if k not in left_out]

    def back(self, done: Doing | None = None, *, to: str = "") -> str:
        """The page that they came from, or another one, and what came of it."""
        parts = urlsplit(to or self.text("back") or "/")
        path = f"/{parts.path.lstrip('/')}"
        query = [(k, v) for k, v in parse_qsl(parts.query) if k != "done"]
        if done is not None:
            query.append(("done", done.id))
        return f"{path}?{urlencode(query)}" if query else path

    def loops(self, standings: Iterable[Standing]) -> list[str]:
        """The loops that are named, or all that a filter has.

        Raises:
            NotDone: there are none.
        """
        if names := self.texts("loop"):
            return names
        if "filter" not in self.form:
            raise NotDone("No loop was named.")
        chosen = Filter.of(dict(parse_qsl(self.text("filter"))))
        found = [each.name for each in chosen.choose(list(standings))]
        if not found:
            raise NotDone("No loop fits this filter any more.")
        return found

    def messages(self) -> Selection:
        """Which parked messages are meant.

        Raises:
            NotDone: none were named, or nothing is parked for such a reason.
        """
        ids = self.texts("id")
        try:
            which = Selection(
                ids=frozenset(ids) if ids else None,
                reason=self.text("reason") or None,
                task=self.text("task") or None,
                kind=self.text("kind") if "kind" in self.form else None,
            )
        except UsageError as error:
            raise NotDone(str(error)) from error
        if which == Selection() and self.text("all") != "yes":
            raise NotDone("No message was named.")
        return which
