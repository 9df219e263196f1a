"""Parquet of any maker: how many rows are in memory side by side goes by their size."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from rewardlab.data.parquet import BATCH_BYTES, BATCH_ROWS, parquet_batches

PEAK = """
import sys
from pathlib import Path
from rewardlab.data.row_files import rows_of

def mb(name):
    return next(int(line.split()[1]) // 1024 for line in open("/proc/self/status") if line.startswith(name))

path = Path(sys.argv[1])
next(rows_of(path.with_name("small.parquet")))
before = mb("VmHWM")
assert sum(1 for _ in rows_of(path)) == 240
print(mb("VmHWM") - before)
"""


def write(path: Path, sizes: list[int], **options: Any) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = [{"n": n, "images": [{"bytes": bytes([n % 251]) * size, "path": None}]} for n, size in enumerate(sizes)]
    pq.write_table(pa.Table.from_pylist(rows), path, compression="none", use_dictionary=False, **options)


@pytest.mark.slow
def test_large_rows_come_in_small_batches(tmp_path: Path) -> None:
    """All rows in their order; of two row groups each has its own number; a column without media is not read by theirs."""
    import pyarrow.parquet as pq

    write(tmp_path / "a.parquet", [2 << 20] * 40 + [10] * 300, row_group_size=40)
    with pq.ParquetFile(tmp_path / "a.parquet") as file:
        batches = list(parquet_batches(file))
        assert [row["n"] for batch in batches for row in batch.to_pylist()] == list(range(340))
        assert max(batch.nbytes for batch in batches) <= BATCH_BYTES
        assert [batch.num_rows for batch in batches][:2] == [31, 9]
        assert {batch.num_rows for batch in batches[2:]} == {40, 20}
        assert [batch.num_rows for batch in parquet_batches(file, ["n"])][:2] == [40, 40]
    write(tmp_path / "b.parquet", [10] * 600)
    with pq.ParquetFile(tmp_path / "b.parquet") as file:
        assert [batch.num_rows for batch in parquet_batches(file)] == [BATCH_ROWS, BATCH_ROWS, 600 - 2 * BATCH_ROWS]


@pytest.mark.slow
def test_memory_does_not_grow_with_a_row_group(tmp_path: Path) -> None:
    """480 MB in one row group, as other libraries write it: read at once they take three times as much."""
    write(tmp_path / "large.parquet", [2 << 20] * 240, write_batch_size=4)
    write(tmp_path / "small.parquet", [10])
    command = [sys.executable, "-c", PEAK, str(tmp_path / "large.parquet")]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert int(done.stdout) < 800
