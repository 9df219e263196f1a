"""Benchmarks: run one, score outputs as its own scorer does, check a published row."""

from __future__ import annotations

import json
import os
import shlex
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rewardlab.benchmarks.registry import PACKAGED
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import (
    AllowColumns,
    ApiKeyEnv,
    AsJson,
    EngineArgs,
    JudgeOption,
    MaxFailed,
    Out,
    bench_app,
    columns_of,
)
from rewardlab.cli.prices import BudgetTokens, BudgetUsd, Price, parse_budget, parse_prices
from rewardlab.cli.request_options import (
    Body,
    Cache,
    Concurrency,
    Deadline,
    MaxTokensField,
    ReasoningEffort,
    cache_folder,
    request_options,
)
from rewardlab.errors import ConfigError
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, spec_help
from rewardlab.samplers.failures import MAX_FAILED

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


@bench_app.command("run")
def bench_run(
    benchmark: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(PACKAGED)} (your own labelled .parquet/.jsonl), one of an installed package, "
            "or a Python file with a BENCHMARK."
        ),
    ],
    judge: Annotated[
        str,
        typer.Option("--judge", help=f"{spec_help(*WITHOUT_SAMPLER, 'baseline', 'replay')}."),
    ],
    out: Out,
    data: Annotated[
        Optional[Path],
        typer.Option(
            "--data",
            help="The benchmark's data file (mmrb2: or the folder of its four); default: what `bench prepare` fetched.",
        ),
    ] = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the benchmark's images.")] = None,
    votes: Annotated[
        Optional[int], typer.Option("--votes", min=1, help="Samples per pair and order (replay: all; else 1).")
    ] = None,
    orders: Annotated[
        str,
        typer.Option(
            "--orders",
            help="both, random (one per pair, drawn), given, or recorded (of a replay: the orders it has). auto: recorded for "
            "a replay that lacks one order of many pairs, else both.",
        ),
    ] = "auto",
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    template: Annotated[
        Optional[str],
        typer.Option(
            "--template",
            help="Prompt template (default: the checkpoint's; r1_reward for endpoints), a verdict format such as "
            "double_brackets, asked for in words of the package, or FORMAT:FILE with your own words; FORMAT may be a Python "
            "file with read_verdict(text). Of a replay: the format to read it by.",
        ),
    ] = None,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0 is greedy.")] = 1.0,
    top_p: Annotated[float, typer.Option("--top-p", min=0.0, max=1.0, help="Nucleus of sampling.")] = 1.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens of a judgment.")] = 1024,
    stop_error: Annotated[
        Optional[float],
        typer.Option(
            "--stop-error",
            min=0.0,
            max=0.5,
            help="Ask in turns until the majority of all --votes is settled but for this probability "
            "(on average over pairs), such as 0.05.",
        ),
    ] = None,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Sequences at a time (hf).")] = 64,
    engine_args: EngineArgs = "",
    controls: Annotated[
        str, typer.Option("--controls", help="Extra greedy passes, comma-separated: greedy, blank, other; '' for none.")
    ] = "blank",
    price: Price = "",
    budget_usd: BudgetUsd = None,
    budget_tokens: BudgetTokens = None,
    max_failed: MaxFailed = MAX_FAILED,
    as_json: AsJson = False,
    all_judgments: Annotated[
        bool,
        typer.Option("--all-judgments", help="Also write pages of every judgment, 200 rows each, to OUT/judgments."),
    ] = False,
    cluster: Annotated[
        Optional[str],
        typer.Option(
            "--cluster",
            help="What intervals of own pairs draw as one: prompt (same images, or the same question where there is none; the "
            "default), image (any in common), question, pair, or a column of --data.",
        ),
    ] = None,
    allow_columns: AllowColumns = None,
    allow_without_images: Annotated[
        bool, typer.Option("--allow-without-images", help="Also judge own pairs whose question speaks of an image not there.")
    ] = False,
    require: Annotated[
        list[str],
        typer.Option(
            "--require",
            help="Exit status 1 unless the report has it: 'accuracy>=0.7' (the estimate), 'accuracy.low>=0.65' (the lower "
            "bound of its interval), 'accuracy[GROUP]>=0.6', 'invalid_rate<=0.02', 'swap_consistency>=80%', "
            "'position_bias<=0.05' (by its size). Repeatable.",
        ),
    ] = [],  # noqa: B006  (typer's way to say a default)
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    reasoning_effort: ReasoningEffort = None,
    body: Body = "",
    max_tokens_field: MaxTokensField = "auto",
    cache: Cache = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """Score a judge: votes in both orders, intervals, swap consistency, position bias, baselines; JSON, Markdown, HTML.

    A replay file has one sample a line, `{"row": 0, "order": "given", "text": "..."}`, or one pair of scores of a scalar
    model, `{"row": 0, "scores": [0.3, 0.7]}`, or an outcome, `{"row": 0, "right": true}`; `row` is the 0-based row of the data
    file, index 0 its first/chosen response. A finished run's `votes.jsonl` is one too. Texts are read as R1-Reward writes them
    (`<answer>1</answer>`) unless `--template` names another format; a run's votes stand as they were read, unless it does.
    The same command continues a killed run. **Exit status 1** where no verdict was read in any answer: `--template` is another
    than the judge's. **Exit status 3** where an endpoint refuses request after request, and where more
    than `--max-failed` of the votes failed: such a report is marked as failed.
    """
    import rewardlab.benchmarks.report  # noqa: F401  (what it lacks is said before anything is asked)
    from rewardlab.benchmarks.prepare import prepared_data
    from rewardlab.benchmarks.requirements import parse_requirement
    from rewardlab.benchmarks.runner import run_bench
    from rewardlab.benchmarks.settings import BenchSettings

    settings = BenchSettings(
        benchmark=benchmark,
        data=data or prepared_data(benchmark),
        judge=judge,
        images=images,
        votes=votes,
        orders=orders,
        limit=limit,
        seed=seed,
        template=template,
        temperature=temperature,
        top_p=top_p,
        stop_error=stop_error,
        max_tokens=max_tokens,
        batch_size=batch_size,
        engine_args=engine_args,
        controls=tuple(name for name in controls.split(",") if name),
        max_failed=max_failed,
        prices=parse_prices(price),
        budget=parse_budget(budget_usd, budget_tokens),
        api_key=os.environ.get(api_key_env, "none"),
        request=request_options(concurrency, deadline, reasoning_effort, body, max_tokens_field),
        command=shlex.join(["rewardlab", *sys.argv[1:]]),
        cluster=cluster,
        allow_columns=columns_of(allow_columns),
        allow_without_images=allow_without_images,
        cache=cache_folder(cache, judge),
        requirements=tuple(map(parse_requirement, require)),
    )
    report, rows = run_bench(settings, out)
    show_run(report, rows, out, as_json=as_json, all_judgments=all_judgments)


@bench_app.command("suite")
def bench_suite(
    suite: Annotated[Path, typer.Argument(help="YAML of the benchmarks and how each is asked, such as eval/images.yaml.")],
    judge: Annotated[str, typer.Option("--judge", help="As in `bench run`.")],
    root: Annotated[Path, typer.Option("--root", help="Folder that holds the suite's data files.")],
    out: Out,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Sequences at a time (hf).")] = 64,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows of each.")] = None,
    price: Price = "",
    budget_usd: BudgetUsd = None,
    budget_tokens: BudgetTokens = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    reasoning_effort: ReasoningEffort = None,
    body: Body = "",
    max_tokens_field: MaxTokensField = "auto",
    cache: Cache = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """Run every benchmark of a suite, one folder each with its reports, and a table over all in `suite.md`.

    Missing data is reported before anything is asked; the same command continues a killed run. `bench prepare` fetches data.
    A budget is one of all benchmarks together; where it is spent the exit status is 3, as where a run failed. **Exit status 1**
    where no verdict was read in any answer about one of the benchmarks.
    """
    from rewardlab.benchmarks.suite import entry_settings, is_unread, run_suite
    from rewardlab.config import SuiteConfig, load_config

    config = load_config(SuiteConfig, suite)
    shared: dict[str, Any] = {"judge": judge, "batch_size": batch_size, "api_key": os.environ.get(api_key_env, "none")}
    shared["request"] = request_options(concurrency, deadline, reasoning_effort, body, max_tokens_field)
    shared |= {"prices": parse_prices(price), "budget": parse_budget(budget_usd, budget_tokens)}
    shared["cache"] = cache_folder(cache, judge)
    shared |= {"command": shlex.join(["rewardlab", *sys.argv[1:]]), **({"limit": limit} if limit else {})}
    text, reports = run_suite(config, entry_settings(config, root, **shared), out)
    typer.echo(text)
    typer.echo(f"written: {out}/suite.md, and a folder for each benchmark")
    if any(report.failure for report in reports.values()):
        typer.echo("runs failed at the endpoint; the same command asks again", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    if unread := {name: report for name, report in reports.items() if is_unread(report)}:
        typer.echo("\n".join(f"{name}: {finding}" for name, report in unread.items() for finding in report.findings), err=True)
        raise typer.Exit(ExitCode.FINDING)


@bench_app.command("listwise")
def bench_listwise(
    data: Annotated[Path, typer.Option("--data", help="RewardBench 2: the Hub's parquet, or the same as JSON lines.")],
    judge: JudgeOption,
    out: Out,
    protocol: Annotated[
        str,
        typer.Option("--protocol", help="choice (one of four, in four placings) or ratings (every answer alone, Ties too)."),
    ] = "choice",
    words: Annotated[
        Optional[Path],
        typer.Option(
            "--words", help="File with your words: {question} {a} {b} {c} {d} of a choice, {question} {a} of a rating."
        ),
    ] = None,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N prompts.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    temperature: Annotated[float, typer.Option("--temperature", min=0.0, help="0, as the benchmark has it, is greedy.")] = 0.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens of a judgment.")] = 2048,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Sequences at a time (hf).")] = 64,
    max_failed: MaxFailed = MAX_FAILED,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    reasoning_effort: ReasoningEffort = None,
    body: Body = "",
    max_tokens_field: MaxTokensField = "auto",
    cache: Cache = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """RewardBench 2 by its own protocols: one of four at once, or every answer rated alone; its scorer's figures beside ours.

    A judge of pairs takes `bench run rewardbench2` instead (every right answer against each wrong one), or `rewardlab rank`.
    The same command continues a killed run. **Exit status 3** where an endpoint refuses request after request, and where more
    than `--max-failed` of the answers failed, **exit status 1** where nothing could be read in any: the report has no accuracy
    then.
    """
    from rewardlab.benchmarks.headline import NOT_ONE_VERDICT
    from rewardlab.benchmarks.rewardbench2.listwise import ListSettings, listwise_markdown, run_listwise
    from rewardlab.judging.engines import open_generative_judge

    key = os.environ.get(api_key_env, "none")
    spec = JudgeSpec.parse(judge)
    if spec.by_probability or spec.verifies:
        raise ConfigError(
            f"--judge {judge}: expected hf:PATH, vllm:PATH or openai:MODEL@URL, which write an answer of their own"
        )
    request = request_options(concurrency, deadline, reasoning_effort, body, max_tokens_field)
    opened = open_generative_judge(
        judge,
        temperature=temperature,
        max_tokens=max_tokens,
        batch_size=batch_size,
        api_key=key,
        request=request,
        cache=cache_folder(cache, judge),
    )
    command = shlex.join(["rewardlab", *sys.argv[1:]])
    report = run_listwise(opened, ListSettings(data, protocol, words, limit, seed, command, max_failed), out)
    typer.echo(listwise_markdown(report))
    typer.echo(f"written: {out}/report.json, report.md, answers.jsonl, official.jsonl (for bench official)")
    if report.failure:
        typer.echo(f"the run failed: {report.failure}", err=True)
        raise typer.Exit(ExitCode.ENDPOINT)
    if report.scores.invalid_rate == 1:
        typer.echo(
            f"{NOT_ONE_VERDICT.format(report.scores.num_answers)}; do --words ask for the form that is read, [[A]] to [[D]] or "
            "a rating in the last line, and does --max-tokens leave room for it?",
            err=True,
        )
        raise typer.Exit(ExitCode.FINDING)
