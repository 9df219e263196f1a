"""Cold start: fine-tune a vision-language model on the judgments a teacher got right, on assistant tokens only.

With a template that asks for the verdict alone, the same run trains a generative classifier on labels (Pairwise-RL, arXiv
2504.04950): every pair in both orders, loss on the verdict token only.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from trl import SFTConfig as TRLSFTConfig
from trl import SFTTrainer

from rewardlab.config import SFTConfig
from rewardlab.data.pair_table import pair_facts, select_pairs
from rewardlab.data.votes import require_same_run
from rewardlab.errors import ConfigError, DataError
from rewardlab.models.checkpoints import template_change
from rewardlab.models.loading import load_policy, load_processor, peft_config
from rewardlab.models.precision import adapters_to_float32
from rewardlab.processes import is_main
from rewardlab.prompts import Template, load_template
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.hf import special_tokens
from rewardlab.training.run.evaluation import plan_evaluation
from rewardlab.training.run.folder import supervised_arguments
from rewardlab.training.run.held_out import hold_out
from rewardlab.training.run.inputs import config_of, pairs_of
from rewardlab.training.run.length_grouping import LengthGroupingMixin, RowLayout
from rewardlab.training.run.preflight import numbers_that_fit
from rewardlab.training.run.resume import StrictResumeMixin
from rewardlab.training.run.rows import PromptReader, SFTDialogue, dialogue_dataset, learnt_answers, log_special_tokens
from rewardlab.training.run.runner import Built, Stage, checkpoint_of, run_stage
from rewardlab.training.run.unreadable import leave_out_unreadable
from rewardlab.training.run.verification_rows import short_dialogues, verification_dialogues
from rewardlab.types import BOTH_ORDERS, PreferencePair, choice_of
from rewardlab.verdicts.parse import verdict_label


class ResumableSFTTrainer(LengthGroupingMixin, StrictResumeMixin, SFTTrainer):
    """TRL's SFTTrainer; resumed runs start from the checkpoint's weights, and all tokens of a batch weigh the same."""

    data_collator: Callable[..., dict[str, Any]]

    def __init__(self, *args: Any, processing_class: Any, first_token_only: bool = False, **kwargs: Any) -> None:
        layout = RowLayout.of(processing_class, "right")
        super().__init__(*args, processing_class=processing_class, layout=layout, **kwargs)
        adapters_to_float32(self.model)
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
            "into the column `judgment`, or learn labels alone by template=verdict"
        )
    return dialogues


def verdict_dialogues(pairs: Sequence[PreferencePair]) -> list[SFTDialogue]:
    """Return two dialogues per labelled pair, one in each order, whose answer is the verdict alone: either verdict is right in
    exactly half of them. Raise DataError where no pair has a label."""
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
    """Return what is learnt of pairs: :func:`judgment_dialogues`, or :func:`verdict_dialogues` where the template asks for the
    verdict alone; with ``votes``, also dialogues in which a judge verifies them, of a set whose rows ``left_out`` are not among
    ``pairs``. ``numbers``: of these pairs alone.

    Raise DataError where nothing is left.
    """
    dialogues = verdict_dialogues(pairs) if template.verdict_format == "bare" else judgment_dialogues(pairs)
    dialogues += verification_dialogues(pairs, votes, left_out) if votes else []
    if not (learnt := [dialogue for dialogue in dialogues if numbers is None or dialogue.number in numbers]):
        raise DataError("every pair to learn from is held out for evaluation; add pairs, or lower evaluation.fraction")
    return learnt


class FirstTokenOnly:
    """A collator whose labels are those of another, up to the first token of each answer: the verdict, where that is all.

    The loss logged is then the negative log-likelihood of the verdict. Whatever follows it is not learnt: such a judge is asked
    for its probabilities (``rewardlab.judging.margins.ProbabilityJudge``), not sampled.
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
    """Run (or resume) supervised fine-tuning; return the final checkpoint folder.

    ``pairs`` may be a data file, ``config`` a YAML file or a name under ``configs/``; ``overrides`` are keys of the config.

    ``votes``, a ``votes.jsonl`` of the judge on the same pairs, adds dialogues in which it verifies them. Raise DataError
    without judgments, ConfigError for a finished or different run in ``out``, and for votes with a template that asks for the
    verdict alone.
    """
    config, out = config_of(SFTConfig, config, **overrides), Path(out)
    template = load_template(config.template)
    verdict_only = template.verdict_format == "bare"
    if votes and verdict_only:
        raise ConfigError(
            f"template {template.name} asks for the verdict alone, of which one token is learnt; verifying votes takes "
            "words: name a template that asks for reasoning, or leave the votes out"
        )
    if votes and isinstance(pairs, str | Path):
        require_same_run(votes, Path(pairs), template=template.hash)
    readable = leave_out_unreadable(pairs_of(pairs, config.frames, config.model), out)
    pairs = readable.pairs
    held_out = hold_out(pairs, config, template, num_left_out=readable.num_labelled_left_out)
    facts = pair_facts(pairs)
    learnt = [n for n in held_out.numbers if (facts[n].preferred is not None if verdict_only else facts[n].judged)]
    labelled = select_pairs(pairs, learnt)
    answer_of = (lambda pair: "") if verdict_only else (lambda pair: pair.judgment)
    kept = {learnt[n] for n in numbers_that_fit(labelled, config, template, out, answer=answer_of)} if learnt else set()
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
    specials = special_tokens(load_processor(config.model).tokenizer)
    if is_main():
        log_special_tokens(learnt_answers(pairs, dialogues), specials)
    reader = PromptReader(pairs, template, specials)
    rows = dialogue_dataset(reader, dialogues)
    data = readable.fingerprint + (f" {hashlib.sha256(votes.read_bytes()).hexdigest()[:16]}" if votes else "")
    data = readable.known_as(data + held_out.fingerprint)

    def build(resume: str | None) -> Built:
        # TRL's arguments before the model: ZeRO-3 deals its weights out as they are read. Cutting a sequence could cut images.
        arguments = TRLSFTConfig(max_length=None, **supervised_arguments(config, out))
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
