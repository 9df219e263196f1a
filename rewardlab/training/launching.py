"""What a configuration of ``accelerate launch`` says of a run."""

from __future__ import annotations

from pathlib import Path

import rewardlab.torchvision_cpu  # noqa: F401  (before transformers)

# isort: split
from accelerate.commands.config.config_args import load_config_from_file

from rewardlab.errors import ConfigError


def launcher_plan(path: Path) -> tuple[int, int, bool]:
    """(processes, ZeRO stage, whether the optimizer's state is kept in the host's memory) of a file; FSDP deals out as much as
    stage 3, and counts as it.

    Raises ConfigError for a file that accelerate does not take.
    """
    try:
        config = load_config_from_file(str(path))
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ConfigError(f"{path}: accelerate does not take it ({error}); see configs/accelerate/") from error
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    own = (config.deepspeed_config or {}) if kind == "DEEPSPEED" else {}
    zero = 3 if kind == "FSDP" else int(own.get("zero_stage", 0))
    return int(config.num_processes), zero, own.get("offload_optimizer_device", "none") != "none"
