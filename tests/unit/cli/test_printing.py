"""What commands print: lines, JSON, tables and moments, also of messages that others have made."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from zoneinfo import ZoneInfo

import pytest

from scheduler.brokers.properties import Opaque
from scheduler.cli.printing import print_error, print_json, print_line, print_lines, relative
from scheduler.cli.tables import Table, shortened
from scheduler.control.rows import whole_row_of_parked
from scheduler.errors import SchedulerError
from scheduler.protocol.messages import Message
from scheduler.queues.failed import read_parked
from scheduler.timing.moments import exact

NINE = datetime(2026, 6, 1, 9, 0, tzinfo=UTC)
STRANGE = Message(
    b"\xff",
    {
        "caf\udce9": "caf\udce9",
        "amount": Decimal("9.99"),
        "far": Opaque(b"T" + b"\xff" * 8),
        "bytes": b"\xff",
        "deep": {"list": [NINE, None]},
    },
    message_id="\x1b[31mm\n\udce9",
)


def test_json_of_any_message_can_be_read(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    parked = read_parked(STRANGE, "failed", "task.\udce9")
    assert parked.id == r"\x1b[31mm \udce9"  # which can be typed
    print_json([whole_row_of_parked(parked)])
    (row,) = json.loads(capfdbinary.readouterr().out.decode())
    assert row["headers"]["caf\udce9"] == "caf\udce9"
    assert row["headers"]["amount"] == "9.99"
    assert row["headers"]["deep"] == {"list": ["2026-06-01T09:00:00Z", None]}
    assert (row["body_base64"], row["routing_key"]) == ("/w==", "task.\udce9")


def test_nothing_that_is_printed_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("a \x1b[31m \udce9")
    assert capsys.readouterr().out == "a \\x1b[31m \\udce9\n"
    hostile = "a \x1b[31m \x9b2J \x7f \u202e \U000e0001"
    print_json({"name": hostile})
    out = capsys.readouterr().out
    assert json.loads(out) == {"name": hostile}
    assert out.replace("\n", "").isprintable()
    print_error(SchedulerError(hostile), as_json=False)
    assert capsys.readouterr().err.removesuffix("\n").isprintable()


def test_durations_are_in_seconds(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"took": timedelta(milliseconds=1500), "name": "grüße"})
    out = capsys.readouterr().out
    assert json.loads(out) == {"took": 1.5, "name": "grüße"}
    assert "grüße" in out


def test_the_columns_of_a_table_are_as_wide_as_their_cells(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [["1", "a\nb", "end"], ["22", "漢字漢字", ""]]
    columns = {name: itemgetter(at) for at, name in enumerate(("ID", "NAME", "REST"))}
    print_lines(Table(columns).shown(rows))
    assert capsys.readouterr().out.splitlines() == [
        "ID  NAME      REST",
        "1   a b       end",
        "22  漢字漢字",
    ]


# Tables

TABLE = Table[str](
    {
        "LOOP": str,
        "DUE": lambda _: "09:00",
        "TOOK": lambda _: "1 s",
        "NOTE": lambda _: "x" * 30,
    },
    brief=("LOOP", "NOTE"),
)


def shown(name: str, width: int) -> list[str]:
    return [line.plain for line in TABLE.lines([name], width)]


@pytest.mark.parametrize(
    ("width", "lines"),
    [
        (80, ["LOOP  DUE    TOOK  NOTE", f"beat  09:00  1 s   {'x' * 30}"]),
        (31, ["LOOP  DUE    TOOK  NOTE", f"beat  09:00  1 s   {'x' * 11}…"]),
        (30, ["LOOP  NOTE", f"beat  {'x' * 23}…"]),
        (9, ["LOOP  NOTE", "beat  xxx…"]),
    ],
)
def test_long_cells_are_shortened_and_only_notes_are_cut(width: int, lines: list[str]) -> None:
    assert shown("beat", width) == lines
    assert shown("n" * 100, width)[1].split()[0] == "n" * 100  # a name is never cut


@pytest.mark.parametrize(
    ("ids", "short"),
    [
        ([], []),
        (["abcdefghijk"], ["abcdefgh"]),
        (["abc"], ["abc"]),
        (["abcdefgh-1-x", "abcdefgh-2-x", "b" * 20], ["abcdefgh-1", "abcdefgh-2", "b" * 8]),
        (["abcdefgh-1", "abcdefgh-12", "abcdefgh"], ["abcdefgh-1", "abcdefgh-12", "abcdefgh"]),
        (["a" * 20, "a" * 20], ["a" * 8, "a" * 8]),
    ],
)
def test_ids_are_shortened_to_unique_prefixes(ids: list[str], short: list[str]) -> None:
    assert [shortened(ids)[each] for each in ids] == short


# Moments

NOW = datetime(2026, 6, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize(
    ("away", "told"),
    [
        ({"seconds": 12.7}, "in 12 s"),
        ({}, "0 s ago"),
        ({"seconds": 120}, "in 2 m"),
        ({"minutes": -119}, "119 m ago"),
        ({"hours": 13, "minutes": 31}, "in 13 h 31 m"),
        ({"hours": 24}, "in 24 h"),
        ({"hours": -99}, "99 h ago"),
        ({"hours": 100}, "in 4 d"),
    ],
)
def test_moments_are_shown_relative_to_now(away: dict[str, float], told: str) -> None:
    assert relative(NOW + timedelta(**away), NOW) == told


def test_a_moment_is_shown_with_its_offset() -> None:
    assert exact(NOW, ZoneInfo("Europe/Berlin")) == "2026-06-01 14:00:00+02:00"
    assert exact(NOW, UTC) == "2026-06-01 12:00:00+00:00"
    assert datetime.fromisoformat(exact(NOW)) == NOW
    assert (exact(None), relative(None, NOW)) == ("", "")  # what is not known is not told
