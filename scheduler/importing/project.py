"""Follow modules that belong together, as Python would import them."""

import ast
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from scheduler.importing.expressions import hint_of
from scheduler.importing.findings import Note, SourceLine
from scheduler.importing.statements import Follower, ModuleState, TooLong
from scheduler.importing.values import (
    CONTAINERS,
    Bound,
    Class,
    Function,
    Module,
    Ref,
    Scope,
    Source,
    TableValue,
    Unread,
    Unreadable,
    dotted,
    is_read,
    is_relevant,
    is_setting,
    last,
    named,
    plain,
)

KNOWN = {*sys.stdlib_module_names, "celery", "django", "kombu", "django_celery_beat"}
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
        self._outer: dict[int, dict[str, Scope]] = {}
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

    def outer(self, scope: Scope) -> dict[str, Scope]:
        """Return the scopes of the names of a function that are not its own."""
        return self._outer.setdefault(id(scope), {})

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
        scope.update(_parameters(follower, function, args, kwargs, place))
        self._called.add(node)
        self._depth += 1
        try:
            left = follower.block(node.body)
        finally:
            self._depth -= 1
        return Bound(None, place) if left is None or left.bound is None else left.bound

    def hint(self, path: str) -> str:
        return hint_of_origin(path.partition(":")[0])

    def module_at(self, path: str, *, relative: bool = False) -> Module | None:
        """Return the module of a path, if its file is given."""
        if not relative and path.partition(".")[0] in KNOWN:
            return None
        found = [each for each in self.sources if each.module == path] or [
            each
            for each in self.sources
            if path.endswith(f".{each.module}") or each.module.endswith(f".{path}")
        ]
        return Module(found[0]) if len(found) == 1 else None

    def has_object(self, path: str) -> bool:
        """Return whether a file has the object of this path, from which settings are read."""
        if path.startswith("django.conf"):
            return any(self.has_settings(source.file) for source in self.sources)
        module = path.partition(":")[0]
        return any(self.module_at(each) for each in (module, module.rpartition(".")[0]) if each)

    def setting(self, name: str) -> Bound | None:
        found = [self.names(source).get(name) for source in self.sources]
        return next(filter(None, found), None)

    def bring(self, into: Follower, node: ast.Import | ast.ImportFrom) -> None:
        scope, place = into.scopes[-1], into.source.place(node)
        if isinstance(node, ast.Import):
            for each in node.names:
                path = each.name if each.asname else each.name.partition(".")[0]
                self._run_module(self.module_at(each.name))
                value = self.module_at(path) or Ref(place, path, hint_of_origin(path), path)
                scope[each.asname or path] = Bound(value, place)
            return
        origin = into.source.origin(node)
        module = self.module_at(origin, relative=node.level > 0)
        names = {} if module is None or module.source is into.source else self.names(module.source)
        for each in node.names:
            if each.name != "*":
                bound = names.get(each.name) or self._imported(each, origin, place)
                scope[each.asname or each.name] = self._taken(bound, each.name)
            elif names:
                for name in self._exported(names, origin, place):
                    bound = names.get(name) or self._imported(ast.alias(name), origin, place)
                    scope[name] = self._taken(bound, name)
            elif origin.partition(".")[0] not in KNOWN:
                detail = f"the names of {origin} are not known{hint_of(origin)}"
                self.state.notes.append(Note(place, detail))

    def _exported(self, names: Scope, origin: str, place: SourceLine) -> list[str]:
        """Return the names that `import *` brings, and note the settings that it does not."""
        public = [name for name in names if not name.startswith("_")]
        if "__all__" not in names:
            return public
        try:
            exported = [str(each) for each in plain(names["__all__"].value, place)]
        except (Unreadable, TypeError) as error:
            detail = f"the names that {origin} exports are not known: {error}"
            self.state.notes.append(Note(place, detail))
            return public
        for name in filter(is_setting, public):
            if name not in exported:
                detail = f"`import *` does not bring {name}: it is not in `__all__` of {origin}"
                self.state.notes.append(Note(place, detail))
        return exported

    def _taken(self, bound: Bound, name: str) -> Bound:
        """Return a value for another module, without duplicating settings."""
        if is_setting(name):
            self._taken_over.add(id(bound))
        return bound.under()

    def _imported(self, name: ast.alias, origin: str, place: SourceLine) -> Bound:
        path = f"{origin}.{name.name}" if origin else name.name
        ref = Ref(place, name.asname or name.name, hint_of_origin(origin), path)
        is_table = name.name.isupper() or name.name == "beat_schedule"
        if is_table and named(name.name) == "beat_schedule":
            return Bound(self.state.table(missing=[Note(place, str(ref))]), place)
        found = self.module_at(path, relative=True)
        self._run_module(found)
        return Bound(found or ref, place)

    def _run_module(self, module: Module | None) -> None:
        if module is not None:
            self.names(module.source)

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
        paths = self.state.configured
        modules = [path.partition(":")[0] for path in paths]
        modules += [each.rpartition(".")[0] for each in modules]
        found = [self.module_at(each) for each in modules if each]
        is_django = any(path.startswith("django") for path in paths)
        return is_django or any(each and each.source is source for each in found)

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
                case Function() | Class() | Module():
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


def hint_of_origin(origin: str) -> str:
    root = origin.partition(".")[0]
    if root == "django":
        return ": add the module of Django's settings"
    return "" if root in KNOWN or not root else hint_of(origin)


def _parameters(
    follower: Follower,
    function: Function,
    args: Sequence[Any],
    kwargs: TableValue,
    place: SourceLine,
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
        scope[given.kwarg.arg] = Bound(follower.state.table(rest, kwargs.missing), place)
    return scope
