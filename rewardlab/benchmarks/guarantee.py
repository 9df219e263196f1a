"""From a finished run and people's labels to a guaranteed error of its judge's verdicts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path

from rewardlab.benchmarks.agreement import check_labels
from rewardlab.benchmarks.base import VOTES
from rewardlab.benchmarks.comparison import logged_votes, read_run
from rewardlab.benchmarks.report_model import RowScore
from rewardlab.config.judge import JudgeConfig
from rewardlab.data.files import sha256_of
from rewardlab.data.judgments import reduce_logged_votes
from rewardlab.data.ratings import peoples_label, read_labels
from rewardlab.data.votes import identity_of_votes
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.guarantee import Guarantee, judge_facts
from rewardlab.judging.spec import judge_config, judge_weights_id
from rewardlab.metrics.guarantee import certified_threshold, check_levels
from rewardlab.metrics.intervals import mean_estimate
from rewardlab.models.checkpoints import commit
from rewardlab.types import Tie
from rewardlab.verdicts.votes import both_orders_or_none, winner_share

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
    run = read_run(folder)
    report = run.report
    _check(folder, run.report.failure, run.report.orders, is_plain=not (report.robustness or report.listwise))
    if report.stop_error is not None:
        raise ConfigError(f"{folder}: was sampled vote by vote; benchmark without stop_error, so that all pairs have all votes")
    identity, votes = identity_of_votes(folder / VOTES), dict(logged_votes(folder / VOTES))
    config = judge_config(JudgeConfig.model_validate(dict(report.judge_config)))
    if (now := judge_weights_id(config.judge)) and now != identity.get("weights"):
        raise ConfigError(
            f"{config.judge}: its weights have changed since the run; benchmark it again, and certify the new run"
        )
    rows = [*run.rows, *run.ties]
    given = _labels(folder, rows, labels)
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
    return Guarantee(certified, judge_facts(config, identity), report.votes, evidence)


def _check(folder: Path, failure: str, orders: str, *, is_plain: bool) -> None:
    if failure:
        raise DataError(f"{folder}: the run failed ({failure}); the same `bench run` command retries its votes")
    if not is_plain:
        raise ConfigError(f"{folder}: a run under attack, or of several answers at once; expected a run on pairs")
    if orders != "both":
        raise ConfigError(f"{folder}: has votes in the orders {orders!r}; expected orders=both")


def _labels(folder: Path, rows: list[RowScore], path: Path | None) -> Mapping[int, Label]:
    """Return the label of each row that has one: those of the benchmark, or the plurality of the ratings of a file."""
    if path is None:
        return {row.row: Tie.TIE if row.preferred is None else row.preferred for row in rows}
    ratings = read_labels(path)
    check_labels(ratings, [row.pair_id for row in rows], str(path))
    if twice := [name for name, number in Counter(row.pair_id for row in rows).items() if number > 1 and name in ratings]:
        raise DataError(
            f"{path}: labels pair {twice[0]!r}, and {folder} has several pairs of that id; expected ids that differ"
        )
    choices = {row.row: peoples_label(ratings[row.pair_id]).choice for row in rows if row.pair_id in ratings}
    return {row: choice for row, choice in choices.items() if choice is not None}


def guarantee_lines(guarantee: Guarantee) -> list[str]:
    """Return what a guarantee comes to, in sentences."""
    certified, evidence = guarantee.certified, guarantee.evidence
    pairs = f"{evidence['num_labelled']:,} of {evidence['num_pairs']:,} pairs are labelled"
    prompts = f"{pairs}; one of each prompt counts: {certified.num_labels:,}"
    low, high = (100 * end for end in evidence["coverage"][1:])
    if certified.threshold is None:
        return [
            prompts,
            f"no threshold is certified for an error of {100 * certified.error:g} %: the judge abstains from all pairs. More "
            "labels, more votes of each order, or a larger --error may change that",
        ]
    share, least, most = (100 * value for value in evidence["realised_error"])
    return [
        prompts,
        f"threshold {certified.threshold:.4f}: of the verdicts with more confidence at most {100 * certified.error:g} % are "
        f"wrong, with a probability of {100 * certified.confidence:g} % over label sets",
        f"coverage {100 * evidence['coverage'][0]:.1f} % [{low:.1f}, {high:.1f}] of all pairs, with {guarantee.votes} votes of "
        "each order; the judge abstains from the others",
        f"realised error {share:.1f} % [{least:.1f}, {most:.1f}]; exact bound {100 * certified.upper_bound:.1f} % "
        f"({certified.num_wrong:,} of {certified.num_given:,} wrong)",
    ]
