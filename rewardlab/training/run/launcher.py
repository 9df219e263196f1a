"""What a configuration of ``accelerate launch`` says of a run."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from accelerate.commands.config.config_args import load_config_from_file

from rewardlab.errors import ConfigError


@dataclass(frozen=True)
class Launch:
    """How many processes train, at which ZeRO stage (FSDP deals out as much as stage 3, and counts as it), and whether the
    optimizer's state is kept in the host's memory."""

    processes: int = 1
    zero: int = 0
    offload: bool = False


def read_launch(path: Path) -> Launch:
    """What a file says. Raises ConfigError for one that accelerate does not take."""
    try:
        config = load_config_from_file(str(path))
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise ConfigError(f"{path}: accelerate does not take it ({error}); see configs/accelerate/") from error
    kind = str(getattr(config.distributed_type, "value", config.distributed_type))
    deepspeed = (config.deepspeed_config or {}) if kind == "DEEPSPEED" else {}
    zero = 3 if kind == "FSDP" else int(deepspeed.get("zero_stage", 0))
    return Launch(int(config.num_processes), zero, deepspeed.get("offload_optimizer_device", "none") != "none")
