"""Processors that are well, and not, as those see it who ask from outside."""

import asyncio
import subprocess
import sys

from tests.integration.conftest import Field
from tests.integration.watched import Watched, seeded


def live(port: int) -> subprocess.CompletedProcess[str]:
    """What an exec probe runs."""
    return subprocess.run(
        [sys.executable, "-m", "scheduler", "doctor", "--live", "--health-port", str(port)],
        capture_output=True,
        text=True,
        timeout=60,
    )


async def test_a_processor_whose_event_loop_is_blocked_does_not_live(field_: Field) -> None:
    field = await asyncio.to_thread(seeded, field_)
    watched = Watched(field)
    await watched.until_status("/readyz", 200)
    assert (await watched.asked("/livez")).json == {"live": True, "why": []}
    assert (await asyncio.to_thread(live, watched.port)).returncode == 0
    await asyncio.to_thread(field.call, "trigger", "block")
    blocked = await watched.until_status("/livez", 503)
    assert not blocked.json["live"]
    (why,) = blocked.json["why"]
    assert "apps/watched.py" in why
    assert "(block)" in why
    unready = await watched.asked("/readyz")
    assert (unready.status, unready.json["ready"]) == (503, False)
    assert "(block): nothing else runs" in watched.log  # for after it was killed
    probe = await asyncio.to_thread(live, watched.port)
    assert (probe.returncode, probe.stdout.count("(block)")) == (1, 1), probe.stderr
