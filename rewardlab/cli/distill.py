"""Data that a judge learns from: `distill`, `select`, `self-distil`, `steps`, `data negatives`, `data harden`, and `harden`."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer
from rich.console import Console

from rewardlab.cli.commands import check_line, command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import (
    CONFIG_HELP,
    DATA,
    PAIR_FILES,
    TRAINING,
    Allow,
    AllowColumns,
    Config,
    ConfigFile,
    Data,
    Images,
    JudgeKeys,
    JudgeOption,
    Out,
    Overrides,
    RandomSeed,
    Seed,
    app,
    columns_of,
    data_app,
    judge_of_votes,
    read_config,
    read_config_and_judge,
)
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.spec import JudgeSpec, spec_help

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rewardlab.config import NegativesConfig
    from rewardlab.curation.policy_negatives import PaidAnswer, Readers
    from rewardlab.judging.judge import GenerativeJudge
    from rewardlab.rewards.verified import Rightness
    from rewardlab.types import PreferencePair


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


@command(app, "distill", rich_help_panel=DATA)
def distill_command(options: Distill) -> None:
    """Distill a teacher: request reasoned judgments, keep those that agree with the label, tag each pair's difficulty.

    `journal.sqlite` records every request: after an interruption, run the same command again. Keys of the config:
    `base_url=URL` or `[URL,URL]` of the teacher, `budget.usd=500`, `votes=4` judgments of each pair (half in each order),
    `transport=batch` for the provider's batch API, `ray.workers=8` to send requests from Ray actors (--data is then a folder of
    Parquet shards); prices: see `configs/distill/`.
    """
    from rewardlab.config import DistillConfig
    from rewardlab.data.pairs import PairSet
    from rewardlab.data.set_checks import CHECKS
    from rewardlab.distill.pipeline import distill

    data, out, allowed = options.data, options.out, columns_of(options.allow, CHECKS)
    settings = read_config(DistillConfig, options.overrides, options.config)
    if settings.ray is not None:
        from rewardlab.distill.ray_transport import distill_on_ray

        if options.limit is not None or options.images is not None:
            raise ConfigError("ray needs shards with embedded media, and uses all of them; leave out --limit and --images")
        statistics = distill_on_ray(data, settings, out, allow=allowed)
    else:
        pairs = PairSet(data, images=options.images, frames=None, limit=options.limit, allow_columns=allowed)
        statistics = distill(pairs, settings, out, allow=allowed)
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
class JudgedPairs:
    """Options of `self-distil` and `steps`."""

    data: Annotated[Path, typer.Option("--data", help=f"Labelled pairs: {PAIR_FILES}.")]
    judge: JudgeOption
    out: Out
    overrides: JudgeKeys = None
    images: Images = None
    allow: Allow = None
    limit: Annotated[Optional[int], typer.Option("--limit", min=1, help="Only the first N pairs.")] = None
    seed: Seed = None

    def open(self, schema: type[Config]) -> tuple[list[PreferencePair], Config, GenerativeJudge, tuple[str, ...]]:
        """Return the pairs, the stage's config, the judge, and what ``--allow`` lists."""
        from rewardlab.data.pairs import read_pairs
        from rewardlab.data.set_checks import CHECKS
        from rewardlab.judging.engines import open_generative_judge
        from rewardlab.judging.spec import judge_video_policy

        config, judge = read_config_and_judge(schema, self.judge, self.overrides, seed=self.seed)
        policy, allowed = judge_video_policy(judge.judge), columns_of(self.allow, CHECKS)
        pairs = read_pairs(self.data, images=self.images, policy=policy, allow_columns=allowed)
        return pairs[: self.limit], config, open_generative_judge(judge), allowed


@command(app, "self-distil", rich_help_panel=DATA)
def self_distill_command(options: JudgedPairs) -> None:
    """Collect a judge's right judgments as training data, without a teacher (rejection sampling; FIRE makes them diverse).

    Judgments of a pair are kept only if the judge is right more often than by guessing. KEY=VALUE sets keys of the judge, and
    of the stage: `samples=8 keep=1 alpha=0.05 hot_token=2` (`rewardlab configs keys self-distil`). The same command resumes a
    killed run.
    """
    from rewardlab.config import SelfDistilConfig
    from rewardlab.distill.self_distill import self_distill, set_hot_token

    pairs, config, judge, allowed = options.open(SelfDistilConfig)
    if config.hot_token is not None:
        set_hot_token(judge, config.hot_token)
    Console().print_json(data=self_distill(pairs, judge, config, options.out, allow=allowed))
    typer.echo(f"written: {options.out}/distilled.parquet, statistics.json", err=True)


@command(app, "steps", rich_help_panel=DATA)
def steps_command(options: JudgedPairs) -> None:
    """Label the steps of judgments for `rewardlab prm`: +1 before the step at which the reasoning goes wrong, -1 from there on.

    A prefix is good if 15 of 20 completions of it are right, which guessing achieves once in 48 times; bisection finds the
    first bad one. Pairs on which the judge only guesses stay unlabelled. Labels: `OUT/steps.jsonl`. KEY=VALUE sets keys of the
    judge, and of the stage: `source=pairs` labels the judgments in --data (`rewardlab configs keys steps`). The same command
    resumes a killed run.
    """
    from rewardlab.config import StepsConfig
    from rewardlab.distill.step_labels import label_steps

    pairs, config, judge, allowed = options.open(StepsConfig)
    Console().print_json(data=label_steps(pairs, config, judge, options.out, allow=allowed))
    typer.echo(f"written: {options.out}/steps.jsonl", err=True)


@dataclass(frozen=True, kw_only=True)
class NegativesOptions:
    """The answers, how they are judged and how a wrong one is known."""

    data: Data
    overrides: Overrides = None
    out: Out
    truth: Annotated[
        str,
        typer.Option(
            "--truth",
            help="How wrong answers are detected: exact (the preferred response is the only right one), rules (the rule of the "
            "pair's category), judge:SPEC (a teacher, unanimous over both orders) or file:PATH (filled-in lines of "
            "OUT/to_label.jsonl).",
        ),
    ]
    policy: Annotated[Optional[str], typer.Option("--policy", help="Checkpoint of the policy that answers.")] = None
    judge: Annotated[
        Optional[str],
        typer.Option("--judge", help=f"Judge that rewards the answers: a YAML of its keys, or {spec_help()}."),
    ] = None
    answers: Annotated[
        Optional[Path],
        typer.Option(
            "--answers",
            help="Log of rewarded answers to use instead of --policy and --judge, such as samples.jsonl of `rewardlab policy`.",
        ),
    ] = None
    seed: Seed = None
    images: Images = None
    allow: AllowColumns = None

    def check(self) -> None:
        """Raise ConfigError for options that contradict each other."""
        if (self.policy is None) == (self.answers is None) or (self.policy is None) != (self.judge is None):
            raise ConfigError("give either --policy and --judge, or --answers FILE with a log of answers")


@command(data_app, "negatives")
def data_negatives(options: NegativesOptions) -> None:
    """Find wrong answers of a policy that a judge rewards highly, and turn them into hard negatives.

    A negative is a pair of the wrong answer and the preferred response. Samples are kept in OUT/answers.jsonl, so the same
    command resumes; OUT/policy.json counts right and wrong answers. Answers that may be right or wrong are written to
    OUT/to_label.jsonl: fill in `right`, and give the file as `--truth file:OUT/to_label.jsonl`. Re-running in the same folder
    never overwrites what you have filled in. Keys without prefix are the policy's, `judge.KEY=VALUE` the judge's and
    `teacher.KEY=VALUE` those of `--truth judge:SPEC`: `max_tokens=512 judge.max_tokens=64`.

    `rewardlab data negatives pairs.parquet --policy runs/policy/final --judge prob:runs/rl/final --truth exact --out
    runs/negatives` writes OUT/negatives.parquet, for `rewardlab rl`. **Exit status 1** if there is none; that of an earlier run
    is deleted.
    """
    from rewardlab.config import NegativesConfig
    from rewardlab.curation.policy_negatives import (
        NEGATIVES,
        POLICY,
        TO_LABEL,
        NegativeCounts,
        label_row,
        logged_answers,
        policy_result,
        readers_of,
        write_labels,
        wrong_and_paid,
    )
    from rewardlab.data.files import write_atomic
    from rewardlab.data.pairs import write_parquet
    from rewardlab.metrics.intervals import wilson_interval
    from rewardlab.rewards.verifiable.extraction import Contract
    from rewardlab.rewards.verifiable.hybrid import all_verifiers
    from rewardlab.rewards.verified import check_truths
    from rewardlab.training.run.inputs import pairs_of

    options.check()
    config = read_config(NegativesConfig, options.overrides, seed=options.seed)
    for name, is_queried in (("judge", options.judge is not None), ("teacher", options.truth.startswith("judge:"))):
        if getattr(config, name).model_fields_set and not is_queried:
            raise ConfigError(f"{name}: keys of a judge that is not queried; leave them out")
    known, out = _rightness(options.truth, config.contract), options.out
    columns = columns_of(options.allow)
    pairs = pairs_of(options.data, config.frames, options.policy or "", images=options.images, allow_columns=columns)
    if options.truth == "rules":
        check_truths(pairs, all_verifiers(), Contract(config.contract), own_only=True)
    readers = readers_of(pairs)
    if len(readers) < len(pairs):
        raise DataError(f"{options.data}: some pairs share a pair_id, but answers are matched by it; give each pair its own")
    left_out: Counter[str] | None = None
    if options.answers:
        paid = list(logged_answers(options.answers))
    else:
        paid, left_out = _sample(options, config, pairs)
    # All of a policy's answers count; of those in a log the ones that the judge could compare.
    rightness = known or _teacher(
        options, config, readers, [each for each in paid if options.policy or each.reward is not None]
    )
    counts, unknown = NegativeCounts(), list[dict[str, Any]]()
    made = []
    for answer, negative in wrong_and_paid(readers, paid, rightness, counts, least_reward=config.least_reward):
        if negative is None:
            reader = readers[answer.pair_id]
            assert reader is not None  # an answer to a pair without a label has no rightness to ask for
            unknown.append(label_row(answer, reader()))
        else:
            made.append(negative)
    out.mkdir(parents=True, exist_ok=True)
    to_label = out / TO_LABEL
    unlabelled = write_labels(unknown, to_label) if unknown else 0
    typer.echo(counts.sentence(config.least_reward))
    if left_out is not None:
        result = policy_result(readers, paid, left_out["unfinished"], rightness)
        write_atomic(out / POLICY, json.dumps(asdict(result), indent=1) + "\n")
        if (share := result.share_right) is not None:
            low, high = wilson_interval(result.right, result.questions)
            rest = f"; {result.unknown:,} are not known" if result.unknown else ""
            interval = f"[{100 * low:.1f}, {100 * high:.1f}] (Wilson, 95 %)"
            typer.echo(f"the policy: {100 * share:.1f} % of its answers are known to be right {interval}{rest}")
    if unknown:
        typer.echo(f"written: {to_label}; lines without a label: {unlabelled:,}; fill in `right`, then --truth file:{to_label}")
    if not made:
        (out / NEGATIVES).unlink(missing_ok=True)  # of an earlier run: `rewardlab rl` would take it for this one's
        typer.echo("no negative: no wrong answer has a reward this high", err=True)
        raise typer.Exit(ExitCode.FINDING)
    write_parquet(made, out / NEGATIVES)
    typer.echo(f"written: {out / NEGATIVES}, {len(made):,} negatives")


def _sample(
    options: NegativesOptions, config: NegativesConfig, pairs: Sequence[PreferencePair]
) -> tuple[list[PaidAnswer], Counter[str]]:
    """Return the policy's paid answers, and how many were left out, which is printed."""
    from rewardlab.curation.policy_negatives import sample_answers
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.prompts import load_template
    from rewardlab.samplers.hf import HFSampler

    assert options.policy is not None
    assert options.judge is not None
    judge = open_generative_judge(judge_of_votes(options.judge, config.judge.model_dump(exclude_unset=True)))
    judge.check()
    policy = HFSampler.load(Path(options.policy), batch_size=config.batch_size)
    paid, left_out = sample_answers(pairs, policy, load_template(config.template), judge, options.out, config)
    typer.echo(
        f"{len(paid) + left_out.total():,} questions: {left_out['unfinished']:,} answers not finished or empty, "
        f"{left_out['with_images']:,} questions with responses that are images, left out"
    )
    return paid, left_out


def _teacher(options: NegativesOptions, config: NegativesConfig, readers: Readers, answers: Sequence[PaidAnswer]) -> Rightness:
    """Query the teacher that ``--truth judge:SPEC`` names for the answers that are paid enough."""
    from rewardlab.curation.policy_negatives import ask_teacher
    from rewardlab.judging.engines import open_generative_judge

    spec = options.truth.removeprefix("judge:")
    teacher = open_generative_judge(judge_of_votes(spec, config.teacher.model_dump(exclude_unset=True)))
    teacher.check()
    labelled = {name: read for name, read in readers.items() if read is not None}
    enough = [paid for paid in answers if (paid.reward or 0) >= config.least_reward and paid.answer.strip()]
    return ask_teacher(labelled, enough, teacher, options.out, seed=config.seed)


def _rightness(truth: str, contract: str) -> Rightness | None:
    """Return what ``--truth`` names; None for a teacher, which is queried later. Raise ConfigError for anything else."""
    from rewardlab.curation.policy_negatives import by_labels
    from rewardlab.rewards.verifiable.extraction import Contract
    from rewardlab.rewards.verifiable.hybrid import all_verifiers
    from rewardlab.rewards.verified import by_rules, exactly

    kind, _, rest = truth.partition(":")
    if truth == "exact":
        return exactly
    if truth == "rules":
        return by_rules(all_verifiers(), Contract(contract))
    if kind == "judge" and rest:
        JudgeSpec.parse(rest)
        return None
    if kind == "file" and rest:
        if not Path(rest).is_file():
            raise ConfigError(f"--truth {truth}: there is no such file")
        return by_labels(Path(rest))
    raise ConfigError(f"--truth {truth}: expected exact, rules, judge:SPEC or file:PATH")


@dataclass(frozen=True)
class HardenOptions:
    """A labelled set and the attacks on it."""

    data: Data
    out: Out
    ratio: Annotated[float, typer.Option("--ratio", min=0.0, help="Negatives for each pair of the set, on average.")] = 0.5
    families: Annotated[
        str,
        typer.Option(
            "--families",
            help="Families or kinds of attacks, comma-separated, such as degenerate,order; default: all training families.",
        ),
    ] = ""
    template: Annotated[
        str,
        typer.Option(
            "--template",
            help="Prompt template of the judge; judgments of degenerate responses name the defect in its format. none: no such "
            "judgments.",
        ),
    ] = "r1_reward"
    seed: RandomSeed = 0
    images: Images = None
    allow: AllowColumns = None


@command(data_app, "harden")
def data_harden(options: HardenOptions) -> None:
    """Add hard negatives to a labelled set: a judge learns from them to resist degenerate and hostile responses.

    Each pair is followed by its negatives, whose label is known. An empty, one-word, looping or refusing response
    loses. A forged verdict, an instruction or harmless words in either response do not change the label, nor does JPEG
    compression of the image: the pair's own judgment (of `rewardlab distill`) stays true and is kept. For a degenerate response
    a judgment names the defect. Negatives of pairs without a judgment or tag have none either. Families that `bench run` holds
    out are not used.

    `rewardlab data harden runs/distill/distilled.parquet --template plain --out runs/hardened` writes Parquet shards.
    `rewardlab sft --data runs/hardened` trains on their judgments, `rewardlab rl` on their labels; pairs without judgments
    are for RL only. An interrupted command starts over. **Exit status 1** if no negative could be made.
    """
    from rewardlab.curation.harden import HardenCounts, HardenSettings, harden
    from rewardlab.data.pairs import stream_pairs, write_shards
    from rewardlab.prompts import load_template
    from rewardlab.reporting.progress import bar

    settings = HardenSettings(
        ratio=options.ratio,
        seed=options.seed,
        families=tuple(name for name in options.families.split(",") if name),
        verdict_format="" if options.template == "none" else load_template(options.template).verdict_format,
    )
    counts, columns = HardenCounts(), columns_of(options.allow)
    with (
        closing(stream_pairs(options.data, images=options.images, frames=None, allow_columns=columns)) as pairs,
        bar("harden", None) as advance,
    ):

        def counted() -> Iterator[PreferencePair]:
            for pair in pairs:
                advance()
                yield pair

        for _ in write_shards(harden(counted(), settings, counts), options.out):
            pass
    for group, number in sorted(counts.groups.items()):
        typer.echo(f"{group}: {number:,}")
    unlabelled = f"; {counts.unlabelled:,} pairs without a label stay as they are" if counts.unlabelled else ""
    made = f"{counts.negatives:,} negatives, {counts.judged:,} of them with a judgment"
    typer.echo(f"{counts.pairs:,} pairs and {made}, in {options.out}{unlabelled}")
    if counts.negatives and not counts.judged:
        typer.echo(
            "no negative has a judgment: for `rewardlab rl`; `rewardlab sft` learns judgments, which `rewardlab distill` makes"
        )
    if not counts.negatives:
        typer.echo("no negative could be made: the pairs have no labels, or no family applies to them", err=True)
        raise typer.Exit(ExitCode.FINDING)


@app.command("harden", rich_help_panel=TRAINING)
def harden_command(
    out: Out,
    overrides: Overrides = None,
    config: Annotated[str, typer.Option("--config", help=CONFIG_HELP)] = "harden/loop",
) -> None:
    """Alternately train a policy with a judge as its reward, and the judge on the policy's wrong answers.

    A round: the policy learns (`rewardlab policy`); its wrong answers with a high reward become hard negatives (`rewardlab data
    negatives`); the judge learns from them, mixed with pairs of the set (`rewardlab rl`); a benchmark compares it with the old
    one (`rewardlab bench run`), which it replaces unless it is worse beyond noise. The next round starts from the latest
    checkpoint of the policy that is as good as the best. OUT/index.html shows the rounds. The same command resumes an
    interrupted run.

    `rewardlab harden data=pairs.parquet held_out=held_out.parquet policy=POLICY judge=runs/rl/final truth=exact --out
    runs/harden`. `rewardlab configs keys harden` lists the keys; the command lines of the stages are keys as well.
    """
    from rewardlab.config import load_config, parse_overrides
    from rewardlab.config.pipeline import HardenConfig
    from rewardlab.pipelines.hardening import PAGE, run_loop, values_of
    from rewardlab.pipelines.runner import fill_stages

    settings = load_config(HardenConfig, config, parse_overrides(overrides or ()))
    for stage in fill_stages(settings.stages, values_of(settings)):
        check_line(app, stage.words)
    last = run_loop(settings, out)
    policy = folder if (folder := out / last.next_policy).is_dir() else last.next_policy
    typer.echo(f"written: {out / PAGE}\njudge: {out / last.next_judge}\npolicy: {policy}")
