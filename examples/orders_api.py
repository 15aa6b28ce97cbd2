"""A small web shop to poll: it takes an order every half second, and can be told to fail.

python examples/orders_api.py --port 8085

GET  /orders?after=7    the orders after number 7, as JSON
POST /fail              answer 503 from now on
POST /heal              be well again
"""

import argparse
import json
import time
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SECONDS_PER_ORDER = 0.5
ITEMS = ("tea", "honey", "bread", "olives")


class Shop(BaseHTTPRequestHandler):
    opened = time.monotonic()
    failing = False

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        if url.path != "/orders":
            return self._answer(404, {"error": "there is only /orders"})
        if Shop.failing:
            return self._answer(503, {"error": "the shop was told to fail"})
        after = int(parse_qs(url.query).get("after", ["0"])[0])
        taken = int((time.monotonic() - Shop.opened) / SECONDS_PER_ORDER)
        return self._answer(200, [order(number) for number in range(after + 1, taken + 1)])

    def do_POST(self) -> None:
        if self.path not in ("/fail", "/heal"):
            return self._answer(404, {"error": "POST /fail or /heal"})
        Shop.failing = self.path == "/fail"
        return self._answer(200, {"failing": Shop.failing})

    def _answer(self, status: int, content: Any) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: Any) -> None:
        pass


def order(number: int) -> dict[str, Any]:
    return {"number": number, "item": ITEMS[number % len(ITEMS)]}


def main() -> None:
    options = argparse.ArgumentParser(description="A small web shop to poll.")
    options.add_argument("--port", type=int, default=8085)
    server = ThreadingHTTPServer(("127.0.0.1", options.parse_args().port), Shop)
    print(f"taking orders on http://127.0.0.1:{server.server_port}/orders", flush=True)
    with suppress(KeyboardInterrupt):
        server.serve_forever()


if __name__ == "__main__":
    main()
