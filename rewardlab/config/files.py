"""Configs by path, by name and by stage: ``rl/grpo`` is ``configs/rl/grpo.yaml`` of stage rl, in a wheel as in a checkout."""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path

from pydantic import BaseModel

from rewardlab.config.data import (
    BuildConfig,
    DistillConfig,
    FilterConfig,
    MappingConfig,
    MatchConfig,
    NegativesConfig,
    SelfDistilConfig,
    StepsConfig,
)
from rewardlab.config.judge import JudgeConfig
from rewardlab.config.pipeline import HardenConfig, PipelineConfig
from rewardlab.config.policy import PolicyConfig
from rewardlab.config.rl import RLConfig
from rewardlab.config.supervised import DPOConfig, PRMConfig, RMConfig, SFTConfig
from rewardlab.errors import ConfigError

# stage -> schema, of configs/STAGE/*.yaml and of files called STAGE.yaml
SCHEMAS: dict[str, type[BaseModel]] = {
    "distill": DistillConfig,
    "sft": SFTConfig,
    "dpo": DPOConfig,
    "rm": RMConfig,
    "rl": RLConfig,
    "prm": PRMConfig,
    "steps": StepsConfig,
    "policy": PolicyConfig,
    "recipes": MappingConfig,
    "harden": HardenConfig,
    "pipelines": PipelineConfig,
    "judge": JudgeConfig,
    "self-distil": SelfDistilConfig,
    "build": BuildConfig,
    "filter": FilterConfig,
    "decontaminate": MatchConfig,
    "negatives": NegativesConfig,
}
_PACKAGE = Path(__file__).parents[1]


def configs_folder() -> Path:
    """Return the folder of the configs that ship: inside the installed package, or else beside it in the checkout."""
    installed = _PACKAGE / "configs"
    return installed if installed.is_dir() else _PACKAGE.parent / "configs"


def config_names() -> list[str]:
    """Return the names of all configs that ship, such as ``rl/grpo``."""
    folder = configs_folder()
    return sorted(path.relative_to(folder).with_suffix("").as_posix() for path in folder.rglob("*.yaml"))


def find_config(name_or_path: str | Path, stage: str | None = None) -> Path:
    """Return the file of a config: of a path that exists, else of a name; ``configs/rl/grpo.yaml`` is a name, too. A short name
    such as ``grpo`` is looked up among the configs of ``stage``, or of all stages. Raise ConfigError for an unknown name, with
    the nearest ones, and for an ambiguous one.
    """
    path = Path(name_or_path)
    try:
        if path.exists() and not path.is_dir():  # also a pipe
            return path
    except OSError as error:  # a name that no file can have
        raise ConfigError(
            f"{str(name_or_path)[:80]}...: cannot be read ({error.strerror}); expected a file or a name"
        ) from error
    name, names = path.as_posix().removeprefix("configs/").removesuffix(".yaml"), config_names()
    shared = [full for full in names if full.split("/")[-1] == name and (stage is None or full == f"{stage}/{name}")]
    if name in names or len(shared) == 1:
        return configs_folder() / f"{name if name in names else shared[0]}.yaml"
    if shared:
        raise ConfigError(f"{name_or_path}: several configs have this name; give one of {', '.join(shared)}")
    raise ConfigError(
        f"{name_or_path}: cannot be read (no such file), and no config that ships has this name; {_cure(name, names, stage)}"
    )


def _cure(name: str, names: list[str], stage: str | None) -> str:
    """Return a sentence with the names nearest to ``name``, those of the stage first."""
    ours = [full for full in names if stage and full.startswith(f"{stage}/")]
    short = {full.split("/")[-1]: full for full in [*reversed(names), *ours]}
    leaf = name.split("/")[-1]
    candidates = [
        *(full for full in names if full.endswith(f"/{leaf}")),
        *get_close_matches(name, names, n=3),
        *(short[near] for near in get_close_matches(leaf, short, n=2)),
        *(full for full in ours or names if leaf and leaf in full),
    ]
    if near := sorted(dict.fromkeys(candidates), key=lambda full: full not in ours)[:3]:
        return f"did you mean {' or '.join(near)}?"
    return f"`rewardlab configs list{f' {stage}' if stage else ''}` names them all"


def find_configs(name_or_path: str | Path) -> Path:
    """Return a folder of configs: of a path that exists, else of a name under ``configs/``. Raise ConfigError for neither."""
    path = Path(name_or_path)
    for folder in (path, configs_folder() / path):
        if folder.is_dir() and any(folder.rglob("*.yaml")):
            return folder
    names = sorted({name.split("/")[0] for name in config_names()})
    raise ConfigError(f"{name_or_path}: no such folder; expected one of yours, or one that ships: {', '.join(names)}")


def shipped_folder(name: str) -> Path | None:
    """Return a folder of files that ship (``accelerate``, ``launch``), scripts among them; None where none has this name."""
    return next((folder for folder in configs_folder().iterdir() if folder.is_dir() and folder.name == name), None)


def name_of_config(path: Path) -> str:
    """Return the name of a config that ships, else its path: what ``--config`` takes."""
    folder = configs_folder()
    if path.suffix == ".yaml" and path.is_relative_to(folder):
        return path.relative_to(folder).with_suffix("").as_posix()
    return str(path)


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
