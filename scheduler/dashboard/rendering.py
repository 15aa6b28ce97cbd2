"""Pages as HTML, and as the parts that change while somebody looks.

A template marks what may change by `{% call part(...) %}`. So the same template makes the page and
says what of it is new: what of a part has changed is sent again, and all else is not.
"""

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from hashlib import blake2b
from typing import Any, cast

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from scheduler.dashboard import wording
from scheduler.dashboard.strips import strip
from scheduler.timing.moments import milliseconds_since_epoch

PLACE = re.compile("\x00([^\x00]+)\x00")


@dataclass(frozen=True, slots=True)
class Rendered:
    """A page.

    Attributes:
        frame: the page, with a place for each part.
        parts: what stands there.
    """

    frame: str
    parts: Mapping[str, str]

    @property
    def html(self) -> str:
        """The whole page."""
        return PLACE.sub(lambda place: self.parts[place[1]], self.frame)

    @property
    def digest(self) -> str:
        """What tells it from other pages."""
        return blake2b(self.html.encode(), digest_size=9).hexdigest()

    def news(self, before: "Rendered | str") -> tuple[str, str] | None:
        """What to tell somebody who has seen the page before: an event, and its data in JSON.

        None: there is nothing to tell.

        Args:
            before: what they have seen, or its digest.
        """
        if isinstance(before, str):
            return None if before == self.digest else ("page", json.dumps(self.html))
        if before.frame != self.frame:
            return "page", json.dumps(self.html)
        seen = before.parts
        changed = {name: html for name, html in self.parts.items() if seen[name] != html}
        return ("parts", json.dumps(changed)) if changed else None


@dataclass(slots=True)
class _Parts:
    """The parts of one page that is being rendered."""

    found: dict[str, str] = field(default_factory=dict[str, str])

    def __call__(
        self,
        name: str,
        tag: str = "div",
        classes: str = "",
        *,
        label: str = "",
        caller: Callable[[], str],
    ) -> Markup:
        opening = Markup('<{} id="{}"').format(Markup(tag), name)
        if classes:
            opening += Markup(' class="{}"').format(classes)
        if label:
            opening += Markup(' data-label="{}"').format(label)
        opening += Markup(">")
        self.found[name] = f"{opening}{caller()}</{tag}>"
        return Markup(f"\x00{escape(name)}\x00")


class Renderer:
    """The templates of the dashboard."""

    def __init__(self) -> None:
        self._environment = Environment(
            loader=PackageLoader("scheduler.dashboard"),
            autoescape=True,
            undefined=StrictUndefined,
            trim_blocks=True,
            lstrip_blocks=True,
        )
        self._environment.filters.update(
            moment=moment,
            clock=clock,
            exact=exact,
            span=wording.span,
            rate=wording.rate,
            words=wording.schedule_in_words,
            json=wording.readable_json,
            line=wording.first_line,
            key=key,
        )
        functions: dict[str, Any] = {"strip": strip}
        cast("dict[str, Any]", self._environment.globals).update(functions)

    def parts(self, template: str, context: Mapping[str, Any]) -> Rendered:
        """What stands inside the frame that all pages have."""
        parts = _Parts()
        frame = self._environment.get_template(template).render(**context, part=parts)
        return Rendered(frame, parts.found)

    def page(self, context: Mapping[str, Any]) -> str:
        """A whole document."""
        return self._environment.get_template("document.html").render(**context)


def moment(value: datetime | None, zone: str = "") -> Markup:
    """A moment: exact as it is made here; told relative to now, by the reader's clock, there."""
    if value is None:
        return Markup("")
    told = wording.in_zone(value, zone)
    return Markup('<time datetime="{}" title="{}">{}</time>').format(
        value.isoformat(timespec="milliseconds"), wording.exact(told), wording.brief(told)
    )


def key(value: datetime) -> str:
    """Return a moment as it stands in the id of an element."""
    return str(milliseconds_since_epoch(value))


def exact(value: datetime, zone: str = "") -> str:
    """A moment by the clock of a zone."""
    return wording.by_clock(wording.in_zone(value, zone))


def clock(value: datetime) -> Markup:
    """The time of day of a moment, by the reader's clock where that is known."""
    told = wording.in_zone(value)
    return Markup('<time class="clock" datetime="{}" title="{}">{}</time>').format(
        value.isoformat(timespec="milliseconds"), wording.exact(told), f"{told:%H:%M} UTC"
    )
