"""Every request, answer and price of a distillation, in one SQLite file: its single source of truth.

Every request is written before it is sent and again when it is answered. The next run requests only what has no answer: what
was in flight at a kill, and what failed. Nothing is held in memory. The file can be read at any time, also while it grows::

    sqlite3 journal.sqlite "SELECT finish, COUNT(*), SUM(usd) FROM calls GROUP BY finish"
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from rewardlab.errors import ConfigError, DataError, OutputError
from rewardlab.types import Completion, FinishReason, Order

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (identity TEXT NOT NULL, id TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS calls (
    pair TEXT NOT NULL, attempt INTEGER NOT NULL, shown TEXT NOT NULL,
    asked INTEGER NOT NULL DEFAULT 0, failures INTEGER NOT NULL DEFAULT 0, error TEXT NOT NULL DEFAULT '',
    finish TEXT, text TEXT, tokens INTEGER, prompt_tokens INTEGER, cached_tokens INTEGER, usd REAL,
    wasted_tokens INTEGER NOT NULL DEFAULT 0, wasted_usd REAL NOT NULL DEFAULT 0,
    PRIMARY KEY (pair, attempt)
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS batches (
    name TEXT PRIMARY KEY, id TEXT, calls TEXT NOT NULL, status TEXT NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS fields_left_out (name TEXT PRIMARY KEY) WITHOUT ROWID;
"""
_NO_ROOM = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)


@dataclass(frozen=True)
class Answer:
    """A completion in the journal: attempt number (from 1), order of the responses, and the answer."""

    attempt: int
    order: Order
    text: str
    finish: FinishReason
    num_tokens: int
    num_prompt_tokens: int

    def completion(self) -> Completion:
        return Completion(self.text, self.finish, self.num_tokens, self.num_prompt_tokens)


@dataclass(frozen=True)
class Usage:
    """Number, tokens and price (US dollars) of all answers; the price includes billed failures."""

    answers: int
    prompt_tokens: int
    completion_tokens: int
    cached_tokens: int
    usd: float
    wasted_tokens: int

    @property
    def tokens(self) -> int:
        return self.prompt_tokens + self.completion_tokens + self.wasted_tokens


class Journal:
    """Open, or continue, the journal at ``path`` of the run that ``identity`` describes. One process writes at a time.

    Raises ConfigError if the file belongs to another run, DataError if it is no journal, OutputError if the path cannot be
    written or another process holds it.
    """

    def __init__(self, path: Path, identity: Mapping[str, object]) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(path.with_suffix(".lock"), os.O_RDWR | os.O_CREAT)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error.strerror}); choose a writable --out") from error
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self._db = sqlite3.connect(path, isolation_level=None)  # every statement is a transaction of its own
        except BlockingIOError as error:
            os.close(self._lock)
            raise OutputError(f"{path}: another process is writing it; wait for it or stop it") from error
        except sqlite3.OperationalError as error:
            os.close(self._lock)
            raise self._not_written(error) from error
        try:
            self._open(identity)
        except BaseException:
            self.close()
            raise

    def _open(self, identity: Mapping[str, object]) -> None:
        try:
            # What a killed process has written is in the file; only a power cut may take the last moments.
            self._db.execute("PRAGMA journal_mode=WAL")
            self._db.execute("PRAGMA synchronous=NORMAL")
            self._db.executescript(SCHEMA)
            self._identify(identity)
        except sqlite3.DatabaseError as error:
            # An OperationalError is of the disk, unless it is of the statement: then the tables are not ours.
            if isinstance(error, sqlite3.OperationalError) and error.sqlite_errorcode != sqlite3.SQLITE_ERROR:
                raise self._not_written(error) from error
            raise DataError(f"{self.path}: not a journal of a distillation ({error}); restore it or start over") from error

    def _identify(self, identity: Mapping[str, object]) -> None:
        row = self._db.execute("SELECT identity, id FROM run").fetchone()
        stored = json.loads(row[0]) if row else None
        self._run = row[1] if row else secrets.token_hex(8)  # tells batches of another run with the same settings apart
        if stored == identity:
            return
        if stored is not None and self._holds_something():
            names = sorted(k for k in {**identity, **stored} if identity.get(k) != stored.get(k))
            raise ConfigError(
                f"{self.path}: belongs to a run that differs in {', '.join(names)}; use another --out, or the same settings"
            )
        # Nothing there could be lost.
        self._db.executescript("DELETE FROM run; DELETE FROM calls; DELETE FROM batches; DELETE FROM fields_left_out")
        self._write("INSERT INTO run VALUES (?, ?)", (json.dumps(identity), self._run))

    def _holds_something(self) -> bool:
        """Return whether the journal has an answer, a billed failure, or a sent batch."""
        kept = "SELECT 1 FROM calls WHERE finish IS NOT NULL OR wasted_tokens > 0 OR wasted_usd > 0 LIMIT 1"
        away = "SELECT 1 FROM batches WHERE status IN ('new', 'sent') LIMIT 1"
        return any(self._db.execute(query).fetchone() for query in (kept, away))

    def _write(self, statement: str, values: Sequence[Any]) -> int:
        """Return how many rows the statement changed."""
        try:
            return self._db.execute(statement, values).rowcount
        except sqlite3.OperationalError as error:
            raise self._not_written(error) from error

    def _not_written(self, error: sqlite3.OperationalError) -> OutputError:
        """Return the error of a failure to write the file, with its cure."""
        cure = "make room" if error.sqlite_errorcode & 0xFF in _NO_ROOM else "see that it is a file that may be written"
        return OutputError(f"{self.path}: cannot be written ({error}); nothing is lost: {cure} and run the same command again")

    @contextmanager
    def transaction(self) -> Iterator[None]:
        """Write everything within the block, or nothing of it after an error or a kill."""
        self._write("BEGIN", ())
        try:
            yield
            self._write("COMMIT", ())
        except BaseException:
            if self._db.in_transaction:  # on a full disk SQLite has already rolled back
                self._db.execute("ROLLBACK")
            raise

    def record_request(self, pair: str, attempt: int, order: Order) -> None:
        """Record that the request of an attempt is about to be sent."""
        self._write(
            "INSERT INTO calls (pair, attempt, shown, asked) VALUES (?, ?, ?, 1) "
            "ON CONFLICT DO UPDATE SET asked = asked + 1, shown = excluded.shown",
            (pair, attempt, order.value),
        )

    def record_answer(self, pair: str, attempt: int, completion: Completion, usd: float) -> bool:
        """Record a completion and its price; return whether it is a new answer. A failure will be requested again; an attempt
        that has an answer keeps it."""
        c = completion
        if c.failed:
            self._write(
                "UPDATE calls SET failures = failures + 1, error = ?, wasted_tokens = wasted_tokens + ?, "
                "wasted_usd = wasted_usd + ? WHERE pair = ? AND attempt = ?",
                (c.error, c.num_tokens + c.num_prompt_tokens, usd, pair, attempt),
            )
            return False
        values = (c.finish.value, c.text, c.num_tokens, c.num_prompt_tokens, c.num_cached_tokens, usd, pair, attempt)
        new = self._write(
            "UPDATE calls SET finish = ?, text = ?, tokens = ?, prompt_tokens = ?, cached_tokens = ?, usd = ? "
            "WHERE pair = ? AND attempt = ? AND finish IS NULL",
            values,
        )
        return new > 0

    def answers(self, pair: str) -> list[Answer]:
        """Return the answers about a pair, by attempt."""
        rows = self._db.execute(
            "SELECT attempt, shown, text, finish, tokens, prompt_tokens FROM calls "
            "WHERE pair = ? AND finish IS NOT NULL ORDER BY attempt",
            (pair,),
        )
        return [_answer(row) for row in rows]

    def usage(self) -> Usage:
        row = self._db.execute(
            "SELECT COALESCE(SUM(finish IS NOT NULL), 0), COALESCE(SUM(prompt_tokens), 0), COALESCE(SUM(tokens), 0), "
            "COALESCE(SUM(cached_tokens), 0), COALESCE(SUM(usd), 0.0) + COALESCE(SUM(wasted_usd), 0.0), "
            "COALESCE(SUM(wasted_tokens), 0) FROM calls"
        ).fetchone()
        return Usage(*row)

    def longest_prompt(self) -> int:
        """Return the tokens of the longest prompt answered; 0 before any."""
        return int(self._db.execute("SELECT COALESCE(MAX(prompt_tokens), 0) FROM calls").fetchone()[0])

    def counts(self) -> dict[str, int]:
        """Count requests ``asked``, ``asked_again`` (in flight at a kill, or failed), ``failures``, and those ``open``."""
        row = self._db.execute(
            "SELECT COALESCE(SUM(asked), 0), COALESCE(SUM(asked - 1), 0), COALESCE(SUM(failures), 0), "
            "COALESCE(SUM(finish IS NULL), 0) FROM calls"
        ).fetchone()
        return dict(zip(("asked", "asked_again", "failures", "open"), row, strict=True))

    def errors(self) -> list[tuple[str, int]]:
        """Return the errors of failed requests and their counts, most frequent first."""
        return list(
            self._db.execute("SELECT error, COUNT(*) FROM calls WHERE failures > 0 GROUP BY error ORDER BY 2 DESC LIMIT 5")
        )

    def record_batch(self, calls: Sequence[tuple[str, int, Order]]) -> str:
        """Record, in one transaction, a batch about to be sent and the calls in it; return its name."""
        (num_batches,) = self._db.execute("SELECT COUNT(*) FROM batches").fetchone()
        name = f"{self._run}-{num_batches:06d}"
        batch_calls = json.dumps([[pair, attempt] for pair, attempt, _ in calls])
        with self.transaction():
            for pair, attempt, order in calls:
                self.record_request(pair, attempt, order)
            self._write("INSERT INTO batches VALUES (?, NULL, ?, 'new')", (name, batch_calls))
        return name

    def mark_batch(self, name: str, status: str, batch_id: str | None = None) -> None:
        """Record that a batch was sent (then with the provider's id), or what became of it."""
        self._write("UPDATE batches SET status = ?, id = COALESCE(?, id) WHERE name = ?", (status, batch_id, name))

    def open_batches(self) -> list[tuple[str, str | None, list[tuple[str, int]]]]:
        """Return the batches that are not collected: (name, the provider's id if known, calls)."""
        rows = self._db.execute("SELECT name, id, calls FROM batches WHERE status IN ('new', 'sent') ORDER BY name")
        return [(name, batch_id, [(pair, attempt) for pair, attempt in json.loads(calls)]) for name, batch_id, calls in rows]

    def record_left_out(self, fields: Iterable[str]) -> None:
        """Record fields that are left out of requests because the teacher refuses them."""
        for name in fields:
            self._write("INSERT INTO fields_left_out VALUES (?) ON CONFLICT DO NOTHING", (name,))

    def left_out(self) -> list[str]:
        """Return the names of all fields that were left out, in any part of the run."""
        return [name for (name,) in self._db.execute("SELECT name FROM fields_left_out ORDER BY name")]

    def close(self) -> None:
        self._db.close()
        os.close(self._lock)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _answer(row: Sequence[Any]) -> Answer:
    attempt, order, text, finish, tokens, prompt_tokens = row
    return Answer(attempt, Order(order), text, FinishReason(finish), tokens, prompt_tokens)
