"""Follow modules that belong together, as Python would import them, statement by statement."""

import ast
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cache, partial
from typing import Any, TypeVar, cast

from scheduler.importing.expressions import Evaluator, conditions
from scheduler.importing.values import (
    CONTAINERS,
    DECORATORS,
    ERRORS,
    KNOWN,
    LONGEST,
    Bound,
    Class,
    Function,
    Made,
    Ref,
    Scope,
    Source,
    TableValue,
    Unread,
    Unreadable,
    dotted,
    hint_of,
    is_read,
    is_relevant,
    is_same,
    is_setting,
    last,
    named,
    shown_source,
    shown_value,
)
from scheduler.importing.writing import Note, SourceLine

MOST_STEPS = 60_000


class TooLong(Exception):
    """The module computes for too long to be followed."""


@dataclass(frozen=True, slots=True)
class Left:
    """Leave a block: by `return`, `break`, `continue` or `raise`."""

    how: str
    bound: Bound | None = None


Branch = tuple[str, Callable[[], Left | None]]


class ModuleState:
    """Hold all names, tables and settings.

    Attributes:
        conf: the settings of Celery apps.
        config: those of frameworks.
        classes: those of modules.
        added: calls of `add_periodic_task`.
        app: the call that makes an app.
        read: names of modules that were read, and whether their value can be changed in place.
        configured: the objects that an app takes its settings from.
        namespaces: what the names of its settings begin with there.
        asked: where `beat_schedule` is read, and is not set before.
    """

    def __init__(self) -> None:
        self._heap: list[dict[Any, Any] | list[Any]] = []
        self._steps = 0
        self._conditions: list[str] = []
        self.conf = TableValue(self.scope(), self.listed(), "conf")
        self.config = self.scope()
        self.classes: list[tuple[Source, Class]] = []
        self.added: list[Bound] = []
        self.notes: list[Note] = []
        self.app: ast.Call | None = None
        self.read: dict[str, bool] = {}
        self.configured: list[str] = []
        self.namespaces: list[str] = []
        self.asked: list[Note] = []

    def step(self, count: int = 1) -> None:
        """Count steps, and raise TooLong if there were too many."""
        self._steps += count
        if self._steps > MOST_STEPS:
            raise TooLong

    def scope(self) -> Scope:
        scope: Scope = {}
        self._heap.append(scope)
        return scope

    def listed(self, items: Iterable[Any] = ()) -> list[Any]:
        made = list(items)
        self._heap.append(made)
        return made

    def table(self, entries: Scope | None = None, missing: Iterable[Note] = ()) -> TableValue:
        table = TableValue(self.scope(), self.listed(missing))
        table.entries.update(entries or {})
        return table

    def changes(self, run: Callable[[], object]) -> bool:
        """Return whether code changes what there is, or notes something."""
        self.step(len(self._heap) // 16)  # by its cost
        before, count = self._contents(), len(self.notes) + len(self.added)
        run()
        noted = len(self.notes) + len(self.added) > count
        return noted or any(container != copied for container, copied in before)

    def beat_schedule(self, place: SourceLine) -> TableValue:
        """Return the table of the settings, created if missing."""
        scope = self.conf.entries
        if "beat_schedule" not in scope:
            self.asked.append(Note(place, "beat_schedule: the table is not in these files"))
        bound = scope.setdefault("beat_schedule", Bound(self.table(), place))
        if not isinstance(bound.value, TableValue):
            missing = [Note(place, str(bound.value))] if isinstance(bound.value, Unread) else []
            bound = scope["beat_schedule"] = Bound(self.table(missing=missing), place)
        return bound.value

    def conditional(self, place: SourceLine) -> tuple[Note, ...]:
        return tuple(note for each in self._conditions for note in _only(place, each))

    def either(self, first: Branch, second: Branch) -> Left | None:
        """Follow two branches, and keep the state of both; the usual one has no condition."""
        self.step(len(self._heap))  # by its cost
        before = self._contents()
        one = self._follow(first)
        after = self._contents()
        _restore(before)
        other = self._follow(second)
        if other is not None and other.how == "raise":
            _restore(after)
            return one
        if one is not None and one.how == "raise":
            return other
        for container, contents in after:
            self._merge(container, contents, first[0], second[0])
        if one and other and one.bound and other.bound:
            return Left("return", self.merged(one.bound, other.bound, first[0], second[0]))
        return next((each for each in (one, other) if each and each.bound), None)

    def _follow(self, branch: Branch) -> Left | None:
        condition, run = branch
        self._conditions.append(condition)
        try:
            return run()
        finally:
            self._conditions.pop()

    def _contents(self) -> list[tuple[Any, Any]]:
        return [(each, each.copy()) for each in self._heap]

    def _merge(self, container: Any, contents: Any, first: str, second: str) -> None:
        if isinstance(container, dict):
            scope = cast("Scope", container)
            merged = self._merged(contents, scope, first, second)
            scope.clear()
            scope.update(merged)
        elif container != contents:
            both = [*contents, *(each for each in container if each not in contents)]
            is_missing = all(isinstance(each, Note) for each in both)
            hidden = Unread(SourceLine("", 0), f"{shown_value(contents)} under `{first}`")
            container[:] = both if is_missing else [hidden]

    def _merged(self, one: Scope, other: Scope, first: str, second: str) -> Scope:
        merged: Scope = {}
        for key in one | other:
            if key not in other:
                merged[key] = one[key].under(*_only(one[key].place, first))
            elif key not in one:
                merged[key] = other[key].under(*_only(other[key].place, second))
            else:
                merged[key] = self.merged(one[key], other[key], first, second)
        return merged

    def merged(self, one: Bound, other: Bound, first: str, second: str) -> Bound:
        """Return a value that depends on a condition: for tables, the entries of both."""
        mine, theirs = one.value, other.value
        if is_same(mine, theirs):
            return one
        if all(
            isinstance(each, TableValue) and not {"task", "schedule"} & each.entries.keys()
            for each in (mine, theirs)
        ):
            entries = self._merged(mine.entries, theirs.entries, first, second)
            return Bound(self.table(entries, [*mine.missing, *theirs.missing]), one.place)
        where = f", under `{second}`" if second else ""
        used = f"under `{first}`" if first else "of the other branch"
        detail = f"`{shown_value(theirs)}` is left out{where}: the value {used} is taken"
        return one.under(Note(other.place, detail))


def _restore(contents: Iterable[tuple[Any, Any]]) -> None:
    for container, copied in contents:
        container.clear()
        (container.update if hasattr(container, "update") else container.extend)(copied)


def _only(place: SourceLine, condition: str) -> list[Note]:
    detail = f"it is under `{condition}` there, and always applies here"
    return [Note(place, detail)] if condition else []


Block = Sequence[ast.stmt]
LEAVING = (ast.Return, ast.Break, ast.Continue, ast.Raise)
TRANSPARENT = ("lru_cache", "cache", "staticmethod", "classmethod")


class Follower(Evaluator):
    """Follow the statements of a module, of a class or of a function."""

    def block(self, statements: Block) -> Left | None:
        """Follow statements until they are left."""
        for number, statement in enumerate(statements):
            self.state.step()
            self.project.executed.add(statement)
            later = statements[number + 1 :] if _may_leave(statement) else ()
            if isinstance(statement, ast.If):
                left = self._if(statement, later)
            else:
                later, left = (), self._statement(statement)
            if left is not None or later:
                return left
        return None

    def _statement(self, statement: ast.stmt) -> Left | None:
        match statement:
            case ast.For() | ast.AsyncFor():
                return self._for(statement)
            case ast.While(test, body):
                return self._perhaps(f"while {shown_source(test)}", body)
            case ast.Match(subject, cases):
                of = shown_source(subject)
                lefts = [
                    self._perhaps(f"case {shown_source(each.pattern)} of {of}", each.body)
                    for each in cases
                ]
                return next(filter(None, lefts), None)
            case ast.Try() | ast.TryStar():
                left = self._handled([*statement.body, *statement.orelse], statement.handlers)
                return self.block(statement.finalbody) or left
            case ast.With(items, body) | ast.AsyncWith(items, body):
                for each in items:
                    bound = self.bound(each.context_expr)
                    if each.optional_vars is not None:
                        self.assign(each.optional_vars, bound)
                return self.block(body)
            case ast.Return(value):
                none = Bound(None, self.source.place(statement))
                return Left("return", none if value is None else self.bound(value))
            case ast.Break() | ast.Continue() | ast.Raise():
                return Left(type(statement).__name__.lower())
            case ast.FunctionDef() | ast.AsyncFunctionDef():
                self._decorate(statement, self.function(statement))
            case ast.ClassDef(name, bases, _, body):
                made = Class(name, self.state.scope(), [self.value(each) for each in bases])
                scopes = [*self.scopes, made.attributes]
                Follower(self.project, self.source, scopes).block(body)
                self.state.classes.append((self.source, made))
                self._decorate(statement, made)
            case ast.Assign(targets, value):
                bound = self.bound(value)
                for target in targets:
                    self.assign(target, bound)
            case ast.AnnAssign(target, _, ast.expr() as value):
                self.assign(target, self.bound(value))
            case ast.AugAssign():
                self._change(statement)
            case ast.Delete(targets):
                for target in targets:
                    self._delete(target)
            case ast.Expr(value) | ast.Assert(value):
                self.bound(value)
            case ast.Global() | ast.Nonlocal():
                self.unfollowed(statement)
            case ast.Import() | ast.ImportFrom():
                self.project.bring(self, statement)
            case _:
                pass
        return None

    def _if(self, node: ast.If, later: Block) -> Left | None:
        """Follow one of two blocks, or both, and the statements after."""
        condition, contrary = conditions(node.test)
        known = self.decided(node.test)
        if known is None:
            return self.state.either(
                (condition, lambda: self.block([*node.body, *later])),
                (contrary, lambda: self.block([*node.orelse, *later])),
            )
        taken, skipped = (node.body, node.orelse) if known else (node.orelse, node.body)
        unmet = contrary if known else condition
        detail = f"left out, under `{unmet}`, which does not hold here"
        self.project.leave(self.source, skipped, detail)
        return self.block([*taken, *later])

    def _perhaps(self, condition: str, body: Block) -> Left | None:
        skipped = (f"not {condition}", lambda: None)
        left = self.state.either((condition, lambda: self.block(body)), skipped)
        return left if left and left.how == "return" else None

    def _handled(self, body: Block, handlers: Sequence[ast.ExceptHandler]) -> Left | None:
        if not handlers:
            return self.block(body)
        *others, handler = handlers
        kind = f"except {shown_source(handler.type)}" if handler.type else "except"
        return self.state.either(
            ("try", lambda: self._handled(body, others)), (kind, lambda: self.block(handler.body))
        )

    def _for(self, node: ast.For | ast.AsyncFor) -> Left | None:
        try:
            items = self.items(self.value(node.iter), node.iter)
        except Unreadable:
            self.assign(node.target, Bound(self.unread(node.target), self.source.place(node)))
            of = f"for {shown_source(node.target)} in {shown_source(node.iter)}"
            return self._perhaps(of, node.body)
        for item in items[:LONGEST]:
            self.assign(node.target, Bound(item, self.source.place(node)))
            left = self.block(node.body)
            if left is not None and left.how == "break":
                return None
            if left is not None and left.how != "continue":
                return left
        return self.block(node.orelse)

    def _decorate(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef, made: Any
    ) -> None:
        """Bind a function or a class, after the decorators of these files are called."""
        place = self.source.place(node)
        for each in reversed(node.decorator_list):
            maker = self.value(each.func if isinstance(each, ast.Call) else each)
            decorator = self.value(each) if isinstance(maker, Function) else maker
            if isinstance(decorator, Made) and decorator.kind in DECORATORS:
                self.note(each, f"left out, the task {node.name}: `@{shown_source(each)}` makes it")
            match made, decorator:
                case Function(path=path), Function():
                    bound = self.project.call(decorator, [made], self.state.table(), place)
                    made = replace(made, is_wrapped=True)
                    if isinstance(bound.value, Function):
                        made = replace(bound.value, path=path)
                case Class(), Function():
                    self.project.call(decorator, [made], self.state.table(), place)
                case Function(), _ if last(dotted(each)) not in TRANSPARENT:
                    made = replace(made, is_wrapped=True)
                case _:
                    pass
        self.scopes[-1][node.name] = Bound(made, place)

    def _change(self, node: ast.AugAssign) -> None:
        place = self.source.place(node.target)
        match now := self.value(node.target):
            case TableValue() if isinstance(node.op, ast.BitOr):
                self.update(now, self.bound(node.value))
            case TableValue(missing=missing):
                missing.append(Note(place, str(self.unread(node.target))))
            case list() if isinstance(node.op, ast.Add):
                cast("list[Any]", now).extend(self.expanded(ast.Starred(node.value)))
            case _:
                whole = ast.BinOp(node.target, node.op, node.value)
                self.assign(node.target, self.bound(ast.copy_location(whole, node)))

    def _delete(self, target: ast.expr) -> None:
        match target:
            case ast.Name(name):
                self.scopes[-1].pop(name, None)
            case ast.Subscript(owner, key) if isinstance(table := self.value(owner), TableValue):
                try:
                    table.entries.pop(table.key(self.plain(key)), None)
                except (Unreadable, *ERRORS):
                    detail = f"`del {shown_source(target)}` is not followed"
                    table.missing.append(Note(self.source.place(target), detail))
            case ast.Attribute(owner, name) if isinstance(table := self.value(owner), TableValue):
                table.entries.pop(table.key(name), None)
            case ast.Subscript(owner) if isinstance(items := self.value(owner), list):
                items[:] = [self.unread(target)]
            case _ if is_relevant(target):
                self.unfollowed(target)
            case _:
                pass


@cache
def _may_leave(statement: ast.stmt) -> bool:
    """Return whether a condition may end its block."""
    return isinstance(statement, ast.If) and any(
        isinstance(each, LEAVING) for each in ast.walk(statement)
    )


OF_TIME = ("datetime.timezone", "django.utils.timezone", "pytz.timezone")  # no settings
DEEPEST = 20
BLOCKS = (ast.stmt, ast.match_case, ast.ExceptHandler)
PROPERTIES = ("property", "cached_property")
T = TypeVar("T")


class Project:
    """Hold all given modules, their functions, and the statements that were followed or noted."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.state = ModuleState()
        self.sources = sources
        self.functions: list[Function] = []
        self.executed: set[ast.AST] = set()
        self._names: dict[Source, Scope] = {}
        self._called: set[ast.AST] = set()
        self._taken_over: set[int] = set()
        self._depth = 0
        for source in sources:
            self.names(source)
        for function in self.functions:  # grows during the iteration
            if function.node not in self._called and is_relevant(function.node, self.state.read):
                self._run(function)
        for source in sources:
            self.leave(source, [source.tree], "left out: it is in code that is not followed")

    def names(self, source: Source) -> Scope:
        """Return the names of a module, after following it."""
        if source not in self._names:
            self._names[source] = self.state.scope()
            body = source.tree.body
            self._follow(SourceLine(source.file, 1), lambda: self.evaluator(source).block(body))
        return self._names[source]

    def evaluator(self, source: Source) -> Follower:
        return Follower(self, source, [self._names[source]])

    def _follow(self, place: SourceLine, follow: Callable[[], T]) -> T | None:
        """Follow a module or a function, up to a limit of steps."""
        try:
            return follow()
        except (TooLong, RecursionError):
            detail = "it computes for too long to be followed: the rest of it is left out"
            self.state.notes.append(Note(place, detail))
            return None

    def _run(self, function: Function) -> None:
        """Follow a function that the files do not call."""
        conf = self.state.conf.entries
        before = dict(conf)
        place = function.source.place(function.node)
        run = partial(self._execute, function, [], None, place)
        changed = self._follow(place, lambda: self.state.changes(run))
        if changed and not any(map(_is_at_start, function.node.decorator_list)):
            detail = f"no file here runs `def {function.node.name}`: it is followed as if one did"
            self.state.notes.append(Note(place, detail))
        for name, old in before.items():
            replaced = isinstance(old.value, TableValue) and not old.value.entries
            if name in conf and not replaced:
                condition = f"def {function.node.name}"
                conf[name] = self.state.merged(conf[name], old, condition, "")

    def call(
        self, function: Function, args: Sequence[Any], kwargs: TableValue, place: SourceLine
    ) -> Bound:
        if self._depth < DEEPEST and not function.is_wrapped and function.runs_when_called:
            return self._execute(function, args, kwargs, place)
        return Bound(Unread(place, f"{function.node.name}(...)"), place)

    def _execute(
        self, function: Function, args: Sequence[Any], kwargs: TableValue | None, place: SourceLine
    ) -> Bound:
        """Follow the body of a function; without `kwargs`, none of its arguments is known."""
        unread = Bound(Unread(place, f"{function.node.name}(...)"), place)
        if kwargs is None:
            kwargs = self.state.table(missing=[Note(place, str(unread.value))])
        node = function.node
        scope = self.state.scope()
        follower = Follower(self, function.source, [*function.scopes, scope])
        scope.update(self._parameters(function, args, kwargs, place))
        self._called.add(node)
        self._depth += 1
        try:
            left = follower.block(node.body)
        finally:
            self._depth -= 1
        return Bound(None, place) if left is None or left.bound is None else left.bound

    def _parameters(
        self, function: Function, args: Sequence[Any], kwargs: TableValue, place: SourceLine
    ) -> Scope:
        """Return the names that a call binds; for an unknown one, none has its default."""
        given = function.node.args
        positional = [each.arg for each in (*given.posonlyargs, *given.args)]
        names = [*positional, *(each.arg for each in given.kwonlyargs)]
        scope = {name: Bound(Unread(place, name), place) for name in names}
        if not kwargs.missing:
            scope |= function.defaults
        scope |= {name: Bound(each, place) for name, each in zip(positional, args, strict=False)}
        rest = {name: each for name, each in kwargs.entries.items() if name not in scope}
        scope |= {name: each for name, each in kwargs.entries.items() if name in scope}
        if given.vararg:
            scope[given.vararg.arg] = Bound(tuple(args[len(positional) :]), place)
        if given.kwarg:
            scope[given.kwarg.arg] = Bound(self.state.table(rest, kwargs.missing), place)
        return scope

    def module_at(self, path: str, *, relative: bool = False) -> Source | None:
        """Return the module of a path, if its file is given."""
        if not relative and path.partition(".")[0] in KNOWN:
            return None
        found = [each for each in self.sources if each.module == path] or [
            each
            for each in self.sources
            if path.endswith(f".{each.module}") or each.module.endswith(f".{path}")
        ]
        return found[0] if len(found) == 1 else None

    def has_object(self, path: str) -> bool:
        """Return whether a file has the object of this path, from which settings are read."""
        if path.startswith("django.conf"):
            return any(self.has_settings(source.file) for source in self.sources)
        return any(self._modules_of(path))

    def _modules_of(self, path: str) -> list[Source | None]:
        """Return the modules that may have an object."""
        module = path.partition(":")[0]
        return [self.module_at(each) for each in (module, module.rpartition(".")[0]) if each]

    def setting(self, name: str) -> Bound | None:
        found = [self.names(source).get(name) for source in self.sources]
        return next(filter(None, found), None)

    def bring(self, into: Follower, node: ast.Import | ast.ImportFrom) -> None:
        scope, place = into.scopes[-1], into.source.place(node)
        if isinstance(node, ast.Import):
            for each in node.names:
                path = each.name if each.asname else each.name.partition(".")[0]
                if (found := self.module_at(each.name)) is not None:
                    self.names(found)
                value = self.module_at(path) or Ref(place, path, hint_of(path), path)
                scope[each.asname or path] = Bound(value, place)
            return
        origin = into.source.origin(node)
        module = self.module_at(origin, relative=node.level > 0)
        names = {} if module is None or module is into.source else self.names(module)
        wanted = node.names
        if wanted[0].name == "*":
            wanted = [ast.alias(name) for name in self._exported(names, origin, place)]
        for each in wanted:
            bound = names.get(each.name) or self._imported(each, origin, place)
            if is_setting(each.name):  # so it is not there twice
                self._taken_over.add(id(bound))
            scope[each.asname or each.name] = bound.under()

    def _exported(self, names: Scope, origin: str, place: SourceLine) -> list[str]:
        """Return the names that `import *` brings, and note a module that may restrict them."""
        if not names and origin.partition(".")[0] not in KNOWN:
            detail = f"the names of {origin} are not known{hint_of(origin)}"
            self.state.notes.append(Note(place, detail))
        if "__all__" in names:
            detail = f"all public names of {origin} are taken: its `__all__` is not followed"
            self.state.notes.append(Note(place, detail))
        return [name for name in names if not name.startswith("_")]

    def _imported(self, name: ast.alias, origin: str, place: SourceLine) -> Bound:
        path = f"{origin}.{name.name}" if origin else name.name
        ref = Ref(place, name.asname or name.name, hint_of(origin), path)
        is_table = name.name.isupper() or name.name == "beat_schedule"
        if is_table and named(name.name) == "beat_schedule":
            return Bound(self.state.table(missing=[Note(place, str(ref))]), place)
        if (found := self.module_at(path, relative=True)) is not None:
            self.names(found)
        return Bound(found or ref, place)

    def settings(self) -> Iterator[tuple[str, Bound]]:
        """Return the settings of modules, of classes, and of apps: those of apps come last."""
        for source in self.sources:
            for name, bound in self._own(self.names(source)):
                is_used = self.state.app is None or self._configures(source) or name == "TIME_ZONE"
                yield name, bound if is_used else _unused(bound, "module")
        for scope in self._classes():
            for name, bound in self._own(scope):
                is_used = self.state.app is None or self.state.configured
                yield name, bound if is_used else _unused(bound, "class")
        yield from self._own(self.state.config)
        yield from self.state.conf.entries.items()

    def _classes(self, file: str = "") -> list[Scope]:
        classes = self.state.classes
        return [each.attributes for source, each in classes if file in ("", source.file)]

    def has_settings(self, file: str) -> bool:
        """Return whether a module has settings with Celery's prefix, as those of Django."""
        scopes = [self.names(source) for source in self.sources if source.file == file]
        names = [str(name) for scope in (*scopes, *self._classes(file)) for name in scope]
        return any(name.startswith("CELERY") for name in names)

    def _configures(self, source: Source) -> bool:
        """Return whether an app may take its settings from the names of a module."""
        return any(
            path.startswith("django") or source in self._modules_of(path)
            for path in self.state.configured
        )

    def _own(self, scope: Scope) -> Iterator[tuple[str, Bound]]:
        for name, bound in [*scope.items()]:
            if not isinstance(name, str) or id(bound) in self._taken_over:
                continue
            for namespace in self.state.namespaces:
                if name.startswith(namespace):
                    name = f"CELERY_{name.removeprefix(namespace)}"
            match bound.value:
                case TableValue(entries, missing) if name in CONTAINERS:
                    self.state.conf.missing += missing
                    yield from ((named(str(key)), each) for key, each in entries.items())
                case Function(node) as function if name == "beat_schedule" or (
                    is_read(name)
                    and any(last(dotted(each)) in PROPERTIES for each in node.decorator_list)
                ):
                    yield name, self._execute(function, [], None, bound.place)
                case Function(node) if name == "__getattr__" and is_relevant(node):
                    detail = "`__getattr__` may return settings of Celery's, and is not followed"
                    self.state.notes.append(Note(bound.place, detail))
                case Function() | Class() | Source():
                    pass
                case Ref(path) if path in OF_TIME:
                    pass
                case _ if is_setting(name):
                    yield name if name == "TIME_ZONE" else named(name), bound
                case _:
                    pass

    def leave(self, source: Source, nodes: Iterable[ast.AST], detail: str) -> None:
        """Note the unfollowed statements with relevant names."""
        for node in (each for top in nodes for each in ast.walk(top)):
            if not isinstance(node, ast.stmt) or node in self.executed:
                continue
            nested = any(isinstance(each, BLOCKS) for each in ast.iter_child_nodes(node))
            if not nested and is_relevant(node):
                self.state.notes.append(Note(source.place(node), detail))
            self.executed.add(node)


def _is_at_start(decorator: ast.expr) -> bool:
    """Return whether a decorator connects a function to a signal that is sent before beat."""
    return re.search(r"\b(on_\w+|beat_init)\.connect$", dotted(decorator)) is not None


def _unused(bound: Bound, of: str) -> Bound:
    detail = f"it is taken, and no app in these files is configured by its {of}"
    return bound.under(Note(bound.place, detail))
