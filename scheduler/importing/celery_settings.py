"""The settings of Celery's that a module has, however it gives them."""

import ast
from collections.abc import Iterator
from typing import NamedTuple

from scheduler.importing.source import Source, Unreadable, dotted

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


class Setting(NamedTuple):
    """A setting, as Celery names it since its release 4.

    Attributes:
        key: of a single entry, in a setting that is a table.
    """

    name: str
    value: ast.expr
    key: ast.expr | None = None


def settings_in(source: Source) -> Iterator[Setting]:
    for statement in ast.walk(source.tree):
        match statement:
            case ast.Assign(targets=targets, value=value):
                for target in targets:
                    yield from _assigned(source, target, value)
            case ast.AnnAssign(target=target, value=ast.expr() as value):
                yield from _assigned(source, target, value)
            case ast.Call(func=ast.Attribute(conf, "update")) if _last(conf) == "conf":
                yield from _given(source, statement)
            case ast.Call(func=ast.Attribute(table, "update"), args=[first]) if (
                _named(_last(table)) == "beat_schedule"
            ):
                yield Setting("beat_schedule", first)
            case ast.Call(keywords=keywords):
                for each in keywords:
                    if each.arg in CONTAINERS:
                        yield from _of_mapping(source, each.value)
            case _:
                pass


def _assigned(source: Source, target: ast.expr, value: ast.expr) -> Iterator[Setting]:
    match target:
        case ast.Attribute(conf, name) if _last(conf) in ("conf", "config"):
            yield Setting(_named(name), value)
        case ast.Subscript(conf, ast.Constant(str(name))) if _last(conf) in ("conf", "config"):
            yield Setting(_named(name), value)
        case ast.Subscript(table, key) if _named(_last(table)) == "beat_schedule":
            yield Setting("beat_schedule", value, key)
        case ast.Name(name) if name in CONTAINERS:
            yield from _of_mapping(source, value)
        case ast.Name(name) if source.names.get(name) is value and _is_setting(name):
            yield Setting(_named(name), value)
        case _:
            pass


def _given(source: Source, call: ast.Call) -> Iterator[Setting]:
    for each in call.keywords:
        if each.arg:
            yield Setting(_named(each.arg), each.value)
        else:
            yield from _of_mapping(source, each.value)
    for each in call.args:
        yield from _of_mapping(source, each)


def _of_mapping(source: Source, node: ast.expr) -> Iterator[Setting]:
    try:
        yield from (Setting(_named(str(key)), value) for key, value in source.items(node))
    except Unreadable:
        yield Setting("a mapping of settings", node)


def _is_setting(name: str) -> bool:
    """Whether a name of a module is a setting: of Django's, or of a module of settings."""
    plain = _named(name)
    known = plain in ("beat_schedule", "timezone", "enable_utc")
    return known or plain.startswith(("task_", "beat_")) or name.startswith(("CELERY_", "CELERYD_"))


def _named(name: str) -> str:
    plain = name.lower()
    if plain in OLD:
        return OLD[plain]
    for prefix in PREFIXES:
        plain = plain.removeprefix(prefix)
    return "beat_schedule" if plain.endswith("beat_schedule") else OLD.get(plain, plain)


def _last(node: ast.expr) -> str:
    return dotted(node).rpartition(".")[2]
