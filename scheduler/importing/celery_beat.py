"""What a module has beat run: `beat_schedule`, and calls of `add_periodic_task`."""

import ast
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast

from scheduler.importing.findings import Note
from scheduler.importing.source import Source, Unreadable, dotted, shown_source

ENTRY = ("task", "schedule", "args", "kwargs", "options", "relative", "enabled")
SIGNATURES = ("s", "si", "signature", "Signature", "subtask")
OF_ADDING = ("schedule", "sig", "args", "kwargs", "name")
WHY = {
    "queue": "each task has a queue of its own",
    "exchange": "each task has a queue of its own",
    "routing_key": "each task has a queue of its own",
    "priority": "loops have none",
    "link": "send the next message at the end of the task",
    "link_error": "a function under @app.on_escalation is told",
    "headers": "give the task a parameter",
}


@dataclass(frozen=True, slots=True)
class Entry:
    """What beat is to run.

    Attributes:
        key: what it is called; empty: nothing.
        task: Celery's name of it, or the path of its function.
        schedule: what it goes by.
        unread: which of its arguments are not known.
        options: how it is sent.
    """

    node: ast.AST
    key: str
    task: str
    schedule: ast.expr
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    unread: str = ""
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    notes: Sequence[Note] = ()


class EntryReader:
    """Reads what beat runs, in one module."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self._above = _conditions(source.tree)

    def of_table(self, node: ast.expr) -> Iterator[Entry | Note]:
        """Those of a `beat_schedule`."""
        try:
            pairs = list(self._source.items(node))
        except Unreadable as error:
            yield Note(self._source.place(error.node), f"beat_schedule: {error}")
            return
        for key, value in pairs:
            yield self.of_pair(key, value)

    def of_pair(self, key: Any, node: ast.expr) -> Entry | Note:
        """An entry of the table."""
        try:
            given = dict(self._source.items(node))
            task = self._task(given["task"])
            schedule = given["schedule"]
        except Unreadable as error:
            return Note(self._source.place(node), f"left out, {key!r} of beat_schedule: {error}")
        except KeyError as missing:
            told = f"left out, {key!r} of beat_schedule: it has no {missing}"
            return Note(self._source.place(node), told)
        notes = self._conditional(node)
        notes += [
            self._note(value, f"{name} of {key!r}")
            for name, value in given.items()
            if name not in ENTRY
        ]
        options = self._options(str(key), given.get("options"), notes)
        args, kwargs, unread = self._arguments(given.get("args"), given.get("kwargs"))
        return Entry(node, str(key), task, schedule, args, kwargs, unread, options, notes)

    def of_calls(self) -> Iterator[Entry | Note]:
        """Those that are added by calls."""
        for node in ast.walk(self._source.tree):
            match node:
                case ast.Call(func=ast.Attribute(attr="add_periodic_task")):
                    try:
                        yield self._added(node)
                    except Unreadable as error:
                        told = f"left out, a call of add_periodic_task: {error}"
                        yield Note(self._source.place(node), told)
                case _:
                    pass

    def _added(self, node: ast.Call) -> Entry:
        given = dict(zip(OF_ADDING, node.args, strict=False))
        given |= {each.arg: each.value for each in node.keywords if each.arg}
        if "schedule" not in given or "sig" not in given:
            raise Unreadable(node)
        name = str(self._source.value(given["name"])) if "name" in given else ""
        notes = self._conditional(node)
        others = {option: each for option, each in given.items() if option not in OF_ADDING}
        options = self._read_options(name or "a task that is added", others, notes)
        task, args, kwargs, unread, set_ = self._signature(given["sig"])
        options |= self._read_options(name or task, set_, notes)
        if "args" in given or "kwargs" in given:
            more = self._arguments(given.get("args"), given.get("kwargs"))
            args, kwargs, unread = [*more[0], *args], {**kwargs, **more[1]}, unread or more[2]
        return Entry(node, name, task, given["schedule"], args, kwargs, unread, options, notes)

    def _signature(
        self, node: ast.expr
    ) -> tuple[str, Sequence[Any], Mapping[str, Any], str, Mapping[str, ast.expr]]:
        """The task of a signature, its arguments, and how it is sent."""
        node = self._source.resolved(node)
        match node:
            case ast.Call(func=ast.Attribute(ast.Call() as inner, "set"), keywords=keywords):
                task, args, kwargs, unread, options = self._signature(inner)
                more = {each.arg: each.value for each in keywords if each.arg}
                return task, args, kwargs, unread, {**options, **more}
            case ast.Call(func=func, args=[ast.Constant(str(task)), *others]) if (
                dotted(func).rpartition(".")[2] in SIGNATURES[2:]
            ):
                return task, *self._passed(node, others), {}
            case ast.Call(func=ast.Attribute(task, name)) if name in SIGNATURES[2:]:
                return self._path(task), *self._passed(node, node.args), {}
            case ast.Call(func=ast.Attribute(task, name)) if name in SIGNATURES[:2]:
                plain = ast.Tuple(node.args, ast.Load())
                pairs = ast.Dict(
                    [ast.Constant(each.arg) if each.arg else None for each in node.keywords],
                    [each.value for each in node.keywords],
                )
                args, kwargs, unread = self._arguments(plain, pairs)
                return self._path(task), args, kwargs, unread, {}
            case _:
                return self._path(node), (), {}, "", {}

    def _passed(
        self, call: ast.Call, positional: Sequence[ast.expr]
    ) -> tuple[Sequence[Any], Mapping[str, Any], str]:
        """The arguments that a call of `signature` has, as `args` and `kwargs`."""
        given = {each.arg: each.value for each in call.keywords if each.arg}
        given |= dict(zip(("args", "kwargs"), positional, strict=False))
        return self._arguments(given.get("args"), given.get("kwargs"))

    def _path(self, node: ast.expr) -> str:
        if path := self._source.path(node):
            return path
        raise Unreadable(node)

    def _task(self, node: ast.expr) -> str:
        """The name of a task: written out, or that of a function."""
        match self._source.resolved(node):
            case ast.Attribute(task, "name"):
                return self._path(task)
            case resolved:
                value = self._source.value(resolved)
                if isinstance(value, str):
                    return value
                raise Unreadable(node)

    def _arguments(
        self, args: ast.expr | None, kwargs: ast.expr | None
    ) -> tuple[Sequence[Any], Mapping[str, Any], str]:
        try:
            positional = () if args is None else self._source.value(args)
            named: Any = None if kwargs is None else self._source.value(kwargs)
        except Unreadable as error:
            return (), {}, shown_source(error.node)
        return tuple(cast("Sequence[Any]", positional or ())), dict(named or {}), ""

    def _options(self, key: str, node: ast.expr | None, notes: list[Note]) -> Mapping[str, Any]:
        if node is None:
            return {}
        try:
            return self._read_options(key, dict(self._source.items(node)), notes)
        except Unreadable as error:
            notes.append(self._note(node, f"options of {key!r}: {error}"))
            return {}

    def _read_options(
        self, key: str, options: Mapping[str, ast.expr], notes: list[Note]
    ) -> dict[str, Any]:
        """What of them is carried over; all else is noted."""
        read: dict[str, Any] = {}
        for name, node in options.items():
            why = f": {WHY[name]}" if name in WHY else ""
            try:
                value = self._source.value(node)
            except Unreadable as error:
                value, why = None, f": {error}"
            if name in ("expires", "soft_time_limit", "time_limit") and _is_span(value):
                read[name] = value
            else:
                notes.append(self._note(node, f"{name}={shown_source(node)} of {key!r}{why}"))
        return read

    def _conditional(self, node: ast.AST) -> list[Note]:
        if (condition := self._above.get(id(node))) is None:
            return []
        return [self._note(node, f"it is under `{condition}`, and stands alone here")]

    def _note(self, node: ast.AST, text: str) -> Note:
        return Note(self._source.place(node), text)


def _is_span(value: Any) -> bool:
    return isinstance(value, timedelta | int | float) and not isinstance(value, bool)


def _conditions(tree: ast.AST) -> dict[int, str]:
    """What is done under a condition only, or again and again: by the nodes under it."""
    found: dict[int, str] = {}
    for node in ast.walk(tree):
        match node:
            case ast.If(test):
                said = f"if {shown_source(test)}"
            case ast.For(target=target, iter=those):
                said = f"for {shown_source(target)} in {shown_source(those)}"
            case ast.While(test):
                said = f"while {shown_source(test)}"
            case _:
                continue
        found.update((id(each), said) for each in ast.walk(node))
    return found
