"""Ratings while people give them: a SQLite file in which each rating is committed before the next pair is shown."""

from __future__ import annotations

import json
import secrets
import sqlite3
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.ratings import RATING_FIELDS, UNNAMED, rating_of, rating_record
from rewardlab.errors import ConfigError, DataError, OutputError
from rewardlab.types import Rating, Tie

SCHEMA = """
CREATE TABLE IF NOT EXISTS run (identity TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS raters (rater TEXT PRIMARY KEY, token TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS ratings (
    pair_id TEXT, visit INTEGER, rater TEXT, choice TEXT, shown TEXT, at TEXT, reason TEXT, UNIQUE (rater, pair_id, visit)
);
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

    def ratings(self, rater: str | None = None) -> list[tuple[str, int, Rating]]:
        """Return (pair_id, visit, rating) of all ratings, or of one rater's, in the order in which they were given."""
        where, values = ("", ()) if rater is None else (" WHERE rater = ?", (rater,))
        query = f"SELECT pair_id, visit, {', '.join(RATING_FIELDS)} FROM ratings{where} ORDER BY rowid"
        rows = self._execute(query, values)
        return [(row[0], row[1], rating_of(dict(zip(RATING_FIELDS, row[2:], strict=True)), str(self.path))) for row in rows]


@dataclass(frozen=True)
class RaterSummary:
    """One rater's counts: pairs, ties and skipped ones among them; repetitions without a skip, those with the same choice."""

    num_pairs: int
    num_ties: int
    num_skipped: int
    num_repeated: int
    num_same: int

    @staticmethod
    def of(ratings: Iterable[tuple[str, Rating]]) -> RaterSummary:
        """Return the summary of one rater's (pair_id, rating), in the order in which they were given."""
        by_pair: dict[str, list[int | Tie | None]] = {}
        for pair_id, rating in ratings:
            by_pair.setdefault(pair_id, []).append(rating.choice)
        firsts = [choices[0] for choices in by_pair.values()]
        repeated = [choices[:2] for choices in by_pair.values() if len(choices) > 1 and None not in choices[:2]]
        ties = sum(isinstance(choice, Tie) for choice in firsts)
        num_same = sum(first == second for first, second in repeated)
        return RaterSummary(len(firsts), ties, firsts.count(None), len(repeated), num_same)
