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
            help="Ask in turns until the majority of all --votes is settled but for this probability, such as 0.05.",
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
    from rewardlab.benchmarks.runner import BenchSettings, run_bench

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


@bench_app.command("prepare")
def bench_prepare(
    benchmark: Annotated[
        str,
        typer.Argument(help="A benchmark of `bench run` whose files are known; of another name those that are are listed."),
    ],
    out: Annotated[Optional[Path], typer.Option("--out", help="Folder to fetch to (needs a network).")] = None,
    data: Annotated[
        Optional[Path], typer.Option("--check", help="A file or folder at hand: check it instead of fetching.")
    ] = None,
) -> None:
    """Fetch a benchmark's files, or check those at hand: hashes against the known ones, rows and labels per group.

    Everything is fetched at one revision, which `prepared.json` names beside the files' hashes. **Exit status 1** where a file
    is not the known one, or a group not of the published size. What licences say of the data is for you to read.
    """
    from rewardlab.benchmarks.prepare import check_files, fetch_files

    if (out is None) == (data is None):
        raise ConfigError("expected either --out FOLDER, to fetch, or --check PATH")
    if out is not None:
        record = fetch_files(benchmark, out)
        typer.echo(f"fetched {len(record.files):,} files of {benchmark} at {record.revision} to {out}")
    place = out or data
    assert place is not None
    sentences, is_good = check_files(benchmark, place)
    typer.echo("\n".join(sentences))
    if not is_good:
        raise typer.Exit(1)


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


@bench_app.command("official")
def bench_official(
    benchmark: Annotated[
        Optional[str], typer.Argument(help="The scorer: a benchmark's name or a part's; without one all are listed.")
    ] = None,
    outputs: Annotated[
        Optional[Path], typer.Argument(help="The file that the benchmark's own inference writes, or `bench run` exports.")
    ] = None,
    data: Annotated[
        Optional[Path], typer.Option("--data", help="mmrb2: a task's benchmark file, or the folder of all, for the labels.")
    ] = None,
) -> None:
    """Print what the benchmark's own scorer prints on these outputs, to the digit, quirks included.

    `rewardlab bench official` alone lists the scorers and what each takes. Numbers to compare with published ones, not to
    trust: see each scorer's docstring.
    """
    from rewardlab.benchmarks.official import official_lines, official_scorers

    if benchmark is None:
        typer.echo("\n".join(f"{name}: {scorer.inputs}" for name, scorer in official_scorers().items()))
        return
    if outputs is None:
        raise ConfigError(f"expected a file of outputs: rewardlab bench official {benchmark} OUTPUTS")
    typer.echo("\n".join(official_lines(benchmark, outputs, data)))


@bench_app.command("compare")
def bench_compare(
    runs: Annotated[
        list[Path], typer.Argument(help="Folders of finished runs of one benchmark; others are compared with the first.")
    ],
    out: Annotated[Optional[Path], typer.Option("--out", help="Also write the table to this .md or .html file.")] = None,
) -> None:
    """Leaderboard of several runs: accuracies with intervals, and each against the first, pair by pair, with a p-value."""
    from rewardlab.benchmarks.comparison import leaderboard_html, leaderboard_markdown, read_run
    from rewardlab.data.files import write_atomic

    if out is not None and out.suffix not in (".md", ".html"):
        raise ConfigError(f"--out {out}: expected a .md or .html file")
    finished = [read_run(folder) for folder in runs]
    text = leaderboard_markdown(finished)
    typer.echo(text)
    if out is not None:
        write_atomic(out, leaderboard_html(finished) if out.suffix == ".html" else text)


@bench_app.command("check")
def bench_check(
    numbers: Annotated[
        list[str], typer.Argument(help="NAME=PERCENT for each group, and overall=PERCENT; or folders of finished runs.")
    ],
    benchmark: Annotated[
        str, typer.Option("--benchmark", help="The benchmark of the row; its groupings must be known.")
    ] = "vl_rewardbench",
) -> None:
    """Do the numbers add up? Of a published row: under whose grouping. Of a run: from its rows to its overall.

    `rewardlab bench check general=63.84 hallucination=85.71 reasoning=64.78 overall=71.92`, `rewardlab bench check runs/bench`.
    **Exit status 1** where they do not. Of a run its groups, overall, macro, invalid rate and the curve's end are looked at.
    """
    from rewardlab.benchmarks.arithmetic import addition, fits, problems, sentence
    from rewardlab.benchmarks.comparison import read_run
    from rewardlab.benchmarks.registry import find_benchmark, packaged_benchmarks

    if any("=" in number for number in numbers) != all("=" in number for number in numbers):
        raise ConfigError("expected NAME=PERCENT throughout, or folders of runs throughout")
    if all("=" not in number for number in numbers):
        failed = False
        for run in map(read_run, map(Path, numbers)):
            wrong = problems(run.report, run.rows)
            typer.echo(f"{run.name}: " + ("; ".join(wrong) if wrong else f"adds up: {addition(run.report.scores)}"))
            failed = failed or bool(wrong)
        if failed:
            raise typer.Exit(1)
        return
    groupings = find_benchmark(benchmark).groupings
    if not groupings:
        names = ", ".join(other.name for other in packaged_benchmarks() if other.groupings)
        raise ConfigError(f"no groupings of {benchmark!r} are known; expected {names}")
    groups = dict(_percentage(number) for number in numbers)
    if "overall" not in groups:
        raise ConfigError("expected overall=PERCENT beside the groups")
    overall = groups.pop("overall")
    typer.echo(sentence(groups, overall, groupings, "official"))
    if not any(fit.adds_up for fit in fits(groups, overall, groupings)):
        raise typer.Exit(1)


def _percentage(number: str) -> tuple[str, float]:
    name, _, value = number.partition("=")
    try:
        return name, float(value)
    except ValueError as error:
        raise ConfigError(f"{number!r}: expected NAME=PERCENT, for example overall=71.92") from error
