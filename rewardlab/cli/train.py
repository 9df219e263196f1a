"""Training: cold start and reinforcement learning."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import ConfigFile, Out, Seed, app, tell
from rewardlab.judging.spec import spec_help


@app.command()
def sft(
    data: Annotated[Path, typer.Option("--data", help="Distilled pairs (.parquet).")],
    out: Out,
    config: ConfigFile = None,
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder or hub id to start from.")] = None,
    verify_votes: Annotated[
        Optional[Path],
        typer.Option("--verify-votes", help="votes.jsonl of `bench pairs` on the same --data: teaches it to verify them."),
    ] = None,
    seed: Seed = None,
) -> None:
    """Cold-start a vision-language model on kept judgments. The result is `OUT/final`; an interrupted run resumes.

    With `template: verdict` in the config it trains a classifier instead: labels alone, each pair in both orders, loss on the
    verdict token. Ask such a judge as `hf:OUT/final`: it answers with probabilities.
    """
    from rewardlab.config import SFTConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.training.sft import train_sft

    settings = load_config(SFTConfig, config, model=model, seed=seed)
    tell(train_sft(read_pairs(data, frames=settings.frames), settings, out, votes=verify_votes))


@app.command()
def rl(
    data: Annotated[Path, typer.Option("--data", help="Distilled pairs (.parquet); the hard ones are trained on.")],
    out: Out,
    config: ConfigFile = None,
    model: Annotated[Optional[str], typer.Option("--model", help="SFT checkpoint folder to start from.")] = None,
    consistency_url: Annotated[
        Optional[str], typer.Option("--consistency-url", help="Overrides the config's consistency endpoint.")
    ] = None,
    seed: Seed = None,
) -> None:
    """Train on the hard pairs: with StableReinforce, or a method of `configs/rl/`. `OUT/final`; an interrupted run resumes."""
    from rewardlab.config import RLConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.training.rl import train_rl

    settings = load_config(RLConfig, config, model=model, seed=seed)
    if consistency_url:
        changed = settings.consistency.model_copy(update={"base_url": consistency_url})
        settings = settings.model_copy(update={"consistency": changed})
    tell(train_rl(read_pairs(data, frames=settings.frames), settings, out))


@app.command()
def rm(
    data: Annotated[Path, typer.Option("--data", help="Labelled pairs, .parquet or .jsonl; no teacher is needed.")],
    out: Out,
    config: ConfigFile = None,
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder or hub id to start from.")] = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
    seed: Seed = None,
) -> None:
    """Fit a scalar reward model (Bradley-Terry): one number for one response, seen with its images and question.

    The result is `OUT/final`; an interrupted run resumes. `rewardlab score` writes its scores for `bench --judge replay:FILE`.
    """
    from rewardlab.config import RMConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.training.reward_model import train_reward_model

    settings = load_config(RMConfig, config, model=model, seed=seed)
    tell(train_reward_model(read_pairs(data, images=images, frames=settings.frames), settings, out))


@app.command()
def score(
    data: Annotated[Path, typer.Option("--data", help="Pairs, .parquet or .jsonl.")],
    model: Annotated[Path, typer.Option("--model", help="Folder that `rewardlab rm` left, OUT/final.")],
    out: Annotated[Path, typer.Option("--out", help="JSON lines to write, for `bench pairs --judge replay:FILE`.")],
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
) -> None:
    """Score both responses of every pair by a scalar reward model: `{"row": 0, "scores": [0.3, 0.7]}`, one line a pair."""
    from rewardlab.data.pairs import read_pairs
    from rewardlab.training.reward_model import write_scores

    typer.echo(f"{write_scores(model, read_pairs(data, images=images), out)} pairs scored: {out}")


@app.command()
def prm(
    data: Annotated[Path, typer.Option("--data", help="The pairs that were labelled (.parquet).")],
    steps: Annotated[Path, typer.Option("--steps", help="steps.jsonl of `rewardlab steps`.")],
    out: Out,
    config: ConfigFile = None,
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder to start from: the judge's.")] = None,
    seed: Seed = None,
) -> None:
    """Train a process reward model on step labels. `OUT/final` serves `rewardlab rl` as `process_reward` and `value_init`."""
    from rewardlab.config import PRMConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.distill.step_labels import read_steps
    from rewardlab.training.prm import train_prm

    settings = load_config(PRMConfig, config, model=model, seed=seed)
    tell(train_prm(read_pairs(data, frames=settings.frames), read_steps(steps), settings, out))


@app.command()
def policy(
    data: Annotated[Path, typer.Option("--data", help="Questions with images, as pairs (.parquet or .jsonl).")],
    out: Out,
    config: ConfigFile = None,
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder or hub id of the policy.")] = None,
    judge: Annotated[Optional[str], typer.Option("--judge", help=f"{spec_help('rm')}.")] = None,
    images: Annotated[Optional[Path], typer.Option("--images", help="Folder of the images a .jsonl names.")] = None,
    seed: Seed = None,
) -> None:
    """Train a policy on a judge's word: each answer is paid the probability that it beats an anchor, both orders asked.

    The anchor (`anchor` in the config) is the pair's preferred response, the first policy's own greedy answer or the best of
    several of them (made for all of DATA before training begins, kept in OUT/anchors.jsonl), or the other answers of the
    group. Methods as in `configs/rl/`. Watch `reward` against a truth of your own: judges get hacked.
    """
    from rewardlab.config import PolicyConfig, load_config
    from rewardlab.data.pairs import read_pairs
    from rewardlab.training.policy import train_policy

    settings = load_config(PolicyConfig, config, model=model, judge=judge, seed=seed)
    tell(train_policy(read_pairs(data, images=images, frames=settings.frames), settings, out))
