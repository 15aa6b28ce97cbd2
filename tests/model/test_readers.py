"""All readers of the roster decide alike which entries count, wherever they began to read."""

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduler.protocol.epochs import Entry, LoopState, Verb, accepted, base_of, begun

ACTIVE, GONE = LoopState.ACTIVE, LoopState.GONE


def read(entries: Iterable[Entry], latest: Entry | None = None) -> list[Entry | None]:
    """The latest entry that counts after each one, for a reader that knows of one before."""
    known = [latest]
    for entry in entries:
        known.append(entry if accepted(entry, known[-1]) else known[-1])
    return known


@st.composite
def rosters(draw: st.DrawFn) -> list[Entry]:
    """What creators append that read the roster a while ago, by clocks that disagree."""
    entries: list[Entry] = []
    acts = st.tuples(st.sampled_from(Verb), st.integers(0, 3), st.integers(0, 12))
    for verb, ago, at_ms in draw(st.lists(acts, max_size=24)):
        latest = read(entries)[max(0, len(entries) - ago)]
        if beginning := begun(verb, latest, at_ms=at_ms):
            entries.append(beginning.entry)
    return entries


@given(rosters(), st.data())
def test_a_reader_of_a_snapshot_decides_as_one_that_has_read_all(
    entries: list[Entry], data: st.DataObject
):
    known = read(entries)
    at = data.draw(st.integers(0, len(entries)))
    assert read(entries[at:], latest=known[at]) == known[at:]


@given(rosters())
def test_of_creators_at_once_the_first_in_the_stream_wins(entries: list[Entry]):
    known = read(entries)
    counted = [after for before, after in zip(known, known[1:], strict=False) if after != before]
    latest = None
    for entry in counted:
        assert entry is not None
        assert latest is None or entry.epoch > latest.epoch
        assert latest is None or entry.base == base_of(latest)
        latest = entry


@given(rosters(), st.data())
def test_a_stream_that_begins_with_an_entry_that_counts_is_read_alike(
    entries: list[Entry], data: st.DataObject
):
    known = read(entries)
    counts = [at for at in range(len(entries)) if known[at + 1] != known[at]]
    if counts:
        at = data.draw(st.sampled_from(counts))
        assert read(entries[at:])[1:] == known[at + 1 :]


START, REMOVED = Entry(5, ACTIVE, 5), Entry(6, GONE, 5, base=5)
OVERTAKEN = Entry(9, ACTIVE, 9)  # a start by a clock that is fast, which came when it had begun


@pytest.mark.parametrize(
    ("again", "known"),
    [
        ([START, OVERTAKEN, REMOVED], [START, START, REMOVED]),
        ([OVERTAKEN, REMOVED], [OVERTAKEN, OVERTAKEN]),
    ],
)
def test_a_stream_must_not_begin_with_an_entry_that_does_not_count(
    again: list[Entry], known: list[Entry]
):
    assert read(again)[1:] == known


def test_what_a_snapshot_tells_of_must_not_be_read_again():
    snapshot = read([START, OVERTAKEN, REMOVED])[-1]
    assert snapshot == REMOVED
    assert read([OVERTAKEN, REMOVED], latest=snapshot)[-1] == OVERTAKEN
