"""Serve pages, their updates, and actions over HTTP."""

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial
from inspect import isawaitable

from markupsafe import escape
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import (
    JSONResponse,
    PlainTextResponse,
    RedirectResponse,
    Response,
    StreamingResponse,
)
from starlette.routing import Route

from scheduler.app import Scheduler
from scheduler.brokers.contract import Broker
from scheduler.brokers.credentials import is_embedded
from scheduler.brokers.opening import broker_of
from scheduler.dashboard.access import (
    Access,
    Redact,
    local_access,
    refusal_of,
    visitor_of,
    without_actions,
)
from scheduler.dashboard.actions import ActionConfirmation, act, is_allowed
from scheduler.dashboard.data import PageData, failure
from scheduler.dashboard.forms import Form, Query
from scheduler.dashboard.pages import PAGE_OF_FORM, PAGES, Context, Page
from scheduler.dashboard.rendering import (
    HEADERS,
    Rendered,
    Visit,
    answer_asset,
    render,
    wants_data,
)
from scheduler.dashboard.site import Site
from scheduler.errors import BrokerError, SettingsError, UsageError
from scheduler.timing.moments import SystemClock

PACE_S = 1.0
STILL_S = 15.0
RECONNECT_MS = 2000
LONGEST_VISIT_S = 600.0  # then access is checked again
MOST_STREAMS = 30
"""The most live pages of one client; further ones ask again every `POLL_S`."""
POLL_S = 10.0
UNBUFFERED = {**HEADERS, "X-Accel-Buffering": "no"}  # nginx would buffer updates
GONE = "There is no such loop, task or parked message, or no longer."
NO_ACCESS = "You have no access to this dashboard. "
LOCAL_ONLY = (
    "Without access=, only this machine has access, directly and under its own name. Give "
    "scheduler.dashboard.dashboard(app, access=...) a function that returns visitors."
)


class Routes:
    def __init__(self, site: Site, *, refusal: str = "") -> None:
        self._site = site
        self._data = PageData(site)
        self._refusal = refusal
        self._seen: dict[tuple[object, ...], tuple[float, Rendered]] = {}
        self._cleaned_at = 0.0
        self._turn, self._streams = asyncio.Lock(), Counter[tuple[str, str]]()

    def app(self) -> Starlette:
        to_visitors = self._to_visitors
        routes = [
            Route("/static/{name}", answer_asset),
            Route("/live/{seen}/{path:path}", to_visitors(self._live)),
            Route("/do/{action}", to_visitors(self._do), methods=["POST"]),
            *(Route(page.path, to_visitors(partial(self._page, page))) for page in PAGES),
        ]
        nowhere = to_visitors(partial(self._failed, 404, "NotFound", "There is no such page."))

        async def lost(request: Request, _: Exception) -> Response:
            try:
                return await nowhere(request)
            except HTTPException as refusal:  # of access=; nothing handles it from here on
                headers = refusal.headers
                return PlainTextResponse(refusal.detail, refusal.status_code, headers=headers)

        return Starlette(routes=routes, lifespan=self._lifespan, exception_handlers={404: lost})

    @contextlib.asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncGenerator[None]:
        self._site.start()
        try:
            yield
        finally:
            await self._site.stop()

    def _to_visitors(
        self, answer: Callable[[Visit], Awaitable[Response]]
    ) -> Callable[[Request], Awaitable[Response]]:
        """Respond only to visitors with access."""

        async def answered(request: Request) -> Response:
            # Mounted in another application, it gets no start event.
            self._site.start()
            result = self._site.access(request)
            visitor = visitor_of(await result if isawaitable(result) else result)
            if visitor is None:
                return _refused(request, NO_ACCESS + self._refusal)
            if self._site.read_only:
                visitor = without_actions(visitor)
            self._site.view()
            return await answer(Visit(self._site, request, visitor))

        return answered

    async def _page(self, page: Page, visit: Visit) -> Response:
        self._site.view(page.path)
        query = Query(visit.request.query_params, visit.visitor)
        if done := query["done"]:
            await self._site.operations.find(done)  # another process may have done it
        try:
            if not wants_data(visit.request):
                if (rendered := await self._rendered(page, visit)) is not None:
                    live = f"/live/{rendered.digest}{page.path}" if not page.form else ""
                    return visit.whole(page.title, rendered.html, live)
            elif (context := await page.seen(self._site, query)) is not None:
                context |= {"operation": self._site.operations.get(done)} if done else {}
                return JSONResponse(self._data.plain(context), headers=HEADERS)
        except BrokerError as error:
            return await self._failed(503, type(error).__name__, str(error), visit)
        return await self._failed(404, "NotFound", GONE, visit)

    async def _failed(self, code: int, error: str, why: str, visit: Visit) -> Response:
        if wants_data(visit.request):
            return JSONResponse(failure(error, why), code, headers=HEADERS)
        title = "Not found" if code == 404 else "Try again"
        return visit.whole(title, f"<h1>{title}</h1><p>{escape(why)}</p>", code=code)

    async def _followed(self, page: Page, visit: Visit) -> Rendered | None:
        """Return a page whose updates follow; one that was rendered a moment ago will do.

        They are rendered one after the other, in half of the time at most. So a page that a visitor
        asks for waits for one of them, however many are open: these come less often.
        """
        key, time = _key(page, visit), asyncio.get_running_loop().time
        async with self._turn:
            began = time()
            at, rendered = self._seen.get(key, (0.0, None))
            if rendered is None or began - at >= PACE_S / 2:
                rendered = await self._rendered(page, visit)
            await asyncio.sleep(time() - began)
        return rendered

    async def _rendered(self, page: Page, visit: Visit) -> Rendered | None:
        now = asyncio.get_running_loop().time()
        query = Query(visit.request.query_params, visit.visitor)
        context = await page.seen(self._site, query)
        if context is None:
            return None
        rendered = render(page.template, visit.for_all(query) | context)
        self._seen[_key(page, visit)] = now, rendered
        if now - self._cleaned_at > STILL_S:
            self._cleaned_at = now
            self._seen = {k: v for k, v in self._seen.items() if now - v[0] < STILL_S}
        return rendered

    async def _live(self, visit: Visit) -> Response:
        path = f"/{visit.request.path_params['path']}"
        page = next((page for page in PAGES if page.path == path and not page.form), None)
        if page is None:
            return PlainTextResponse("There is no such page.", 404)
        news = self.news(page, visit)
        return StreamingResponse(news, media_type="text/event-stream", headers=UNBUFFERED)

    async def news(self, page: Page, visit: Visit) -> AsyncGenerator[str]:
        """Stream the updates of a page, as long as it is open; after too many others, once.

        After a reconnect, the browser sends the last version that it has seen.
        """
        request = visit.request
        seen: str | Rendered = request.headers.get("last-event-id") or request.path_params["seen"]
        now = said = began = asyncio.get_running_loop().time()
        client = visit.visitor.name, request.client.host if request.client else ""
        _, just_seen = self._seen.get(_key(page, visit), (0.0, None))
        has_too_many = self._streams[client] >= MOST_STREAMS
        self._streams[client] += 1
        try:
            yield f"retry: {POLL_S * 1000 if has_too_many else RECONNECT_MS:.0f}\n\n"
            if just_seen is not None and just_seen.digest == seen and not has_too_many:
                seen = just_seen  # so only its changed parts follow, and not at once
                await asyncio.sleep(PACE_S)
            while now - began < LONGEST_VISIT_S:
                self._site.view(page.path)
                rendered = await self._followed(page, visit)
                news = rendered and rendered.news(seen)
                seen = rendered or seen
                if rendered and news:
                    said = now
                    yield f"event: {news[0]}\nid: {rendered.digest}\ndata: {news[1]}\n\n"
                elif now - said >= STILL_S:
                    said = now
                    yield ": still here\n\n"
                if has_too_many:
                    return
                await asyncio.sleep(PACE_S)
                now = asyncio.get_running_loop().time()
        finally:
            self._streams -= Counter([client])  # keeps no client without any

    async def _do(self, visit: Visit) -> Response:
        request, visitor = visit.request, visit.visitor
        if (refusal := refusal_of(request.headers)) is not None:
            return _refused(request, f"{refusal} Nothing was done.")
        async with request.form(max_files=0) as fields:
            form = Form(request.path_params["action"], visitor, fields)
        if not is_allowed(self._site, form):
            return _refused(request, f"{visitor.name} may not do this here. Nothing was done.")
        try:
            result = await act(self._site, form)
        except (UsageError, BrokerError) as error:
            code = 400 if isinstance(error, UsageError) else 503
            return await self._not_done(visit, form, str(error), code)
        if isinstance(result, ActionConfirmation):
            if wants_data(visit.request):
                why = f"{result.title} {result.says} Confirm it with the field sure=yes."
                return JSONResponse(failure("NotConfirmed", why), 400, headers=HEADERS)
            context: Context = {"question": result, "form": form}
            return visit.answer("Are you sure?", "confirm.html", context)
        if not result.to:
            return await self._not_done(visit, form, result.operation.error, 409)
        return RedirectResponse(f"{visit.base}{result.to}", 303)

    async def _not_done(self, visit: Visit, form: Form, error: str, code: int) -> Response:
        """Report why; repeat the typed form."""
        if wants_data(visit.request):
            return JSONResponse(failure("NotDone", error), code, headers=HEADERS)
        page, context = PAGE_OF_FORM.get(form.action), None
        with contextlib.suppress(BrokerError):  # then the input is repeated without its page
            typed = Query(dict(form.kept), form.visitor)
            context = await page.seen(self._site, typed) if page is not None else None
        if page is None or context is None:
            return visit.answer("Not done", "refused.html", {"error": error, "form": form}, code)
        context |= {"error": error, "here": form.back()}
        return visit.answer(page.title, page.template, context, code)


def _key(page: Page, visit: Visit) -> tuple[object, ...]:
    """Return what a page depends on: visitors with the same rights see the same."""
    return page.path, visit.request.url.query, visit.base, visit.visitor.rights


def _refused(request: Request, message: str) -> Response:
    if wants_data(request):
        return JSONResponse(failure("AccessRefused", message), 403, headers=HEADERS)
    return PlainTextResponse(message, 403)


def build(
    app: Scheduler,
    *,
    access: Access | None,
    read_only: bool,
    connect: Callable[[], Broker] | None = None,
    redact: Redact | None = None,
) -> Starlette:
    if connect is None and is_embedded(app.settings):
        raise SettingsError(
            "memory:// lives within one process, which no other process can show: "
            "use `scheduler dev --dashboard`, or set SCHEDULER_BROKER_URL to a RabbitMQ."
        )
    connect = connect or partial(broker_of, app.settings, emit=app.events.emit, patient=True)
    site = Site(app, connect, SystemClock(), access or local_access, read_only, redact)
    return Routes(site, refusal="" if access else LOCAL_ONLY).app()
