"""`rewardlab data negatives` and `data harden`: hard negatives from a policy's answers, and from attacks."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import closing
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rewardlab.cli.commands import command
from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import AllowColumns, BatchSize, Data, Images, Out, RandomSeed, columns_of, data_app
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.spec import JudgeSpec, spec_help

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rewardlab.curation.policy_negatives import PaidAnswer, Readers
    from rewardlab.rewards.verified import Rightness
    from rewardlab.types import PreferencePair


@dataclass(frozen=True)
class NegativesOptions:
    """The answers, how they are judged and how a wrong one is known."""

    data: Data
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
    judge: Annotated[Optional[str], typer.Option("--judge", help=f"The judge that rewards the answers. {spec_help()}.")] = None
    answers: Annotated[
        Optional[Path],
        typer.Option(
            "--answers",
            help="Log of rewarded answers to use instead of --policy and --judge, such as samples.jsonl of `rewardlab policy`.",
        ),
    ] = None
    number: Annotated[int, typer.Option("--number", min=1, help="Number of questions; each gets one answer.")] = 1000
    temperature: Annotated[
        float, typer.Option("--temperature", min=0.0, help="Sampling temperature; above 1 gives unusual answers.")
    ] = 1.0
    least_reward: Annotated[
        float, typer.Option("--least-reward", help="Minimum reward (0 to 1) of a wrong answer to become a negative.")
    ] = 0.25
    template: Annotated[str, typer.Option("--template", help="Prompt template of a question to the policy.")] = "answer"
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Maximum tokens per answer.")] = 1024
    judge_max_tokens: Annotated[int, typer.Option("--judge-max-tokens", min=1, help="Maximum tokens per judgment.")] = 1024
    contract: Annotated[
        str, typer.Option("--contract", help="Where --truth rules finds an answer's result: boxed, box or answer.")
    ] = "boxed"
    frames: Annotated[int, typer.Option("--frames", min=1, help="Frames per video, if the policy's family has no default.")] = 8
    batch_size: BatchSize = 64
    seed: RandomSeed = 0
    images: Images = None
    allow: AllowColumns = None

    def check(self) -> None:
        """Raise ConfigError for options that contradict each other."""
        if (self.policy is None) == (self.answers is None) or (self.policy is None) != (self.judge is None):
            raise ConfigError("give either --policy and --judge, or --answers FILE with a log of answers")
        if not 0 <= self.least_reward <= 1:
            raise ConfigError(f"--least-reward {self.least_reward:g}: expected a number from 0 to 1, as rewards are")


@command(data_app, "negatives")
def data_negatives(options: NegativesOptions) -> None:
    """Find wrong answers of a policy that a judge rewards highly, and turn them into hard negatives.

    A negative is a pair of the wrong answer and the preferred response. Samples are kept in OUT/answers.jsonl, so the same
    command resumes; OUT/policy.json counts right and wrong answers. Answers that may be right or wrong are written to
    OUT/to_label.jsonl: fill in `right`, and give the file as `--truth file:OUT/to_label.jsonl`. Re-running in the same folder
    never overwrites what you have filled in.

    `rewardlab data negatives pairs.parquet --policy runs/policy/final --judge prob:runs/rl/final --truth exact --out
    runs/negatives` writes OUT/negatives.parquet, for `rewardlab rl`. **Exit status 1** if there is none; that of an earlier run
    is deleted.
    """
    from rewardlab.curation.answer_files import TO_LABEL, label_row, logged_answers, write_labels
    from rewardlab.curation.policy_negatives import (
        NEGATIVES,
        POLICY,
        NegativeCounts,
        policy_result,
        readers_of,
        wrong_and_paid,
    )
    from rewardlab.data.files import write_atomic
    from rewardlab.data.pairs import write_parquet
    from rewardlab.metrics.intervals import wilson_interval
    from rewardlab.training.run.inputs import pairs_of

    options.check()
    known, out = _rightness(options), options.out
    columns = columns_of(options.allow)
    pairs = pairs_of(options.data, options.frames, options.policy or "", images=options.images, allow_columns=columns)
    readers = readers_of(pairs)
    if len(readers) < len(pairs):
        raise DataError(f"{options.data}: some pairs share a pair_id, but answers are matched by it; give each pair its own")
    left_out: Counter[str] | None = None
    if options.answers:
        paid = list(logged_answers(options.answers))
    else:
        paid, left_out = _sample(options, pairs)
    # All of a policy's answers count; of those in a log the ones that the judge could compare.
    rightness = known or _teacher(options, readers, [each for each in paid if options.policy or each.reward is not None])
    counts, unknown = NegativeCounts(), list[dict[str, Any]]()
    made = []
    for answer, negative in wrong_and_paid(readers, paid, rightness, counts, least_reward=options.least_reward):
        if negative is None:
            reader = readers[answer.pair_id]
            assert reader is not None  # an answer to a pair without a label has no rightness to ask for
            unknown.append(label_row(answer, reader()))
        else:
            made.append(negative)
    out.mkdir(parents=True, exist_ok=True)
    to_label = out / TO_LABEL
    unlabelled = write_labels(unknown, to_label) if unknown else 0
    typer.echo(counts.sentence(options.least_reward))
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


def _sample(options: NegativesOptions, pairs: Sequence[PreferencePair]) -> tuple[list[PaidAnswer], Counter[str]]:
    """Return the policy's paid answers, and how many were left out, which is printed."""
    from rewardlab.curation.policy_negatives import AnswerSettings, sample_answers
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.prompts import load_template
    from rewardlab.samplers.hf import HFSampler

    assert options.policy is not None
    assert options.judge is not None
    judge = open_generative_judge(options.judge, max_tokens=options.judge_max_tokens, batch_size=options.batch_size)
    judge.check()
    policy = HFSampler.load(Path(options.policy), batch_size=options.batch_size)
    settings = AnswerSettings(options.number, options.temperature, options.max_tokens, options.seed)
    paid, left_out = sample_answers(pairs, policy, load_template(options.template), judge, options.out, settings)
    typer.echo(
        f"{len(paid) + left_out.total():,} questions: {left_out['unfinished']:,} answers not finished or empty, "
        f"{left_out['with_images']:,} questions with responses that are images, left out"
    )
    return paid, left_out


def _teacher(options: NegativesOptions, readers: Readers, answers: Sequence[PaidAnswer]) -> Rightness:
    """Query the teacher that ``--truth judge:SPEC`` names for the answers that are paid enough."""
    from rewardlab.curation.policy_negatives import ask_teacher
    from rewardlab.judging.engines import open_generative_judge

    spec = options.truth.removeprefix("judge:")
    teacher = open_generative_judge(spec, max_tokens=options.judge_max_tokens, batch_size=options.batch_size)
    teacher.check()
    labelled = {name: read for name, read in readers.items() if read is not None}
    enough = [paid for paid in answers if (paid.reward or 0) >= options.least_reward and paid.answer.strip()]
    return ask_teacher(labelled, enough, teacher, options.out, seed=options.seed)


def _rightness(options: NegativesOptions) -> Rightness | None:
    """Return what ``--truth`` names; None for a teacher, which is queried later. Raise ConfigError for anything else."""
    import atexit

    from rewardlab.curation.answer_files import by_labels
    from rewardlab.rewards.verifiable.extraction import Contract
    from rewardlab.rewards.verifiable.mathematics import MathVerifier, all_verifiers
    from rewardlab.rewards.verified import by_rules, exactly

    truth, contract = options.truth, options.contract
    kind, _, rest = truth.partition(":")
    if truth == "exact":
        return exactly
    if truth == "rules":
        if contract not in set(Contract):
            raise ConfigError(f"--contract {contract}: expected one of {', '.join(Contract)}")
        math = MathVerifier()
        atexit.register(math.close)
        return by_rules(all_verifiers(math), Contract(contract))
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
