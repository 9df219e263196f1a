"""A temperature for the probabilities of a judge's verdicts: fitted on a benchmark run, stored with the checkpoint.

It divides the log-odds of every vote, and is the one of least negative log-likelihood of the run's labels
(:func:`rewardlab.verdicts.margins.fit_temperature`; Guo et al., arXiv 1706.04599, have it for classes).
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rewardlab.benchmarks.base import VOTES
from rewardlab.benchmarks.comparison import read_run
from rewardlab.data.files import read_lines
from rewardlab.data.votes import vote_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.spec import JudgeSpec
from rewardlab.metrics.calibration import basic_interval, expected_calibration_error
from rewardlab.metrics.intervals import Interval
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE, add_to_card, weights_id
from rewardlab.types import Order, Vote
from rewardlab.verdicts.margins import TemperatureFit, fit_temperature

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
    run = read_run(folder)
    identity, votes_by_row = _votes(folder / VOTES)
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
    return p_B.clamp(min=torch.finfo(p_B.dtype).smallest_normal)


def _mean_interval(values_B: np.ndarray, clusters: Sequence[str]) -> Interval:
    """Bootstrap interval of the mean over prompts."""
    numbers_B = np.unique(np.asarray(clusters), return_inverse=True)[1]
    sums, sizes = np.bincount(numbers_B, values_B), np.bincount(numbers_B)
    return basic_interval(lambda drawn: float(sums[drawn].sum() / sizes[drawn].sum()), len(sums), least=-math.inf)


def _calibration_error(p_right_B: torch.Tensor) -> float:
    """Expected calibration error of the confidence in the response named."""
    named = p_right_B[p_right_B != 0.5]
    return expected_calibration_error(torch.maximum(named, 1 - named).numpy(), (named > 0.5).double().numpy())


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


def _is_finite(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _votes(path: Path) -> tuple[dict[str, Any], dict[int, list[Vote]]]:
    """Return the identity of the run that wrote the votes, and them by row, without those of controls."""

    def entries() -> Iterator[tuple[int, list[Vote]]]:
        for line in lines[1:]:
            entry = json.loads(line)
            if entry["pass"] == "votes":
                votes = [vote_of(vote) for vote in entry["votes"]]
                if odd := [vote.margin for vote in votes if vote.margin is not None and not _is_finite(vote.margin)]:
                    raise ValueError(f"a margin on pair {entry['row']} is {odd[0]!r}; expected a finite number")
                yield entry["row"], votes

    try:
        lines = read_lines(path)
        return dict(json.loads(lines[0])["identity"]), dict(entries())
    except (OSError, ValueError, KeyError, IndexError, TypeError) as error:
        raise DataError(f"{path}: not the votes of a run ({error}); expected those that `bench run` leaves") from error
