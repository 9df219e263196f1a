"""A gate between two runs: what passes and what does not, against scipy's bootstrap; what cannot be compared; the command."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats

from rewardlab.benchmarks.comparison import (
    GateFigure,
    Run,
    against,
    check_protocols,
    faults_of,
    gate_runs,
    parse_figure,
    read_run,
)
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError
from tests.support.shell import run_main

ACCURACY = GateFigure("accuracy")


@pytest.fixture(scope="module")
def runs(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Path]:
    """``run(name, is_right)`` is the folder of a run on 120 pairs that is right where ``is_right(row)``, in both orders."""
    folder = tmp_path_factory.mktemp("gates")
    pairs = demo_pairs[0][:120]
    write_parquet(pairs, folder / "pairs.parquet")

    def run(name: str, is_right: Callable[[int], bool], **options: Any) -> Path:
        if not (folder / name).exists():
            lines = []
            for row, pair in enumerate(pairs):
                for order in ("given", "swapped"):
                    right = 1 + ((pair.preferred == 1) != (order == "swapped"))
                    lines.append(
                        {"row": row, "order": order, "text": f"<answer>{right if is_right(row) else 3 - right}</answer>"}
                    )
            votes = folder / f"{name}.jsonl"
            votes.write_text("\n".join(map(json.dumps, lines)))
            run_bench(bench_settings("pairs", folder / "pairs.parquet", f"replay:{votes}", **options), folder / name)
        return folder / name

    return run


@pytest.fixture(scope="module")
def old(runs: Callable[..., Path]) -> Run:
    """Right on 96 of 120."""
    return read_run(runs("old", lambda row: row % 5 != 0))


def test_worse_beyond_noise(runs: Callable[..., Path], old: Run) -> None:
    """36 pairs lost of 120 do not pass, two do; the verdict is that of scipy's bootstrap of the differences."""
    much, little = (read_run(runs(f"lost{n}", lambda row, n=n: row % 5 != 0 and row not in range(1, n))) for n in (46, 4))
    for new, passes in ((much, False), (little, True), (old, True)):
        found = gate_runs(old, new, ACCURACY)
        assert found.passes == passes, found.sentence
        gaps = np.array([b.score - a.score for a, b in zip(old.rows, new.rows, strict=True)])
        if gaps.any():
            theirs = stats.bootstrap((gaps,), np.mean, method="percentile", rng=np.random.default_rng(0)).confidence_interval
            assert (theirs.high >= 0) == passes
    sentence = gate_runs(old, much, ACCURACY).sentence
    assert sentence.startswith("accuracy: -30.0 points [")
    assert sentence.endswith("p < 0.001: worse, beyond noise")
    low = against(old, little).interval[0]
    assert gate_runs(old, little, ACCURACY).sentence.endswith(
        f"not worse beyond noise; a loss of up to {-100 * low:.1f} points is not ruled out"
    )
    better = gate_runs(much, old, ACCURACY)
    assert better.passes
    assert better.sentence.startswith("accuracy: +30.0 points [+")
    assert better.sentence.endswith("p < 0.001: better, beyond noise")
    assert gate_runs(much, old, ACCURACY, margin=0.1).sentence == better.sentence


def test_margin_and_proof(runs: Callable[..., Path], old: Run) -> None:
    """A margin wider than the loss lets it pass; a proof asks for the whole interval above the margin."""
    much, little = read_run(runs("lost46", lambda row: False)), read_run(runs("lost4", lambda row: False))
    assert gate_runs(old, much, ACCURACY, margin=0.3).passes
    assert not gate_runs(old, much, ACCURACY, margin=0.1).passes
    assert not gate_runs(old, little, ACCURACY, proves=True).passes
    assert not gate_runs(old, old, ACCURACY, proves=True).passes  # 120 pairs cannot tell a loss from none
    assert gate_runs(old, little, ACCURACY, proves=True, margin=0.1).passes
    assert "shown not to be worse by more than 10 points" in gate_runs(old, little, ACCURACY, proves=True, margin=0.1).sentence


def test_groups_and_kinds(runs: Callable[..., Path], old: Run) -> None:
    """A loss in one group alone; flips, of which more is worse."""
    group = old.rows[0].group
    members = {row.row for row in old.rows if row.group == group}
    new = read_run(runs("onegroup", lambda row: row % 5 != 0 and row not in members))
    assert not gate_runs(old, new, parse_figure(f"accuracy[{group}]")).passes
    other = next(row.group for row in old.rows if row.group != group)
    assert gate_runs(old, new, parse_figure(f"accuracy[{other}]")).passes
    flipping = replace(old, rows=[replace(row, kinds=(*row.kinds, "flipped")) for row in old.rows])
    found = gate_runs(old, flipping, parse_figure("flipped"))
    assert not found.passes
    assert found.sentence.startswith("flipped: +100.0 points")
    fewer = gate_runs(flipping, old, parse_figure("flipped"))
    assert fewer.passes
    assert fewer.sentence.startswith("flipped: -100.0 points")
    assert fewer.sentence.endswith("better, beyond noise")


def test_what_is_no_evidence(runs: Callable[..., Path], old: Run) -> None:
    """Failed votes, no verdict at all, and figures that are not those of the rows, NaN among them."""
    assert faults_of(old) == []
    scores = old.report.scores
    broken = {
        "7 of 240 votes failed": replace(scores, statuses={"ok": 233, "error": 3, "timeout": 4}, invalid_rate=7 / 240),
        "not one pair has a readable verdict": replace(scores, pairs_without_valid_vote=120),
        "the overall accuracy is 99.00 %": replace(scores, accuracy=replace(scores.accuracy, micro=0.99)),
    }
    for sentence, other in broken.items():
        assert any(sentence in fault for fault in faults_of(replace(old, report=replace(old.report, scores=other)))), sentence
    nan = replace(old, rows=[replace(row, score=float("nan")) for row in old.rows])
    assert faults_of(nan)
    assert not gate_runs(old, nan, ACCURACY).passes


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"orders": "given"}, r"orders \(both and given\)"),
        ({"votes": 3}, r"votes \(1 and 3\)"),
        ({"temperature": 0.5, "max_tokens": 64}, r"temperature \(None and 0.5\), max tokens \(None and 64\)"),
    ],
)
def test_other_protocols(change: dict[str, Any], message: str, old: Run) -> None:
    """Every part that differs is named; another judge or template is what a gate is for."""
    with pytest.raises(ConfigError, match=message):
        check_protocols(old, replace(old, report=replace(old.report, **change)))
    check_protocols(old, replace(old, report=replace(old.report, judge="another", template="another")))


@pytest.mark.slow
def test_the_command(runs: Callable[..., Path], old: Run, tmp_path: Path) -> None:
    """Exit status 0, 1 for a loss, 1 for a run without evidence, 2 for what cannot be compared; two small files suffice."""
    new = runs("lost46", lambda row: False)
    for name in ("report.json", "scores.jsonl"):
        (tmp_path / "kept").mkdir(exist_ok=True)
        shutil.copy(Path(old.name) / name, tmp_path / "kept")

    def gate(*arguments: object) -> tuple[int, str]:
        done = run_main(main, "bench", "gate", *arguments)
        return done.returncode, done.stdout + done.stderr

    assert gate(tmp_path / "kept", old.name)[0] == 0
    status, said = gate(tmp_path / "kept", new)
    assert status == 1
    assert "worse, beyond noise" in said
    values = json.loads((tmp_path / "kept" / "report.json").read_text())
    values["statuses"] = {"ok": 239, "error": 1}
    values["invalid_rate"] = 1 / 240
    (tmp_path / "kept" / "report.json").write_text(json.dumps(values))
    status, said = gate(old.name, tmp_path / "kept")
    assert status == 1
    assert "1 of 240 votes failed" in said
    values["votes"] = 5
    (tmp_path / "kept" / "report.json").write_text(json.dumps(values))
    assert gate(old.name, tmp_path / "kept")[0] == 2
    assert gate(old.name, tmp_path)[0] == 2
    status, said = gate(old.name, new, "--figure", "acuracy")
    assert status == 2
    assert "did you mean 'accuracy'" in said
    assert "no group 'nosuch'" in gate(old.name, new, "--figure", "accuracy[nosuch]")[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"score": "1.0"}, "wrong type"),
        ({"row": [1]}, "wrong type"),
        ({"kinds": "right"}, "wrong type"),
        ({"score": float("nan")}, "has score nan"),
        ({"score": 7}, "has score 7"),
        ({"preferred": None}, "wrong type"),
        (None, "is empty"),
    ],
)
def test_damaged_scores(change: dict[str, Any] | None, message: str, old: Run, tmp_path: Path) -> None:
    """A sentence for a value of wrong type or range, and for a file without any."""
    shutil.copytree(old.name, tmp_path / "run")
    scores = tmp_path / "run" / "scores.jsonl"
    first, *others = scores.read_text().splitlines()
    lines = [] if change is None else [json.dumps({**json.loads(first), **change}), *others]
    scores.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(DataError, match=message):
        read_run(tmp_path / "run")


@pytest.mark.parametrize("name", ["invalid", "kinds", "pair_id", "preferred", "alike"])
def test_scores_that_lack_a_figure(name: str, old: Run, tmp_path: Path) -> None:
    """The sentence has the cure that it has for a report, and the cure helps."""
    shutil.copytree(old.name, tmp_path / "run")
    scores = tmp_path / "run" / "scores.jsonl"
    whole = scores.read_text()
    lines = [{key: value for key, value in json.loads(line).items() if key != name} for line in whole.splitlines()]
    scores.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with pytest.raises(DataError, match=rf"its scores\.jsonl lacks {name}: run the same command again, it is scored anew"):
        read_run(tmp_path / "run")


def test_other_images(old: Run) -> None:
    """Runs of one data file over two folders of images are not compared; of a judge that does not look they are."""
    assert old.images == ""
    with pytest.raises(ConfigError, match="judged different images"):
        gate_runs(replace(old, images="a1"), replace(old, images="b2"), ACCURACY)
    assert gate_runs(replace(old, images="a1"), old, ACCURACY).passes
