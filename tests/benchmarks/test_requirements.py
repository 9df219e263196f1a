"""Requirements on a report's figures: what they say, what is refused before anything is asked, and what passes."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.report import write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.requirements import FIGURES, check_report, parse_requirement
from rewardlab.benchmarks.robustness.model import FamilyScores, Figures, JudgmentShare, Robustness
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError


@pytest.fixture(scope="module")
def report(demo_pairs: Any, tmp_path_factory: pytest.TempPathFactory) -> Report:
    """Of 40 pairs: 30 right in both orders, 10 always the second place; one answer of 80 is unreadable."""
    folder = tmp_path_factory.mktemp("required")
    pairs = demo_pairs[0][:40]
    write_parquet(pairs, folder / "pairs.parquet")
    lines = []
    for row, pair in enumerate(pairs):
        for order in ("given", "swapped"):
            right = 1 + ((pair.preferred == 1) != (order == "swapped"))
            said = right if row < 30 else 2
            lines.append({"row": row, "order": order, "text": "?" if not lines else f"<answer>{said}</answer>"})
    (folder / "votes.jsonl").write_text("\n".join(map(json.dumps, lines)))
    return run_bench(bench_settings("pairs", folder / "pairs.parquet", f"replay:{folder / 'votes.jsonl'}"), folder / "out")[0]


def is_met(report: Report, text: str) -> bool:
    return check_report(report, parse_requirement(text)).is_met


def test_figures_by_hand(report: Report) -> None:
    """(29.5 + 5) of 40 are right; ten pairs lean to the second place, and a bias is meant by its size."""
    assert report.scores.accuracy.micro == pytest.approx(34.5 / 40)
    assert is_met(report, "accuracy>=0.8625")
    assert is_met(report, "accuracy>=86.25%")
    assert not is_met(report, "accuracy>=0.8626")
    assert is_met(report, " accuracy <= 0.87 ")
    low, high = report.scores.interval
    assert is_met(report, f"accuracy.low>={low - 0.001}")
    assert not is_met(report, f"accuracy.low>={low + 0.001}")
    assert is_met(report, f"accuracy.high<={high + 0.001}")
    assert not is_met(report, f"accuracy.high<={high - 0.001}")
    assert is_met(report, "invalid_rate<=0.0125")
    assert not is_met(report, "invalid_rate<=0.0124")
    assert report.scores.position_bias is not None
    assert report.scores.position_bias < -0.05
    assert not is_met(report, "position_bias<=0.05")
    assert is_met(report, "num_pairs>=40")
    assert not is_met(report, "num_pairs>=41")
    for group, cell in report.scores.groups.items():
        assert is_met(report, f"accuracy[{group}]>={cell.accuracy}")
        assert not is_met(report, f"accuracy[{group}].high<={cell.interval[1] - 0.001}")


def test_sentences(report: Report) -> None:
    """Figure, interval and bound, in one sentence."""
    low, high = (f"{100 * side:.1f}" for side in report.scores.interval)
    least, most = (f"{100 * side:.1f}" for side in report.scores.invalid_interval or ())
    said = {
        "accuracy>=0.9": f"accuracy is 86.25 % [{low}, {high}]: the estimate is below the 90.00 % required",
        "accuracy.low>=0.9": f"accuracy is 86.25 % [{low}, {high}]: its lower bound is below the 90.00 % required",
        "accuracy>=0.8": f"accuracy is 86.25 % [{low}, {high}]: the estimate reaches the 80.00 % required",
        "invalid_rate<=1%": f"invalid_rate is 1.25 % [{least}, {most}]: the estimate is above the 1.00 % required",
        "blank_accuracy<=0.6": "blank_accuracy has no value in this run, for the 60.00 % required",
    }
    for text, sentence in said.items():
        assert check_report(report, parse_requirement(text)).sentence == sentence


@pytest.mark.parametrize(
    ("figure", "field"),
    [
        ("macro_accuracy", "macro_interval"),
        ("swap_consistency", "swap_interval"),
        ("invalid_rate", "invalid_interval"),
    ],
)
def test_bounds_of_every_figure_with_an_interval(report: Report, figure: str, field: str) -> None:
    """Both bounds are met just inside and missed just outside; without an interval nothing is, whatever the estimate."""
    low, high = getattr(report.scores, field)
    assert 0 < low < high < 1
    assert is_met(report, f"{figure}.low>={low * 0.99}")
    assert not is_met(report, f"{figure}.low>={low * 1.01}")
    assert is_met(report, f"{figure}.high<={high + 0.001}")
    assert not is_met(report, f"{figure}.high<={high - 0.001}")
    bare = replace(report, scores=replace(report.scores, **{field: None}))
    finding = check_report(bare, parse_requirement(f"{figure}.low>=0"))
    assert (finding.is_met, "has no interval in this run" in finding.sentence) == (False, True)


def test_bounds_of_biases_are_of_their_size(report: Report) -> None:
    """-30 to -2 points is 2 to 30; where the interval holds 0 the least is 0."""
    for name in ("position", "length"):
        fields = {f"{name}_bias": -0.12, f"{name}_interval": (-0.3, -0.02)}
        leaning = replace(report, scores=replace(report.scores, **fields))
        assert is_met(leaning, f"{name}_bias.low>=0.02")
        assert not is_met(leaning, f"{name}_bias.low>=0.021")
        assert is_met(leaning, f"{name}_bias.high<=0.3")
        assert not is_met(leaning, f"{name}_bias.high<=0.299")
        around = replace(report, scores=replace(report.scores, **{**fields, f"{name}_interval": (-0.3, 0.1)}))
        assert is_met(around, f"{name}_bias.low<=0")
        assert "[0.0, 30.0]" in check_report(around, parse_requirement(f"{name}_bias.low<=0")).sentence


def test_bounds_of_groups(report: Report) -> None:
    """Of accuracy and of the lean to a place; invalid rates of groups have none, and an estimate is never taken for a bound."""
    with pytest.raises(ConfigError, match="no interval for a group's invalid_rate; require invalid_rate"):
        parse_requirement("invalid_rate[general].high<=0.1")
    group, cell = next(item for item in report.scores.groups.items() if item[1].position_interval)
    low, high = cell.position_interval or (0.0, 0.0)
    most = max(abs(low), abs(high))
    assert low <= (cell.position_bias or 0.0) <= high
    assert is_met(report, f"position_bias[{group}].high<={min(1.0, most + 0.001)}")
    assert not is_met(report, f"position_bias[{group}].high<={most - 0.001}")


def test_what_has_no_value_meets_nothing(report: Report) -> None:
    """Neither a bound from below nor one from above; nor does what is no number."""
    broken = replace(report, scores=replace(report.scores, swap_consistency=None, invalid_rate=float("nan")))
    for text in ("swap_consistency>=0", "swap_consistency<=1", "invalid_rate>=0", "invalid_rate<=1"):
        assert not is_met(broken, text)
        assert is_met(report, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acuracy>=0.7", "did you mean 'accuracy'"),
        ("brilliance>=0.7", f"expected one of {', '.join(FIGURES)}"),
        ("accuracy>0.7", "expected METRIC>=NUMBER"),
        ("accuracy", "expected METRIC>=NUMBER"),
        ("", "expected METRIC>=NUMBER"),
        ("accuracy>=70", "a fraction from 0 to 1, such as 0.7 or 70%"),
        ("accuracy>=nan", "a fraction from 0 to 1"),
        ("accuracy>=much", "a fraction from 0 to 1"),
        ("num_pairs>=50%", "this metric is not a fraction"),
        ("num_pairs>=inf", "this metric is not a fraction"),
        ("num_pairs.low>=10", "no interval for num_pairs; expected one of accuracy"),
        ("accuracy.middle>=0.1", "expected .low or .high"),
        ("swap_consistency[general]>=0.1", "no swap_consistency of a group; expected one of accuracy"),
    ],
)
def test_what_is_refused(text: str, message: str) -> None:
    """Every wrong form, in a sentence."""
    with pytest.raises(ConfigError) as error:
        parse_requirement(text)
    assert message in str(error.value)


@pytest.mark.parametrize(
    ("text", "options", "message"),
    [
        ("accuracy[counnt]>=0.7", {}, "did you mean 'count'"),
        ("accuracy[]x>=0.7", {}, "expected METRIC>=NUMBER"),
        ("swap_consistency>=0.7", {"orders": "given"}, "needs both orders"),
        ("blank_accuracy<=0.6", {"controls": ()}, "needs --controls blank"),
        ("other_accuracy<=0.6", {}, "needs --controls blank,other"),
        ("all_right>=0.6", {}, "does not count prompts"),
    ],
)
def test_refused_before_anything_is_asked(
    text: str, options: dict[str, Any], message: str, demo_pairs: Any, tmp_path: Path
) -> None:
    """What a run of these settings will have no figure for; not one vote is cast."""
    pairs = [replace(pair, category="count" if n % 2 else "colour") for n, pair in enumerate(demo_pairs[0][:6])]
    write_parquet(pairs, tmp_path / "pairs.parquet")
    with pytest.raises(ConfigError, match=message):
        run_bench(
            bench_settings(
                "pairs",
                tmp_path / "pairs.parquet",
                "baseline:first",
                requirements=(parse_requirement(text),),
                **options,
            ),
            tmp_path / "out",
        )
    assert not (tmp_path / "out").exists()


def test_reports_say_what_was_required(demo_pairs: Any, tmp_path: Path) -> None:
    """report.json, report.md and report.html have each requirement with its outcome."""
    write_parquet(demo_pairs[0][:6], tmp_path / "pairs.parquet")
    required = tuple(map(parse_requirement, ("num_pairs>=6", "swap_consistency>=0.5")))
    settings = bench_settings("pairs", tmp_path / "pairs.parquet", "baseline:first", requirements=required)
    report, rows = run_bench(settings, tmp_path / "out")
    assert [(one.text, one.is_met) for one in report.requirements] == [("num_pairs>=6", True), ("swap_consistency>=0.5", False)]
    assert Report.from_json(json.loads((tmp_path / "out" / "report.json").read_text())).requirements == report.requirements
    write_reports(report, rows, tmp_path / "out")
    text, page = ((tmp_path / "out" / name).read_text() for name in ("report.md", "report.html"))
    met, missed = (one.sentence for one in report.requirements)
    assert f"- required and met: `num_pairs>=6`; {met}." in text
    assert f"- **required and not met**: `swap_consistency>=0.5`; {missed}." in text
    assert f'<b class="good">met</b> <code>num_pairs&gt;=6</code>: {met}.' in page
    assert f'<b class="bad">not met</b> <code>swap_consistency&gt;=0.5</code>: {missed}.' in page


def test_a_failed_run_meets_nothing(report: Report) -> None:
    """Its figures are no evidence, whatever they come to."""
    result = check_report(replace(report, failure="no answers"), parse_requirement("num_pairs>=1"))
    assert (result.is_met, result.sentence) == (False, "num_pairs>=1: not met, for the run failed")


@pytest.mark.parametrize(("held_out", "trained_on", "met"), [(0.05, 0.9, True), (0.11, 0.0, False)])
def test_families_that_are_trained_on_excuse_no_verdict(report: Report, held_out: float, trained_on: float, met: bool) -> None:
    """The figure is of held-out families, and so is the tenth of judgments without a verdict up to which it has a value: of 100
    judgments of each kind together 47.5 and 5.5 % have none."""
    half = JudgmentShare(100, 0.5, (0.4, 0.6))
    families = {
        name: FamilyScores("unseen", name, in_training, True, 100, half, None, None, share)
        for name, in_training, share in (("blank", False, held_out), ("black", True, trained_on))
    }
    figures = replace(Figures(*[None] * len(fields(Figures))), right_unseen=half)
    attacked = replace(report, robustness=Robustness(40, "x", half, figures, figures, families))
    assert is_met(attacked, "right_unseen<=0.6") is met
