"""The log of a long job: whole after kill -9, one writer, one run."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tracemalloc
from pathlib import Path

import pytest

from rewardlab.data.append_log import AppendLog
from rewardlab.data.files import read_lines, write_atomic
from rewardlab.errors import ConfigError, DataError, OutputError

WRITER = """
import sys
from pathlib import Path
from rewardlab.data.append_log import AppendLog
log = AppendLog(Path(sys.argv[1]), {"run": 1})
n = len(log.rows)
while True:
    log.append({"n": n, "text": "x" * 500})
    print(n, flush=True)
    n += 1
"""


@pytest.mark.slow
def test_rows_survive_kill_9(tmp_path: Path) -> None:
    """Three writers killed in full swing: every row that was reported written is there, in order, whole."""
    path, reported = tmp_path / "log.jsonl", -1
    for _ in range(3):
        writer = subprocess.Popen([sys.executable, "-c", WRITER, str(path)], stdout=subprocess.PIPE, text=True)
        assert writer.stdout is not None
        lines = [writer.stdout.readline() for _ in range(200)]
        writer.send_signal(signal.SIGKILL)
        rest = writer.communicate()[0].split()
        reported = max(reported, int(lines[-1]), *(int(n) for n in rest if n.isdigit()))
    with AppendLog(path, {"run": 1}) as log:
        assert [row["n"] for row in log.rows] == list(range(len(log.rows)))
        assert len(log.rows) > reported >= 599


def test_a_torn_line_is_cut_off(tmp_path: Path) -> None:
    """And the log goes on behind the last whole one."""
    path = tmp_path / "log.jsonl"
    with AppendLog(path, {"run": 1}) as log:
        log.append({"n": 0})
    path.write_text(path.read_text() + '{"n": 1, "te')
    with AppendLog(path, {"run": 1}) as log:
        assert log.rows == [{"n": 0}]
        log.append({"n": 1})
    assert [json.loads(line) for line in path.read_text().splitlines()][1:] == [{"n": 0}, {"n": 1}]


def test_another_run_is_refused(tmp_path: Path) -> None:
    """What differs is named, and the log is as it was."""
    path = tmp_path / "log.jsonl"
    AppendLog(path, {"seed": 2, "model": "n"}).close()
    with AppendLog(path, {"seed": 1, "model": "m"}) as log:  # a log without a row is nobody's
        log.append({"n": 1})
    before = path.read_bytes()
    with pytest.raises(ConfigError, match="differs in seed;"):
        AppendLog(path, {"seed": 2, "model": "m"})
    assert path.read_bytes() == before


def test_damage_inside_is_said(tmp_path: Path) -> None:
    """A line in the middle is never skipped."""
    path = tmp_path / "log.jsonl"
    AppendLog(path, {"run": 1}).close()
    path.write_text(path.read_text() + "garbage\n" + '{"n": 1}\n')
    with pytest.raises(DataError, match="line 2"):
        AppendLog(path, {"run": 1})


def test_one_writer(tmp_path: Path) -> None:
    """The second is told; a place that cannot be written is too."""
    with AppendLog(tmp_path / "log.jsonl", {"run": 1}), pytest.raises(OutputError, match="another process"):
        AppendLog(tmp_path / "log.jsonl", {"run": 1})
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="writable"):
        AppendLog(tmp_path / "file" / "log.jsonl", {"run": 1})


def test_any_text_can_be_logged(tmp_path: Path) -> None:
    """Line separators of Unicode, and halves of surrogate pairs, which UTF-8 cannot hold."""
    row = {"text": "a\u2028b\u0085c\ud83d d"}
    with AppendLog(tmp_path / "log", {"run": 1}) as log:
        log.append(row)
    assert len(read_lines(tmp_path / "log")) == 2
    with AppendLog(tmp_path / "log", {"run": 1}) as log:
        assert log.rows == [row]


def test_only_a_regular_file_is_replaced(tmp_path: Path) -> None:
    """A pipe, a folder, no name at all and a name with a null byte stay or fail in a sentence; nothing partial is left."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path, Path(), tmp_path / "a\0b"):
        with pytest.raises(OutputError):
            write_atomic(path, "text")
    assert (tmp_path / "pipe").is_fifo()
    assert [path.name for path in tmp_path.iterdir()] == ["pipe"]
    write_atomic(tmp_path / "new", "text")
    assert (tmp_path / "new").read_text() == "text"


def test_going_on_holds_the_log_once(tmp_path: Path) -> None:
    """Its rows, and besides them one line at a time."""
    path = tmp_path / "log.jsonl"
    row = json.dumps({"votes": [{"text": "x" * 1000}] * 8}) + "\n"
    path.write_text(json.dumps({"identity": {"run": 1}}) + "\n" + row * 1000 + '{"torn')
    tracemalloc.start()
    try:
        with AppendLog(path, {"run": 1}) as log:
            assert len(log.rows) == 1000
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1.5 * path.stat().st_size
    assert path.read_text().endswith(row)
