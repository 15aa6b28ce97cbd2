"""Snapshots of a stream: which of them one may begin with, and what came since."""

import json
from typing import Any

import pytest

from scheduler.errors import Undecodable
from scheduler.protocol.messages import Message
from scheduler.queues.snapshots import PAGE_LENGTH, Snapshots, new_beginning, pages

OTHER = Message(b"an entry")
MANY = [{"n": n} for n in range(2 * PAGE_LENGTH + 1)]


def heard(*messages: Message) -> tuple[Snapshots, list[Any]]:
    """What was heard of these messages, and the entries that they told."""
    snapshots, told = Snapshots(), list[Any]()
    for message in messages:
        told += snapshots.hear(message) or []
    return snapshots, told


@pytest.mark.parametrize("entries", [[], MANY[:1], MANY])
def test_a_snapshot_tells_all_its_entries_in_order(entries: list[Any]) -> None:
    beginning = new_beginning()
    snapshots, told = heard(beginning, *pages(beginning, entries))
    assert told == entries
    assert (snapshots.found, snapshots.since) == (True, 0)


def test_other_messages_are_counted_from_the_beginning_of_the_last_one() -> None:
    first, second = new_beginning(), new_beginning()
    read = [OTHER, first, OTHER, *pages(first, MANY), OTHER, OTHER]
    snapshots, _ = heard(*read)
    assert (snapshots.found, snapshots.since) == (True, 3)
    snapshots, _ = heard(*read, second, *pages(second, MANY), OTHER)
    assert snapshots.since == 1
    assert Snapshots().hear(OTHER) is None


def test_of_two_that_are_written_at_once_the_one_that_began_last_counts() -> None:
    first, second = new_beginning(), new_beginning()
    mixed = [first, OTHER, second, OTHER, *pages(second, MANY), *pages(first, MANY)]
    snapshots, _ = heard(*mixed)
    assert snapshots.since == 1


def test_one_without_its_beginning_or_a_page_is_none() -> None:
    beginning = new_beginning()
    whole = pages(beginning, MANY)
    assert len(whole) == 3
    for part in (whole, [beginning, *whole[1:]], [beginning, *whole[:-1]]):
        snapshots, _ = heard(OTHER, *part)
        assert not snapshots.found
        assert snapshots.since == 1


def test_the_last_part_of_a_stream_is_heard_first_then_earlier_ones() -> None:
    beginning = new_beginning()
    first, *rest = pages(beginning, MANY)
    snapshots, told = heard(OTHER, *rest, OTHER)
    assert (snapshots.found, snapshots.since) == (False, 2)
    snapshots.go_back()
    for message in (OTHER, OTHER, beginning, OTHER, first):
        told += snapshots.hear(message) or []
    assert (snapshots.found, snapshots.since) == (True, 3)
    snapshots.go_back()
    assert snapshots.hear(OTHER) is None
    assert (snapshots.found, snapshots.since) == (True, 3)
    assert len(told) == len(MANY)


@pytest.mark.parametrize(
    "body", [b"", b"[]", b'{"page": 0}', b'{"page": -1, "pages": 1, "entries": []}']
)
def test_what_only_claims_to_be_a_page_is_an_error(body: bytes) -> None:
    (page,) = pages(new_beginning(), [])
    assert json.loads(page.body) == {"page": 0, "pages": 1, "entries": []}
    with pytest.raises(Undecodable):
        heard(Message(body, type=page.type, correlation_id="x"))
