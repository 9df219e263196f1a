"""Fetching from a hub over real HTTP, hashes that are wrong, and checking files at hand."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from typer.testing import CliRunner

from rewardlab.benchmarks import rewardbench2
from rewardlab.benchmarks.base import BenchmarkFiles
from rewardlab.benchmarks.prepare import check_files, fetch_files
from rewardlab.benchmarks.registry import PACKAGED
from rewardlab.cli import app
from rewardlab.errors import ConfigError, DataError, OutputError
from tests.conftest import SHARED_DATA
from tests.support.images import png
from tests.support.servers import running

SHA = "0123abc"


class Hub:
    """The two routes of the Hugging Face Hub that are asked: what a dataset holds, and a file of it."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self.files, self.served, self.sha, self.no_hashes = files, [], SHA, False
        self.hashes = {name: hashlib.sha256(data).hexdigest() for name, data in files.items()}
        routes = [Route("/api/datasets/{repo:path}/revision/main", self.info), Route("/datasets/{path:path}", self.file)]
        self.app = Starlette(routes=routes)

    def info(self, request: Request) -> Response:
        large = {name: None if self.no_hashes else {"sha256": self.hashes[name]} for name in self.files}
        siblings = [{"rfilename": name, "lfs": large[name]} for name in self.files]
        return JSONResponse({"sha": self.sha, "siblings": [*siblings, {"rfilename": "README.md", "lfs": None}]})

    def file(self, request: Request) -> Response:
        name = request.path_params["path"].partition(f"/resolve/{self.sha}/")[2]
        self.served.append(name)
        return Response(self.files[name])


def shard(rows: list[dict[str, Any]], path: Path) -> bytes:
    pq.write_table(pa.Table.from_pylist(rows), path)
    return path.read_bytes()


def prompt(n: int) -> dict[str, Any]:
    return {"id": str(n), "prompt": f"Q{n}", "chosen": ["good"], "rejected": ["bad", "worse", "worst"], "subset": "Math"}


@pytest.fixture
def hub(tmp_path: Path) -> Iterator[tuple[Hub, str]]:
    parts = [shard([prompt(n) for n in range(start, start + 3)], tmp_path / "part.parquet") for start in (0, 3)]
    made = Hub({f"data/test-0000{n}.parquet": part for n, part in enumerate(parts)})
    with running(made.app) as url:
        yield made, url


def test_a_dataset_in_two_files(hub: tuple[Hub, str], tmp_path: Path) -> None:
    """All data files, none else, at one revision, each checked; a second fetch takes nothing again; the loader reads them."""
    made, url = hub
    record = fetch_files("rewardbench2", tmp_path / "out", hub=url)
    assert record.revision == SHA
    assert record.files == made.hashes
    assert json.loads((tmp_path / "out" / "prepared.json").read_text()) == asdict(record)
    fetch_files("rewardbench2", tmp_path / "out", hub=url)
    assert sorted(made.served) == sorted(made.files)
    told, good = check_files("rewardbench2", tmp_path / "out")
    assert not good  # six prompts are no RewardBench 2
    assert "there are 6 prompts, the published benchmark has 1,865" in told
    assert "18 pairs: Math 18" in told
    assert sum("as fetched" in line for line in told) == 2
    (tmp_path / "out" / "data" / "test-00001.parquet").write_bytes(made.files["data/test-00000.parquet"])
    told, good = check_files("rewardbench2", tmp_path / "out")
    assert not good
    assert any("test-00001.parquet" in line and "not the same file" in line for line in told)


def test_data_files_of_another_kind(tmp_path: Path) -> None:
    """A CSV, and Arrow files without a listing, are fetched and counted; other files of the dataset are not."""
    label = "path_A,path_B,prompt,Overall\n1.mp4,2.mp4,a ball,A\n1.mp4,2.mp4,a ball,same\n"
    image = {"bytes": png(), "path": None}
    edit = {"key": ["a", "b"], "instruction": "i", "input_image": image, "output_images": [image, image]}
    table = pa.Table.from_pylist([edit | {"task_type": "compose", "dimension": "overall"}])
    with pa.OSFile(str(tmp_path / "part.arrow"), "wb") as sink, pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    arrow = (tmp_path / "part.arrow").read_bytes()
    files = {"videogen-rewardbench.csv": label.encode(), "videos.zip": b"", "data-00000-of-00001.arrow": arrow}
    made = Hub(files)
    with running(made.app) as url:
        for name, kind, line in (
            ("videogen_rewardbench", "csv", "2 pairs"),
            ("editscore_bench", "arrow", "1 pairs: overall 1"),
        ):
            record = fetch_files(name, tmp_path / name, hub=url)
            assert [file.rpartition(".")[2] for file in record.files] == [kind]
            assert any(line in sentence for sentence in check_files(name, tmp_path / name)[0])


def test_another_revision_is_fetched_anew(hub: tuple[Hub, str], tmp_path: Path) -> None:
    """Where the hub names no hashes too: what an older revision left, or someone changed, is not taken for the new one."""
    made, url = hub
    made.no_hashes = True
    fetch_files("rewardbench2", tmp_path / "out", hub=url)
    fetch_files("rewardbench2", tmp_path / "out", hub=url)
    assert len(made.served) == 2
    name = "data/test-00000.parquet"
    (tmp_path / "out" / name).write_bytes(b"changed")
    fetch_files("rewardbench2", tmp_path / "out", hub=url)
    assert (tmp_path / "out" / name).read_bytes() == made.files[name]
    made.sha, made.files[name] = "456def", made.files["data/test-00001.parquet"]
    assert fetch_files("rewardbench2", tmp_path / "out", hub=url).revision == "456def"
    assert (tmp_path / "out" / name).read_bytes() == made.files[name]


@pytest.mark.parametrize("name", ["../../evil.jsonl", "/evil.jsonl"])
def test_a_name_that_leads_out_of_the_folder(name: str, tmp_path: Path) -> None:
    """Is refused; nothing is written."""
    made = Hub({name: b"{}"})
    with running(made.app) as url, pytest.raises(DataError, match="would be written outside"):
        fetch_files("rewardbench2", tmp_path / "a" / "b", hub=url)
    assert not list(tmp_path.rglob("*.jsonl"))


def test_an_answer_that_is_no_json(tmp_path: Path) -> None:
    """A captive portal's page, say; and a file where the folder should be."""
    portal = Starlette(routes=[Route("/{path:path}", lambda request: Response("<html>log in</html>"))])
    with running(portal) as url, pytest.raises(DataError, match="could not be fetched"):
        fetch_files("rewardbench2", tmp_path / "out", hub=url)
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="is a file"):
        fetch_files("rewardbench2", tmp_path / "file", hub="http://127.0.0.1:9")


def test_a_damaged_file_is_not_kept(hub: tuple[Hub, str], tmp_path: Path) -> None:
    """The hash that the hub names is not that of what came: nothing stays, not even half of it."""
    made, url = hub
    made.hashes["data/test-00001.parquet"] = "0" * 64
    with pytest.raises(DataError, match="expected 0000"):
        fetch_files("rewardbench2", tmp_path / "out", hub=url)
    assert [path.name for path in (tmp_path / "out").rglob("*") if path.is_file()] == ["test-00000.parquet"]


def test_single_files(hub: tuple[Hub, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are found by their URLs, compared with the hash that is known here."""
    made, url = hub
    name, data = next(iter(made.files.items()))
    address = f"{url}/datasets/x/resolve/{SHA}/{name}"
    source = BenchmarkFiles(urls={"a.parquet": address}, sha256={"a.parquet": hashlib.sha256(data).hexdigest()})
    monkeypatch.setattr(rewardbench2, "BENCHMARK", replace(rewardbench2.BENCHMARK, files=source))
    assert fetch_files("rewardbench2", tmp_path / "out", hub=url).files == source.sha256
    monkeypatch.setattr(
        rewardbench2,
        "BENCHMARK",
        replace(rewardbench2.BENCHMARK, files=BenchmarkFiles(urls={"a.parquet": address}, sha256={"a.parquet": "1" * 64})),
    )
    with pytest.raises(DataError, match="expected 1111"):
        fetch_files("rewardbench2", tmp_path / "other", hub=url)


def test_without_a_network(tmp_path: Path) -> None:
    """A sentence that says what to fetch and how to check it; no folder is made."""
    with pytest.raises(DataError, match=r"allenai/reward-bench-2.*--check"):
        fetch_files("rewardbench2", tmp_path / "out", hub="http://127.0.0.1:9")
    assert not (tmp_path / "out").exists()
    with pytest.raises(ConfigError, match="unknown benchmark"):
        fetch_files("mmlu", tmp_path)
    done = CliRunner().invoke(app, ["bench", "prepare", "mmrb2", "--out", "x", "--check", "y"])
    assert "expected either --out" in str(done.exception) + done.output


@pytest.mark.skipif(not SHARED_DATA.exists(), reason="needs the published benchmark rows")
@pytest.mark.parametrize(
    ("name", "file", "line"),
    [
        ("vl_rewardbench", "vl_rewardbench.jsonl", "1,250 pairs"),
        ("mm_rlhf", "mm_rlhf_rewardbench.jsonl", "170 pairs"),
        ("mmrb2", "mmrb2", "4,000 pairs"),
    ],
)
def test_the_files_in_circulation(name: str, file: str, line: str, tmp_path: Path) -> None:
    """Known by their hashes, whatever they are called, with the published counts; one row less is told, by exit status too."""
    command = ["bench", "prepare", name, "--check"]
    done = CliRunner().invoke(app, [*command, str(SHARED_DATA / file)])
    assert done.exit_code == 0
    assert line in done.output
    assert "the known file" in done.output
    if file.endswith("l"):
        rows = (SHARED_DATA / file).read_text().split("\n")
        (tmp_path / file).write_text("\n".join(rows[1:]))
        less = CliRunner().invoke(app, [*command, str(tmp_path / file)])
        assert less.exit_code == 1
        assert "the published benchmark" in less.output


def test_the_benchmarks_are_listed() -> None:
    """One line each, with what is known of it."""
    done = CliRunner().invoke(app, ["bench", "list"])
    assert done.exit_code == 0, done.output
    lines = dict(line.split(": ", 1) for line in done.output.splitlines())
    assert list(lines) == list(PACKAGED)
    assert lines["vl_rewardbench"] == (
        "1,250 pairs: general 183, hallucination 749, reasoning 318; files: MMInstruction/VL-RewardBench (bench prepare); "
        "official scorer: vl_rewardbench"
    )
    assert lines["pairs"] == "any number of pairs; files: your own; no official scorer here"


def test_data_by_the_name_of_the_benchmark(hub: tuple[Hub, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What `bench prepare` fetched without --out is what `bench run` reads without --data; what is not there is said."""
    monkeypatch.setenv("REWARDLAB_DATA", str(tmp_path / "data"))
    command = ["bench", "run", "rewardbench2", "--judge", "baseline:longest", "--out", str(tmp_path / "run")]
    refused = CliRunner().invoke(app, command)
    assert "data/rewardbench2 is searched, where `rewardlab bench prepare rewardbench2`" in str(refused.exception)
    monkeypatch.setattr("rewardlab.benchmarks.prepare.fetch_files", partial(fetch_files, hub=hub[1]))
    fetched = CliRunner().invoke(app, ["bench", "prepare", "rewardbench2"])
    assert f"of rewardbench2 at {SHA} to {tmp_path}/data/rewardbench2" in fetched.output
    done = CliRunner().invoke(app, command)
    assert done.exit_code == 0, done.output
    assert json.loads((tmp_path / "run" / "report.json").read_text())["num_pairs"] == 18
    own = CliRunner().invoke(app, ["bench", "run", "pairs", *command[3:]])
    assert "pairs: expected --data FILE" in str(own.exception)
    remote = CliRunner().invoke(app, ["bench", "run", "pairs", *command[3:], "--data", "hf:me/pairs"])
    assert "hf:me/pairs: is on the Hub; `rewardlab data build" in str(remote.exception)
