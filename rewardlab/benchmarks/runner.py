"""Score a judge on a benchmark: ask, keep every vote in a log that survives a kill, and compute the report from the log."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path

from rewardlab.benchmarks.arithmetic import problems
from rewardlab.benchmarks.base import Benchmark, Row, equal_length_notes, size_notes
from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.kinds import kinds_of
from rewardlab.benchmarks.official import write_official
from rewardlab.benchmarks.panel import panel_confidence, panel_scores
from rewardlab.benchmarks.passes import AnyJudge, Pass
from rewardlab.benchmarks.registry import PACKAGED, benchmark_identity, find_benchmark
from rewardlab.benchmarks.replay import MISSING, Replay, Sampling
from rewardlab.benchmarks.report_model import Report, RowScore
from rewardlab.benchmarks.requirements import Requirement, check_possible
from rewardlab.benchmarks.run_files import OFFICIAL, REPORT, SCORES, VOTES
from rewardlab.benchmarks.scores import baseline_scores, judge_scores, score_rows
from rewardlab.data.append_log import AppendLog
from rewardlab.data.files import data_hash, write_atomic
from rewardlab.data.pairs import with_blank_images, with_other_images
from rewardlab.data.video import describe_frames
from rewardlab.data.votes import num_failed
from rewardlab.errors import ConfigError, DataError, RewardlabError
from rewardlab.judging.engines import open_model_judge
from rewardlab.judging.judge import GenerativeJudge, ModelJudge, draw_orders
from rewardlab.judging.margins import ProbabilityJudge
from rewardlab.judging.panel import PanelJudge
from rewardlab.judging.served import ServedJudge
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, judge_video_policy
from rewardlab.metrics.accuracy import Labeled, pair_score
from rewardlab.models.checkpoints import commit, load_template_for, versions
from rewardlab.prompts import load_template
from rewardlab.samplers.base import HF
from rewardlab.types import (
    Judgment,
    Order,
    PreferencePair,
)

NO_ENGINES = ("baseline", "replay")  # judges that a benchmark takes beside those of engines
CONTROLS = ("greedy", "blank", "other")


@dataclass(frozen=True)
class BenchSettings:
    """The settings of a run. ``controls`` are further passes of one greedy vote per order: greedy, blank, other.

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
    engine_args: str = ""
    controls: tuple[str, ...] = ("blank",)
    api_key: str = "none"
    command: str = ""  # for the report
    requirements: tuple[Requirement, ...] = ()  # checked against what the run will have, before anything is asked


def open_any_judge(settings: BenchSettings) -> AnyJudge:
    """The judge that ``settings.judge`` names. Raises ConfigError for an unknown SPEC."""
    spec = JudgeSpec.parse(settings.judge, *NO_ENGINES, *WITHOUT_SAMPLER)
    if spec.engine == "baseline":
        return BaselineJudge(spec.target)
    if spec.engine == "replay":
        return Replay(Path(spec.target), load_template(settings.template).verdict_format if settings.template else None)
    return open_model_judge(
        settings.judge,
        template=settings.template,
        temperature=settings.temperature,
        top_p=settings.top_p,
        max_tokens=settings.max_tokens,
        batch_size=settings.batch_size,
        engine_args=settings.engine_args,
        api_key=settings.api_key,
    )


def load_benchmark_rows(benchmark: Benchmark, settings: BenchSettings, *, with_images: bool) -> list[Row]:
    """Return the rows of a data file. Raise DataError where the loader of a benchmark from outside fails in any way."""
    load: Callable[..., list[Row]] = benchmark.load
    if benchmark.load_videos is not None:
        load = partial(benchmark.load_videos, policy=judge_video_policy(settings.judge, *NO_ENGINES, *WITHOUT_SAMPLER))
    if settings.benchmark in PACKAGED:
        return load(settings.data, images=settings.images, with_images=with_images)
    try:
        return load(settings.data, images=settings.images, with_images=with_images)
    except RewardlabError:
        raise
    except (Exception, SystemExit) as error:  # the boundary: another's code may fail in any way
        raise DataError(
            f"{settings.data}: the loader of {settings.benchmark} fails ({type(error).__name__}: {error})"
        ) from error


def load_rows(settings: BenchSettings, judge: AnyJudge) -> tuple[list[Row], list[str]]:
    """Return the rows to judge, and what is odd about the file. Raise DataError for a replay of rows that it does not have."""
    benchmark = find_benchmark(settings.benchmark)
    rows = load_benchmark_rows(benchmark, settings, with_images=judge.sees)
    if isinstance(judge, Replay) and (strangers := judge.rows - {row.row for row in rows}):
        raise DataError(f"{judge.name}: has samples for row {min(strangers)}, which {settings.data} does not have")
    notes = size_notes(benchmark, rows) + equal_length_notes(rows)
    if num_videos := sum(row.num_videos for row in rows):
        policy = judge_video_policy(settings.judge, *NO_ENGINES, *WITHOUT_SAMPLER)
        notes.append(
            f"videos ({num_videos:,}): each shown as {describe_frames(benchmark.frames, policy() if policy else None)}"
        )
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


def check_names(name: str, controls: Sequence[str], orders: str, template: str | None, judge: str) -> Benchmark:
    """Return the benchmark. Raise ConfigError for a name that nothing has, CheckpointError for a template that a checkpoint was
    not trained on."""
    benchmark = find_benchmark(name)
    if unknown := sorted(set(controls) - set(CONTROLS)):
        raise ConfigError(f"unknown controls {', '.join(unknown)}; expected {', '.join(CONTROLS)}")
    draw_orders(orders, 0, 0)
    if template:
        checkpoint = JudgeSpec.parse(judge, *NO_ENGINES, *WITHOUT_SAMPLER).checkpoint
        load_template_for(checkpoint, template) if checkpoint else load_template(template)
    return benchmark


@dataclass(frozen=True)
class RunIdentity:
    """What decides the votes of a run: the log of one run is never continued by another."""

    benchmark: str
    data: str
    images: str
    judge: str
    weights: str | None
    votes: int
    orders: str
    limit: int | None
    seed: int
    batch_size: int | None
    template: str | None
    temperature: float
    top_p: float
    stop_error: float | None
    max_tokens: int


def run_identity(settings: BenchSettings, judge: AnyJudge, rows: Sequence[Row], num_votes: int) -> RunIdentity:
    spec = JudgeSpec.parse(settings.judge, *NO_ENGINES, *WITHOUT_SAMPLER)
    of_model = judge.identity if isinstance(judge, ModelJudge) else {}
    weights = data_hash(Path(spec.target)) if isinstance(judge, Replay) else str(of_model.get("weights", ""))
    return RunIdentity(
        benchmark=benchmark_identity(settings.benchmark),
        data=data_hash(settings.data),
        images=_images_hash(rows),
        judge=f"{of_model.get('judge', settings.judge)} {settings.engine_args}".strip(),
        weights=weights,
        votes=num_votes,
        orders=settings.orders,
        limit=settings.limit,
        seed=settings.seed,
        batch_size=settings.batch_size if spec.engine == HF else None,
        template=str(of_model["template"]) if of_model else settings.template,
        temperature=settings.temperature,
        top_p=settings.top_p,
        stop_error=settings.stop_error,
        max_tokens=settings.max_tokens,
    )


def run_bench(settings: BenchSettings, out: Path) -> tuple[Report, list[Row]]:
    """Judge, score and write ``out/votes.jsonl`` and ``out/report.json``; returns the report and the rows judged.

    An interrupted run continues from its log; a finished one is only scored again. Raises what the judge and loader raise.
    """
    benchmark = check_names(settings.benchmark, settings.controls, settings.orders, settings.template, settings.judge)
    judge = open_any_judge(settings)
    _check_stopping(settings, judge)
    rows, notes = load_rows(settings, judge)
    check_possible(
        settings.requirements,
        controls=settings.controls,
        orders=settings.orders,
        groups=[row.group for row in rows],
        whole_prompts=benchmark.whole_prompts,
    )
    num_votes = settings.votes or (judge.max_votes if isinstance(judge, Replay) else 1)
    orders = draw_orders(settings.orders, len(rows), settings.seed)
    identity = run_identity(settings, judge, rows, num_votes)
    with AppendLog(out / VOTES, asdict(identity)) as log:
        votes_pass = Pass("votes", rows, orders, log, settings.stop_error)
        judgments = votes_pass.run(judge, num_votes, settings.seed)
        controls = _controls(settings, judge, rows, orders, log, notes)
    if isinstance(judge, ModelJudge) and (failed := sum(num_failed(judgment.votes) for judgment in judgments)):
        notes.append(f"{failed:,} votes failed at the endpoint and count as wrong; the same command asks for them again")
    notes += _vote_notes(judge, judgments, num_votes)
    labeled = _labeled(rows, judgments)
    sampling = judge.sampling if isinstance(judge, Replay) else Sampling() if isinstance(judge, ServedJudge) else identity
    # Votes of a panel are of several judges: fewer of them are no smaller panel, and no text of one judge.
    stopped = settings.stop_error is not None or (isinstance(judge, Replay) and judge.stopped) or isinstance(judge, PanelJudge)
    verdict_format = judge.verdict_format if isinstance(judge, GenerativeJudge | Replay) else ""
    official: list[str] = []  # of votes in one order, or stopped when clear, the benchmark's own draws cannot be made up
    if settings.orders == "both" and not stopped:
        official = write_official(benchmark, rows, judgments, verdict_format, settings.seed, out / OFFICIAL)
    clusters = [row.cluster for row in rows]
    scores = score_rows(rows, labeled, num_votes, whole_prompts=benchmark.whole_prompts, stopped=stopped)
    if isinstance(judge, PanelJudge):
        scores = replace(scores, confidence=panel_confidence(labeled, clusters))
    report = Report(
        benchmark=benchmark.name,
        command=settings.command,
        data=str(settings.data),
        data_sha256=identity.data,
        judge=identity.judge,
        template=judge.template.name if isinstance(judge, GenerativeJudge) else None,
        orders=settings.orders,
        votes=num_votes,
        verdict_format=verdict_format or None,
        temperature=sampling.temperature,
        top_p=sampling.top_p,
        stop_error=sampling.stop_error,
        max_tokens=sampling.max_tokens,
        seed=settings.seed,
        seconds_per_vote=votes_pass.seconds / votes_pass.num_timed if votes_pass.num_timed else None,
        scores=scores,
        controls={name: judge_scores(rows, items) for name, items in controls.items()},
        baselines=baseline_scores(rows, orders, settings.seed, whole_prompts=benchmark.whole_prompts),
        official=tuple(official),
        panel=panel_scores(judge, labeled, clusters) if isinstance(judge, PanelJudge) else None,
        notes=tuple(notes),
        versions=versions(),
        commit=commit(),
    )
    row_scores = [_row_score(row, item) for row, item in zip(rows, labeled, strict=True)]
    if wrong := problems(report, row_scores):
        raise RuntimeError(f"{out}: the report does not add up, a fault of the scoring: {'; '.join(wrong)}")
    write_atomic(out / SCORES, "".join(json.dumps(asdict(score)) + "\n" for score in row_scores))
    write_atomic(out / REPORT, json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    return report, rows


def _vote_notes(judge: AnyJudge, judgments: Sequence[Judgment], num_votes: int) -> list[str]:
    """What to know of the votes before reading their figures."""
    notes = []
    lost = sum(vote.completion.error == MISSING for judgment in judgments for vote in judgment.votes)
    if lost:
        total = sum(len(judgment.votes) for judgment in judgments)
        notes.append(f"{lost:,} of {total:,} samples are not in the replay file; each counts as a failure")
    if num_votes % 2 == 0 and not isinstance(judge, BaselineJudge):
        notes.append(f"{num_votes} votes in each order can be even, which is not right; an odd number scores higher")
    return notes


def _check_stopping(settings: BenchSettings, judge: AnyJudge) -> None:
    """Raises ConfigError where there is nothing to stop."""
    if settings.stop_error is None:
        return
    if not isinstance(judge, ModelJudge):
        raise ConfigError(f"--stop-error saves asking, and {judge.name} is not asked; its report says what stopping would cost")
    if isinstance(judge, ProbabilityJudge | PanelJudge | ServedJudge):
        how = "by its members" if isinstance(judge, PanelJudge) else "by probability"
        how = "by a rule of its own" if isinstance(judge, ServedJudge) else how
        raise ConfigError(f"--stop-error settles a majority of votes, and {settings.judge} decides {how}; use fewer --votes")
    if settings.orders != "both" or (settings.votes or 1) < 2 or not 0 <= settings.stop_error < 0.5:
        raise ConfigError(
            f"--stop-error {settings.stop_error:g} with {settings.votes or 1} votes and orders {settings.orders}: expected a "
            "probability below 0.5, --votes of 2 or more and both orders"
        )


def _row_score(row: Row, item: Labeled) -> RowScore:
    """What `bench compare` and the page need of a row; the cluster by its hash, for it may be a whole prompt."""
    cluster = hashlib.sha256(row.cluster.encode(errors="replace")).hexdigest()[:16]
    return RowScore(row.row, row.group, cluster, pair_score(item), tuple(kinds_of(item.judgment, item.preferred)))


def _labeled(rows: Sequence[Row], judgments: Sequence[Judgment]) -> list[Labeled]:
    items = []
    for row, judgment in zip(rows, judgments, strict=True):
        assert row.pair.preferred is not None
        items.append(Labeled(judgment, row.pair.preferred, row.group))
    return items


def _controls(
    settings: BenchSettings,
    judge: AnyJudge,
    rows: Sequence[Row],
    orders: Sequence[tuple[Order, ...]],
    log: AppendLog,
    notes: list[str],
) -> dict[str, list[Labeled]]:
    """Further passes of one greedy vote per order: as asked, without the image, with another pair's image."""
    if not isinstance(judge, ModelJudge):
        return {}
    greedy = judge.greedy()
    if settings.controls and greedy.temperature > 0:
        notes.append("the controls of a served judge are votes at its own temperature, not greedy ones")
    pairs = [row.pair for row in rows]
    changes = {
        "greedy": lambda: pairs,
        "blank": lambda: with_blank_images(pairs),
        "other": lambda: with_other_images(pairs),
    }
    has_images = any(pair.images or any(pair.response_images) for pair in pairs)
    controls = {}
    for name in settings.controls:
        if name == "other" and not _has_others(pairs):
            notes.append("no control with another pair's image: there is none that could be shown")
        elif name == "blank" and not has_images:
            notes.append("no control with blank images: no pair has an image")
        else:
            changed = _with_pairs(rows, changes[name]())
            controls[name] = _labeled(rows, Pass(name, changed, orders, log).run(greedy, 1, settings.seed))
    return controls


def _has_others(pairs: Sequence[PreferencePair]) -> bool:
    """Whether every pair with images could be shown as many of another pair's."""
    by_number: dict[int, set[tuple[bytes, ...]]] = {}
    for pair in pairs:
        if pair.images:
            by_number.setdefault(len(pair.images), set()).add(pair.images)
    return bool(by_number) and all(len(different) > 1 for different in by_number.values())
