"""Tests of the examples, with the test kit: no broker, and no waiting.

    pytest examples/tests

The fixture `scheduler_kit` comes with the package. All it needs is a fixture `scheduler_app` that
returns your app; here there are several, so that each test module says which one it tests.
"""

from typing import Any

import pytest

from scheduler import Scheduler


@pytest.fixture
def scheduler_app(request: Any) -> Scheduler:
    return request.module.app
