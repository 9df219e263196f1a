"""`rewardlab data negatives`: hard negatives from what a policy says."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Optional

import typer

from rewardlab.cli.exit_codes import ExitCode
from rewardlab.cli.options import AllowColumns, BatchSize, Data, Images, Out, RandomSeed, columns_of, data_app
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.spec import JudgeSpec, spec_help

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from rewardlab.curation.policy_negatives import PaidAnswer
    from rewardlab.rewards.verified import Rightness
    from rewardlab.types import PreferencePair


@data_app.command("negatives")
def data_negatives(
    data: Data,
    out: Out,
    truth: Annotated[
        str,
        typer.Option(
            "--truth",
            help="How a wrong answer is known: exact (the preferred response is the only right one), rules (by the rule of a "
            "pair's category), judge:SPEC (a teacher, all of its votes in both orders), or file:PATH (filled-in lines of "
            "OUT/to_label.jsonl).",
        ),
    ],
    policy: Annotated[
        Optional[str], typer.Option("--policy", help="Checkpoint of the policy, whose answers are sampled.")
    ] = None,
    judge: Annotated[Optional[str], typer.Option("--judge", help=f"The judge that pays them. {spec_help()}.")] = None,
    answers: Annotated[
        Optional[Path],
        typer.Option(
            "--answers",
            help="In place of a policy: a log of paid answers, such as samples.jsonl of a run of `rewardlab policy`.",
        ),
    ] = None,
    number: Annotated[int, typer.Option("--number", min=1, help="Questions that are asked, one answer each.")] = 1000,
    temperature: Annotated[
        float,
        typer.Option(
            "--temperature",
            min=0.0,
            help="Of the policy's answers. Above 1 they are what it seldom says, and may learn to say where it is paid.",
        ),
    ] = 1.0,
    least_reward: Annotated[
        float, typer.Option("--least-reward", help="Answers that are paid less (of 0 to 1) do no harm, and are left out.")
    ] = 0.25,
    template: Annotated[str, typer.Option("--template", help="Prompt template of a question to the policy.")] = "answer",
    max_tokens: Annotated[int, typer.Option("--max-tokens", min=1, help="Most tokens of an answer.")] = 1024,
    judge_max_tokens: Annotated[int, typer.Option("--judge-max-tokens", min=1, help="Most tokens of a judgment.")] = 1024,
    contract: Annotated[
        str, typer.Option("--contract", help="Where a checkable answer stands, for --truth rules: boxed, box or answer.")
    ] = "boxed",
    attempts: Annotated[str, typer.Option("--attempts", help="Difficulty tag of negatives of tagged pairs.")] = "2",
    frames: Annotated[int, typer.Option("--frames", min=1, help="Frames of a video, for a policy of another family.")] = 8,
    batch_size: BatchSize = 64,
    seed: RandomSeed = 0,
    images: Images = None,
    allow_columns: AllowColumns = None,
) -> None:
    """Find wrong answers of a policy that a judge pays well, and make hard negatives of them.

    Each stands beside the preferred response of its pair, which is the better one. What is sampled is kept in
    OUT/answers.jsonl, and the same command goes on; OUT/policy.json counts right and wrong answers. Answers whose rightness is
    not known are written to OUT/to_label.jsonl: fill in `right` and give the file as `--truth file:OUT/to_label.jsonl`. What is
    filled in stays there, whatever is run again in the same folder.

    `rewardlab data negatives pairs.parquet --policy runs/policy/final --judge prob:runs/rl/final --truth exact --out
    runs/negatives` writes OUT/negatives.parquet, for `rewardlab rl`. **Exit status 1** where there is none; that of an
    earlier run is deleted.
    """
    from rewardlab.curation.answer_files import TO_LABEL, label_row, logged_answers, write_labels
    from rewardlab.curation.policy_negatives import (
        NEGATIVES,
        POLICY,
        NegativeCounts,
        policy_result,
        sample_answers,
        wrong_and_paid,
    )
    from rewardlab.data.files import write_atomic
    from rewardlab.data.pair_table import pair_facts
    from rewardlab.data.pairs import write_parquet
    from rewardlab.judging.engines import open_generative_judge
    from rewardlab.metrics.intervals import wilson_interval
    from rewardlab.prompts import load_template
    from rewardlab.samplers.hf import HFSampler
    from rewardlab.training.run.inputs import pairs_of

    if (policy is None) == (answers is None) or (policy is None) != (judge is None):
        raise ConfigError("answers come from --policy and --judge together, or from a log: --answers FILE")
    if not 0 <= least_reward <= 1:
        raise ConfigError(f"--least-reward {least_reward:g}: expected a number from 0 to 1, as rewards are")
    known = _rightness(truth, contract)
    pairs = pairs_of(data, frames, policy or "", images=images, allow_columns=columns_of(allow_columns))
    facts = list(enumerate(pair_facts(pairs)))
    places = {each.pair_id: n for n, each in facts}
    if len(places) < len(facts):
        raise DataError(f"{data}: some pairs share a pair_id; an answer is known by the id of the pair that it was given to")
    left_out = None
    if answers is not None:
        paid = list(logged_answers(answers))
    else:
        assert policy is not None
        assert judge is not None
        opened = open_generative_judge(judge, max_tokens=judge_max_tokens, batch_size=batch_size)
        opened.check()
        sampler, words = HFSampler.load(Path(policy), batch_size=batch_size), load_template(template)
        how: dict[str, Any] = {"number": number, "temperature": temperature, "max_tokens": max_tokens, "seed": seed}
        paid, left_out = sample_answers(pairs, sampler, words, opened, out, **how)
        typer.echo(
            f"{len(paid) + left_out.total():,} questions: {left_out['unfinished']:,} answers not finished or empty, "
            f"{left_out['with_images']:,} not asked, for their responses hold images"
        )
    readers = {each.pair_id: None if each.preferred is None else (lambda n=n: pairs[n]) for n, each in facts}
    # Of a policy's answers all count; of those in a log the ones that the judge could compare.
    of_teacher = [each for each in paid if policy or each.reward is not None]
    rightness = known or _teacher(truth, judge_max_tokens, batch_size, readers, of_teacher, least_reward, out, seed)
    counts, unknown = NegativeCounts(), list[dict[str, Any]]()
    made = []
    for answer, negative in wrong_and_paid(readers, paid, rightness, counts, least_reward=least_reward, attempts=attempts):
        if negative is None:
            unknown.append(label_row(answer, pairs[places[answer.pair_id]]))
        else:
            made.append(negative)
    out.mkdir(parents=True, exist_ok=True)
    to_label = out / TO_LABEL
    unlabelled = write_labels(unknown, to_label) if unknown else 0
    typer.echo(
        f"{counts.answers:,} answers: {counts.unreadable:,} that the judge could not compare, "
        + (f"{counts.paid_little:,} paid less than {least_reward:g}, " if least_reward > 0 else "")
        + f"{counts.repeated:,} said before, {counts.right:,} right, {counts.unknown:,} not known, {counts.negatives:,} wrong"
        + (" and paid" if least_reward > 0 else "")
        + (f"; {counts.unlabelled:,} to pairs without a label" if counts.unlabelled else "")
    )
    if left_out is not None:
        result = policy_result(readers, paid, left_out["unfinished"], rightness)
        write_atomic(out / POLICY, json.dumps(asdict(result), indent=1) + "\n")
        if (share := result.share_right) is not None:
            low, high = wilson_interval(result.right, result.questions)
            interval = f"[{100 * low:.1f}, {100 * high:.1f}] (Wilson, 95 %)"
            rest = f"; of {result.unknown:,} it is not known" if result.unknown else ""
            typer.echo(f"the policy: {100 * share:.1f} % of its answers are known to be right {interval}{rest}")
    if unknown:
        typer.echo(f"written: {to_label}; lines without a label: {unlabelled:,}; fill in `right`, then --truth file:{to_label}")
    if not made:
        (out / NEGATIVES).unlink(missing_ok=True)  # of an earlier run: `rewardlab rl` would take it for this one's
        typer.echo("no negative: no answer that is known to be wrong was paid so much", err=True)
        raise typer.Exit(ExitCode.FINDING)
    write_parquet(made, out / NEGATIVES)
    typer.echo(f"written: {out / NEGATIVES}, {len(made):,} negatives")


def _teacher(
    truth: str,
    max_tokens: int,
    batch_size: int,
    readers: Mapping[str, Callable[[], PreferencePair] | None],
    answers: Sequence[PaidAnswer],
    least_reward: float,
    out: Path,
    seed: int,
) -> Rightness:
    """Ask the teacher that ``--truth judge:SPEC`` names of the answers that are paid enough."""
    from rewardlab.curation.policy_negatives import ask_teacher
    from rewardlab.judging.engines import open_generative_judge

    teacher = open_generative_judge(truth.removeprefix("judge:"), max_tokens=max_tokens, batch_size=batch_size)
    teacher.check()
    labelled = {name: read for name, read in readers.items() if read is not None}
    enough = [paid for paid in answers if (paid.reward or 0) >= least_reward and paid.answer.strip()]
    return ask_teacher(labelled, enough, teacher, out, seed=seed)


def _rightness(truth: str, contract: str) -> Rightness | None:
    """Return what ``--truth`` names; None for a teacher, who is asked later. Raise ConfigError for anything else."""
    import atexit

    from rewardlab.curation.answer_files import by_labels
    from rewardlab.rewards.verifiable.extraction import Contract
    from rewardlab.rewards.verifiable.mathematics import MathVerifier, all_verifiers
    from rewardlab.rewards.verified import by_rules, exactly

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
