"""The stages that have a config, and which stage a config is of."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel

from rewardlab.config.data import DistillConfig, MappingConfig, StepsConfig
from rewardlab.config.judge import JudgeConfig
from rewardlab.config.pipeline import HardenConfig, PipelineConfig
from rewardlab.config.policy import PolicyConfig
from rewardlab.config.rl import RLConfig
from rewardlab.config.supervised import PRMConfig, RMConfig, SFTConfig
from rewardlab.errors import ConfigError

# stage -> schema, of configs/STAGE/*.yaml and of files called STAGE.yaml
SCHEMAS: dict[str, type[BaseModel]] = {
    "distill": DistillConfig,
    "sft": SFTConfig,
    "rm": RMConfig,
    "rl": RLConfig,
    "prm": PRMConfig,
    "steps": StepsConfig,
    "policy": PolicyConfig,
    "recipes": MappingConfig,
    "harden": HardenConfig,
    "pipelines": PipelineConfig,
    "judge": JudgeConfig,
}


def find_schema(stage: str) -> type[BaseModel]:
    """Return the schema of a stage. Raise ConfigError that names the nearest stage, or all of them."""
    if stage in SCHEMAS:
        return SCHEMAS[stage]
    near = get_close_matches(stage, SCHEMAS, n=1)
    cure = f"did you mean {near[0]!r}?" if near else f"stages are {', '.join(SCHEMAS)}"
    raise ConfigError(f"{stage}: no such stage; {cure}")


def stage_of_schema(schema: type[BaseModel]) -> str | None:
    """Return the stage whose configs ``schema`` describes; None for a schema of no stage, such as a suite's."""
    return next((stage for stage, other in SCHEMAS.items() if other is schema), None)


def stage_of(path: Path, stage: str | None = None) -> str:
    """Return ``stage``, or else ``rl`` for ``configs/rl/x.yaml`` and for ``rl.yaml``. Raise ConfigError for no stage."""
    if stage:
        find_schema(stage)
        return stage
    for name in (path.stem, path.parent.name):
        if name in SCHEMAS:
            return name
    raise ConfigError(f"{path}: neither its name nor its folder names its stage; add --stage, one of {', '.join(SCHEMAS)}")
