"""The one number of a report, and what it is the number of."""

from __future__ import annotations

from dataclasses import dataclass

from rewardlab.benchmarks.report_model import Report
from rewardlab.reporting.tables import percent, with_interval

TRIALS = {"both": "each pair in both orders, each order a trial", "random": "each pair in one order, drawn"}
NOT_ONE_VERDICT = "no verdict was read in any of {:,} answers"


def has_majorities(report: Report) -> bool:
    """Return whether a trial has more than one vote, so that some of them may lack a verdict and the others decide."""
    return report.votes > 1 or report.panel is not None


def decision_name(report: Report) -> str:
    """Return what the accuracy of pairs that are decided once, over both orders, is called."""
    if report.panel:
        return f"panel by {report.panel.rule}, over both orders"
    if "verdict_probability" in report.scores.confidence:
        return "by probability over both orders"
    return "one majority over both orders" if report.votes > 1 else "right in both orders"


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
    if has_majorities(report):
        meaning += f", decided by more than half of the votes asked ({percent(scores.undecided_rate)} % undecided)"
    if scores.decision:
        meaning += f"; {decision_name(report)}: {percent(scores.decision.accuracy)} %"
    if has_majorities(report) and (blank := report.controls.get("blank")):
        greedy = report.controls.get("greedy")
        name, sees = ("one greedy vote", greedy.accuracy.micro) if greedy else ("one vote", scores.one_vote.accuracy)
        meaning += f"; {name}: {percent(sees)} %, with a blank image {percent(blank.accuracy.micro)} %"
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
