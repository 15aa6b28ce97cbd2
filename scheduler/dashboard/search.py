"""Search loops, tasks, errors and parked messages by words."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from scheduler.dashboard.site import Site
from scheduler.dashboard.standing import Standing
from scheduler.queues.failed import ParkedMessage, kind_of
from scheduler.spelling import nearest

MOST_FOUND = 10
MOST_COMPARED = 1_000  # names


@dataclass(frozen=True, slots=True)
class FoundError:
    """Describe the last error of a kind of a task; `has_loops`: some of its loops fail with it."""

    task: str
    error: str
    has_loops: bool


def search(site: Site, words: str) -> dict[str, Any]:
    """Return the best matches, for a template.

    Loops beyond those that the dashboard shows are found by their name or key, in an index.
    """
    parts = words.lower().split()
    loops = _loops(site, words, parts)
    others = _others(site, words) if len(loops) < MOST_FOUND else []
    named = [name for name in sorted(site.app.tasks) if _has(name, parts)]
    tasks = [name for name in named if name not in site.judged.by_name]  # of one loop: it is that
    found: dict[str, Any] = {
        "loops": loops[:MOST_FOUND],
        "count": len(loops),
        "others": others,
        "tasks": tasks[:MOST_FOUND],
        "errors": _errors(site, parts)[:MOST_FOUND],
        "messages": [*islice(_messages(site, words), MOST_FOUND)] if words else [],
    }
    is_found = any(found.values())
    names = [*site.app.tasks, *islice(site.judged.by_name, MOST_COMPARED)]
    near = nearest(words, names) if words and not is_found else None
    return {"q": words, **found, "is_found": is_found, "nearest": near}


def _has(text: str, parts: Sequence[str]) -> bool:
    text = text.lower()
    return bool(parts) and all(part in text for part in parts)


def _loops(site: Site, words: str, parts: Sequence[str]) -> list[Standing]:
    """Return the loops whose names have the words: this one first, then those that begin so."""
    found = [each for each in site.judged.standings if _has(each.name, parts)]
    return sorted(found, key=lambda each: (each.name != words, not each.name.startswith(words)))


def _others(site: Site, words: str) -> list[str]:
    listing, known = site.picture.listing, site.picture.loops
    named = [each.loop for each in site.entries_of(words)]
    found = dict.fromkeys([*named, *listing.table.of_key(words, most=MOST_FOUND)])
    return [str(loop) for loop in found if loop not in known][:MOST_FOUND]


def _errors(site: Site, parts: Sequence[str]) -> list[FoundError]:
    failures, parked = site.judged.verdict.failures, site.picture.parked
    found = {key: FoundError(key[0], each.error, False) for key, each in parked.items()}
    found |= {
        (each.task, kind_of(each.error)): FoundError(each.task, each.error, bool(each.loops))
        for each in failures
    }
    return [each for each in found.values() if _has(f"{each.task} {each.error}", parts)]


def _messages(site: Site, words: str) -> Iterator[ParkedMessage]:
    known = {
        parked.id: parked
        for look in site.watch.looks.values()
        for group in look.groups
        for parked in group.messages
    }
    return (parked for id, parked in known.items() if id.startswith(words))
