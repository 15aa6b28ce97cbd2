"""Epochs, and ordered queues, in every order in which things can happen."""

from dataclasses import replace

import pytest

from scheduler.protocol.epochs import is_void
from tests.model.__main__ import ALL_REMOVALS, report, report_without
from tests.model.moves import Wrong
from tests.model.ordered import table as ordered
from tests.model.removals import REMOVALS
from tests.model.rows import Removal, Row
from tests.model.table import SMALL


@pytest.mark.parametrize("row", [*SMALL, *ordered.SMALL], ids=str)
def test_nothing_goes_wrong_but_where_a_node_fails(row: Row):
    assert report(row)


@pytest.mark.parametrize("removal", ALL_REMOVALS, ids=lambda each: each.what)
def test_each_rule_is_needed(removal: Removal):
    assert report_without(removal)


def test_a_difference_from_the_table_is_reported(capsys: pytest.CaptureFixture[str]):
    row = SMALL[0]
    assert report(row)
    assert not report(replace(row, states=row.states + 1))
    assert not report(replace(row, found={Wrong.OVERLAP}))
    removal = REMOVALS[0]
    assert report_without(removal)
    assert not report_without(replace(removal, instead={"is_void": is_void}))
    assert capsys.readouterr().out.count("NOT AS IN THE TABLE") == 3
