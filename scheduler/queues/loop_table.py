"""Store the loops of a namespace as rows of a private SQLite database.

A million rows are some hundred bytes to a kilobyte each. SQLite keeps `CACHE_KB` of them in memory
and the rest in a temporary file that ends with the connection. Only what each run needs is all in
memory, as reading it from a disk costs more than the run: the loop's greatest epoch, in some 55
bytes with the number of its row.

The rows are in the order of the hash of their keys, so that a range of hashes is a share of the
loops. They are found by number: ordered by name themselves, a look would read two pages.

==================  ============================================================================
column              holds
==================  ============================================================================
``id``              its number: the hash of its key, and which of the loops of that hash it is
``task``, ``key``   which loop it is
``entry``           its entry in the roster, encoded
``state``           the state that it tells
``inherited``       whether only an earlier stream had it
``forget_ms``       when it may be forgotten; NULL: it is not gone, or is kept
``due_ms``          its token is not overdue before; NULL: it has none
``identity``        what a note on this entry shares with it
``rank``            how far ahead the checkpoint is
``note``            the checkpoint of the entry, encoded, or NULL
``put``             its last put, as supervision heard it
==================  ============================================================================

In memory, a row of ``epochs`` has the number of a loop, and ``known``: the greatest epoch of all
its entries.
"""

import sqlite3
from collections.abc import Callable, Collection, Generator, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple
from zlib import crc32

from scheduler.errors import NoSpace, Undecodable
from scheduler.protocol.epochs import LoopState
from scheduler.protocol.tokens import NO_KEYS, WHOLE, LoopId

CACHE_KB = 64_000
STEPS = 1_000
"""Ranges of hashes, one after the other, that all loops are read in."""

SETTINGS = f"PRAGMA journal_mode = OFF; PRAGMA cache_size = -{CACHE_KB};"
HASHES = 2**32
LOOPS_OF_A_HASH = 2**20
"""More than have keys of one hash: each task has at most one of a key."""

_STATES = ", ".join(f"'{state}'" for state in LoopState)
_CREATE = f"""
CREATE TABLE loops (
    id INTEGER PRIMARY KEY, task TEXT, key TEXT, entry TEXT, state TEXT, inherited INTEGER,
    forget_ms INTEGER, due_ms INTEGER, identity TEXT, rank TEXT, note TEXT, put TEXT,
    CHECK (state IN ({_STATES}))
);
CREATE INDEX forgettable ON loops (forget_ms) WHERE forget_ms IS NOT NULL;
ATTACH ':memory:' AS memory;
PRAGMA memory.journal_mode = OFF;
CREATE TABLE memory.epochs (
    hash INTEGER, task TEXT, key TEXT, known INTEGER, id INTEGER, PRIMARY KEY (hash, task, key),
    CHECK (typeof(known) = 'integer')
) WITHOUT ROWID;
CREATE TEMP TRIGGER forgotten AFTER DELETE ON loops BEGIN
    DELETE FROM epochs
    WHERE hash = old.id / {LOOPS_OF_A_HASH} AND task = old.task AND key = old.key;
END;
"""
# Filled at the first question, in steps: of a million loops it takes seconds, and only supervision
# asks.
_CREATE_DUE = """
CREATE TABLE IF NOT EXISTS due (due_ms INTEGER, id INTEGER, PRIMARY KEY (due_ms, id)) WITHOUT ROWID
"""
_ENTER_DUE = "INSERT OR IGNORE INTO due SELECT new.due_ms, new.id WHERE new.due_ms IS NOT NULL"
_LEAVE_DUE = "DELETE FROM due WHERE due_ms = old.due_ms AND id = old.id"
_FOLLOW_DUE = (
    f"CREATE TRIGGER IF NOT EXISTS begun AFTER INSERT ON loops BEGIN {_ENTER_DUE}; END",
    f"""CREATE TRIGGER IF NOT EXISTS changed AFTER UPDATE OF due_ms ON loops
        WHEN new.due_ms IS NOT old.due_ms BEGIN {_LEAVE_DUE}; {_ENTER_DUE}; END""",
    f"CREATE TRIGGER IF NOT EXISTS deleted AFTER DELETE ON loops BEGIN {_LEAVE_DUE}; END",
)
_COPY_DUE = """
INSERT OR IGNORE INTO due
SELECT due_ms, id FROM loops WHERE due_ms IS NOT NULL AND id >= ? AND id < ?
"""
_DUE = f"""
SELECT task, key FROM due
CROSS JOIN epochs ON hash = due.id / {LOOPS_OF_A_HASH} AND epochs.id = due.id
WHERE due_ms < ? AND ? IN (task, '')
"""
_COLUMNS = "entry", "state", "inherited", "forget_ms", "due_ms", "identity", "rank", "note"
_LINE = " || char(9) || ".join(
    ("hash", "epochs.task", "epochs.key", "entry", "known")
    + tuple(f"ifnull({column}, '')" for column in _COLUMNS[1:])
)
_SHARE = f"""
SELECT {_LINE} FROM epochs CROSS JOIN loops USING (id)
WHERE hash >= ? AND hash < ? AND NOT inherited
"""
_ENTER = f"""
INSERT INTO epochs VALUES (
    ?1, ?2, ?3, ?4,
    ifnull((SELECT max(id) + 1 FROM epochs WHERE hash = ?1), ?1 * {LOOPS_OF_A_HASH})
) ON CONFLICT DO UPDATE SET known = max(known, excluded.known)
"""
_WRITE = f"""
INSERT INTO loops (id, task, key, {", ".join(_COLUMNS)}) VALUES (
    (SELECT id FROM epochs WHERE hash = ?1 AND task = ?2 AND key = ?3),
    ?2, ?3, ?4, ?5, ?6, nullif(?7, ''), nullif(?8, ''), ?9, ?10, nullif(?11, '')
) ON CONFLICT DO UPDATE SET {", ".join(f"{each} = excluded.{each}" for each in _COLUMNS)}
"""
_THIS = "WHERE id = (SELECT id FROM epochs WHERE hash = ? AND task = ? AND key = ?)"
_ENTRY = f"""
SELECT CASE
    WHEN note IS NULL THEN entry
    ELSE substr(entry, 1, length(entry) - 1) || ',"checkpoint":' || note || '}}'
END FROM loops {_THIS}
"""
_NOTE = f"""
UPDATE loops SET note = ?, rank = ?,
    due_ms = CASE WHEN state = '{LoopState.ACTIVE}' AND key != '{WHOLE}' THEN nullif(?, '') END
{_THIS} AND identity = ? AND inherited = 0 AND (note IS NULL OR rank < ?)
"""
_KNOWN = "SELECT known FROM epochs WHERE hash = ? AND task = ? AND key = ?"
_KEEP = f"""
UPDATE loops SET put = ?, due_ms = CASE WHEN ({_KNOWN}) <= ? THEN ? ELSE due_ms END {_THIS}
"""


class Row(NamedTuple):
    """Hold a row: a loop, as its entry in the roster says.

    Attributes:
        entry: the entry, encoded, without its checkpoint.
        forget_ms: when it may be forgotten; None: it is not gone.
        due_ms: its token is not overdue before; None: it has none.
        identity: what a note on this entry shares with it.
        rank: how far ahead the checkpoint is.
        note: the checkpoint, encoded; empty: it has none.
    """

    loop: LoopId
    entry: str
    epoch: int
    state: str
    forget_ms: int | None = None
    due_ms: int | None = None
    identity: str = ""
    rank: str = ""
    note: str = ""


class LoopTable:
    """Store loops in a table.

    A write that finds no space damages earlier ones: the table has failed, and raises `NoSpace`
    until it begins again.

    Attributes:
        has_failed: whether it has.
        on_failure: called when it fails.
    """

    _has_due = False

    def __init__(self) -> None:
        self.has_failed = False
        self.on_failure: Callable[[], None] = lambda: None

    def begin_again(self) -> None:
        """Begin again, without rows."""
        self._database.close()
        del self._database
        self._has_due = self.has_failed = False

    @cached_property
    def _database(self) -> sqlite3.Connection:
        database = sqlite3.connect("", isolation_level=None, check_same_thread=False)
        # Never restored: so no journal, and no transaction ends.
        database.executescript(f"{SETTINGS} {_CREATE} BEGIN")
        return database

    def write(self, rows: Iterable[Row]) -> None:
        """Write rows, replacing older ones of the same loops."""
        self._enter(map(_values, rows))

    def load(self, lines: Iterable[bytes]) -> None:
        """Write rows from lines of `share`, in order; SQLite makes numbers of them.

        Raises:
            Undecodable: a line is unreadable; rows before it may have been written.
        """
        with _unreadable():
            self._enter(map(_columns_of, lines))

    def load_notes(self, lines: Iterable[bytes]) -> None:
        """Replace the checkpoints of entries by those in lines of `share` that are ahead.

        Raises:
            Undecodable: a line is unreadable; checkpoints before it may have been replaced.
        """
        with _unreadable():
            self._write(_NOTE, filter(None, map(_note_of, lines)))

    def note(self, loop: LoopId, identity: str, note: str, rank: str, due_ms: int) -> bool:
        """Replace the checkpoint of a loop's entry by one that is ahead, if it is of this entry.

        Args:
            due_ms: the loop's token is not overdue before, if it has one.

        Returns:
            Whether it was replaced.
        """
        values = note, rank, due_ms, *_key(loop), identity, rank
        return self._execute(_NOTE, values).rowcount > 0

    def entry(self, loop: LoopId) -> str | None:
        """Return the entry of a loop; None: there is none."""
        found = self._execute(_ENTRY, _key(loop)).fetchone()
        return None if found is None else found[0]

    def ranked_entry(self, loop: LoopId) -> tuple[str, str, str | None] | None:
        """Return the entry of a loop without its checkpoint, its identity, and the rank of its
        checkpoint, if it has one.

        None: there is no entry.
        """
        rank = "CASE WHEN note IS NOT NULL THEN rank END"
        query = f"SELECT entry, identity, {rank} FROM loops {_THIS}"
        return self._execute(query, _key(loop)).fetchone()

    def identity(self, loop: LoopId) -> str | None:
        """Return what a note on a loop's entry shares with it.

        None: there is no entry, or only an earlier stream had it.
        """
        return self._value("CASE inherited WHEN 0 THEN identity END", loop)

    def known(self, loop: LoopId) -> int | None:
        """Return the greatest epoch in the entries of a loop; None: there is none."""
        found = self._execute(_KNOWN, _key(loop)).fetchone()
        return None if found is None else found[0]

    def is_inherited(self, loop: LoopId) -> bool:
        """Return whether only an earlier stream had a loop."""
        return bool(self._value("inherited", loop))

    def inherited(self) -> list[LoopId]:
        """Return the loops that only an earlier stream had."""
        return self._loops("inherited")

    def inherit_all(self) -> None:
        """Mark all loops as inherited."""
        self._execute("UPDATE loops SET inherited = 1")

    def delete(self, loop: LoopId) -> None:
        """Delete the row of a loop."""
        self._execute(f"DELETE FROM loops {_THIS}", _key(loop))

    def clear(self) -> None:
        """Delete all rows."""
        self._execute("DELETE FROM loops")

    def gone_before(self, moment_ms: int, most: int = -1) -> list[LoopId]:
        """Return up to `most` loops that may be forgotten at a moment; -1: all."""
        return self._loops("forget_ms < ? LIMIT ?", moment_ms, most)

    def keep_gone(self, loop: LoopId) -> None:
        """Leave a loop out of those that may be forgotten."""
        self._execute(f"UPDATE loops SET forget_ms = NULL {_THIS}", _key(loop))

    def loops(self) -> list[LoopId]:
        return self._loops("1")

    def of_task(self, task: str, most: int) -> list[LoopId]:
        """Return some of the loops of a task that are not gone."""
        return self._loops(f"task = ? AND state != '{LoopState.GONE}' LIMIT ?", task, most)

    def of_key(self, key: str, most: int) -> list[LoopId]:
        """Return some of the loops with this key, of any task, that are not gone."""
        condition = "id >= ? AND id < ? AND key = ? AND key NOT IN (?, ?) AND state != ? LIMIT ?"
        first = _hash_of(key) * LOOPS_OF_A_HASH
        ids = first, first + LOOPS_OF_A_HASH
        return self._loops(condition, *ids, key, *NO_KEYS, LoopState.GONE, most)

    def others(self, tasks: Collection[str]) -> list[LoopId]:
        """Return the loops that are not gone, except the keyed ones of these tasks."""
        names = ", ".join("?" * len(tasks))
        condition = f"(task NOT IN ({names}) OR key = '') AND key != ? AND state != ?"
        return self._loops(condition, *tasks, WHOLE, LoopState.GONE)

    def keyed(
        self, tasks: Collection[str], key: str, state: LoopState | None, *, most: int
    ) -> list[LoopId]:
        """Return some of the keyed loops of tasks.

        Args:
            key: a pattern for their keys, with `*` and `?`.
            state: the state that their entries tell; None: any, unless they are gone.
        """
        condition, values = _of_keyed(tasks, key, state)
        return self._loops(f"{condition} LIMIT ?", *values, most)

    def count_keyed(self, tasks: Collection[str], key: str, state: LoopState | None = None) -> int:
        """Count all loops of which `keyed` returns some."""
        condition, values = _of_keyed(tasks, key, state)
        (found,) = self._execute(f"SELECT count(*) FROM loops WHERE {condition}", values)
        return found[0]

    def counts(self, number: int = 0, shares: int = 1) -> dict[tuple[str, LoopState], int]:
        """Return how many loops each task has in each state, pauses of whole tasks included.

        Args:
            number: of the share that is counted, from 0 on.
        """
        query = "SELECT task, state, count(*) FROM loops WHERE id >= ? AND id < ? GROUP BY 1, 2"
        found = self._execute(query, _ids_of(number, shares))
        return {(task, LoopState(state)): count for task, state, count in found}

    def share(self, number: int, shares: int) -> list[bytes]:
        """Return the rows of one share of the loops, except their puts, as lines: the columns,
        with tabs between them. Loops that only an earlier stream had are left out.

        Args:
            number: of the share, from 0 on; see `share_of`.
        """
        found = self._execute(_SHARE, _hashes_of(number, shares))
        return [line.encode() for (line,) in found]

    def index_due(self) -> Iterator[None]:
        """Prepare the first `overdue` in many steps, as it takes seconds of a million loops."""
        if self._has_due:
            return
        for statement in (_CREATE_DUE, *_FOLLOW_DUE):
            self._execute(statement)
        for number in range(STEPS):
            self._execute(_COPY_DUE, _ids_of(number, STEPS))
            yield
        self._has_due = True

    def overdue(
        self, before_ms: int, most: int, *, of_task: str = "", without: Collection[str] = ()
    ) -> list[LoopId]:
        """Return loops whose tokens may be overdue, the earliest due first.

        Args:
            of_task: only the loops of this task; empty: those of all.
            without: tasks whose loops are left out.
        """
        for _ in self.index_due():
            pass
        marks = ", ".join("?" * len(without))
        query = f"{_DUE} AND task NOT IN ({marks}) ORDER BY due_ms LIMIT ?"
        found = self._execute(query, (before_ms, of_task, *without, most))
        return [LoopId(*each) for each in found]

    def expect(self, loop: LoopId, due_ms: int | None) -> None:
        """Note when the token of a loop may become overdue; None: it has no token."""
        self._execute(f"UPDATE loops SET due_ms = ? {_THIS}", (due_ms, *_key(loop)))

    def put(self, loop: LoopId) -> str | None:
        """Return the stored last put of a loop; None: none was stored."""
        return self._value("put", loop)

    def keep(self, loop: LoopId, put: str, epoch: int, due_ms: int | None) -> None:
        """Store the last put of a loop, and in its latest epoch, when that may become overdue."""
        self._execute(_KEEP, (put, *_key(loop), epoch, due_ms, *_key(loop)))

    def drop_put(self, loop: LoopId) -> None:
        """Delete the last put of a loop."""
        self._execute(f"UPDATE loops SET put = NULL {_THIS}", _key(loop))

    def _enter(self, found: Iterable[tuple[object, ...]]) -> None:
        """Write rows, of the values of `_values`."""
        rows = list(found)
        self._write(_ENTER, (row[:3] + row[4:5] for row in rows))
        self._write(_WRITE, (row[:4] + row[5:] for row in rows))

    def _write(self, query: str, values: Iterable[Sequence[object]]) -> None:
        self._expect_space()
        try:
            self._database.executemany(query, values)
        except sqlite3.OperationalError as error:
            raise self._failure(error) from None

    def _execute(self, query: str, values: Sequence[object] = ()) -> sqlite3.Cursor:
        self._expect_space()
        try:
            return self._database.execute(query, values)
        except sqlite3.OperationalError as error:
            raise self._failure(error) from None

    def _expect_space(self) -> None:
        if self.has_failed:
            raise NoSpace("The temporary file of the loops had no space, and was not read again.")

    def _failure(self, error: sqlite3.OperationalError) -> NoSpace:
        self.has_failed = True
        self.on_failure()
        return _no_space(error)

    def _value(self, column: str, loop: LoopId) -> Any:
        query = f"SELECT {column} FROM loops {_THIS}"
        found = self._execute(query, _key(loop)).fetchone()
        return None if found is None else found[0]

    def _loops(self, condition: str, *values: object) -> list[LoopId]:
        query = f"SELECT task, key FROM loops WHERE {condition}"
        return [LoopId(*found) for found in self._execute(query, values)]


@contextmanager
def _unreadable() -> Generator[None]:
    try:
        yield
    except (sqlite3.Error, ValueError) as error:
        raise Undecodable(f"A line of the snapshot is unreadable: {error}.") from None


def _columns_of(line: bytes) -> tuple[str, ...]:
    return tuple(line.decode().split("\t"))


def _note_of(line: bytes) -> Sequence[str] | None:
    """Return the values of `_NOTE` from a line of `LoopTable.share`; None: it has no note."""
    hashed, task, key, *_, due_ms, identity, rank, note = _columns_of(line)
    return (note, rank, due_ms, hashed, task, key, identity, rank) if note else None


def _no_space(error: sqlite3.OperationalError) -> NoSpace:
    return NoSpace(
        f"The temporary file of the loops cannot be written: {error}. It takes about 1 kB for each "
        "loop; set TMPDIR to a directory that has the room."
    )


def _of_keyed(
    tasks: Collection[str], key: str, state: LoopState | None
) -> tuple[str, tuple[object, ...]]:
    names = ", ".join("?" * len(tasks))
    of_state = "state != ?" if state is None else "state = ?"
    values = (*tasks, key, *NO_KEYS, state or LoopState.GONE)
    return f"task IN ({names}) AND key GLOB ? AND key NOT IN (?, ?) AND {of_state}", values


def share_of(loop: LoopId, shares: int) -> int:
    """Return the share of a loop. A renamed loop stays in its share."""
    return _hash_of(loop.key) * shares // HASHES


@dataclass(frozen=True, slots=True)
class Scope:
    """Name the loops of some shares.

    Attributes:
        numbers: those of the shares.
        shares: how many there are.
    """

    numbers: frozenset[int]
    shares: int

    @classmethod
    def of(cls, loops: Iterable[LoopId], shares: int, *, extra: int) -> "Scope":
        """Return the shares of loops, of the pauses of whole tasks, and some extra ones."""
        looked_at = (*loops, LoopId("", WHOLE))
        numbers = {share_of(loop, shares) for loop in looked_at}
        return cls(frozenset(numbers | set(range(min(extra, shares)))), shares)

    def __contains__(self, loop: LoopId) -> bool:
        return share_of(loop, self.shares) in self.numbers

    @property
    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield the first and the last share of each row of successive ones."""
        first = 0
        for number in sorted(self.numbers):
            if number - 1 not in self.numbers:
                first = number
            if number + 1 not in self.numbers:
                yield first, number


def _ids_of(number: int, shares: int) -> tuple[int, int]:
    begin, end = _hashes_of(number, shares)
    return begin * LOOPS_OF_A_HASH, end * LOOPS_OF_A_HASH


def _hashes_of(number: int, shares: int) -> tuple[int, int]:
    """Return the first hash of a share of the loops, and that of the next share."""
    begin, end = (-(-each * HASHES // shares) for each in (number, number + 1))
    return begin, end


def _hash_of(key: str) -> int:
    return crc32(key.encode())


def _key(loop: LoopId) -> tuple[int, str, str]:
    return _hash_of(loop.key), loop.task, loop.key


def _values(row: Row) -> tuple[object, ...]:
    of_entry = row.entry, row.epoch, row.state, False, row.forget_ms, row.due_ms
    return *_key(row.loop), *of_entry, row.identity, row.rank, row.note
