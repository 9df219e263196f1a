"""Log-probs and entropies of completions, with little padding read: TRL's model call, on rows without theirs.

Shapes: ``N`` rows, ``L`` columns of prompt and completion padded, ``T`` of the completion.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from rewardlab.models.families import FORWARD_KEYS, TOKEN_FIELDS, Fields, image_fields_of_rows
from rewardlab.models.padding import trim, untrim


def forward_fields(inputs: dict[str, Any]) -> Fields:
    """Return the model inputs besides tokens and their mask. Raise NotImplementedError for inputs without a rule in
    families.py."""
    if unknown := [
        name for name, value in inputs.items() if value is not None and value is not False and name not in FORWARD_KEYS
    ]:
        raise NotImplementedError(f"no rule for distributing {unknown}")
    return {name: value for name, value in inputs.items() if name in FORWARD_KEYS}


def pass_inputs(tokens: Fields, fields: Fields, rows: Sequence[int]) -> tuple[Tensor, Fields]:
    """Return the mask of ``rows``, and what a model reads of them: their ``tokens`` without padding, and their images."""
    index = torch.tensor(rows, device=tokens["input_ids"].device)
    of_rows = {name: values[index] for name, values in tokens.items()}
    images = image_fields_of_rows(fields, rows)
    images.pop("num_images", None)
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
