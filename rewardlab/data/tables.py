"""A Parquet file of plain columns, written row by row."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from rewardlab.errors import OutputError

GROUP_ROWS = 5000


class TableFile:
    """``path`` is whole once this is closed, or absent. ``columns``: name -> type of pyarrow, or its name ("string", "int8").
    ``group_rows`` are held in memory to be written or read; ``metadata`` is the schema's.

    Raises OutputError.
    """

    def __init__(
        self,
        path: Path,
        columns: Mapping[str, str | pa.DataType],
        *,
        group_rows: int = GROUP_ROWS,
        metadata: Mapping[bytes, bytes] | None = None,
    ) -> None:
        types = {name: pa.type_for_alias(kind) if isinstance(kind, str) else kind for name, kind in columns.items()}
        self._schema = pa.schema(list(types.items()), metadata=dict(metadata) if metadata else None)
        self._path, self._partial, self._group_rows = path, path.with_suffix(".partial"), group_rows
        self._rows: list[Mapping[str, Any]] = []
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._partial, self._schema)
        except OSError as error:
            raise OutputError(f"{path}: cannot be written ({error}); choose a writable folder") from error

    def add(self, row: Mapping[str, Any]) -> None:
        self._rows.append(row)
        if len(self._rows) >= self._group_rows:
            self._flush()

    def _flush(self) -> None:
        try:
            self._writer.write_table(pa.Table.from_pylist(self._rows, schema=self._schema))
        except OSError as error:
            raise OutputError(f"{self._path}: cannot be written ({error}); choose a writable folder") from error
        self._rows = []

    def discard(self) -> None:
        """Leave nothing of what was written."""
        self._writer.close()
        self._partial.unlink(missing_ok=True)

    def close(self) -> None:
        self._flush()
        try:
            self._writer.close()
            self._partial.replace(self._path)
        except OSError as error:
            raise OutputError(f"{self._path}: cannot be written ({error}); choose a writable folder") from error
