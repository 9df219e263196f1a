"""What a configuration of ``accelerate launch`` says of a run."""

from __future__ import annotations

from pathlib import Path

import rewardlab.torchvision_cpu  # noqa: F401  (before transformers)

# isort: split
from accelerate.commands.config.config_args import load_config_from_file

from rewardlab.errors import ConfigError


def launcher_plan(path: Path) -> tuple[int, int]:
    """(processes, ZeRO stage) of a file; FSDP deals out as much as stage 3, and counts as it.

    Raises ConfigError for a file that accelerate does not take.
    """
    try:
        config = load_config_from_file(str(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: accelerate does not take it ({error}); see configs/accelerate/") from error
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    zero = 3 if kind == "FSDP" else int((config.deepspeed_config or {}).get("zero_stage", 0)) if kind == "DEEPSPEED" else 0
    return int(config.num_processes), zero
