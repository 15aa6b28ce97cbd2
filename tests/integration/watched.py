"""Asking a processor over HTTP, as a kubelet and a Prometheus do."""

import http.client
import json
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Answer:
    """What a page said; status 0: nobody answered."""

    status: int
    text: str = ""

    @property
    def json(self) -> Any:
        return json.loads(self.text)


def ask(port: int, path: str) -> Answer:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return Answer(answer.status, answer.read().decode())
    except OSError:
        return Answer(0)
    finally:
        connection.close()
