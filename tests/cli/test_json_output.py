"""What `--json` prints is one object of the documented shape, and nothing else."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.comparison import against, holm, read_run
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from tests.support.shell import ROOT, run_main

RULES = ("first", "longest", "random")


@pytest.fixture(scope="module")
def runs(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_parquet(demo_pairs[0][:30], folder / "pairs.parquet")
    for rule in RULES:
        run_bench(bench_settings("pairs", folder / "pairs.parquet", f"baseline:{rule}"), folder / rule)
    return folder


def documented(command: str) -> Any:
    """The example of a command in the documentation."""
    section = (ROOT / "docs" / "reference" / "json.md").read_text().split(f"## {command}\n")[1].split("\n## ")[0]
    found = re.search(r"```json\n(.*?)```", section, re.DOTALL)
    assert found is not None
    return json.loads(found[1])


def shape(value: Any) -> Any:
    """The keys of objects, and what the first item of a list is; values as such are left out."""
    if isinstance(value, dict):
        return {name: shape(inner) for name, inner in value.items()}
    return [shape(value[0])] if isinstance(value, list) and value and isinstance(value[0], dict) else None


def test_compare(runs: Path, tmp_path: Path) -> None:
    """The numbers of the table; a run that failed has none."""
    ended = run_main(main, "bench", "compare", *(runs / rule for rule in RULES), "--json", "--out", tmp_path / "t.md")
    printed, example = json.loads(ended.stdout), documented("bench compare")
    assert printed.keys() == example.keys()
    groups = [run["against_first"]["groups"] for run in (printed["runs"][1], example["runs"][1])]
    for run, some in zip((printed["runs"][1], example["runs"][1]), groups, strict=True):
        run["against_first"]["groups"] = list(some.values())  # the names of groups are the data's
    assert shape(printed["runs"][1]) == shape(example["runs"][1])
    assert shape(printed["runs"][0]) == shape(example["runs"][0])
    finished = [read_run(runs / rule) for rule in RULES]
    changes = [against(finished[n], finished[m]) for n, m in ((0, 1), (0, 2), (1, 2))]
    adjusted = holm([change.p_value for change in changes])
    assert shape(printed["pairs"][0]) == shape(example["pairs"][0])
    assert [(pair["base"], pair["other"], pair["p_holm"]) for pair in printed["pairs"]] == [
        (0, 1, adjusted[0]),
        (0, 2, adjusted[1]),
        (1, 2, adjusted[2]),
    ]
    for run, row in zip(finished, printed["runs"], strict=True):
        assert (row["run"], row["accuracy"]) == (run.name, run.report.scores.accuracy.micro)
    for change, p_holm, row in zip(changes[:2], adjusted[:2], printed["runs"][1:], strict=True):
        assert row["against_first"]["difference"] == change.difference
        assert (row["against_first"]["p_value"], row["against_first"]["p_holm"]) == (change.p_value, p_holm)
    assert (tmp_path / "t.md").read_text().startswith("# pairs: 3 judges")


def test_failed_runs(runs: Path, tmp_path: Path) -> None:
    """No number of the failed one is printed, and no finding, whose sentences hold numbers."""
    for rule in RULES:
        folder = tmp_path / rule
        folder.mkdir()
        for name in ("report.json", "scores.jsonl"):
            (folder / name).write_text((runs / rule / name).read_text())
    report = json.loads((tmp_path / "longest" / "report.json").read_text())
    (tmp_path / "longest" / "report.json").write_text(json.dumps({**report, "failure": "all failed"}))
    folders = [tmp_path / rule for rule in RULES]
    rows = json.loads(run_main(main, "bench", "compare", *folders, "--json").stdout)["runs"]
    assert [(row["accuracy"] is None, row["against_first"] is None) for row in rows] == [
        (False, True),
        (True, True),
        (False, False),
    ]
    assert rows[1] == {
        **dict.fromkeys(rows[0]),
        **{"run": str(tmp_path / "longest"), "judge": "baseline:longest", "failure": "all failed", "findings": []},
    }
    assert rows[2]["against_first"]["p_holm"] == rows[2]["against_first"]["p_value"]
    check = run_main(main, "bench", "check", *folders, "--json")
    printed = json.loads(check.stdout)
    assert check.returncode == 1
    assert shape(printed) == shape(documented("bench check"))
    assert [(run["is_good"], run["failure"]) for run in printed["runs"]] == [(True, ""), (False, "all failed"), (True, "")]


@pytest.mark.parametrize(("overall", "status"), [("71.92", 0), ("60.0", 1)])
def test_a_published_row(overall: str, status: int) -> None:
    row = ["general=63.84", "hallucination=85.71", "reasoning=64.78", f"overall={overall}"]
    plain, ended = run_main(main, "bench", "check", *row), run_main(main, "bench", "check", *row, "--json")
    printed = json.loads(ended.stdout)
    assert (ended.returncode, plain.returncode) == (status, status)
    assert printed.keys() == documented("bench check").keys()
    assert (printed["is_good"], printed["sentence"] + "\n") == (status == 0, plain.stdout)
    assert set(printed["groupings"][0]) == {"grouping", "overall", "off", "counts"}


def test_stats(runs: Path, tmp_path: Path) -> None:
    ended = run_main(main, "data", "stats", runs / "pairs.parquet", "--out", tmp_path, "--json")
    assert json.loads(ended.stdout) == json.loads((tmp_path / "stats.json").read_text())
    text = (ROOT / "docs" / "reference" / "json.md").read_text().split("## data stats")[1]
    assert not [name for name in json.loads(ended.stdout) if f"`{name}`" not in text]
