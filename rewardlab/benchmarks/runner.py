"""Score a judge on a benchmark: ask, keep every vote in a log that survives a kill, and compute the report from the log."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path

from rewardlab.benchmarks.arithmetic import problems
from rewardlab.benchmarks.assemble import RunResult, label_rows, make_report, row_score
from rewardlab.benchmarks.base import Benchmark, Row
from rewardlab.benchmarks.baselines import BaselineJudge
from rewardlab.benchmarks.identity import run_identity
from rewardlab.benchmarks.pass_log import PassLog
from rewardlab.benchmarks.passes import AnyJudge, Pass
from rewardlab.benchmarks.replay import Replay
from rewardlab.benchmarks.report_model import NO_COST, Cost, Report
from rewardlab.benchmarks.requirements import check_possible, check_report
from rewardlab.benchmarks.rows import has_other_images, load_rows
from rewardlab.benchmarks.run_files import REFUSED_FIELDS, REPORT, SCORES, VOTES
from rewardlab.benchmarks.settings import NO_ENGINES, BenchSettings, check_names
from rewardlab.benchmarks.spending import Spending
from rewardlab.config.data import NO_BUDGET, NO_PRICES
from rewardlab.data.files import write_atomic
from rewardlab.data.rows import with_blank_images, with_other_images
from rewardlab.distill.budget import BudgetGuard, BudgetSpentError
from rewardlab.distill.journal import Usage
from rewardlab.errors import ConfigError
from rewardlab.judging.engines import open_model_judge
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, judge_config
from rewardlab.metrics.accuracy import Labeled
from rewardlab.prompts import reading_format
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.base import RequestGate
from rewardlab.types import BOTH_ORDERS, Completion, Judgment, Order, PreferencePair


def open_any_judge(settings: BenchSettings) -> AnyJudge:
    """Return the judge of a run. Raise ConfigError for an unknown specification."""
    spec = JudgeSpec.parse(settings.judge.judge, *NO_ENGINES, *WITHOUT_SAMPLER)
    if spec.engine == "baseline":
        return BaselineJudge(spec.target)
    if spec.engine == "replay":
        return Replay(Path(spec.target), reading_format(settings.judge.template) if settings.judge.template else None)
    return open_model_judge(settings.judge, api_key=settings.api_key)


def run_bench(settings: BenchSettings, out: Path, *, spent: Cost = NO_COST) -> tuple[Report, list[Row]]:
    """Judge, score and write ``out/votes.jsonl`` and ``out/report.json``; returns the report and the rows judged.

    An interrupted run continues from its log; a finished one is only scored again. ``spent`` is what other runs have spent of
    its budget. Raises what the judge and loader raise.
    """
    benchmark = check_names(settings.benchmark, settings.controls, settings.judge)
    judge = open_any_judge(settings)
    orders = judge.resolve_orders(settings.judge.orders, settings.judge.votes)
    settings = replace(settings, judge=judge_config(settings.judge, orders=orders))
    _check_stopping(settings, judge)
    _check_budget(settings, judge)
    rows, notes = load_rows(settings, judge)
    return judge_rows(settings, benchmark, judge, rows, notes, out, spent=spent)


@dataclass(frozen=True)
class Extra:
    """What a run judges beside its rows: further ``passes``, by name, and what decides them (``identity``). ``figures`` can
    be required of it; ``finish`` returns the report with what they add, of the judgments of the rows, of those of each further
    pass, and of the report."""

    passes: Mapping[str, Sequence[Row]]
    identity: Mapping[str, object]
    figures: Sequence[str]
    finish: Callable[[Sequence[Judgment], Mapping[str, Sequence[Judgment]], Report], Report]


def judge_rows(
    settings: BenchSettings,
    benchmark: Benchmark,
    judge: AnyJudge,
    rows: list[Row],
    notes: list[str],
    out: Path,
    *,
    spent: Cost = NO_COST,
    extra: Extra | None = None,
) -> tuple[Report, list[Row]]:
    """Judge rows that are loaded, as :func:`run_bench` does; further passes have as many votes in as many orders."""
    check_possible(
        settings.requirements,
        controls=settings.controls,
        orders=settings.judge.orders,
        groups=[row.group for row in rows],
        whole_prompts=benchmark.whole_prompts,
        measured=extra.figures if extra else None,
    )
    query = settings.judge
    num_votes = query.votes or judge.default_votes
    orders, order_notes = judge.shown_orders(query.orders, rows, settings.seed, query.votes)
    notes += order_notes
    further = extra.passes if extra else {}
    identity = run_identity(settings, judge, [*rows, *(row for some in further.values() for row in some)], num_votes)
    if isinstance(judge, ModelJudge) and not (out / VOTES).exists():
        judge.check()  # nothing is left behind where nobody answers
    if settings.prices != NO_PRICES and judge.is_queried:
        num_orders = sum(map(len, orders)) + 2 * sum(map(len, further.values()))
        log_line(most_it_may_cost(settings, num_orders * (num_votes + len(settings.controls))))
    with PassLog(out, identity.to_dict() | dict(extra.identity if extra else {})) as log:
        gate = BudgetGate(settings, log.spending.plus(spent)) if settings.budget != NO_BUDGET else None
        others: dict[str, Sequence[Judgment]] = {}
        for name, some in further.items():
            both = [BOTH_ORDERS] * len(some)
            others[name] = Pass(name, some, both, log, prices=settings.prices).run(judge, num_votes, settings.seed, gate)
        votes_pass = Pass("votes", rows, orders, log, query.stop_error, settings.prices)
        judgments = votes_pass.run(judge, num_votes, settings.seed, gate)
        controls = _controls(settings, judge, rows, orders, log, notes, gate)
        log.finish()
    left_out = omitted_fields(judge, out) if isinstance(judge, ModelJudge) else frozenset()
    seconds = votes_pass.seconds_per_vote
    cost = log.spending.cost(settings.prices) if judge.is_metered else None
    result = RunResult(settings, benchmark, judge, identity, rows, orders, judgments, controls, seconds, left_out, cost, others)
    report = make_report(result, notes, out)
    row_scores = [row_score(row, item) for row, item in zip(rows, label_rows(rows, judgments), strict=True)]
    if wrong := problems(report, row_scores):
        raise RuntimeError(f"{out}: the report does not add up, a fault of the scoring: {'; '.join(wrong)}")
    if extra:
        report = extra.finish(judgments, others, report)
    report = replace(report, requirements=tuple(check_report(report, required) for required in settings.requirements))
    write_atomic(out / SCORES, "".join(json.dumps(asdict(score)) + "\n" for score in row_scores))
    write_atomic(out / REPORT, json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    return report, rows


def _check_budget(settings: BenchSettings, judge: AnyJudge) -> None:
    """Raises ConfigError where no budget can be kept."""
    if settings.budget == NO_BUDGET:
        return
    if settings.budget.usd is not None and settings.prices == NO_PRICES:
        raise ConfigError("--budget-usd needs --price PROMPT,COMPLETION, in US dollars per million tokens")
    if not judge.is_metered:
        raise ConfigError(f"a budget is kept of an openai: judge, and not of {judge.name}; leave the budget out")


def _check_stopping(settings: BenchSettings, judge: AnyJudge) -> None:
    """Raises ConfigError where there is nothing to stop."""
    query = settings.judge
    if query.stop_error is None:
        return
    if not judge.is_queried:
        raise ConfigError(f"stop_error saves queries, and {judge.name} has none; its report says what stopping would cost")
    if judge.decides:
        raise ConfigError(f"stop_error settles a majority of votes, and {query.judge} decides {judge.decides}; use fewer votes")
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
    """Further passes of one greedy vote per order: as result, without the image, with another pair's image."""
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
        if name == "other" and not has_other_images(pairs):
            notes.append("no control with another pair's image: there is none that could be shown")
        elif name == "blank" and not has_images:
            notes.append("no control with blank images: no pair has an image")
        else:
            changed = _with_pairs(rows, changes[name]())
            controls[name] = label_rows(
                rows, Pass(name, changed, orders, log, prices=settings.prices).run(greedy, 1, settings.seed, gate)
            )
    return controls


def _with_pairs(rows: Sequence[Row], pairs: Sequence[PreferencePair]) -> list[Row]:
    return [replace(row, pair=pair) for row, pair in zip(rows, pairs, strict=True)]


def omitted_fields(judge: ModelJudge, out: Path) -> frozenset[str]:
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

    def __init__(self, settings: BenchSettings, spending: Spending) -> None:
        usage = Usage(
            spending.requests, spending.prompt, spending.completion, spending.cached, spending.usd(settings.prices), 0
        )
        self._guard = BudgetGuard(settings.prices, settings.budget, settings.judge.max_tokens, usage, spending.longest)

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
    """Return a sentence on the most that a run's answers may cost, before any is asked for."""
    usd = num_requests * settings.prices.usd(0, settings.judge.max_tokens)
    return (
        f"{num_requests:,} requests, each of at most {settings.judge.max_tokens:,} tokens of answer: at most ${usd:,.2f}, "
        "prompts not counted"
    )
