"""What a run of `rewardlab harden` is given, and what is refused before it begins."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from rewardlab.config import SCHEMAS, PolicyConfig, RLConfig, SFTConfig, load_config, load_yaml, parse_overrides
from rewardlab.data.pair_table import fingerprint_of, pair_facts
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.loading import check_folder
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.base import HF, OPENAI
from rewardlab.training.run.inputs import pairs_of

C = TypeVar("C", PolicyConfig, RLConfig, SFTConfig)


@dataclass(frozen=True)
class HardenPlan:
    """What a run of the loop is given. ``data`` are the questions of the policy and the labelled pairs of the judge,
    ``held_out`` the pairs that neither must lose on; ``truth`` is that of `rewardlab data negatives`.

    ``policy_keys``, ``sft_keys`` and ``judge_keys`` are KEY=VALUE of their configs; without an ``sft_config`` the judge learns
    by RL alone. ``number`` questions are asked of the policy, for negatives, and of each of its ``checkpoints``, to see how
    often it is right. For each negative there are ``mix`` labelled pairs of the set in the judge's training. ``judge_file`` is
    that of `rewardlab serve --judge-file`.
    """

    data: str
    held_out: str
    policy: str
    judge: str
    policy_config: str
    judge_config: str
    truth: str
    rounds: int = 3
    sft_config: str = ""
    policy_keys: tuple[str, ...] = ()
    sft_keys: tuple[str, ...] = ()
    judge_keys: tuple[str, ...] = ()
    number: int = 1000
    least_reward: float = 0.25
    mix: float = 12.0
    max_tokens: int = 1024
    judge_max_tokens: int = 1024
    checkpoints: int = 4
    judge_file: str = ""
    seed: int = 0


def check_plan(plan: HardenPlan) -> None:
    """Raise what a stage would raise, before hours of a policy's training: ConfigError for a truth or a config, DataError for
    pairs, CheckpointError for a folder that is not there, EndpointError where a teacher does not answer, or nothing does about
    consistency, which the judge is paid for."""
    from rewardlab.training.rl import require_consistency_judge

    if plan.truth.startswith("judge:"):
        _check_teacher(plan.truth.removeprefix("judge:"))
    elif plan.truth not in ("exact", "rules"):
        raise ConfigError(f"truth {plan.truth}: expected exact, rules or judge:SPEC")
    for stage, path in (("policy", plan.policy_config), ("sft", plan.sft_config), ("rl", plan.judge_config)):
        if (folder := Path(path).parent.name) in SCHEMAS and folder != stage:
            raise ConfigError(f"{path}: is a config of `rewardlab {folder}`; expected one of `rewardlab {stage}`")
    policy_config(plan)
    if plan.sft_config:
        config_of_stage(SFTConfig, plan.sft_config, plan.sft_keys, model=plan.judge)
    _check_held_out(plan)
    require_consistency_judge(config_of_stage(RLConfig, plan.judge_config, plan.judge_keys, model=plan.judge))


def _check_teacher(spec: str) -> None:
    parsed = JudgeSpec.parse(spec)
    if parsed.engine == HF:
        check_folder(parsed.target)
    elif parsed.engine == OPENAI:
        open_generative_judge(spec, max_tokens=1).check()


def _check_held_out(plan: HardenPlan) -> None:
    frames = policy_config(plan).frames
    data, held_out = (pairs_of(path, frames, plan.judge) for path in (plan.data, plan.held_out))
    facts = list(pair_facts(held_out))
    if unlabelled := sum(each.preferred is None for each in facts):
        raise DataError(
            f"{plan.held_out}: {unlabelled:,} of {len(facts):,} pairs have no label; both judges are tested on all of them"
        )
    if len({each.pair_id for each in facts}) < len(facts):
        raise DataError(f"{plan.held_out}: some pairs share a pair_id; an answer is known by the id of its pair")
    if shared := len({each.pair_id for each in facts} & {each.pair_id for each in pair_facts(data)}):
        log_line(f"{plan.held_out}: {shared:,} of {len(facts):,} pairs have the pair_id of one of --data; are they others?")
    if fingerprint_of(held_out) == fingerprint_of(data):
        raise ConfigError(f"{plan.held_out}: holds the pairs of --data; a judge that learns them is not tested on them")


def config_of_stage(schema: type[C], path: str, keys: Sequence[str], **more: Any) -> C:
    return load_config(schema, Path(path), parse_overrides(keys), **more)


def policy_config(plan: HardenPlan) -> PolicyConfig:
    """Return the policy's config; its checkpoints are the loop's affair where the user names no steps between them."""
    given = {**load_yaml(Path(plan.policy_config)), **parse_overrides(plan.policy_keys)}
    names = ("rollout_batch_size", "batch_size", "iterations")
    sizes = [given.get(name, PolicyConfig.model_fields[name].default) for name in names]
    fit: dict[str, Any] = {}
    if "save_steps" not in given and all(isinstance(size, int) and size > 0 for size in sizes):  # else it is refused below
        rollouts, batch, iterations = sizes
        fit = {"save_steps": max(1, rollouts // batch * iterations)}
    return config_of_stage(PolicyConfig, plan.policy_config, plan.policy_keys, judge=f"prob:{plan.judge}", **fit)
