"""Store messages that could not be sent, until a process sends them."""

import os
import threading
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Protocol

from scheduler.brokers.properties import decoded, encoded
from scheduler.errors import RegistrationError
from scheduler.protocol.messages import Message
from scheduler.timing.durations import shown
from scheduler.timing.moments import milliseconds_since_epoch, moment_of

if TYPE_CHECKING:
    import sqlite3

SQLITE = "sqlite:///"
BUSY_TIMEOUT_S = 30.0
SCHEMA = """
CREATE TABLE IF NOT EXISTS unsent (
    namespace TEXT NOT NULL,
    message_id TEXT NOT NULL,
    exchange TEXT,
    key TEXT NOT NULL,
    properties BLOB NOT NULL,
    body BLOB NOT NULL,
    due_at_ms INTEGER NOT NULL,
    stored_at_ms INTEGER NOT NULL,
    claimed_until INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (namespace, message_id)
)
"""
COLUMNS = "exchange, key, properties, body, due_at_ms, stored_at_ms, message_id"
NOW = "CAST(strftime('%s', 'now') AS INTEGER)"


class MessageId(str):
    """Return the ID of a sent message.

    Attributes:
        stored: whether the message is unconfirmed, and in the fallback store.
    """

    stored: bool

    def __new__(cls, value: str, stored: bool = False) -> "MessageId":
        self = super().__new__(cls, value)
        self.stored = stored
        return self


@dataclass(frozen=True, slots=True)
class Unsent:
    """Describe a message that the broker has not confirmed.

    Attributes:
        exchange: where it is published; None: it is a call of a task.
        key: its routing key; for a call, the name of the task.
        message: with its ID.
        due_at: when a call is due.
        stored_at: when it was stored.
    """

    exchange: str | None
    key: str
    message: Message
    due_at: datetime
    stored_at: datetime

    @property
    def id(self) -> str:
        return self.message.message_id or ""

    @property
    def target(self) -> str:
        """Return the task, or the exchange and the routing key."""
        return self.key if self.exchange is None else f"{self.exchange}/{self.key}"


class UnsentStore(Protocol):
    """Store messages that could not be sent, for one app.

    Its methods may block; they are called in threads, and by several processes at once.
    """

    def keep(self, unsent: Unsent) -> None:
        """Store a message, durably; ignore an ID that is stored already."""
        ...

    def read(self, *, most: int | None = None, claim: timedelta | None = None) -> list[Unsent]:
        """Return messages, oldest first.

        Args:
            most: the maximum number; None: all.
            claim: return only messages that no process has claimed, and claim them for this long,
                in one transaction.
        """
        ...

    def remove(self, ids: Iterable[str]) -> None:
        """Delete messages that the broker has confirmed, or an operator discards."""
        ...


class SqliteStore:
    """Store messages in an SQLite file in WAL mode, which apps and processes of a machine may
    share.
    """

    def __init__(self, path: str, namespace: str) -> None:
        self._path = path
        self._namespace = namespace
        self._database: sqlite3.Connection | None = None
        self._inherited: list[sqlite3.Connection | None] = []
        self._forget()
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=self._forget)

    def __str__(self) -> str:
        return self._path

    def keep(self, unsent: Unsent) -> None:
        row = (
            unsent.exchange,
            unsent.key,
            encoded(unsent.message),
            unsent.message.body,
            milliseconds_since_epoch(unsent.due_at),
            milliseconds_since_epoch(unsent.stored_at),
            unsent.id,
            self._namespace,
        )
        with self._transaction() as database:
            database.execute(
                f"INSERT INTO unsent ({COLUMNS}, namespace) VALUES (?, ?, ?, ?, ?, ?, ?, ?) "
                "ON CONFLICT DO NOTHING",
                row,
            )

    def read(self, *, most: int | None = None, claim: timedelta | None = None) -> list[Unsent]:
        with self._transaction() as database:
            span = 0 if claim is None else int(claim.total_seconds())
            rows = database.execute(
                f"SELECT {COLUMNS} FROM unsent WHERE namespace = ? "
                # A claim that ends later was made before the clock was set back.
                f"AND claimed_until NOT BETWEEN {NOW} + 1 AND {NOW} + ? "
                "ORDER BY claimed_until, rowid LIMIT ?",
                (self._namespace, span, -1 if most is None else most),
            ).fetchall()
            if span:
                database.executemany(
                    f"UPDATE unsent SET claimed_until = {NOW} + ? "
                    "WHERE namespace = ? AND message_id = ?",
                    [(span, self._namespace, row[-1]) for row in rows],
                )
        return [_unsent(*row) for row in rows]

    def remove(self, ids: Iterable[str]) -> None:
        with self._transaction() as database:
            database.executemany(
                "DELETE FROM unsent WHERE namespace = ? AND message_id = ?",
                [(self._namespace, each) for each in ids],
            )

    @contextmanager
    def _transaction(self) -> "Generator[sqlite3.Connection]":
        with self._lock:
            if self._database is None:
                self._database = self._opened()
            database = self._database
            # Immediate: a transaction that writes later fails if another process wrote first.
            database.execute("BEGIN IMMEDIATE")
            with database:
                yield database

    def _opened(self) -> "sqlite3.Connection":
        import sqlite3  # few programs store messages

        database = sqlite3.connect(
            self._path, timeout=BUSY_TIMEOUT_S, isolation_level=None, check_same_thread=False
        )
        database.execute("PRAGMA journal_mode = WAL")
        database.execute("PRAGMA synchronous = FULL")
        database.execute(SCHEMA)
        return database

    def _forget(self) -> None:
        """Open the file again; a forked process must not even close its parent's."""
        self._lock = threading.Lock()
        self._inherited.append(self._database)
        self._database = None


def store_of(fallback: object, namespace: str) -> UnsentStore | None:
    """Return the store that `fallback=` names.

    Raises:
        RegistrationError: it names none.
    """
    if isinstance(fallback, str):
        path = fallback.removeprefix(SQLITE)
        if path and path != fallback:
            return SqliteStore(path, namespace)
    elif fallback is None or all(callable(getattr(fallback, each, None)) for each in METHODS):
        store: Any = fallback
        return store
    raise RegistrationError(
        f"fallback= is {SQLITE}PATH, or a store with the methods {', '.join(METHODS)}, "
        f"got {shown(fallback)}."
    )


METHODS = "keep", "read", "remove"


def _unsent(
    exchange: str | None,
    key: str,
    properties: bytes,
    body: bytes,
    due_at_ms: int,
    stored_at_ms: int,
    _: str,
) -> Unsent:
    message = decoded(properties, body)
    return Unsent(exchange, key, message, moment_of(due_at_ms), moment_of(stored_at_ms))
