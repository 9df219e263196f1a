"""Score a judge on a benchmark: ask, keep every vote in a log that survives a kill, and compute the report from the log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.arithmetic import problems
from rewardlab.benchmarks.base import Benchmark, Row, size_notes, wordless_notes
from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.exports import write_official
from rewardlab.benchmarks.kinds import kinds_of
from rewardlab.benchmarks.mm_rlhf.loader import MMRLHF
from rewardlab.benchmarks.mmrb2.loader import MMRB2
from rewardlab.benchmarks.multimodal_rewardbench.loader import MultimodalRewardBench
from rewardlab.benchmarks.own_pairs.loader import OwnPairs
from rewardlab.benchmarks.passes import AnyJudge, Pass
from rewardlab.benchmarks.replay import MISSING, Replay
from rewardlab.benchmarks.rewardbench2.loader import RewardBench2
from rewardlab.benchmarks.scores import baseline_rows, core, score
from rewardlab.benchmarks.videorewardbench.loader import VideoRewardBench
from rewardlab.benchmarks.vl_rewardbench.loader import VLRewardBench
from rewardlab.checkpoints import commit, versions
from rewardlab.data.append_log import AppendLog
from rewardlab.data.files import data_hash, write_atomic
from rewardlab.data.pairs import with_blank_images, with_other_images
from rewardlab.data.votes import num_failed
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.engines import open_judge
from rewardlab.judging.judge import GenerativeJudge, draw_orders
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.judging.spec import JudgeSpec, judge_weights_id
from rewardlab.metrics.accuracy import Labeled, pair_score
from rewardlab.prompts import load_template
from rewardlab.samplers.base import HF
from rewardlab.types import (
    Judgment,
    Order,
    PreferencePair,
)

BENCHMARKS: dict[str, Benchmark] = {
    one.name: one
    for one in (VLRewardBench(), MMRLHF(), MultimodalRewardBench(), MMRB2(), VideoRewardBench(), RewardBench2(), OwnPairs())
}
VOTES, REPORT, SCORES, OFFICIAL = "votes.jsonl", "report.json", "scores.jsonl", "official.jsonl"
NO_ENGINES = ("baseline", "replay")  # judges that a benchmark takes beside those of engines
CONTROLS = ("greedy", "blank", "other")


@dataclass(frozen=True)
class BenchSettings:
    """What a run is asked to do. ``controls`` are further passes of one greedy vote per order: greedy, blank, other.

    ``stop_error``: ask in turns, and stop where the majority of ``votes`` of each order is settled but for this probability.
    """

    benchmark: str
    data: Path
    judge: str
    images: Path | None = None
    votes: int | None = None
    orders: str = "both"
    limit: int | None = None
    seed: int = 0
    template: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    stop_error: float | None = None
    max_tokens: int = 1024
    batch_size: int = 64
    controls: tuple[str, ...] = ("blank",)
    api_key: str = "none"
    command: str = ""  # that asked for it, for the report


def open_any_judge(settings: BenchSettings) -> AnyJudge:
    """The judge that ``settings.judge`` names. Raises ConfigError for an unknown SPEC."""
    spec = JudgeSpec.parse(settings.judge, *NO_ENGINES)
    if spec.engine == "baseline":
        return BaselineJudge(spec.target)
    if spec.engine == "replay":
        return Replay(Path(spec.target), load_template(settings.template).verdict_format if settings.template else None)
    return open_judge(
        settings.judge,
        template=settings.template,
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        batch_size=settings.batch_size,
        api_key=settings.api_key,
    )


def load_rows(settings: BenchSettings, judge: AnyJudge) -> tuple[list[Row], list[str]]:
    """The rows to judge, and what is odd about the file. Raises DataError for a replay of rows that it does not have."""
    benchmark = BENCHMARKS[settings.benchmark]
    rows = benchmark.load(settings.data, images=settings.images, with_images=judge.sees)
    if isinstance(judge, Replay) and (strangers := judge.rows - {row.row for row in rows}):
        raise DataError(f"{judge.name}: has samples for row {min(strangers)}, which {settings.data} does not have")
    notes = size_notes(benchmark, rows) + wordless_notes(rows)
    if settings.limit is not None and settings.limit < len(rows):
        notes.append(f"only the first {settings.limit} of {len(rows)} rows were judged (--limit)")
        rows = rows[: settings.limit]
    return rows, notes


def _with_pairs(rows: Sequence[Row], pairs: Sequence[PreferencePair]) -> list[Row]:
    return [replace(row, pair=pair) for row, pair in zip(rows, pairs, strict=True)]


def _images_hash(rows: Sequence[Row]) -> str:
    digest = hashlib.sha256()
    for row in rows:
        for image in (*row.pair.images, *row.pair.response_images[0], *row.pair.response_images[1]):
            digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()[:16]


def check_names(benchmark: str, controls: Sequence[str], orders: str, template: str | None) -> None:
    """Raises ConfigError for a name that nothing has."""
    if benchmark not in BENCHMARKS:
        raise ConfigError(f"unknown benchmark {benchmark!r}; expected one of {', '.join(BENCHMARKS)}")
    if unknown := sorted(set(controls) - set(CONTROLS)):
        raise ConfigError(f"unknown controls {', '.join(unknown)}; expected {', '.join(CONTROLS)}")
    draw_orders(orders, 0, 0)
    if template:
        load_template(template)


def run_bench(settings: BenchSettings, out: Path) -> tuple[dict[str, Any], list[Row]]:
    """Judge, score and write ``out/votes.jsonl`` and ``out/report.json``; returns the report and the rows judged.

    An interrupted run continues from its log; a finished one is only scored again. Raises what the judge and loader raise.
    """
    check_names(settings.benchmark, settings.controls, settings.orders, settings.template)
    judge = open_any_judge(settings)
    spec = JudgeSpec.parse(settings.judge, *NO_ENGINES)
    _check_stopping(settings, judge)
    rows, notes = load_rows(settings, judge)
    num_votes = settings.votes or (judge.max_votes if isinstance(judge, Replay) else 1)
    orders = draw_orders(settings.orders, len(rows), settings.seed)
    identity = {
        "benchmark": settings.benchmark,
        "data": data_hash(settings.data),
        "images": _images_hash(rows),
        "judge": settings.judge,
        "weights": data_hash(Path(spec.target)) if isinstance(judge, Replay) else judge_weights_id(settings.judge),
        "votes": num_votes,
        "orders": settings.orders,
        "limit": settings.limit,
        "seed": settings.seed,
        "batch_size": settings.batch_size if spec.engine == HF else None,
        "template": judge.template.hash if isinstance(judge, GenerativeJudge) else settings.template,
        "temperature": settings.temperature,
        "top_p": settings.top_p,
        "stop_error": settings.stop_error,
        "max_tokens": settings.max_tokens,
    }
    with AppendLog(out / VOTES, identity) as log:
        asked = Pass("votes", rows, orders, log, settings.stop_error)
        judgments = asked.run(judge, num_votes, settings.seed)
        controls = _controls(settings, judge, rows, orders, log, notes)
    if isinstance(judge, GenerativeJudge) and (failed := sum(num_failed(judged.votes) for judged in judgments)):
        notes.append(f"{failed:,} votes failed at the endpoint and count as wrong; the same command asks for them again")
    notes += _vote_notes(judge, judgments, num_votes)
    labeled = _labeled(rows, judgments)
    asked_as = judge.recorded if isinstance(judge, Replay) else identity
    stopped = settings.stop_error is not None or (isinstance(judge, Replay) and judge.stopped)
    verdict_format = "" if isinstance(judge, BaselineJudge) else judge.verdict_format
    official: list[str] = []  # of votes in one order, or stopped when clear, the benchmark's own draws cannot be made up
    if settings.orders == "both" and not stopped:
        official = write_official(settings.benchmark, rows, judgments, verdict_format, settings.seed, out / OFFICIAL)
    report = {
        "benchmark": settings.benchmark,
        "command": settings.command,
        "data": str(settings.data),
        "data_sha256": identity["data"],
        "judge": settings.judge,
        "template": judge.template.name if isinstance(judge, GenerativeJudge) else None,
        "orders": settings.orders,
        "votes": num_votes,
        "verdict_format": verdict_format or None,
        "temperature": asked_as.get("temperature"),
        "top_p": asked_as.get("top_p"),
        "stop_error": asked_as.get("stop_error"),
        "max_tokens": asked_as.get("max_tokens"),
        "seed": settings.seed,
        "seconds_per_vote": asked.seconds / asked.num_timed if asked.num_timed else None,
        **score(rows, labeled, num_votes, whole_prompts=BENCHMARKS[settings.benchmark].whole_prompts, stopped=stopped),
        "controls": {name: _control_report(rows, judged) for name, judged in controls.items()},
        "baselines": baseline_rows(rows, orders, settings.seed, whole_prompts=BENCHMARKS[settings.benchmark].whole_prompts),
        "official": official,
        "notes": notes,
        "versions": versions(),
        "commit": commit(),
    }
    scores = [_score_row(row, item) for row, item in zip(rows, labeled, strict=True)]
    assert not problems(report, scores), problems(report, scores)
    write_atomic(out / SCORES, "".join(json.dumps(row) + "\n" for row in scores))
    write_atomic(out / REPORT, json.dumps(report, indent=1, allow_nan=False) + "\n")
    return report, rows


def _vote_notes(judge: AnyJudge, judgments: Sequence[Judgment], num_votes: int) -> list[str]:
    """What to know of the votes before reading their figures."""
    notes = []
    lost = sum(vote.completion.error == MISSING for judged in judgments for vote in judged.votes)
    if lost:
        total = sum(len(judged.votes) for judged in judgments)
        notes.append(f"{lost:,} of {total:,} samples are not in the replay file; each counts as a failure")
    if num_votes % 2 == 0 and not isinstance(judge, BaselineJudge):
        notes.append(f"{num_votes} votes in each order can be even, which is not right; an odd number scores higher")
    return notes


def _check_stopping(settings: BenchSettings, judge: AnyJudge) -> None:
    """Raises ConfigError where there is nothing to stop."""
    if settings.stop_error is None:
        return
    if not isinstance(judge, GenerativeJudge):
        raise ConfigError(f"--stop-error saves asking, and {judge.name} is not asked; its report says what stopping would cost")
    if isinstance(judge, ProbabilityJudge):
        raise ConfigError(
            f"--stop-error settles a majority, and {settings.judge} decides by probability; use hf:, or fewer --votes"
        )
    if settings.orders != "both" or (settings.votes or 1) < 2 or not 0 <= settings.stop_error < 0.5:
        raise ConfigError(
            f"--stop-error {settings.stop_error:g} with {settings.votes or 1} votes and orders {settings.orders}: expected a "
            "probability below 0.5, --votes of 2 or more and both orders"
        )


def _score_row(row: Row, item: Labeled) -> dict[str, Any]:
    """What `bench compare` and the page need of a row; the cluster by its hash, for it may be a whole prompt."""
    cluster = hashlib.sha256(row.cluster.encode(errors="replace")).hexdigest()[:16]
    kinds = kinds_of(item.judgment, item.preferred)
    return {"row": row.row, "group": row.group, "cluster": cluster, "score": pair_score(item), "kinds": kinds}


def _labeled(rows: Sequence[Row], judgments: Sequence[Judgment]) -> list[Labeled]:
    done = []
    for row, judged in zip(rows, judgments, strict=True):
        assert row.pair.preferred is not None
        done.append(Labeled(judged, row.pair.preferred, row.group))
    return done


def _controls(
    settings: BenchSettings,
    judge: AnyJudge,
    rows: Sequence[Row],
    orders: Sequence[tuple[Order, ...]],
    log: AppendLog,
    notes: list[str],
) -> dict[str, list[Labeled]]:
    """Further passes of one greedy vote per order: as asked, without the image, with another pair's image."""
    if not isinstance(judge, GenerativeJudge):
        return {}
    greedy = type(judge)(judge.sampler, judge.template, temperature=0.0, max_tokens=judge.max_tokens)
    pairs = [row.pair for row in rows]
    shown = {
        "greedy": lambda: pairs,
        "blank": lambda: with_blank_images(pairs),
        "other": lambda: with_other_images(pairs),
    }
    shows = any(pair.images or any(pair.response_images) for pair in pairs)
    done = {}
    for name in settings.controls:
        if name == "other" and not _has_others(pairs):
            notes.append("no control with another pair's image: there is none that could be shown")
        elif name == "blank" and not shows:
            notes.append("no control with blank images: no pair has an image")
        else:
            changed = _with_pairs(rows, shown[name]())
            done[name] = _labeled(rows, Pass(name, changed, orders, log).run(greedy, 1, settings.seed))
    return done


def _has_others(pairs: Sequence[PreferencePair]) -> bool:
    """Whether every pair with images could be shown as many of another pair's."""
    shown: dict[int, set[tuple[bytes, ...]]] = {}
    for pair in pairs:
        if pair.images:
            shown.setdefault(len(pair.images), set()).add(pair.images)
    return bool(shown) and all(len(different) > 1 for different in shown.values())


def _control_report(rows: Sequence[Row], labeled: list[Labeled]) -> dict[str, Any]:
    return core(rows, labeled)
