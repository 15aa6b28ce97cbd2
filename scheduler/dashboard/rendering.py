"""Render pages as HTML: whole documents under a strict policy, and parts to update.

A template marks parts that may change by `{% call part(...) %}`. So the same template makes the
page and its updates: only changed parts are sent again.
"""

import hashlib
import json
import re
import secrets
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime, tzinfo
from functools import cache, cached_property
from hashlib import blake2b
from html import unescape
from importlib.resources import files
from typing import Any, cast
from urllib.parse import urlencode
from zoneinfo import available_timezones

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response

from scheduler.dashboard import wording
from scheduler.dashboard.access import ACTIONS, Visitor
from scheduler.dashboard.actions import LOOP_VERBS
from scheduler.dashboard.charts import amount, elapsed, element, shares, sparkline, strip
from scheduler.dashboard.forms import GROUPED_FROM
from scheduler.dashboard.pages import PAGES, Context
from scheduler.dashboard.site import Site
from scheduler.dashboard.standings import MARKS, MEANINGS
from scheduler.timing.moments import milliseconds_since_epoch

PLACE = re.compile("<!part ([^>]+)>")  # no data is in a tag: all of it is escaped
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}
COLORS = {"prod": "magenta", "stag": "cyan"}
"""The colors of environments, by the first letters of their names."""
THEME, THEMES = "scheduler-theme", ("light", "dark")
LEVELS = {"ok": "ok", "hold": "hold", "off": "help", "warn": "warn", "bad": "bad"}
KINDS = {"css": "text/css; charset=utf-8", "js": "text/javascript; charset=utf-8"}
FOR_EVER = {
    "Cache-Control": "public, max-age=31536000, immutable",
    "X-Content-Type-Options": "nosniff",
}
ASSETS = {
    each.name: each.read_bytes()
    for each in (files("scheduler.dashboard") / "static").iterdir()
    if each.name.rpartition(".")[2] in KINDS
}
"""The stylesheet and the script: all that pages load."""
VERSION = hashlib.sha256(b"".join(ASSETS[name] for name in sorted(ASSETS))).hexdigest()[:12]
"""A digest of all assets, so that browsers can cache each without a limit."""


async def answer_asset(request: Request) -> Response:
    name = request.path_params["name"]
    if name not in ASSETS:
        return PlainTextResponse("There is no such file.", 404)
    return Response(ASSETS[name], headers=FOR_EVER, media_type=KINDS[name.rpartition(".")[2]])


@dataclass(frozen=True)
class Rendered:
    """Hold a rendered page: its frame has a placeholder for each part."""

    frame: str
    parts: Mapping[str, str]

    @property
    def html(self) -> str:
        return PLACE.sub(lambda place: self.parts[unescape(place[1])], self.frame)

    @cached_property
    def digest(self) -> str:
        return blake2b(self.html.encode(), digest_size=9).hexdigest()

    def news(self, before: "Rendered | str") -> tuple[str, str] | None:
        """Return an event and its data in JSON, for a visitor who has seen the page before.

        Args:
            before: the page that they have seen, or its digest.
        """
        if isinstance(before, str):
            return None if before == self.digest else ("page", json.dumps(self.html))
        if before.frame != self.frame:
            return "page", json.dumps(self.html)
        seen = before.parts
        changed = {name: html for name, html in self.parts.items() if seen[name] != html}
        return ("parts", json.dumps(changed)) if changed else None


@cache
def _templates() -> Environment:
    """Return the templates, compiled once: that takes longer than most pages."""
    environment = Environment(
        loader=PackageLoader("scheduler.dashboard"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        moment=moment,
        clock=clock,
        exact=wording.in_full,
        span=wording.span,
        words=wording.schedule_in_words,
        json=wording.readable_json,
        line=wording.first_line,
        key=key,
        amount=amount,
    )
    cast("dict[str, Any]", environment.globals).update(
        strip=strip,
        sparkline=sparkline,
        elapsed=elapsed,
        shares=shares,
        marks=MARKS,
        meanings=MEANINGS,
        levels=LEVELS,
        verbs=LOOP_VERBS,
        zones=sorted(available_timezones()),
        grouped_from=GROUPED_FROM,
    )
    return environment


def render(template: str, context: Mapping[str, Any]) -> Rendered:
    """Return the content inside the frame that all pages have."""
    parts = dict[str, str]()

    def part(
        name: str,
        tag: str = "div",
        classes: str = "",
        *,
        label: str = "",
        caller: Callable[[], str],
    ) -> Markup:
        attributes = {"id": name, "class": classes, "data-label": label}
        parts[name] = element(tag, attributes, caller())
        return Markup(f"<!part {escape(name)}>")

    frame = _templates().get_template(template).render(**context, part=part)
    return Rendered(frame, parts)


@dataclass(frozen=True, slots=True)
class Visit:
    """Respond to a request of a visitor."""

    site: Site
    request: Request
    visitor: Visitor

    @property
    def base(self) -> str:
        """Return the path under which a proxy or another application has the dashboard."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @property
    def _path(self) -> str:
        return self.request.url.path.removeprefix(self.base) or "/"

    def whole(self, title: str, html: str, live: str = "", code: int = 200) -> Response:
        """Respond with a document with this content; `live` is the path of its updates, if any."""
        request, settings = self.request, self.site.app.settings
        theme = request.query_params.get("theme") or request.cookies.get(THEME)
        nonce, environment = secrets.token_urlsafe(16), settings.environment
        query = f"?{request.url.query}" if request.url.query else ""
        known_color = COLORS.get(environment.lower()[:4], "gray")
        context = {
            "namespace": self.site.app.namespace,
            "environment": environment,
            "environment_color": settings.environment_color or known_color,
            "base": self.base,
            "title": title,
            "q": request.query_params.get("q", "") if request.url.path.endswith("/search") else "",
            "path": self._path,
            "menu": [page for page in PAGES if page.icon],
            "live": f"{self.base}{live}{query}" if live else "",
            "nonce": nonce,
            "theme": theme if theme in THEMES else "",
            "assets": VERSION,
            "content": html,
            "visitor": self.visitor,
            "may_act": any(map(self.visitor.can, ACTIONS)),
        }
        policy = (  # the browser loads and runs only the dashboard's own files
            f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
            "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
            "frame-ancestors 'none'"
        )
        document = _templates().get_template("document.html").render(**context)
        return HTMLResponse(document, code, {**HEADERS, "Content-Security-Policy": policy})

    def answer(self, title: str, template: str, context: Context, code: int = 200) -> Response:
        html = render(template, self.for_all({}) | context).html
        return self.whole(title, html, code=code)

    def for_all(self, query: dict[str, str]) -> Context:
        """Return the values for all templates."""
        site, here, path = self.site, self._path, self.request.path_params
        if "seen" in path:
            here = f"/{path['path']}"
        kept = {name: value for name, value in query.items() if name != "done"}
        judged = site.judged
        return {
            "badges": site.badges,
            "unacknowledged": judged.failing,
            "level": judged.verdict.level if site.picture.is_listed else "off",
            "picture": site.picture,
            "base": self.base,
            "now": site.clock.now(),
            "here": f"{here}?{urlencode(kept)}" if kept else here,
            "error": "",
            "query": query,
            "can": self.visitor.can,
            "operation": site.operations.get(query.get("done", "")),
        }


def wants_data(request: Request) -> bool:
    return request.headers.get("accept", "").startswith("application/json")


def moment(value: datetime | None, zone: tzinfo | None = None) -> Markup:
    """Mark up a moment: exact here; the reader's browser makes it relative to its clock."""
    if value is None:
        return Markup("")
    return _time(value, zone, wording.in_full(value, zone))


def key(value: datetime) -> str:
    """Return a moment for the ID of an element."""
    return str(milliseconds_since_epoch(value))


def clock(value: datetime) -> Markup:
    """Mark up a time of day, by the reader's clock if known."""
    return _time(value, None, f"{value.astimezone(UTC):%H:%M} UTC", "clock")


def _time(value: datetime, zone: tzinfo | None, text: str, classes: str = "") -> Markup:
    title = wording.in_full(value, zone)
    exact = {"datetime": value.isoformat(timespec="milliseconds"), "title": title}
    return element("time", {"class": classes, **exact}, text)
