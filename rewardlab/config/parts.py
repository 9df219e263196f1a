"""The parts of a config that a run may lack, and the keys that only they read.

A key of an absent part has no effect, so a value of it that differs from the default is refused: whoever tunes such a key would
read noise as an effect. Keys that no part names are read by every run of their schema.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel

ROLLOUT_SIGNS = (
    "health.window health.min_entropy health.max_invalid_frac health.length_factor health.max_position_bias "
    "health.hacking_drop health.min_explained_variance health.max_advantage_bias"
)


@dataclass(frozen=True)
class ConfigPart:
    """A part of the configs of ``schema`` and of the schemas below it.

    ``keys`` are dotted and separated by blanks, ``is_present`` takes a config, and ``cure`` says how the part is switched on
    ("" if it cannot be).
    """

    schema: str
    name: str
    keys: str
    is_present: Callable[[Any], bool]
    cure: str = ""


PARTS = (
    ConfigPart("TrainConfig", "a cosine", "min_lr_ratio", lambda c: c.lr_scheduler == "cosine", "set lr_scheduler to cosine"),
    ConfigPart("HealthConfig", "rollbacks", "max_rollbacks", lambda c: c.policy == "roll_back", "set policy to roll_back"),
    # without batch_size, which is memory: recipes set it for whoever switches evaluation on
    ConfigPart(
        "EvaluationConfig",
        "an evaluation",
        "images num_pairs seed every_steps metric blank_images patience keep_best max_tokens",
        lambda c: c.is_on,
        "set data or fraction",
    ),
    ConfigPart("EvaluationConfig", "a file of held-out pairs", "images", lambda c: c.data is not None, "set data"),
    ConfigPart("SFTConfig", "rollouts", ROLLOUT_SIGNS, lambda c: False),
    ConfigPart("PRMConfig", "rollouts", ROLLOUT_SIGNS, lambda c: False),
    ConfigPart("RMConfig", "judgments in words", "evaluation.max_tokens", lambda c: False),
    ConfigPart(
        "Method",
        "whitened advantages",
        "whiten_by outliers outlier_sigma",
        lambda c: c.estimator.by_token,
        "set advantage to reinforce_pp, reinforce_pp_baseline or gae",
    ),
    ConfigPart("Method", "a KL divergence", "kl", lambda c: c.kl_coef > 0, "set kl_coef above 0"),
    ConfigPart(
        "Method",
        "a critic",
        "gae_lambda gae_lambda_critic length_alpha value_clip value_clip_high window",
        lambda c: c.estimator.critic,
        "set advantage to gae",
    ),
    ConfigPart("Method", "a fixed lambda", "gae_lambda", lambda c: c.length_alpha is None, "set length_alpha to null"),
    ConfigPart("Method", "windows", "window_tail", lambda c: c.window is not None, "set window"),
    ConfigPart(
        "MethodConfig",
        "a critic",
        "value_learning_rate value_init value_pretrain_steps value_pretrain_batch_size value_patience "
        "health.min_explained_variance health.max_advantage_bias",
        lambda c: c.estimator.critic,
        "set advantage to gae",
    ),
    ConfigPart(
        "MethodConfig",
        "a pretrained critic",
        "value_pretrain_batch_size value_patience",
        lambda c: c.value_pretrain_steps > 0,
        "set value_pretrain_steps",
    ),
    ConfigPart(
        "MethodConfig",
        "dynamic sampling",
        "max_sampling_rounds difficulty_weighted",
        lambda c: c.dynamic_sampling != "off",
        "set dynamic_sampling to refill or oversample",
    ),
    ConfigPart(
        "MethodConfig",
        "the trainer's own decoder",
        "sampling_batch_size hot_token",
        lambda c: c.engine is None,
        "set engine to null",
    ),
    ConfigPart("EngineConfig", "kind serve", "args devices deadline_s ahead", lambda c: c.kind == "serve", "set kind to serve"),
    ConfigPart("EngineConfig", "kind server", "base_url", lambda c: c.kind == "server", "set kind to server"),
    ConfigPart(
        "EngineConfig",
        "kind colocate",
        "gpu_memory_utilization tensor_parallel",
        lambda c: c.kind == "colocate",
        "set kind to colocate",
    ),
    ConfigPart("RLConfig", "self-verification", "revision_bonus", lambda c: c.self_verify, "set self_verify to true"),
    ConfigPart(
        "RLConfig",
        "a process reward model",
        "process_wrong_weight process_correct_weight",
        lambda c: c.process_reward is not None,
        "set process_reward",
    ),
    ConfigPart("RLConfig", "easy pairs to add", "easy_ratio", lambda c: "1" not in c.attempts, 'leave "1" out of attempts'),
    ConfigPart("PolicyConfig", "verdicts to learn", "health.max_position_bias health.hacking_drop", lambda c: False),
    ConfigPart(
        "PolicyConfig",
        "a judge that compares",
        "other_judges judge_votes judge_max_tokens anchor anchor_samples phi health.max_invalid_frac signs.sample "
        "signs.canaries signs.second_judge signs.max_disagreement signs.max_blank_fall signs.max_second_gap "
        "signs.max_canary_fall",
        lambda c: not c.judge.startswith("rm:"),
        "set judge to hf:, prob: or openai:",
    ),
    ConfigPart(
        "PolicyConfig", "anchors of several samples", "anchor_samples", lambda c: c.anchor == "best", "set anchor to best"
    ),
    ConfigPart("PolicyConfig", "rewards by rule", "verified_kl_coef thinking", lambda c: c.verified, "set verified to true"),
    ConfigPart(
        "PolicyConfig",
        "answers that a rule reads",
        "contract",
        lambda c: c.verified or c.signs.truth == "rules",
        "set verified to true, or signs.truth to rules",
    ),
    ConfigPart("PolicyConfig", "a KL divergence", "verified_kl_coef", lambda c: c.kl_coef > 0, "set kl_coef above 0"),
    ConfigPart(
        "SignsConfig",
        "a sample",
        "second_judge max_blank_fall max_second_gap",
        lambda c: c.sample > 0,
        "set sample above 0",
    ),
    ConfigPart("SignsConfig", "a second judge", "max_second_gap", lambda c: c.second_judge is not None, "set second_judge"),
    ConfigPart("SignsConfig", "canaries", "max_canary_fall", lambda c: c.canaries > 0, "set canaries above 0"),
    ConfigPart("SignsConfig", "known answers", "max_overpaid", lambda c: c.truth != "none", "set truth to exact or rules"),
    ConfigPart(
        "DistillConfig",
        "single requests",
        "concurrency try_s deadline_s retries",
        lambda c: c.transport == "chat",
        "set transport to chat",
    ),
    ConfigPart(
        "DistillConfig",
        "batches of requests",
        "batch_requests batch_bytes poll_s",
        lambda c: c.transport == "batch",
        "set transport to batch",
    ),
    ConfigPart("DistillConfig", "sampling", "top_p", lambda c: c.temperature > 0, "set temperature above 0"),
    ConfigPart(
        "StepsConfig", "judgments to sample", "judgments_per_order", lambda c: c.source == "judge", "set source to judge"
    ),
    ConfigPart(
        "MappingConfig",
        "two responses with a label",
        "responses preferred first second ties",
        lambda c: c.chosen is None and c.rejected is None,
        "leave out chosen and rejected",
    ),
)


def parts_of(schema: type[BaseModel]) -> list[ConfigPart]:
    """Return the parts of a schema: its own, and those of the schemas above it."""
    names = {base.__name__ for base in schema.__mro__}
    return [part for part in PARTS if part.schema in names]


def refuse_unused_keys(config: BaseModel) -> None:
    """Raise ValueError for a key of an absent part that does not have its default."""
    for part in parts_of(type(config)):
        if part.is_present(config):
            continue
        for key in part.keys.split():
            value, default = _value_and_default(config, key)
            if value != default:
                cure = f"{part.cure}, or leave" if part.cure else "leave"
                raise ValueError(f"{key} {value!r} has no effect without {part.name}: {cure} {key} at its default, {default!r}")


def _value_and_default(config: BaseModel, key: str) -> tuple[Any, Any]:
    *above, last = key.split(".")
    for name in above:
        config = getattr(config, name)
    return getattr(config, last), type(config).model_fields[last].get_default(call_default_factory=True)
