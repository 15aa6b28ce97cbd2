"""Code as text, laid out as ruff does it: so what is written needs no formatter."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast
from unicodedata import east_asian_width

WIDTH = 100
INDENT = " " * 4


@dataclass(frozen=True, slots=True)
class Raw:
    """Code that stands as it is."""

    text: str


@dataclass(frozen=True, slots=True)
class Call:
    """A call, or a signature: pairs of what stands before a value, such as `x=`, and the value."""

    function: str
    arguments: Sequence[tuple[str, Any]]


def laid_out(before: str, value: Any, after: str = "", *, indent: int = 0) -> list[str]:
    """A value between two texts, in as few lines as there is room for.

    Args:
        value: `Raw`, `Call`, or what has a literal.
        indent: how far it stands in, in levels.
    """
    margin = INDENT * indent
    line = f"{margin}{before}{_flat(value)}{after}"
    if width(line) <= WIDTH or not (parts := _parts(value, WIDTH - len(INDENT) * (indent + 1))):
        return [line]
    opening, inner, closing = parts
    lines = [f"{margin}{before}{opening}"]
    for head, each, tail in inner:
        lines += laid_out(head, each, tail, indent=indent + 1)
    return [*lines, f"{margin}{closing}{after}"]


def width(text: str) -> int:
    """How many columns a text takes."""
    return len(text) + sum(east_asian_width(char) in "WF" for char in text)


def quoted(text: str) -> str:
    """A text as a literal, in double quotes unless single ones need fewer escapes."""
    quote = "'" if text.count('"') > text.count("'") else '"'
    return quote + "".join(_escaped(char, quote) for char in text) + quote


def _escaped(char: str, quote: str) -> str:
    if char in (quote, "\\"):
        return f"\\{char}"
    return char if char.isprintable() else char.encode("unicode_escape").decode()


def _flat(value: Any) -> str:
    match value:
        case Raw(text):
            return text
        case Call(function, arguments):
            return f"{function}({', '.join(f'{head}{_flat(each)}' for head, each in arguments)})"
        case str():
            return quoted(value)
        case Mapping():
            pairs = cast("Mapping[Any, Any]", value).items()
            return f"{{{', '.join(f'{_flat(key)}: {_flat(each)}' for key, each in pairs)}}}"
        case list():
            return f"[{', '.join(map(_flat, cast('list[Any]', value)))}]"
        case tuple():
            items = cast("tuple[Any, ...]", value)
            return f"({', '.join(map(_flat, items))}{',' if len(items) == 1 else ''})"
        case _:
            return repr(value)


def _parts(value: Any, room: int) -> tuple[str, list[tuple[str, Any, str]], str] | None:
    """How it is written in several lines: its first, those within, its last."""
    match value:
        case Call(function, arguments) if arguments:
            return f"{function}(", [(head, each, ",") for head, each in arguments], ")"
        case str() if value:
            whole = width(quoted(value)) <= room
            pieces = [quoted(value)] if whole else _pieces(value)
            return "(", [("", Raw(piece), "") for piece in pieces], ")"
        case Mapping() if value:
            pairs = cast("Mapping[Any, Any]", value).items()
            return "{", [(f"{_flat(key)}: ", each, ",") for key, each in pairs], "}"
        case list() | tuple() if value:
            opening, closing = "[]" if isinstance(value, list) else "()"
            items = cast("Sequence[Any]", value)
            return opening, [("", each, ",") for each in items], closing
        case _:
            return None


def _pieces(text: str, length: int = 64) -> list[str]:
    """A long text in pieces, each ending with a space or the end of a line where there is one."""
    pieces: list[str] = []
    while len(text) > length:
        newline = text.find("\n", 0, length) + 1
        cut = newline or text.rfind(" ", 0, length) + 1 or length
        pieces.append(text[:cut])
        text = text[cut:]
    return [quoted(piece) for piece in (*pieces, text) if piece]
