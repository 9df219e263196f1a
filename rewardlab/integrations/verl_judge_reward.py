"""verl: the reward of a judge's rollout, the very one of ``rewardlab rl``, for a dataset of ``rewardlab data verl``.

    reward.reward_manager.source=importlib
    reward.reward_manager.name=JudgeReward
    reward.reward_manager.module.path=pkg://rewardlab.integrations.verl_judge_reward

R = 0.5 format + right (1 + 0.5 consistency). Consistency is judged by the model ``REWARDLAB_CONSISTENCY_MODEL`` at the
OpenAI-compatible endpoint ``REWARDLAB_CONSISTENCY_URL`` (its key: ``OPENAI_API_KEY``); without a URL its weight is 0. Ray's
processes must be given them: ``+ray_kwargs.ray_init.runtime_env.env_vars.REWARDLAB_CONSISTENCY_URL=http://HOST:8000/v1``.
Weights are ``+reward.reward_kwargs.format_weight=0.5``, ``consistency_weight``, ``overlong_margin`` (0: no penalty; tokens
before ``response_length`` over which length costs up to 1), and ``swap_weight`` (0), paid for naming the
winner that the other order's rollouts name. It needs both orders of a pair in one batch, and one worker that sees both:

    rewardlab data verl PAIRS --both-orders --shuffle 0 --out train.parquet
    data.shuffle=False  data.train_batch_size=<even>  reward.num_workers=1  +reward.reward_kwargs.swap_weight=0.5

and the same of the validation file, with ``rollout.val_kwargs.n`` as ``rollout.n``. Up to 1,000 rollouts (Ray's limit on one
actor) may be on their way then. verl logs the parts of the reward in validation. Whatever fails raises, and verl's agent loop
marks the prompt as failed: it is never a reward. Written for verl 0.9.1.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from verl import DataProto
from verl.experimental.reward_loop.reward_manager.base import RewardManagerBase

from rewardlab.config import ConsistencyConfig, RLConfig, load_config
from rewardlab.data.rows import criteria_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.integrations.judge_rewards import JudgeRewards
from rewardlab.rewards.consistency import EndpointConsistencyJudge
from rewardlab.rewards.judgment import SHIPPED, JudgedCompletion, terms_of
from rewardlab.rewards.scorer import as_completion
from rewardlab.types import Order

KEYS = {key.replace(".", "_"): key for key in SHIPPED}  # reward_kwargs -> keys of the config of `rewardlab rl`
FIELDS = ("pair_id", "question", "order", "preferred", "verdict_format")


class JudgeReward(RewardManagerBase):
    """The reward manager. Raise ConfigError, when created, for options that contradict each other, and DataError for a row
    without its label."""

    def __init__(self, config: Any, tokenizer: Any, compute_score: Any, *args: Any, **kwargs: Any) -> None:
        super().__init__(config, tokenizer, compute_score)
        options = dict(config.reward.get("reward_kwargs") or {})
        deadline_s = float(options.pop("pair_deadline_s", 600.0))
        if unknown := sorted(set(options) - set(KEYS)):
            raise ConfigError(f"reward_kwargs: unknown {', '.join(unknown)}; expected {', '.join(KEYS)}, pair_deadline_s")
        rollout = config.actor_rollout_ref.rollout
        judge = _consistency_judge(float(options.get("consistency_weight", 0.5)), required="consistency_weight" in options)
        keys = {KEYS[name]: value for name, value in options.items() if value or name != "overlong_margin"}
        if judge is None:
            keys["consistency.weight"] = 0.0
        terms = terms_of(load_config(RLConfig, None, keys | {"max_completion_length": int(rollout.response_length)}))
        if any(term.compares_orders for term in terms):
            self._check_swap(config, rollout)
        self._ends = tokenizer_end_ids(tokenizer, str(config.actor_rollout_ref.model.path))
        self._rewards = JudgeRewards(judge, terms, num_samples=int(rollout.n), deadline_s=deadline_s)

    @staticmethod
    def _check_swap(config: Any, rollout: Any) -> None:
        if int(config.reward.num_workers) != 1:
            raise ConfigError(
                f"swap_weight compares two rollouts in one process; set reward.num_workers=1, not {config.reward.num_workers}"
            )
        if int(rollout.n) != int(rollout.val_kwargs.n):
            raise ConfigError("swap_weight waits for as many rollouts in validation: set rollout.val_kwargs.n to rollout.n")
        if config.data.shuffle or int(config.data.train_batch_size) % 2:
            raise ConfigError("swap_weight needs both orders in one batch: data.shuffle=False, data.train_batch_size even")

    async def run_single(self, data: DataProto) -> dict[str, Any]:
        item = data[-1:][0]
        info = item.non_tensor_batch.get("extra_info") or {}
        if missing := [name for name in FIELDS if info.get(name) is None]:
            raise DataError(f"extra_info has no {', '.join(missing)}; write the dataset with `rewardlab data verl`")
        ids = item.batch["responses"]
        ids = ids[: int(item.batch["attention_mask"][-ids.shape[-1] :].sum())]
        text = await asyncio.to_thread(self.tokenizer.decode, ids, skip_special_tokens=True)
        completion = as_completion(text, ids.tolist(), self._ends)
        criteria = criteria_of(list(() if info.get("criteria") is None else info["criteria"]), info["pair_id"])
        order, preferred = Order(info["order"]), int(info["preferred"])
        rollout = JudgedCompletion(completion, info["question"], order, preferred, info["pair_id"], criteria)
        reward = await self._rewards.reward(rollout, info["pair_id"], info["verdict_format"])
        return {"reward_score": reward["score"], "reward_extra_info": reward}


def _consistency_judge(weight: float, *, required: bool) -> EndpointConsistencyJudge | None:
    """Return the endpoint of the environment, or None. Raise ConfigError for a weight without an endpoint, if ``required``."""
    url = os.environ.get("REWARDLAB_CONSISTENCY_URL")
    if not url or not weight:
        if weight and required:
            raise ConfigError("consistency_weight is set and REWARDLAB_CONSISTENCY_URL is not; name an endpoint, or drop it")
        return None
    options = {"model": model} if (model := os.environ.get("REWARDLAB_CONSISTENCY_MODEL")) else {}
    config = ConsistencyConfig.model_validate({"base_url": url, "weight": weight, **options})
    return EndpointConsistencyJudge(config, api_key=os.environ.get(config.api_key_env, "none"))


def tokenizer_end_ids(tokenizer: Any, model: str) -> frozenset[int]:
    """Return the tokens that end a completion: the tokenizer's, and those of a local checkpoint's generation config."""
    ends = {tokenizer.eos_token_id} - {None}
    path = Path(model) / "generation_config.json"
    if path.is_file():
        generation: Mapping[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        end = generation.get("eos_token_id")
        ends |= set(end if isinstance(end, list) else [] if end is None else [end])
    if not ends:
        raise ConfigError(f"{model}: neither tokenizer nor generation config defines an end-of-sequence token")
    return frozenset(ends)
