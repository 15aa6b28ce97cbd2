"""What a guide has its reader do, read from the page itself, in the order in which it stands there.

A code block whose first line is a comment with a path, such as `# shop/jobs.py`, is that file. A
console block is its commands, each with what it is expected to print, which is compared as
`tests/acceptance/snippets.py` does. Between them, what Markdown does not show: comments such as
`<!-- meanwhile: 40 s -->` and `<!-- meanwhile: until second 59 -->`, which let everything run for
so long, or to that second of a minute. All other blocks are for reading.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass

from tests.acceptance.snippets import Command, commands_of

BLOCK = re.compile(
    r"^<!-- meanwhile: (?:(?P<seconds>\d+) s|until second (?P<second>\d+)) -->$"
    r"|^(?P<fence>`{3,})(?P<language>\w*)\n(?P<text>.*?)^(?P=fence)$",
    re.MULTILINE | re.DOTALL,
)
FILE = re.compile(r"# ([\w./-]+\.\w+|crontab)\n")


@dataclass(frozen=True, slots=True)
class File:
    """A file of the reader's project."""

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class Typed:
    """A command that the reader types.

    Attributes:
        line: where on the page it is.
    """

    line: int
    command: Command


@dataclass(frozen=True, slots=True)
class Meanwhile:
    """Everything goes on for some seconds."""

    seconds: int


@dataclass(frozen=True, slots=True)
class Until:
    """Everything goes on to this second of a minute: so what follows falls into its end."""

    second: int


Step = File | Typed | Meanwhile | Until


def steps_of(page: str) -> Iterator[Step]:
    """The steps of a page."""
    for block in BLOCK.finditer(page):
        if block["seconds"]:
            yield Meanwhile(int(block["seconds"]))
        elif block["second"]:
            yield Until(int(block["second"]))
        elif block["language"] == "console":
            line = page.count("\n", 0, block.start()) + 1
            yield from (Typed(line, command) for command in commands_of(block["text"]))
        elif named := FILE.match(block["text"]):
            yield File(named[1], block["text"])
