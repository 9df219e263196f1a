"""A benchmark from outside of the package: a Python file by its path, and an entry point."""

from __future__ import annotations

import json
from importlib.metadata import EntryPoint, EntryPoints
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rewardlab import extensions
from rewardlab.benchmarks import registry
from rewardlab.benchmarks.registry import PACKAGED, find_benchmark, packaged_benchmarks
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.errors import ConfigError

EXAMPLE = Path(__file__).parents[1] / "support" / "example_benchmark.py"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    rows = [("colours", "Red or blue?", "red", "it is blue"), ("colours", "And now?", "it is red", "blue")]
    lines = [{"topic": topic, "prompt": prompt, "good": good, "bad": bad} for topic, prompt, good, bad in rows]
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return tmp_path / "rows.jsonl"


@pytest.mark.slow
def test_a_file_by_its_path(data: Path, tmp_path: Path) -> None:
    """The benchmark runs, is reported under its own name, and its groups are compared with its published sizes."""
    command = ["bench", "run", str(EXAMPLE), "--data", str(data), "--judge", "baseline:longest", "--out"]
    result = CliRunner().invoke(app, [*command, str(tmp_path / "out")])
    assert result.exit_code == 0, result.output
    report = json.loads((tmp_path / "out" / "report.json").read_text())
    assert (report["benchmark"], report["accuracy"]["micro"], report["num_pairs"]) == ("example", 0.5, 2)
    assert report["notes"][0] == "no rows of shapes are in this file"
    identity = json.loads((tmp_path / "out" / "votes.jsonl").read_text().splitlines()[0])["identity"]
    assert identity["benchmark"].startswith("example ")
    (tmp_path / "outputs.jsonl").write_text('{"right": true}\n{"right": false}\n')
    official = CliRunner().invoke(app, ["bench", "official", str(EXAMPLE), str(tmp_path / "outputs.jsonl")])
    assert official.output == "right: 1 of 2\n"


def test_another_version_of_the_file_is_another_run(data: Path, tmp_path: Path) -> None:
    """Its loader may have changed: the log of one is not continued by the other."""
    copy = tmp_path / "copy.py"
    copy.write_text(EXAMPLE.read_text())
    run_bench(bench_settings(str(copy), data, "baseline:first"), tmp_path / "out")
    copy.write_text(EXAMPLE.read_text() + "\n# changed\n")
    with pytest.raises(ConfigError, match="differs in benchmark"):
        run_bench(bench_settings(str(copy), data, "baseline:first"), tmp_path / "out")


def test_an_entry_point(monkeypatch: pytest.MonkeyPatch) -> None:
    """An installed package's benchmark is found by its name."""
    point = EntryPoint("mine", "tests.support.example_benchmark:BENCHMARK", registry.GROUP)
    monkeypatch.setattr(extensions, "entry_points", lambda group: EntryPoints([point]))
    assert find_benchmark("mine").name == "example"
    with pytest.raises(ConfigError, match=r"unknown benchmark 'other'; expected one of vl_rewardbench.*pairs.*, mine"):
        find_benchmark("other")


def test_files_that_are_no_benchmark(tmp_path: Path) -> None:
    """Each in a sentence."""
    for text, sentence in (
        ("x = 1\n", "has no BENCHMARK"),
        ("import nowhere\n", "could not be loaded"),
        (None, "no such file"),
    ):
        path = tmp_path / "bench.py"
        path.unlink(missing_ok=True)
        if text is not None:
            path.write_text(text)
        with pytest.raises(ConfigError, match=rf"bench\.py: {sentence}"):
            find_benchmark(str(path))


def test_the_packaged_ones() -> None:
    """Each bears the name of its folder; scorers have names of their own, the benchmark's first."""
    benchmarks = packaged_benchmarks()
    assert [benchmark.name for benchmark in benchmarks] == list(PACKAGED)
    names = [name for benchmark in benchmarks for name in benchmark.scorers]
    assert len(names) == len(set(names))
    assert all(next(iter(b.scorers)) == b.name for b in benchmarks if b.scorers)
    listed = CliRunner().invoke(app, ["bench", "official"]).output.splitlines()
    assert [line.partition(":")[0] for line in listed] == names
