"""A scalar reward model: one number for one response, fitted to preferences by the Bradley-Terry likelihood.

Each response is shown alone, with the images and the question, and scored after the last token of its prompt. TRL's
RewardTrainer tokenizes text only and has no way for an image, so the trainer is our own: transformers' Trainer around a
ValueModel.

Shapes: ``B`` pairs.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import Trainer, TrainingArguments

from rewardlab.config import RMConfig
from rewardlab.data.files import write_atomic
from rewardlab.data.pair_table import pair_facts, select_pairs
from rewardlab.errors import CheckpointError, DataError
from rewardlab.judging.margins import likelier_verdict
from rewardlab.models.checkpoints import template_for
from rewardlab.models.families import always_run_vision_tower
from rewardlab.models.loading import freeze, load_processor, this_device
from rewardlab.models.value_model import WEIGHTS, ValueModel
from rewardlab.processes import num_processes
from rewardlab.prompts import Template, load_template
from rewardlab.rewards.pairwise import score_responses, single_response_prompt
from rewardlab.rl.objectives import bradley_terry_loss
from rewardlab.samplers.hf import encode
from rewardlab.training.run.evaluation import JudgePairs, plan_evaluation
from rewardlab.training.run.folder import supervised_arguments
from rewardlab.training.run.held_out import hold_out
from rewardlab.training.run.inputs import count_ties, leave_out_unreadable, pairs_named
from rewardlab.training.run.length_grouping import NUM_IMAGES, LengthGroupingMixin, RowLayout
from rewardlab.training.run.preflight import drop_too_long, processor_of
from rewardlab.training.run.resume import StrictResumeMixin, ValueModelMixin
from rewardlab.training.run.runner import Built, Stage, checkpoint_of, run_stage
from rewardlab.types import Completion, FinishReason, Judgment, Order, PreferencePair, Vote
from rewardlab.verdicts.votes import judgment


def labelled(pairs: Sequence[PreferencePair]) -> Sequence[PreferencePair]:
    """Return the pairs that say which response is preferred. Raise DataError where none does."""
    if not (kept := [number for number, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None]):
        raise DataError("no pair says which response is preferred; give `preferred` as 0 or 1")
    return select_pairs(pairs, kept)


class ScalarCollator:
    """Makes model inputs of 2B prompts from B pairs: the preferred responses, then, in the same sequence, the others."""

    def __init__(self, processor: Any, template: Template) -> None:
        self._processor, self._template = processor, template

    def __call__(self, pairs: Sequence[PreferencePair]) -> dict[str, Tensor]:
        chosen = [single_response_prompt(pair, int(pair.preferred == 1), self._template) for pair in pairs]
        rejected = [single_response_prompt(pair, int(pair.preferred == 0), self._template) for pair in pairs]
        with pairs_named(pairs):
            num_images = torch.tensor([sum(len(message.images) for message in prompt) for prompt in chosen + rejected])
            return encode(self._processor, chosen + rejected) | {NUM_IMAGES: num_images}


class BradleyTerryTrainer(LengthGroupingMixin, ValueModelMixin, StrictResumeMixin, Trainer):
    """Fits a ValueModel; logs the share of pairs whose preferred response scores higher, and the mean margin."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.model_accepts_loss_kwargs = False  # taken for true of any forward with **kwargs; the mean would not be over B

    def compute_loss(
        self, model: Any, inputs: dict[str, Tensor], return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Tensor:
        chosen_B, rejected_B = model(**inputs)[:, -1].chunk(2)
        margins_B = chosen_B - rejected_B
        self.add_means({"accuracy": margins_B > 0, "margin": margins_B})
        return bradley_terry_loss(chosen_B, rejected_B) * self.part_frac


def build_reward_trainer(pairs: Sequence[PreferencePair], config: RMConfig, processor: Any, out: Path) -> BradleyTerryTrainer:
    """Return the trainer of a config on labelled pairs. Raise ConfigError for an unknown template."""
    arguments = supervised_arguments(config, out) | {
        "per_device_train_batch_size": config.micro_batch_size // 2,
        "gradient_checkpointing": False,  # switched on in the backbone below; the Trainer would ask the ValueModel
        "remove_unused_columns": False,
    }
    training_arguments = TrainingArguments(**arguments)  # before the model: ZeRO-3 deals its weights out as they are read
    model = ValueModel.from_pretrained(config.model, attention=config.attn_implementation)
    freeze(model, config.freeze)
    if num_processes() > 1:
        always_run_vision_tower(model, processor)
    if config.gradient_checkpointing:
        enable = getattr(model.backbone, "activation_checkpointing_enable", None)  # transformers' newer name of it
        (enable or model.backbone.gradient_checkpointing_enable)()  # type: ignore[operator]
    return BradleyTerryTrainer(
        model=model.train(),
        args=training_arguments,
        train_dataset=pairs,
        data_collator=ScalarCollator(processor, load_template(config.template)),
        layout=RowLayout.of(processor, "left", rows_per_sample=2),
        micro_batch_tokens=config.micro_batch_tokens,
    )


def train_reward_model(pairs: Sequence[PreferencePair], config: RMConfig, out: Path) -> Path:
    """Run (or resume) the fit of a scalar head; return the final folder, which ``rewards/pairwise.py`` and ``ValueModel`` read.
    Raise DataError without labels, ConfigError for a finished or different run in ``out``."""
    template = load_template(config.template)
    count_ties(pairs)
    readable = leave_out_unreadable(pairs, out)
    held_out = hold_out(readable.pairs, config, template, num_left_out=readable.num_labelled_left_out)
    kept = drop_too_long(labelled(held_out.trained), config, template, out)
    readable = readable.without_long(kept)

    def build(resume: str | None) -> Built:
        processor = processor_of(config)
        trainer = build_reward_trainer(kept, config, processor, out)
        return Built(trainer, checkpoint_of(trainer, processor, out, template=template, stage="rm", config=config))

    evaluation = plan_evaluation(held_out.evaluated, config, template, judge=scalar_judge(template))
    data = readable.known_as(readable.fingerprint + held_out.fingerprint)
    return run_stage(Stage("rm", config, out, data, 2 * len(kept), build, evaluation=evaluation, readable=readable))


def scalar_judge(template: Template) -> JudgePairs:
    """Return what judges pairs by the numbers of their responses: one vote, in no order; a number that is none is invalid."""

    def judge(model: Any, processor: Any, pairs: Sequence[PreferencePair]) -> list[Judgment]:
        margins = (score_responses(model, processor, pairs, template) @ torch.tensor([1.0, -1.0])).tolist()
        verdicts = [likelier_verdict(margin, float(math.isfinite(margin))) for margin in margins]
        votes = [Vote(Order.GIVEN, verdict, Completion("", FinishReason.STOP)) for verdict in verdicts]
        return [judgment(pair.pair_id, [vote]) for pair, vote in zip(pairs, votes, strict=True)]

    return judge


def write_scores(folder: Path, pairs: Sequence[PreferencePair], out: Path) -> int:
    """Write the scores of all pairs as the JSON lines of a replay judge; return how many. Raise CheckpointError for a folder
    that is no scalar reward model or was trained with another template."""
    template = template_for(folder, None)
    if not (folder / WEIGHTS).exists():
        raise CheckpointError(
            f"{folder}: not a scalar reward model ({WEIGHTS} is missing); expected the output of `rewardlab rm`"
        )
    model, processor = ValueModel.for_scoring(folder, this_device()), load_processor(str(folder))
    scores = score_responses(model, processor, pairs, template).tolist()
    write_atomic(out, "".join(json.dumps({"row": n, "scores": both}) + "\n" for n, both in enumerate(scores)))
    return len(scores)
