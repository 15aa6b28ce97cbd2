"""All readers of the roster decide alike which entries count, wherever they began to read."""

from collections.abc import Iterable
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from scheduler.protocol.epochs import Entry, LoopState, Verb, accepted, base_of, begun


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


@given(rosters())
def test_each_entry_that_counts_is_later_than_the_one_that_it_is_based_on(entries: list[Entry]):
    counted = [after for before, after in pairwise(read(entries)) if after != before]
    for before, entry in pairwise([None, *counted]):
        assert entry is not None
        assert before is None or (entry.epoch > before.epoch and entry.base == base_of(before))


@given(rosters())
def test_a_stream_that_begins_with_any_entry_that_counts_is_read_alike(entries: list[Entry]):
    known = read(entries)
    for at in range(len(entries)):
        if known[at + 1] != known[at]:
            assert read(entries[at:])[1:] == known[at + 1 :]


def test_a_stream_must_not_begin_with_an_entry_that_does_not_count():
    start, removed = Entry(5, LoopState.ACTIVE, 5), Entry(6, LoopState.GONE, 5, base=5)
    overtaken = Entry(9, LoopState.ACTIVE, 9)  # by a clock that is fast, when it had begun
    assert read([start, overtaken, removed])[1:] == [start, start, removed]
    assert read([overtaken, removed])[1:] == [overtaken, overtaken]
