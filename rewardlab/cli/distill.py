"""`rewardlab distill`, `select`, `self-distil`, `steps`: judgments to learn from, and the choice of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

from rewardlab.cli.commands import command
from rewardlab.cli.options import (
    DATA,
    PAIR_FILES,
    Allow,
    AllowColumns,
    ConfigFile,
    Images,
    JudgeKeys,
    JudgeOption,
    Out,
    Overrides,
    RandomSeed,
    Seed,
    allowances,
    app,
    columns_of,
    judge_of,
    parse_judge_keys,
    refuse_run_keys,
)
from rewardlab.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class Distill:
    """Options of `rewardlab distill`."""

    data: Annotated[Path, typer.Option("--data", help=f"Labelled pairs: {PAIR_FILES}.")]
    out: Out
    overrides: Overrides = None
    config: ConfigFile = None
    images: Images = None
    allow: Allow = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None
    ray_workers: Annotated[
        Optional[int],
        typer.Option(
            "--ray-workers", min=1, help="Send requests from this many Ray actors; --data is then a folder of Parquet shards."
        ),
    ] = None
    ray_address: Annotated[
        Optional[str], typer.Option("--ray-address", help="Address of a Ray cluster, or auto (default: start a local one).")
    ] = None


@command(app, "distill", rich_help_panel=DATA)
def distill_command(options: Distill) -> None:
    """Distill a teacher: request reasoned judgments, keep those that agree with the label, tag each pair's difficulty.

    `journal.sqlite` records every request: after an interruption, run the same command again. Keys of the config:
    `base_url=URL` or `[URL,URL]` of the teacher, `budget.usd=500`, `votes=4` judgments of each pair (half in each order),
    `transport=batch` for the provider's batch API; prices: see `configs/distill/`.
    """
    from rewardlab.config import DistillConfig, load_config, parse_overrides
    from rewardlab.data.pairs import PairSet
    from rewardlab.distill.pipeline import distill

    data, out, allowed = options.data, options.out, allowances(options.allow)
    settings = load_config(DistillConfig, options.config, parse_overrides(options.overrides or ()))
    if options.ray_workers is not None:
        from rewardlab.distill.ray_transport import distill_on_ray

        if options.limit is not None or options.images is not None:
            raise ConfigError(
                "--ray-workers needs shards with embedded media, and uses all of them; leave out --limit and --images"
            )
        workers, address = options.ray_workers, options.ray_address
        statistics = distill_on_ray(
            data, settings, out, workers=workers, address=address, allow_without_images=allowed["allow_without_images"]
        )
    else:
        names = allowed["allow_columns"]
        pairs = PairSet(data, images=options.images, frames=None, limit=options.limit, allow_columns=names)
        statistics = distill(pairs, settings, out, allow_without_images=allowed["allow_without_images"])
    Console().print_json(data=statistics)
    typer.echo(f"written: {out}/distilled.parquet, attempts.parquet, statistics.json", err=True)
    if hint := statistics["other_format"]:
        typer.echo(hint, err=True)
    if failed := statistics["num_failed_pairs"]:
        typer.echo(f"the requests of {failed:,} pairs failed: left out; the same command requests them again", err=True)
    if statistics["stopped_by_budget"]:
        typer.echo(
            f"The budget is spent: {statistics['num_pairs']:,} of {statistics['num_pairs_asked_about']:,} pairs have their "
            "answers. Raise it and run the same command again.",
            err=True,
        )


@app.command("select", rich_help_panel=DATA)
def select_command(
    data: Annotated[Path, typer.Option("--data", help=f"Labelled pairs: {PAIR_FILES}.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for hard.parquet, suspects.parquet and report.json.")],
    plan: Annotated[
        str, typer.Option("--plan", help="all, attempts>=2, tiers:medium,hard, hardest:0.1, rlcs:0.5, mix:easy=0.2,hard=0.8")
    ] = "attempts>=2",
    votes: Annotated[
        Optional[Path], typer.Option("--votes", help="votes.jsonl of `rewardlab bench run pairs` on the same --data.")
    ] = None,
    images: Images = None,
    allow: AllowColumns = None,
    seed: RandomSeed = 0,
) -> None:
    """Select training pairs by their difficulty for the teacher or, with --votes, for the judge itself.

    Tiers by the fraction of right votes: easy from 90 %, medium from 60 %, hard from 25 %, very_hard below; without votes, by
    the teacher's share or attempts. Pairs that the judge always gets wrong in both orders are probably mislabelled and go to
    suspects.parquet for inspection. `report.json` has histograms before and after, and the agreement of the two
    measures. Without a teacher's tags, `rewardlab rl` trains on all selected pairs.
    """
    from rewardlab.data.pairs import PairSet
    from rewardlab.data.votes import read_votes, require_same_run
    from rewardlab.distill.selection import select, write_selection

    if votes:
        require_same_run(votes, data)
    pairs = PairSet(data, images=images, frames=None, allow_columns=columns_of(allow))
    report = write_selection(pairs, select(pairs, read_votes(votes) if votes else None, plan, seed=seed), plan, out)
    Console().print_json(data=report)
    typer.echo(f"{report['num_chosen']:,} of {report['num_pairs']:,} pairs in {out}/hard.parquet")
    typer.echo(f"{report['num_suspects']:,} in {out}/suspects.parquet")


@dataclass(frozen=True, kw_only=True)
class SelfDistilOptions:
    """Options of `self-distil`."""

    data: Annotated[Path, typer.Option("--data", help=f"Labelled pairs: {PAIR_FILES}.")]
    judge: JudgeOption
    out: Out
    overrides: JudgeKeys = None
    samples: Annotated[int, typer.Option("--samples", min=1, help="Samples of each pair in each order.")] = 8
    keep: Annotated[
        int, typer.Option("--keep", min=1, help="Maximum judgments to keep per pair; those with different openings first.")
    ] = 1
    alpha: Annotated[
        float,
        typer.Option(
            "--alpha",
            min=0.0,
            max=1.0,
            help="Keep a pair only if guessing would be right as often with at most this probability; 1 keeps all.",
        ),
    ] = 0.05
    hot_token: Annotated[
        Optional[float],
        typer.Option(
            "--hot-token", min=0.1, max=1000, help="FIRE: temperature of the first token after `<think>`, for example 2."
        ),
    ] = None
    images: Images = None
    allow: Allow = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None
    seed: RandomSeed = 0


@command(app, "self-distil", rich_help_panel=DATA)
def self_distill_command(options: SelfDistilOptions) -> None:
    """Collect a judge's right judgments as training data, without a teacher (rejection sampling; FIRE makes them diverse).

    Judgments of a pair are kept only if the judge is right more often than by guessing. The same command resumes a killed run.
    """
    from rewardlab.data.pairs import read_pairs
    from rewardlab.distill.self_distill import RejectionRules, self_distill, set_hot_token
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.judging.spec import judge_video_policy

    config = refuse_run_keys(judge_of(options.judge, options.overrides))
    if "votes" in parse_judge_keys(options.overrides):
        raise ConfigError("votes: --samples says how many judgments of a pair are sampled; leave it out")
    policy, allowed = judge_video_policy(config.judge), allowances(options.allow)
    columns = allowed["allow_columns"]
    pairs = read_pairs(options.data, images=options.images, policy=policy, allow_columns=columns)[: options.limit]
    judge_model = open_generative_judge(config)
    if options.hot_token is not None:
        set_hot_token(judge_model, options.hot_token)
    rules = RejectionRules(options.samples, options.keep, options.alpha, options.hot_token, config.max_tokens, options.seed)
    Console().print_json(
        data=self_distill(pairs, judge_model, rules, options.out, allow_without_images=allowed["allow_without_images"])
    )
    typer.echo(f"written: {options.out}/distilled.parquet, statistics.json", err=True)


@dataclass(frozen=True, kw_only=True)
class StepsOptions:
    """Options of `steps`."""

    data: Annotated[Path, typer.Option("--data", help=f"Labelled pairs: {PAIR_FILES}.")]
    judge: JudgeOption
    out: Out
    overrides: Overrides = None
    config: ConfigFile = None
    images: Images = None
    allow: Allow = None
    source: Annotated[
        Optional[str], typer.Option("--source", help="Judgments to label: judge (sample new ones) or pairs (those in --data).")
    ] = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None
    seed: Seed = None


@command(app, "steps", rich_help_panel=DATA)
def steps_command(options: StepsOptions) -> None:
    """Label the steps of judgments for `rewardlab prm`: +1 before the step at which the reasoning goes wrong, -1 from there on.

    A prefix is good if 15 of 20 completions of it are right, which guessing achieves once in 48 times; bisection finds the
    first bad one. Pairs on which the judge only guesses stay unlabelled. Labels: `OUT/steps.jsonl`. The same command
    resumes a killed run.
    """
    from rewardlab.config import StepsConfig, load_config, parse_overrides
    from rewardlab.data.pairs import read_pairs
    from rewardlab.distill.step_labels import label_steps
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.judging.spec import judge_config, judge_video_policy

    settings = load_config(
        StepsConfig, options.config, parse_overrides(options.overrides or ()), source=options.source, seed=options.seed
    )
    config_of_judge = judge_of(options.judge, ())
    if "batch_size" in settings.model_fields_set or "batch_size" not in config_of_judge.model_fields_set:
        config_of_judge = judge_config(config_of_judge, batch_size=settings.batch_size)
    policy, allowed = judge_video_policy(config_of_judge.judge), allowances(options.allow)
    columns = allowed["allow_columns"]
    pairs = read_pairs(options.data, images=options.images, policy=policy, allow_columns=columns)[: options.limit]
    opened = open_generative_judge(config_of_judge)
    Console().print_json(
        data=label_steps(pairs, settings, opened, options.out, allow_without_images=allowed["allow_without_images"])
    )
    typer.echo(f"written: {options.out}/steps.jsonl", err=True)
