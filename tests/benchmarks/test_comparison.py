"""Two judges on the same pairs: the difference, its interval and its p-value, against other means; what cannot be compared."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from typer.testing import CliRunner

from rewardlab.benchmarks.comparison import against, leaderboard, leaderboard_html, leaderboard_markdown, p_text, read_run
from rewardlab.benchmarks.protocols import different_protocols
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import BenchSettings
from rewardlab.cli import app
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import sign_flip_p


def test_p_by_enumeration_and_by_scipy() -> None:
    """All sign patterns counted one by one; many pairs against scipy's permutation test and the binomial of McNemar's."""
    sums = [1.0, -0.5, 0.5, 1.0, 1.0]
    patterns = [abs(sum(s * v for s, v in zip(signs, sums, strict=True))) for signs in product((1, -1), repeat=5)]
    assert sign_flip_p(sums) == pytest.approx(np.mean([value >= 3.0 - 1e-9 for value in patterns]))
    dice = np.random.default_rng(0)
    gaps = dice.choice([-1.0, 0.0, 0.0, 1.0, 1.0], size=80)
    theirs = stats.permutation_test((gaps,), np.mean, permutation_type="samples", n_resamples=9999, random_state=1).pvalue
    better, worse = int((gaps > 0).sum()), int((gaps < 0).sum())
    assert sign_flip_p(gaps.tolist()) == pytest.approx(theirs, abs=0.02)
    assert sign_flip_p(gaps.tolist()) == pytest.approx(stats.binomtest(better, better + worse).pvalue, abs=0.02)


def test_clusters_stand_together() -> None:
    """Ten pairs of one prompt that all differ are one observation; what cancels within a prompt says nothing."""
    assert sign_flip_p([1.0] * 10, ["a"] * 10) == 1.0
    assert sign_flip_p([1.0] * 10) == pytest.approx(2 / 1024)
    assert sign_flip_p([1.0, -1.0], ["a", "a"]) == 1.0
    assert sign_flip_p([]) == 1.0


def test_under_no_difference_p_is_even() -> None:
    """One comparison in ten of judges that are alike is below 0.1."""
    dice = np.random.default_rng(3)
    found = [sign_flip_p(dice.normal(size=40).tolist(), flips=500, seed=n) for n in range(300)]
    assert np.mean(np.array(found) < 0.1) == pytest.approx(0.1, abs=0.05)


@pytest.fixture(scope="module")
def runs(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("runs")
    write_parquet(demo_pairs[0][:60], folder / "pairs.parquet")
    for rule in ("first", "longest", "random"):
        run_bench(BenchSettings("pairs", folder / "pairs.parquet", f"baseline:{rule}"), folder / rule)
    run_bench(BenchSettings("pairs", folder / "pairs.parquet", "baseline:first", limit=50), folder / "short")
    return folder


def test_a_leaderboard(runs: Path) -> None:
    """Best first; against the one named first, the difference of the two reports' accuracies; a run differs not from itself."""
    first, longest = read_run(runs / "first"), read_run(runs / "longest")
    found = against(first, longest)
    assert found.difference == pytest.approx(longest.report.scores.accuracy.micro - 0.5)
    assert found.interval[0] <= found.difference <= found.interval[1]
    again = against(first, first)
    low, high = again.interval
    assert (again.difference, again.p_value) == (0.0, 1.0)
    assert low == -high < 0  # as far as sixty pairs can tell
    text = leaderboard_markdown([first, longest, read_run(runs / "random")])
    order = [Path(line.split(" (")[0].removeprefix("| ")).name for line in text.splitlines() if "(baseline:" in line]
    assert len(order) == 3
    assert [line.split(" | ")[0] for line in text.splitlines() if line.startswith("| baseline:")] == [
        f"| baseline: {name}" for name in ("longest", "shortest", "random", "first")
    ]
    page = leaderboard_html([first, longest, read_run(runs / "random")])
    assert page.count("<tr") == 1 + 3 + 4
    assert page.count("data:image/svg+xml") == 2  # of a desk and of a phone
    assert not re.search(r"(?:src|href)=\"(?!data:)", page)
    accuracy = {run: read_run(runs / run).report.scores.accuracy.micro for run in order}
    assert sorted(order, key=lambda run: -accuracy[run]) == order


def test_what_cannot_be_compared(runs: Path, tmp_path: Path) -> None:
    """Other rows, another file, no run."""
    with pytest.raises(ConfigError, match=r"60 rows and .*short 50"):
        against(read_run(runs / "first"), read_run(runs / "short"))
    longest = read_run(runs / "longest")
    other = replace(longest, report=replace(longest.report, data_sha256="x"))
    with pytest.raises(ConfigError, match="not of the same benchmark"):
        against(read_run(runs / "first"), other)
    (tmp_path / "report.json").write_text(json.dumps({}))
    with pytest.raises(DataError, match=r"older version.*votes\.jsonl"):
        read_run(tmp_path)
    with pytest.raises(DataError, match="holds no finished run"):
        read_run(tmp_path / "nowhere")


def test_runs_that_were_asked_otherwise_are_refused(runs: Path, tmp_path: Path) -> None:
    """By orders, votes, sampling; baselines are asked nothing, unknown sampling is no difference. The flag says it."""
    lines = [
        {"row": row, "order": order, "text": "<answer>1</answer>"}
        for row in range(60)
        for order in ("given", "given", "swapped", "swapped")
    ]
    (tmp_path / "r.jsonl").write_text("\n".join(map(json.dumps, lines)))
    for name, orders, votes in (("both", "both", None), ("given", "given", None), ("one", "both", 1)):
        replay = f"replay:{tmp_path / 'r.jsonl'}"
        settings = BenchSettings("pairs", runs / "pairs.parquet", replay, orders=orders, votes=votes)
        run_bench(settings, tmp_path / name)
    both, given, one = (str(tmp_path / name) for name in ("both", "given", "one"))
    for other, told in ((given, "orders (both and given)"), (one, "votes (2 and 1)")):
        done = CliRunner().invoke(app, ["bench", "compare", both, other])
        assert isinstance(done.exception, ConfigError)
        assert told in str(done.exception)
    allowed = CliRunner().invoke(app, ["bench", "compare", both, given, "--different-protocols"])
    assert allowed.exit_code == 0, allowed.output
    assert "asked otherwise" in allowed.output
    assert CliRunner().invoke(app, ["bench", "compare", both, str(runs / "first")]).exit_code == 0
    sampled = read_run(tmp_path / "both")
    warm = replace(sampled, report=replace(sampled.report, temperature=0.7))
    assert different_protocols([sampled, warm]) == []
    cold = replace(sampled, report=replace(sampled.report, temperature=0.0))
    assert len(different_protocols([warm, cold])) == 1


def test_several_comparisons_are_adjusted(runs: Path) -> None:
    """Of three runs both p-values by Holm; of two there is nothing to adjust."""
    three = [read_run(runs / name) for name in ("first", "longest", "random")]
    columns, rows = leaderboard(three)
    assert columns[columns.index("p") + 1] == "p (Holm)"
    single = sorted(against(three[0], run).p_value for run in three[1:])
    shown = sorted(row[columns.index("p (Holm)")] for row in rows if row[columns.index("p")])
    assert shown == sorted(p_text(value) for value in (min(1.0, 2 * single[0]), max(min(1.0, 2 * single[0]), single[1])))
    assert "p (Holm)" not in leaderboard(three[:2])[0]


def test_damaged_runs_are_named_in_a_line(runs: Path, tmp_path: Path) -> None:
    """A row twice, and figures that are none."""
    for name in ("report.json", "scores.jsonl"):
        (tmp_path / name).write_text((runs / "first" / name).read_text())
    rows = (tmp_path / "scores.jsonl").read_text()
    (tmp_path / "scores.jsonl").write_text(rows + rows.splitlines()[0] + "\n")
    with pytest.raises(DataError, match=r"row 0 is in its scores\.jsonl twice"):
        read_run(tmp_path)
    (tmp_path / "scores.jsonl").write_text(rows)
    values = json.loads((tmp_path / "report.json").read_text())
    for change, told in (({"accuracy": None}, "bad accuracy"), ({"votes": "many"}, "bad votes")):
        (tmp_path / "report.json").write_text(json.dumps(values | change))
        with pytest.raises(DataError, match=told) as caught:
            read_run(tmp_path)
        assert "\n" not in str(caught.value)
        assert "pydantic" not in str(caught.value)
