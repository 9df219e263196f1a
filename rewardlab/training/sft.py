"""Cold start: fine-tune a vision-language model on the judgments that a teacher got right, on assistant tokens only.

With a template that asks for the verdict alone, the same run trains a generative classifier on labels (Pairwise-RL, arXiv
2504.04950): every pair in both orders, loss on the verdict token only.

With votes it also teaches a judge to verify itself, which RL can only reward once the judge does it. The judge is shown its own
judgments with the teacher's reasoning as verification, and after a wrong one the teacher's judgment as the revision. Right and
wrong votes are balanced, on the same pairs if both exist: otherwise the judge learns to answer "correct". Only reasonings that
mention a difference between the two responses verify: others are guesses.
"""

from __future__ import annotations

import hashlib
import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from trl import SFTConfig as TRLSFTConfig
from trl import SFTTrainer

from rewardlab.config import SFTConfig
from rewardlab.data.pair_table import light_pairs, pair_facts, select_pairs
from rewardlab.data.votes import StoredVote, require_same_run, votes_on_pairs
from rewardlab.errors import ConfigError, DataError
from rewardlab.models.checkpoints import template_change
from rewardlab.models.loading import load_policy, load_processor, peft_config
from rewardlab.models.precision import adapters_to_float32
from rewardlab.processes import is_main
from rewardlab.prompts import Template, load_template, require_judgments, require_one_turn, require_pairs, require_turns
from rewardlab.prompts.verification import CORRECT, REVISE, VERIFY, WRONG
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.hf import special_tokens, thinking_opening
from rewardlab.training.run.evaluation import plan_evaluation
from rewardlab.training.run.folder import supervised_arguments
from rewardlab.training.run.held_out import hold_out
from rewardlab.training.run.inputs import config_of, count_ties, leave_out_unreadable, pairs_of
from rewardlab.training.run.length_grouping import CountedImages, LengthGroupingMixin, RowLayout
from rewardlab.training.run.preflight import numbers_that_fit, room_between_turns, split_answer
from rewardlab.training.run.resume import StrictResumeMixin
from rewardlab.training.run.rows import (
    PromptReader,
    SFTDialogue,
    dialogue_dataset,
    learnt_answers,
    list_special_tokens,
    places_that_fit,
    turn,
)
from rewardlab.training.run.runner import Built, Stage, checkpoint_of, run_stage
from rewardlab.types import BOTH_ORDERS, Choice, PreferencePair, choice_of
from rewardlab.verdicts.parse import verdict_label
from rewardlab.verdicts.places import reasoning_of


class ResumableSFTTrainer(LengthGroupingMixin, StrictResumeMixin, SFTTrainer):
    """TRL's SFTTrainer; resumed runs start from the checkpoint's weights, and all tokens of a batch weigh the same."""

    data_collator: Callable[..., dict[str, Any]]

    def __init__(self, *args: Any, processing_class: Any, first_token_only: bool = False, **kwargs: Any) -> None:
        layout = RowLayout.of(processing_class, "right")
        super().__init__(*args, processing_class=processing_class, layout=layout, **kwargs)
        adapters_to_float32(self.model)
        self.data_collator = CountedImages(self.data_collator)
        if first_token_only:
            self.data_collator = FirstTokenOnly(self.data_collator)
        # The Qwen-VL classes say no, and a batch would be the mean of its micro-batches' means, however few their tokens; TRL's
        # loss does take the number of tokens in the whole batch, and nothing of it reaches the model.
        self.model_accepts_loss_kwargs = True

    def _run_epoch(self, *args: Any, **kwargs: Any) -> None:
        """Count on from the tokens of the run that is gone on with; TRL's count begins at 0."""
        before = [record["num_tokens"] for record in self.state.log_history if "num_tokens" in record]
        self._total_train_tokens: int = max([self._total_train_tokens, *map(int, before)])
        super()._run_epoch(*args, **kwargs)


def judgment_dialogues(pairs: Sequence[PreferencePair]) -> list[SFTDialogue]:
    """Return one dialogue per pair with a kept judgment, in the order the teacher saw it. Raise DataError without any."""
    dialogues = [SFTDialogue(number, facts.order) for number, facts in enumerate(pair_facts(pairs)) if facts.judged]
    if not dialogues:
        raise DataError(
            "no pair carries a judgment: run `rewardlab distill` first and train on its output, write judgments of your own "
            "into the column `judgment`, or train on labels only with template=verdict"
        )
    return dialogues


def verdict_dialogues(pairs: Sequence[PreferencePair]) -> list[SFTDialogue]:
    """Return two dialogues per labelled pair, one in each order, whose answer is the verdict alone. Raise DataError without
    labels."""
    dialogues = [
        SFTDialogue(number, order, verdict_label(choice_of(facts.preferred, order)))
        for number, facts in enumerate(pair_facts(pairs))
        if facts.preferred is not None
        for order in BOTH_ORDERS
    ]
    if not dialogues:
        raise DataError("no pair says which response is preferred; give `preferred` as 0 or 1")
    return dialogues


def sft_dialogues(
    pairs: Sequence[PreferencePair],
    template: Template,
    *,
    votes: Path | None = None,
    numbers: Collection[int] | None = None,
    left_out: Collection[int] = (),
) -> list[SFTDialogue]:
    """Return :func:`judgment_dialogues`, or :func:`verdict_dialogues` if the template asks for the verdict alone; with
    ``votes``, also dialogues in which a judge verifies them (``left_out`` are the rows of their set that are not among
    ``pairs``). ``numbers`` restricts the pairs. Raise DataError if nothing is left.
    """
    dialogues = verdict_dialogues(pairs) if template.verdict_format == "bare" else judgment_dialogues(pairs)
    if template.turns:  # each is learnt by itself, after those before it
        of_pair = {n: len(split_answer(pair, pair.judgment, template)) for n, pair in light_pairs(pairs) if pair.judgment}
        dialogues = [replace(each, part=part) for each in dialogues for part in range(1, of_pair[each.number] + 1)]
    dialogues += verification_dialogues(pairs, votes, left_out) if votes else []
    if not (learnt := [dialogue for dialogue in dialogues if numbers is None or dialogue.number in numbers]):
        raise DataError("every pair to learn from is held out for evaluation; add pairs, or lower evaluation.fraction")
    return learnt


class FirstTokenOnly:
    """A collator that keeps the labels of another up to the first token of each answer, the verdict. The loss is then its
    negative log-likelihood. Such a judge gives probabilities (``rewardlab.judging.margins.ProbabilityJudge``) and is not
    sampled.
    """

    def __init__(self, collate: Callable[..., dict[str, Any]]) -> None:
        self._collate = collate

    def __call__(self, rows: list[Any]) -> dict[str, Any]:
        batch = self._collate(rows)
        trained = batch["labels"] != -100
        batch["labels"] = torch.where(trained & (trained.cumsum(1) == 1), batch["labels"], -100)
        return batch


def train_sft(
    pairs: Sequence[PreferencePair] | str | Path,
    config: SFTConfig | str | Path | None = None,
    out: str | Path = "runs/sft",
    *,
    votes: Path | None = None,
    **overrides: Any,
) -> Path:
    """Run (or resume) supervised fine-tuning; return the final checkpoint folder. ``pairs`` may be a data file, ``config`` a
    YAML file or a name under ``configs/``; ``overrides`` are keys of the config. ``votes``, a ``votes.jsonl`` of the judge on
    the same pairs, adds dialogues in which it verifies them. Raise DataError without judgments, ConfigError for a finished or
    different run in ``out``, and for votes with a template that asks for the verdict alone.
    """
    config, out = config_of(SFTConfig, config, **overrides), Path(out)
    template = load_template(config.template)
    if template.shows_one:
        require_judgments(template, "fine-tuning on a response")
    verdict_only = template.verdict_format == "bare"
    if votes and verdict_only:
        raise ConfigError(
            f"template {template.name} asks for the verdict alone, so only one token is trained, but verifying "
            "votes needs reasoning: use a template that asks for reasoning, or leave the votes out"
        )
    if votes:
        require_pairs(require_one_turn(template, "verifying votes"), "verifying votes")
    if votes and isinstance(pairs, str | Path):
        require_same_run(votes, Path(pairs), template=template.hash)
    pairs = pairs_of(pairs, config.frames, config.model)
    count_ties(pairs)
    readable = leave_out_unreadable(pairs, out)
    pairs = readable.pairs
    held_out = hold_out(pairs, config, template, num_left_out=readable.num_labelled_left_out)
    facts = pair_facts(pairs)
    learnt = [n for n in held_out.numbers if (facts[n].preferred is not None if verdict_only else facts[n].judged)]
    labelled = select_pairs(pairs, learnt)
    answer_of = (lambda pair: "") if verdict_only else (lambda pair: pair.judgment)
    kept: set[int] = set()
    if learnt:
        between = room_between_turns(config, template)
        kept = {learnt[n] for n in numbers_that_fit(labelled, config, template, out, answer=answer_of, between=between)}
    if not votes:  # which name rows of all pairs
        readable = readable.without_long(select_pairs(pairs, sorted(kept)))
    dialogues = sft_dialogues(pairs, template, votes=votes, numbers=kept, left_out=readable.left_out)
    dialogues = short_dialogues(pairs, dialogues, config, template, out) if votes else dialogues
    if len(dialogues) < config.batch_size:
        what = "labels in both orders" if verdict_only else "judgments"
        raise DataError(
            f"{len(pairs):,} pairs hold {len(dialogues):,} {what} to learn from, fewer than the {config.batch_size:,} of one "
            "batch: a run would repeat them. Add some (rewardlab distill), or lower batch_size"
        )
    if is_main() and (trained := template_change(config.model, template)):
        log_line(
            f"{config.model} was trained on template {trained}, and is taught {template.name} now; template={trained} keeps it"
        )
    processor = load_processor(config.model)
    specials, opening = special_tokens(processor.tokenizer), thinking_opening(processor)
    require_turns(config.model, template, opening)
    if verdict_only and opening:
        raise ConfigError(
            f"{config.model}: its chat template opens <think>, but template {template.name} asks for the verdict alone; use a "
            "template that asks for reasoning, or a checkpoint without thinking"
        )
    if is_main():
        list_special_tokens(learnt_answers(pairs, dialogues), specials, out)
    reader = PromptReader(pairs, template, specials, opening)
    rows = dialogue_dataset(reader, dialogues)
    data = readable.fingerprint + (f" {hashlib.sha256(votes.read_bytes()).hexdigest()[:16]}" if votes else "")
    data = readable.known_as(data + held_out.fingerprint)

    def build(resume: str | None) -> Built:
        # TRL's arguments before the model: ZeRO-3 deals its weights out as they are read. Cutting a sequence could cut images.
        arguments = TRLSFTConfig(max_length=None, router_aux_loss_coef=0.0, **supervised_arguments(config, out))
        model, processor = load_policy(config, out)
        processor.tokenizer.padding_side = "right"
        trainer = ResumableSFTTrainer(
            model=model.train(),
            args=arguments,
            train_dataset=rows,
            processing_class=processor,
            peft_config=peft_config(config.lora, model, config.freeze),
            first_token_only=verdict_only,
            micro_batch_tokens=config.micro_batch_tokens,
        )
        return Built(trainer, checkpoint_of(trainer, processor, out, template=template, stage="sft", config=config))

    evaluation = plan_evaluation(held_out.evaluated, config, template)
    return run_stage(Stage("sft", config, out, data, len(rows), build, evaluation=evaluation, readable=readable))


TOO_LONG_DIALOGUES = "too_long_dialogues.jsonl"
_WORD = re.compile(r"[^\W_]+")


@dataclass(frozen=True)
class TeacherJudgment:
    """A kept judgment, and the response that is preferred, as the teacher saw them."""

    text: str
    preferred: Choice


JudgedVote = tuple[StoredVote, TeacherJudgment]


def verification_dialogues(pairs: Sequence[PreferencePair], votes: Path, left_out: Collection[int] = ()) -> list[SFTDialogue]:
    """Return dialogues to fine-tune on: a verification of each chosen vote, and the revision of each wrong one. Votes name
    pairs by their rows in a set, of which the rows ``left_out`` are not among ``pairs``. Left out are votes without a verdict,
    in the other order than the teacher's, and on pairs without a judgment that mentions a difference; of the others as many
    right as wrong ones are chosen (:func:`choose_evenly`). Raise DataError if no wrong or no right one is left.
    """
    usable = list(_votes_with_judgments(pairs, votes, left_out))
    right = [item for item in usable if item[0].choice is item[1].preferred]
    wrong = [item for item in usable if item[0].choice is not item[1].preferred]
    if not usable:
        raise DataError(
            f"{votes}: no vote is on a pair with a kept judgment that mentions what the responses differ in, in its order; "
            "benchmark the judge on the same pairs"
        )
    if not right or not wrong:
        raise DataError(
            f"{votes}: all {len(usable):,} votes that can be verified are {'right' if right else 'wrong'}, and a judge learns "
            "to verify from both; benchmark it with more --votes, or on more pairs"
        )
    chosen = choose_evenly(right, wrong)
    if is_main():
        log_line(
            f"verification is taught from {len(chosen) // 2:,} right and as many wrong votes, of {len(right):,} and "
            f"{len(wrong):,} that can be verified"
        )
    return [dialogue for vote, judgment in chosen for dialogue in _dialogues(vote, judgment)]


def mentions_difference(reasoning: str, responses: Sequence[str]) -> bool:
    """Return whether a reasoning has a word that stands in one of two responses alone, whatever its case."""
    first, second = ({*_WORD.findall(response.lower())} for response in responses)
    return not (first ^ second).isdisjoint(_WORD.findall(reasoning.lower()))


def choose_evenly(right: Sequence[JudgedVote], wrong: Sequence[JudgedVote]) -> list[JudgedVote]:
    """Return all of the fewer, and as many of the others, in the order of the votes: first of pairs that have both kinds."""
    number = min(len(right), len(wrong))
    rows = [{vote.row for vote, _ in votes} for votes in (right, wrong)]
    shared = rows[0] & rows[1]

    def few(votes: Sequence[JudgedVote]) -> list[JudgedVote]:
        counts: Counter[int] = Counter()
        ranks = []
        for place, (vote, _) in enumerate(votes):
            ranks.append((vote.row not in shared, counts[vote.row], place))
            counts[vote.row] += 1
        return [votes[place] for _, _, place in sorted(ranks)[:number]]

    return sorted((*few(right), *few(wrong)), key=lambda item: item[0].row)


def _dialogues(vote: StoredVote, judgment: TeacherJudgment) -> Iterator[SFTDialogue]:
    """Yield the verification of a vote, and the revision of a wrong one."""
    turns = (turn("assistant", vote.text), turn("user", VERIFY))
    is_right = vote.choice is judgment.preferred
    better, named = (1 if choice is Choice.FIRST else 2 for choice in (judgment.preferred, vote.choice))
    answer = (
        f"{reasoning_of(judgment.text)} Response {better} is better, and the judgment names Response {named}. "
        f"{CORRECT if is_right else WRONG}."
    )
    yield SFTDialogue(vote.row, vote.order, answer, turns)
    if not is_right:
        yield SFTDialogue(vote.row, vote.order, None, (*turns, turn("assistant", answer), turn("user", REVISE)))


def short_dialogues(
    pairs: Sequence[PreferencePair], dialogues: Sequence[SFTDialogue], config: SFTConfig, template: Template, out: Path
) -> list[SFTDialogue]:
    """Return ``dialogues`` without the verifications and revisions that are too long (:func:`places_that_fit`)."""
    verifying = [dialogue for dialogue in dialogues if dialogue.turns]
    kept = places_that_fit(pairs, verifying, config, template, out / TOO_LONG_DIALOGUES)
    return [dialogue for dialogue in dialogues if not dialogue.turns] + [verifying[place] for place in kept]


def _votes_with_judgments(pairs: Sequence[PreferencePair], votes: Path, left_out: Collection[int]) -> Iterator[JudgedVote]:
    """Yield the votes in the teacher's order, with its judgment if that mentions a difference between the responses. Raise
    DataError for a vote on a pair that is not there."""
    facts = pair_facts(pairs)
    stored = votes_on_pairs(votes, len(facts), left_out)
    usable = {vote.row for vote in stored if vote.choice is not None and vote.order is facts[vote.row].order}
    usable = {row for row in usable if facts[row].judged and facts[row].preferred is not None}
    judgments = {
        number: TeacherJudgment(pair.judgment, choice_of(pair.preferred, pair.order))
        for number, pair in light_pairs(pairs)
        if number in usable and pair.preferred is not None and mentions_difference(reasoning_of(pair.judgment), pair.responses)
    }
    for vote in stored:
        if vote.row in judgments and vote.choice is not None and vote.order is facts[vote.row].order:
            yield vote, judgments[vote.row]
