"""Sources of every form give the same pairs: saved datasets, Arrow shards, a hub's dataset streamed over HTTP; a user's own ids
stay."""

from __future__ import annotations

import io
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasets import Dataset, DatasetDict, Features, Image, Value
from huggingface_hub import constants
from PIL import Image as PILImage
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.data.images import encode_png
from rewardlab.data.pairs import BadRow, read_pairs, validate_rows
from rewardlab.data.row_files import rows_of, saved_dataset_files
from rewardlab.data.sources import HubStream, open_source
from rewardlab.errors import ConfigError, DataError
from rewardlab.models.hub import reaches_hub
from tests.support.hub_server import HubServer, Repo
from tests.support.servers import running
from tests.support.shell import ROOT, TERMINAL

MAPPING = "name: mine\nid: key\nquestion: q\nimages: [picture]\nchosen: good\nrejected: bad\n"
FEATURES = Features(
    {"key": Value("int64"), "q": Value("string"), "picture": Image(), "good": Value("string"), "bad": Value("string")}
)


def rows(first: int, number: int) -> list[dict[str, Any]]:
    picture = encode_png(PILImage.new("RGB", (30, 20), (9, 40, 200)))
    return [
        {"key": n, "q": f"Which {n}?", "picture": {"bytes": picture, "path": None}, "good": f"yes {n}", "bad": f"no {n}"}
        for n in range(first, first + number)
    ]


def parquet(first: int, number: int, **more: Any) -> bytes:
    buffer, schema = io.BytesIO(), FEATURES.arrow_schema
    pq.write_table(pa.Table.from_pylist(rows(first, number), schema=schema), buffer, **more)
    return buffer.getvalue()


@pytest.fixture
def mapping(tmp_path: Path) -> Path:
    (tmp_path / "mapping.yaml").write_text(MAPPING)
    return tmp_path / "mapping.yaml"


def build(mapping: Path, source: object, out: Path, *more: str) -> Any:
    command = ["data", "build", str(mapping), "--from", str(source), "--against", "none", "--out", str(out), *more]
    return CliRunner().invoke(app, command)


def ids(folder: Path) -> list[str]:
    return sorted((pair.pair_id for pair in read_pairs(folder)), key=lambda name: (len(name), name))


@pytest.mark.parametrize("form", ["dataset", "splits", "shard", "arrow folder"])
def test_what_datasets_saved(form: str, mapping: Path, tmp_path: Path) -> None:
    """A dataset, a dictionary of splits, one shard, a folder of shards: each row once, under its own id, with its picture."""
    folder = tmp_path / "hf"
    if form == "splits":
        parts = {name: Dataset.from_list(rows(n, 3), features=FEATURES) for name, n in (("train", 0), ("test", 3))}
        DatasetDict(parts).save_to_disk(str(folder))
    else:
        Dataset.from_list(rows(0, 6), features=FEATURES).save_to_disk(str(folder), num_shards=1 if form == "shard" else 2)
        shutil.copy(next(folder.glob("*.arrow")), folder / "cache-1234.arrow")  # of `map`, which a saved dataset may hold
    if form == "arrow folder":
        (folder / "cache-1234.arrow").unlink()
        for listing in folder.glob("*.json"):
            listing.unlink()
    source = next(folder.glob("data-*.arrow")) if form == "shard" else folder
    done = build(mapping, source, tmp_path / "set")
    assert done.exit_code == 0, (done.output, done.exception)
    assert ids(tmp_path / "set") == ["0", "1", "2", "3", "4", "5"]
    assert all(pair.images == (rows(0, 1)[0]["picture"]["bytes"],) for pair in read_pairs(tmp_path / "set"))


def test_saved_datasets_that_are_not_whole(tmp_path: Path) -> None:
    """A missing shard is named; an Arrow file of the other kind is read; what is neither is said to be neither."""
    Dataset.from_list(rows(0, 2), features=FEATURES).save_to_disk(str(tmp_path / "hf"))
    with pytest.raises(DataError, match=r"'responses' must be a list.*`rewardlab data build MAPPING\.yaml --from FILE`"):
        read_pairs(tmp_path / "hf")
    next((tmp_path / "hf").glob("*.arrow")).unlink()
    with pytest.raises(DataError, match=r"lacks data-00000-of-00001\.arrow"):
        saved_dataset_files(tmp_path / "hf")
    table = pa.table({"a": list(range(200))})
    with pa.OSFile(str(tmp_path / "file.arrow"), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    assert [row["a"] for row in rows_of(tmp_path / "file.arrow")] == list(range(200))
    (tmp_path / "none.arrow").write_bytes(b"none of it")
    with pytest.raises(DataError, match="not a readable Arrow file"):
        list(rows_of(tmp_path / "none.arrow"))


def test_own_ids(mapping: Path, tmp_path: Path) -> None:
    """An id that comes twice is told apart and counted; a row without one is bad; without the key ids are by content."""
    data = tmp_path / "d.jsonl"
    lines = [{**row, "picture": None} for row in rows(0, 3)]
    lines[1]["key"], lines[2]["key"] = 0, None
    data.write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert build(mapping, data, tmp_path / "set").exit_code == 0
    assert ids(tmp_path / "set") == ["0", "0#2"]
    report = json.loads((tmp_path / "set" / "report.json").read_text())
    assert (report["repeated_ids"], report["bad"]) == (1, 1)
    mapping.write_text(MAPPING.replace("id: key\n", ""))
    assert build(mapping, data, tmp_path / "other").exit_code == 0
    assert all(name.startswith("mine-") for name in ids(tmp_path / "other"))
    mapping.write_text(MAPPING.replace("bad\n", "worse\n"))
    nothing = build(mapping, data, tmp_path / "none")
    assert "most frequent reason (2 ×): no 'worse' in the row" in str(nothing.exception)


def test_names_of_the_hub(tmp_path: Path) -> None:
    """Every part of the form, there and back; what is no name; which sources are fetched instead of streamed."""
    for text in ("hf:a/b", "hf:a/b@v1", "hf:a/b:c", "hf:a/b@v1:c:train", "hf:a/b::test"):
        assert str(HubStream.parse(text)) == text
    assert HubStream.parse("hf:a/b@v1:c:train") == HubStream("a/b", "v1", "c", "train")
    for wrong in ("hf:b", "hf:a/", "hf:a/b:c:d:e"):
        with pytest.raises(ConfigError, match=r"expected hf:OWNER/NAME"):
            HubStream.parse(wrong)
    assert open_source(str(tmp_path), ()) == tmp_path
    with pytest.raises(ConfigError, match="fetches all files"):
        open_source("hf:a/b:c", ("one.json",))


@pytest.fixture
def hub() -> Iterator[tuple[HubServer, dict[str, str]]]:
    """A hub with one dataset of two configs, the first of two splits; and the environment to see it."""
    hub = HubServer()
    card = (
        "---\nconfigs:\n- config_name: default\n  data_files:\n  - {split: train, path: a/train-*.parquet}\n"
        "  - {split: test, path: a/test.parquet}\n- config_name: small\n  data_files: b.parquet\n---\n"
    )
    files = {f"a/train-{n}.parquet": parquet(3 * n, 3) for n in range(2)}
    files |= {"a/test.parquet": parquet(6, 2), "b.parquet": parquet(100, 1), "README.md": card.encode()}
    hub.repos["datasets/me/pairs"] = Repo(private=False, files=files)
    with running(hub.app) as endpoint:
        yield hub, {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HUB_OFFLINE": "0"}


# The library reads the hub's address when it is imported: a process of its own, and one for all, as importing takes long.
BUILDS = """
import json, os, pathlib, sys
from rewardlab.cli import main
status = {}
for name, command in json.loads(sys.argv[1]).items():
    sys.argv[1:] = command
    try:
        status[name] = main()
    except SystemExit as end:
        status[name] = end.code
    if "download=true" not in command:
        print("nothing stored" if not list(pathlib.Path(os.environ["HF_HOME"]).rglob("*.parquet")) else "stored")
print(json.dumps(status))
"""


@pytest.mark.nightly
def test_a_hub_dataset_is_streamed(hub: tuple[HubServer, dict[str, str]], mapping: Path, tmp_path: Path) -> None:
    """Over HTTP: all splits, one split, another config; download=true gives the same; an unknown config is one sentence."""

    sources = {"all": ["hf:me/pairs"], "test": ["hf:me/pairs:default:test"], "small": ["hf:me/pairs:small"]}
    sources |= {"unknown": ["hf:me/pairs:nothing"], "files": ["hf:me/pairs", "download=true"]}
    commands = {
        name: ["data", "build", str(mapping), "--against", "none", "--out", str(tmp_path / name), "--from", *source]
        for name, source in sources.items()
    }
    env = {**os.environ, **TERMINAL, **hub[1], "HF_HOME": str(tmp_path / "hf")}
    done = subprocess.run(
        [sys.executable, "-c", BUILDS, json.dumps(commands)], capture_output=True, text=True, env=env, cwd=ROOT
    )
    assert json.loads(done.stdout.splitlines()[-1]) == {"all": 0, "test": 0, "small": 0, "unknown": 2, "files": 0}, done.stderr
    assert ("cannot be read" in done.stderr, "Traceback" in done.stderr) == (True, False)
    assert done.stdout.count("nothing stored") == 4
    assert ids(tmp_path / "all") == [str(n) for n in range(8)]
    assert json.loads((tmp_path / "all" / "report.json").read_text())["source"] == "hf:me/pairs"
    assert ids(tmp_path / "test") == ["6", "7"]
    assert ids(tmp_path / "small") == ["100"]
    assert ids(tmp_path / "files") == [*(str(n) for n in range(8)), "100"]


def test_the_cure_of_other_forms(tmp_path: Path) -> None:
    """Columns that no guess reads are made pairs by a mapping; the error names the command."""
    (tmp_path / "c.csv").write_text("prompt,good,bad\nWhat?,yes,no\n")
    (bad,) = validate_rows(tmp_path / "c.csv")
    assert isinstance(bad, BadRow)
    assert "rewardlab data build MAPPING.yaml --from FILE" in bad.reason
    (tmp_path / "p.jsonl").write_text(json.dumps({"prompt": "What?", "good": "yes", "bad": "no"}) + "\n")
    (bad,) = validate_rows(tmp_path / "p.jsonl")
    assert isinstance(bad, BadRow)
    assert "rewardlab data build MAPPING.yaml --from FILE" in bad.reason


def test_a_hub_that_cannot_be_reached_is_not_asked_again_and_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """One sentence within seconds, streamed or fetched, in place of half a minute of retries."""
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    reaches_hub.cache_clear()
    start_time = time.perf_counter()
    try:
        with pytest.raises(DataError, match=r"hf:me/none: .*cannot be reached; fetch its files"):
            list(HubStream.parse("hf:me/none").parts())
        with pytest.raises(DataError, match="hf:me/none: cannot be fetched"):
            HubStream.parse("hf:me/none").download()
    finally:
        reaches_hub.cache_clear()
    assert time.perf_counter() - start_time < 20
