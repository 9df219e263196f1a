"""`rewardlab harden`: a judge that learns from the policy that it trains."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Optional

import typer

from rewardlab.cli.options import CONFIG_HELP, PAIR_FILES, TRAINING, Out, RandomSeed, app
from rewardlab.errors import ConfigError


@app.command("harden", rich_help_panel=TRAINING)
def harden_command(
    data: Annotated[Path, typer.Option("--data", help=f"Questions of the policy, labelled pairs of the judge: {PAIR_FILES}.")],
    held_out: Annotated[
        Path, typer.Option("--held-out", help="Labelled pairs on which neither judge nor policy may become worse.")
    ],
    policy: Annotated[str, typer.Option("--policy", help="Checkpoint of the policy to begin with.")],
    judge: Annotated[str, typer.Option("--judge", help="Checkpoint folder of the judge to begin with.")],
    truth: Annotated[
        str,
        typer.Option(
            "--truth",
            help="How a wrong answer of the policy is known: exact, rules or judge:SPEC, as in `rewardlab data negatives`.",
        ),
    ],
    out: Out,
    rounds: Annotated[int, typer.Option("--rounds", min=1, help="Rounds; more may be added to a run that has ended.")] = 3,
    policy_config: Annotated[
        str, typer.Option("--policy-config", help=f"Of `rewardlab policy`. {CONFIG_HELP}")
    ] = "pairwise_rl",
    judge_config: Annotated[str, typer.Option("--judge-config", help=f"Of `rewardlab rl`. {CONFIG_HELP}")] = "stable_reinforce",
    sft_config: Annotated[
        str,
        typer.Option(
            "--sft-config",
            help="Of `rewardlab sft`: before RL the judge is taught its own right judgments of the round's pairs (`rewardlab "
            "self-distil`). Without it, RL alone.",
        ),
    ] = "",
    policy_set: Annotated[
        Optional[list[str]], typer.Option("--policy-set", help="KEY=VALUE over the policy's config; repeat for several.")
    ] = None,
    sft_set: Annotated[
        Optional[list[str]], typer.Option("--sft-set", help="KEY=VALUE over the config of SFT; repeat for several.")
    ] = None,
    judge_set: Annotated[
        Optional[list[str]], typer.Option("--judge-set", help="KEY=VALUE over the judge's config; repeat for several.")
    ] = None,
    number: Annotated[
        int, typer.Option("--number", min=1, help="Questions asked of the policy each round: for negatives, and held-out ones.")
    ] = 1000,
    least_reward: Annotated[
        float, typer.Option("--least-reward", min=0.0, max=1.0, help="Wrong answers that are paid less are left out.")
    ] = 0.25,
    checkpoints: Annotated[
        int,
        typer.Option(
            "--checkpoints",
            min=1,
            help="Checkpoints of the policy in a round; each is asked the held-out questions, and the next round begins with "
            "the latest that is worse than the best by at most one standard error.",
        ),
    ] = 4,
    mix: Annotated[
        float, typer.Option("--mix", min=0.0, help="Labelled pairs of the set for each negative, in the judge's training.")
    ] = 12.0,
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens of an answer.")] = 1024,
    judge_max_tokens: Annotated[int, typer.Option("--judge-max-tokens", min=1, help="Most tokens of a judgment.")] = 1024,
    judge_file: Annotated[
        Optional[Path],
        typer.Option(
            "--judge-file", help="File that `rewardlab serve --judge-file` follows: each accepted judge serves at once."
        ),
    ] = None,
    launcher: Annotated[
        str,
        typer.Option(
            "--launcher",
            help="Command line that starts the processes of the training stages on several cards, such as `accelerate launch "
            "--num_processes 8`; every other stage is one process. May be another one when the run goes on.",
        ),
    ] = "",
    seed: RandomSeed = 0,
) -> None:
    """Train a policy under a judge, and the judge against the policy, in turns.

    A round: the policy learns (`rewardlab policy`); its answers that are wrong and paid become hard negatives (`rewardlab data
    negatives`); the judge learns them beside pairs of the set (`rewardlab rl`); it is benchmarked beside the old one
    (`rewardlab bench run`), and takes its place unless it is worse beyond noise. The policy goes on under it from the
    latest checkpoint that is as good as the best. OUT/index.html has the rounds, and the policy's reward beside its truth. The
    same command goes on after an interruption.

    `rewardlab harden --data pairs.parquet --held-out held_out.parquet --policy POLICY --judge runs/rl/final --judge-set
    consistency.weight=0 --truth exact --out runs/harden`
    """
    from rewardlab.config import find_config
    from rewardlab.training.harden_plan import HardenPlan
    from rewardlab.training.hardening import PAGE, harden_judge

    if judge.startswith("prob:"):
        raise ConfigError(f"--judge {judge}: expected the folder alone, without prob:")
    for name, path in (("--data", data), ("--held-out", held_out), ("--judge", Path(judge))):
        if not path.exists():
            raise ConfigError(f"{name} {path}: there is no such file or folder")
    if truth.startswith("file:"):
        raise ConfigError(
            f"--truth {truth}: the loop makes answers that nobody has labelled yet; label those of one round with "
            "`rewardlab data negatives`, or name exact, rules or judge:SPEC"
        )
    plan = HardenPlan(
        data=str(data),
        held_out=str(held_out),
        policy=policy,
        judge=judge,
        policy_config=str(find_config(policy_config)),
        judge_config=str(find_config(judge_config)),
        truth=truth,
        rounds=rounds,
        sft_config=str(find_config(sft_config)) if sft_config else "",
        policy_keys=tuple(policy_set or ()),
        sft_keys=tuple(sft_set or ()),
        judge_keys=tuple(judge_set or ()),
        number=number,
        least_reward=least_reward,
        mix=mix,
        checkpoints=checkpoints,
        max_tokens=max_tokens,
        judge_max_tokens=judge_max_tokens,
        judge_file=str(judge_file or ""),
        seed=seed,
        launcher=launcher,
    )
    last = harden_judge(plan, out)
    typer.echo(f"written: {out / PAGE}\njudge: {last.next_judge}\npolicy: {last.next_policy}")
