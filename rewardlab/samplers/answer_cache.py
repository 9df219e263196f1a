"""Answers of endpoints kept over runs: what is asked again in the very same way, by the same seed, is not paid for again."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rewardlab.data.votes import completion_of, completion_row
from rewardlab.errors import DataError
from rewardlab.types import Completion, Message

LOG = logging.getLogger(__name__)
FILE = "answers.sqlite"
BUSY_S = 1.0  # how long another process may hold the file: a request on its way must not be late for it
_TABLE = "CREATE TABLE IF NOT EXISTS answers (key BLOB PRIMARY KEY, answer TEXT NOT NULL) WITHOUT ROWID"


def answer_key(endpoint: str, prompt: Sequence[Message], body: Mapping[str, Any]) -> bytes:
    """Return what an answer is kept under: the ``endpoint`` (address and model) and the seed of the draw, in one
    text, every text and image of the prompt, and every field of the request."""
    chat = [
        [message.role, [[part.text, part.image and hashlib.sha256(part.image).hexdigest()] for part in message.parts]]
        for message in prompt
    ]
    return hashlib.sha256(json.dumps([endpoint, chat, body], sort_keys=True).encode()).digest()


class AnswerCache:
    """The answers in a folder, which several runs on one machine may use at a time. One that failed, or has no text, is not
    kept. With an answer go the fields that the model was asked without.

    Raise DataError where the folder cannot be written, or its file is no cache.
    """

    def __init__(self, folder: Path) -> None:
        self._path, self._is_full = folder / FILE, False
        try:
            folder.mkdir(parents=True, exist_ok=True)
            # One thread uses it at a time: the loop that requests are sent from.
            self._file = sqlite3.connect(self._path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._file.execute("PRAGMA journal_mode=WAL")
            self._file.execute("PRAGMA synchronous=NORMAL")
            self._file.execute(_TABLE)
        except (OSError, sqlite3.Error) as error:
            raise self._damage(error) from error

    def find(self, key: bytes) -> tuple[Completion, frozenset[str]] | None:
        """Return an answer, and the fields that it was asked without; None where there is none."""
        try:
            row = self._file.execute("SELECT answer FROM answers WHERE key = ?", (key,)).fetchone()
            if row is None:
                return None
            answer = json.loads(row[0])
            return replace(completion_of(answer["completion"]), from_cache=True), frozenset(answer["left_out"])
        except (sqlite3.Error, KeyError, TypeError, ValueError) as error:
            raise self._damage(error) from error

    def keep(self, key: bytes, completion: Completion, left_out: frozenset[str]) -> None:
        """Keep an answer. Where it cannot be written, neither it nor a later one is kept, and that is logged."""
        if self._is_full or completion.failed or not completion.text.strip():
            return
        answer = json.dumps({"completion": completion_row(completion), "left_out": sorted(left_out)})
        try:
            self._file.execute("INSERT OR REPLACE INTO answers VALUES (?, ?)", (key, answer))
        except sqlite3.Error as error:
            LOG.warning("%s: answers are not kept from now on (%s)", self._path, error)
            self._is_full = True

    def _damage(self, error: Exception) -> DataError:
        return DataError(f"{self._path}: no cache of answers ({error}); name another folder, or delete this file")
