"""Names of runs beside each other: as short as tells them apart."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


def short_names(folders: Sequence[str]) -> list[str]:
    """Return a name of each folder: its last part, and as much before it as tells the folders apart."""
    paths = [Path(folder).parts for folder in folders]
    for depth in range(1, max(map(len, paths), default=0) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return list(folders)
