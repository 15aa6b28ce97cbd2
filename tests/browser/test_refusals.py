"""What is refused, in a real browser: what pages of others ask for, and what one may not do."""

import re
import threading
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from playwright.sync_api import Browser, Page, expect

from tests.browser.working import Ward

FORM = """<form method="post" action="{address}/do/pause"><input name="loop" value="chapel">
<button>You have won</button></form>"""
FETCH = """<script>
const body = new URLSearchParams({{loop: "chapel"}});
fetch("{address}/do/pause", {{method: "POST", mode: "no-cors", credentials: "include", body}})
  .then(() => "sent", String).then((said) => (document.title = said));
</script>"""
READING = """<script>
fetch("{address}/loops", {{credentials: "include"}})
  .then((answer) => answer.text(), String).then((said) => (document.title = said));
</script>"""
FOLLOWING = """<script>
const stream = new EventSource("{address}/live/x/loops", {{withCredentials: true}});
stream.addEventListener("page", (event) => (document.title = event.data));
stream.addEventListener("error", () => (document.title = "TypeError: not followed"));
</script>"""
FRAME = """<iframe src="{address}/loops" onload="document.title = 'loaded'"></iframe>"""


class Elsewhere:
    """A server of somebody else, whose pages say what a test wants.

    Attributes:
        port: it answers there under each name of this machine.
    """

    def __init__(self, port: int, pages: dict[str, str]) -> None:
        self.port = port
        self._pages = pages

    def open(self, page: Page, host: str, html: str) -> None:
        """Have somebody come to such a page, by this name of the server."""
        self._pages["/"] = html
        page.goto(f"http://{host}:{self.port}/")


@contextmanager
def serving_elsewhere() -> Generator[Elsewhere]:
    pages: dict[str, str] = {}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"<!doctype html><title></title>{pages.get(self.path, '')}".encode())

        def log_message(self, format: str, *args: object) -> None:
            """It says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield Elsewhere(server.server_address[1], pages)
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def elsewhere() -> Iterator[Elsewhere]:
    with serving_elsewhere() as server:
        yield server


@pytest.fixture
def victim(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context()
    context.set_default_timeout(15_000)
    yield context.new_page()
    context.close()


def filled(html: str, ward: Ward) -> str:
    """The page of somebody who knows our address."""
    return html.format(address=ward.address.rstrip("/"))


def has_been_left_alone(ward: Ward) -> bool:
    return [entry.what for entry in ward.history("chapel")] == ["seeded"]


# Another port is another origin of the same site; another name, another site.
HOSTS = ("127.0.0.1", "localhost")


@pytest.mark.parametrize("host", HOSTS)
def test_a_form_of_another_page_does_nothing(
    victim: Page, elsewhere: Elsewhere, ward: Ward, host: str
) -> None:
    elsewhere.open(victim, host, filled(FORM, ward))
    victim.get_by_role("button").click()
    expect(victim.locator("body")).to_contain_text("sent from the page of another site")
    assert has_been_left_alone(ward)


@pytest.mark.parametrize("host", HOSTS)
def test_a_script_of_another_page_does_nothing(
    victim: Page, elsewhere: Elsewhere, ward: Ward, host: str
) -> None:
    with victim.expect_request("**/do/pause") as sent:
        elsewhere.open(victim, host, filled(FETCH, ward))
    expect(victim).to_have_title(re.compile("sent|TypeError"))
    answer = sent.value.response()
    assert answer is None or answer.status == 403
    assert has_been_left_alone(ward)


@pytest.mark.parametrize("host", HOSTS)
@pytest.mark.parametrize("html", [READING, FOLLOWING], ids=["reading", "following"])
def test_another_page_reads_nothing(
    victim: Page, elsewhere: Elsewhere, ward: Ward, host: str, html: str
) -> None:
    elsewhere.open(victim, host, filled(html, ward))
    expect(victim).to_have_title(re.compile("^TypeError"))


@pytest.mark.parametrize("host", HOSTS)
def test_another_page_frames_nothing(
    victim: Page, elsewhere: Elsewhere, ward: Ward, host: str
) -> None:
    elsewhere.open(victim, host, filled(FRAME, ward))
    expect(victim).to_have_title("loaded")
    shown = victim.frames[1].locator("body").inner_text()  # the browser's own words
    assert "chapel" not in shown
    assert "refused to connect" in shown
