"""The report of a benchmark run, from the judgments of its rows."""

from __future__ import annotations

import hashlib
import shlex
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark, Row
from rewardlab.benchmarks.findings import INVALID, find_faults, gather_evidence
from rewardlab.benchmarks.identity import RunIdentity
from rewardlab.benchmarks.kinds import kinds_of
from rewardlab.benchmarks.official import write_official
from rewardlab.benchmarks.panel import panel_confidence, panel_scores
from rewardlab.benchmarks.passes import AnyJudge
from rewardlab.benchmarks.replay import MISSING
from rewardlab.benchmarks.report_model import Cost, Report, RowScore
from rewardlab.benchmarks.revision import revision_of
from rewardlab.benchmarks.run_files import OFFICIAL, VOTES
from rewardlab.benchmarks.scores import baseline_scores, control_scores, one_vote_scores, score_rows
from rewardlab.benchmarks.settings import BenchSettings
from rewardlab.data.votes import num_failed
from rewardlab.metrics.accuracy import Labeled, invalid_rate, pair_score, pair_swaps
from rewardlab.metrics.intervals import FEWEST_CLUSTERS
from rewardlab.models.checkpoints import commit, versions
from rewardlab.samplers.failures import errors_in_words, failure_sentence
from rewardlab.types import Judgment, Order
from rewardlab.verdicts.other_formats import other_format, unread_texts

VOTES_PASS = "votes"  # the pass that is no control


@dataclass(frozen=True)
class RunResult:
    """What a run has when all is answered: its judgments in the order of ``rows``, and those of its controls by name.
    ``left_out``: fields that the model was asked without; ``others``: judgments of further passes by their names."""

    settings: BenchSettings
    benchmark: Benchmark
    judge: AnyJudge
    identity: RunIdentity
    rows: Sequence[Row]
    orders: Sequence[tuple[Order, ...]]
    judgments: Sequence[Judgment]
    controls: Mapping[str, Sequence[Labeled]]
    seconds_per_vote: float | None
    left_out: frozenset[str] = frozenset()
    cost: Cost | None = None
    others: Mapping[str, Sequence[Judgment]] = field(default_factory=dict)


def make_report(result: RunResult, notes: Sequence[str], out: Path) -> Report:
    """Return the report; write the outputs that the benchmark's own scorer takes, where it can take them, to ``out``."""
    settings, benchmark, judge, identity = result.settings, result.benchmark, result.judge, result.identity
    rows, orders, judgments, num_votes = result.rows, result.orders, result.judgments, result.identity.votes
    all_notes = list(notes)
    all_notes += _notes_on_fields(result.left_out, settings.judge.omitted_fields, result.controls)
    all_judgments = [*judgments, *(judgment for others in result.others.values() for judgment in others)]
    if judge.is_queried and (failed := sum(num_failed(judgment.votes) for judgment in all_judgments)):
        errors = errors_in_words(vote.completion for judgment in all_judgments for vote in judgment.votes)
        all_notes.append(
            f"{failed:,} votes failed at the endpoint and count as wrong: {errors}; the same command asks for them again"
        )
    all_notes += _vote_notes(judge, judgments, num_votes)
    labeled = label_rows(rows, judgments)
    sampling = judge.sampling or identity
    stopped = settings.judge.stop_error is not None or judge.has_partial_votes
    verdict_format = judge.verdict_format
    official: list[str] = []  # of votes in one order, or stopped when clear, the benchmark's own draws cannot be made up
    if settings.judge.orders == "both" and not stopped:
        official = write_official(benchmark, rows, judgments, verdict_format, settings.seed, out / OFFICIAL)
    clusters = [row.cluster for row in rows]
    one_vote = one_vote_scores(labeled, stopped=stopped)
    scores = score_rows(rows, labeled, num_votes, whole_prompts=benchmark.whole_prompts, stopped=stopped)
    all_notes += _prompt_notes(scores.num_clusters)
    unread_format = format_note(judge, judgments, out)
    if unread_format and scores.invalid_rate < INVALID:  # else it stands with what is wrong with the judge
        all_notes.append(unread_format)
    if judge.members:
        scores = replace(scores, confidence=panel_confidence(labeled, clusters))
    report = Report(
        benchmark=benchmark.name,
        command=settings.command,
        data=str(settings.data),
        data_sha256=identity.data,
        judge=identity.judge,
        judge_config=settings.judge.model_dump(mode="json", exclude_defaults=True),
        judge_config_hash=settings.judge.hash,
        template=judge.template_name,
        orders=settings.judge.orders,
        votes=num_votes,
        verdict_format=verdict_format or None,
        temperature=None if "temperature" in result.left_out else sampling.temperature,
        top_p=None if "top_p" in result.left_out else sampling.top_p,
        stop_error=sampling.stop_error,
        max_tokens=sampling.max_tokens,
        seed=settings.seed,
        seconds_per_vote=result.seconds_per_vote,
        scores=scores,
        controls=control_scores(rows, one_vote, result.controls),
        baselines=baseline_scores(rows, orders, settings.seed, whole_prompts=benchmark.whole_prompts),
        official=tuple(official),
        panel=panel_scores(judge, labeled, clusters) if judge.members else None,
        cost=result.cost,
        cached_votes=sum(vote.completion.from_cache for judgment in judgments for vote in judgment.votes),
        revision=revision_of(labeled, clusters, verdict_format) if verdict_format else None,
        failure=_failure(result) if judge.is_queried else "",
        notes=tuple(all_notes),
        versions=versions(),
        commit=commit(),
    )
    evidence = gather_evidence(
        rows,
        labeled,
        result.controls,
        sees=judge.sees,
        one_vote=one_vote,
        greedy=report.temperature == 0,
        num_missing=_num_missing(judgments),
        other_format=unread_format,
    )
    return replace(report, findings=find_faults(report, evidence))


def _notes_on_fields(left_out: frozenset[str], by_body: frozenset[str], controls: Collection[str]) -> list[str]:
    """What the judge was asked without, and why."""
    whys = {"which the endpoint refuses": left_out - by_body, "which the body of the requests leaves out": left_out & by_body}
    notes = [f"asked without {', '.join(sorted(names))}, {why}: its own defaults hold" for why, names in whys.items() if names]
    if controls and "temperature" in left_out:
        notes.append("the controls are votes at the endpoint's own temperature, not greedy ones")
    return notes


def _num_missing(judgments: Sequence[Judgment]) -> int:
    return sum(vote.completion.error == MISSING for judgment in judgments for vote in judgment.votes)


def _failure(result: RunResult) -> str:
    controls = {name: [item.judgment for item in items] for name, items in result.controls.items()}
    return failure_of({VOTES_PASS: result.judgments, **controls}, result.settings.max_failed, result.others)


def _vote_notes(judge: AnyJudge, judgments: Sequence[Judgment], num_votes: int) -> list[str]:
    """What to know of the votes before reading their figures."""
    notes = []
    if judge.verdict_temperature != 1 and judge.decides:
        notes.append(f"the log-odds of verdicts are divided by {judge.verdict_temperature:.4g}, the temperature of this judge")
    if lost := _num_missing(judgments):
        total = sum(len(judgment.votes) for judgment in judgments)
        notes.append(f"{lost:,} of {total:,} samples are not in the replay file; each counts as a failure")
    if num_votes % 2 == 0 and (judge.is_queried or judge.is_recording):
        notes.append(f"{num_votes} votes in each order can be even, which is not right; an odd number scores higher")
    return notes


def _prompt_notes(num_prompts: int) -> list[str]:
    """What to know of intervals over few prompts."""
    if num_prompts < FEWEST_CLUSTERS:
        return [f"{num_prompts} prompts are too few for an interval: it spans all that is possible"]
    return []


def row_score(row: Row, item: Labeled) -> RowScore:
    """Return what `bench compare` and the page need of a row; the cluster by its hash, for it may be a whole prompt."""
    cluster = hashlib.sha256(row.cluster.encode(errors="replace")).hexdigest()[:16]
    kinds = tuple(kinds_of(item.judgment, item.preferred))
    alike = pair_swaps([item])[0]
    return RowScore(
        row.row, row.group, cluster, pair_score(item), invalid_rate([item]), kinds, row.pair.pair_id, item.preferred, alike
    )


def label_rows(rows: Sequence[Row], judgments: Sequence[Judgment]) -> list[Labeled]:
    """Return each row's judgment beside its label and group."""
    items = []
    for row, judgment in zip(rows, judgments, strict=True):
        assert row.pair.preferred is not None
        items.append(Labeled(judgment, row.pair.preferred, row.group))
    return items


def format_note(judge: AnyJudge, judgments: Sequence[Judgment], out: Path) -> str:
    """Return a sentence where another format reads many of the answers without a verdict, with the flag that does; else ""."""
    other = other_format(unread_texts([vote for judgment in judgments for vote in judgment.votes]))
    if other is None or judge.members:  # votes of several judges are no replay
        return ""
    if judge.is_recording:
        return other.sentence(f"template={other.name} reads them")
    replay = shlex.quote(f"replay:{out / VOTES}")
    return other.sentence(f"--judge {replay} template={other.name} (and another --out) reads them without asking again")


def failure_of(
    passes: Mapping[str, Sequence[Judgment]], most: float, others: Mapping[str, Sequence[Judgment]] | None = None
) -> str:
    """Return why a run failed: a sentence for each pass, by its name, of whose votes more than the share ``most`` (0..1) failed
    at the endpoint; "" where none did. ``others`` are passes that are no controls, and cannot be left out."""
    sentences = []
    for name, judgments in (others or {}).items():
        completions = [vote.completion for judgment in judgments for vote in judgment.votes]
        if sentence := failure_sentence(completions, most, f"votes of {name}"):
            sentences.append(sentence)
    for name, judgments in passes.items():
        completions = [vote.completion for judgment in judgments for vote in judgment.votes]
        what = "votes" if name == VOTES_PASS else f"votes of the control {name}"
        if sentence := failure_sentence(completions, most, what):
            sentences.append(sentence if name == VOTES_PASS else f"{sentence} (--controls leaves it out)")
    return "; ".join(sentences)
