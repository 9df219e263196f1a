"""Parquet files of any maker, a few rows at a time: as many as fit into some memory, however large their media."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

BATCH_ROWS, BATCH_BYTES = 256, 64 << 20  # that are in memory side by side, at most
BUFFER_BYTES = 1 << 20  # of a column that are read at once: without, all of it in a row group is


def parquet_batches(file: Any, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the record batches of an open ``pyarrow.parquet.ParquetFile``, of all columns or of these, with as many rows as the
    average row of their row group lets into :data:`BATCH_BYTES`, one at least."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [chunk for chunk in map(group.column, range(group.num_columns)) if _is_read(chunk, columns)]
        num_bytes = sum(chunk.total_uncompressed_size for chunk in chunks)
        size = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, num_bytes)))
        yield from file.iter_batches(batch_size=size, row_groups=[number], columns=columns, use_threads=False)


def _is_read(chunk: Any, columns: Sequence[str] | None) -> bool:
    return columns is None or chunk.path_in_schema in columns
