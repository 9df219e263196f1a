"""The one number of a report, and what it is the number of."""

from __future__ import annotations

from dataclasses import dataclass

from rewardlab.benchmarks.report_model import Report
from rewardlab.reporting.tables import percent, with_interval

TRIALS = {"both": "each pair in both orders, each order a trial", "random": "each pair in one order, drawn"}
NOT_ONE_VERDICT = "no verdict was read in any of {:,} answers"


@dataclass(frozen=True)
class Headline:
    """``number`` in percent, its ``interval``, and ``meaning``."""

    number: str
    interval: str
    meaning: str


def headline(report: Report) -> Headline:
    """Return the accuracy over trials with its interval. A failed report has one too, which is not to be shown."""
    scores = report.scores
    number, _, interval = with_interval(scores.accuracy.micro, scores.interval).partition(" ")
    of = "attacked pairs" if report.robustness else "pairs"
    meaning = f"accuracy on {scores.num_pairs:,} {of}: {TRIALS.get(report.orders, f'each pair in {report.orders} order')}"
    if scores.decision:
        meaning += f"; decided once over both orders: {percent(scores.decision.accuracy)} %"
    if scores.invalid_rate == 1:
        meaning = f"for {NOT_ONE_VERDICT.format(scores.num_votes_total)}, and each counts as wrong; {meaning}"
    return Headline(number, interval, meaning)


def headline_sentence(report: Report) -> str:
    """Return the headline as a line of text: "81.7 % [76.0, 86.4] accuracy on ..."."""
    parts = headline(report)
    return f"{parts.number} % {parts.interval} {parts.meaning}"


def judge_name(judge: str) -> str:
    """Return a judge without the address that it is served at: "openai:MODEL"."""
    return judge.partition("@http")[0]
