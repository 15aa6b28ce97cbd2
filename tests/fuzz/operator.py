"""What an operator does with what was parked, whatever it is: show it, send it back, delete it."""

import asyncio
import io
import json
from collections.abc import Sequence
from contextlib import redirect_stdout
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from scheduler.cli.printing import print_json
from scheduler.control.rows import whole_row_of_parked
from scheduler.queues.failed import EVERYTHING, ParkedMessage, Selection
from tests.acceptance.conftest import CommandLine
from tests.fuzz.field import Field
from tests.stage import program_of

ALL = "65535"
APP = "tests/fuzz/app.py:app"
ROOT = Path(__file__).parents[2]


class Complaint(Exception):
    """An operator was told what he should not be told."""


@dataclass
class Operator:
    """Uses what the commands are made of; and the commands."""

    field: Field

    def __post_init__(self) -> None:
        self._program = program_of(self.field.app, self.field.broker)

    async def parked(self) -> list[ParkedMessage]:
        return await self._program.failed.browse(self.field.app.tasks, limit=int(ALL))

    async def look(self, found: Sequence[ParkedMessage], sampled: Sequence[ParkedMessage]) -> None:
        """Print all that is parked, list it, show some of it, and tell the history."""
        with redirect_stdout(io.StringIO()) as out:
            print_json([whole_row_of_parked(each) for each in found])
        json.loads(out.getvalue(), parse_constant=_refuse)
        commands = [("failed", "list", APP, "--limit", ALL), ("history", APP, "--limit", ALL)]
        commands += [("failed", "show", APP, each.id) for each in sampled]
        for command in commands:
            await asyncio.to_thread(self._run, *command)
            printed = await asyncio.to_thread(self._run, *command, "--json")
            json.loads(printed, parse_constant=_refuse)
        for each in sampled:
            if each.id != _typed(each.id):
                raise Complaint(f"{each.id!r} cannot be typed")

    async def replay(self, sampled: Sequence[ParkedMessage]) -> None:
        """Send some of it back."""
        which = Selection(ids=frozenset(each.id for each in sampled))
        await self._program.failed.replay(self.field.app.tasks, which)

    async def purge(self) -> None:
        await self._program.failed.purge(self.field.app.tasks, EVERYTHING)

    def _run(self, *words: str) -> str:
        own = {"SCHEDULER_BROKER_URL": self.field.url, "NAMESPACE": self.field.app.namespace}
        done = CommandLine(ROOT, **own)(*words)
        if done.code or "Traceback" in done.err:
            raise Complaint(f"{words}: {done.code}, {done.err[-2000:]}")
        return done.out


def _typed(name: str) -> str:
    """An id as a terminal shows it, and as it can be typed."""
    return " ".join("".join(char if char.isprintable() else "?" for char in name).split())


def _refuse(constant: str) -> NoReturn:
    raise Complaint(f"{constant} is no JSON")
