"""Represent values of Python source that is followed, and never run."""

import ast
import builtins
import operator
import re
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import PurePath
from typing import Any, cast

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.writing import Note, SourceLine


@dataclass(frozen=True, slots=True, eq=False)
class Source:
    """Hold a module that is followed; as a value, the module itself."""

    file: str
    tree: ast.Module

    @property
    def module(self) -> str:
        """Return the name that it is imported by; empty: it cannot be imported."""
        path = PurePath(self.file)
        if path.suffix != ".py" or not path.stem.isidentifier():
            return ""
        parts = [part for part in path.with_suffix("").parts if part.isidentifier()]
        parts = parts[1:] if parts[:1] == ["src"] else parts
        return ".".join(parts[:-1] if parts[-1:] == ["__init__"] else parts)

    def place(self, node: ast.AST) -> SourceLine:
        return SourceLine(self.file, getattr(node, "lineno", 1))

    def origin(self, node: ast.ImportFrom) -> str:
        parts = self.module.split(".") if node.level and self.module else []
        up = node.level - (PurePath(self.file).stem == "__init__")
        return ".".join([*parts[: len(parts) - up], *([node.module] if node.module else [])])


def dotted(node: ast.expr) -> str:
    """Return a dotted name, for a call that of its function; otherwise nothing."""
    match node:
        case ast.Call(func):
            return dotted(func)
        case ast.Name(name):
            return name
        case ast.Attribute(value, name) if before := dotted(value):
            return f"{before}.{name}"
        case _:
            return ""


def last(path: str) -> str:
    return path.rpartition(".")[2]


KNOWN = {*sys.stdlib_module_names, "celery", "django", "kombu", "django_celery_beat"}


def hint_of(path: str) -> str:
    """Return the file to add, for a module, or a name of one."""
    root = path.partition(".")[0]
    if root in KNOWN or not root:
        return ": add the module of Django's settings" if root == "django" else ""
    parts = path.split(".")
    while len(parts) > 1 and not parts[-1].islower():
        parts.pop()
    return f": add {'/'.join(parts)}.py"


def defaults_of(given: ast.arguments) -> dict[str, ast.expr]:
    """Return the defaults of parameters, by their names."""
    positional = [*given.posonlyargs, *given.args]
    pairs = [
        *zip(positional[::-1], given.defaults[::-1], strict=False),
        *zip(given.kwonlyargs, given.kw_defaults, strict=True),
    ]
    return {each.arg: default for each, default in pairs if default is not None}


def source_of(text: str, file: str) -> Source:
    """Parse a module, or raise a UsageError that names the line."""
    try:
        return Source(file, ast.parse(text))
    except (SyntaxError, ValueError, RecursionError) as error:
        detail, line = str(error), ""
        if isinstance(error, SyntaxError):
            detail, line = error.msg, f", line {error.lineno}," if error.lineno else ""
        raise UsageError(f"{file}{line} is not Python: {detail.rstrip('.?')}.") from None


PLAIN = (str, bytes, int, float, bool, timedelta, range, slice, type(None))


@dataclass(frozen=True, slots=True, match_args=False)
class Unread:
    """Represent a value that the source does not contain."""

    place: SourceLine = field(compare=False)
    text: str
    hint: str = field(default="", compare=False)

    def __str__(self) -> str:
        return f"what `{self.text}` is cannot be known without running it{self.hint}"


class Unreadable(ScheduleError):
    """The value of an expression is not in the source."""

    def __init__(self, unread: Unread) -> None:
        super().__init__(str(unread))
        self.unread = Unread(unread.place, unread.text, unread.hint)


@dataclass(frozen=True, slots=True, match_args=False)
class Ref(Unread):
    """Represent a name that the files do not define, by its path for `import`."""

    __match_args__ = ("path",)

    text: str = field(compare=False)
    path: str = ""


@dataclass(frozen=True, slots=True, match_args=False)
class Made(Unread):
    """Represent the result of a call that is not made: `crontab(minute=5)`.

    Attributes:
        kwargs: `**` stands for unknown ones.
        of: the object of a method, or the path of the function.
    """

    __match_args__ = ("kind", "args", "kwargs", "of")

    text: str = field(compare=False)
    kind: str = ""
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    of: Any = None


@dataclass(frozen=True, slots=True)
class Bound:
    """Hold the value of a name, a key or an attribute, and the guesses that it depends on."""

    value: Any
    place: SourceLine = field(compare=False)
    notes: tuple[Note, ...] = field(default=(), compare=False)

    def under(self, *notes: Note) -> "Bound":
        return Bound(self.value, self.place, (*self.notes, *notes))


Scope = dict[Any, Bound]


@dataclass(slots=True, eq=False)
class TableValue:
    """Hold a mapping, or the settings of an app.

    Attributes:
        missing: unknown parts.
        settings: "conf" for those of Celery, which have several names; "config" for a framework's.
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
    """Represent a member of an Enum; a plain one is a text or a number, too."""

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
    """Represent a function of the files; if wrapped, a decorator may run something else."""

    node: ast.FunctionDef | ast.AsyncFunctionDef
    source: Source
    scopes: tuple[Scope, ...] = field(compare=False)
    path: str
    defaults: Scope = field(compare=False)
    is_wrapped: bool = False

    @property
    def runs_when_called(self) -> bool:
        """Return whether it is neither a coroutine function nor a generator."""
        return isinstance(self.node, ast.FunctionDef) and not any(
            isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(self.node)
        )


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
        case TableValue(entries):
            pairs = (f"{key!r}: {_text(each.value)}" for key, each in entries.items())
            return f"{{{', '.join(pairs)}}}"
        case list() | tuple():
            inner = ", ".join(map(_text, cast("Sequence[Any]", value)))
            return f"[{inner}]" if isinstance(value, list) else f"({inner})"
        case Class(name) | Function(path=name):
            return last(name)
        case Source(module=module):
            return module
        case _:
            return repr(value)


def is_same(one: Any, other: Any) -> bool:
    if isinstance(one, TableValue) and isinstance(other, TableValue):
        mine, theirs = one.entries, other.entries
        is_alike = one.missing == other.missing and mine.keys() == theirs.keys()
        return is_alike and all(is_same(mine[key].value, theirs[key].value) for key in mine)
    return one is other or (type(one) is type(other) and one == other)


def holds_entries(value: Any) -> bool:
    """Return whether a table is one of beat's, or an entry of one."""
    if not isinstance(value, TableValue):
        return False
    is_entry = value.entries.keys() >= {"task", "schedule"}
    return is_entry or any(holds_entries(each.value) for each in value.entries.values())


def is_of_celery(value: Any) -> bool:
    """Return whether a value is a module or a class of Celery, or a part of one."""
    return isinstance(value, Ref) and value.path.partition(".")[0] == "celery"


def items_of(value: Any) -> Sequence[Any] | None:
    """Return the items of a list or a tuple; of anything else, None."""
    return cast("Sequence[Any]", value) if isinstance(value, list | tuple) else None


def unread_of(value: Any, place: SourceLine) -> Unread:
    """Return the unknown part of a value that does not have the required form."""
    return value if isinstance(value, Unread) else Unread(place, shown_value(value))


def plain(value: Any, place: SourceLine, notes: list[Note] | None = None) -> Any:
    """Return a value as a Python object, collecting the notes of its parts, or raise Unreadable."""
    match value:
        case Member(value=inner, is_plain=True):
            return plain(inner, place, notes)
        case TableValue(entries) if value.is_whole:
            if notes is not None:
                notes += [note for each in entries.values() for note in each.notes]
            return {key: plain(each.value, place, notes) for key, each in entries.items()}
        case list() | tuple() | set() | frozenset():
            made = cast("Callable[[Iterable[Any]], Any]", type(cast("Any", value)))
            return made(plain(each, place, notes) for each in cast("Iterable[Any]", value))
        case _ if isinstance(value, PLAIN):
            return cast("Any", value)
        case _:
            raise Unreadable(unread_of(value, place))


PREFIXES = ("celery_", "celerybeat_", "celeryd_")
OLD = {
    "celerybeat_schedule": "beat_schedule",
    "acks_late": "task_acks_late",
    "annotations": "task_annotations",
    "routes": "task_routes",
    "celerybeat_scheduler": "beat_scheduler",
    "celeryd_task_time_limit": "task_time_limit",
    "celeryd_task_soft_time_limit": "task_soft_time_limit",
}
CONTAINERS = ("CELERY", "CELERY_CONFIG", "celery_config")
READ = {
    *("beat_schedule", "timezone", "enable_utc", "task_time_limit", "task_soft_time_limit"),
    *("beat_cron_starting_deadline", "task_default_rate_limit", "task_acks_late"),
    *("task_reject_on_worker_lost", "task_ignore_result", "TIME_ZONE"),
}

DECORATORS = {"task", "shared_task", "periodic_task"}
OPTIONS = {
    *("rate_limit", "time_limit", "soft_time_limit", "expires", "max_retries", "run_every"),
    *("default_retry_delay", "autoretry_for", "retry_backoff", "retry_kwargs"),
}
DATABASES = {"PeriodicTask", "RedBeatSchedulerEntry"}  # their rows are schedules
SCHEDULES = {"celery", "crontab", "schedule", "schedules", "solar", "Scheduler", "ScheduleEntry"}
WORDS = (*DATABASES, "conf", "config", "add_periodic_task", "setattr", "exec", *CONTAINERS)


def named(name: str) -> str:
    plain = name.lower()
    if plain in OLD:
        return OLD[plain]
    for prefix in PREFIXES:
        plain = plain.removeprefix(prefix)
    return "beat_schedule" if plain.endswith("beat_schedule") else OLD.get(plain, plain)


def is_setting(name: str) -> bool:
    """Return whether a name of a module is a setting: of Django, or of a module of settings."""
    plain = named(name)
    if plain == "beat_schedule":
        return name.isupper() or name.lower() in ("beat_schedule", *OLD, "celery_beat_schedule")
    known = plain in ("timezone", "enable_utc") or name == "TIME_ZONE"
    return known or plain.startswith(("task_", "beat_")) or name.startswith(("CELERY_", "CELERYD_"))


def is_read(name: object) -> bool:
    """Return whether a key, an attribute or an argument has the name of a setting that is read."""
    return isinstance(name, str) and bool({name, named(name)} & READ)


def is_relevant(node: ast.AST, read: Mapping[str, bool] | None = None) -> bool:
    """Return whether code names something that is read, or that was and can be changed in place."""
    read = read or {}
    for each in ast.walk(node):
        match each:
            case ast.Attribute(owner, ctx=ast.Store()) if SCHEDULES & {*dotted(owner).split(".")}:
                return True
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.keyword(arg=str(name)):
                if name in WORDS or is_read(name) or is_setting(name) or read.get(name):
                    return True
            case ast.Global(names) if not read.keys().isdisjoint(names):
                return True
            case ast.Constant(str(text)) if is_read(text):
                return True
            case _:
                pass
    return False


ERRORS = (ArithmeticError, TypeError, ValueError, LookupError, AttributeError, RecursionError)
LARGEST = 10**12
LONGEST = 10_000
_LISTING = ("enumerate", "zip", "reversed")
FUNCTIONS: Mapping[str, Callable[..., Any]] = {
    "timedelta": timedelta,
    **{
        name: getattr(builtins, name)
        for name in (
            *("int", "float", "str", "bool", "list", "tuple", "set", "frozenset", "len", "sorted"),
            *("min", "max", "sum", "abs", "round", "any", "all", "range", *_LISTING),
        )
    },
}
_METHODS: Mapping[type[Any], set[str]] = {
    str: {
        *("format", "lower", "upper", "title", "capitalize", "strip", "lstrip", "rstrip", "split"),
        *("join", "replace", "startswith", "endswith", "removeprefix", "removesuffix", "find"),
        *("partition", "rpartition", "rsplit", "splitlines", "isdigit", "count", "zfill"),
    },
    list: {"append", "extend", "index", "count", "copy"},
    timedelta: {"total_seconds"},
}
_OPERATORS: Mapping[str, str] = {
    **{name: name.lower() for name in ("Add", "Sub", "FloorDiv", "Mod", "Eq", "Lt", "Gt")},
    **{"Mult": "mul", "Div": "truediv", "BitOr": "or_", "BitAnd": "and_"},
    **{"NotEq": "ne", "LtE": "le", "GtE": "ge", "Is": "is_", "IsNot": "is_not"},
}


def combined(operation: ast.operator | ast.cmpop, left: Any, right: Any) -> Any:
    """Combine two constants, or raise an error if that may be slow, or long."""
    if isinstance(operation, ast.Mult) and not all(
        isinstance(each, int | float | timedelta) for each in (left, right)
    ):
        raise ValueError
    if isinstance(operation, ast.Mod) and isinstance(left, str | bytes):
        _check_format(str(left))
    if isinstance(operation, ast.In | ast.NotIn):
        return (left in right) == isinstance(operation, ast.In)
    return checked(getattr(operator, _OPERATORS[type(operation).__name__])(left, right))


def formatted(value: Any, conversion: int, spec: str) -> str:
    _check_format(spec)
    shown = {ord("r"): repr, ord("s"): str, ord("a"): ascii}.get(conversion)
    return checked(format(shown(value) if shown else value, spec))


def called(name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a builtin on constants, or raise a ValueError if the result may be long."""
    if name == "range" and len(range(*args)) > LONGEST:
        raise ValueError
    value = FUNCTIONS[name](*args, **kwargs)
    return checked(list(value) if name in _LISTING else value)


def method(owner: Any, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Call a known method of a constant or a list, or raise a ValueError if that may be long."""
    if name not in _METHODS[type(owner)] or (name == "zfill" and args[0] > LONGEST):
        raise ValueError
    if name == "format":
        _check_format(owner)
    return checked(getattr(owner, name)(*args, **kwargs))


def checked(value: Any) -> Any:
    if isinstance(value, int | float) and abs(value) > LARGEST:
        raise ValueError
    sized = (str, bytes, list, tuple)
    if isinstance(value, sized) and len(cast("Sequence[Any]", value)) > LONGEST:
        raise ValueError
    return cast("Any", value)


def _check_format(text: str) -> None:
    if re.search(r"\d{4}|\*|__", text):
        raise ValueError
