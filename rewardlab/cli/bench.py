"""Benchmarks: run one, score outputs as its own scorer does, check a published row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rewardlab.benchmarks.registry import PACKAGED
from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import (
    AllowColumns,
    AsJson,
    BudgetTokens,
    BudgetUsd,
    JudgeKeys,
    JudgeOption,
    MaxFailed,
    Out,
    Price,
    Votes,
    bench_app,
    columns_of,
    command_line,
    judge_of,
    parse_budget,
    parse_prices,
)
from rewardlab.errors import ConfigError
from rewardlab.samplers.failures import MAX_FAILED

ROWS = "Rows"  # a panel of options

if TYPE_CHECKING:
    from rewardlab.benchmarks.base import Row
    from rewardlab.benchmarks.report_model import Report


def show_run(report: Report, rows: Sequence[Row], out: Path, *, as_json: bool, all_judgments: bool) -> None:
    """Write a run's reports and print one. Raise Exit with the status of a run that failed, that has no verdict, or that does
    not meet a requirement."""
    from rewardlab.benchmarks.report import report_markdown, summary_line, write_reports

    write_reports(report, rows, out, all_judgments=all_judgments)
    typer.echo(json.dumps(report.to_json(), indent=1) if as_json else report_markdown(report))
    exported = "; official.jsonl (for bench official)" if report.official else ""
    if not as_json:
        typer.echo(
            f"written: {out}/report.json, report.md, report.html; votes.jsonl, scores.jsonl (for bench compare){exported}"
        )
        typer.echo(f"{summary_line(report)} -> {out}/report.html")
    if report.failure:
        typer.echo(f"the run failed: {report.failure}", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    for result in report.requirements:
        typer.echo(result.sentence, err=as_json or not result.is_met)
    if is_unread := report.scores.invalid_rate == 1:
        typer.echo("\n".join(report.findings), err=True)
    if is_unread or not all(result.is_met for result in report.requirements):
        raise typer.Exit(1)


@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """Options of `bench run`."""

    benchmark: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(PACKAGED)} (your own labelled .parquet/.jsonl), one of an installed package, or a Python file "
            "with a BENCHMARK."
        ),
    ]
    overrides: JudgeKeys = None
    judge: JudgeOption
    out: Out
    votes: Votes = None
    data: Annotated[
        Optional[Path],
        typer.Option(
            "--data",
            help="The benchmark's data file (mmrb2: or the folder of its four); default: what `bench prepare` fetched.",
            rich_help_panel=ROWS,
        ),
    ] = None
    images: Annotated[
        Optional[Path], typer.Option("--images", help="Folder of the benchmark's images.", rich_help_panel=ROWS)
    ] = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows.", rich_help_panel=ROWS)] = None
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0
    controls: Annotated[
        str, typer.Option("--controls", help="Extra greedy passes, comma-separated: greedy, blank, other; '' for none.")
    ] = "blank"
    require: Annotated[
        list[str],
        typer.Option(
            "--require",
            help="Exit status 1 unless the report has it: 'accuracy>=0.7' (the estimate), 'accuracy.low>=0.65' (the lower "
            "bound of its interval), 'accuracy[GROUP]>=0.6', 'invalid_rate<=0.02', 'swap_consistency>=80%', "
            "'position_bias<=0.05' (by its size). Repeatable.",
        ),
    ] = field(default_factory=list)
    max_failed: MaxFailed = MAX_FAILED
    as_json: AsJson = False
    all_judgments: Annotated[
        bool,
        typer.Option("--all-judgments", help="Also write pages of every judgment, 200 rows each, to OUT/judgments."),
    ] = False
    cluster: Annotated[
        Optional[str],
        typer.Option(
            "--cluster",
            help="Own pairs: what intervals resample as one: prompt (same images, or the same question if there are none; the "
            "default), image (any in common), question, pair, or a column of --data.",
            rich_help_panel=ROWS,
        ),
    ] = None
    allow_columns: AllowColumns = None
    allow_without_images: Annotated[
        bool,
        typer.Option(
            "--allow-without-images",
            help="Also judge own pairs whose question speaks of an image not there.",
            rich_help_panel=ROWS,
        ),
    ] = False
    price: Price = ""
    budget_usd: BudgetUsd = None
    budget_tokens: BudgetTokens = None


@command(bench_app, "run")
def bench_run(options: RunOptions) -> None:
    """Score a judge: votes in both orders, intervals, swap consistency, position bias, baselines; JSON, Markdown, HTML.

    The report holds the judge's config: `rewardlab serve --judge OUT` serves what was measured. A replay file (`--judge
    replay:FILE`) has one sample a line, `{"row": 0, "order": "given", "text": "..."}`, or one pair of scores of a scalar model,
    `{"row": 0, "scores": [0.3, 0.7]}`, or an outcome, `{"row": 0, "right": true}`; `row` is the 0-based row of the data file,
    index 0 its first/chosen response. Texts are read as R1-Reward writes them (`<answer>1</answer>`) unless `template=` names
    another format; a finished run's `votes.jsonl` is a replay file, too.
    The same command continues a killed run. **Exit status 1** if no verdict could be read in any answer: `template=` is not
    the judge's. **Exit status 3** if an endpoint refuses request after request, or more than `--max-failed` of the votes
    failed: such a report is marked as failed.
    """
    import rewardlab.benchmarks.report  # noqa: F401  (what it lacks is said before anything is queried)
    from rewardlab.benchmarks.prepare import prepared_data
    from rewardlab.benchmarks.requirements import parse_requirement
    from rewardlab.benchmarks.runner import run_bench
    from rewardlab.benchmarks.settings import BenchSettings

    settings = BenchSettings(
        benchmark=options.benchmark,
        data=options.data or prepared_data(options.benchmark),
        judge=judge_of(options.judge, options.overrides, options.votes),
        images=options.images,
        limit=options.limit,
        seed=options.seed,
        controls=tuple(name for name in options.controls.split(",") if name),
        max_failed=options.max_failed,
        prices=parse_prices(options.price),
        budget=parse_budget(options.budget_usd, options.budget_tokens),
        command=command_line(),
        cluster=options.cluster,
        allow_columns=columns_of(options.allow_columns),
        allow_without_images=options.allow_without_images,
        requirements=tuple(map(parse_requirement, options.require)),
    )
    report, rows = run_bench(settings, options.out)
    show_run(report, rows, options.out, as_json=options.as_json, all_judgments=options.all_judgments)


@dataclass(frozen=True, kw_only=True)
class SuiteOptions:
    """Options of `bench suite`."""

    suite: Annotated[
        Path, typer.Argument(help="YAML of the benchmarks and the judge's keys on each, such as eval/images.yaml.")
    ]
    overrides: JudgeKeys = None
    judge: JudgeOption
    root: Annotated[Path, typer.Option("--root", help="Folder that holds the suite's data files.")]
    out: Out
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows of each.")] = None
    price: Price = ""
    budget_usd: BudgetUsd = None
    budget_tokens: BudgetTokens = None


@command(bench_app, "suite")
def bench_suite(options: SuiteOptions) -> None:
    """Run every benchmark of a suite, one folder each with its reports, and a table over all in `suite.md`.

    Missing data is reported before anything is queried; the same command continues a killed run. `bench prepare` fetches data.
    A budget is one of all benchmarks together; once it is spent the exit status is 3, as when a run failed. **Exit status 1**
    if no verdict could be read in any answer about one of the benchmarks.
    """
    from rewardlab.benchmarks.suite import entry_settings, is_unread, run_suite
    from rewardlab.config import SuiteConfig, load_config, parse_overrides

    config = load_config(SuiteConfig, options.suite)
    shared: dict[str, Any] = {"limit": options.limit} if options.limit else {}
    shared |= {"prices": parse_prices(options.price), "budget": parse_budget(options.budget_usd, options.budget_tokens)}
    keys = parse_overrides(options.overrides or ())
    settings = entry_settings(config, options.root, options.judge, keys, command=command_line(), **shared)
    text, reports = run_suite(config, settings, options.out)
    typer.echo(text)
    typer.echo(f"written: {options.out}/suite.md, and a folder for each benchmark")
    if any(report.failure for report in reports.values()):
        typer.echo("runs failed at the endpoint; the same command asks again", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    if unread := {name: report for name, report in reports.items() if is_unread(report)}:
        typer.echo("\n".join(f"{name}: {finding}" for name, report in unread.items() for finding in report.findings), err=True)
        raise typer.Exit(ExitCode.FINDING)


@dataclass(frozen=True, kw_only=True)
class ListwiseOptions:
    """Options of `bench listwise`."""

    overrides: JudgeKeys = None
    data: Annotated[Path, typer.Option("--data", help="RewardBench 2: the Hub's parquet, or the same as JSON lines.")]
    judge: JudgeOption
    out: Out
    protocol: Annotated[
        str,
        typer.Option("--protocol", help="choice (one of four, in four placings) or ratings (every answer alone, Ties too)."),
    ] = "choice"
    words: Annotated[
        Optional[Path],
        typer.Option(
            "--words", help="File with your words: {question} {a} {b} {c} {d} of a choice, {question} {a} of a rating."
        ),
    ] = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N prompts.")] = None
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0
    max_failed: MaxFailed = MAX_FAILED


@command(bench_app, "listwise")
def bench_listwise(options: ListwiseOptions) -> None:
    """RewardBench 2 by its own protocols: one of four at once, or every answer rated alone; its scorer's figures beside ours.

    Greedy (`temperature=0 max_tokens=2048`) unless you say otherwise, as the benchmark has it.
    A judge of pairs takes `bench run rewardbench2` instead (every right answer against each wrong one), or `rewardlab rank`.
    The same command continues a killed run. **Exit status 3** if an endpoint refuses request after request, or more than
    `--max-failed` of the answers failed, **exit status 1** if nothing could be read in any: the report has no accuracy then.
    """
    from rewardlab.benchmarks.headline import NOT_ONE_VERDICT
    from rewardlab.benchmarks.rewardbench2.listwise import ListSettings, listwise_markdown, run_listwise
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.judging.spec import JudgeSpec

    config = judge_of(options.judge, options.overrides, temperature=0.0, max_tokens=2048)
    spec = JudgeSpec.parse(config.judge)
    if spec.by_probability or spec.verifies:
        raise ConfigError(
            f"--judge {config.judge}: expected hf:PATH, vllm:PATH or openai:MODEL@URL, which write an answer of their own"
        )
    settings = ListSettings(
        options.data, options.protocol, options.words, options.limit, options.seed, command_line(), options.max_failed
    )
    report = run_listwise(open_generative_judge(config), settings, options.out)
    typer.echo(listwise_markdown(report))
    typer.echo(f"written: {options.out}/report.json, report.md, answers.jsonl, official.jsonl (for bench official)")
    if report.failure:
        typer.echo(f"the run failed: {report.failure}", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    if report.scores.invalid_rate == 1:
        typer.echo(
            f"{NOT_ONE_VERDICT.format(report.scores.num_answers)}; do --words ask for the form that is read, [[A]] to [[D]] or "
            "a rating in the last line, and does max_tokens leave room for it?",
            err=True,
        )
        raise typer.Exit(ExitCode.FINDING)
