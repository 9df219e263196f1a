"""A judge's confidence, from a finished run: a temperature of its probabilities, and a threshold with a guaranteed error.

The temperature divides the log-odds of every vote, and is the one of least negative log-likelihood of the run's labels
(:func:`rewardlab.verdicts.margins.fit_temperature`; Guo et al., arXiv 1706.04599, have it for classes). It is stored with the
checkpoint. The threshold is certified by people's labels (:mod:`rewardlab.metrics.guarantee`).
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rewardlab.benchmarks.agreement import check_labels
from rewardlab.benchmarks.base import VOTES
from rewardlab.benchmarks.comparison import logged_votes, read_plain_run, refuse_unlabelled
from rewardlab.benchmarks.report_model import RowScore
from rewardlab.config.judge import JudgeConfig
from rewardlab.data.files import sha256_of
from rewardlab.data.judgments import reduce_logged_votes
from rewardlab.data.ratings import peoples_label, read_labels
from rewardlab.data.votes import identity_of_votes
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.drift import DriftReference
from rewardlab.judging.guarantee import Guarantee, judge_facts, threshold_text
from rewardlab.judging.spec import JudgeSpec, judge_config, judge_weights_id
from rewardlab.metrics.calibration import basic_interval, expected_calibration_error
from rewardlab.metrics.guarantee import certified_threshold, check_levels, exact_upper_bound, fewest_labels
from rewardlab.metrics.intervals import Interval, mean_estimate
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE, add_to_card, commit, weights_id
from rewardlab.reporting.progress import log_line
from rewardlab.types import Order, Tie, Vote
from rewardlab.verdicts.votes import both_orders_or_none, winner_share

if TYPE_CHECKING:
    import torch

FEWEST_PAIRS = 100  # a temperature of fewer is noise


@dataclass(frozen=True)
class CalibrationFit:
    """What was fitted on ``pairs`` pairs: ``tau``, and the negative log-likelihood (nats) and calibration error of their labels
    without and with it. ``gain`` is the interval of the likelihood's difference over prompts, positive where tau helps.
    ``unreadable`` pairs have no margin in one of the orders, and ``rationales`` is the most votes in an order."""

    checkpoint: Path
    benchmark: str
    tau: float
    pairs: int
    unreadable: int
    rationales: int
    nll_before: float
    nll: float
    gain: Interval
    ece_before: float
    ece: float

    @property
    def card_entry(self) -> dict[str, Any]:
        """Return what the checkpoint's card keeps."""
        names = ("tau", "benchmark", "pairs", "unreadable", "rationales", "nll_before", "nll", "ece_before", "ece")
        return {name: getattr(self, name) for name in names}


def calibrate_run(folder: Path) -> CalibrationFit:
    """Fit a temperature on the votes of the finished run in ``folder``, and store it in the card of the checkpoint that was
    judged by; an earlier one is replaced.

    Raise ConfigError for a run that was not judged by the probabilities of a local checkpoint in both orders, or whose
    checkpoint has other weights by now; DataError for too few pairs and where no temperature is best.
    """
    fit = fit_run(folder)
    add_to_card(fit.checkpoint, **{VERDICT_TEMPERATURE: fit.card_entry})
    return fit


def fit_run(folder: Path) -> CalibrationFit:
    """Return what :func:`calibrate_run` stores."""
    import torch  # what certifies a threshold does without

    from rewardlab.verdicts.margins import TemperatureFit, fit_temperature

    run = read_plain_run(folder)
    identity, votes_by_row = identity_of_votes(folder / VOTES), dict(logged_votes(folder / VOTES))
    checkpoint = _checkpoint(str(run.report.judge), identity)
    stored = float(identity.get(VERDICT_TEMPERATURE, 1.0))
    margins = {row: [stored * margin for margin in combined_margins(votes)] for row, votes in votes_by_row.items()}
    rows = [row for row in run.rows if margins.get(row.row)]
    if len(rows) < FEWEST_PAIRS:
        raise DataError(
            f"{folder}: {len(rows):,} pairs have probabilities in both orders; expected {FEWEST_PAIRS} or more. "
            "Benchmark a prob: judge on more pairs, with orders=both"
        )
    width = max(len(margins[row.row]) for row in rows)
    margins_BK = torch.full((len(rows), width), torch.nan, dtype=torch.float64)
    for n, row in enumerate(rows):
        margins_BK[n, : len(margins[row.row])] = torch.tensor(margins[row.row], dtype=torch.float64)
    preferred_B = torch.tensor([row.preferred for row in rows])
    best = fit_temperature(margins_BK, preferred_B)
    if best.fit is not TemperatureFit.FITTED:
        why = {
            TemperatureFit.SEPARABLE: "the sharper its probabilities, the better they fit. Either every pair is judged right "
            "(take harder pairs), or a mean over many rationales hides the wrong ones (bench with --votes 1)",
            TemperatureFit.NO_SIGNAL: "its probabilities are right no more often than a coin, and the flatter the better",
        }[best.fit]
        raise DataError(f"{folder}: no temperature could be fitted: {why}")
    before_B, after_B = (_probabilities(margins_BK / tau, preferred_B) for tau in (1.0, best.tau))
    gains_B = (after_B.log() - before_B.log()).numpy()
    return CalibrationFit(
        checkpoint=checkpoint,
        benchmark=run.report.benchmark,
        tau=best.tau,
        pairs=len(rows),
        unreadable=len(run.rows) - len(rows),
        rationales=max(sum(vote.order is Order.GIVEN for vote in votes_by_row[row.row]) for row in rows),
        nll_before=-before_B.log().mean().item(),
        nll=best.nll,
        gain=_mean_interval(gains_B, [row.cluster for row in rows]),
        ece_before=_calibration_error(before_B),
        ece=_calibration_error(after_B),
    )


def combined_margins(votes: Sequence[Vote]) -> list[float]:
    """Return the margin of response 0 of every readable vote of one order with every one of the other, by log-odds; [] where an
    order has none."""
    of_order = {order: [vote.margin for vote in votes if vote.order is order and vote.margin is not None] for order in Order}
    return [(given - swapped) / 2 for given in of_order[Order.GIVEN] for swapped in of_order[Order.SWAPPED]]


def _probabilities(margins_BK: torch.Tensor, preferred_B: torch.Tensor) -> torch.Tensor:
    """[B] the probability of the preferred response, at least the least number above 0."""
    p_B = (margins_BK * (1 - 2 * preferred_B)[:, None]).sigmoid().nanmean(1)
    return p_B.clamp(min=float(np.finfo(np.float64).smallest_normal))


def _mean_interval(values_B: np.ndarray, clusters: Sequence[str]) -> Interval:
    """Bootstrap interval of the mean over prompts."""
    numbers_B = np.unique(np.asarray(clusters), return_inverse=True)[1]
    sums, sizes = np.bincount(numbers_B, values_B), np.bincount(numbers_B)
    return basic_interval(lambda drawn: float(sums[drawn].sum() / sizes[drawn].sum()), len(sums), least=-math.inf)


def _calibration_error(p_right_B: torch.Tensor) -> float:
    """Expected calibration error of the confidence in the response named."""
    named = p_right_B[p_right_B != 0.5].numpy()
    return expected_calibration_error(np.maximum(named, 1 - named), named > 0.5)


def _checkpoint(judge: str, identity: Mapping[str, Any]) -> Path:
    checkpoint = JudgeSpec.parse(judge).checkpoint
    if checkpoint is None or not checkpoint.is_dir():
        raise ConfigError(
            f"{judge}: is not a local checkpoint folder, so the temperature cannot be stored in it; expected prob:FOLDER"
        )
    if identity.get("weights") != weights_id(checkpoint):
        raise ConfigError(
            f"{checkpoint}: its weights have changed since the run; benchmark it again, and calibrate the new run"
        )
    return checkpoint


Label = int | Tie


def certify_run(
    folder: Path, labels: Path | None = None, *, error: float, confidence: float, seed: int = 0, command: str = ""
) -> Guarantee:
    """Return the guarantee that ``labels``, a file of people's ratings, give the judge of the finished run in ``folder``;
    without a file those of the benchmark. ``seed`` draws the pair that counts of a prompt with several.

    A verdict on a pair that people call a tie is wrong. Raise ConfigError for levels out of range and for a run that a
    guarantee cannot hold for: in one order, stopped early, or of a checkpoint with other weights by now; DataError for one
    that failed, and for labels of other pairs.
    """
    try:
        check_levels(error, confidence)
    except ValueError as fault:
        raise ConfigError(f"{fault}; such as --error 0.05 --confidence 0.9") from fault
    run = read_plain_run(folder)
    refuse_unlabelled(run, labels)
    report = run.report
    if report.orders != "both":
        raise ConfigError(f"{folder}: has votes in the orders {report.orders!r}; expected orders=both")
    if report.stop_error is not None:
        raise ConfigError(f"{folder}: was sampled vote by vote; benchmark without stop_error, so that all pairs have all votes")
    identity, votes = identity_of_votes(folder / VOTES), dict(logged_votes(folder / VOTES))
    config = judge_config(JudgeConfig.model_validate(dict(report.judge_config)))
    if (now := judge_weights_id(config.judge)) and now != identity.get("weights"):
        raise ConfigError(
            f"{config.judge}: its weights have changed since the run; benchmark it again, and certify the new run"
        )
    rows = [*run.rows, *run.ties]
    given = _labels(rows, labels)
    judged = {
        row.row: both_orders_or_none(reduce_logged_votes(row.pair_id, votes.get(row.row, []), report.judge)) for row in rows
    }
    labelled = [row for row in rows if row.row in given]
    right = {row.row: judged[row.row].outcome.winner == given[row.row] for row in labelled}
    shares = {row.row: winner_share(judged[row.row]) for row in rows}
    certified = certified_threshold(
        [shares[row.row] for row in labelled],
        [right[row.row] for row in labelled],
        [row.cluster for row in labelled],
        error=error,
        confidence=confidence,
        seed=seed,
    )
    decided = [row for row in labelled if certified.gives(shares[row.row])]
    coverage = mean_estimate([float(certified.gives(shares[row.row])) for row in rows], [row.cluster for row in rows])
    wrong, prompts = [float(not right[row.row]) for row in decided], [row.cluster for row in decided]
    realised = mean_estimate(wrong, prompts) if decided else None
    evidence = {
        "benchmark": report.benchmark,
        "data_sha256": report.data_sha256,
        "num_pairs": len(rows),
        "num_labelled": len(labelled),
        "labels": "the benchmark's" if labels is None else labels.name,
        "labels_sha256": "" if labels is None else sha256_of(labels),
        "coverage": [coverage.accuracy, *coverage.interval],
        "realised_error": None if realised is None else [realised.accuracy, *realised.interval],
        "seed": seed,
        "command": command,
        "commit": commit(),
    }
    of_prompts = {row.cluster: judged[row.row] for row in random.Random(seed).sample(rows, len(rows))}
    reference = None if certified.threshold is None else DriftReference.of(list(of_prompts.values()))
    return Guarantee(certified, judge_facts(config, identity), report.votes, evidence, reference)


def _labels(rows: list[RowScore], path: Path | None) -> Mapping[int, Label]:
    """Return the label of each row that has one: those of the benchmark, or the plurality of the ratings of a file."""
    if path is None:
        return {row.row: Tie.TIE if row.preferred is None else row.preferred for row in rows}
    ratings = read_labels(path)
    for note in check_labels(ratings, [row.pair_id for row in rows], str(path)):
        log_line(note)
    choices = {row.row: peoples_label(ratings[row.pair_id]).choice for row in rows if row.pair_id in ratings}
    return {row: choice for row, choice in choices.items() if choice is not None}


def guarantee_lines(guarantee: Guarantee) -> list[str]:
    """Return what a guarantee comes to, in sentences."""
    certified, evidence = guarantee.certified, guarantee.evidence
    pairs = f"{evidence['num_labelled']:,} of {evidence['num_pairs']:,} pairs are labelled"
    prompts = f"{pairs}; one of each prompt counts: {certified.num_labels:,}"
    low, high = (100 * end for end in evidence["coverage"][1:])
    if certified.threshold is None:
        wrong, size = certified.next_wrong, certified.next_given
        bound = 100 * exact_upper_bound(wrong, size, certified.confidence)
        why = (
            f"of the {size:,} surest verdicts {wrong:,} are wrong, so that the error may be {bound:.1f} %"
            if size
            else f"it takes {fewest_labels(certified.error, certified.confidence):,} labelled prompts with a verdict at least"
        )
        return [
            prompts,
            f"no threshold is certified for an error of {100 * certified.error:g} %, so the judge abstains from all pairs: "
            f"{why}",
            "more labels, more raters for each pair, more votes of each order, or a larger --error may change that",
        ]
    share, least, most = (100 * value for value in evidence["realised_error"])
    return [
        prompts,
        f"threshold {threshold_text(certified.threshold)}: of the verdicts with more confidence at most "
        f"{100 * certified.error:g} % are wrong, with a probability of {100 * certified.confidence:g} % over label sets",
        f"coverage {100 * evidence['coverage'][0]:.1f} % [{low:.1f}, {high:.1f}] of all pairs, with {guarantee.votes} votes of "
        "each order; the judge abstains from the others",
        f"realised error {share:.1f} % [{least:.1f}, {most:.1f}] ({certified.num_wrong:,} of {certified.num_given:,} wrong); "
        f"exact upper bound at {100 * certified.confidence:g} % confidence, one-sided: {100 * certified.upper_bound:.1f} %",
    ]
