"""Parquet files, written row by row and read in batches that fit in memory."""

from __future__ import annotations

import os
import weakref
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from rewardlab.data.files import lock_file
from rewardlab.errors import DataError, OutputError

if TYPE_CHECKING:
    import pyarrow as pa

GROUP_ROWS, GROUP_BYTES = 5000, 8 << 20  # limits of a row group, which is read whole for any row in it
BATCH_ROWS, BATCH_BYTES = 256, 64 << 20  # limits of a batch
BUFFER_BYTES = 1 << 20  # bytes of a column that are read at a time, instead of its whole row group


class TableFile:
    """A Parquet file to which rows are added; ``path`` is whole once this is closed, or absent. ``columns`` are a schema, or
    column names with pyarrow types or their names ("string", "int8"). ``group_rows`` rows are held in memory. As a context
    manager it is closed, or discarded after an error.

    Raises OutputError, also if another process is writing the file.
    """

    def __init__(
        self, path: Path, columns: pa.Schema | Mapping[str, str | pa.DataType], *, group_rows: int = GROUP_ROWS
    ) -> None:
        import pyarrow as pa
        import pyarrow.parquet as pq

        types = {} if isinstance(columns, pa.Schema) else columns
        of_types = pa.schema([(n, pa.type_for_alias(kind) if isinstance(kind, str) else kind) for n, kind in types.items()])
        self._schema = columns if isinstance(columns, pa.Schema) else of_types
        self._table, self._path, self._partial, self._group_rows = pa.Table, path, path.with_suffix(".partial"), group_rows
        self._rows: list[Mapping[str, Any]] = []
        self._bytes = self.num_rows = 0
        self._unlock = weakref.finalize(self, os.close, lock_file(self._partial, path))
        try:
            self._writer = pq.ParquetWriter(self._partial, self._schema)
        except OSError as error:
            raise unwritable(path, error) from error

    def add(self, row: Mapping[str, Any], num_bytes: int = 0) -> None:
        """Add a row with ``num_bytes`` of media."""
        self._rows.append(row)
        self._bytes, self.num_rows = self._bytes + num_bytes, self.num_rows + 1
        if len(self._rows) >= self._group_rows or self._bytes >= GROUP_BYTES:
            self._flush()

    def _flush(self) -> None:
        try:
            self._writer.write_table(self._table.from_pylist(self._rows, schema=self._schema))
        except OSError as error:
            raise unwritable(self._path, error) from error
        self._rows, self._bytes = [], 0

    def discard(self) -> None:
        """Remove everything written so far."""
        self._writer.close()
        self._partial.unlink(missing_ok=True)
        self._unlock()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if error is None:
            self.close()
        else:
            self.discard()

    def close(self, metadata: Mapping[bytes, bytes] | None = None) -> None:
        """Write the remaining rows and ``metadata``, and move the file into place."""
        if self._rows or not self.num_rows:
            self._flush()
        try:
            if metadata:
                self._writer.add_key_value_metadata(dict(metadata))
            self._writer.close()
            self._partial.replace(self._path)
        except OSError as error:
            raise unwritable(self._path, error) from error
        self._unlock()


def unwritable(path: Path, error: OSError) -> OutputError:
    return OutputError(f"{path}: cannot be written ({error}); choose a writable folder")


def unreadable_parquet(path: Path, error: Exception) -> DataError:
    """Return the error for a file that is damaged or of another kind, in one line."""
    return DataError(f"{path}: not a readable Parquet file ({' '.join(str(error).split())}); write or download it again")


def parquet_batches(file: Any, columns: Sequence[str] | None = None) -> Iterator[Any]:
    """Yield the record batches of an open ``pyarrow.parquet.ParquetFile``, with all columns or only ``columns``. A batch has
    at most :data:`BATCH_ROWS` rows and, by the average row of its row group, :data:`BATCH_BYTES`; at least one row."""
    for number in range(file.metadata.num_row_groups):
        group = file.metadata.row_group(number)
        chunks = [group.column(n) for n in range(group.num_columns)]
        num_bytes = sum(c.total_uncompressed_size for c in chunks if columns is None or c.path_in_schema in columns)
        size = max(1, min(BATCH_ROWS, BATCH_BYTES * group.num_rows // max(1, num_bytes)))
        yield from file.iter_batches(batch_size=size, row_groups=[number], columns=columns, use_threads=False)


def rows_of_parquet(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the rows of a file. Raise DataError for one that cannot be read."""
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path, pre_buffer=False, buffer_size=BUFFER_BYTES) as file:
            for batch in parquet_batches(file):
                yield from batch.to_pylist()
    except (OSError, ValueError) as error:
        raise unreadable_parquet(path, error) from error
