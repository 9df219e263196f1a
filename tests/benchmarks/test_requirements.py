"""Requirements on a report's figures: what they say, what is refused before anything is asked, and what passes."""

from __future__ import annotations

import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.benchmarks.report import write_reports
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.requirements import check_report, parse_requirement
from rewardlab.benchmarks.robustness.model import FamilyScores, Figures, Robustness
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError
from rewardlab.metrics.revision import ShareEstimate


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


def test_values_by_hand(report: Report) -> None:
    """(29.5 + 5) of 40 are right; ten pairs lean to the second place, and a bias is compared by its absolute value."""
    assert report.scores.accuracy.micro == pytest.approx(34.5 / 40)
    assert report.scores.position_bias is not None
    assert report.scores.position_bias < -0.05
    low, high = report.scores.interval
    met = {
        "accuracy.micro>=0.8625": True,
        "accuracy.micro>=86.25%": True,
        "accuracy.micro>=0.8626": False,
        " accuracy.micro <= 0.87 ": True,
        f"interval.low>={low - 0.001}": True,
        f"interval.low>={low + 0.001}": False,
        f"interval.high<={high + 0.001}": True,
        f"interval.1<={high - 0.001}": False,
        "invalid_rate<=0.0125": True,
        "invalid_rate<=0.0124": False,
        "position_bias<=0.05": False,
        "num_pairs>=40": True,
        "num_pairs>=41": False,
        "k_curve.0.accuracy>=0.8625": True,
        "baselines.first.micro<=0.5": True,
    }
    for group, cell in report.scores.groups.items():
        met |= {f"groups.{group}.accuracy>={cell.accuracy}": True}
        met |= {f"groups.{group}.interval.high<={cell.interval[1] - 0.001}": False}
    assert {text: is_met(report, text) for text in met} == met


def test_sentences(report: Report) -> None:
    """Path, value and bound; of an absent value also the paths that are near it."""
    said = {
        "accuracy.micro>=0.9": "accuracy.micro is 86.25 %: it is below the 90.00 % required",
        "accuracy.micro>=0.8": "accuracy.micro is 86.25 %: it reaches the 80.00 % required",
        "invalid_rate<=1%": "invalid_rate is 1.25 %: it is above the 1.00 % required",
        "controls.blank.invalid_rate<=0.6": "controls.blank.invalid_rate has no value in this run, for the 60.00 % required",
        "baselines.frist.micro<=0.6": "baselines.frist.micro has no value in this run, for the 60.00 % required; near it: base",
    }
    for text, sentence in said.items():
        assert check_report(report, parse_requirement(text)).sentence.startswith(sentence)


def test_a_name_with_dots_is_one_name(report: Report) -> None:
    group = next(iter(report.scores.groups.values()))
    renamed = replace(report, scores=replace(report.scores, groups={"v1.5 hard": group}))
    assert is_met(renamed, "groups.v1.5 hard.accuracy>=0")
    assert not is_met(renamed, "groups.v1.accuracy>=0")


def test_what_has_no_value_meets_nothing(report: Report) -> None:
    """Neither a bound from below nor one from above; nor does what is no number."""
    broken = replace(report, scores=replace(report.scores, swap_consistency=None, invalid_rate=float("nan")))
    for text in ("swap_consistency>=0", "swap_consistency<=1", "invalid_rate>=0", "invalid_rate<=1"):
        assert not is_met(broken, text)
        assert is_met(report, text)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("acuracy.micro>=0.7", "did you mean 'accuracy'"),
        ("brilliance>=0.7", "expected one of accuracy, agreement"),
        ("accuracy>=0.7", "the path ends before a number; add one of micro, macro"),
        ("accuracy.micro>0.7", "expected PATH>=NUMBER"),
        ("", "expected PATH>=NUMBER"),
        ("accuracy.micro>=70", "a fraction up to 1, such as 0.7 or 70%"),
        ("accuracy.micro>=nan", "a fraction up to 1"),
        ("accuracy.micro>=much", "a fraction up to 1"),
        ("num_pairs>=50%", "this metric is not a fraction"),
        ("num_pairs>=inf", "this metric is not a fraction"),
        ("num_pairs.low>=10", "does not lead to a number"),
        ("judge>=0.1", "does not lead to a number"),
        ("interval.middle>=0.1", "expected one of high, low"),
        ("groups.general.swap_consistency>=0.1", "no 'swap_consistency' there"),
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
        ("groups.counnt.accuracy>=0.7", {}, "did you mean 'count'"),
        ("swap_consistency>=0.7", {"orders": "given"}, "needs both orders"),
        ("controls.blank.accuracy.micro<=0.6", {"controls": ()}, "needs --controls blank"),
        ("controls.other.interval.high<=0.6", {}, "needs --controls blank,other"),
        ("all_right.accuracy>=0.6", {}, "does not count prompts"),
        ("robustness.held_out.good_unnamed.share<=0.6", {}, "is a metric of attacked runs"),
    ],
)
def test_refused_before_anything_is_asked(
    text: str, options: dict[str, Any], message: str, demo_pairs: Any, tmp_path: Path
) -> None:
    """What a run of these settings will have no value for; not one vote is cast."""
    pairs = [replace(pair, category="count" if n % 2 else "colour") for n, pair in enumerate(demo_pairs[0][:6])]
    write_parquet(pairs, tmp_path / "pairs.parquet")
    required = (parse_requirement(text),)
    with pytest.raises(ConfigError, match=message):
        run_bench(
            bench_settings("pairs", tmp_path / "pairs.parquet", "baseline:first", requirements=required, **options),
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
    half = ShareEstimate(100, 0.5, (0.4, 0.6))
    families = {
        name: FamilyScores("unseen", name, in_training, True, 100, half, None, None, share)
        for name, in_training, share in (("blank", False, held_out), ("black", True, trained_on))
    }
    figures = replace(Figures(*[None] * len(fields(Figures))), right_unseen=half)
    attacked = replace(report, robustness=Robustness(40, "x", half, figures, figures, families))
    assert is_met(attacked, "robustness.held_out.right_unseen.share<=0.6") is met
