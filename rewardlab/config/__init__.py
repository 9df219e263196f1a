"""Schemas of ``configs/*.yaml``. Class defaults are the paper's recipe (arXiv 2505.02835); a YAML holds only differences.

An unknown key is an error. Numbers without a source in the paper carry a reason beside them. Every key has a description:
`rewardlab configs keys STAGE` and the documentation are made from them.
"""

from __future__ import annotations

from rewardlab.config.base import EvaluationConfig, HealthConfig, LoraConfig, PixelConfig, TrainConfig
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
from rewardlab.config.files import (
    SCHEMAS,
    config_names,
    configs_folder,
    find_config,
    find_configs,
    find_schema,
    name_of_config,
    shipped_folder,
    stage_of,
)
from rewardlab.config.judge import SuiteConfig
from rewardlab.config.loading import config_keys, load_config, load_yaml, parse_overrides, resolved_yaml
from rewardlab.config.policy import PolicyConfig, SignsConfig
from rewardlab.config.rl import (
    ConsistencyConfig,
    CovarianceConfig,
    EngineConfig,
    EntropyConfig,
    HotTokenConfig,
    ImportanceConfig,
    Method,
    MethodConfig,
    ObjectiveName,
    RLConfig,
)
from rewardlab.config.supervised import DPOConfig, PRMConfig, RMConfig, SFTConfig

__all__ = [
    "SCHEMAS",
    "BuildConfig",
    "ConsistencyConfig",
    "CovarianceConfig",
    "DPOConfig",
    "DistillConfig",
    "EngineConfig",
    "EntropyConfig",
    "EvaluationConfig",
    "FilterConfig",
    "HealthConfig",
    "HotTokenConfig",
    "ImportanceConfig",
    "LoraConfig",
    "MappingConfig",
    "MatchConfig",
    "Method",
    "MethodConfig",
    "NegativesConfig",
    "ObjectiveName",
    "PRMConfig",
    "PixelConfig",
    "PolicyConfig",
    "RLConfig",
    "RMConfig",
    "SFTConfig",
    "SelfDistilConfig",
    "SignsConfig",
    "StepsConfig",
    "SuiteConfig",
    "TrainConfig",
    "config_keys",
    "config_names",
    "configs_folder",
    "find_config",
    "find_configs",
    "find_schema",
    "load_config",
    "load_yaml",
    "name_of_config",
    "parse_overrides",
    "resolved_yaml",
    "shipped_folder",
    "stage_of",
]
