"""The epochs in every order in which things can happen, as far as a minute goes."""

import pytest

from tests.model.checker import check
from tests.model.removals import REMOVALS, Removal
from tests.model.table import SMALL, Row


@pytest.mark.parametrize("row", SMALL, ids=str)
def test_nothing_goes_wrong_but_where_a_node_fails(row: Row):
    result = check(row.bounds, graph=row.graph)
    assert result.complete
    assert result.found.keys() == row.found
    assert result.states == row.states


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda each: each.name)
def test_each_rule_is_needed(removal: Removal):
    with removal.taken_out():
        result = check(removal.bounds, until=removal.shows)
    assert removal.shows <= result.found.keys()
