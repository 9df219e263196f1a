"""Score a judge on a benchmark: ask, keep every vote in a log that survives a kill, and compute the report from the log."""

from __future__ import annotations

import hashlib
import json
import shlex
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.agreement import RatedPair, agreement_scores
from rewardlab.benchmarks.arithmetic import problems
from rewardlab.benchmarks.base import OFFICIAL, REFUSED_FIELDS, REPORT, SCORES, VOTES, Benchmark, Row
from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.findings import INVALID, find_faults, gather_evidence
from rewardlab.benchmarks.official import write_official
from rewardlab.benchmarks.pass_log import PassLog, Spending
from rewardlab.benchmarks.passes import CONTROLS, UNLABELLED_PASS, VOTES_PASS, AnyJudge, Pass
from rewardlab.benchmarks.registry import benchmark_identity
from rewardlab.benchmarks.replay import MISSING, Replay
from rewardlab.benchmarks.report_model import (
    BaselineScores,
    Confidence,
    Cost,
    MemberScores,
    PanelScores,
    Report,
    RowScore,
)
from rewardlab.benchmarks.requirements import check_possible, check_report
from rewardlab.benchmarks.rows import images_hash, load_rows, split_rows
from rewardlab.benchmarks.scores import (
    LEAST_VOTES,
    baseline_scores,
    calibrate,
    checklist_of,
    control_scores,
    kinds_of,
    longer,
    one_vote_scores,
    revision_of,
    score_rows,
)
from rewardlab.benchmarks.settings import NO_ENGINES, BenchSettings, check_names
from rewardlab.benchmarks.systems import names_two_systems, system_scores
from rewardlab.config.data import NO_BUDGET, NO_PRICES
from rewardlab.data.files import data_hash, write_atomic
from rewardlab.data.votes import TIES_PASS, num_failed
from rewardlab.distill.budget import BudgetGuard, BudgetSpentError
from rewardlab.distill.journal import Usage
from rewardlab.errors import ConfigError
from rewardlab.judging.engines import open_model_judge
from rewardlab.judging.judge import JudgeKind, ModelJudge, VoteSampling
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, judge_config
from rewardlab.metrics.accuracy import Labeled, invalid_rate, pair_score, pair_swaps
from rewardlab.metrics.intervals import FEWEST_CLUSTERS, mean_estimate
from rewardlab.metrics.ties import tie_scores
from rewardlab.models.checkpoints import commit, versions
from rewardlab.prompts import reading_format
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.base import HF, RequestGate
from rewardlab.samplers.failures import errors_in_words, failure_sentence
from rewardlab.types import BOTH_ORDERS, Completion, Judgment, Order, Tie, Vote
from rewardlab.verdicts.other_formats import other_format, unread_texts
from rewardlab.verdicts.panel import member_judgments
from rewardlab.verdicts.votes import in_order


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
    sampling: VoteSampling
    verdict_temperature: str | float = 1.0

    def to_dict(self) -> dict[str, object]:
        """Return what the first line of a log says; of a judge without a temperature of its verdicts nothing is said of it."""
        values = asdict(self)
        values |= values.pop("sampling")
        return {name: value for name, value in values.items() if (name, value) != ("verdict_temperature", 1.0)}


def run_identity(settings: BenchSettings, judge: AnyJudge, rows: Sequence[Row], num_votes: int) -> RunIdentity:
    """Return what decides the votes of a run of ``settings`` by ``judge`` on ``rows``."""
    query, of_judge = settings.judge, judge.identity
    spec = JudgeSpec.parse(query.judge, *NO_ENGINES, *WITHOUT_SAMPLER)
    parts = [str(of_judge.get("judge", query.judge)), query.engine_args, query.request_identity]
    return RunIdentity(
        benchmark=benchmark_identity(settings.benchmark),
        data=data_hash(settings.data),
        images=images_hash(rows),
        judge=" ".join(part for part in parts if part),
        weights=str(of_judge.get("weights", "")),
        votes=num_votes,
        orders=query.orders,
        limit=settings.limit,
        seed=settings.seed,
        batch_size=query.batch_size if spec.engine == HF else None,
        template=str(of_judge["template"]) if "template" in of_judge else query.template,
        sampling=VoteSampling(stop_error=query.stop_error, **query.sampling),
        verdict_temperature=of_judge.get("verdict_temperature", 1.0),
    )


def open_any_judge(settings: BenchSettings) -> AnyJudge:
    """Return the judge of a run. Raise ConfigError for an unknown specification."""
    spec = JudgeSpec.parse(settings.judge.judge, *NO_ENGINES, *WITHOUT_SAMPLER)
    if spec.engine == "baseline":
        return BaselineJudge(spec.target)
    if spec.engine == "replay":
        return Replay(Path(spec.target), reading_format(settings.judge.template) if settings.judge.template else None)
    return open_model_judge(settings.judge, api_key=settings.api_key)


def run_bench(settings: BenchSettings, out: Path) -> tuple[Report, list[Row]]:
    """Judge, score and write ``out/votes.jsonl`` and ``out/report.json``; returns the report and the rows judged.

    An interrupted run continues from its log; a finished one is only scored again. Raises what the judge and loader raise.
    """
    benchmark = check_names(settings.benchmark, settings.controls, settings.judge)
    judge = open_any_judge(settings)
    orders = judge.resolve_orders(settings.judge.orders, settings.judge.votes)
    settings = replace(settings, judge=judge_config(settings.judge, orders=orders))
    _check_stopping(settings, judge)
    check_budget(settings, judge)
    rows, notes = load_rows(settings, judge)
    rows, tied, unlabelled = split_rows(rows, settings.data)
    extra = further_rows(rows, tied, unlabelled)
    return judge_rows(settings, benchmark, judge, rows, notes, out, extra=extra)


@dataclass(frozen=True)
class Extra:
    """The part of a run that a variant of a benchmark adds: further ``passes``, by name, and what decides them (``identity``).

    ``finish`` returns the report with what they add, given the judgments of the rows, those of each further pass, and the
    report. ``measured`` are the metrics of held-out families of attacks. ``votes`` gives those of the rows if they follow from
    the further passes. ``chance`` is the accuracy of a guess among more than two answers: baselines of pairs and lengths say
    nothing then.
    """

    passes: Mapping[str, Sequence[Row]]
    identity: Mapping[str, object]
    finish: Callable[[Sequence[Judgment], Mapping[str, Sequence[Judgment]], Report], Report]
    measured: Sequence[str] | None = None
    votes: Callable[[Mapping[str, Sequence[Judgment]]], list[list[Vote]]] | None = None
    chance: float | None = None

    @property
    def is_plain(self) -> bool:
        """Return whether the rows are the benchmark's own pairs, not attacked ones or lists."""
        return self.votes is None and self.chance is None and self.measured is None


NO_EXTRA = Extra({}, {}, lambda judgments, others, report: report)


def further_rows(rows: Sequence[Row], tied: Sequence[Row], unlabelled: Sequence[Row]) -> Extra:
    """Return the part of a run that judges ``tied`` pairs and those without a label; ``rows`` have a better response."""
    passes = {name: some for name, some in ((TIES_PASS, tied), (UNLABELLED_PASS, unlabelled)) if some}
    num_both_bad = sum(row.pair.tie is Tie.BOTH_BAD for row in tied)
    clusters, tied_clusters = [row.cluster for row in rows], [row.cluster for row in tied]

    def finish(judgments: Sequence[Judgment], others: Mapping[str, Sequence[Judgment]], report: Report) -> Report:
        if not tied:
            return report
        labelled = label_rows(rows, judgments)
        return replace(report, ties=tie_scores(labelled, clusters, others[TIES_PASS], tied_clusters, num_both_bad))

    return Extra(passes, {}, finish)


def judge_rows(
    settings: BenchSettings,
    benchmark: Benchmark,
    judge: AnyJudge,
    rows: list[Row],
    notes: list[str],
    out: Path,
    *,
    extra: Extra = NO_EXTRA,
) -> tuple[Report, list[Row]]:
    """Judge rows that are loaded, as :func:`run_bench` does; further passes have as many votes in as many orders."""
    further = extra.passes
    every = [*rows, *(row for some in further.values() for row in some)]
    compared = [row.pair for row in every if names_two_systems(row.pair)] if extra.is_plain else []
    systems = {system for pair in compared for system in pair.systems}
    has_ratings = extra.is_plain and any(row.pair.ratings for row in rows)
    parts = {"ties": TIES_PASS in further, "agreement": has_ratings, "systems": bool(systems)}
    check_possible(
        settings.requirements,
        controls=settings.controls,
        orders=settings.judge.orders,
        names={"groups": [row.group for row in rows], "systems.win_rates": systems},
        whole_prompts=benchmark.whole_prompts,
        absent=[name for name, is_there in parts.items() if not is_there],
        measured=extra.measured,
    )
    query = settings.judge
    num_votes = query.votes or judge.default_votes
    orders, order_notes = judge.shown_orders(query.orders, rows, settings.seed, query.votes)
    notes += order_notes
    further_orders = {
        name: judge.shown_orders(query.orders, some, settings.seed, query.votes)[0] for name, some in further.items()
    }
    identity = run_identity(settings, judge, every, num_votes)
    if not (out / VOTES).exists():
        judge.check()  # nothing is left behind where nobody answers
    if judge.is_queried:
        num_orders = sum(
            len(some) for of_pass in (orders if extra.votes is None else (), *further_orders.values()) for some in of_pass
        )
        log_line(most_it_may_cost(settings, judge.num_turns * num_orders * (num_votes + len(settings.controls))))
    with PassLog(out, identity.to_dict() | dict(extra.identity)) as log:
        gate = BudgetGate(settings, log.spending, judge.num_turns) if settings.budget != NO_BUDGET else None
        others: dict[str, Sequence[Judgment]] = {}
        for name, some in further.items():
            stop_error = query.stop_error if name == UNLABELLED_PASS else None
            further_pass = Pass(name, some, further_orders[name], log, stop_error, settings.prices)
            others[name] = further_pass.run(judge, num_votes, settings.seed, gate)
        votes_pass = Pass(VOTES_PASS, rows, orders, log, query.stop_error, settings.prices)
        if extra.votes is None:
            judgments = votes_pass.run(judge, num_votes, settings.seed, gate)
        else:
            judgments = votes_pass.take(extra.votes(others))
        controls = _controls(settings, judge, rows, orders, log, notes, gate)
        log.finish()
    sampled = others if extra.votes else {VOTES_PASS: judgments, **others}
    left_out = omitted_fields(judge, out)
    seconds = votes_pass.seconds_per_vote
    cost = log.spending.cost(settings.prices) if judge.is_metered else None
    result = RunResult(
        settings,
        benchmark,
        judge,
        identity,
        rows,
        orders,
        judgments,
        controls,
        seconds,
        left_out,
        cost,
        sampled,
        extra.chance,
        further.get(TIES_PASS, ()),
    )
    report = make_report(result, notes, out)
    row_scores = list(map(row_score, *result.by_row))
    if wrong := problems(report, [score for score in row_scores if score.preferred is not None]):
        raise RuntimeError(f"{out}: the report is inconsistent, a bug in the scoring: {'; '.join(wrong)}")
    report = extra.finish(judgments, others, report)
    if extra.is_plain:
        labelled, of_labelled = result.by_row
        rated = [
            RatedPair(row.row, row.group, row.cluster, judgment.votes, row.pair.ratings, longer(row.pair))
            for row, judgment in zip(labelled, of_labelled, strict=True)
        ]
        unlabelled, of_unlabelled = further.get(UNLABELLED_PASS, ()), others.get(UNLABELLED_PASS, ())
        of_systems = system_scores([*labelled, *unlabelled], [*of_labelled, *of_unlabelled])
        report = replace(report, agreement=agreement_scores(rated), systems=of_systems)
    report = replace(report, requirements=tuple(check_report(report, required) for required in settings.requirements))
    write_atomic(out / SCORES, "".join(json.dumps(asdict(score)) + "\n" for score in row_scores))
    write_atomic(out / REPORT, json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    return report, result.by_row[0]


def check_budget(settings: BenchSettings, judge: AnyJudge) -> None:
    """Raise ConfigError if no budget can be kept."""
    if settings.budget == NO_BUDGET:
        return
    if settings.budget.usd is not None and settings.prices == NO_PRICES:
        raise ConfigError("--budget in usd needs --price PROMPT,COMPLETION, in US dollars per million tokens")
    if not judge.is_metered:
        raise ConfigError(f"budgets are supported for openai: judges only, not for {judge.name}; leave out the budget")


def _check_stopping(settings: BenchSettings, judge: AnyJudge) -> None:
    """Raises ConfigError where there is nothing to stop."""
    query = settings.judge
    if query.stop_error is None:
        return
    if not judge.is_queried:
        raise ConfigError(f"stop_error saves queries, but {judge.name} has none; its report shows what stopping would cost")
    if judge.decides:
        raise ConfigError(f"stop_error applies to a majority of votes; {query.judge} decides {judge.decides}; use fewer votes")
    if query.orders != "both" or (query.votes or 1) < 2:
        raise ConfigError(
            f"stop_error={query.stop_error:g} with {query.votes or 1} votes and orders={query.orders}: expected 2 votes or "
            "more and both orders"
        )


def _controls(
    settings: BenchSettings,
    judge: AnyJudge,
    rows: Sequence[Row],
    orders: Sequence[tuple[Order, ...]],
    log: PassLog,
    notes: list[str],
    gate: RequestGate | None,
) -> dict[str, list[Labeled]]:
    """Return the judgments of each control of the run, and note those that the pairs do not allow."""
    if not isinstance(judge, ModelJudge) or not settings.controls:
        return {}
    greedy = judge.greedy()
    if greedy.temperature > 0:
        notes.append("the controls of a served judge are votes at its own temperature, not greedy ones")
    pairs, labeled = [row.pair for row in rows], {}
    for name in settings.controls:
        control = CONTROLS[name]
        if why := control.lacks(pairs):
            notes.append(why)
            continue
        changed = [replace(row, pair=pair) for row, pair in zip(rows, control.change(pairs), strict=True)]
        control_pass = Pass(name, changed, orders, log, prices=settings.prices)
        labeled[name] = label_rows(rows, control_pass.run(greedy, 1, settings.seed, gate))
    return labeled


def omitted_fields(judge: JudgeKind, out: Path) -> frozenset[str]:
    """Return the fields that requests to the judge omitted, now or in an earlier part of the run, and keep them in ``out``."""
    path = out / REFUSED_FIELDS
    names = judge.left_out | frozenset(json.loads(path.read_text()) if path.exists() else ())
    if names:
        write_atomic(path, json.dumps(sorted(names)) + "\n")
    return names


class BudgetGate:
    """Lets a request through where it cannot exceed the budget, whatever its answer's length; see :class:`BudgetGuard`.

    ``spending`` is what earlier parts of the run have spent; it is not changed here.
    """

    def __init__(self, settings: BenchSettings, spending: Spending, num_turns: int) -> None:
        spending = spending.plus(settings.spent)
        usage = Usage(
            spending.requests, spending.prompt, spending.completion, spending.cached, spending.usd(settings.prices), 0
        )
        most = num_turns * settings.judge.max_tokens
        self._guard = BudgetGuard(settings.prices, settings.budget, most, usage, spending.longest)

    async def open(self) -> bool:
        """Wait until another request may be sent; False: the budget is spent."""
        try:
            await self._guard.open()
        except BudgetSpentError:
            return False
        return True

    def close(self, completion: Completion) -> None:
        """Pay a completion. Raise EndpointError for an answer without usage where there is a budget."""
        self._guard.close()
        self._guard.pay(completion)


def most_it_may_cost(settings: BenchSettings, num_requests: int) -> str:
    """Return a sentence on the most that a run's answers may cost, before any is asked for: in US dollars if there are
    prices."""
    requests = f"{num_requests:,} requests, each of at most {settings.judge.max_tokens:,} tokens of answer"
    if settings.prices == NO_PRICES:
        return requests
    return f"{requests}: at most ${num_requests * settings.prices.usd(0, settings.judge.max_tokens):,.2f}, prompts not counted"


def panel_scores(panel: JudgeKind, items: Sequence[Labeled], clusters: Sequence[str]) -> PanelScores:
    """Return the scores of each member and how often members differ, from the panel's judgments."""
    judged = [member_judgments(item.judgment.votes) for item in items]
    winners = [{voice.outcome.winner for voice in of_pair.values()} - {None} for of_pair in judged]
    several = [n for n, of_pair in enumerate(judged) if sum(voice.outcome.winner is not None for voice in of_pair.values()) > 1]
    members = tuple(
        _member_scores(member.spec, [of_pair[member.spec] for of_pair in judged], items, clusters) for member in panel.members
    )
    differ = sum(len(winners[n]) > 1 for n in several) / len(several) if several else None
    return PanelScores("log-odds" if panel.name.startswith("pool:") else "majority", differ, members)


def panel_confidence(items: Sequence[Labeled], clusters: Sequence[str]) -> dict[str, Confidence]:
    """Return the calibration of the panel's share for the response that it names; see ``confidence.calibrate``."""
    if any(len(in_order(item.judgment.votes, order)) < LEAST_VOTES for item in items for order in BOTH_ORDERS):
        return {}
    return {"vote_share": calibrate(items, [item.judgment.share_0 for item in items], clusters)}


def _member_scores(name: str, judged: Sequence[Judgment], items: Sequence[Labeled], clusters: Sequence[str]) -> MemberScores:
    decided = [
        (voice.outcome.winner, item.judgment.outcome.winner)
        for voice, item in zip(judged, items, strict=True)
        if voice.outcome.winner is not None and item.judgment.outcome.winner is not None
    ]
    trials = [pair_score(replace(item, judgment=voice)) for voice, item in zip(judged, items, strict=True)]
    right = [float(voice.outcome.winner == item.preferred) for voice, item in zip(judged, items, strict=True)]
    return MemberScores(
        judge=name,
        trials=mean_estimate(trials, clusters),
        accuracy=mean_estimate(right, clusters),
        agreement=sum(mine == panels for mine, panels in decided) / len(decided) if decided else None,
        abstained=sum(voice.share_0 is None for voice in judged),
        failed_votes=sum(num_failed(voice.votes) for voice in judged),
    )


@dataclass(frozen=True)
class RunResult:
    """What a run has when all is answered: its judgments in the order of ``rows``, and those of its controls by name.
    ``left_out``: fields that the model was asked without; ``sampled``: judgments of the passes that queried the judge, by
    their names; ``chance`` as in :class:`Extra`; ``tied``: the rows of :data:`TIES_PASS`."""

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
    sampled: Mapping[str, Sequence[Judgment]] = field(default_factory=dict)
    chance: float | None = None
    tied: Sequence[Row] = ()

    @property
    def by_row(self) -> tuple[list[Row], list[Judgment]]:
        """Return all rows with a label, ties among them, and their judgments."""
        if not self.tied:
            return list(self.rows), list(self.judgments)
        tied = zip(self.tied, self.sampled[TIES_PASS], strict=True)
        judged = sorted([*zip(self.rows, self.judgments, strict=True), *tied], key=lambda one: one[0].row)
        return [row for row, _ in judged], [judgment for _, judgment in judged]


def make_report(result: RunResult, notes: Sequence[str], out: Path) -> Report:
    """Return the report; write the outputs that the benchmark's own scorer takes, where it can take them, to ``out``."""
    settings, benchmark, judge, identity = result.settings, result.benchmark, result.judge, result.identity
    rows, orders, judgments, num_votes = result.rows, result.orders, result.judgments, result.identity.votes
    all_notes = list(notes)
    all_notes += _notes_on_fields(result.left_out, settings.judge.omitted_fields, result.controls)
    all_judgments = [judgment for some in result.sampled.values() for judgment in some]
    if judge.is_queried and (failed := sum(num_failed(judgment.votes) for judgment in all_judgments)):
        errors = errors_in_words(vote.completion for judgment in all_judgments for vote in judgment.votes)
        all_notes.append(f"{failed:,} votes failed at the endpoint and count as wrong: {errors}; the same command retries them")
    all_notes += _vote_notes(judge, judgments, num_votes)
    labeled = label_rows(rows, judgments)
    sampling: dict[str, Any] = asdict(judge.sampling or identity.sampling)
    sampling |= dict.fromkeys(result.left_out & sampling.keys())
    stopped = settings.judge.stop_error is not None or judge.has_partial_votes
    verdict_format = judge.verdict_format
    official: list[str] = []  # of votes in one order, or stopped when clear, the benchmark's own draws cannot be made up
    if settings.judge.orders == "both" and not stopped:
        official = write_official(benchmark, *result.by_row, verdict_format, settings.seed, out / OFFICIAL)
    clusters = [row.cluster for row in rows]
    one_vote = one_vote_scores(labeled, stopped=stopped)
    scores = score_rows(rows, labeled, num_votes, whole_prompts=benchmark.whole_prompts, stopped=stopped)
    all_notes += _prompt_notes(scores.num_clusters)
    unread_format = format_note(judge, judgments, out) if result.chance is None else ""
    if unread_format and scores.invalid_rate < INVALID:  # else it stands with what is wrong with the judge
        all_notes.append(unread_format)
    baselines = baseline_scores(rows, orders, settings.seed, whole_prompts=benchmark.whole_prompts)
    if (chance := result.chance) is not None:
        baselines = {"chance": BaselineScores(chance, chance, {}, None, None)}
        scores = replace(scores, by_length=(), length_bias=None, length_interval=None)
    if judge.members:
        scores = replace(scores, confidence=panel_confidence(labeled, clusters))
    # with its address, which `openai:MODEL` alone does not say: `serve --judge OUT` queries the same endpoint
    config = settings.judge.model_copy(update={"judge": judge.spec}) if isinstance(judge, ModelJudge) else settings.judge
    report = Report(
        benchmark=benchmark.name,
        command=settings.command,
        data=str(settings.data),
        data_sha256=identity.data,
        judge=identity.judge,
        judge_config=config.model_dump(mode="json", exclude_defaults=True),
        judge_config_hash=config.hash,
        template=judge.template_name,
        orders=settings.judge.orders,
        votes=num_votes,
        verdict_format=verdict_format or None,
        **sampling,
        seed=settings.seed,
        seconds_per_vote=result.seconds_per_vote,
        scores=scores,
        controls=control_scores(rows, one_vote, result.controls),
        baselines=baselines,
        official=tuple(official),
        panel=panel_scores(judge, labeled, clusters) if judge.members else None,
        cost=result.cost,
        cached_votes=sum(
            vote.completion.from_cache for judgment in result.sampled.get(VOTES_PASS, all_judgments) for vote in judgment.votes
        ),
        revision=revision_of(labeled, clusters, verdict_format) if verdict_format else None,
        checklist=checklist_of(labeled, clusters, verdict_format),
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
        chance=result.chance,
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
    return failure_of(result.sampled, controls, result.settings.max_failed)


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


def row_score(row: Row, judgment: Judgment) -> RowScore:
    """Return what `bench compare` and the page need of a row; the cluster by its hash, for it may be a whole prompt."""
    cluster, preferred = hashlib.sha256(row.cluster.encode(errors="replace")).hexdigest()[:16], row.pair.preferred
    kinds, item = tuple(kinds_of(judgment, preferred)), Labeled(judgment, preferred or 0, row.group)
    score = pair_score(item) if preferred is not None else float("missed" not in kinds)
    return RowScore(
        *(row.row, row.group, cluster, score, invalid_rate([item]), kinds, row.pair.pair_id, preferred),
        alike=pair_swaps([item])[0],
        longer=longer(row.pair),
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


def failure_of(passes: Mapping[str, Sequence[Judgment]], controls: Mapping[str, Sequence[Judgment]], max_failed: float) -> str:
    """Return why a run failed: a sentence for each pass, by its name, of whose votes more than the fraction ``max_failed``
    (0..1) failed at the endpoint; "" if none did."""
    votes = {"votes" if name == VOTES_PASS else f"votes of {name}": judgments for name, judgments in passes.items()}
    votes |= {f"votes of the control {name}": judgments for name, judgments in controls.items()}
    sentences = []
    for what, judgments in votes.items():
        completions = [vote.completion for judgment in judgments for vote in judgment.votes]
        if sentence := failure_sentence(completions, max_failed, what):
            sentences.append(f"{sentence} (--controls leaves it out)" if "of the control" in what else sentence)
    return "; ".join(sentences)
