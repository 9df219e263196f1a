"""The number that a scalar reward model gives a response seen alone: the pointwise reward that judges are compared with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rewardlab.metrics.running import Metrics
from rewardlab.models.checkpoints import template_for
from rewardlab.models.loading import load_processor, this_device
from rewardlab.models.value_model import ValueModel
from rewardlab.prompts import Template, build_messages
from rewardlab.rewards.pairwise import Anchors, without_thinking
from rewardlab.samplers.hf import encode
from rewardlab.types import BOTH_ORDERS, Message, PreferencePair


def single_response_prompt(pair: PreferencePair, response: int, template: Template) -> tuple[Message, ...]:
    """Return the prompt that shows response 0 or 1 and not the other: a template of a single response fills in the first of an
    order."""
    return build_messages(pair, order=BOTH_ORDERS[response], template=template)


@torch.inference_mode()
def score_responses(
    model: ValueModel, processor: Any, pairs: Sequence[PreferencePair], template: Template, *, batch_size: int = 64
) -> Tensor:
    """Return [B, 2], the number of either response. sigmoid(r_0 - r_1) is the probability that response 0 is the better one."""
    device, scores = next(model.parameters()).device, [torch.empty(0)]
    at_once = max(1, batch_size // 2)
    for start in range(0, len(pairs), at_once):
        some = pairs[start : start + at_once]
        prompts = [single_response_prompt(pair, response, template) for pair in some for response in (0, 1)]
        inputs = encode(processor, prompts)
        scores.append(model.eval()(**{name: values.to(device) for name, values in inputs.items()})[:, -1].cpu())
    return torch.cat(scores).view(-1, 2)


class ScalarReward:
    """Pays the number that a Bradley-Terry head gives a response seen alone; anchors are not looked at."""

    least: float | None = None
    parity: float | None = None

    def __init__(self, folder: Path, *, batch_size: int = 64) -> None:
        self._template = template_for(folder, None)
        self._model, self._processor = ValueModel.for_scoring(folder, this_device()), load_processor(str(folder))
        self._batch_size = batch_size

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        if not responses:  # all were cut off
            return [], {}
        answers = [without_thinking(response) for response in responses]
        pairs = [replace(question, responses=(answer, answer)) for question, answer in zip(questions, answers, strict=True)]
        scores = score_responses(self._model, self._processor, pairs, self._template, batch_size=self._batch_size)[:, 0]
        return [float(value) for value in scores], {}
