"""Set-ups that the tests of the teacher stage share."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from rewardlab.config import DistillConfig


def config_for(url: str, **changes: Any) -> DistillConfig:
    values = {"model": "demo-teacher", "base_url": url, "template": "plain", "deadline_s": 20.0, "concurrency": 16}
    return DistillConfig(**(values | changes))


def calls_of(journal: Path) -> list[dict[str, Any]]:
    """Read as anybody would, not by the journal's own code."""
    with closing(sqlite3.connect(f"file:{journal}?mode=ro", uri=True)) as db:
        db.row_factory = sqlite3.Row
        return [dict(row) for row in db.execute("SELECT * FROM calls")]
