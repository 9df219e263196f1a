"""Judges under attack: `rewardlab bench robustness`."""

from __future__ import annotations

import os
import shlex
import sys
from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.benchmarks.registry import PACKAGED
from rewardlab.cli.bench import show_run
from rewardlab.cli.options import (
    AllowColumns,
    ApiKeyEnv,
    AsJson,
    BatchSize,
    EngineArgs,
    MaxFailed,
    MaxTokens,
    Out,
    RandomSeed,
    Temperature,
    Template,
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
from rewardlab.judging.spec import WITHOUT_SAMPLER, spec_help
from rewardlab.samplers.failures import MAX_FAILED


@bench_app.command("robustness")
def bench_robustness(
    benchmark: Annotated[str, typer.Argument(help=f"{', '.join(PACKAGED)} (your own labelled pairs), as in `bench run`.")],
    judge: Annotated[str, typer.Option("--judge", help=f"{spec_help(*WITHOUT_SAMPLER, 'baseline')}.")],
    out: Out,
    data: Annotated[
        Optional[Path], typer.Option("--data", help="The benchmark's data file; default: what `bench prepare` fetched.")
    ] = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the benchmark's images.")] = None,
    pairs: Annotated[
        int, typer.Option("--pairs", min=1, help="Pairs to attack, drawn by the seed; each is judged some 140 times.")
    ] = 100,
    families: Annotated[
        str,
        typer.Option(
            "--families",
            help="Families or kinds of attacks, comma-separated, such as degenerate,order; default: all. Kinds: degenerate, "
            "insertion, harmless, wording, edit, caption, unseen.",
        ),
    ] = "",
    seed: RandomSeed = 0,
    template: Template = None,
    temperature: Temperature = 0.0,
    max_tokens: MaxTokens = 1024,
    batch_size: BatchSize = 64,
    engine_args: EngineArgs = "",
    require: Annotated[
        list[str],
        typer.Option(
            "--require",
            help="Exit status 1 unless the report has it: 'good_unnamed<=0.02', 'lost_by_harmless.high<=0.1', "
            "'insertions_over_harmless<=0.02', 'accuracy[hedge]>=0.9'. Figures are of held-out families. Repeatable.",
        ),
    ] = [],  # noqa: B006  (typer's way to say a default)
    price: Price = "",
    budget_usd: BudgetUsd = None,
    budget_tokens: BudgetTokens = None,
    max_failed: MaxFailed = MAX_FAILED,
    as_json: AsJson = False,
    all_judgments: Annotated[
        bool, typer.Option("--all-judgments", help="Also write pages of every judgment, 200 rows each, to OUT/judgments.")
    ] = False,
    allow_columns: AllowColumns = None,
    concurrency: Concurrency = None,
    deadline: Deadline = None,
    reasoning_effort: ReasoningEffort = None,
    body: Body = "",
    max_tokens_field: MaxTokensField = "auto",
    cache: Cache = None,
    api_key_env: ApiKeyEnv = "OPENAI_API_KEY",
) -> None:
    """How often does a worse answer win by an attack? Degenerate answers, texts in the wrong answer, edits of the picture.

    Each family makes pairs of every pair: a degenerate answer in the place of the wrong one, and of the good one; a text put
    into either answer; a picture edited in a way that must not matter. Each is judged in both orders, once. What harmless words
    do stands beside it. Some families are for training (`data harden`); the figures of the others, which are held out, are what
    to report. `bench compare` puts two runs of the same pairs side by side, family by
    family. The same command continues a killed run. **Exit status 1** where a requirement is not met or no verdict was read,
    **3** where an endpoint refuses.
    """
    import rewardlab.benchmarks.report  # noqa: F401  (what it lacks is said before anything is asked)
    from rewardlab.benchmarks.prepare import prepared_data
    from rewardlab.benchmarks.requirements import parse_requirement
    from rewardlab.benchmarks.robustness.run import run_robustness
    from rewardlab.benchmarks.settings import BenchSettings

    settings = BenchSettings(
        benchmark=benchmark,
        data=data or prepared_data(benchmark),
        judge=judge,
        images=images,
        votes=1,
        orders="both",
        seed=seed,
        template=template,
        temperature=temperature,
        max_tokens=max_tokens,
        batch_size=batch_size,
        engine_args=engine_args,
        controls=(),
        max_failed=max_failed,
        prices=parse_prices(price),
        budget=parse_budget(budget_usd, budget_tokens),
        api_key=os.environ.get(api_key_env, "none"),
        request=request_options(concurrency, deadline, reasoning_effort, body, max_tokens_field),
        command=shlex.join(["rewardlab", *sys.argv[1:]]),
        allow_columns=columns_of(allow_columns),
        cache=cache_folder(cache, judge),
        requirements=tuple(map(parse_requirement, require)),
    )
    chosen = [name for name in families.split(",") if name]
    report, rows = run_robustness(settings, out, num_pairs=pairs, families=chosen)
    show_run(report, rows, out, as_json=as_json, all_judgments=all_judgments)
