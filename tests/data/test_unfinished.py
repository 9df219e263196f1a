"""A folder of shards is a set once all of them are there, whatever ended the command that wrote them."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from rewardlab.cli import main
from rewardlab.data.files import UNFINISHED
from rewardlab.data.pairs import read_pairs, write_shards
from rewardlab.errors import DataError, OutputError
from rewardlab.types import PreferencePair
from tests.support.shell import run_main

WRITER = """
import itertools, sys
from pathlib import Path
from rewardlab.data.pairs import write_shards
from rewardlab.types import PreferencePair

pairs = (PreferencePair(f"old-{n}", "q", ("a", "b"), 0) for n in itertools.count())
for shard in write_shards(pairs, Path(sys.argv[1]), rows_per_shard=2):
    print(shard, flush=True)
"""


def pairs(number: int) -> list[PreferencePair]:
    return [PreferencePair(f"p{n}", f"What is {n}?", ("yes", "no"), n % 2) for n in range(number)]


@pytest.mark.slow
def test_what_a_kill_leaves_is_no_set(tmp_path: Path) -> None:
    """Nobody else writes beside the one who writes; after the kill the same folder is written anew, without an old pair."""
    writer = subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path / "set")], stdout=subprocess.PIPE, text=True)
    assert writer.stdout is not None
    assert [writer.stdout.readline() for _ in range(3)][-1]
    with pytest.raises(OutputError, match="another process is writing in it"):
        list(write_shards(pairs(3), tmp_path / "set"))
    writer.send_signal(signal.SIGKILL)
    writer.communicate()
    for path in (tmp_path / "set", tmp_path):  # as one of several parts as well
        with pytest.raises(DataError, match=r"/set: is incomplete, because the command that writes it was interrupted"):
            read_pairs(path)
    assert len(list(write_shards(pairs(3), tmp_path / "set", rows_per_shard=2))) == 2
    assert [pair.pair_id for pair in read_pairs(tmp_path / "set")] == ["p0", "p1", "p2"]
    assert sorted(path.name for path in (tmp_path / "set").iterdir()) == ["part-00000.parquet", "part-00001.parquet"]
    with pytest.raises(OutputError, match=r"already has shards of a finished command \(part-00000.parquet\)"):
        list(write_shards(pairs(1), tmp_path / "set"))
    assert len(read_pairs(tmp_path / "set")) == 3


def test_who_takes_only_some_shards_leaves_no_set(tmp_path: Path) -> None:
    """A generator that is closed before its end, and one whose pairs break off."""
    shards = write_shards(pairs(6), tmp_path / "closed", rows_per_shard=2)
    next(shards)
    shards.close()  # type: ignore[attr-defined]
    with pytest.raises(ZeroDivisionError):
        list(write_shards((pair for n, pair in enumerate(pairs(6)) if 1 / (4 - n)), tmp_path / "broken", rows_per_shard=2))
    for name in ("closed", "broken"):
        assert list((tmp_path / name).glob("part-*.parquet"))
        with pytest.raises(DataError, match="is incomplete"):
            read_pairs(tmp_path / name)
        list(write_shards(pairs(1), tmp_path / name))
        assert len(read_pairs(tmp_path / name)) == 1


@pytest.mark.parametrize(("command", "parts"), [("convert", [""]), ("balance", [""]), ("split", ["train", "test"])])
def test_commands_that_break_off_begin_anew(command: str, parts: list[str], tmp_path: Path) -> None:
    """Nothing of the attempt that left its mark is read, and the same command writes all."""
    data, further = tmp_path / "p.jsonl", ["--share", "0.4"] if command == "split" else []
    words = ["data", command, data, "--out", tmp_path / "o", *further]
    rows = [{"question": f"Which {n}?", "responses": ["red", "blue"], "preferred": n % 2} for n in range(20)]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    for part in parts:
        (tmp_path / "o" / part).mkdir(parents=True, exist_ok=True)
        list(write_shards(pairs(2), tmp_path / "o" / part))
        (tmp_path / "o" / part / UNFINISHED).touch()
    done = run_main(main, *words)
    assert done.returncode == 0, done.stderr
    assert sum(len(read_pairs(tmp_path / "o" / part)) for part in parts) == 20
    assert not list((tmp_path / "o").rglob(UNFINISHED))
    assert "already has shards" in run_main(main, *words).stderr
