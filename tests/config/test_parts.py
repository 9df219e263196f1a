"""No dead key: a key of a part that a run lacks is refused, whatever the schema; the other odd configs have an effect."""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin

import pytest
import torch
from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from rewardlab.config import SCHEMAS, DistillConfig, EngineConfig, PolicyConfig, RLConfig, SFTConfig, load_config
from rewardlab.config.base import ConfigPart, parts_of
from rewardlab.errors import ConfigError
from rewardlab.rl.objectives import ppo_clip

# Keys without which a part that a default config has is absent, by the part's name.
WITHOUT: dict[str, dict[str, Any]] = {
    "a cosine": {"lr_scheduler": "linear"},
    "rollbacks": {"health.policy": "warn"},
    "a file of held-out pairs": {"evaluation.fraction": 0.1},
    "whitened advantages": {"advantage": "grpo", "group_size": 2},
    "a clip of ratios": {"objective": "cispo"},
    "an upper clip": {"objective": "sapo"},
    "PPO's clip": {"objective": "gmpo"},
    "a target": {"entropy.coef": 0.1},
    "Clip-Cov": {"covariance.kind": "kl"},
    "a fixed lambda": {"advantage": "gae", "length_alpha": 0.05},
    "a pretrained critic": {"advantage": "gae"},
    "the trainer's own decoder": {"engine": {"kind": "serve"}},
    "kind serve": {"engine.kind": "colocate"},
    "kind server": {"engine.kind": "serve"},
    "kind colocate": {"engine.kind": "serve"},
    "easy pairs to add": {"attempts": ["1", "2"]},
    "a judge": {"judge": None, "verified": True},
    "a judge that compares": {"judge": "rm:runs/rm/final"},
    "anchors of several samples": {"anchor": "start"},
    "a sample": {"signs.sample": 0},
    "canaries": {"signs.canaries": 0},
    "single requests": {"transport": "batch"},
    "sampling": {"temperature": 0.0},
    "judgments to sample": {"source": "pairs"},
    "two responses with a label": {"chosen": "a", "rejected": "b"},
}
REQUIRED = {"recipes": {"name": "mine", "question": "q"}}


def parts_within(schema: type[BaseModel], path: str = "") -> Iterator[tuple[ConfigPart, str, FieldInfo]]:
    """Yield (part, dotted key, field) of a schema and of the mappings within it."""
    for part in parts_of(schema):
        for key in part.keys.split():
            where = schema
            *above, last = key.split(".")
            for name in above:
                where = model_of(where.model_fields[name].annotation)
            yield part, path + key, where.model_fields[last]
    for name, field in schema.model_fields.items():
        if (inner := model_of(field.annotation)) is not None:
            yield from parts_within(inner, f"{path}{name}.")


def model_of(annotation: Any) -> Any:
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def other_value(field: FieldInfo) -> Any:
    """Return a value that the field takes and that is not its default."""
    default, kinds = field.get_default(call_default_factory=True), [field.annotation]
    if get_origin(field.annotation) in (Union, UnionType):
        kinds = [kind for kind in get_args(field.annotation) if kind is not type(None)]
    (kind,) = kinds[:1]
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != default)
    if kind is bool:
        return not default
    if kind is int:
        return default - 1 if default and default > 1 else (default or 0) + 1
    if kind is float:
        return default / 2 if default else max([0.5] + [2 * bound.gt for bound in field.metadata if hasattr(bound, "gt")])
    if get_origin(kind) is tuple:
        return [2 * value for value in default]
    if model_of(kind):
        return {}
    return ["x", "y"] if get_origin(kind) is list else "x"


CASES = [
    pytest.param(stage, part, key, field, id=f"{stage} {part.name}: {key}")
    for stage, schema in SCHEMAS.items()
    for part, key, field in parts_within(schema)
]


@pytest.mark.parametrize(("stage", "part", "key", "field"), CASES)
def test_a_key_of_an_absent_part_is_refused(stage: str, part: ConfigPart, key: str, field: FieldInfo) -> None:
    """By its name, with what would give it an effect; at its default it is accepted."""
    base = {**REQUIRED.get(stage, {}), **WITHOUT.get(part.name, {})}
    default = field.get_default(call_default_factory=True)
    load_config(SCHEMAS[stage], None, base if key in base or key.split(".")[0] in base else {**base, key: default})
    with pytest.raises(ConfigError) as caught:
        load_config(SCHEMAS[stage], None, {**base, key: other_value(field)})
    message = str(caught.value)
    assert key.split(".")[-1] in message
    assert "has no effect without" in message or "leave" in message, message


@pytest.mark.parametrize(
    ("schema", "keys"),
    [
        (RLConfig, {"kl": "k3_loss"}),
        *((RLConfig, {"advantage": name, "group_size": 4, "outliers": "keep"}) for name in ("grpo", "dr_grpo", "rloo")),
        (RLConfig, {"advantage": "gae", "length_alpha": 0.05, "gae_lambda": 0.9}),
        (RLConfig, {"hot_token": {"position": 1024}}),
        (RLConfig, {"clip_low": 1.5}),
        (RLConfig, {"covariance": {"low": 5.0}}),
        (RLConfig, {"advantage": "gae", "window": 8, "max_completion_length": 64, "window_tail": 8}),
        (EngineConfig, {"kind": "colocate", "args": "--enforce-eager"}),
        (PolicyConfig, {"judge": "rm:x", "phi": "logit"}),
        (PolicyConfig, {"judge": "rm:x", "signs": {"second_judge": "hf:y"}}),
        (SFTConfig, {"evaluation": {"patience": 3}}),
        (DistillConfig, {"poll_s": 5}),
    ],
)
def test_odd_configs_are_refused(schema: type[BaseModel], keys: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        schema(**keys)


def test_odd_clips_have_an_effect() -> None:
    """clip_high below clip_low, and dual_clip within the upper bound, are accepted: they change the loss."""
    ratio, advantages = torch.tensor([[1.15, 1.15, 0.9]]), torch.tensor([[1.0, -1.0, 1.0]])
    plain = ppo_clip(ratio, advantages, 0.2)
    assert ppo_clip(ratio, advantages, 0.2, clip_high=0.1)[0, 0] != plain[0, 0]
    assert ppo_clip(ratio, advantages, 0.2, dual_clip=1.05)[0, 1] != plain[0, 1]
