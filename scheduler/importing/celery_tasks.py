"""Read Celery's task definitions in a module: the options of their decorators."""

import ast
import builtins
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

from scheduler.errors import ScheduleError, UsageError
from scheduler.importing.celery_beat import QUEUE, Options, span_of
from scheduler.importing.expressions import Evaluator
from scheduler.importing.findings import (
    NO_RETRY,
    Action,
    CeleryCall,
    ImportedJob,
    Note,
    Parameter,
    SourceLine,
    Unknown,
)
from scheduler.importing.values import (
    DECORATORS,
    Bound,
    Made,
    Source,
    TableValue,
    Unread,
    Unreadable,
    defaults_of,
    dotted,
    items_of,
    last,
    shown_source,
    shown_value,
)
from scheduler.importing.writing import literal
from scheduler.tasks.retries import ErrorTypes, Retry
from scheduler.timing.pacing import parse_rate

RETRIES = 3  # Celery's defaults
RETRY_DELAY = timedelta(minutes=3)
BACKOFF_MAXIMUM = 600
FOR_EVER = 1_000_000
# Carried over, or irrelevant here. All other options are noted.
TAKEN = {
    *("name", "bind", "run_every", "autoretry_for", "retry_kwargs", "retry_backoff", "max_retries"),
    *("retry_backoff_max", "retry_jitter", "default_retry_delay", "dont_autoretry_for"),
    *("rate_limit", "time_limit", "soft_time_limit", "expires", "acks_late", "ignore_result"),
    *("reject_on_worker_lost", "acks_on_failure_or_timeout", "track_started", "trail", "typing"),
    *("send_events", "shared", "store_errors_even_if_ignored", "throws"),
}
WHY = {
    "queue": QUEUE,
    "priority": "give it to each message: options(priority=...)",
    "serializer": "messages are JSON",
    "base": "what a class of tasks does is for a middleware, or the task itself",
    "pydantic": "arguments are checked against the annotations in any case",
}
TYPES = {"int", "str", "float", "bool", "None", "Any"}
BARE = {"dict": "dict[str, Any]", "list": "list[Any]"}
SCHEDULING = re.compile(r"period|schedul|cron|interval|every|beat", re.IGNORECASE)
FUNCTION = (ast.FunctionDef, ast.AsyncFunctionDef)
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Limits:
    timeout: timedelta | None = None
    rate: str | None = None


@dataclass(frozen=True, slots=True)
class Definition:
    """Describe a task that a module defines.

    Attributes:
        path: of its function.
        run_every: its schedule, if its decorator has one.
    """

    name: str
    path: str
    run_every: Bound | None
    job: ImportedJob


def definitions_in(evaluator: Evaluator, limits: Limits) -> Iterator[Definition | Note]:
    """Return the tasks of a module, and notes on lookalikes."""
    source = evaluator.source
    for node in ast.walk(source.tree):
        match node:
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                for decorator in node.decorator_list:
                    if last(dotted(decorator)) in DECORATORS and not _is_ours(evaluator, decorator):
                        yield _Decorated(evaluator, node, decorator, limits).definition()
                        yield from _scheduling(source, node)
            case ast.ClassDef(bases=bases) if any(
                last(dotted(base)) in ("Task", "PeriodicTask") for base in bases
            ):
                said = f"left out, a task that is a class: write {node.name}.run as a function"
                if any(isinstance(each, FUNCTION) and each.name == "run" for each in node.body):
                    yield Note(source.place(node), said)
            case _:
                pass


def _is_ours(evaluator: Evaluator, decorator: ast.expr) -> bool:
    """Return whether a task is registered with this package already."""
    match decorator:
        case ast.Call(ast.Attribute(owner)) | ast.Attribute(owner):
            app = evaluator.value(owner)
            return isinstance(app, Made) and app.of == "scheduler.Scheduler"
        case _:
            return False


def _scheduling(source: Source, function: Function) -> Iterator[Note]:
    """Note foreign decorators that may schedule a task."""
    for each in function.decorator_list:
        name = last(dotted(each))
        if name not in DECORATORS and SCHEDULING.search(shown_source(each)):
            detail = f"`@{shown_source(each)}` may say when it runs, and is not followed"
            yield Note(source.place(each), f"{function.name}: {detail}")


class _Decorated:
    """Read a function, and the options of its decorator."""

    def __init__(
        self, evaluator: Evaluator, function: Function, decorator: ast.expr, limits: Limits
    ) -> None:
        self._source = evaluator.source
        self._function = function
        self._limits = limits
        table = TableValue({}, [])
        if isinstance(decorator, ast.Call):
            _, table = evaluator.arguments(decorator)
        detail = f"options of {function.name}: "
        notes = [Note(each.place, detail + each.text) for each in table.missing]
        maker = decorator.func if isinstance(decorator, ast.Call) else decorator
        if isinstance(evaluator.value(maker), Made):
            unknown = f"those that `{shown_source(maker)}` gives it are not read"
            notes.append(Note(self._source.place(maker), detail + unknown))
        self._given = table.entries
        self._options = Options(function.name, self._given, notes)

    def definition(self) -> Definition:
        function = self._function
        path = f"{self._source.module}.{function.name}"
        name = self._options.value("name", path)
        parameters = list(self._parameters())
        self._options.report(TAKEN, WHY)
        awaited = isinstance(function, ast.AsyncFunctionDef)
        action: Action = CeleryCall(path, awaited=awaited)
        if not self._source.module:
            action = Unknown(f"Call {function.name} of {self._source.file} here.")
            self._note(function, f"{function.name} is in a file that no module is called like")
        job = ImportedJob(
            self._source.place(function),
            function.name,
            f"Celery's task {name}",
            action,
            parameters=parameters,
            retry=self._retry(),
            timeout=self._timeout(),
            rate=self._rate(),
            expires=self._options.span("expires"),
            notes=self._options.notes,
        )
        return Definition(str(name), path, self._given.get("run_every"), job)

    def _note(self, at: ast.AST | Bound, text: str) -> None:
        self._options.note(at.place if isinstance(at, Bound) else self._source.place(at), text)

    def _timeout(self) -> timedelta | None:
        soft, hard = self._options.span("soft_time_limit"), self._options.span("time_limit")
        if soft and hard:
            said = "is for plain functions not to be had: executor='process' can be killed"
            self._note(self._given["time_limit"], f"time_limit, next to soft_time_limit, {said}")
        return soft or hard or self._limits.timeout

    def _rate(self) -> str | None:
        rate = self._options.value("rate_limit", self._limits.rate)
        try:
            return rate_of(rate)
        except UsageError as error:
            self._note(self._given.get("rate_limit", self._function), f"rate_limit: {error}")
            return None

    def _retry(self) -> Retry:
        calls = (each for each in ast.walk(self._function) if isinstance(each, ast.Call))
        by_hand = [each for each in calls if re.fullmatch(r"\w+\.retry", dotted(each))]
        for call in by_hand:
            for each in call.keywords:
                if each.arg in ("countdown", "eta", "max_retries"):
                    said = f"{each.arg} of retry() of {self._function.name}: raise RetryLater"
                    self._note(each, f'{said}("10m") for a delay of its own')
        by_itself = "autoretry_for" in self._given
        if not by_hand and not by_itself:
            return NO_RETRY
        if not by_itself:
            said = "tries again what it called retry() for: here, any error is tried again"
            self._note(self._function, f"{self._function.name} {said}")
        kwargs: Mapping[str, Any] = self._options.value("retry_kwargs", {}) or {}
        most = kwargs.get("max_retries", self._options.value("max_retries", RETRIES))
        if most is None:
            self._note(self._function, f"retries without end: here, {FOR_EVER:,} times")
        retries = most if type(most) is int else FOR_EVER if most is None else RETRIES
        try:
            return self._retry_of(max(retries, 0), kwargs)
        except ScheduleError as error:
            self._note(self._function, f"retries of {self._function.name}: {error}")
            return Retry(max(retries, 0))

    def _retry_of(self, retries: int, kwargs: Mapping[str, Any]) -> Retry:
        types: dict[str, Any] = {"retry_on": self._errors("autoretry_for", (Exception,))}
        if (never := self._errors("dont_autoretry_for", ())) != ():
            types["give_up_on"] = never
        backoff = self._options.value("retry_backoff", False)
        if not backoff or "autoretry_for" not in self._given:
            first = span_of(kwargs.get("countdown")) or self._options.span("default_retry_delay")
            return Retry(retries, delays=[first or RETRY_DELAY], jitter=0, **types)
        # Celery's jitter is any wait from none to the whole: half of it, plus or minus all.
        part = 0.5 if self._options.value("retry_jitter", True) else 1
        last = timedelta(seconds=self._options.value("retry_backoff_max", BACKOFF_MAXIMUM)) * part
        return Retry(
            retries,
            initial=min(timedelta(seconds=float(backoff)) * part, last),
            multiplier=2,
            maximum=last,
            jitter=1 if part < 1 else 0,
            **types,
        )

    def _errors(self, option: str, else_: ErrorTypes) -> ErrorTypes:
        """Return the builtin exceptions; if there are others, all."""
        node = self._given.get(option)
        if node is None:
            return else_
        value = node.value
        names = [shown_value(each) for each in items_of(value) or [value]]
        types = [getattr(builtins, name, None) for name in names]
        if all(isinstance(each, type) and issubclass(each, Exception) for each in types):
            return tuple(cast("list[type[Exception]]", types))
        wider = "any error is tried again" if else_ else "they are tried again"
        self._note(node, f"{option}={', '.join(names)} of {self._function.name}: here, {wider}")
        return else_

    def _parameters(self) -> Iterator[Parameter]:
        given = self._function.args
        defaults = defaults_of(given)
        positional = [*given.posonlyargs, *given.args][1 if self._options.value("bind") else 0 :]
        for each in (*positional, *given.kwonlyargs):
            default, by_name = defaults.get(each.arg), each in given.kwonlyargs
            try:
                yield _parameter(each, default, by_name=by_name)
            except Unreadable as error:
                said = f"the parameter {each.arg} of {self._function.name} keeps its default"
                self._note(each, f"{said}: {error}")
        for star, each in (("*", given.vararg), ("**", given.kwarg)):
            if each is not None:
                said = "arguments travel by name: write out those that there are"
                self._note(each, f"{star}{each.arg} of {self._function.name}: {said}")


def _parameter(given: ast.arg, default: ast.expr | None, *, by_name: bool) -> Parameter:
    annotation = _annotation(given.annotation)
    if default is None:
        return Parameter(given.arg, annotation, by_name=by_name)
    value = default.operand if isinstance(default, ast.UnaryOp) else default
    if not isinstance(value, ast.Constant) or isinstance(value.value, bytes | complex):
        raise Unreadable(Unread(SourceLine("", 0), shown_source(default)))
    if type(value.value).__name__ not in annotation and value.value is not None:
        annotation = "Any"
    if value.value is None and annotation != "Any" and "None" not in annotation:
        annotation = f"{annotation} | None"
    code = literal(value.value) if isinstance(value.value, str) else ast.unparse(default)
    return Parameter(given.arg, annotation, code, by_name)


def _annotation(node: ast.expr | None) -> str:
    """Return an annotation of plain types as it is; for others, `Any`."""
    if node is None:
        return "Any"
    text = ast.unparse(node)
    if text in BARE:
        return BARE[text]
    words = {*re.findall(r"[\w.']+", text)}
    is_plain = words <= {*TYPES, *BARE} and not re.search(r"\b(dict|list)\b(?!\[)", text)
    return text if is_plain else "Any"


def rate_of(value: Any) -> str | None:
    """Translate a rate of Celery: `10/m`, or a number per second."""
    if value is None:
        return None
    text = f"{value}" if "/" in f"{value}" else f"{value}/s"
    number, _, unit = text.partition("/")
    if "." in number:  # a number per hour is more often a whole number
        per_hour = float(number) * {"s": 3600, "m": 60, "h": 1}.get(unit, 1)
        number, unit = f"{per_hour:g}", "h"
    return str(parse_rate(f"{number}/{unit}"))
