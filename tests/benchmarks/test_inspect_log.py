"""A run as a log of Inspect: read back by Inspect itself, its figures are the report's and its samples the run's votes.

Skipped where inspect_ai is not installed (`pip install '.[inspect]'`): it asks for older releases of what others share.
"""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rewardlab.benchmarks.comparison import read_run
from rewardlab.benchmarks.inspect_log import write_inspect_log
from rewardlab.benchmarks.pairs import load_labelled_pairs
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import main
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, MissingPackageError
from tests.support.shell import run_main


@pytest.fixture(scope="module")
def run(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two votes per order on 24 pairs: right, always the first place, unreadable, and torn, in turns."""
    folder = tmp_path_factory.mktemp("inspect")
    pairs = demo_pairs[0][:24]
    write_parquet(pairs, folder / "pairs.parquet")
    lines = []
    for row, pair in enumerate(pairs):
        for order in ("given", "swapped"):
            right = 1 + ((pair.preferred == 1) != (order == "swapped"))
            said = {0: [right, right], 1: [1, 1], 2: ["?", "?"], 3: [right, 3 - right]}[row % 4]
            lines += [{"row": row, "order": order, "text": f"<think>row {row}</think><answer>{one}</answer>"} for one in said]
    (folder / "votes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    run_bench(
        bench_settings("pairs", folder / "pairs.parquet", f"replay:{folder / 'votes.jsonl'}", controls=()), folder / "out"
    )
    return folder


@pytest.mark.extra("inspect_ai")
@pytest.mark.parametrize("suffix", ["eval", "json"])
def test_read_back(suffix: str, run: Path) -> None:
    """Status, metrics with intervals, the means of the samples' scores, every vote with its order, and the image."""
    from inspect_ai import log as inspect_log

    out = run / f"log.{suffix}"
    done = run_main(main, "bench", "export", run / "out", "--out", out)
    assert done.returncode == 0, done.stderr
    assert [path.name for path in run.glob("*log*")].count(out.name) == 1
    assert not list(run.glob(".*"))
    log, report = inspect_log.read_eval_log(str(out), resolve_attachments=True), read_run(run / "out").report
    assert log.status == "success"
    assert log.eval.model == report.judge
    assert log.eval.dataset.samples == len(log.samples) == 24
    metrics = {score.name: {name: metric.value for name, metric in score.metrics.items()} for score in log.results.scores}
    assert metrics["accuracy"]["accuracy"] == report.scores.accuracy.micro
    assert (metrics["accuracy"]["ci_low"], metrics["accuracy"]["ci_high"]) == report.scores.interval
    assert 0 < metrics["accuracy"]["stderr"] < 0.2
    for name, metric in (("accuracy", "accuracy"), ("invalid", "mean"), ("swap consistency", "mean")):
        assert np.mean([sample.scores[name].value for sample in log.samples]) == pytest.approx(metrics[name][metric]), name
    pairs = load_labelled_pairs(run / "pairs.parquet", images=None, with_images=True)
    for row, sample in zip(pairs, log.samples, strict=True):
        answers = [message for message in sample.messages if message.role == "assistant"]
        assert [answer.metadata["order"] for answer in answers] == ["given"] * 2 + ["swapped"] * 2
        assert all(f"<think>row {row.row}</think>" in answer.text for answer in answers)
        image = next(part.image for part in sample.input[0].content if part.type == "image")
        assert base64.b64decode(image.partition(",")[2]) == row.pair.images[0]
        assert sample.target == "AB"[row.pair.preferred]
        assert f"**Response {sample.target}**\n\n{row.pair.responses[row.pair.preferred]}" in sample.input[0].text
        notes = [message.text for message in sample.messages if message.role == "user"][1:]
        assert [note[:13] for note in notes] == ["A shown first", "B shown first"]
        assert f"better is {sample.target}" in sample.scores["accuracy"].explanation
        assert (
            sample.scores["accuracy"].answer
            == {0: sample.target, 1: "tie", 2: "no vote of an order names a response", 3: "tie"}[row.row % 4]
        )


def test_what_is_refused(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another suffix, a package that is missing, data that has moved or changed; nothing is left behind."""
    rows, finished = load_labelled_pairs(run / "pairs.parquet", images=None, with_images=False), read_run(run / "out")
    with pytest.raises(ConfigError, match=r"ends in \.eval or \.json"):
        write_inspect_log(finished, rows, tmp_path / "log.html")
    with monkeypatch.context() as patched:
        patched.setitem(__import__("sys").modules, "inspect_ai.log", None)
        with pytest.raises(MissingPackageError, match=r"pip install 'rewardlab\[inspect\]'"):
            write_inspect_log(finished, rows, tmp_path / "log.eval")
    (run / "pairs.parquet").rename(run / "moved.parquet")
    try:
        done = run_main(main, "bench", "export", run / "out", "--out", tmp_path / "log.eval")
        assert done.returncode == 2
        assert "give it with --data" in done.stderr
        done = run_main(main, "bench", "export", run / "out", "--out", tmp_path / "log.eval", "--data", run / "votes.jsonl")
        assert done.returncode == 2
        assert "is not the data file of" in done.stderr
    finally:
        (run / "moved.parquet").rename(run / "pairs.parquet")
    assert not list(tmp_path.iterdir())
