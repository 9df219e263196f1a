"""From labelled judgments to the numbers of a report."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.baselines import RULES, BaselineJudge, num_characters
from rewardlab.benchmarks.report_model import (
    Accuracy,
    BaselineScores,
    Calibration,
    ChecklistScores,
    Confidence,
    CountedEstimate,
    CriterionScores,
    CurvePoint,
    GroupScores,
    JudgeScores,
    LengthFifth,
    Scores,
    StoppingPoint,
    ValidMajority,
)
from rewardlab.metrics.accuracy import (
    Labeled,
    any_correct_score,
    balanced_accuracy,
    by_group,
    invalid_rate,
    length_bias,
    macro,
    micro,
    pair_length_biases,
    pair_score,
    pair_swaps,
    position_bias,
    score_of,
    smallest_pool,
    status_counts,
    swap_consistency,
    undecided_score,
    valid_majority_scores,
    vote_counts,
)
from rewardlab.metrics.calibration import (
    area_under_risk,
    brier,
    calibration_error_interval,
    expected_calibration_error,
    least_calibration_error,
    reliability,
    risk_coverage,
)
from rewardlab.metrics.intervals import (
    AccuracyEstimate,
    DifferenceEstimate,
    Interval,
    cluster_numbers,
    difference_interval,
    macro_interval,
    mean_estimate,
    mean_interval,
    ratio_interval,
)
from rewardlab.metrics.revision import RevisionScores, ShareEstimate, VerifiedVote, revision_scores
from rewardlab.metrics.ties import three_way_outcome
from rewardlab.prompts.verification import read_verification
from rewardlab.reporting.tables import percent, signed, with_interval
from rewardlab.types import BOTH_ORDERS, FinishReason, Judgment, Order, Outcome, PreferencePair, Vote
from rewardlab.verdicts.checklist import MAX_NAMES, ClaimFinding, checks_of, judgments_by_criterion
from rewardlab.verdicts.early_stopping import EarlyStop, alternate_orders, stop_early
from rewardlab.verdicts.lists import LIST_FORMATS
from rewardlab.verdicts.parse import CHECKLIST, parse_verdict
from rewardlab.verdicts.votes import VALID, in_order, judgment_by_probability, majority, probability_of_0, share_for_0

REVISION = ("self-verification", "share %, 95 % interval", "judgments")
_JUDGED, _REVISED = 2, 3  # turns of a judgment that stands, and of a revised one


def revision_of(items: Sequence[Labeled], clusters: Sequence[str], verdict_format: str) -> RevisionScores | None:
    """Return the scores of all votes; None where none was verified. A vote that was not verified, for it was cut off or failed,
    has one judgment, the first and the last."""
    votes = [(vote, item, cluster) for item, cluster in zip(items, clusters, strict=True) for vote in item.judgment.votes]
    if verdict_format in LIST_FORMATS or not any(vote.completion.turns for vote, _, _ in votes):  # turns of a list are ratings
        return None
    verified = [verified_vote(vote, item.preferred, verdict_format) for vote, item, _ in votes]
    return revision_scores(verified, [cluster for _, _, cluster in votes])


def verified_vote(vote: Vote, preferred: int, verdict_format: str) -> VerifiedVote:
    """Return what the turns of a vote come to, where response ``preferred`` is better."""
    turns, last_right = vote.completion.turns, vote.winner == preferred
    if len(turns) < _JUDGED:
        return VerifiedVote(last_right, None, revised=False, last_right=last_right)
    first = replace(vote, verdict=parse_verdict(turns[0], verdict_format))
    revised, says_correct = len(turns) == _REVISED, read_verification(turns[1])
    if says_correct is False and not revised:  # a verification that was cut off is none
        says_correct = None
    return VerifiedVote(first.winner == preferred, says_correct, revised, last_right)


def revision_sentence(scores: RevisionScores) -> str:
    """Return what revising gains, and how often it is done."""
    gain, (low, high) = scores.net_gain.difference, scores.net_gain.interval
    verdict = "gains" if low > 0 else "loses" if high < 0 else "neither gains nor loses for sure"
    return (
        f"The judge verifies its judgments and revises {percent(scores.revised)} % of them: that {verdict}, "
        f"{signed(gain)} points [{signed(low)}, {signed(high)}] of accuracy. {percent(scores.unclear)} % of judgments "
        "have no verification that says whether they are correct or wrong."
    )


def revision_rows(scores: RevisionScores) -> list[tuple[str, str, str]]:
    """Return (figure, share in percent with its interval, number of judgments)."""
    n = f"{scores.n:,}"
    shares = {
        "right judgments that are lost": scores.lost,
        "wrong judgments that are mended": scores.mended,
        "right judgments that are called correct": scores.right_confirmed,
        "wrong judgments that are called wrong": scores.wrong_noticed,
    }
    return [
        ("first judgment right", with_interval(scores.first.accuracy, scores.first.interval), n),
        ("last judgment right", with_interval(scores.last.accuracy, scores.last.interval), n),
        *((name, *_cells(share)) for name, share in shares.items()),
    ]


def _cells(estimate: ShareEstimate | None) -> tuple[str, str]:
    return ("–", "0") if estimate is None else (with_interval(estimate.share, estimate.interval), f"{estimate.n:,}")


CHECKLIST_FIGURES = ("checklists", "share %, 95 % interval", "number")
BY_CRITERION = ("criterion", "names the better response %, 95 % interval", "orders agree %", "pairs")


def checklist_of(items: Sequence[Labeled], clusters: Sequence[str], verdict_format: str) -> ChecklistScores | None:
    """Return the scores of all votes; None for judges of another format."""
    if verdict_format != CHECKLIST:
        return None
    votes = [(vote, cluster) for item, cluster in zip(items, clusters, strict=True) for vote in item.judgment.votes]
    lists = [checks_of(vote.completion.text) if vote.completion.finish is FinishReason.STOP else None for vote, _ in votes]
    read = [(vote, cluster, checks) for (vote, cluster), checks in zip(votes, lists, strict=True) if checks]
    findings = Counter(check.finding.value for _, _, checks in read for check in checks)
    by_name: dict[str, list[tuple[Labeled, str]]] = {}
    for item, cluster in zip(items, clusters, strict=True):
        for name, judged in judgments_by_criterion(item.judgment).items():
            by_name.setdefault(name, []).append((replace(item, judgment=judged), cluster))
    return ChecklistScores(
        readable=_share([checks is not None for checks in lists], [cluster for _, cluster in votes]),
        follows=_share([vote.verdict.choice is not None for vote, _, _ in read], [cluster for _, cluster, _ in read])
        if read
        else None,
        checks_per_vote=sum(findings.values()) / max(1, len(read)),
        findings={finding.value: findings[finding.value] / max(1, sum(findings.values())) for finding in ClaimFinding},
        criteria={
            name: CriterionScores(
                _counted([item for item, _ in of_name], [cluster for _, cluster in of_name]),
                swap_consistency([item for item, _ in of_name]),
            )
            for name, of_name in sorted(by_name.items(), key=lambda item: -len(item[1]))[:MAX_NAMES]
        },
    )


def _share(flags: Sequence[bool], clusters: Sequence[str]) -> ShareEstimate:
    values = list(map(float, flags))
    return ShareEstimate(len(values), sum(values) / len(values), mean_interval(values, clusters))


def checklist_sentence(scores: ChecklistScores) -> str:
    """Return what the checks of a judge are like."""
    shares = ", ".join(f"{percent(share)} % {finding}" for finding, share in scores.findings.items())
    return f"The judge makes {scores.checks_per_vote:.1f} checks before it chooses: {shares}."


def checklist_rows(scores: ChecklistScores) -> list[tuple[str, str, str]]:
    """Return (figure, share in percent with its interval, number of votes)."""
    return [
        ("votes with a checklist that can be read", *_cells(scores.readable)),
        ("verdicts that follow from their checks", *_cells(scores.follows)),
    ]


def criterion_rows(scores: ChecklistScores) -> list[tuple[str, str, str, str]]:
    """Return (criterion, accuracy of what its checks speak for, agreement of both orders, number of pairs)."""
    return [
        (
            name,
            with_interval(of.decided.accuracy, of.decided.interval),
            "–" if of.swap_consistency is None else percent(of.swap_consistency),
            f"{of.decided.n:,}",
        )
        for name, of in scores.criteria.items()
    ]


LEAST_VOTES = 3  # of each order: the share of fewer is 0, a half or 1 for most pairs
MOST_POINTS = 60  # of a risk-coverage curve


def confidence_report(items: Sequence[Labeled], clusters: Sequence[str]) -> dict[str, Confidence]:
    """Return, by name, ``vote_share``, from three votes in each order on, and, where votes carry margins,
    ``verdict_probability``. Empty unless all pairs are shown in both orders: in one order alone a confidence is the position's
    as much as the answer's.
    """
    num_votes = min((len(in_order(item.judgment.votes, order)) for item in items for order in BOTH_ORDERS), default=0)
    if not num_votes:
        return {}
    table = {}
    if num_votes >= LEAST_VOTES:
        table["vote_share"] = calibrate(items, [share_for_0(item.judgment.votes) for item in items], clusters)
    probabilities = [probability_of_0(item.judgment.votes) for item in items]
    if any(p is not None for p in probabilities):
        table["verdict_probability"] = calibrate(items, probabilities, clusters)
    return table


def calibrate(items: Sequence[Labeled], shares: Sequence[float | None], clusters: Sequence[str]) -> Confidence:
    """Calibration of the confidence in the response named: max(share, 1 - share), beside whether it is the better one.

    ``undecided`` pairs, with a share of exactly one half or none at all, name nobody and are left out of all but the count and
    the coverage. ECE (ten bins over 0..1, of which confidence can fill five) has a basic bootstrap interval over prompts;
    ``ece_if_exact`` is what the same confidences would show if they were exactly right. Brier is of the same events: 0.25 for
    one half.
    """
    confidences = [None if share is None or share == 0.5 else max(share, 1 - share) for share in shares]
    right = [share is not None and item.preferred == int(share < 0.5) for item, share in zip(items, shares, strict=True)]
    curve = risk_coverage(confidences, right)
    sure = np.array([c for c in confidences if c is not None])
    hits = np.array([r for c, r in zip(confidences, right, strict=True) if c is not None], dtype=float)
    prompts = [cluster for cluster, c in zip(clusters, confidences, strict=True) if c is not None]
    calibration = None
    if len(sure):
        calibration = Calibration(
            mean_confidence=float(sure.mean()),
            accuracy=float(hits.mean()),
            ece=expected_calibration_error(sure, hits),
            ece_interval=calibration_error_interval(sure, hits, prompts),
            ece_if_exact=least_calibration_error(sure),
            brier=brier(sure, hits),
            reliability=tuple(reliability(sure, hits)),
            aurc=area_under_risk(curve),
            risk_coverage=tuple(curve[n] for n in _thinned(len(curve))),
            brier_interval=mean_interval((sure - hits) ** 2, prompts),
        )
    return Confidence(len(items), len(items) - len(sure), calibration)


def _thinned(number: int) -> list[int]:
    """Return at most :data:`MOST_POINTS` of so many places, the last among them."""
    step = max(1, math.ceil(number / MOST_POINTS))
    return sorted({*range(step - 1, number, step), number - 1})


KINDS = {
    "wrong": "not decided for the better response",
    "flipped": "the two orders name different responses",
    "invalid": "an answer without a readable verdict",
    "split": "votes of one order disagree",
    "right": "decided for the better response",
    "tie": "people call the pair a tie",
    "missed": "people call the pair a tie, the judge does not",
}
TIE_KINDS = ("tie", "missed")


def kinds_of(judgment: Judgment, preferred: int | None) -> list[str]:
    """Return which of :data:`KINDS` a judged pair is of, in their order: one of wrong and right, or, of a tie, ``tie``."""
    votes = judgment.votes
    orders = [in_order(votes, order) for order in Order]
    outcomes = {majority(order_votes) for order_votes in orders}
    decided = {outcome for outcome in outcomes if outcome.winner is not None}
    is_tie, is_right = preferred is None, judgment.outcome.winner == preferred
    holds = {
        "wrong": not is_tie and not is_right,
        "flipped": len(decided) == 2,
        "invalid": any(vote.verdict.status not in VALID for vote in votes),
        "split": any(len({vote.winner for vote in order_votes if vote.winner is not None}) == 2 for order_votes in orders),
        "right": not is_tie and is_right,
        "tie": is_tie,
        "missed": is_tie and three_way_outcome(votes) is not Outcome.TIE,
    }
    return [name for name, is_so in holds.items() if is_so]


ERRORS = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # of stopping on the side that all votes together reject


EVERY_ODD = 21  # all odd K up to here; above, so many more as even steps of a logarithmic axis
NUM_ABOVE = 16


def curve_ks(pool: int) -> list[int]:
    """Odd K up to the pool, where no vote of valid samples can tie, and the pool itself: all up to 21, some of those above."""
    if pool <= EVERY_ODD:
        return sorted({*range(1, pool + 1, 2), *([pool] if pool else [])})
    steps = (EVERY_ODD * (pool / EVERY_ODD) ** (n / NUM_ABOVE) for n in range(1, NUM_ABOVE))
    return sorted({*range(1, EVERY_ODD + 1, 2), *(2 * round((step - 1) / 2) + 1 for step in steps), pool})


def k_curve(items: Sequence[Labeled], clusters: Sequence[str], num_votes: int) -> tuple[CurvePoint, ...]:
    """Accuracy for odd K up to the smallest pool (:func:`curve_ks`), exact over all subsets of the pool, with intervals.

    ``accuracy``: the majority of K votes of one order, each order a trial. ``balanced``: one majority of K votes of each of
    both orders, 2K samples; None where one order alone was asked. ``weighted``: as many samples by the probabilities of their
    verdicts, the mean over disjoint blocks of the pool (all subsets are too many); None where votes carry none.
    """
    curve, pairs, names = [], [item.tallies for item in items], cluster_numbers(clusters, len(items))
    both = all(len(tallies) == 2 for tallies in pairs)
    has_margins = both and any(vote.margin is not None for item in items for vote in item.judgment.votes)
    # Pairs alike are scored once: of many pairs with few votes, most are.
    places = {tallies: place for place, tallies in enumerate(dict.fromkeys(pairs))}
    place_of = np.array([places[tallies] for tallies in pairs], dtype=int)
    for k in curve_ks(min(num_votes, smallest_pool(items))):
        one_order = mean_estimate(np.array([score_of(tallies, k) for tallies in places])[place_of], names)
        any_correct = float(np.array([any_correct_score(tallies, k) for tallies in places])[place_of].mean())
        balanced = np.array([_balanced_score(one, k) for one in places])[place_of] if both else None
        weighted = [weighted_score(item, k) for item in items] if has_margins else []
        curve.append(
            CurvePoint(
                k,
                one_order.accuracy,
                one_order.interval,
                any_correct,
                None if balanced is None else mean_estimate(balanced, names),
                mean_estimate(weighted, names) if weighted else None,
            )
        )
    return tuple(curve)


def _balanced_score(tallies: Sequence[tuple[int, int, int]], k: int) -> float:
    (right, _, total), (other_right, _, other_total) = tallies
    return balanced_accuracy((right, total), (other_right, other_total), k)


def weighted_score(item: Labeled, k: int) -> float:
    """Share of disjoint blocks of ``k`` votes of each order whose probabilities name the better response (0..1)."""
    given, swapped = (in_order(item.judgment.votes, order) for order in BOTH_ORDERS)
    blocks = range(0, min(len(given), len(swapped)) - k + 1, k)
    winners = [judgment_by_probability("", (*given[at : at + k], *swapped[at : at + k])).outcome.winner for at in blocks]
    return winners.count(item.preferred) / len(winners)


def decision(items: Sequence[Labeled], clusters: Sequence[str]) -> AccuracyEstimate | None:
    """Each pair decided once, by all its votes of both orders (by their probabilities where they carry any); an even one is
    not right. None where a pair was asked in one order alone."""
    if any(len(item.tallies) != 2 for item in items) or not items:
        return None
    return mean_estimate([float(item.judgment.outcome.winner == item.preferred) for item in items], clusters)


def sequential(rows: Sequence[Row], items: Sequence[Labeled]) -> tuple[StoppingPoint, ...]:
    """What stopping early would have cost: for each error, samples and tokens per pair and the accuracy of their majorities.

    Here a pair is one trial: the majority of its votes of both orders, an even one wrong. The first row is the whole pool; the
    others name the paired difference to it, with its interval. Empty where a pair has fewer than two votes in each order.
    """
    if smallest_pool(items) < 2 or any(len(item.tallies) != 2 for item in items):
        return ()
    clusters, all_votes, points = [row.cluster for row in rows], [float("nan")], []
    for error in (None, *ERRORS):
        ends = [_all_votes(item) if error is None else stop_early(item.judgment.votes, error) for item in items]
        right = [float(end.outcome.winner == item.preferred) for end, item in zip(ends, items, strict=True)]
        all_votes = right if error is None else all_votes
        gaps = [now - before for now, before in zip(right, all_votes, strict=True)]
        accuracy = mean_estimate(right, clusters)
        points.append(
            StoppingPoint(
                error=error,
                samples=sum(end.num_votes for end in ends) / len(ends),
                tokens=tokens / len(ends) if (tokens := sum(end.num_tokens for end in ends)) else None,
                accuracy=accuracy.accuracy,
                interval=accuracy.interval,
                difference=sum(gaps) / len(gaps),
                difference_interval=difference_interval(gaps, clusters),
            )
        )
    return tuple(points)


def _all_votes(item: Labeled) -> EarlyStop:
    votes = alternate_orders(item.judgment.votes)
    return EarlyStop(majority(votes), tuple(votes))


def _counted(items: Sequence[Labeled], clusters: Sequence[str]) -> CountedEstimate:
    estimate = mean_estimate([pair_score(item) for item in items], clusters)
    return CountedEstimate(len(items), estimate.accuracy, estimate.interval)


def _group_scores(items: Sequence[Labeled], clusters: Sequence[str]) -> GroupScores:
    cell = _counted(items, clusters)
    bias, leans = position_bias(items), _lean_interval(items, clusters)
    return GroupScores(cell.n, cell.accuracy, cell.interval, invalid_rate(items), bias, leans)


def _lean_interval(items: Sequence[Labeled], clusters: Sequence[str]) -> Interval | None:
    valid, leans, _, _ = np.array([vote_counts(item) for item in items]).T
    return _defined(ratio_interval(leans, valid, clusters, least=-0.5, most=0.5))


def all_right(rows: Sequence[Row], scores: Sequence[float]) -> CountedEstimate | None:
    """Share of prompts whose every pair is right in every order shown (Acc+ of MM-RLHF-RewardBench, best-of-4 of RewardBench
    2), with interval; None where no prompt has two pairs. One order's majority that is wrong makes the prompt wrong."""
    prompts: dict[str, list[float]] = {}
    for row, score in zip(rows, scores, strict=True):
        prompts.setdefault(row.cluster, []).append(score)
    if len(prompts) == len(rows):
        return None
    right = [float(min(pair_scores) == 1.0) for pair_scores in prompts.values()]
    return CountedEstimate(len(right), sum(right) / len(right), mean_interval(right))


def slices(rows: Sequence[Row], items: Sequence[Labeled]) -> dict[str, dict[str, CountedEstimate]]:
    """Accuracy by every further way the benchmark groups its rows."""
    names = sorted({name for row in rows for name in row.slices})
    table: dict[str, dict[str, CountedEstimate]] = {}
    for name in names:
        values = sorted({row.slices[name] for row in rows if name in row.slices})
        table[name] = {}
        for value in values:
            picked = [n for n, row in enumerate(rows) if row.slices.get(name) == value]
            table[name][value] = _counted([items[n] for n in picked], [rows[n].cluster for n in picked])
    return table


def longer(pair: PreferencePair) -> int | None:
    """Return the index of the response with more characters; None for equal ones."""
    first, second = map(num_characters, pair.responses)
    return None if first == second else int(second > first)


def by_length(rows: Sequence[Row], items: Sequence[Labeled]) -> tuple[LengthFifth, ...]:
    """Accuracy by how much longer the better response is than the other, in fifths of the rows: a judge that favours length
    rises from left to right."""
    lengths = [tuple(map(num_characters, row.pair.responses)) for row in rows]
    gaps = [length[item.preferred] - length[1 - item.preferred] for length, item in zip(lengths, items, strict=True)]
    order = sorted(range(len(rows)), key=lambda n: gaps[n])
    fifths = [order[len(order) * n // 5 : len(order) * (n + 1) // 5] for n in range(5)]
    cells = [
        (gaps[places[len(places) // 2]], _counted([items[n] for n in places], [rows[n].cluster for n in places]))
        for places in fifths
        if places
    ]
    return tuple(LengthFifth(characters, cell.n, cell.accuracy, cell.interval) for characters, cell in cells)


def judge_scores(rows: Sequence[Row], items: Sequence[Labeled]) -> JudgeScores:
    """What stands beside every accuracy, of a judge as of a control."""
    return JudgeScores(
        accuracy=Accuracy(micro(items), macro(items)),
        interval=mean_interval([pair_score(item) for item in items], [row.cluster for row in rows]),
        slices=slices(rows, items),
        invalid_rate=invalid_rate(items),
        swap_consistency=swap_consistency(items),
        position_bias=position_bias(items),
    )


def one_vote_scores(items: Sequence[Labeled], *, stopped: bool) -> list[float]:
    """Return [pairs] accuracies (0..1) of one vote in each order, what a control is compared with: the mean over a trial's
    votes.

    Of votes that were ``stopped`` when settled, and of a panel, the first of each order and member.
    """
    return [pair_score(_first_votes(item)) if stopped else pair_score(item, 1) for item in items]


def _first_votes(item: Labeled) -> Labeled:
    firsts = {(vote.order, vote.member): vote for vote in reversed(item.judgment.votes)}
    return replace(item, judgment=replace(item.judgment, votes=tuple(firsts.values())))


def control_scores(
    rows: Sequence[Row], one_vote: Sequence[float], controls: Mapping[str, Sequence[Labeled]]
) -> dict[str, JudgeScores]:
    """Return the scores of each control, and what the judge is ahead of it.

    A control is one greedy vote of each order. It is compared with the control ``greedy``, the same votes with the image, where
    that was run; else with ``one_vote``, the judge's scores of as many votes (:func:`one_vote_scores`).
    """
    clusters = [row.cluster for row in rows]
    greedy = controls.get("greedy")
    seeing = [pair_score(item) for item in greedy] if greedy else one_vote
    table = {}
    for name, control in controls.items():
        gaps = [sees - pair_score(item) for sees, item in zip(seeing, control, strict=True)]
        difference = DifferenceEstimate(sum(gaps) / len(gaps), difference_interval(gaps, clusters))
        table[name] = replace(judge_scores(rows, control), difference=None if name == "greedy" else difference)
    return table


def score_rows(
    rows: Sequence[Row], items: Sequence[Labeled], num_votes: int, *, whole_prompts: bool = False, stopped: bool = False
) -> Scores:
    """Return everything a report says of one judge: a trial is decided by more than half of all votes asked in it.

    ``stopped``: votes were asked until settled. Pools that ended when they were clear say nothing about smaller ones, so that
    there is no curve over K.
    """
    clusters = [row.cluster for row in rows]
    outcomes = [item.judgment.outcome for item in items]
    tokens = [vote.completion.num_tokens for item in items for vote in item.judgment.votes]
    judge, pair_scores = judge_scores(rows, items), [pair_score(item) for item in items]
    swaps, lengths = pair_swaps(items), pair_length_biases(items, [longer(row.pair) for row in rows])
    both = [cluster for cluster, alike in zip(clusters, swaps, strict=True) if alike is not None]
    of_unequal = [cluster for cluster, bias in zip(clusters, lengths, strict=True) if bias is not None]
    _, _, unread, totals = np.array([vote_counts(item) for item in items]).T
    return Scores(
        num_pairs=len(items),
        num_votes_total=len(tokens),
        accuracy=judge.accuracy,
        interval=judge.interval,
        slices=judge.slices,
        invalid_rate=judge.invalid_rate,
        undecided_rate=sum(map(undecided_score, items)) / len(items),
        valid_majority=_valid_majority(items, clusters),
        one_vote=mean_estimate(one_vote_scores(items, stopped=stopped), clusters),
        swap_consistency=judge.swap_consistency,
        position_bias=judge.position_bias,
        groups={
            name: _group_scores(group, [row.cluster for row in rows if row.group == name])
            for name, group in by_group(items).items()
        },
        all_right=all_right(rows, pair_scores) if whole_prompts else None,
        decision=decision(items, clusters),
        k_curve=() if stopped else k_curve(items, clusters, num_votes),
        sequential=() if stopped else sequential(rows, items),
        statuses=status_counts(items),
        pairs_tied_over_both_orders=outcomes.count(Outcome.TIE),
        pairs_without_majority=outcomes.count(Outcome.NO_MAJORITY),
        pairs_without_valid_vote=outcomes.count(Outcome.NO_VALID_VOTE),
        length_bias=length_bias(items, [longer(row.pair) for row in rows]),
        by_length=by_length(rows, items),
        confidence=confidence_report(items, clusters),
        tokens_per_vote=sum(tokens) / len(tokens) if any(tokens) else None,
        macro_interval=macro_interval(pair_scores, [row.group for row in rows], clusters),
        swap_interval=_defined(mean_interval([float(alike) for alike in swaps if alike is not None], both)),
        position_interval=_lean_interval(items, clusters),
        length_interval=_defined(difference_interval([bias for bias in lengths if bias is not None], of_unequal)),
        invalid_interval=_defined(ratio_interval(unread, totals, clusters)),
        num_clusters=len(set(clusters)),
    )


def _valid_majority(items: Sequence[Labeled], clusters: Sequence[str]) -> ValidMajority:
    scores = [valid_majority_scores(item) for item in items]
    estimate = mean_estimate([right for right, _ in scores], clusters)
    return ValidMajority(estimate.accuracy, estimate.interval, sum(decided for _, decided in scores) / len(scores))


def _defined(interval: Interval) -> Interval | None:
    return None if math.isnan(interval[0]) else interval


def baseline_scores(
    rows: Sequence[Row], orders: Sequence[tuple[Order, ...]], seed: int, *, whole_prompts: bool = False
) -> dict[str, BaselineScores]:
    """Return the scores of every baseline on the same rows and orders. ``random`` has what is expected of a coin; its Acc+ is
    of one draw."""
    table, clusters = {}, [row.cluster for row in rows]
    for rule in RULES:
        judge = BaselineJudge(rule)
        scores = [
            judge.score(row.pair, pair_orders, n, seed) for n, (row, pair_orders) in enumerate(zip(rows, orders, strict=True))
        ]
        is_fixed = rule == "random" or (rule == "first" and all(len(pair_orders) == 2 for pair_orders in orders))
        expected = [0.5] * len(rows) if is_fixed else scores
        groups: dict[str, list[float]] = {}
        for row, score in zip(rows, expected, strict=True):
            groups.setdefault(row.group, []).append(score)
        means = {name: sum(group) / len(group) for name, group in sorted(groups.items())}
        table[rule] = BaselineScores(
            micro=sum(expected) / len(expected),
            macro=sum(means.values()) / len(means),
            groups=means,
            interval=None if is_fixed else mean_interval(expected, clusters),
            all_right=all_right(rows, scores) if whole_prompts else None,
        )
    return table
