"""Values of Python source that is followed, and never run."""

import ast
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from scheduler.importing.celery_names import named
from scheduler.importing.findings import Note, Place
from scheduler.importing.source import Source, last

PLAIN = (str, bytes, int, float, bool, timedelta, range, type(None))


@dataclass(frozen=True, slots=True, match_args=False)
class Unread:
    """A value that the source does not contain."""

    place: Place = field(compare=False)
    text: str
    hint: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"what `{self.text}` is cannot be told without running it{self.hint}"


class Unreadable(Exception):
    """A value is needed that the source does not contain."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(str(unread))
        self.unread = Unread(unread.place, unread.text, unread.hint)


@dataclass(frozen=True, slots=True, match_args=False)
class Ref(Unread):
    """A name that the files do not define.

    Attributes:
        path: for `import`.
    """

    __match_args__ = ("path",)

    text: str = field(compare=False)
    path: str = ""


@dataclass(frozen=True, slots=True, match_args=False)
class Made(Unread):
    """The result of a call that is not made: `crontab(minute=5)`.

    Attributes:
        kind: the last part of the name that is called.
        kwargs: of which `**` has what is not known of others.
        of: what it is a method of, or the path of the function.
    """

    __match_args__ = ("kind", "args", "kwargs", "of")

    text: str = field(compare=False)
    kind: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    of: Any = None


@dataclass(frozen=True, slots=True)
class Bound:
    """A value that a name, a key or an attribute has.

    Attributes:
        notes: guesses and conditions that it depends on.
    """

    value: Any
    place: Place = field(compare=False)
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def under(self, *notes: Note) -> "Bound":
        return Bound(self.value, self.place, (*self.notes, *notes))


Scope = dict[Any, Bound]


@dataclass(slots=True, eq=False)
class Table:
    """A mapping, or the settings of an app.

    Attributes:
        missing: parts that are not known.
        settings: "conf", if it has those of Celery's, each of which has several names; "config",
            if it has those of a framework.
    """

    entries: Scope
    missing: list[Note]
    settings: str = ""

    @property
    def is_whole(self) -> bool:
        return not (self.missing or self.settings)

    def key(self, key: Any) -> Any:
        return named(str(key)) if self.settings == "conf" else key


@dataclass(frozen=True, slots=True)
class Member:
    """A member of an Enum.

    Attributes:
        is_plain: whether it is a text or a number, too.
    """

    name: str
    value: Any
    is_plain: bool


@dataclass(slots=True, eq=False)
class Class:
    name: str
    attributes: Scope
    bases: Sequence[Any]

    @property
    def is_enum(self) -> bool:
        return any(isinstance(each, Ref) and "Enum" in each.path for each in self.bases)

    def member(self, name: str) -> Member:
        paths = {each.path for each in self.bases if isinstance(each, Ref)}
        is_plain = bool({"str", "int", "enum.StrEnum", "enum.IntEnum"} & paths)
        return Member(name, self.attributes[name].value, is_plain)

    def find(self, name: str) -> Bound | None:
        found = [each.find(name) for each in self.bases if isinstance(each, Class)]
        return next(filter(None, [self.attributes.get(name), *found]), None)


@dataclass(frozen=True, slots=True)
class Function:
    node: ast.FunctionDef | ast.AsyncFunctionDef
    source: Source
    scopes: tuple[Scope, ...] = field(compare=False)
    path: str


@dataclass(frozen=True, slots=True)
class Module:
    source: Source


def shown_source(node: ast.AST) -> str:
    return _short(" ".join(ast.unparse(node).split()))


def shown_value(value: Any) -> str:
    return _short(_text(value))


def _short(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


def _text(value: Any) -> str:
    match value:
        case Unread(text=text):
            return text
        case Table(entries):
            pairs = (f"{key!r}: {_text(each.value)}" for key, each in entries.items())
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            inner = ", ".join(map(_text, cast("Sequence[Any]", value)))
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        case Class(name) | Function(path=name):
            return last(name)
        case Module(source):
            return source.module
        case _:
            return repr(value)


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Table) and isinstance(other, Table):
        mine, theirs = one.entries, other.entries
        is_alike = one.missing == other.missing and mine.keys() == theirs.keys()
        return is_alike and all(is_same(mine[key].value, theirs[key].value) for key in mine)
    return one is other or (type(one) is type(other) and one == other)


def items_of(value: Any) -> Sequence[Any] | None:
    """Return the items of a list or a tuple; of anything else, None."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else None


def unread_of(value: Any, place: Place) -> Unread:
    """Return what is not known of a value that is not as it is needed."""
    return value if isinstance(value, Unread) else Unread(place, shown_value(value))


def plain(value: Any, place: Place, notes: list[Note] | None = None) -> Any:
    """Return a value as Python has it.

    Args:
        notes: where the notes of its parts are added.

    Raises:
        Unreadable: a part of it is not known.
    """
    match value:
        case Member(value=inner, is_plain=True):
            return plain(inner, place, notes)
        case Table(entries) if value.is_whole:
            if notes is not None:
                notes += [note for each in entries.values() for note in each.notes]
            return {key: plain(each.value, place, notes) for key, each in entries.items()}
        case list() | tuple() | set() | frozenset():
            made = cast("Callable[[Iterable[Any]], Any]", type(cast("Any", value)))
            return made(plain(each, place, notes) for each in cast("Iterable[Any]", value))
        case _ if isinstance(value, PLAIN):
            return value
        case _:
            raise Unreadable(unread_of(value, place))
