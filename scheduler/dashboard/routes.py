"""What is asked for over HTTP: pages, what is new of them, and actions."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from inspect import isawaitable
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import FormData
from starlette.requests import Request
from starlette.responses import (
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from scheduler.dashboard import assets
from scheduler.dashboard.access import Forms, Visitor, visitor_of
from scheduler.dashboard.actions import Actions
from scheduler.dashboard.asked import Asked, NotDone
from scheduler.dashboard.documents import HEADERS, Documents, base_of
from scheduler.dashboard.pages import PAGE_OF_FORM, PAGES, Context, Page
from scheduler.dashboard.questions import Questions
from scheduler.dashboard.rendering import Rendered
from scheduler.dashboard.site import Site

PACE_S = 1.0
STILL_S = 15.0
LONGEST_VISIT_S = 600.0  # then it is asked again who may look
NOBODY = "You may not look at this dashboard. "
LOCAL_ONLY = (
    "Without access=, only this machine may, directly and under its own name. Give "
    "scheduler.dashboard.dashboard(app, access=...) a function that says who may do what."
)


@dataclass(frozen=True, slots=True)
class Seen:
    """A page as it was rendered last, for all who look at the same.

    Attributes:
        picture: the version of what was known then.
        doings: that of what had been done.
    """

    at: float
    picture: int
    doings: int
    rendered: Rendered

    def holds(self, now: float, versions: tuple[int, int], *, is_followed: bool) -> bool:
        """Whether it is good enough for somebody else."""
        picture, doings = versions
        is_same = doings == self.doings and (is_followed or picture == self.picture)
        return is_same and now - self.at < PACE_S / 2


class Routes:
    """The pages and actions of a site.

    Args:
        refusal: what is said to nobody.
    """

    def __init__(self, site: Site, forms: Forms, *, refusal: str = "") -> None:
        self._site = site
        self._forms = forms
        self._documents = Documents(site, forms)
        self._actions = Actions(site)
        self._questions = Questions(site)
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
            self._site.view(page.path)
            rendered = self._rendered(page, request, visitor)
            if rendered is None:
                return self._documents.whole(request, visitor, "Not found", _gone(page), "", 404)
            live = f"/live/{rendered.digest}{page.path}" if page.is_live else ""
            return self._documents.whole(request, visitor, page.title, rendered.html, live)

        return answer

    async def _lost(self, request: Request, _: Exception) -> Response:
        visitor = await self._visitor(request)
        if visitor is None:
            return _nobody(self._refusal)
        return self._documents.whole(
            request, visitor, "Not found", "<h1>There is no such page</h1>", "", 404
        )

    def _rendered(
        self, page: Page, request: Request, visitor: Visitor, *, is_followed: bool = False
    ) -> Rendered | None:
        """The page, as it was rendered a moment ago if somebody has seen it then.

        Args:
            is_followed: whether what is new is seen anyway, a moment later.
        """
        site, now = self._site, asyncio.get_running_loop().time()
        versions = site.picture.version, site.doings.version
        key = (page.path, request.url.query, base_of(request), visitor.name)
        seen = self._seen.get(key)
        if seen is not None and seen.holds(now, versions, is_followed=is_followed):
            return seen.rendered
        query = dict(request.query_params)
        context = page.context(site, query)
        if context is None:
            return None
        common_to_all = self._documents.for_all(request, visitor, query)
        rendered = self._documents.renderer.parts(page.template, common_to_all | context)
        self._seen = {k: v for k, v in self._seen.items() if now - v.at < STILL_S}
        self._seen[key] = Seen(now, *versions, rendered)
        return rendered

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
            self._site.view(page.path)
            rendered = self._rendered(page, request, visitor, is_followed=True)
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
        action, base = request.path_params["action"], base_of(request)
        refusal = self._forms.refusal(request.headers, str(form.get("token", "")), visitor)
        if refusal is not None:
            return PlainTextResponse(f"{refusal} Nothing was done: load the page anew.", 403)
        asked = Asked(action, visitor, form)
        if not self._actions.are_allowed(asked):
            return PlainTextResponse(f"{visitor.name} may not do this here. Nothing was done.", 403)
        if asked.is_changing:
            return self._not_done(request, visitor, asked, "", 200)
        try:
            if (question := self._questions.about(asked)) is not None:
                told: Context = {"question": question, "asked": asked}
                told["can_change"] = action in PAGE_OF_FORM
                title = "Are you sure?"
                return self._documents.answer(request, visitor, title, "confirm.html", told)
            back = await self._actions.do(asked)
        except NotDone as error:
            return self._not_done(request, visitor, asked, f"{error} Nothing was done.", 400)
        return RedirectResponse(f"{base}{back}", 303)

    def _not_done(
        self, request: Request, visitor: Visitor, asked: Asked, error: str, code: int
    ) -> Response:
        """Say why; where somebody has written something, with the form as it was."""
        page = PAGE_OF_FORM.get(asked.action)
        fields = dict(asked.fields)
        context = page.context(self._site, fields) if page is not None else None
        if page is None or context is None:
            told = {"error": error, "asked": asked}
            return self._documents.answer(
                request, visitor, "Nothing was done", "refused.html", told, code
            )
        context["error"] = error
        return self._documents.answer(request, visitor, page.title, page.template, context, code)


def _nobody(refusal: str) -> Response:
    return PlainTextResponse(NOBODY + refusal, 403)


def _gone(page: Page) -> str:
    what = "message that was looked at" if page.path == "/failed/message" else "loop of this name"
    return f"<h1>Not found</h1><p>There is no {what}, or no longer.</p>"
