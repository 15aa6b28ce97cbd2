"""Requests from pages of other sites are refused, in a real browser."""

import re
import threading
from collections.abc import Callable, Iterator
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


OpenElsewhere = Callable[[Page, str, str], None]


@pytest.fixture
def open_elsewhere(ward: Ward) -> Iterator[OpenElsewhere]:
    """Open a page of another server, by one of its names, that knows our address."""
    pages = {"/": ""}

    class Answer(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", "text/html; charset=utf-8")
            self.end_headers()
            self.wfile.write(f"<!doctype html><title></title>{pages.get(self.path, '')}".encode())

        def log_message(self, format: str, *args: object) -> None: ...

    def open_page(page: Page, host: str, html: str) -> None:
        pages["/"] = html.format(address=ward.address.rstrip("/"))
        page.goto(f"http://{host}:{server.server_address[1]}/")

    with ThreadingHTTPServer(("127.0.0.1", 0), Answer) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield open_page
        finally:
            server.shutdown()
            thread.join()


@pytest.fixture
def victim(chromium: Browser) -> Iterator[Page]:
    context = chromium.new_context()
    context.set_default_timeout(15_000)
    yield context.new_page()
    context.close()


# Another port is another origin of the same site; another name, another site.
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_pages_of_other_origins_change_read_and_frame_nothing(
    victim: Page, open_elsewhere: OpenElsewhere, ward: Ward, host: str
) -> None:
    open_elsewhere(victim, host, FORM)
    victim.get_by_role("button").click()
    expect(victim.locator("body")).to_contain_text("sent from the page of another site")
    with victim.expect_request("**/do/pause") as sent:
        open_elsewhere(victim, host, FETCH)
    expect(victim).to_have_title(re.compile("sent|TypeError"))
    answer = sent.value.response()
    assert answer is None or answer.status == 403
    assert [entry.what for entry in ward.history("chapel")] == ["seeded"]
    for html in (READING, FOLLOWING):
        open_elsewhere(victim, host, html)
        expect(victim).to_have_title(re.compile("^TypeError"))
    open_elsewhere(victim, host, FRAME)
    expect(victim).to_have_title("loaded")
    shown = victim.frames[1].locator("body").inner_text()  # the browser's own words
    assert "chapel" not in shown
    assert "refused to connect" in shown
