"""`rewardlab sft`, `dpo`, `rl`, `rm`, `prm`, `policy`: training; `score`, `merge` and `show`: its results."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional, TypeVar

import typer

from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import (
    JUDGING,
    PAIR_FILES,
    TRAINING,
    Allow,
    ConfigFile,
    Images,
    Out,
    Overrides,
    allowances,
    app,
    echo_once,
)
from rewardlab.errors import ConfigError
from rewardlab.judging.spec import DEMO, DEMO_JUDGE, spec_help
from rewardlab.processes import is_main

if TYPE_CHECKING:
    from rewardlab.config import TrainConfig
    from rewardlab.types import PreferencePair


Config = TypeVar("Config", bound="TrainConfig")


def train_config(schema: type[Config], config: str | Path | None, overrides: Sequence[str] | None, **options: Any) -> Config:
    """Return the config of a run, with the bundled judge's folder for model "demo", and print the model before libraries are
    loaded. Raise ConfigError, and CheckpointError for a model folder that does not exist."""
    from rewardlab.config import load_config, parse_overrides
    from rewardlab.models.checkpoints import check_folder

    settings = load_config(schema, config, parse_overrides(overrides or ()), **options)
    if settings.model == DEMO:
        settings = settings.model_copy(update={"model": str(DEMO_JUDGE)})
    check_folder(settings.model)
    if is_main():
        typer.echo(f"starting from {settings.model}; loading torch and transformers takes a while", err=True)
    return settings


def report_run(final: Path, settings: TrainConfig) -> None:
    """Print, once, where a run's result is. End with the watchdog's exit status if the run learnt nothing, unless its policy is
    to warn."""
    from rewardlab.training.run.watchdog import read_outcome

    echo_once(f"written: {final}; metrics.jsonl and run.json beside it (curves: rewardlab show {final.parent})")
    if why := read_outcome(final.parent):
        echo_once(why)
        if settings.health.policy != "warn":
            raise typer.Exit(ExitCode.HEALTH)


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options that all stages share."""

    data: Annotated[Path, typer.Option("--data", help=f"Pairs: {PAIR_FILES}.")]
    out: Out
    overrides: Overrides = None
    config: ConfigFile = None
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder, hub id or `demo` to start from.")] = None
    images: Images = None
    allow: Allow = None

    def settings(self, schema: type[Config], **options: Any) -> Config:
        """Return the config of the run; ``options`` are keys of it that other options set. Raise as :func:`train_config`."""
        return train_config(schema, self.config, self.overrides, model=self.model, **options)

    def pairs(self, settings: TrainConfig) -> Sequence[PreferencePair]:
        """Return the pairs of the run. Raise ConfigError for a finished run before any pair is read."""
        from rewardlab.training.run.folder import refuse_finished
        from rewardlab.training.run.inputs import pairs_of

        refuse_finished(self.out)
        allowed = allowances(self.allow)
        return pairs_of(self.data, settings.frames, settings.model, images=self.images, **allowed)


@dataclass(frozen=True, kw_only=True)
class SFTOptions(TrainOptions):
    data: Annotated[
        Path, typer.Option("--data", help=f"Distilled pairs, or labelled pairs with template=verdict: {PAIR_FILES}.")
    ]
    verify_votes: Annotated[
        Optional[Path],
        typer.Option(
            "--verify-votes",
            help="votes.jsonl of `bench run pairs` on the same --data: also teaches the judge to verify its votes.",
        ),
    ] = None


@command(app, "sft", rich_help_panel=TRAINING)
def sft_command(options: SFTOptions) -> None:
    """Train a judge on distilled judgments (cold start). Writes `OUT/final`; the same command resumes an interrupted run.

    `rewardlab sft --data runs/distill/distilled.parquet --out runs/sft --config qwen2_5_vl_7b learning_rate=2e-5`

    With `template: verdict` in the config it trains a classifier instead: labels only, each pair in both orders, loss on the
    verdict token. `hf:OUT/final` is then a judge that answers with probabilities.
    """
    from rewardlab.config import SFTConfig
    from rewardlab.data.votes import require_same_run
    from rewardlab.prompts import load_template

    settings = options.settings(SFTConfig)
    from rewardlab.training.sft import train_sft

    if options.verify_votes:  # before the pairs are read, which takes a while
        require_same_run(options.verify_votes, options.data, template=load_template(settings.template).hash)
    report_run(train_sft(options.pairs(settings), settings, options.out, votes=options.verify_votes), settings)


@dataclass(frozen=True, kw_only=True)
class DPOOptions(TrainOptions):
    model: Annotated[Optional[str], typer.Option("--model", help="SFT checkpoint folder to start from.")] = None
    votes: Annotated[
        Optional[Path], typer.Option("--votes", help="votes.jsonl of `bench run pairs` on the same --data, by the same judge.")
    ] = None
    judgments: Annotated[
        Optional[Path],
        typer.Option("--judgments", help="JSON lines of pair_id, order, chosen and rejected: pairs of judgments of your own."),
    ] = None


@command(app, "dpo", rich_help_panel=TRAINING)
def dpo_command(options: DPOOptions) -> None:
    """Train a judge to prefer right judgments to wrong ones of the same pair and order (DPO, SimPO, MPO).

    Votes of the judge itself make the comparisons; sample them first:
    `rewardlab bench run pairs --data train.parquet --judge hf:runs/sft/final --votes 8 --out runs/votes`, then
    `rewardlab dpo --data train.parquet --votes runs/votes/votes.jsonl --out runs/dpo --config dpo model=runs/sft/final`.
    Writes `OUT/final`; the same command resumes an interrupted run.
    """
    from rewardlab.config import DPOConfig
    from rewardlab.data.votes import require_same_run
    from rewardlab.models.checkpoints import load_template_for

    settings = options.settings(DPOConfig)
    from rewardlab.training.dpo import require_one_source, train_dpo

    require_one_source(options.votes, options.judgments)  # as below, before the pairs are read, which takes a while
    template = load_template_for(settings.model, settings.template)
    if options.votes:
        require_same_run(options.votes, options.data, template=template.hash)
    final = train_dpo(options.pairs(settings), settings, options.out, votes=options.votes, judgments=options.judgments)
    report_run(final, settings)


@dataclass(frozen=True, kw_only=True)
class RLOptions(TrainOptions):
    data: Annotated[
        Path, typer.Option("--data", help=f"Distilled pairs (only the hard ones are used), or labelled pairs: {PAIR_FILES}.")
    ]
    model: Annotated[Optional[str], typer.Option("--model", help="SFT checkpoint folder to start from.")] = None


@command(app, "rl", rich_help_panel=TRAINING)
def rl_command(options: RLOptions) -> None:
    """Train a judge by reinforcement learning on the hard pairs, with StableReinforce or a method of `configs/rl/`.

    Hard pairs are those that the teacher did not get right at the first attempt; without a teacher, all labelled pairs are
    used. Writes `OUT/final`; the same command resumes an interrupted run. `rewardlab rl --data runs/distill/distilled.parquet
    --out runs/rl --config stable_reinforce model=runs/sft/final consistency.weight=0`
    """
    from rewardlab.config import RLConfig
    from rewardlab.models.checkpoints import load_template_for

    settings = options.settings(RLConfig)
    from rewardlab.training.rl import train_rl

    load_template_for(settings.model, settings.template)  # a template other than the judge's is refused before pairs are read
    report_run(train_rl(options.pairs(settings), settings, options.out), settings)


@dataclass(frozen=True, kw_only=True)
class RMOptions(TrainOptions):
    data: Annotated[Path, typer.Option("--data", help=f"Labelled pairs; no teacher is needed: {PAIR_FILES}.")]


@command(app, "rm", rich_help_panel=TRAINING)
def rm_command(options: RMOptions) -> None:
    """Train a reward model (Bradley-Terry): a number for each response, given its question and images.

    By default each response is scored alone. With `template=plain` (or another one of pairs) or `template=ordering` (lists;
    pairs with the column `others`) all are scored in one pass, and with `explain_weight=1` the model also learns the pairs'
    judgments: it answers at once as `--judge head:OUT/final`, and explains as `--judge hf:OUT/final`.

    Writes `OUT/final`; the same command resumes an interrupted run.
    """
    from rewardlab.config import RMConfig

    settings = options.settings(RMConfig)
    from rewardlab.training.reward_model import train_reward_model

    report_run(train_reward_model(options.pairs(settings), settings, options.out), settings)


@app.command("score", rich_help_panel=JUDGING)
def score_command(
    data: Annotated[Path, typer.Option("--data", help=f"Pairs: {PAIR_FILES}.")],
    model: Annotated[Path, typer.Option("--model", help="The scalar reward model: OUT/final of `rewardlab rm`.")],
    out: Annotated[Path, typer.Option("--out", help="JSON lines to write, for `bench run pairs --judge replay:FILE`.")],
    images: Images = None,
    allow: Allow = None,
) -> None:
    """Score both responses of every pair with a scalar reward model, one line per pair: `{"row": 0, "scores": [0.3, 0.7]}`."""
    from rewardlab.data.rows import FRAMES
    from rewardlab.training.reward_model import write_scores
    from rewardlab.training.run.inputs import pairs_of

    pairs = pairs_of(data, FRAMES, str(model), images=images, **allowances(allow))
    typer.echo(f"{write_scores(model, pairs, out)} pairs scored: {out}")


@dataclass(frozen=True, kw_only=True)
class PRMOptions(TrainOptions):
    data: Annotated[Path, typer.Option("--data", help=f"The pairs that `rewardlab steps` labelled: {PAIR_FILES}.")]
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder to start from: the judge's.")] = None
    steps: Annotated[Path, typer.Option("--steps", help="steps.jsonl of `rewardlab steps`.")]


@command(app, "prm", rich_help_panel=TRAINING)
def prm_command(options: PRMOptions) -> None:
    """Train a process reward model on step labels; `rewardlab rl` takes `OUT/final` as `process_reward` and `value_init`.

    The same command resumes an interrupted run.
    """
    from rewardlab.config import PRMConfig
    from rewardlab.distill.step_labels import read_steps

    settings = options.settings(PRMConfig)
    from rewardlab.training.prm import train_prm

    report_run(train_prm(options.pairs(settings), read_steps(options.steps), settings, options.out), settings)


@dataclass(frozen=True, kw_only=True)
class PolicyOptions(TrainOptions):
    data: Annotated[Path, typer.Option("--data", help=f"Questions with images, in the format of pairs: {PAIR_FILES}.")]
    model: Annotated[Optional[str], typer.Option("--model", help="Checkpoint folder or hub id of the policy.")] = None
    judge: Annotated[Optional[str], typer.Option("--judge", help=f"{spec_help('rm')}.")] = None


@command(app, "policy", rich_help_panel=TRAINING)
def policy_command(options: PolicyOptions) -> None:
    """Train a policy with a judge as its reward: the probability, over both orders, that a response beats an anchor.

    The anchor (`anchor` in the config) is the pair's preferred response, the initial policy's greedy response or the best of
    several samples of it (made for all of DATA before training, in OUT/anchors.jsonl), or the other responses of the group.
    The method's keys are those of `rewardlab rl`; `rewardlab configs keys policy` lists what a policy takes. Compare `reward`
    with a ground truth of your own: policies learn to hack judges. The same command resumes an interrupted run.

    With `verified=true` rules reward the pairs that they can check (numbers, choices, programs with tests, constraints, ...),
    with `judge=null` too all of them.
    """
    from rewardlab.config import PolicyConfig

    settings = options.settings(PolicyConfig, judge=options.judge)
    from rewardlab.training.policy import train_policy

    report_run(train_policy(options.pairs(settings), settings, options.out), settings)


@app.command("merge", rich_help_panel=TRAINING)
def merge_command(
    folders: Annotated[
        list[Path],
        typer.Argument(help="Folder of a LoRA adapter, two or more checkpoint folders, or with --last the folder of a run."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Checkpoint folder to write.")],
    dtype: Annotated[
        str, typer.Option("--dtype", help="Dtype of the new weights: bfloat16, float32, or auto (that of the model's weights).")
    ] = "auto",
    last: Annotated[Optional[int], typer.Option("--last", min=2, help="Average the last checkpoints of a run.")] = None,
) -> None:
    """Merge a LoRA adapter into its base model, or average the weights of checkpoints.

    `rewardlab merge runs/rl/final --out runs/merged` writes a full checkpoint, for servers that do not load adapters.
    `rewardlab merge runs/rl --last 3 --out runs/mean` averages the last three checkpoints of a finished run, and
    `rewardlab merge runs/seed0/final runs/seed1/final --out runs/soup` named ones (a model soup, arXiv 2203.05482). They must
    have the same architecture, tokenizer, processor and prompt template. Sums are in float32 and rounded once.
    """
    from rewardlab.models.averaging import average_checkpoints
    from rewardlab.models.loading import merge_adapter
    from rewardlab.training.run.folder import last_checkpoints

    if dtype not in ("auto", "bfloat16", "float32"):
        raise ConfigError(f"--dtype {dtype}: expected auto, bfloat16 or float32")
    if last is not None:
        if len(folders) > 1:
            raise ConfigError(f"--last {last}: expected one run folder, got {len(folders)}")
        folders = last_checkpoints(folders[0], last)
    if len(folders) > 1:
        average_checkpoints(folders, out, dtype=dtype)
    else:
        merge_adapter(folders[0], out, dtype=dtype)
    typer.echo(f"written: {out}")


@app.command("show", rich_help_panel=TRAINING)
def show_command(
    run: Annotated[Path, typer.Argument(help="Folder of a training run, finished or not.")],
    data: Annotated[
        Optional[Path],
        typer.Option("--data", help="The training pairs, if they have moved; their questions and images are shown."),
    ] = None,
    images: Images = None,
) -> None:
    """Write RUN/run.html: curves of all logged metrics, rollouts over time with their images, and the watchdog's alerts."""
    from rewardlab.health.run_page import write_run_page

    typer.echo(f"written: {write_run_page(run, data=data, images=images)}")
