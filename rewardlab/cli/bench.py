"""Benchmarks: run one, score outputs as its own scorer does, check a published row."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from rewardlab.benchmarks.registry import PACKAGED
from rewardlab.cli.options import EngineArgs, JudgeOption, Out, bench_app
from rewardlab.errors import ConfigError
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, spec_help


@bench_app.command("run")
def bench_run(
    benchmark: Annotated[
        str,
        typer.Argument(
            help=f"{', '.join(PACKAGED)} (your own labelled .parquet/.jsonl), one of an installed package, "
            "or a Python file with a BENCHMARK."
        ),
    ],
    data: Annotated[Path, typer.Option("--data", help="The benchmark's data file (mmrb2: or the folder of its four).")],
    judge: Annotated[
        str,
        typer.Option("--judge", help=f"{spec_help(*WITHOUT_SAMPLER, 'baseline', 'replay')}."),
    ],
    out: Out,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the benchmark's images.")] = None,
    votes: Annotated[
        Optional[int], typer.Option("--votes", min=1, help="Samples per pair and order (replay: all; else 1).")
    ] = None,
    orders: Annotated[str, typer.Option("--orders", help="both, random (one per pair, drawn) or given.")] = "both",
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows.")] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    template: Annotated[
        Optional[str],
        typer.Option(
            "--template",
            help="Prompt template (default: the checkpoint's; r1_reward for endpoints), or FORMAT:FILE with your own words; "
            "FORMAT is a verdict format, or a Python file with read_verdict(text).",
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
    require: Annotated[
        list[str],
        typer.Option(
            "--require",
            help="Exit status 1 unless the report has it: 'accuracy>=0.7' (the estimate), 'accuracy.low>=0.65' (the lower "
            "bound of its interval), 'accuracy[GROUP]>=0.6', 'invalid_rate<=0.02', 'swap_consistency>=80%', "
            "'position_bias<=0.05' (by its size). Repeatable.",
        ),
    ] = [],  # noqa: B006  (typer's way to say a default)
    api_key_env: Annotated[str, typer.Option("--api-key-env", help="Variable that holds the API key.")] = "OPENAI_API_KEY",
) -> None:
    """Score a judge: votes in both orders, intervals, swap consistency, position bias, baselines; JSON, Markdown, HTML.

    A replay file has one sample a line, `{"row": 0, "order": "given", "text": "..."}`, or one pair of scores of a scalar
    model, `{"row": 0, "scores": [0.3, 0.7]}`; `row` is the 0-based row of the data file, index 0 its first/chosen response. A
    finished run's `votes.jsonl` is one too. Texts are read as R1-Reward writes them (`<answer>1</answer>`) unless `--template`
    names another format; a run's votes stand as they were read.
    The same command continues a killed run.
    """
    from rewardlab.benchmarks.report import report_markdown, write_reports
    from rewardlab.benchmarks.requirements import check_report, parse_requirement
    from rewardlab.benchmarks.runner import run_bench
    from rewardlab.benchmarks.settings import BenchSettings

    settings = BenchSettings(
        benchmark=benchmark,
        data=data,
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
        api_key=os.environ.get(api_key_env, "none"),
        command=shlex.join(["rewardlab", *sys.argv[1:]]),
        requirements=tuple(map(parse_requirement, require)),
    )
    report, rows = run_bench(settings, out)
    write_reports(report, rows, out)
    typer.echo(report_markdown(report))
    exported = "; official.jsonl (for bench official)" if report.official else ""
    typer.echo(f"written: {out}/report.json, report.md, report.html; votes.jsonl, scores.jsonl (for bench compare){exported}")
    findings = [check_report(report, requirement) for requirement in settings.requirements]
    for finding in findings:
        typer.echo(finding.sentence, err=not finding.is_met)
    if not all(finding.is_met for finding in findings):
        raise typer.Exit(1)


@bench_app.command("suite")
def bench_suite(
    suite: Annotated[Path, typer.Argument(help="YAML of the benchmarks and how each is asked, such as eval/images.yaml.")],
    judge: Annotated[str, typer.Option("--judge", help="As in `bench run`.")],
    root: Annotated[Path, typer.Option("--root", help="Folder that holds the suite's data files.")],
    out: Out,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1, help="Sequences at a time (hf).")] = 64,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N rows of each.")] = None,
    api_key_env: Annotated[str, typer.Option("--api-key-env", help="Variable that holds the API key.")] = "OPENAI_API_KEY",
) -> None:
    """Run every benchmark of a suite, one folder each with its reports, and a table over all in `suite.md`.

    Missing data is reported before anything is asked; the same command continues a killed run. `bench prepare` fetches data.
    """
    from rewardlab.benchmarks.suite import entry_settings, run_suite
    from rewardlab.config import SuiteConfig, load_config

    config = load_config(SuiteConfig, suite)
    shared: dict[str, Any] = {"judge": judge, "batch_size": batch_size, "api_key": os.environ.get(api_key_env, "none")}
    shared |= {"command": shlex.join(["rewardlab", *sys.argv[1:]]), **({"limit": limit} if limit else {})}
    typer.echo(run_suite(config, entry_settings(config, root, **shared), out))
    typer.echo(f"written: {out}/suite.md, and a folder for each benchmark")


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
    api_key_env: Annotated[str, typer.Option("--api-key-env", help="Variable that holds the API key.")] = "OPENAI_API_KEY",
) -> None:
    """RewardBench 2 by its own protocols: one of four at once, or every answer rated alone; its scorer's figures beside ours.

    A judge of pairs takes `bench run rewardbench2` instead (every right answer against each wrong one), or `rewardlab rank`.
    The same command continues a killed run.
    """
    from rewardlab.benchmarks.rewardbench2.listwise import ListSettings, listwise_markdown, run_listwise
    from rewardlab.judging.engines import open_generative_judge

    key = os.environ.get(api_key_env, "none")
    spec = JudgeSpec.parse(judge)
    if spec.by_probability or spec.verifies:
        raise ConfigError(
            f"--judge {judge}: expected hf:PATH, vllm:PATH or openai:MODEL@URL, which write an answer of their own"
        )
    opened = open_generative_judge(judge, temperature=temperature, max_tokens=max_tokens, batch_size=batch_size, api_key=key)
    command = shlex.join(["rewardlab", *sys.argv[1:]])
    report = run_listwise(opened, ListSettings(data, protocol, words, limit, seed, command), out)
    typer.echo(listwise_markdown(report))
    typer.echo(f"written: {out}/report.json, report.md, answers.jsonl, official.jsonl (for bench official)")
