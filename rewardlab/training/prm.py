"""A process reward model: a value model fitted to +1 and -1 at the ends of steps by squared error (arXiv 2410.17621).

Its folder serves as ``process_reward`` and as ``value_init`` of `rewardlab rl`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

from rewardlab.config import PRMConfig
from rewardlab.data.pair_table import pair_facts
from rewardlab.errors import DataError
from rewardlab.models.checkpoints import load_template_for
from rewardlab.models.families import always_run_vision_tower
from rewardlab.models.loading import freeze, load_processor
from rewardlab.models.value_model import ValueModel
from rewardlab.processes import is_main, num_processes
from rewardlab.prompts import Template, build_messages, require_one_turn, require_pairs
from rewardlab.prompts.sanitize import completion_to_learn
from rewardlab.rewards.steps import token_ends
from rewardlab.samplers.hf import append_answers, encode, special_tokens, thinking_opening, token_texts
from rewardlab.training.run.folder import refuse_finished, supervised_arguments
from rewardlab.training.run.inputs import leave_out_unreadable, pairs_named, refuse_repeated_ids
from rewardlab.training.run.length_grouping import NUM_IMAGES, LengthGroupingMixin, RowLayout
from rewardlab.training.run.preflight import TOO_LONG, processor_of
from rewardlab.training.run.resume import StrictResumeMixin, ValueModelMixin
from rewardlab.training.run.rows import SFTDialogue, list_special_tokens, places_that_fit
from rewardlab.training.run.runner import Built, Stage, checkpoint_of, run_stage
from rewardlab.types import Order, PreferencePair
from rewardlab.verdicts.parse import continuation

NO_LABEL = -100.0  # what transformers leaves out when it counts labels


class StepRows(Sequence[dict[str, Any]]):
    """Labelled judgments beside their pairs, which are read as rows are taken."""

    def __init__(self, pairs: Sequence[PreferencePair], numbers: Sequence[int], steps: Sequence[dict[str, Any]]) -> None:
        self._pairs, self.numbers, self.steps = pairs, numbers, steps

    def __len__(self) -> int:
        return len(self.steps)

    def __getitem__(self, number: Any) -> Any:
        if isinstance(number, slice):
            return [self[n] for n in range(*number.indices(len(self)))]
        return {"pair": self._pairs[self.numbers[number]], "step": self.steps[number]}


def short_judgments(
    pairs: Sequence[PreferencePair], steps: Sequence[dict[str, Any]], config: PRMConfig, template: Template, out: Path
) -> list[dict[str, Any]]:
    """Return the labelled judgments that fit, as :func:`places_that_fit` says. Raise DataError for one of a pair that is not
    there."""
    rows = prm_rows(pairs, steps)
    dialogues = [
        SFTDialogue(number, Order(row["order"]), row["text"]) for number, row in zip(rows.numbers, rows.steps, strict=True)
    ]
    return [steps[place] for place in places_that_fit(pairs, dialogues, config, template, out / TOO_LONG)]


def prm_rows(pairs: Sequence[PreferencePair], steps: Sequence[dict[str, Any]]) -> StepRows:
    """Return labelled judgments beside their pairs. Raise DataError for a judgment of a pair that is not there."""
    by_id = {facts.pair_id: number for number, facts in enumerate(pair_facts(pairs))}
    if missing := [row["pair_id"] for row in steps if row["pair_id"] not in by_id]:
        raise DataError(
            f"{len(missing)} labelled judgments belong to other pairs, for example "
            f"{missing[0]}; give the pairs that were labelled"
        )
    return StepRows(pairs, [by_id[row["pair_id"]] for row in steps], steps)


class StepCollator:
    """Makes model inputs of rows: those of prompt and reasoning, left-padded, with ``labels`` [N, L]: +-1 where a step ends."""

    def __init__(self, processor: Any, template: Template) -> None:
        self.processor, self.template, self._specials = processor, template, special_tokens(processor.tokenizer)
        self._opening = thinking_opening(processor)

    def __call__(self, rows: Sequence[dict[str, Any]]) -> dict[str, Tensor]:
        inputs, ends = self.read(rows)
        labels_NL = torch.full(inputs["input_ids"].shape, NO_LABEL)
        for n, (row, tokens) in enumerate(zip(rows, ends, strict=True)):
            for token, label in zip(tokens, row["step"]["labels"], strict=True):
                labels_NL[n, token] = label  # of two steps in one token, the later: what holds after it
        return {**inputs, "labels": labels_NL, NUM_IMAGES: torch.tensor([len(row["pair"].images) for row in rows])}

    def read(self, rows: Sequence[dict[str, Any]]) -> tuple[dict[str, Tensor], list[list[int]]]:
        """Return model inputs, and where in each row its steps end."""
        tokenizer = self.processor.tokenizer
        prompts = [build_messages(row["pair"], order=Order(row["step"]["order"]), template=self.template) for row in rows]
        steps = [_after_opening(row["step"], self._opening) for row in rows]
        texts = [completion_to_learn(step["text"], self._specials) for step in steps]
        answers = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        with pairs_named([row["pair"] for row in rows]):
            inputs = append_answers(dict(encode(self.processor, prompts)), answers, tokenizer.pad_token_id)
        width = inputs["input_ids"].shape[1]
        ends = [
            [width - len(ids) + token for token in token_ends(_moved(step, text), token_texts(tokenizer, ids))]
            for step, text, ids in zip(steps, texts, answers, strict=True)
        ]
        return inputs, ends


def _after_opening(step: dict[str, Any], opening: str) -> dict[str, Any]:
    """Return a judgment's text without the ``<think>`` that the prompt ends in, and where its steps end in that."""
    text = continuation(step["text"], opening)
    cut = len(step["text"]) - len(text)
    return {"text": text, "ends": [end - cut for end in step["ends"]]}


def _moved(step: dict[str, Any], text: str) -> list[int]:
    """Return where the steps of a judgment end in ``text``, which has further characters between its own."""
    places = [0]
    for character in step["text"]:
        places.append(text.index(character, places[-1]) + 1)
    return [places[end] for end in step["ends"]]


class PRMTrainer(LengthGroupingMixin, ValueModelMixin, StrictResumeMixin, Trainer):
    """transformers' Trainer on a value model."""

    def compute_loss(
        self, model: Any, inputs: dict[str, Any], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """Return the mean squared error over the step ends of the whole batch, micro-batches and processes together."""
        labels_NL = inputs["labels"]
        values_NL = model(**{name: value for name, value in inputs.items() if name != "labels"})
        errors = (values_NL - labels_NL)[labels_NL != NO_LABEL] ** 2
        if num_items_in_batch is None:
            loss = errors.mean()
        else:
            loss = errors.sum() / num_items_in_batch * self.accelerator.num_processes
        return (loss, values_NL) if return_outputs else loss


def train_prm(pairs: Sequence[PreferencePair], steps: Sequence[dict[str, Any]], config: PRMConfig, out: Path) -> Path:
    """Train (or resume) from ``config.model``, a judge's checkpoint; return the final folder, which ``ValueModel`` reads.
    Judgments longer than ``config.max_tokens`` are left out and listed. Raise DataError for labels of other pairs, and if no
    judgment is short enough, CheckpointError for a checkpoint of another template, ConfigError for a finished or different run
    in ``out``.
    """
    template = require_pairs(
        require_one_turn(load_template_for(config.model, config.template), "a process reward model"), "a process reward model"
    )
    refuse_finished(out)
    refuse_repeated_ids(pairs)
    readable = leave_out_unreadable(pairs, out)
    kept = [row for row in steps if row["pair_id"] not in readable.names_left_out]
    rows = prm_rows(readable.pairs, short_judgments(readable.pairs, kept, config, template, out))
    if is_main():
        specials = special_tokens(load_processor(config.model).tokenizer)
        list_special_tokens(((row["pair_id"], row["text"]) for row in rows.steps), specials, out)
    labels = hashlib.sha256(json.dumps(list(steps), sort_keys=True).encode()).hexdigest()[:16]

    def build(resume: str | None) -> Built:
        processor = processor_of(config)
        arguments = TrainingArguments(remove_unused_columns=False, **supervised_arguments(config, out))
        model = ValueModel.from_pretrained(config.model, attention=config.attn_implementation)
        freeze(model, config.freeze)
        if num_processes() > 1:
            always_run_vision_tower(model, processor)
        trainer = PRMTrainer(
            model=model.train(),
            args=arguments,
            train_dataset=rows,
            data_collator=StepCollator(processor, template),
            layout=RowLayout.of(processor, "left"),
            micro_batch_tokens=config.micro_batch_tokens,
        )
        return Built(trainer, checkpoint_of(trainer, processor, out, template=template, stage="prm", config=config))

    data = readable.known_as(readable.fingerprint + labels)
    return run_stage(Stage("prm", config, out, data, len(rows), build, readable=readable))
