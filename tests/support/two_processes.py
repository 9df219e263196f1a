"""Run by torchrun: a few actor-critic steps, and what each process is left with."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rewardlab.config import ConsistencyConfig, RLConfig
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.training.policy_gradient.critic import StopAtPlateau, StopRule
from rewardlab.training.rl import build_trainer, rl_rows
from rewardlab.types import PreferencePair
from tests.support.rewards import TokenReward


def main(checkpoint: Path, out: Path) -> None:
    rank = int(os.environ["RANK"])
    config = RLConfig(
        model=str(checkpoint),
        template="plain",
        advantage="gae",
        outliers="keep",
        preclip=None,
        learning_rate=1e-3,
        rollout_batch_size=16,
        batch_size=8,
        micro_batch_size=4,
        max_steps=4,
        save_steps=4,
        max_completion_length=8,
        gradient_checkpointing=False,
        consistency=ConsistencyConfig(weight=0.0),
    )
    pairs = [replace(pair, attempts="2") for pair in make_pairs(16, seed=0, held_out=False)[0]]
    model, processor = load_model(str(checkpoint), device="cpu")
    template = load_template("plain")
    reward = TokenReward(lambda ids, n: float(sum(ids) % 5))
    rows = rl_rows(pairs, template, both_orders=True)
    trainer = build_trainer(rows, config, model, processor, template, out, reward=reward)
    with torch.no_grad():
        trainer.critic.head.weight.fill_(0.01)

    def digests(state: dict[str, torch.Tensor]) -> dict[str, str]:
        parts = {"policy": hashlib.sha256(), "critic": hashlib.sha256()}
        for name, weight in sorted(state.items()):
            parts["critic" if name.startswith("critic.") else "policy"].update(weight.float().cpu().numpy().tobytes())
        return {name: digest.hexdigest() for name, digest in parts.items()}

    before = digests(trainer.model.state_dict())
    trainer.train()
    if trainer.is_deepspeed_enabled and trainer.deepspeed.zero_optimization_stage() == 3:
        import deepspeed

        after = {}
        for name, weight in trainer.deepspeed.module.named_parameters():
            with deepspeed.zero.GatheredParameters([weight]):
                after[name] = weight.detach().clone()
    else:
        after = dict(trainer.accelerator.unwrap_model(trainer.model).named_parameters())
    rollouts = [ids for batch in reward.calls for ids in batch]
    results = {"before": before, "after": digests({name: weight.detach() for name, weight in after.items()})}
    results["rollouts"] = rollouts
    trainer.save_model(str(out / "saved"))
    if not trainer.is_deepspeed_enabled:
        results |= plans_agree(config, pairs, checkpoint, out / "plans", rank)
    (out / f"rank{rank}.json").write_text(json.dumps(results))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
    sys.stdout.flush()
    os._exit(0)  # DeepSpeed's threads sometimes abort an interpreter that ends by itself


def plans_agree(config: RLConfig, pairs: list[PreferencePair], checkpoint: Path, out: Path, rank: int) -> dict[str, float]:
    """Value pre-training that stops at a plateau, and oversampling, where what each process sees differs."""
    template = load_template("plain")
    rows = rl_rows(pairs, template, both_orders=True)
    out.mkdir(exist_ok=True)

    def built(changes: dict[str, Any], correct: Callable[[list[int], int], float], **more: Any) -> Any:
        model, processor = load_model(str(checkpoint), device="cpu")
        changed = RLConfig(**{**config.model_dump(), **changes})
        reward = TokenReward(correct, correct=correct)
        return build_trainer(rows, changed, model, processor, template, out, reward=reward, **more)

    alone = built({"max_steps": 24}, lambda ids, n: float(sum(ids) % (3 + 4 * rank)), value_only=True)
    alone.add_callback(StopAtPlateau(StopRule(minimum=-100.0, patience=1)))
    alone.train()
    sampling = {"advantage": "grpo", "outliers": "delete", "group_size": 2, "dynamic_sampling": "oversample", "max_steps": 4}
    over = built(sampling, lambda ids, n: float(n % 2) if rank == 0 else float(n % 8 == 0))  # decided: none, and three in four
    over.train()
    return {"pretrained": alone.state.global_step, "factor": over._parts.dynamic.state_dict()["ratio"]}


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
