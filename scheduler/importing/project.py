"""Modules that belong together, followed as Python would import them."""

import ast
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from scheduler.importing.calls import Calls
from scheduler.importing.celery_names import CONTAINERS, is_relevant, is_setting, named
from scheduler.importing.findings import Note, Place
from scheduler.importing.names import hint_of
from scheduler.importing.source import Source
from scheduler.importing.statements import Block, Follower
from scheduler.importing.values import Bound, Class, Function, Module, Ref, Scope, Table, Unread
from scheduler.importing.world import TooLong, World

KNOWN = {*sys.stdlib_module_names, "celery", "django", "kombu", "django_celery_beat"}
DEEPEST = 20


class Project:
    """All modules that are given.

    Attributes:
        sources: the modules.
        classes: those of modules, as they are after their bodies.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self.world = World()
        self.calls = Calls
        self.classes: list[tuple[Source, Class]] = []
        self.sources = sources
        self._names: dict[Source, Scope] = {}
        self._globals: dict[int, set[str]] = {}
        self._pending: list[Function] = []
        self._called: set[ast.AST] = set()
        self._opaque: set[ast.AST] = set()
        self._taken_over: set[int] = set()
        self._depth = 0
        for source in sources:
            self.names(source)
        for function in self._pending:  # which grows
            if function.node not in self._called and is_relevant(function.node):
                self._run(function)
        for source in sources:
            self._tell_unfollowed(source)

    def names(self, source: Source) -> Scope:
        """Return the names of a module, which is followed before, if it was not."""
        if source not in self._names:
            self._names[source] = self.world.scope()
            body = source.tree.body
            self._follow(Place(source.file, 1), lambda: self.evaluator(source).block(body))
        return self._names[source]

    def evaluator(self, source: Source) -> Follower:
        return Follower(self, source, [self._names[source]])

    def globals_of(self, scope: Scope) -> set[str]:
        return self._globals.setdefault(id(scope), set())

    def defined(self, function: Function, *, can_be_called: bool) -> None:
        self._pending.append(function)
        if not can_be_called:
            self._opaque.add(function.node)

    def _follow(self, place: Place, follow: Callable[[], object]) -> None:
        """Follow a module or a function, as far as that does not take too long."""
        try:
            follow()
        except (TooLong, RecursionError):
            told = "it computes for too long to be followed: the rest of it is left out"
            self.world.notes.append(Note(place, told))

    def _run(self, function: Function) -> None:
        """Follow a function that the files do not call."""
        conf = self.world.conf
        before = dict(conf)
        place = function.source.place(function.node)
        self._follow(place, lambda: self.call(function, [], {}, place, unknown=True))
        for name, old in before.items():
            replaced = isinstance(old.value, Table) and not old.value.entries
            if name in conf and not replaced:
                condition = f"def {function.node.name}"
                conf[name] = self.world.merged(conf[name], old, condition, "")

    def call(
        self,
        function: Function,
        args: Sequence[Any],
        kwargs: Mapping[str, Bound],
        place: Place,
        *,
        unknown: bool = False,
    ) -> Bound:
        """Follow a call, and return its value."""
        node = function.node
        unread = Bound(Unread(place, f"{node.name}(...)"), place)
        if self._depth >= DEEPEST or (node in self._opaque and not unknown):
            return unread
        scope = self.world.scope()
        follower = Follower(self, function.source, [*function.scopes, scope])
        scope.update(_parameters(follower, node.args, args, kwargs, place, unknown=unknown))
        self._called.add(node)
        self._depth += 1
        try:
            left = follower.block(node.body)
        finally:
            self._depth -= 1
        is_plain = isinstance(node, ast.FunctionDef) and not any(
            isinstance(each, ast.Yield | ast.YieldFrom) for each in ast.walk(node)
        )
        if not is_plain:
            return unread
        return Bound(None, place) if left is None or left.bound is None else left.bound

    def module_at(self, path: str, *, relative: bool = False) -> Module | None:
        """Return the module of a path, if its file is given."""
        if not relative and path.partition(".")[0] in KNOWN:
            return None
        found = [each for each in self.sources if each.module == path] or [
            each
            for each in self.sources
            if path.endswith(f".{each.module}") or each.module.endswith(f".{path}")
        ]
        return Module(found[0], path) if len(found) == 1 else None

    def setting(self, name: str) -> Bound | None:
        """Return a setting of Django's, from any module that has it."""
        plain = name.rpartition(".")[2]
        found = [self.names(source).get(plain) for source in self.sources]
        return next((each for each in found if each is not None), None)

    def bring(self, into: Follower, node: ast.Import | ast.ImportFrom) -> None:
        """Bind the names of an import."""
        scope, place = into.scopes[-1], into.source.place(node)
        if isinstance(node, ast.Import):
            for each in node.names:
                path = each.name if each.asname else each.name.partition(".")[0]
                value = self.module_at(path) or Ref(path, into.unread(ast.Name(path), _hint(path)))
                scope[each.asname or path] = Bound(value, place)
            return
        origin = into.source.origin(node)
        module = self.module_at(origin, relative=node.level > 0)
        names = {} if module is None or module.source is into.source else self.names(module.source)
        for each in node.names:
            if each.name == "*":
                self._bring_all(into, names, origin, place)
            elif each.name in names:
                scope[each.asname or each.name] = self._taken(names[each.name], each.name)
            else:
                scope[each.asname or each.name] = self._imported(into, each, origin, place)

    def _bring_all(self, into: Follower, names: Scope, origin: str, place: Place) -> None:
        if not names and origin.partition(".")[0] not in KNOWN:
            told = f"the names of {origin} are not known{hint_of(origin)}"
            self.world.notes.append(Note(place, told))
        for name, bound in names.items():
            into.scopes[-1][name] = self._taken(bound, name)

    def _taken(self, bound: Bound, name: str) -> Bound:
        if is_setting(name):
            self._taken_over.add(id(bound))
        return bound.under()

    def _imported(self, into: Follower, name: ast.alias, origin: str, place: Place) -> Bound:
        path = f"{origin}.{name.name}" if origin else name.name
        hint = _hint(origin)
        unread = Unread(place, name.asname or name.name, hint)
        is_table = name.name.isupper() or name.name == "beat_schedule"
        if is_table and named(name.name) == "beat_schedule":
            missing = [Note(place, str(unread))]
            return Bound(self.world.table(missing=missing), place)
        return Bound(self.module_at(path, relative=True) or Ref(path, unread), place)

    def settings(self) -> Iterator[tuple[str, Bound]]:
        """Return the settings of modules, of classes, and of apps: those of apps come last."""
        for source in self.sources:
            yield from self._own(self._names[source])
        for _, each in self.classes:
            yield from self._own(each.attributes)
        yield from self.world.conf.items()

    def has_settings(self, file: str) -> bool:
        """Return whether a module has settings with Celery's prefix, as those of Django."""
        scopes = [self._names[source] for source in self.sources if source.file == file]
        scopes += [each.attributes for source, each in self.classes if source.file == file]
        names = [str(name) for scope in scopes for name in scope]
        return any(name.startswith("CELERY") for name in names)

    def _own(self, scope: Scope) -> Iterator[tuple[str, Bound]]:
        for name, bound in scope.items():
            if isinstance(name, str) and id(bound) not in self._taken_over:
                if name in CONTAINERS and isinstance(bound.value, Table):
                    for key, each in bound.value.entries.items():
                        yield named(str(key)), each
                elif isinstance(bound.value, Function) and name == "beat_schedule":
                    yield name, self.call(bound.value, [], {}, bound.place, unknown=True)
                elif is_setting(name) and not isinstance(bound.value, Function | Class | Module):
                    yield name if name == "TIME_ZONE" else named(name), bound

    def skip(self, source: Source, block: Block, condition: str) -> None:
        """Note what is left out as its condition is known not to hold."""
        for statement in block:
            if id(statement) in self.world.executed:
                continue
            if is_relevant(statement):
                told = f"left out, under `{condition}`, which does not hold here"
                self.world.notes.append(Note(source.place(statement), told))
            self.world.executed.update(id(each) for each in ast.walk(statement))

    def _tell_unfollowed(self, source: Source) -> None:
        for node in ast.walk(source.tree):
            if not isinstance(node, ast.stmt) or id(node) in self.world.executed:
                continue
            nested = any(isinstance(each, ast.stmt) for each in ast.iter_child_nodes(node))
            if not nested and is_relevant(node):
                told = "left out: it is in code that is not followed"
                self.world.notes.append(Note(source.place(node), told))


def _hint(origin: str) -> str:
    root = origin.partition(".")[0]
    if root == "django":
        return ": add the module of Django's settings"
    return "" if root in KNOWN or not root else hint_of(origin)


def _parameters(
    follower: Follower,
    given: ast.arguments,
    args: Sequence[Any],
    kwargs: Mapping[str, Bound],
    place: Place,
    *,
    unknown: bool,
) -> Scope:
    """Return the names that a call binds; of an unknown one, none has its default."""
    positional = [*given.posonlyargs, *given.args]
    defaults = dict(
        zip([each.arg for each in positional][::-1], given.defaults[::-1], strict=False)
    )
    defaults |= {
        each.arg: default
        for each, default in zip(given.kwonlyargs, given.kw_defaults, strict=True)
        if default is not None
    }
    names = [each.arg for each in (*positional, *given.kwonlyargs)]
    scope = {name: Bound(Unread(place, name), place) for name in names}
    if not unknown:
        scope |= {name: follower.bound(default) for name, default in defaults.items()}
    scope |= {each.arg: Bound(value, place) for each, value in zip(positional, args, strict=False)}
    rest = {name: each for name, each in kwargs.items() if name not in scope}
    scope |= {name: each for name, each in kwargs.items() if name in scope}
    if given.vararg:
        scope[given.vararg.arg] = Bound(tuple(args[len(positional) :]), place)
    if given.kwarg:
        scope[given.kwarg.arg] = Bound(follower.world.table(rest), place)
    return scope
