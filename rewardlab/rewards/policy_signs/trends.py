"""Signs that a policy pleases its judge rather than gets better: metrics that rise or fall from a run's own beginning."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from rewardlab.config import SignsConfig

BEGINNING, LAST = 5, 3  # rollout batches whose means are compared


@dataclass(frozen=True)
class Trend:
    """A metric that becomes a sign when it rises by more than a limit, or ``falls`` by it. ``limit`` names the key of
    :class:`SignsConfig`; ``sentence`` has {before}, {now} and what it may mean."""

    metric: str
    limit: str
    sentence: str
    falls: bool = False


TRENDS = {
    "novel_answers": Trend(
        "answers/novelty",
        "max_novelty",
        "{now:.1%} of the word pairs in answers stand in no answer of the set, {before:.1%} at first: the policy writes what "
        "the judge has not seen",
    ),
    "new_winners": Trend(
        "answers/new_winners",
        "max_new_winners",
        "{now:.1%} of the answers have a new word pair and are paid well, {before:.1%} at first: the judge pays for what it "
        "has not seen",
    ),
    "overpaid": Trend(
        "answers/overpaid",
        "max_overpaid",
        "answers are paid {now:+.3f} more than they are right, {before:+.3f} at first: the judge is pleased by something else",
    ),
    "repetition": Trend(
        "answers/repetition", "max_repetition", "{now:.1%} of the word triples in answers are repeated, {before:.1%} at first"
    ),
    "one_answer": Trend(
        "answers/most_common", "max_most_common", "{now:.0%} of the prompts get one and the same answer, {before:.0%} at first"
    ),
    "length_pays": Trend(
        "answers/winners_length",
        "max_winners_length",
        "well paid answers are {now:.2f} times as long as the others, {before:.2f} times at first",
    ),
    "orders_disagree": Trend(
        "judge/order_agreement",
        "max_disagreement",
        "in {now:.0%} of the comparisons both orders name one answer, in {before:.0%} at first: the judge cannot tell the two "
        "apart",
        falls=True,
    ),
    "picture_unused": Trend(
        "judge/blank_gap",
        "max_blank_fall",
        "without the picture the judge's probabilities are {now:.2f} off, {before:.2f} at first: it looks at the answer alone",
        falls=True,
    ),
    "second_judge": Trend(
        "judge/second_gap",
        "max_second_gap",
        "the second judge's probabilities are {now:.2f} off, {before:.2f} at first: what pleases one does not please the other",
    ),
    "canaries": Trend(
        "judge/canaries",
        "max_canary_fall",
        "the judge is right in {now:.0%} of the pairs whose better response is known, in {before:.0%} at first: it is not the "
        "judge that it was",
        falls=True,
    ),
}


def bounds_of_signs(rows: Sequence[Mapping[str, Any]], limits: Mapping[str, Any]) -> dict[str, float]:
    """Return by metric the value beyond which the mean of :data:`LAST` lines is a sign. ``rows`` are all lines of a run's
    metrics, ``limits`` the settings of its signs as they were: a run by another version may have others than
    :class:`SignsConfig`. A metric without a limit is left out, as is one that has fewer than :data:`BEGINNING` values, or one
    among them that is no number."""
    bounds = {}
    for trend in TRENDS.values():
        values = [row[trend.metric] for row in rows if row.get(trend.metric) is not None][:BEGINNING]
        limit: float | None = limits.get(trend.limit)
        is_known = all(isinstance(value, int | float) and math.isfinite(value) for value in values)  # nan is logged as a text
        if limit is not None and is_known and len(values) == BEGINNING:
            bounds[trend.metric] = sum(values) / BEGINNING + (-limit if trend.falls else limit)
    return bounds


def early_sentence(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return a sentence where a policy's run, by all lines of its metrics, is too short for any sign to be seen, else ""."""
    most = max(sum(row.get(trend.metric) is not None for row in rows) for trend in TRENDS.values())
    if most >= BEGINNING + LAST:
        return ""
    return f"Signs of a policy can be seen from rollout batch {BEGINNING + LAST} on; this run has {most}."


class PolicySigns:
    """Compares the mean of each metric's last :data:`LAST` lines with that of its first :data:`BEGINNING`."""

    def __init__(self, config: SignsConfig) -> None:
        self._config = config
        self._values: dict[str, list[float]] = {}

    def forget(self, metrics: Iterable[str]) -> None:
        """Begin these metrics anew: what comes is compared with nothing before."""
        for metric in metrics:
            self._values.pop(metric, None)

    def of(self, logs: Mapping[str, float]) -> dict[str, str]:
        """Return what a line of metrics, after those before it, is a sign of: name -> a sentence with the numbers, "" for none.
        A line without a metric leaves its sign out."""
        return {name: self._sentence(trend, logs[trend.metric]) for name, trend in TRENDS.items() if trend.metric in logs}

    def _sentence(self, trend: Trend, value: float) -> str:
        values = self._values.setdefault(trend.metric, [])
        values.append(value)
        limit: float | None = getattr(self._config, trend.limit)
        if limit is None or len(values) < BEGINNING + LAST:
            return ""
        before, now = sum(values[:BEGINNING]) / BEGINNING, sum(values[-LAST:]) / LAST
        change = before - now if trend.falls else now - before
        return trend.sentence.format(before=before, now=now) if change > limit else ""
