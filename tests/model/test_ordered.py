"""Ordered queues and their notes in every order in which things can happen."""

import pytest

from tests.model.ordered.removals import REMOVALS, Removal
from tests.model.ordered.table import SMALL, Row


@pytest.mark.parametrize("row", SMALL, ids=str)
def test_nothing_goes_wrong_with_an_ordered_queue(row: Row):
    result = row.check()
    assert result.complete
    assert result.found.keys() == row.found
    assert result.states == row.states


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda each: each.name)
def test_each_rule_of_an_ordered_queue_is_needed(removal: Removal):
    assert removal.shows <= removal.check().found.keys()
