"""Pages as they are answered: whole documents, under a strict policy."""

import secrets
from functools import partial
from urllib.parse import urlencode

from starlette.requests import Request
from starlette.responses import HTMLResponse, Response

from scheduler.dashboard import assets
from scheduler.dashboard.access import ACTIONS, Forms, Visitor
from scheduler.dashboard.pages import PAGES, Context, common
from scheduler.dashboard.rendering import Renderer
from scheduler.dashboard.site import Site

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


class Documents:
    """What the pages of a site are made of.

    Attributes:
        renderer: its templates.
    """

    def __init__(self, site: Site, forms: Forms) -> None:
        self.renderer = Renderer()
        self._site = site
        self._forms = forms

    def whole(
        self, request: Request, visitor: Visitor, title: str, html: str, live: str, code: int = 200
    ) -> Response:
        """A document with this inside.

        Args:
            live: where it is told what is new of it; empty: nowhere.
        """
        nonce, base = secrets.token_urlsafe(16), base_of(request)
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
            "may_act": any(self._site.can(visitor, action) for action in ACTIONS),
        }
        headers = {**HEADERS, "Content-Security-Policy": policy(nonce)}
        return HTMLResponse(self.renderer.page(context), code, headers)

    def answer(
        self,
        request: Request,
        visitor: Visitor,
        title: str,
        template: str,
        context: Context,
        code: int = 200,
    ) -> Response:
        """A page that answers a form."""
        whole = self.for_all(request, visitor, {}) | context
        html = self.renderer.parts(template, whole).html
        return self.whole(request, visitor, title, html, "", code)

    def for_all(self, request: Request, visitor: Visitor, query: dict[str, str]) -> Context:
        """What all pages are given."""
        site = self._site
        here = request.url.path.removeprefix(base_of(request)) or "/"
        if "seen" in request.path_params:
            here = f"/{request.path_params['path']}"
        kept = {name: value for name, value in query.items() if name != "done"}
        return common(site) | {
            "base": base_of(request),
            "now": site.clock.now(),
            "here": f"{here}?{urlencode(kept)}" if kept else here,
            "query": query,
            "token": self._forms.token(visitor),
            "can": partial(site.can, visitor),
            "doing": site.doings.get(query.get("done", "")),
        }


def base_of(request: Request) -> str:
    """Where the dashboard is mounted."""
    return str(request.scope.get("root_path", "")).rstrip("/")
