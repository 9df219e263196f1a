"""Reward models as judges: a sampler whose text is the scores of its head, which :func:`rewardlab.verdicts.lists.read_scores`
reads, so that whatever takes judges of lists takes a head.

A score is in logits: sigmoid of the difference of two is the probability that the first response is the better one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rewardlab.errors import CheckpointError
from rewardlab.models.checkpoints import read_card
from rewardlab.models.loading import load_processor, this_device
from rewardlab.models.value_model import HEAD, WEIGHTS, LikelihoodModel, RankingModel, ValueModel
from rewardlab.prompts import REPLY, Template
from rewardlab.samplers.base import HEADS, EngineOptions, Sampler, SamplingParams
from rewardlab.samplers.hf import encode, encode_replies
from rewardlab.types import Completion, FinishReason, Message
from rewardlab.verdicts.lists import SCORES, write_list


def head_template(template: Template) -> Template:
    """Return the template of a head that was trained on ``template``: the same prompt, read as scores."""
    return replace(template, verdict_format=SCORES)


class HeadSampler:
    """Scores the responses of prompts, ``batch_size`` at a time. A draw is the same whatever the sampling parameters."""

    is_batch_invariant = False

    def __init__(self, model: Any, processor: Any, *, name: str = HEADS, batch_size: int = 64) -> None:
        self._model, self._processor, self.name, self._batch_size = model, processor, name, batch_size

    @staticmethod
    def load(path: str, *, batch_size: int) -> HeadSampler:
        """Return the sampler of a folder that `rewardlab rm` wrote. Raise CheckpointError for another one."""
        folder, device = Path(path), this_device()
        if not any((folder / file).exists() for file in (HEAD, WEIGHTS)) and (read_card(folder) or {}).get("template") != REPLY:
            raise CheckpointError(
                f"{folder}: not a reward model ({HEAD} or {WEIGHTS} is missing); expected the output of `rewardlab rm`"
            )
        kind: Any = RankingModel if (folder / HEAD).exists() else ValueModel if (folder / WEIGHTS).exists() else LikelihoodModel
        processor = load_processor(str(folder))
        return HeadSampler(kind.for_scoring(folder, device), processor, name=f"{HEADS}:{path}", batch_size=batch_size)

    def check(self) -> None:
        """Do nothing: a loaded model is always there."""

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        """Return for each prompt its scores, as often as there are samples to draw."""
        completions = []
        for start in range(0, len(prompts), self._batch_size):
            rows = prompts[start : start + self._batch_size]
            inputs = (encode_replies if rows[0][-1].role == "assistant" else encode)(self._processor, rows)
            for scores_K, mask_L in zip(self._scores(inputs), inputs["attention_mask"], strict=True):
                text = write_list(SCORES, scores_K.tolist(), "")
                completions.append([Completion(text, FinishReason.STOP, 0, int(mask_L.sum()))] * params.num_samples)
        return completions

    @torch.inference_mode()
    def _scores(self, inputs: dict[str, torch.Tensor]) -> torch.Tensor:
        """Return [N, K] scores after the last token of each prompt."""
        device = next(self._model.parameters()).device
        out = self._model.eval()(**{name: values.to(device) for name, values in inputs.items()})
        scores_NK = out[:, -1:] if isinstance(out, torch.Tensor) else out[0]
        return scores_NK.cpu()


def open_sampler(target: str, options: EngineOptions) -> Sampler:
    """Return the sampler of a reward model's folder, in a process of its own if it is to be restarted."""
    from rewardlab.samplers.child_process import ProcessSampler

    opener = partial(HeadSampler.load, target, batch_size=options.query.batch_size)
    return opener() if options.restart_after_s is None else ProcessSampler(opener, timeout_s=options.restart_after_s)
