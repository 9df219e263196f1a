"""What TRL's own two ways of sampling by vLLM are given of a policy with adapters."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peft import PeftModel
from torch import Tensor

from rewardlab.errors import ConfigError
from rewardlab.models.loading import merged_weights


def send_merged_copies(generation: Any) -> None:
    """Have TRL's ``VLLMGeneration`` send merged copies of weights with adapters; merging in place, as it does by itself,
    changes the weights below them a little at every update. Raise ConfigError where FSDP shards what would be merged."""
    if not isinstance(generation.model, PeftModel):
        return
    if generation._dist.is_fsdp:
        raise ConfigError(
            "an engine is sent lora's adapters merged, which FSDP leaves in parts: take DDP or ZeRO, or no engine"
        )

    def weights() -> Iterator[tuple[str, Tensor]]:
        for name, weight in merged_weights(generation.model, generation._dist.gather_params):
            yield generation._fix_param_name_to_vllm(name, extra_prefixes=["modules_to_save.default."]), weight

    generation._iter_named_params = weights
