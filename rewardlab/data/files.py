"""Text files that are whole or absent, whenever the process is killed."""

from __future__ import annotations

from pathlib import Path

from rewardlab.errors import OutputError


def write_whole(path: Path, text: str) -> None:
    """Write ``text`` to a temporary neighbour of ``path`` and move it into place. Raises OutputError."""
    partial = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        partial.write_text(text, encoding="utf-8")
        partial.replace(path)
    except OSError as error:
        raise OutputError(f"{path}: cannot be written ({error.strerror}); choose a writable --out") from error
