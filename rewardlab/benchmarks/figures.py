"""What a report's figures show: from the report's numbers to :mod:`rewardlab.reporting.plots`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from rewardlab.benchmarks.report_model import BaselineScores, Report, Scores
from rewardlab.metrics.intervals import AccuracyEstimate
from rewardlab.reporting.plots import (
    GOLD,
    INK,
    LEAF,
    WARM,
    WIDE,
    Measured,
    Series,
    plot_accuracies,
    plot_fractions,
    plot_length,
    plot_position,
    plot_reliability,
    plot_risk,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

CONFIDENCE_NAMES = {"vote_share": "share of votes", "verdict_probability": "probability of the verdict"}
CONFIDENCE_LABELS = {"vote_share": "share\nof votes", "verdict_probability": "probability\nof the verdict"}


@dataclass(frozen=True)
class ReportFigure:
    """A figure of a report: its file's ``name``, and the caption that it has on a page."""

    name: str
    caption: str
    figure: Figure


def report_figures(report: Report) -> list[ReportFigure]:
    """Return a figure of everything that the report has numbers for."""
    scores = report.scores
    groups = {} if report.robustness else scores.groups  # of attacks there are too many to be drawn
    cells: dict[str, Measured] = {**groups, "overall": AccuracyEstimate(scores.accuracy.micro, scores.interval)}
    accuracies = plot_accuracies(cells, best_baseline(report.baselines))
    figures = [ReportFigure("accuracy", "Accuracy by group", accuracies)]
    if len(scores.k_curve) > 1:
        figures.append(ReportFigure("votes", "What more votes buy", _curve(scores)))
    if scores.position_bias is not None:
        leans = {name: (cell.position_bias, cell.position_interval) for name, cell in groups.items()}
        leans |= {"overall": (scores.position_bias, scores.position_interval)}
        caption = "Position: how often the response shown first is named"
        figures.append(ReportFigure("position", caption, plot_position(leans)))
    lengths = [(cell.characters, cell) for cell in scores.by_length]
    caption = "Length: accuracy by how much longer the better response is"
    is_distinct = len({characters for characters, _ in lengths}) == len(lengths)  # else fifths of one length
    figures += [ReportFigure("length", caption, plot_length(lengths))] if lengths and is_distinct else []
    return figures + _confidence_figures(scores)


def best_baseline(baselines: Mapping[str, BaselineScores]) -> tuple[str, float]:
    """Return the name of the baseline that scores most, and its accuracy."""
    name = max(baselines, key=lambda rule: baselines[rule].micro)
    return name, baselines[name].micro


def _curve(scores: Scores) -> Figure:
    curve = scores.k_curve
    lines = [Series.of("one order,\nmajority of K", [point.k for point in curve], curve, INK)]
    balanced = [(2 * point.k, point.balanced) for point in curve if point.balanced]
    weighted = [(2 * point.k, point.weighted) for point in curve if point.weighted]
    for label, cells, color in (
        ("both orders,\nK each", balanced, LEAF),
        ("both orders,\nby probability", weighted, WARM),
    ):
        if cells:
            lines.append(Series.of(label, [samples for samples, _ in cells], [cell for _, cell in cells], color))
    if stops := [point for point in scores.sequential if point.error]:
        samples, accuracies = [point.samples for point in stops], [point.accuracy for point in stops]
        lines.append(Series("both orders,\nuntil settled", samples, accuracies, GOLD, is_dashed=True))
    return plot_fractions(lines, xlabel="samples per pair")


def _confidence_figures(scores: Scores) -> list[ReportFigure]:
    figures, reliability, risks = list[ReportFigure](), {}, {}
    for name, confidence in scores.confidence.items():
        calibration, label = confidence.calibration, CONFIDENCE_LABELS[name]
        ece = f"\nECE {100 * calibration.ece:.1f}" if calibration else ""
        reliability[label + ece] = calibration.reliability if calibration else ()
        risks[label] = calibration.risk_coverage if calibration else ()
    if any(reliability.values()):
        caption = "Reliability: is a confidence worth its name?"
        figures.append(ReportFigure("reliability", caption, plot_reliability(reliability)))
    if any(len(curve) > 1 for curve in risks.values()):
        caption = "Abstaining: errors among the pairs a judge is surest of"
        figures.append(ReportFigure("abstaining", caption, plot_risk(risks)))
    return figures


def leaderboard_figure(reports: Mapping[str, Report], *, width: float = WIDE) -> Figure:
    """Draw the accuracy of each run by name with its interval, best first, beside chance and the first's best baseline;
    ``width`` in inches."""
    ranked = sorted(reports.items(), key=lambda item: -item[1].scores.accuracy.micro)
    cells = {name: AccuracyEstimate(report.scores.accuracy.micro, report.scores.interval) for name, report in ranked}
    return plot_accuracies(cells, best_baseline(next(iter(reports.values())).baselines), width=width, least=0.0)
