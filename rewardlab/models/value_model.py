"""A vision-language model with one number per token instead of logits.

It is the critic of PPO and related methods, the process reward model, and the Bradley-Terry reward model: these differ in their
targets and in the positions that are used. A :class:`RankingModel` keeps its language model: it also explains.

Shapes: ``N`` rows, ``L`` tokens of prompt and completion together, ``T`` of the completion, ``K`` responses of a list.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Self

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from transformers import AutoModelForImageTextToText

from rewardlab.data.files import write_atomic
from rewardlab.errors import CheckpointError
from rewardlab.models import precision
from rewardlab.models.attention import choose_attention
from rewardlab.models.families import TOKEN_FIELDS, image_fields_of_rows
from rewardlab.models.loading import load_config_of, read_model, without_zero3_init
from rewardlab.models.padding import PassLimits, trim, untrim
from rewardlab.models.vision_tower import prepare_vision_tower

WEIGHTS, HEAD, CONFIG = "value_model.safetensors", "ranking_head.safetensors", "config.json"


class _Scorer(nn.Module):
    """A transformers model, ``inner``, and what is computed of its hidden states."""

    in_tiles = False  # whether TRL's fused head computes the logits of labels, as in training

    @property
    def inner(self) -> Any:
        return self.language_model

    def label_losses(self, labels_NL: Tensor, inputs: dict[str, Tensor]) -> Tensor:
        """Return [N], the sums of the negative log-likelihoods of the tokens of ``labels_NL`` that are not -100, as the model's
        own forward computes logits."""
        if self.in_tiles:
            return -self.inner(**inputs, labels=labels_NL, fused_lm_head=True).log_probs.sum(1)  # type: ignore[no-any-return]
        most = labels_NL.shape[1] - int((labels_NL != -100).any(0).int().argmax())  # tokens from the first label on
        logits_NKV = self.inner(**inputs, use_cache=False, logits_to_keep=most + 1).logits[:, :-1].float()
        return cross_entropy(logits_NKV.transpose(1, 2), labels_NL[:, -most:], reduction="none").sum(1)

    @classmethod
    def for_scoring(cls, folder: Path, device: str | torch.device, *, attention: str = "auto") -> Self:
        """Return a saved model on ``device`` for inference: in bfloat16 on a GPU, else in float32. Raise as
        ``from_pretrained``."""
        dtype = torch.float32 if torch.device(device).type == "cpu" else torch.bfloat16
        model: Self = cls.from_pretrained(str(folder), dtype=dtype, attention=attention)  # type: ignore[attr-defined]
        return model.to(device).eval().requires_grad_(False)

    @property
    def is_gradient_checkpointing(self) -> bool:
        return bool(self.inner.is_gradient_checkpointing)

    def activation_checkpointing_enable(self, *args: Any, **kwargs: Any) -> None:
        """Switch activation checkpointing on, by its newer name or its older one."""
        enable = getattr(self.inner, "activation_checkpointing_enable", None)
        (enable or self.inner.gradient_checkpointing_enable)(*args, **kwargs)


class ValueModel(_Scorer):
    """A backbone and a linear head, initialised with zeros."""

    def __init__(self, backbone: nn.Module, config: Any) -> None:
        super().__init__()
        self.backbone, self.config = backbone, config
        self.head = nn.Linear(config.get_text_config().hidden_size, 1)  # float32: scores of 8 bits would tie too often
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @property
    def inner(self) -> Any:
        return self.backbone

    @classmethod
    def from_pretrained(cls, model: str, *, dtype: torch.dtype = torch.float32, attention: str = "auto") -> ValueModel:
        """Return the backbone of checkpoint ``model`` with a new head, or a value model that :meth:`save` wrote.

        ``dtype`` is that of the backbone, ``attention`` as in :func:`rewardlab.models.loading.load_model`; on a GPU float32
        weights compute under autocast. Raise CheckpointError if the weights do not fit the config, ConfigError.
        """
        folder, config = Path(model), load_config_of(model)
        in_16_bits = dtype != torch.float32 or precision.trains_in_bfloat16()
        kernel = choose_attention(attention, config, in_16_bits=in_16_bits)
        if not (folder / WEIGHTS).exists():
            language_model = read_model(model, dtype=dtype, attn_implementation=kernel)
            return cls(prepare_vision_tower(language_model.model), language_model.config)
        with without_zero3_init():
            language_model = AutoModelForImageTextToText.from_config(config, dtype=dtype, attn_implementation=kernel)
            value_model = cls(prepare_vision_tower(language_model.model), config)
        try:
            value_model.load_state_dict(load_file(folder / WEIGHTS))
        except (RuntimeError, SafetensorError) as error:
            raise CheckpointError(f"{folder}: {WEIGHTS} does not fit config.json ({str(error)[:300]})") from error
        return value_model

    def save(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """Write weights (``state`` if they were gathered already) and then the config into ``folder``."""
        folder.mkdir(parents=True, exist_ok=True)
        weights = self.state_dict() if state is None else state
        save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, folder / WEIGHTS)
        write_atomic(folder / CONFIG, json.dumps(self.config.to_dict(), indent=1, default=str) + "\n")

    def forward(self, **inputs: Any) -> Tensor:
        """Return [N, L], one number after each token of the inputs, images included."""
        hidden_NLD = self.backbone(**inputs, use_cache=False).last_hidden_state
        return self.head(hidden_NLD.to(self.head.weight.dtype))[..., 0].float()  # type: ignore[no-any-return]


class LikelihoodModel(_Scorer):
    """A language model whose score of a response is the log-likelihood of the response as its own answer, in nats: the implicit
    reward without a reference (DPO, arXiv 2305.18290, eq. 5; fitted as in CPO, arXiv 2401.08417)."""

    def __init__(self, language_model: Any) -> None:
        super().__init__()
        self.language_model, self.config = language_model, language_model.config

    @classmethod
    def from_pretrained(cls, model: str, *, dtype: torch.dtype = torch.float32, attention: str = "auto") -> LikelihoodModel:
        """Return the language model of checkpoint ``model``. Raise as :meth:`ValueModel.from_pretrained`."""
        return cls(_language_model(model, dtype, attention))

    def save(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """Write the language model into ``folder``; ``state``: weights that were gathered already."""
        weights = self.state_dict() if state is None else state
        of_model = {name.removeprefix("language_model."): value for name, value in weights.items()}
        self.language_model.save_pretrained(folder, state_dict=of_model)

    def forward(self, labels: Tensor, **inputs: Any) -> Tensor:
        """Return [N, 1], the log-likelihoods of the tokens of ``labels`` [N, L] that are not -100."""
        return -self.label_losses(labels, inputs)[:, None]


def _language_model(model: str, dtype: torch.dtype, attention: str) -> Any:
    config = load_config_of(model)
    in_16_bits = dtype != torch.float32 or precision.trains_in_bfloat16()
    language_model = read_model(
        model, dtype=dtype, attn_implementation=choose_attention(attention, config, in_16_bits=in_16_bits)
    )
    prepare_vision_tower(language_model.model)
    return language_model


class RankingModel(_Scorer):
    """A whole language model and a linear head, initialised with zeros, that scores the K responses of a prompt after its last
    token, where all of them have been read: one model that ranks in one pass and explains when it is sampled (JRM, arXiv
    2602.07533; all responses in one pass: MR², arXiv 2604.10966, which reads each at its own end).

    Its folder is a checkpoint of the language model, with the head in a file of its own.
    """

    def __init__(self, language_model: Any, num_scores: int) -> None:
        super().__init__()
        self.language_model, self.config = language_model, language_model.config
        self.head = nn.Linear(self.config.get_text_config().hidden_size, num_scores)
        nn.init.zeros_(self.head.weight)
        nn.init.zeros_(self.head.bias)

    @classmethod
    def from_pretrained(
        cls, model: str, num_scores: int = 2, *, dtype: torch.dtype = torch.float32, attention: str = "auto"
    ) -> RankingModel:
        """Return the language model of checkpoint ``model`` with a new head of ``num_scores``, or with the one that
        :meth:`save` wrote, whatever its size. Raise as :meth:`ValueModel.from_pretrained`."""
        language_model, path = _language_model(model, dtype, attention), Path(model) / HEAD
        if not path.exists():
            return cls(language_model, num_scores)
        try:
            weights = load_file(path)
            made = cls(language_model, len(weights["bias"]))
            made.head.load_state_dict(weights)
        except (RuntimeError, SafetensorError, KeyError) as error:
            raise CheckpointError(f"{path}: does not fit config.json ({str(error)[:300]})") from error
        return made

    def save(self, folder: Path, state: dict[str, Tensor] | None = None) -> None:
        """Write the language model, and then the head, into ``folder``; ``state``: weights that were gathered already."""
        weights = self.state_dict() if state is None else state
        parts: dict[str, dict[str, Tensor]] = {"language_model": {}, "head": {}}
        for name, value in weights.items():
            part, _, rest = name.partition(".")
            parts[part][rest] = value
        self.language_model.save_pretrained(folder, state_dict=parts["language_model"])
        save_file({name: value.detach().cpu().contiguous() for name, value in parts["head"].items()}, folder / HEAD)

    def forward(self, reads: Tensor | None = None, labels: Tensor | None = None, **inputs: Any) -> tuple[Tensor, Tensor | None]:
        """Return [N, K] scores, and [N] mean negative log-likelihoods of the tokens of ``labels`` [N, L] that are not -100
        (0 of a row without any; None without labels). ``reads`` [N] are the places of the tokens after which the scores are
        read; None: the last ones."""
        backbone, losses_N = self.language_model.model, None
        if labels is None:
            hidden_NLD = backbone(**inputs, use_cache=False).last_hidden_state
        else:
            read: list[Any] = []
            with backbone.register_forward_hook(lambda module, given, output: read.append(output.last_hidden_state)):
                losses_N = self.label_losses(labels, inputs) / (labels[:, 1:] != -100).sum(1).clamp(min=1)
            hidden_NLD = read[0]
        rows = torch.arange(len(hidden_NLD), device=hidden_NLD.device)
        last = hidden_NLD.shape[1] - 1
        hidden_ND = hidden_NLD[rows, torch.full_like(rows, last) if reads is None else reads]
        return self.head(hidden_ND.to(self.head.weight.dtype)).float(), losses_N


def completion_values(
    model: ValueModel, batch: Mapping[str, Any], *, limits: PassLimits, autocast: Callable[[], AbstractContextManager[Any]]
) -> Tensor:
    """Return [N, T + 1] values of a rollout batch: after each prompt, and after each token of its completion.

    The first T are the values before each completion token, the last T those after it; padding has the value of an earlier
    token. Without gradient, in passes within ``limits``.
    """
    mask = torch.cat([batch["prompt_mask"], batch["completion_mask"]], 1)
    tokens = {"input_ids": torch.cat([batch["prompt_ids"], batch["completion_ids"]], 1), "attention_mask": mask}
    tokens |= {name: batch[name] for name in TOKEN_FIELDS if batch.get(name) is not None}
    columns = slice(batch["prompt_ids"].size(1) - 1, mask.size(1))
    values = mask.new_zeros((len(mask), columns.stop - columns.start), dtype=torch.float32)
    for rows in limits.cut(mask.sum(1).tolist()):
        index = torch.tensor(rows, device=mask.device)
        images = image_fields_of_rows(batch, rows)
        with torch.no_grad(), autocast():
            read = model(**trim({name: value[index] for name, value in tokens.items()}, mask[index]), **images)
        values[index] = untrim(read, mask[index], columns)
    return values
