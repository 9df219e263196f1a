"""A finished run as a log of Inspect (inspect_ai), for ``inspect view``: a sample per pair, with every vote of both orders."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import VOTES, Row, run_date
from rewardlab.benchmarks.browser import tally, votes_of_rows
from rewardlab.benchmarks.comparison import Run
from rewardlab.benchmarks.report_model import Report, RowScore, Scores
from rewardlab.data.images import thumbnail, to_data_url
from rewardlab.data.judgments import reduce_logged_votes
from rewardlab.errors import ConfigError, DataError, MissingPackageError
from rewardlab.metrics.intervals import Interval
from rewardlab.reporting.tables import RESPONSE_LETTERS
from rewardlab.types import IMAGE_MARK, Choice, FinishReason, Order, Vote, response_at
from rewardlab.verdicts.votes import VALID, in_order, majority

SUFFIXES = (".eval", ".json")
PAIR_ID = "pair_id"  # of a sample's metadata
SIDE_PX = 1024  # of images in the log; larger ones are made to fit
STOPS = {FinishReason.STOP: "stop", FinishReason.LENGTH: "max_tokens"}


def write_inspect_log(run: Run, rows: Sequence[Row], out: Path, *, with_images: bool = True) -> None:
    """Write the run, whose folder is ``run.name``, to ``out``, a .eval or .json file. ``rows`` are those of its data file.

    Raise ConfigError for another suffix, MissingPackageError without inspect_ai, DataError where rows or votes are missing.
    """
    if out.suffix not in SUFFIXES:
        raise ConfigError(f"--out {out}: expected a file that ends in {' or '.join(SUFFIXES)}, as Inspect reads them")
    try:
        from inspect_ai.log import write_eval_log
    except ImportError as error:
        raise MissingPackageError("this needs inspect_ai, which is not installed: pip install 'rewardlab[inspect]'") from error
    log = inspect_log(run, rows, with_images=with_images)
    out.parent.mkdir(parents=True, exist_ok=True)
    part = out.with_name(f".{out.stem}.part{out.suffix}")
    try:
        write_eval_log(log, str(part))
        os.replace(part, out)
    finally:
        part.unlink(missing_ok=True)


def inspect_log(run: Run, rows: Sequence[Row], *, with_images: bool) -> Any:
    """Return the run as an ``EvalLog``."""
    from inspect_ai.log import EvalLog, EvalStats
    from inspect_ai.model import ModelUsage

    folder, by_row = Path(run.name), {row.row: row for row in rows}
    if strangers := [score.row for score in run.rows if score.row not in by_row]:
        raise DataError(f"{run.name}: judged row {strangers[0]}, which {run.report.data} does not have; give its --data")
    votes = votes_of_rows(folder / VOTES, [score.row for score in run.rows])
    if missing := [score.row for score in run.rows if score.row not in votes]:
        raise DataError(f"{folder / VOTES}: has no votes on row {missing[0]}; run the same command again")
    written = run_date(folder)
    samples = [_sample(run.report, by_row[score.row], score, votes[score.row], with_images) for score in run.rows]
    tokens = sum(vote.completion.num_tokens for row_votes in votes.values() for vote in row_votes)
    usage = {run.report.judge: ModelUsage(output_tokens=tokens, total_tokens=tokens)}
    return EvalLog(
        status="success",
        eval=_spec(run, written),
        results=_results(run.report),
        stats=EvalStats(started_at=written, completed_at=written, model_usage=usage),
        samples=samples,
    )


def _spec(run: Run, written: str) -> Any:
    from inspect_ai.log import EvalConfig, EvalDataset, EvalRevision, EvalSpec
    from inspect_ai.model import GenerateConfig

    report = run.report
    name = hashlib.sha256(f"{report.benchmark} {report.data_sha256} {report.judge} {report.command}".encode()).hexdigest()[:22]
    metadata = {key: value for key, value in report.to_json().items() if key not in ("slices", "k_curve", "sequential")}
    return EvalSpec(
        created=written,
        eval_id=name,
        run_id=name,
        task_id=name,
        task=f"rewardlab/{report.benchmark}",
        dataset=EvalDataset(name=report.benchmark, location=report.data, samples=len(run.rows)),
        model=report.judge,
        model_generate_config=GenerateConfig(**report.sampling, seed=report.seed),
        config=EvalConfig(epochs=1, log_images=True),
        revision=EvalRevision(type="git", origin="", commit=report.commit),
        packages={package: version for package, version in report.versions.items() if version},
        task_args={"orders": report.orders, "votes": report.votes, "template": report.template},
        metadata=metadata,
    )


def _results(report: Report) -> Any:
    from inspect_ai.log import EvalResults, EvalScore

    scores, ties = report.scores, report.ties
    figures = {
        "accuracy": {
            **_estimate("accuracy", scores.accuracy.micro, scores.interval),
            **_metric("macro", scores.accuracy.macro),
        },
        "both orders": _estimate("accuracy", scores.decision.accuracy, scores.decision.interval) if scores.decision else {},
        "three classes": _estimate("accuracy", ties.three_way.accuracy, ties.three_way.interval) if ties else {},
        "invalid": _metric("mean", scores.invalid_rate),
        "swap consistency": _metric("mean", scores.swap_consistency),
        "position bias": _metric("bias", scores.position_bias),
        "accuracy by group": _merged(_metric(name, cell.accuracy) for name, cell in _groups(scores)),
        "controls": _merged(_metric(name, cell.accuracy.micro) for name, cell in report.controls.items()),
        "baselines": _merged(_metric(name, cell.micro) for name, cell in report.baselines.items()),
    }
    return EvalResults(
        total_samples=scores.num_pairs,
        completed_samples=scores.num_pairs,
        scores=[EvalScore(name=name, scorer="rewardlab", metrics=metrics) for name, metrics in figures.items() if metrics],
    )


def _groups(scores: Scores) -> list[tuple[str, Any]]:
    return list(scores.groups.items()) if len(scores.groups) > 1 else []


def _merged(parts: Any) -> dict[str, Any]:
    return {name: metric for part in parts for name, metric in part.items()}


def _metric(name: str, value: float | None) -> dict[str, Any]:
    from inspect_ai.log import EvalMetric

    return {} if value is None else {name: EvalMetric(name=name, value=value)}


def _estimate(name: str, value: float, interval: Interval) -> dict[str, Any]:
    """An accuracy, its interval, and the standard error that an interval of this width stands for."""
    low, high = interval
    bounds = {"stderr": (high - low) / (2 * 1.96), "ci_low": low, "ci_high": high}
    return _merged(_metric(key, number) for key, number in {name: value, **bounds}.items())


def _sample(report: Report, row: Row, score: RowScore, votes: Sequence[Vote], with_images: bool) -> Any:
    from inspect_ai.log import EvalSample
    from inspect_ai.model import ChatCompletionChoice, ModelOutput

    prompt = _shown(row, with_images)
    answers = [(vote, _answer(report, vote)) for vote in votes]
    messages = [prompt]
    for order in Order:
        if of_order := [answer for vote, answer in answers if vote.order is order]:
            messages += [_order_note(order), *of_order]
    choices = [ChatCompletionChoice(message=answer, stop_reason=_stop(vote)) for vote, answer in answers]
    return EvalSample(
        id=row.row,
        epoch=1,
        input=[prompt],
        target=_letter(row.pair.preferred),
        messages=messages,
        output=ModelOutput(model=report.judge, choices=choices),
        scores=_scores(row, score, votes, report.judge),
        metadata={PAIR_ID: row.pair.pair_id, "group": row.group, "kinds": list(score.kinds), **row.slices},
    )


def _shown(row: Row, with_images: bool) -> Any:
    from inspect_ai.model import ChatMessageUser, ContentImage, ContentText

    pair = row.pair

    def pictures(images: Sequence[bytes]) -> list[Any]:
        return [ContentImage(image=to_data_url(thumbnail(image, SIDE_PX))) for image in images] if with_images else []

    content = [*pictures(pair.images), ContentText(text=pair.question.replace(IMAGE_MARK, "[image]"))]
    for index, text in enumerate(pair.responses):
        content.append(ContentText(text=f"\n\n**Response {_letter(index)}**\n\n{text.replace(IMAGE_MARK, '[image]')}"))
        content += pictures(pair.response_images[index])
    return ChatMessageUser(content=content, id=f"{row.row}-pair")


def _order_note(order: Order) -> Any:
    from inspect_ai.model import ChatMessageUser

    first = response_at(Choice.FIRST, order)
    content = f"{_letter(first)} shown first: what the answers call the first response is {_letter(first)}."
    return ChatMessageUser(content=content, metadata={"order": order.value})


def _answer(report: Report, vote: Vote) -> Any:
    from inspect_ai.model import ChatMessageAssistant

    facts = {
        "order": vote.order.value,
        "status": vote.verdict.status.value,
        "choice": vote.verdict.choice,
        "winner": vote.winner,
        "margin": vote.margin,
        "num_tokens": vote.completion.num_tokens,
        "error": vote.completion.error or None,
    }
    text = vote.completion.text or vote.completion.error or vote.verdict.rule or "(no text)"
    return ChatMessageAssistant(
        content=text, model=report.judge, metadata={name: fact for name, fact in facts.items() if fact is not None}
    )


def _letter(index: int | None) -> str:
    return "" if index is None else RESPONSE_LETTERS[index]


def _stop(vote: Vote) -> str:
    return STOPS.get(vote.completion.finish, "unknown")


def _scores(row: Row, score: RowScore, votes: Sequence[Vote], judge: str) -> dict[str, Any]:
    """The pair's own terms of the run's figures. A pair shown in one order is no term of swap consistency."""
    from inspect_ai.scorer import Score

    judgment = reduce_logged_votes(row.pair.pair_id, votes, judge)
    orders = [of_order for order in Order if (of_order := in_order(votes, order))]
    winners = [majority(of_order).winner for of_order in orders]  # as metrics.accuracy.swap_consistency, of panels too
    shown_first = {order: _letter(response_at(Choice.FIRST, order)) for order in Order}
    tallies = [f"{shown_first[of_order[0].order]} shown first: {tally(of_order)}" for of_order in orders]
    explanation = "; ".join([*tallies, f"better is {_letter(row.pair.preferred)}"])
    invalid = sum(vote.verdict.status not in VALID for vote in votes) / len(votes)
    scores = {
        "accuracy": Score(
            value=score.score,
            answer=_letter(judgment.outcome.winner) or judgment.outcome.words,
            explanation=explanation,
            metadata={"share of votes for A": judgment.share_0},
        ),
        "invalid": Score(value=invalid),
    }
    if len(orders) == 2:
        scores["swap consistency"] = Score(value=float(winners[0] is not None and winners[0] == winners[1]))
    return scores
