"""Judges under attack: `rewardlab bench robustness`."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Optional

import typer

from rewardlab.benchmarks.registry import PACKAGED
from rewardlab.cli.bench import ROWS, show_run
from rewardlab.cli.commands import command
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
    RandomSeed,
    bench_app,
    columns_of,
    command_line,
    judge_of,
    parse_budget,
    parse_prices,
)
from rewardlab.samplers.failures import MAX_FAILED


@dataclass(frozen=True, kw_only=True)
class RobustnessOptions:
    """Options of `bench robustness`."""

    benchmark: Annotated[str, typer.Argument(help=f"{', '.join(PACKAGED)} (your own labelled pairs), as in `bench run`.")]
    overrides: JudgeKeys = None
    judge: JudgeOption
    out: Out
    data: Annotated[
        Optional[Path],
        typer.Option(
            "--data",
            help="The benchmark's data file; default: what `bench prepare` fetched.",
            rich_help_panel=ROWS,
        ),
    ] = None
    images: Annotated[
        Optional[Path], typer.Option("--images", help="Folder of the benchmark's images.", rich_help_panel=ROWS)
    ] = None
    pairs: Annotated[
        int,
        typer.Option("--pairs", min=1, help="Pairs to attack, sampled by the seed; each is judged some 140 times."),
    ] = 100
    families: Annotated[
        str,
        typer.Option(
            "--families",
            help="Families or kinds of attacks, comma-separated, such as degenerate,order; default: all. Kinds: degenerate, "
            "insertion, harmless, wording, edit, caption, unseen.",
        ),
    ] = ""
    seed: RandomSeed = 0
    require: Annotated[
        list[str],
        typer.Option(
            "--require",
            help="Exit status 1 unless the report has it: 'good_unnamed<=0.02', 'lost_by_harmless.high<=0.1', "
            "'insertions_over_harmless<=0.02', 'accuracy[hedge]>=0.9'. Figures are of held-out families. Repeatable.",
        ),
    ] = field(default_factory=list)
    max_failed: MaxFailed = MAX_FAILED
    as_json: AsJson = False
    all_judgments: Annotated[
        bool, typer.Option("--all-judgments", help="Also write pages of every judgment, 200 rows each, to OUT/judgments.")
    ] = False
    allow_columns: AllowColumns = None
    price: Price = ""
    budget_usd: BudgetUsd = None
    budget_tokens: BudgetTokens = None


@command(bench_app, "robustness")
def bench_robustness(options: RobustnessOptions) -> None:
    """How often does a worse answer win by an attack? Degenerate answers, texts in the wrong answer, edits of the picture.

    Each family makes pairs of every pair: a degenerate answer in the place of the wrong one, and of the good one; a text put
    into either answer; a picture edited in a way that must not matter. Each is judged in both orders, once. What harmless words
    do stands beside it. Some families are for training (`data harden`); the figures of the others, which are held out, are what
    to report. `bench compare` puts two runs of the same pairs side by side, family by
    family. The same command continues a killed run. **Exit status 1** where a requirement is not met or no verdict was read,
    **3** where an endpoint refuses.
    """
    import rewardlab.benchmarks.report  # noqa: F401  (what it lacks is said before anything is queried)
    from rewardlab.benchmarks.prepare import prepared_data
    from rewardlab.benchmarks.requirements import parse_requirement
    from rewardlab.benchmarks.robustness.run import run_robustness
    from rewardlab.benchmarks.settings import BenchSettings

    settings = BenchSettings(
        benchmark=options.benchmark,
        data=options.data or prepared_data(options.benchmark),
        judge=judge_of(options.judge, options.overrides, **greedy_keys(options.judge)),
        images=options.images,
        seed=options.seed,
        controls=(),
        max_failed=options.max_failed,
        prices=parse_prices(options.price),
        budget=parse_budget(options.budget_usd, options.budget_tokens),
        command=command_line(),
        allow_columns=columns_of(options.allow_columns),
        requirements=tuple(map(parse_requirement, options.require)),
    )
    chosen = [name for name in options.families.split(",") if name]
    report, rows = run_robustness(settings, options.out, num_pairs=options.pairs, families=chosen)
    show_run(report, rows, options.out, as_json=options.as_json, all_judgments=options.all_judgments)


def greedy_keys(judge: str) -> dict[str, Any]:
    """Return temperature 0 for a judge that has a temperature."""
    from rewardlab.judging.spec import judge_config, keys_of

    return {"temperature": 0.0} if "temperature" in keys_of(judge_config(judge).judge) else {}
