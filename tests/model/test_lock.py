"""The lock under which tokens are created, in every order in which it is asked for and freed."""

import pytest

from tests.model.lock.table import REMOVALS, SMALL, Removal, Row


@pytest.mark.parametrize("row", SMALL, ids=str)
def test_nothing_goes_wrong_with_the_lock(row: Row):
    result = row.check()
    assert result.complete
    assert result.found.keys() == row.found
    assert result.states == row.states


@pytest.mark.parametrize("removal", REMOVALS, ids=lambda each: each.name)
def test_each_rule_of_the_lock_is_needed(removal: Removal):
    assert removal.shows <= removal.check().found.keys()
