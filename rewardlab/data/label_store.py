"""Ratings while people give them: a SQLite file in which each rating is committed before the next pair is shown."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardlab.data.ratings import RATING_FIELDS, UNNAMED, rating_of, rating_record
from rewardlab.errors import ConfigError, DataError, OutputError
from rewardlab.types import Rating

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (identity TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS raters (rater TEXT PRIMARY KEY, token TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ratings (
    pair_id TEXT, visit INTEGER, rater TEXT, choice TEXT, shown TEXT, at TEXT, reason TEXT, UNIQUE (rater, pair_id, visit)
);
"""
SUMMARY = """
SELECT count(*) AS num_pairs, sum(first.choice IN ('tie', 'both_bad')) AS num_ties, sum(first.choice = 'skip') AS num_skipped,
    count(second.choice) AS num_repeated, sum(second.choice = first.choice) AS num_same
FROM ratings AS first LEFT JOIN ratings AS second ON second.rater = first.rater AND second.pair_id = first.pair_id
    AND second.visit = 1 AND 'skip' NOT IN (first.choice, second.choice)
WHERE first.rater = ? AND first.visit = 0
"""


class LabelStore:
    """Ratings and raters' tokens at ``path``. A committed rating survives a crash and a power cut.

    ``visit`` is 0, or 1 for the rater's second rating of a pair. One thread at a time uses the store; other processes may read.
    Raise OutputError if the file cannot be written, DataError if it is of another kind.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            # Every statement is a transaction of its own.
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            path.chmod(0o600)  # for the tokens
            self._db.executescript(f"PRAGMA journal_mode=WAL; PRAGMA synchronous=FULL; {SCHEMA}")
        except (OSError, sqlite3.OperationalError) as error:
            raise OutputError(f"{path}: cannot be written ({error}); choose a writable --out") from error
        except sqlite3.DatabaseError as error:
            raise DataError(f"{path}: not a file of ratings ({error}); restore it, or choose another --out") from error

    def _execute(self, query: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        """Return what a statement selects. Raise DataError if the file is damaged, of another kind, or cannot grow."""
        try:
            return self._db.execute(query, values).fetchall()
        except sqlite3.DatabaseError as error:
            raise DataError(f"{self.path}: cannot be used ({error}); free disk space, or restore the file") from error

    def identify(self, identity: Mapping[str, object]) -> None:
        """Continue the ratings of the pairs that ``identity`` describes. Raise ConfigError if the stored ones are of others."""
        rows = self._execute("SELECT identity FROM run")
        stored = json.loads(rows[0][0]) if rows else identity
        if stored != identity and self._execute("SELECT 1 FROM ratings LIMIT 1"):
            names = ", ".join(name for name in identity if stored.get(name) != identity[name])
            raise ConfigError(f"{self.path}: has ratings of a run with other {names}; use the same {names}, or another --out")
        self._execute("UPDATE run SET identity = ?" if rows else "INSERT INTO run VALUES (?)", (json.dumps(identity),))

    def tokens(self, raters: Collection[str] = ()) -> dict[str, str]:
        """Return the token of each rater: of all earlier ones, and of ``raters``, who are added. Raise ConfigError for a name
        that no rater can have."""
        if wrong := [rater for rater in raters if not rater or rater != " ".join(rater.split()) or rater[0] == UNNAMED]:
            raise ConfigError(f"--rater {wrong[0]!r}: expected words with single spaces, not beginning with {UNNAMED}")
        for rater in raters:
            self._execute("INSERT OR IGNORE INTO raters VALUES (?, ?)", (rater, secrets.token_urlsafe(18)))
        return dict(self._execute("SELECT rater, token FROM raters ORDER BY rowid"))

    def add(self, pair_id: str, visit: int, rating: Rating) -> None:
        """Commit a rating. It replaces an earlier one of the same rater, pair and visit."""
        values = (pair_id, visit, *rating_record(rating).values())
        self._execute(
            f"INSERT INTO ratings (pair_id, visit, {', '.join(RATING_FIELDS)}) VALUES (?, ?, ?, ?, ?, ?, ?) ON CONFLICT DO "
            "UPDATE SET choice = excluded.choice, shown = excluded.shown, at = excluded.at, reason = excluded.reason",
            values,
        )

    def remove(self, pair_id: str, visit: int, rater: str) -> None:
        where = (pair_id, visit, rater)
        self._execute("DELETE FROM ratings WHERE pair_id = ? AND visit = ? AND rater = ?", where)

    def visits(self) -> list[tuple[str, int, str]]:
        """Return (pair_id, visit, rater) of all ratings, in the order in which they were given."""
        return self._execute("SELECT pair_id, visit, rater FROM ratings ORDER BY rowid")

    def ratings(self) -> list[tuple[str, int, Rating]]:
        """Return (pair_id, visit, rating) of all ratings, in the order in which they were given."""
        rows = self._execute(f"SELECT pair_id, visit, {', '.join(RATING_FIELDS)} FROM ratings ORDER BY rowid")
        return [(row[0], row[1], rating_of(dict(zip(RATING_FIELDS, row[2:], strict=True)), str(self.path))) for row in rows]

    def summary(self, rater: str) -> dict[str, int]:
        """Return a rater's counts: ``num_pairs``, ``num_ties`` and ``num_skipped`` among them; ``num_repeated``, repetitions
        without a skip, and ``num_same``, those with the same choice."""
        counts = self._db.execute(SUMMARY, (rater,))
        return {name: number or 0 for (name, *_), number in zip(counts.description, counts.fetchone(), strict=True)}
