"""Signs that a policy pleases its judge rather than improves: metrics that rise or fall from the beginning of its run.

They measure the policy's answers (novelty, repetition, the length of winners) and the judge, which is queried again on a sample
of each rollout batch: with blank images, on labelled pairs, and beside a second judge.
"""

from __future__ import annotations

import itertools
import math
import random
import zlib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from rewardlab.config import SignsConfig
from rewardlab.data.pair_table import light_pairs, pair_facts
from rewardlab.data.rows import with_blank_images
from rewardlab.data.texts import words_of
from rewardlab.judging.judge import ModelJudge
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.types import BOTH_ORDERS, Judgment, PreferencePair, Vote
from rewardlab.verdicts.votes import VALID, enough_valid

BEGINNING, LAST = 5, 3  # rollout batches whose means are compared


@dataclass(frozen=True)
class Trend:
    """A metric that becomes a sign when it rises by more than a limit, or ``falls`` by it. ``limit`` is a key of
    :class:`SignsConfig`; ``sentence`` has {before} and {now}."""

    metric: str
    limit: str
    sentence: str
    falls: bool = False


TRENDS = {
    "novel_answers": Trend(
        "answers/novelty",
        "max_novelty",
        "{now:.1%} of the word pairs in answers occur in no answer of the set, {before:.1%} at first: the policy writes "
        "what the judge has not seen",
    ),
    "new_winners": Trend(
        "answers/new_winners",
        "max_new_winners",
        "{now:.1%} of the answers have a new word pair and a high reward, {before:.1%} at first: the judge rewards "
        "what it has not seen",
    ),
    "overpaid": Trend(
        "answers/overpaid",
        "max_overpaid",
        "the mean reward exceeds correctness by {now:+.3f}, {before:+.3f} at first: the judge rewards something else",
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
        "highly rewarded answers are {now:.2f} times as long as the others, {before:.2f} times at first",
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
        "the second judge's probabilities are {now:.2f} off, {before:.2f} at first: the policy exploits one of the judges",
    ),
    "canaries": Trend(
        "judge/canaries",
        "max_canary_fall",
        "the judge is right in {now:.0%} of the pairs whose better response is known, in {before:.0%} at first: it is not "
        "the same judge any more",
        falls=True,
    ),
}


JUDGE_METRICS = tuple(trend.metric for trend in TRENDS.values() if trend.metric.startswith("judge/"))


def bounds_of_signs(rows: Sequence[Mapping[str, Any]], limits: Mapping[str, Any]) -> dict[str, float]:
    """Return, by metric, the value beyond which the mean of :data:`LAST` lines is a sign. ``rows`` are the lines of a run's
    metrics, ``limits`` its settings. A metric without a limit, or without :data:`BEGINNING` finite values, is left out; metrics
    of the judge count since its ``judge_hash`` last changed."""
    hashes = [row.get("judge_hash") for row in rows]
    newest = next((n for n in range(len(rows), 0, -1) if hashes[n - 1] != hashes[-1]), 0)
    bounds = {}
    for trend in TRENDS.values():
        of_judge = rows[newest:] if trend.metric in JUDGE_METRICS else rows
        values = [row[trend.metric] for row in of_judge if row.get(trend.metric) is not None][:BEGINNING]
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
        """Return, by name, the sentence of a sign after this line of metrics, "" for none. Metrics that the line lacks are left
        out."""
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


MOST_TEXTS = 20_000  # of which the word pairs are remembered: novelty is read as a rise over a run's own beginning
RUN = 3  # words that stand one after another again: a repetition


class KnownWordPairs:
    """The bigrams of some texts, with beginnings and ends, as sorted 32-bit hashes: of a million, one new one in 4,000 passes
    for known."""

    def __init__(self, texts: Iterable[str]) -> None:
        hashes = {number for text in texts for number in _word_pairs(words_of(text))}
        self._hashes = np.fromiter(sorted(hashes), np.uint32, len(hashes))

    def novelty(self, text: str) -> float:
        """Return the fraction of a text's bigrams that none of the texts has. A text without words has one bigram."""
        pairs = np.array(_word_pairs(words_of(text)), np.uint32)
        if not len(self._hashes):
            return 1.0
        places = np.minimum(np.searchsorted(self._hashes, pairs), len(self._hashes) - 1)
        return float((self._hashes[places] != pairs).mean())


def known_answers(pairs: Sequence[PreferencePair], seed: int) -> KnownWordPairs:
    """Return the word pairs of the answers of a set, or of so many drawn ones that more would say little."""
    number = min(len(pairs), MOST_TEXTS // 2)
    drawn = set(random.Random(f"known answers {seed}").sample(range(len(pairs)), number))
    return KnownWordPairs(text for n, pair in light_pairs(pairs) if n in drawn for text in pair.responses)


def _word_pairs(words: Sequence[str]) -> list[int]:
    ends = ["", *words, ""]
    return [zlib.crc32(f"{first} {second}".encode()) for first, second in itertools.pairwise(ends)]


def answer_metrics(rows: Sequence[tuple[str, str, float | None]], known: KnownWordPairs | None = None) -> dict[str, float]:
    """Return metrics of a batch of (prompt, answer, reward): ``answers/repetition``, ``most_common`` and ``winners_length``,
    with ``known`` also ``novelty`` and ``new_winners``. Empty answers count in ``most_common`` alone. A metric without data is
    left out.
    """
    common = most_common([row[0] for row in rows], [row[1] for row in rows])
    rows = [row for row in rows if row[1]]
    answers, rewards = [row[1] for row in rows], [row[2] for row in rows]
    measures = {
        "answers/repetition": _mean(map(repetition, answers)),
        "answers/most_common": common,
        "answers/winners_length": winners_length(answers, rewards),
    }
    if known:
        novelty = [known.novelty(answer) for answer in answers]
        measures |= {"answers/novelty": _mean(novelty), "answers/new_winners": new_winners(novelty, rewards)}
    return {name: value for name, value in measures.items() if value is not None}


def _mean(values: Iterable[float]) -> float | None:
    numbers = list(values)
    return sum(numbers) / len(numbers) if numbers else None


def repetition(text: str) -> float:
    """Return the share (0..1) of a text's runs of three words that stood in it before; 0 for one of three words or fewer."""
    words = words_of(text)
    runs = list(zip(*(words[n:] for n in range(RUN)), strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def most_common(prompts: Sequence[str], answers: Sequence[str]) -> float | None:
    """Return the share (0..1) of prompts that got the answer that most of them got, by its words; None of fewer than two."""
    answered = {(prompt, " ".join(words_of(answer))) for prompt, answer in zip(prompts, answers, strict=True)}
    if len(set(prompts)) < 2:
        return None
    return Counter(answer for _, answer in answered).most_common(1)[0][1] / len(set(prompts))


def new_winners(novelty: Sequence[float], rewards: Sequence[float | None]) -> float | None:
    """Return the fraction of rewarded answers with a new bigram and a high reward: above the median, or equal to the maximum if
    half of the answers or more have it. None without rewards. New words with low rewards are what a policy tries; with high
    ones, what it learns.
    """
    paid = [(reward, new > 0) for reward, new in zip(rewards, novelty, strict=True) if reward is not None]
    if not paid:
        return None
    pay = [reward for reward, _ in paid]
    median, most, least = float(np.median(pay)), max(pay), min(pay)
    well = [reward > median or least < reward == most for reward in pay]
    return _mean(float(is_new and pays) for (_, is_new), pays in zip(paid, well, strict=True))


def winners_length(answers: Sequence[str], rewards: Sequence[float | None]) -> float | None:
    """Return the ratio of the mean length, in words, of answers above the median reward to that of the others; None if
    undefined."""
    paid = [(reward, len(words_of(answer))) for answer, reward in zip(answers, rewards, strict=True) if reward is not None]
    median = float(np.median([reward for reward, _ in paid])) if paid else 0.0
    above, below = ([length for reward, length in paid if (reward > median) is wins] for wins in (True, False))
    return float(np.mean(above) / np.mean(below)) if above and sum(below) else None


@dataclass(frozen=True)
class AnswerComparison:
    """An answer of the policy (response 0) against another text, and the judge's fraction for it in both orders."""

    pair: PreferencePair
    share: float | None


def share_in_both_orders(judgment: Judgment) -> float | None:
    """Return the fraction for response 0; None if an order has no valid vote, or if fewer than half of the votes are valid. A
    tie counts half for either."""
    read = [vote for vote in judgment.votes if vote.verdict.status in VALID]
    if {vote.order for vote in read} != set(BOTH_ORDERS) or not enough_valid(judgment.votes):
        return None
    if any(vote.margin is not None for vote in read):
        return judgment.share_0
    halves = {order: [_half_points(vote) for vote in read if vote.order is order] for order in BOTH_ORDERS}
    return sum(sum(points) / len(points) for points in halves.values()) / (2 * len(BOTH_ORDERS))


def _half_points(vote: Vote) -> int:
    return 1 if vote.winner is None else 2 * (vote.winner == 0)


def orders_agree(judgment: Judgment) -> bool | None:
    """Return whether all votes of both orders name one response; None where an order has no vote that can be read."""
    if share_in_both_orders(judgment) is None:
        return None
    winners = {vote.winner for vote in judgment.votes if vote.verdict.status in VALID}
    return len(winners) == 1 and None not in winners


def drawn_canaries(pairs: Sequence[PreferencePair], number: int, seed: int) -> list[PreferencePair]:
    """Return labelled pairs to judge again and again. They are chosen once: other pairs would look like another judge."""
    labelled = [n for n, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None] if number else []
    places = random.Random(f"canaries {seed}").sample(labelled, min(number, len(labelled)))
    return [pairs[place] for place in places]


class JudgeChecks:
    """Queries ``judge`` again on ``sample`` comparisons of each batch with blank images, ``second_judge`` on the same ones as
    they are, and ``judge`` on ``num_canaries`` of the labelled ``canaries``, chosen once by ``seed``. What a policy learns to
    write to please a judge does not depend on the image, and does not please another judge.
    """

    def __init__(
        self,
        judge: ModelJudge,
        *,
        sample: int = 16,
        second_judge: ModelJudge | None = None,
        canaries: Sequence[PreferencePair] = (),
        num_canaries: int = 8,
        num_votes: int = 1,
        seed: int = 0,
    ) -> None:
        self._judge, self._second, self._sample = judge, second_judge, sample
        self._num_votes, self._seed = num_votes, seed
        self._canaries = drawn_canaries(canaries, num_canaries, seed)

    def __call__(self, comparisons: Sequence[AnswerComparison], step: int) -> Metrics:
        """Return ``judge/blank_gap``, ``judge/second_gap`` and ``judge/canaries``, if configured and readable. A gap is the
        mean distance (0..1) of two probabilities that the answer beats the other text."""
        dice = random.Random(f"signs {self._seed} {step}")
        some = dice.sample(list(comparisons), min(self._sample, len(comparisons)))
        metrics: dict[str, Metric] = {}
        seen = [each for each in some if each.pair.images]
        if seen:
            metrics |= self._gap("judge/blank_gap", self._judge, seen, with_blank_images([each.pair for each in seen]), step)
        if self._second is not None and some:
            metrics |= self._gap("judge/second_gap", self._second, some, [each.pair for each in some], step)
        if self._canaries:
            right, num_read = self._canary_votes(step)
            if 2 * num_read >= len(self._canaries):  # of fewer it would be another mean
                metrics["judge/canaries"] = Metric(sum(right) / len(right), len(right))
        return metrics

    def _canary_votes(self, step: int) -> tuple[list[bool], int]:
        """Return which valid votes on canaries are right, and how many canaries are readable in both orders."""
        read = [
            (pair, judgment)
            for pair, judgment in zip(self._canaries, self._ask(self._judge, self._canaries, step), strict=True)
            if share_in_both_orders(judgment) is not None
        ]
        votes = [(vote, pair) for pair, judgment in read for vote in judgment.votes if vote.verdict.status in VALID]
        return [vote.winner == pair.preferred for vote, pair in votes], len(read)

    def _ask(self, judge: ModelJudge, pairs: Sequence[PreferencePair], step: int) -> list[Judgment]:
        orders = [BOTH_ORDERS] * len(pairs)
        return judge.compare_many(pairs, orders=orders, num_votes=self._num_votes, seed=self._seed + step)

    def _gap(
        self, name: str, judge: ModelJudge, before: Sequence[AnswerComparison], pairs: Sequence[PreferencePair], step: int
    ) -> dict[str, Metric]:
        shares = [
            (first.share, share_in_both_orders(now)) for first, now in zip(before, self._ask(judge, pairs, step), strict=True)
        ]
        gaps = [abs(a - b) for a, b in shares if a is not None and b is not None]
        return {name: Metric(sum(gaps) / len(gaps), len(gaps))} if gaps else {}
