"""What a run of `rewardlab harden` is given, and what is refused before it begins."""

from __future__ import annotations

import math
import shlex
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from rewardlab.config import SCHEMAS, PolicyConfig, RLConfig, SFTConfig, load_config, load_yaml, parse_overrides
from rewardlab.config.loading import nest
from rewardlab.data.pair_table import fingerprint_of, pair_facts
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.engines import open_generative_judge
from rewardlab.judging.spec import JudgeSpec, local_checkpoint
from rewardlab.models.checkpoints import check_folder, load_template_for
from rewardlab.prompts import load_template
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
    that of `rewardlab serve --judge-file`; ``launcher`` is the command line that starts the processes of a training stage.
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
    launcher: str = ""


def with_absolute_paths(plan: HardenPlan) -> HardenPlan:
    """Return a plan that is the same from any working directory: paths of files are absolute, and so are those of a policy and
    of judges that are local folders. Paths in keys and in configs stay as they are."""
    files = ("data", "held_out", "policy_config", "judge_config", "sft_config", "judge_file")
    places: dict[str, Any] = {name: _absolute(path) for name in files if (path := getattr(plan, name))}
    places |= {name: _absolute(model) for name in ("policy", "judge") if Path(model := getattr(plan, name)).is_dir()}
    teacher = plan.truth.removeprefix("judge:")
    if teacher != plan.truth and (folder := local_checkpoint(teacher)):
        places["truth"] = f"judge:{replace(JudgeSpec.parse(teacher), target=_absolute(str(folder)))}"
    return replace(plan, **places)


def _absolute(name: str) -> str:
    """Return a path from the root on. Of a file the last name stays as it is: that of a link says what kind of file it is, and
    in a cache nothing else does."""
    path = Path(name)
    return str(path.resolve() if path.is_dir() else path.parent.resolve() / path.name)


def launcher_words(plan: HardenPlan) -> list[str]:
    """Return the words of the launcher, none without one. Raise ConfigError for what a shell would not take, and for a program
    that is not there."""
    try:
        words = shlex.split(plan.launcher)
    except ValueError as error:
        raise ConfigError(f"--launcher {plan.launcher}: cannot be read ({error}); expected a command line") from error
    if words and shutil.which(words[0]) is None:
        raise ConfigError(
            f"--launcher {plan.launcher}: there is no program {words[0]}; expected a command line such as `accelerate launch "
            "--num_processes 8`"
        )
    return words


def check_plan(plan: HardenPlan) -> None:
    """Raise what a stage would raise, before hours of a policy's training: ConfigError for a truth, a config, a launcher or a
    judge file, DataError for pairs, CheckpointError for a folder that is not there and for a judge of another template,
    EndpointError where a teacher does not answer, or nothing does about consistency, which the judge is paid for."""
    from rewardlab.training.rl import require_consistency_judge

    if plan.truth.startswith("judge:"):
        _check_teacher(plan.truth.removeprefix("judge:"))
    elif plan.truth not in ("exact", "rules"):
        raise ConfigError(f"truth {plan.truth}: expected exact, rules or judge:SPEC")
    for stage, path in (("policy", plan.policy_config), ("sft", plan.sft_config), ("rl", plan.judge_config)):
        if (folder := Path(path).parent.name) in SCHEMAS and folder != stage:
            raise ConfigError(f"{path}: is a config of `rewardlab {folder}`; expected one of `rewardlab {stage}`")
    if plan.judge_file and Path(plan.judge_file).is_dir():
        raise ConfigError(f"--judge-file {plan.judge_file}: is a folder; name a file")
    launcher_words(plan)
    policy_keys = keys_of_policy(plan, plan.seed)
    config_of_stage(PolicyConfig, plan.policy_config, policy_keys, model=plan.policy, judge=f"prob:{plan.judge}")
    rl = config_of_stage(RLConfig, plan.judge_config, keys_of_rl(plan, plan.seed), model=plan.judge)
    if plan.sft_config:
        sft = config_of_stage(SFTConfig, plan.sft_config, keys_of_sft(plan, plan.seed), model=plan.judge)
        if load_template(rl.template).hash != load_template(sft.template).hash:
            raise ConfigError(
                f"{plan.judge_config}: has the template {rl.template}, and {plan.sft_config} has {sft.template}; RL goes on "
                "from what SFT leaves, so give both the same"
            )
    else:
        load_template_for(plan.judge, rl.template)
    _check_held_out(plan)
    require_consistency_judge(rl)


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


def keys_of_policy(plan: HardenPlan, seed: int) -> list[str]:
    """Return KEY=VALUE of `rewardlab policy` in a round."""
    of_loop: dict[str, Any] = {
        "save_steps": _save_steps(plan),
        "save_total_limit": plan.checkpoints + 1,
        "max_completion_length": plan.max_tokens,
        "judge_max_tokens": plan.judge_max_tokens,
        "seed": seed,
        "health.policy": "warn",
        **({"signs.truth": plan.truth} if plan.truth in ("exact", "rules") else {}),
    }
    return _keys(of_loop, plan.policy_keys)


def keys_of_sft(plan: HardenPlan, seed: int) -> list[str]:
    """Return KEY=VALUE of `rewardlab sft` in a round."""
    return _keys({"seed": seed, "health.policy": "warn"}, plan.sft_keys)


def keys_of_rl(plan: HardenPlan, seed: int) -> list[str]:
    """Return KEY=VALUE of `rewardlab rl` in a round."""
    return _keys({"seed": seed, "health.policy": "warn"}, plan.judge_keys)


def _keys(of_loop: Mapping[str, Any], given: Sequence[str]) -> list[str]:
    """Return the keys of the loop, but for what the user gives: by the same name, or by that of a mapping around it."""
    chosen = nest(parse_overrides(given))
    return [*(f"{name}={value}" for name, value in of_loop.items() if not _sets(chosen, name)), *given]


def _sets(values: Mapping[str, Any], name: str) -> bool:
    """Return whether nested values set a dotted key: itself, or all that is below a part of its name."""
    part, _, rest = name.partition(".")
    if part not in values:
        return False
    below = values[part]
    return _sets(below, rest) if rest and isinstance(below, Mapping) else True


def _save_steps(plan: HardenPlan) -> int:
    """Return the steps between two checkpoints of a policy, so that it has about as many as the plan says; where epochs decide,
    by the questions of the set, all of which are trained on: the anchor that needs a label refuses a set that lacks one."""
    config = policy_config(plan)
    steps = config.max_steps
    if steps <= 0:
        sequences = len(pairs_of(plan.data, config.frames, plan.judge)) * config.group_size * config.iterations
        steps = math.ceil(config.epochs * sequences / config.batch_size)
    period = config.steps_of_rollouts  # a checkpoint is whole where a batch of rollouts is
    return period * max(1, math.ceil(steps / plan.checkpoints / period))
