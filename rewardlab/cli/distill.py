"""Making data: the demonstration, a teacher's judgments, a choice of pairs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer
from rich.console import Console

from rewardlab.cli.options import ConfigFile, Out, Seed, app, demo_app
from rewardlab.errors import ConfigError


@demo_app.command("build")
def demo_build(out: Out, config: Annotated[Path, typer.Option("--config")], seed: Seed = None) -> None:
    """Make the demonstration's pairs and its tiny base model (minutes, once; what exists is kept)."""
    from rewardlab.demo.build import DemoConfig, build_base, build_pairs

    demo = DemoConfig.load(config, seed=seed)
    build_pairs(out, demo)
    build_base(out, demo)
    typer.echo(f"demonstration in {out}")


@demo_app.command("serve")
def demo_serve(
    demo: Annotated[Path, typer.Option("--folder", help="Folder made by `rewardlab demo build`.")],
    port: Annotated[int, typer.Option("--port")] = 8321,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """Serve the demonstration's teacher and consistency checker over an OpenAI-compatible API."""
    from rewardlab.demo.build import TRUTHS
    from rewardlab.demo.server import TeacherConfig, serve

    serve(demo / TRUTHS, port=port, config=TeacherConfig(seed=seed))


@app.command("distill")
def distill_command(
    data: Annotated[Path, typer.Option("--data", help="Labelled pairs: .parquet, .jsonl, or a folder of them.")],
    out: Out,
    config: ConfigFile = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
    base_url: Annotated[Optional[str], typer.Option("--base-url", help="Of the endpoint, or URL,URL of several.")] = None,
    budget_usd: Annotated[
        Optional[float],
        typer.Option("--budget-usd", min=0.0, help="Most to spend, earlier runs in OUT included."),
    ] = None,
    votes: Annotated[
        Optional[int], typer.Option("--votes", min=0, help="Ask this often whatever is said, half in each order (even).")
    ] = None,
    ray_workers: Annotated[
        Optional[int], typer.Option("--ray-workers", min=1, help="Ask from so many Ray actors; --data are Parquet shards then.")
    ] = None,
    ray_address: Annotated[
        Optional[str], typer.Option("--ray-address", help="Of a Ray cluster, or auto; without it a local one is started.")
    ] = None,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None,
    seed: Seed = None,
) -> None:
    """Ask a teacher for reasoned judgments; keep those that agree with the label; tag difficulty.

    Every request is journalled in `journal.sqlite`: kill it at any time and run the same command again. `transport: batch` in
    the config sends files through the provider's batch API. Prices and budget are the config's; see `configs/distill/`.
    """
    from rewardlab.config import DistillConfig, load_config
    from rewardlab.data.pairs import PairSet
    from rewardlab.distill.pipeline import distill

    urls = None if base_url is None else base_url.split(",") if "," in base_url else base_url
    settings = load_config(DistillConfig, config, base_url=urls, votes=votes, seed=seed)
    if budget_usd is not None:
        budget = settings.budget.model_dump() | {"usd": budget_usd}
        settings = load_config(DistillConfig, None, **settings.model_dump() | {"budget": budget})
    if ray_workers is not None:
        from rewardlab.distill.ray_transport import distill_on_ray

        if limit is not None or images is not None:
            raise ConfigError("--ray-workers takes shards with media inside, and all of them; leave --limit and --images out")
        statistics = distill_on_ray(data, settings, out, workers=ray_workers, address=ray_address)
    else:
        statistics = distill(PairSet(data, images=images, frames=None, limit=limit), settings, out)
    Console().print_json(data=statistics)
    if statistics["stopped_by_budget"]:
        typer.echo(
            f"The budget is spent: {statistics['num_pairs']:,} of {statistics['num_pairs_asked_about']:,} pairs have their "
            "answers. Raise it and run the same command again.",
            err=True,
        )


@app.command("select")
def select_command(
    data: Annotated[Path, typer.Option("--data", help="Labelled pairs: .parquet, .jsonl, or a folder of them.")],
    out: Annotated[Path, typer.Option("--out", help="Folder for hard.parquet, suspects.parquet and report.json.")],
    plan: Annotated[
        str, typer.Option("--plan", help="all, attempts>=2, tiers:medium,hard, hardest:0.1, rlcs:0.5, mix:easy=0.2,hard=0.8")
    ] = "attempts>=2",
    votes: Annotated[
        Optional[Path], typer.Option("--votes", help="votes.jsonl of `rewardlab bench run pairs` on the same --data.")
    ] = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
    seed: Seed = None,
) -> None:
    """Choose the pairs to train on next by how hard they are: for the teacher, and with --votes for the judge itself.

    Tiers by the share of right votes: easy from 90 %, medium from 60, hard from 25, very_hard below; without votes by the
    teacher's share or attempts. Pairs that the judge gets wrong every time in both orders are more likely mislabelled: they go
    to suspects.parquet, to be looked at. `report.json` has the histograms before and after, and how far the measures agree.
    Pairs that no teacher has tagged are trained on with `attempts: [""]` in the RL config.
    """
    from rewardlab.data.pairs import PairSet
    from rewardlab.data.votes import read_votes
    from rewardlab.distill.selection import select, write_selection

    pairs = PairSet(data, images=images, frames=None)
    report = write_selection(pairs, select(pairs, read_votes(votes) if votes else None, plan, seed=seed or 0), plan, out)
    Console().print_json(data=report)
    typer.echo(f"{report['num_chosen']:,} of {report['num_pairs']:,} pairs in {out}/hard.parquet")
    typer.echo(f"{report['num_suspects']:,} in {out}/suspects.parquet")


@app.command("self-distil")
def self_distill_command(
    data: Annotated[Path, typer.Option("--data", help="Labelled pairs: .parquet, .jsonl, or a folder of them.")],
    judge: Annotated[
        str, typer.Option("--judge", help="The judge whose own right judgments are kept; hf:PATH for --hot-token.")
    ],
    out: Out,
    samples: Annotated[int, typer.Option("--samples", min=1, help="Of each pair in each order.")] = 8,
    keep: Annotated[int, typer.Option("--keep", min=1, help="Judgments of a pair, at most; different openings first.")] = 1,
    alpha: Annotated[
        float, typer.Option("--alpha", min=0.0, max=1.0, help="Chance that a guesser is right as often; 1 keeps lucky ones.")
    ] = 0.05,
    hot_token: Annotated[
        Optional[float],
        typer.Option("--hot-token", min=0.1, help="FIRE: temperature of the first token after <think>, say 30."),
    ] = None,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1)] = 1024,
    batch_size: Annotated[int, typer.Option("--batch-size", min=1)] = 64,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None,
    seed: Annotated[int, typer.Option("--seed")] = 0,
) -> None:
    """More to teach from without a teacher: a judge's own right judgments (rejection sampling), with FIRE drawn further apart.

    Kept of a pair only where the judge is right more often than a guesser might be. A killed run continues.
    """
    from rewardlab.data.pairs import read_pairs
    from rewardlab.distill.self_distill import RejectionRules, self_distill, set_hot_token
    from rewardlab.judging.engines import open_judge
    from rewardlab.judging.judge import GenerativeJudge

    pairs = read_pairs(data, images=images)[:limit]
    judge_model = open_judge(judge, max_tokens=max_tokens, batch_size=batch_size)
    if not isinstance(judge_model, GenerativeJudge):
        raise ConfigError(f"{judge}: writes no judgments; use hf:PATH, vllm:PATH or openai:MODEL@URL")
    if hot_token is not None:
        set_hot_token(judge_model, hot_token)
    rules = RejectionRules(samples, keep, alpha, hot_token, max_tokens, seed)
    Console().print_json(data=self_distill(pairs, judge_model, rules, out))


@app.command("steps")
def steps_command(
    data: Annotated[Path, typer.Option("--data", help="Labelled pairs, .parquet or .jsonl.")],
    judge: Annotated[str, typer.Option("--judge", help="The judge that completes its own reasoning: hf:PATH.")],
    out: Out,
    config: ConfigFile = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
    source: Annotated[Optional[str], typer.Option("--source", help="Whose judgments: judge (new ones) or pairs.")] = None,
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None,
    seed: Seed = None,
) -> None:
    """Find the step at which a reasoning goes wrong: +1 before it, -1 from it on, for `rewardlab prm` to learn.

    A prefix is good while 15 of 20 completions of it are right, which a guesser manages once in 48 times; bisection finds the
    first that is not. Where the judge only guesses, nothing is labelled. Labels: `OUT/steps.jsonl`. A killed run continues.
    """
    from rewardlab.config import StepsConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.distill.step_labels import label_steps
    from rewardlab.judging.engines import open_judge

    settings = load_config(StepsConfig, config, source=source, seed=seed)
    pairs = read_pairs(data, images=images)[:limit]
    Console().print_json(data=label_steps(pairs, settings, open_judge(judge, batch_size=settings.batch_size), out))
