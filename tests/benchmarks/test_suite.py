"""Suites: every YAML in eval/ names what exists, missing data is told at once, and a run gives a folder each and a table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.registry import PACKAGED
from rewardlab.benchmarks.settings import CONTROLS
from rewardlab.benchmarks.suite import entry_settings
from rewardlab.cli import app
from rewardlab.config import SuiteConfig, load_config
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.prompts import load_template

SUITES = sorted((Path(__file__).parents[2] / "eval").glob("*.yaml"))


@pytest.mark.parametrize("path", SUITES, ids=lambda path: path.stem)
def test_every_suite_can_be_asked(path: Path) -> None:
    """Known benchmarks, controls and templates."""
    suite = load_config(SuiteConfig, path)
    for entry in suite.benchmarks:
        assert entry.benchmark in PACKAGED
        assert set(entry.controls) <= set(CONTROLS)
        if entry.template:
            load_template(entry.template)


def test_every_benchmark_is_in_a_suite() -> None:
    names = {entry.benchmark for path in SUITES for entry in load_config(SuiteConfig, path).benchmarks}
    for name in PACKAGED:
        assert name in names, (
            f"{name} is in no suite; add an entry to one of {', '.join(path.name for path in SUITES)} in eval/"
        )


@pytest.mark.slow
def test_a_suite(demo_pairs: Any, tmp_path: Path) -> None:
    """Two entries of one benchmark get a folder each; the table has both; what is finished is not asked again."""
    write_parquet(demo_pairs[0][:20], tmp_path / "data" / "a.parquet")
    write_parquet(demo_pairs[0][20:50], tmp_path / "data" / "b.parquet")
    suite = tmp_path / "s.yaml"
    suite.write_text(
        "title: Two\nbenchmarks:\n- {benchmark: pairs, data: a.parquet}\n- {benchmark: pairs, data: b.parquet, votes: 3}\n"
    )
    one = tmp_path / "one.yaml"
    one.write_text("title: One\nbenchmarks:\n- {benchmark: pairs, data: a.parquet}\n")
    command = ["bench", "suite", str(suite), "--judge", "baseline:first", "--root", str(tmp_path / "data"), "--out"]
    done = CliRunner().invoke(app, [*command, str(tmp_path / "out")])
    assert done.exit_code == 0, done.output
    text = (tmp_path / "out" / "suite.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| [pairs")]
    header = next(line for line in text.splitlines() if line.startswith("| benchmark"))
    assert "| one vote |" in header  # of the entry with three votes; with one vote each the column would repeat the accuracy
    single = CliRunner().invoke(app, ["bench", "suite", str(one), *command[3:], str(tmp_path / "single")])
    assert single.exit_code == 0, single.output
    single_rows = [line for line in (tmp_path / "single" / "suite.md").read_text().splitlines() if line.startswith("|")]
    assert "one vote" not in single_rows[0]
    assert {line.count("|") for line in single_rows} == {header.count("|") - 1}
    assert "50.0 [41.9, 58.1]" in rows[0]  # of 20 pairs alike: a further one may differ
    assert "50.0 [44.3, 55.7]" in rows[1]  # of 30
    reports = [json.loads((tmp_path / "out" / name / "report.json").read_text()) for name in ("pairs", "pairs_")]
    assert [(report["num_pairs"], report["votes"]) for report in reports] == [(20, 1), (30, 3)]
    assert (tmp_path / "out" / "pairs_" / "report.html").exists()
    assert CliRunner().invoke(app, [*command, str(tmp_path / "out")]).exit_code == 0


@pytest.mark.parametrize("judge", ["baseline:longest", "http://127.0.0.1:9"])
def test_a_judge_without_the_keys_of_an_entry(judge: str, tmp_path: Path) -> None:
    """A suite is for any judge: one with a sampling of its own is measured, too."""
    (tmp_path / "a.parquet").touch()
    entry = {"benchmark": "pairs", "data": "a.parquet", "temperature": 0.2, "max_tokens": 9, "votes": 2}
    suite = SuiteConfig.model_validate({"title": "T", "benchmarks": [entry]})
    [settings] = entry_settings(suite, tmp_path, judge)
    assert (settings.judge.changed, settings.judge.votes) == ({"votes"}, 2)


def test_what_is_missing(tmp_path: Path) -> None:
    """All of it, before anything runs; an unknown key is an error."""
    suite = SuiteConfig(title="x", benchmarks=({"benchmark": "pairs", "data": "a"}, {"benchmark": "pairs", "data": "b"}))
    with pytest.raises(DataError, match=r"2 of 2 data files.*/a, .*/b"):
        entry_settings(suite, tmp_path, judge="baseline:first")
    (tmp_path / "s.yaml").write_text("title: x\nbenchmarks: [{benchmark: pairs, data: a, vote: 3}]")
    with pytest.raises(ConfigError, match=r"unknown key 'benchmarks.0.vote'; did you mean 'votes'"):
        load_config(SuiteConfig, tmp_path / "s.yaml")
