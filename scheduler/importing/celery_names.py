"""Names of Celery's settings: as it has had them since its release 4."""

import ast

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

DATABASES = {"PeriodicTask", "RedBeatSchedulerEntry"}  # their rows are schedules
WORDS = (*DATABASES, "conf", "config", "add_periodic_task", "setattr", *CONTAINERS)


def named(name: str) -> str:
    plain = name.lower()
    if plain in OLD:
        return OLD[plain]
    for prefix in PREFIXES:
        plain = plain.removeprefix(prefix)
    return "beat_schedule" if plain.endswith("beat_schedule") else OLD.get(plain, plain)


def is_setting(name: str) -> bool:
    """Whether a name of a module is a setting: of Django's, or of a module of settings."""
    plain = named(name)
    if plain == "beat_schedule":
        return name.isupper() or name.lower() in ("beat_schedule", *OLD, "celery_beat_schedule")
    known = plain in ("timezone", "enable_utc") or name == "TIME_ZONE"
    return known or plain.startswith(("task_", "beat_")) or name.startswith(("CELERY_", "CELERYD_"))


def is_relevant(node: ast.AST) -> bool:
    """Return whether source names what we read."""
    for each in ast.walk(node):
        match each:
            case ast.Attribute(attr=name) | ast.Name(id=name) | ast.keyword(arg=str(name)):
                if name in WORDS or named(name) == "beat_schedule" or is_setting(name):
                    return True
            case ast.Constant(str(text)) if text and named(text) == "beat_schedule":
                return True
            case _:
                pass
    return False
