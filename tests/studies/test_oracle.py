"""The critic without an error of its own: values of prefixes by completing them, in a trainer that then has no critic."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from eval.studies.oracle import OracleValues
from rewardlab.models.families import end_token_ids
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.training.rl import build_trainer, rl_rows
from tests.support.configs import WITH_CRITIC, short_rl_config
from tests.support.rewards import TokenReward

PLAIN = load_template("plain")


def first_token(ids: list[int], n: int) -> float:
    return float(ids[0] % 5)


@pytest.mark.parametrize("stride", [1, 3])
def test_a_reward_that_the_first_token_decides(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, stride: int) -> None:
    """From the first completed state after it on, every value is the reward itself; before, it is a mean of rewards."""
    pairs = [replace(pair, attempts="2") for pair in demo_pairs[0][:8]]
    config = short_rl_config(tiny_checkpoint, **WITH_CRITIC)
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    reward, length = TokenReward(first_token), config.max_completion_length
    oracle = OracleValues(
        model, processor, reward, completions=4, max_tokens=length, ends=end_token_ids(model), stride=stride, batch_size=12
    )
    rows = rl_rows(pairs, PLAIN, both_orders=True)
    trainer = build_trainer(rows, config, model, processor, PLAIN, tmp_path, reward=reward, values=oracle)
    trainer.model.train()
    batch = trainer._generate_and_score_completions([dict(rows.dataset[n]) for n in range(8)])
    for row in range(8):
        tokens = batch["completion_ids"][row][batch["completion_mask"][row] > 0]
        values = batch["old_values"][row]
        assert values[stride : len(tokens)].tolist() == [float(tokens[0] % 5)] * (len(tokens) - stride)
        assert not values[len(tokens) :].any()
        assert (4 * values[0]) % 1 == 0  # a mean of four
    assert oracle.num_tokens >= 4 * sum(len(range(0, int(mask.sum()), stride)) for mask in batch["completion_mask"])
    assert all(max(map(len, ids)) <= length for ids in reward.calls)


def test_training_with_it(demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path) -> None:
    """The policy moves by its advantages; there is no critic."""
    pairs = [replace(pair, attempts="2") for pair in demo_pairs[0][:8]]
    config = short_rl_config(tiny_checkpoint, **WITH_CRITIC)
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    before = torch.cat([weight.flatten().clone() for weight in model.parameters()])
    reward = TokenReward(first_token)
    oracle = OracleValues(model, processor, reward, completions=2, max_tokens=8, ends=end_token_ids(model))
    rows = rl_rows(pairs, PLAIN, both_orders=True)
    trainer = build_trainer(
        rows, config, model, processor, PLAIN, tmp_path, reward=reward, values=oracle, trl={"save_strategy": "no"}
    )
    trainer.train()
    after = torch.cat([weight.flatten() for weight in trainer.model.parameters()])
    assert len(after) == len(before)
    assert not torch.equal(after, before)
    logged = [row for row in trainer.state.log_history if "value/explained_variance" in row]
    assert logged
    assert "value/loss" not in logged[0]
