"""The padded batch of scored rollouts, and its micro-batches of rollouts of like length.

TRL shuffles a rollout batch and cuts it into micro-batches as a dictionary. :meth:`RolloutBatch.from_trl` and
:meth:`RolloutBatch.to_trl` are the one place where its keys are known; everything else reads attributes. Sorting by length
never moves a rollout to another optimizer step.

Shapes: ``N`` rollouts, ``T`` tokens of the padded completions, ``P`` of the padded prompts, ``K`` turns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad
from trl.trainer.utils import split_tensor_dict

from rewardlab.models.families import (
    FORWARD_KEYS,
    IMAGE_ROWS,
    TOKEN_FIELDS,
    Fields,
    check_fields,
    count_places,
    image_fields_of_rows,
    split_images,
)
from rewardlab.models.padding import PassLimits, trim, untrim
from rewardlab.rewards.rollout import Rollout, Row
from rewardlab.rl.self_verification import VERIFICATION, segments

TRLBatch = dict[str, Any]  # a batch as TRL shuffles and cuts it


@dataclass(frozen=True)
class ValueTargets:
    """What a critic is fitted to: ``targets_NT`` where ``mask_NT`` is 1, clipped around ``old_values_NT``."""

    old_values_NT: Tensor
    targets_NT: Tensor
    mask_NT: Tensor
    num_tokens: Tensor
    num_rows: Tensor


_VALUE_KEYS = {
    "old_values_NT": "old_values",
    "targets_NT": "value_targets",
    "mask_NT": "value_mask",
    "num_tokens": "num_value_tokens",
    "num_rows": "num_value_rows",
}
_KEYS = {  # attribute -> TRL's key, or ours where TRL has none
    "prompt_ids_NP": "prompt_ids",
    "prompt_mask_NP": "prompt_mask",
    "completion_ids_NT": "completion_ids",
    "completion_mask_NT": "completion_mask",
    "loss_mask_NT": "loss_mask",
    "advantages_NT": "advantages",
    "old_logprobs_NT": "old_per_token_logps",
    "ref_logprobs_NT": "ref_per_token_logps",
    "sampling_logprobs_NT": "sampling_per_token_logps",
    "importance_NT": "importance_sampling_ratio",
    "held_NT": "held",
    "num_tokens": "num_items_in_batch",
    "num_rows": "num_rows",
    "correct_N": "correct",
    "num_correct_tokens": "num_correct_tokens",
    "turns_NT": "turns",
    "turn_rewards_NK": "turn_rewards",
    "finished_N": "finished",
    "kl_coefs_N": "kl_coefs",
}


@dataclass(frozen=True)
class RolloutBatch:
    """A rollout batch or micro-batch. ``num_tokens`` and ``num_rows`` count the trained tokens, and the rollouts with any, of
    the whole rollout batch on all processes. ``image_fields`` are the model inputs besides tokens; ``kl_coefs_N`` each
    rollout's KL coefficient, None if all have the method's; ``held_NT`` is 1 on the tokens that KL-Cov holds.
    """

    prompt_ids_NP: Tensor
    prompt_mask_NP: Tensor
    completion_ids_NT: Tensor
    completion_mask_NT: Tensor
    loss_mask_NT: Tensor
    image_fields: Fields
    advantages_NT: Tensor | None = None
    old_logprobs_NT: Tensor | None = None
    ref_logprobs_NT: Tensor | None = None
    sampling_logprobs_NT: Tensor | None = None
    importance_NT: Tensor | None = None
    held_NT: Tensor | None = None
    num_tokens: Tensor | None = None
    num_rows: Tensor | None = None
    correct_N: Tensor | None = None
    num_correct_tokens: Tensor | None = None
    turns_NT: Tensor | None = None
    turn_rewards_NK: Tensor | None = None
    finished_N: Tensor | None = None
    kl_coefs_N: Tensor | None = None
    values: ValueTargets | None = None

    @staticmethod
    def from_trl(batch: TRLBatch) -> RolloutBatch:
        """Read TRL's dictionary. Keys that neither it nor the loss needs are not looked at."""
        known = {name: batch[key] for name, key in _KEYS.items() if batch.get(key) is not None}
        known.setdefault("loss_mask_NT", batch["completion_mask"])
        values = {name: batch[key] for name, key in _VALUE_KEYS.items() if key in batch}
        images = {key: batch[key] for key in FORWARD_KEYS if key in batch}
        return RolloutBatch(image_fields=images, values=ValueTargets(**values) if values else None, **known)

    def to_trl(self) -> TRLBatch:
        """Return the dictionary that TRL cuts into micro-batches. Tensors without a dimension stay whole."""
        batch = {key: getattr(self, name) for name, key in _KEYS.items() if getattr(self, name) is not None}
        if self.values is not None:
            batch |= {_VALUE_KEYS[part.name]: getattr(self.values, part.name) for part in fields(self.values)}
        return batch | self.image_fields

    @property
    def model_inputs(self) -> dict[str, Tensor]:
        """Prompts and completions as one sequence, with its attention mask."""
        return {
            "input_ids": torch.cat([self.prompt_ids_NP, self.completion_ids_NT], 1),
            "attention_mask": torch.cat([self.prompt_mask_NP, self.completion_mask_NT], 1),
        }

    def before_completion_tokens(self, values_NW: Tensor) -> Tensor:
        """Return, of numbers after each token of the rows without padding, those [N, T] before the tokens of completions."""
        last = self.prompt_ids_NP.size(1) - 1
        columns = slice(last, last + self.completion_ids_NT.size(1))
        return untrim(values_NW, self.model_inputs["attention_mask"], columns)

    @property
    def segments(self) -> list[Tensor]:
        """Masks [N, T] of the stretches over which a reward is carried back: each turn, or the whole completion."""
        return [self.completion_mask_NT] if self.turns_NT is None else segments(self.turns_NT)

    @property
    def roles(self) -> dict[str, Tensor]:
        """Masks [N, T] of the tokens whose advantages are whitened together, by a prefix for their metrics."""
        if self.turns_NT is None:
            return {"": self.loss_mask_NT}
        verifying_NT = (self.turns_NT == VERIFICATION).long()
        return {"judging/": self.loss_mask_NT * (1 - verifying_NT), "verifying/": self.loss_mask_NT * verifying_NT}

    def with_rollouts(self, rollouts: Sequence[Rollout], kl_coef_of: Callable[[Row], float] | None = None) -> RolloutBatch:
        """Add what padding lost: the tokens trained on now, turns, whether rollouts are finished, and their KL coefficients by
        ``kl_coef_of``."""
        shape, device = self.completion_mask_NT, self.completion_mask_NT.device
        places_T = torch.arange(shape.size(1), device=device)
        trajectories = [rollout.trajectory for rollout in rollouts]
        from_N1 = torch.tensor([[part.trained_from] for part in trajectories], device=device)
        ends = [len(part.tokens) if part.trained_until is None else part.trained_until for part in trajectories]
        until_N1 = torch.tensor(ends, device=device)[:, None]
        parts_NT = torch.zeros_like(shape)
        for n, part in enumerate(trajectories):
            parts_NT[n, : len(part.tokens)] = torch.tensor(part.part_of_token)
        batch = replace(
            self,
            loss_mask_NT=self.loss_mask_NT * (parts_NT > 0) * (places_T >= from_N1) * (places_T < until_N1),
            finished_N=torch.tensor([rollout.trajectory.finished for rollout in rollouts], device=device).long(),
            kl_coefs_N=torch.tensor([kl_coef_of(r.row) for r in rollouts], device=device) if kl_coef_of else None,
        )
        if not any(rollout.turn_rewards for rollout in rollouts):
            return batch
        turn_rewards_NK = torch.tensor([rollout.turn_rewards for rollout in rollouts], dtype=torch.float32, device=device)
        return replace(batch, turns_NT=parts_NT, turn_rewards_NK=turn_rewards_NK)


def drawn_logprobs(rollouts: Sequence[Rollout], like_NT: Tensor) -> Tensor:
    """Return the sampler's log-probs [N, T] of the rollouts' tokens, 0 where there is none, as a tensor like ``like_NT``."""
    drawn_NT = torch.zeros_like(like_NT)
    for row, rollout in enumerate(rollouts):
        logprobs = rollout.trajectory.logprobs or []
        drawn_NT[row, : len(logprobs)] = torch.tensor(logprobs)
    return drawn_NT


def rollout_widths(batch: TRLBatch) -> list[int]:
    """Return the tokens of each rollout, prompt and completion together."""
    both: Tensor = batch["prompt_mask"].sum(1) + batch["completion_mask"].sum(1)
    return [int(width) for width in both.tolist()]


def split_rollouts(batch: TRLBatch, limits: PassLimits) -> list[TRLBatch]:
    """Return the parts in which a micro-batch is read, each rollout with its images. What has no dimension stays whole."""
    return [_select(batch, rows) for rows in limits.cut(rollout_widths(batch))]


def sort_steps(micro_batches: Sequence[TRLBatch], per_step: int) -> list[TRLBatch]:
    """Return the micro-batches of each optimizer step (``per_step`` of them) sorted by length, the longest rollouts first."""
    batches = list(micro_batches)
    for start in range(0, len(batches), per_step):
        batches[start : start + per_step] = _sorted(batches[start : start + per_step])
    return batches


def _sorted(micro_batches: list[TRLBatch]) -> list[TRLBatch]:
    all_widths = [width for batch in micro_batches for width in rollout_widths(batch)]
    order = sorted(range(len(all_widths)), key=lambda row: -all_widths[row])
    if order == sorted(order):
        return micro_batches
    step = _select({name: _join([batch[name] for batch in micro_batches]) for name in micro_batches[0]}, order)
    return [dict(part) for part in split_tensor_dict(step, len(micro_batches))]


def _join(values: list[Any]) -> Any:
    if isinstance(values[0], list):
        return [row for value in values for row in value]
    return torch.cat(values) if isinstance(values[0], Tensor) and values[0].ndim else values[0]


def _select(batch: TRLBatch, rows: Sequence[int]) -> TRLBatch:
    selected: TRLBatch = {}
    for name, value in batch.items():
        if isinstance(value, list):
            selected[name] = [value[row] for row in rows]
        else:
            selected[name] = value[list(rows)] if isinstance(value, Tensor) and value.ndim else value
    return selected


def forward_fields(inputs: dict[str, Any], ids_NL: Tensor, image_token: int | None) -> Fields:
    """Return the model inputs besides the tokens ``ids_NL`` and their mask, images by row. TRL's own are the outputs of a
    processor, with ``num_images`` and ``num_tiles`` of each row. Raise NotImplementedError for inputs without a rule in
    families.py."""
    fields = {name: value for name, value in inputs.items() if value is not None and value is not False}
    num_images, _ = fields.pop("num_images", None), fields.pop("num_tiles", None)
    check_fields(fields.keys() - {IMAGE_ROWS})
    of_tokens = {name: fields[name] for name in TOKEN_FIELDS if name in fields}
    rows = fields.get(IMAGE_ROWS)
    if rows is None and "pixel_values" in fields:
        rows = split_images(fields, num_images, count_places(ids_NL, image_token))
    return of_tokens | ({} if rows is None else {IMAGE_ROWS: rows})


def pass_inputs(tokens: Fields, fields: Fields, rows: Sequence[int]) -> tuple[Tensor, Fields]:
    """Return the mask of ``rows``, and what a model reads of them: their ``tokens`` without padding, and their images."""
    index = torch.tensor(rows, device=tokens["input_ids"].device)
    of_rows = {name: values[index] for name, values in tokens.items()}
    images = image_fields_of_rows(fields, rows)
    return of_rows["attention_mask"], {**trim(of_rows, of_rows["attention_mask"]), **images}


def whole_pass(tokens: Fields, fields: Fields) -> Fields:
    """Return what a model reads of all rows: ``tokens`` (ids and their mask), and what else there is of them in ``fields``."""
    of_tokens = {name: fields[name] for name in TOKEN_FIELDS if fields.get(name) is not None}
    return pass_inputs(tokens | of_tokens, fields, range(len(tokens["input_ids"])))[1]


def completion_logprobs(
    model: Any,
    input_ids: Tensor,
    mask_NL: Tensor,
    fields: Fields,
    width: int,
    *,
    passes: Sequence[Sequence[int]],
    autocast: Callable[[], AbstractContextManager[Any]],
) -> tuple[Tensor, Tensor | None]:
    """Return log-probs and entropies [N, T] of the last ``width`` columns, 0 outside the mask, with gradient; entropies are
    None if the model gives none. ``passes`` are the rows read together."""
    tokens = {name: fields[name] for name in TOKEN_FIELDS if fields.get(name) is not None}
    labels = input_ids.masked_fill(mask_NL == 0, -100)
    labels[:, :-width] = -100  # only completions are scored
    tokens |= {"input_ids": input_ids, "attention_mask": mask_NL, "labels": labels}
    logprobs, entropies = [], []
    for rows in passes:
        mask, inputs = pass_inputs(tokens, fields, rows)
        with autocast():
            outputs = model(**inputs, fused_lm_head=True)
        logprobs.append(_scatter(outputs.log_probs, mask, width))
        if outputs.entropy is not None:
            entropies.append(_scatter(outputs.entropy, mask, width))
    restored = torch.tensor([row for rows in passes for row in rows], device=input_ids.device).argsort()
    return torch.cat(logprobs)[restored], torch.cat(entropies)[restored] if entropies else None


def _scatter(values: Tensor, mask_NL: Tensor, width: int) -> Tensor:
    """[N, T] of what a model says of every token but the first of each trimmed row."""
    columns = slice(mask_NL.size(1) - width, None)
    return untrim(pad(values, (1, 0)), mask_NL, columns).masked_fill(mask_NL[:, columns] == 0, 0)
