"""What commands print of messages that somebody else has made."""

import json
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from operator import itemgetter
from tempfile import TemporaryFile
from typing import Any

import pytest

from scheduler.brokers.tables import Opaque
from scheduler.cli.failed import Spool, row_of_parked
from scheduler.cli.printing import print_error, print_json, print_json_list, print_line, print_lines
from scheduler.cli.tables import Table
from scheduler.errors import SchedulerError
from scheduler.protocol.messages import Message
from scheduler.queues.failed import read_parked

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
    print_json([row_of_parked(parked)])
    (row,) = json.loads(capfdbinary.readouterr().out.decode())
    assert row["headers"]["caf\udce9"] == "caf\udce9"
    assert row["headers"]["amount"] == "9.99"
    assert row["headers"]["deep"] == {"list": ["2026-06-01T09:00:00Z", None]}
    assert (row["body_base64"], row["routing_key"]) == ("/w==", "task.\udce9")


def test_a_message_is_known_by_what_can_be_typed() -> None:
    assert read_parked(STRANGE, "failed", "").id == r"\x1b[31mm \udce9"


def test_a_line_has_no_bytes_that_steer_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    print_line("a \x1b[31m \udce9")
    assert capsys.readouterr().out == "a \\x1b[31m \\udce9\n"


def test_neither_json_nor_an_error_steers_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
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


LISTS: list[list[Any]] = [[], [1], [{"a": "x\ny\u2028z", "b": []}, {}, [[]]]]


@pytest.mark.parametrize("values", LISTS)
def test_a_list_looks_alike_if_it_is_printed_bit_by_bit(
    capsys: pytest.CaptureFixture[str], values: list[Any]
) -> None:
    print_json(values)
    whole = capsys.readouterr().out
    print_json_list(iter(values))
    assert capsys.readouterr().out == whole


def test_rows_that_waited_on_disk_are_printed_as_they_were(
    capsys: pytest.CaptureFixture[str],
) -> None:
    row = row_of_parked(read_parked(STRANGE, "failed", "task.\udce9"))
    print_json([row, row])
    whole = capsys.readouterr().out
    with TemporaryFile("w+", encoding="ascii") as file:
        rows = Spool(file)
        rows.add(row)
        rows.add(row)
        print_json_list(rows)
        assert len(rows) == 2
    assert capsys.readouterr().out == whole


def test_the_columns_of_a_table_are_as_wide_as_their_cells(
    capsys: pytest.CaptureFixture[str],
) -> None:
    rows = [["1", "a\nb", "end"], ["22", "漢字漢字", ""]]
    columns = {name: itemgetter(at) for at, name in enumerate(("ID", "NAME", "REST"))}
    print_lines(Table(columns, brief=tuple(columns)).shown(rows))
    assert capsys.readouterr().out.splitlines() == [
        "ID  NAME      REST",
        "1   a b       end",
        "22  漢字漢字",
    ]
