"""What is asked for over HTTP: pages, what is new of them, and actions."""

import asyncio
import contextlib
import secrets
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from functools import partial
from inspect import isawaitable
from typing import Any
from urllib.parse import urlencode

from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import (
    HTMLResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from scheduler.dashboard import assets
from scheduler.dashboard.access import Forms, Visitor, visitor_of
from scheduler.dashboard.actions import Actions, Asked, NotDone
from scheduler.dashboard.pages import PAGES, Context, Page, common
from scheduler.dashboard.rendering import Rendered, Renderer
from scheduler.dashboard.site import Site

PACE_S = 1.0
STILL_S = 15.0
LONGEST_VISIT_S = 600.0  # then it is asked again who may look
NOBODY = "You may not look at this dashboard. "
LOCAL_ONLY = (
    "Without access=, only this machine may, directly and under its own name. Give "
    "scheduler.dashboard.dashboard(app, access=...) a function that says who may do what."
)
HEADERS = {
    "Cache-Control": "no-store",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "same-origin",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
}


def policy(nonce: str) -> str:
    """What the browser is told to load and do: nothing but what is ours."""
    return (
        f"default-src 'none'; script-src 'nonce-{nonce}'; style-src 'nonce-{nonce}'; "
        "img-src 'self' data:; connect-src 'self'; form-action 'self'; base-uri 'none'; "
        "frame-ancestors 'none'"
    )


@dataclass(frozen=True, slots=True)
class Seen:
    """A page as it was rendered last, for all who look at the same."""

    at: float
    version: int
    rendered: Rendered


class Routes:
    """The pages and actions of a site.

    Args:
        refusal: what is said to nobody.
    """

    def __init__(self, site: Site, forms: Forms, *, refusal: str = "") -> None:
        self._site = site
        self._renderer = Renderer()
        self._forms = forms
        self._actions = Actions(site)
        self._refusal = refusal
        self._seen: dict[tuple[Any, ...], Seen] = {}

    def app(self) -> Starlette:
        """The application that answers."""
        routes = [
            Route("/static/{name}", assets.answer),
            Route("/live/{seen}/{path:path}", self._live),
            Route("/do/{action}", self._do, methods=["POST"]),
            *(Route(page.path, self._page_of(page)) for page in PAGES),
        ]
        return Starlette(
            routes=routes, lifespan=self._lifespan, exception_handlers={404: self._lost}
        )

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        self._site.start()
        try:
            yield
        finally:
            await self._site.stop()

    async def _visitor(self, request: Request) -> Visitor | None:
        # Mounted in another application, it is not told when that starts.
        self._site.start()
        told = self._site.access(request)
        visitor = visitor_of(await told if isawaitable(told) else told)
        if visitor is not None:
            self._site.view()
        return visitor

    def _page_of(self, page: Page) -> Any:
        async def answer(request: Request) -> Response:
            visitor = await self._visitor(request)
            if visitor is None:
                return _nobody(self._refusal)
            rendered = self._rendered(page, request, visitor)
            if rendered is None:
                return self._document(request, visitor, "Not found", _gone(page), "", 404)
            live = f"/live/{rendered.digest}{page.path}" if page.is_live else ""
            return self._document(request, visitor, page.title, rendered.html, live)

        return answer

    async def _lost(self, request: Request, _: Exception) -> Response:
        visitor = await self._visitor(request)
        if visitor is None:
            return _nobody(self._refusal)
        return self._document(
            request, visitor, "Not found", "<h1>There is no such page</h1>", "", 404
        )

    def _document(
        self, request: Request, visitor: Visitor, title: str, html: str, live: str, code: int = 200
    ) -> Response:
        nonce, base = secrets.token_urlsafe(16), _base(request)
        query = f"?{request.url.query}" if request.url.query else ""
        context = common(self._site) | {
            "base": base,
            "title": title,
            "path": request.url.path.removeprefix(base) or "/",
            "menu": [page for page in PAGES if page.in_menu],
            "live": f"{base}{live}{query}" if live else "",
            "nonce": nonce,
            "assets": assets.VERSION,
            "content": html,
            "visitor": visitor,
            "may_act": self._site.can(visitor, "pause"),
        }
        headers = {**HEADERS, "Content-Security-Policy": policy(nonce)}
        return HTMLResponse(self._renderer.page(context), code, headers)

    def _rendered(self, page: Page, request: Request, visitor: Visitor) -> Rendered | None:
        """The page, as it was rendered a moment ago if somebody has seen it then."""
        base, site = _base(request), self._site
        now = asyncio.get_running_loop().time()
        version = site.picture.version + site.doings.version
        key = (page.path, request.url.query, base, visitor.name)
        seen = self._seen.get(key)
        if seen is not None and seen.version == version and now - seen.at < PACE_S / 2:
            return seen.rendered
        query = dict(request.query_params)
        context = page.context(site, query)
        if context is None:
            return None
        common_to_all = self._for_all(request, visitor, query)
        rendered = self._renderer.parts(page.template, common_to_all | context)
        self._seen = {k: v for k, v in self._seen.items() if now - v.at < STILL_S}
        self._seen[key] = Seen(now, version, rendered)
        return rendered

    def _for_all(self, request: Request, visitor: Visitor, query: dict[str, str]) -> Context:
        site = self._site
        here = request.url.path.removeprefix(_base(request)) or "/"
        if "seen" in request.path_params:
            here = f"/{request.path_params['path']}"
        kept = {name: value for name, value in query.items() if name != "done"}
        return common(site) | {
            "base": _base(request),
            "now": site.clock.now(),
            "here": f"{here}?{urlencode(kept)}" if kept else here,
            "query": query,
            "token": self._forms.token(visitor),
            "can": partial(site.can, visitor),
            "doing": site.doings.get(query.get("done", "")),
        }

    async def _live(self, request: Request) -> Response:
        visitor = await self._visitor(request)
        if visitor is None:
            return _nobody(self._refusal)
        path = f"/{request.path_params['path']}"
        page = next((page for page in PAGES if page.path == path and page.is_live), None)
        if page is None:
            return PlainTextResponse("There is no such page.", 404)
        news = self.news(page, request, visitor)
        return StreamingResponse(news, media_type="text/event-stream", headers=HEADERS)

    async def news(self, page: Page, request: Request, visitor: Visitor) -> AsyncGenerator[str]:
        """What is new of a page, for as long as somebody looks.

        Who comes back has missed something: they say what they have seen.
        """
        seen: str | Rendered = request.path_params["seen"]
        now = said = began = asyncio.get_running_loop().time()
        yield "retry: 2000\n\n"
        while now - began < LONGEST_VISIT_S:
            self._site.view()
            rendered = self._rendered(page, request, visitor)
            news = rendered and rendered.news(seen)
            seen = rendered or seen
            if news:
                said = now
                yield f"event: {news[0]}\ndata: {news[1]}\n\n"
            elif now - said >= STILL_S:
                said = now
                yield ": still here\n\n"
            await asyncio.sleep(PACE_S)
            now = asyncio.get_running_loop().time()

    async def _do(self, request: Request) -> Response:
        visitor = await self._visitor(request)
        if visitor is None:
            return _nobody(self._refusal)
        async with request.form(max_files=0) as form:
            return await self._act(request, visitor, form)

    async def _act(self, request: Request, visitor: Visitor, form: FormData) -> Response:
        action, base = request.path_params["action"], _base(request)
        refusal = self._forms.refusal(request.headers, str(form.get("token", "")), visitor)
        if refusal is not None:
            return PlainTextResponse(f"{refusal} Nothing was done: load the page anew.", 403)
        asked = Asked(action, visitor, form)
        if not self._actions.are_allowed(asked):
            return PlainTextResponse(f"{visitor.name} may not do this here. Nothing was done.", 403)
        try:
            if (question := self._actions.question(asked)) is not None:
                html = self._renderer.parts(
                    "confirm.html",
                    self._for_all(request, visitor, {}) | {"question": question, "asked": asked},
                ).html
                return self._document(request, visitor, "Are you sure?", html, "")
            back = await self._actions.do(asked)
        except NotDone as error:
            return PlainTextResponse(f"{error} Nothing was done.", 400)
        return RedirectResponse(f"{base}{back}", 303)


def _base(request: Request) -> str:
    """Where the dashboard is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")


def _nobody(refusal: str) -> Response:
    return PlainTextResponse(NOBODY + refusal, 403)


def _gone(page: Page) -> str:
    what = "message that was looked at" if page.path == "/failed/message" else "loop of this name"
    return f"<h1>Not found</h1><p>There is no {what}, or no longer.</p>"
