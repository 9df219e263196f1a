"""The words of a report, each explained in a sentence beside it."""

from __future__ import annotations

from rewardlab.benchmarks.headline import has_majorities
from rewardlab.benchmarks.report_model import Report

ALWAYS = {
    "95 % interval": "Where the figure would lie were other prompts drawn; pairs of one prompt are drawn together.",
    "trial": "One order of one pair, decided by more than half of the votes asked; an undecided one is not right.",
    "micro average": "Mean over all pairs; large groups weigh more.",
    "macro average": "Mean of the groups' accuracies; each group weighs the same.",
    "over both orders": "Each pair decided once, by more than half of the votes of both orders together.",
    "invalid rate": "Share of answers from which no verdict can be read, for whatever reason. They count as wrong.",
    "swap consistency": "Share of pairs for which both orders name the same response.",
    "position bias": "Share of verdicts for the response shown first, less one half. 0 is no bias.",
    "length bias": "How much more often the longer response is named than it is the better one. 0 is no bias.",
    "baselines": "Judges that read nothing: the longest or shortest response, a coin, always the first shown.",
    "length, in fifths": "Pairs sorted by how much longer the better response is; a judge that favours length rises "
    "from left to right.",
}
MAJORITIES = {
    "undecided": "Trials in which neither response has more than half of the votes asked. They count as wrong.",
    "majority of the valid votes": "The same trials if answers without a verdict were left out of the count: the rule of most "
    "papers. A judge that answers one time in ten, and is right then, has 100 % by it.",
}
CURVE = {
    "votes K": "As many answers are drawn for each order; more than half of them decide.",
    "any of K right": "One right answer among K, were it known which; a coin gets there, too. It is no accuracy.",
}
STOPPING = {
    "votes one after another": "Asking ends when the votes left can hardly change the majority: what it saves and costs.",
    "stopping error": "The chance that is allowed that they would have changed it.",
}
CONFIDENCE = {
    "ECE": "Expected calibration error: how far confidences are from the share that is right. In brackets what "
    "confidences that are exactly right would show on as many pairs.",
    "Brier": "Mean squared distance of the confidence from right (1) or wrong (0). 0.25 is what always saying one half gets.",
    "undecided pairs": "Their votes name both responses alike, or too few are valid for a confidence.",
    "reliability": "Right answers against confidence; on the line, a confidence is worth its name.",
    "abstaining": "Errors among the pairs decided, where those of least confidence are left out.",
}
CONTROLS = {
    "blank": ("text-only (blank image)", "The same judge with blank images of the same size: what it knows without looking."),
    "other": ("another pair's image", "The same judge with an image that does not belong: does it notice?"),
    "greedy": ("one greedy vote", "The same judge at temperature 0."),
}


def explain_words(report: Report) -> dict[str, str]:
    """Return the words that the report's page has, with what they mean."""
    words = dict(ALWAYS)
    if has_majorities(report):
        words |= MAJORITIES
    words |= dict(CONTROLS[name] for name in report.controls)
    if report.scores.all_right:
        words["Acc+"] = "Share of prompts whose every pair is right in every order shown."
    if len(report.scores.k_curve) > 1:
        words |= CURVE
    if report.scores.sequential:
        words |= STOPPING
    if report.scores.confidence:
        words |= CONFIDENCE
    return words
