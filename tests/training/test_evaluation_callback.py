"""What follows from evaluations: when a run ends early, and what is said of the best, of its weights and of the time."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from rewardlab.training.run.evaluation import (
    EvaluationRecord,
    EvaluationSummary,
    is_exhausted,
    summary_text,
)

SUMMARY = SimpleNamespace(
    metric="accuracy",
    evaluations=4,
    best_step=0,
    best=0.8,
    last_step=30,
    last=0.7,
    gain=0.1,
    gain_interval=(0.02, 0.18),
    best_kept=False,
    stopped_early=False,
    time_frac=0.01,
)


def records(values: list[float], invalid: list[float] | None = None) -> list[EvaluationRecord]:
    """An evaluation every ten steps."""
    shares = invalid or [0.0] * len(values)
    pairs = enumerate(zip(values, shares, strict=True))
    return [EvaluationRecord(10 * n, {"eval/invalid_frac": share}, [("p", value)]) for n, (value, share) in pairs]


@pytest.mark.parametrize(
    ("values", "invalid", "expected"),
    [
        ([0.5, 0.4, 0.5], None, True),
        ([0.5, 0.4, 0.6], None, False),
        ([0.5, 0.4, 0.6, 0.4], None, False),
        ([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 1.0, 1.0], False),  # it writes no verdict yet
        ([0.0, 0.0, 0.0, 0.0], [1.0, 1.0, 0.9, 0.9], False),  # one evaluation since it does
        ([0.0, 0.0, 0.0, 0.0], [1.0, 0.9, 0.9, 0.9], True),
    ],
)
def test_patience(values: list[float], invalid: list[float] | None, expected: bool) -> None:
    """Two evaluations after the best, and after the first with a verdict."""
    assert is_exhausted(records(values, invalid), 2) is expected
    assert not is_exhausted(records(values, invalid), None)
    assert not is_exhausted([], 2)


def said(out: Path, **changes: object) -> str:
    summary = EvaluationSummary(**(vars(SUMMARY) | changes))  # type: ignore[arg-type]
    return summary_text(summary, 64, out, "runs/sft/final")


def test_where_the_best_weights_are(tmp_path: Path) -> None:
    """In ``best``, or where the run began, or nowhere."""
    best = tmp_path / "best"
    assert f"[2.0, 18.0] above the last, step 30, its weights are runs/sft/final as it was: there is no {best}." in said(
        tmp_path
    )
    assert f"step 30, its weights are in {best}." in said(tmp_path, best_step=20, best_kept=True)
    assert "step 30, its weights were not kept." in said(tmp_path, best_step=20)
    last = said(tmp_path, best_step=30, best_kept=True)
    assert f"the last of 4 evaluations is the best: accuracy 80.0 %, its weights are in {best}." in last
    best.mkdir()
    (best / "config.json").write_text("{}")
    (best / "rewardlab.json").write_text('{"step": 25}')
    assert f"step 30, its weights are gone, and {best} has those of step 25." in said(tmp_path, best_step=20)


def test_much_time_is_said(tmp_path: Path) -> None:
    assert said(tmp_path).endswith("1.0 % of the time went into evaluating")
    assert said(tmp_path, time_frac=0.041).endswith(
        "4.1 % of the time went into evaluating, more than 3 %: raise evaluation.every_steps, or lower num_pairs"
    )
