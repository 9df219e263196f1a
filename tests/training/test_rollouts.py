"""Where rollouts come from: the prompts of each epoch, one hot token, prompts with and without an image side by side."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from accelerate.data_loader import prepare_data_loader, skip_first_batches
from torch.utils.data import DataLoader
from trl.trainer.utils import RepeatSampler

from rewardlab.config import HotTokenConfig, RLConfig
from rewardlab.models.loading import load_model
from rewardlab.prompts import load_template
from rewardlab.rewards.rollout import Rollout, Scored, Trajectory
from rewardlab.training.policy_gradient.batch import RolloutBatch
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource, RolloutSampler, SetSamplerEpoch
from rewardlab.training.policy_gradient.rollouts.strategies import TruncatedRollouts
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import build_trainer, rl_rows, train_rl
from rewardlab.types import PreferencePair
from tests.support.configs import short_rl_config
from tests.support.killing import Kill, KilledError
from tests.support.rewards import TokenReward


@pytest.fixture(scope="module")
def tagged(demo_pairs: Any) -> list[PreferencePair]:
    return [replace(pair, attempts="2") for pair in demo_pairs[0][:32]]


def test_a_resumed_run_goes_on_in_its_own_epoch() -> None:
    """Prompts come as TRL's sampler gives them, epoch by epoch; told the epoch, a new sampler begins there."""
    theirs = RepeatSampler(range(11), mini_repeat_count=3, batch_size=4, repeat_count=2, shuffle=True, seed=5)
    ours = RolloutSampler(11, batch=4, group_size=3, repeats=2, seed=5)
    epochs = [list(theirs) for _ in range(3)]
    assert [list(ours) for _ in range(3)] == epochs
    assert len(ours) == len(epochs[0])
    resumed = RolloutSampler(11, batch=4, group_size=3, repeats=2, seed=5)
    resumed.set_epoch(2)
    assert list(resumed) == epochs[2]


def test_the_epoch_reaches_the_sampler_of_two_processes() -> None:
    """Behind accelerate's shards and skipped batches: told by the callback, both processes go on in the third permutation."""
    whole = RolloutSampler(16, batch=4, group_size=2, repeats=1, seed=1)
    whole.set_epoch(2)
    expected = list(whole)
    for process in range(2):
        sampler = RolloutSampler(16, batch=4, group_size=2, repeats=1, seed=1)
        loader = DataLoader(list(range(16)), batch_size=4, sampler=sampler)
        sharded = prepare_data_loader(loader, num_processes=2, process_index=process, split_batches=False, put_on_device=False)
        resumed = skip_first_batches(sharded, 1)
        resumed.set_epoch(2)
        SetSamplerEpoch(lambda sampler=sampler: sampler).on_epoch_begin(None, SimpleNamespace(epoch=2.25), None)
        batches = [batch.tolist() for batch in DataLoader(range(16), batch_sampler=resumed.batch_sampler)]
        own = [expected[start : start + 4] for start in range(4 * process, len(expected), 8)]
        assert batches == own[1:]


def next_rows(rollouts: TruncatedRollouts) -> list[int]:
    """The numbers of four rows; of the rollouts made of them the last is not finished."""
    rows = rollouts.choose_rows([{}] * 4)
    made = [Rollout(row, [], Trajectory([5, 6], finished=n < 3), "") for n, row in enumerate(rows)]
    rollouts.collect(made, lambda finished: Scored([0.0] * len(finished), [0.0] * len(finished), [True] * len(finished)))
    return [row["number"] for row in rows]


def test_rollouts_in_windows_go_on_where_they_stopped() -> None:
    """With what was not finished, and behind it with the fresh prompts that the run would have taken."""
    rows = [{"number": n} for n in range(10)]
    first, second = (TruncatedRollouts(PromptSource(rows, seed=seed), 4) for seed in (3, 4))
    begun = next_rows(first)
    second.load_state_dicts([first.state_dict()])
    expected = [next_rows(first) for _ in range(10)]
    assert expected[0][0] == begun[-1]
    assert [next_rows(second) for _ in range(10)] == expected


@pytest.mark.nightly
def test_a_run_killed_in_its_second_epoch(tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Four steps an epoch, killed at the sixth: the resumed run sees the prompts that the uninterrupted one sees."""
    config = short_rl_config(
        tiny_checkpoint, max_steps=8, batch_size=8, save_steps=2, both_orders=False, health={"policy": "warn"}
    )
    seen: dict[str, list[list[int]]] = {"whole": [], "parts": []}

    generate = PolicyTrainer._generate_and_score_completions

    def observed(name: str, *callbacks: Kill) -> None:
        def spy(self: Any, inputs: Any) -> Any:
            seen[name].append([row["row"] for row in inputs])
            return generate(self, inputs)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(PolicyTrainer, "_generate_and_score_completions", spy)
            train_rl(tagged, config, tmp_path / name, callbacks=callbacks)

    observed("whole")
    with pytest.raises(KilledError):
        observed("parts", Kill(6))
    observed("parts")
    assert len(seen["whole"]) == 8
    assert seen["whole"][3] != seen["whole"][4]
    assert seen["parts"][-2:] == seen["whole"][-2:]


def built(pairs: list[PreferencePair], config: RLConfig, out: Path, **more: Any) -> Any:
    model, processor = load_model(config.model, device="cpu")
    rows = rl_rows(pairs, load_template("plain"), both_orders=config.both_orders)
    return build_trainer(rows, config, model, processor, load_template("plain"), out, **more)


def test_a_hot_token_reaches_the_sampler_and_is_not_learnt(
    tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """At a temperature of nearly 0 all rollouts of a prompt would be one; the hot token makes them differ, and is masked."""
    config = short_rl_config(tiny_checkpoint, group_size=8, temperature=1e-3, both_orders=False)
    firsts = {}
    for name, hot in (("plain", None), ("hot", {"temperature": 1e6, "position": 0})):
        trainer = built(tagged[:8], config.model_copy(update={"hot_token": hot and HotTokenConfig(**hot)}), tmp_path / name)
        batch = trainer._generate_and_score_completions([trainer.train_dataset[0]] * 8)
        firsts[name] = set(batch["completion_ids"][:, 0].tolist())
        assert batch["loss_mask"][:, 0].tolist() == [int(name == "plain")] * 8
        assert bool(batch["loss_mask"][:, 1].all())
        returns = [set(row[mask > 0].tolist()) for row, mask in zip(batch["advantages"], batch["loss_mask"], strict=True)]
        assert all(len(own) == 1 for own in returns)  # one return for all tokens of a rollout, the last one included
    assert len(firsts["plain"]) == 1
    assert len(firsts["hot"]) > 2
    after_think = config.model_copy(update={"hot_token": HotTokenConfig()})
    trainer = built(tagged[:8], after_think, tmp_path / "think")
    opening = trainer.processing_class.tokenizer.encode("<think>", add_special_tokens=False)
    assert trainer._sampling.hot_token.position == len(opening)


def alone(batch: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Each row of a batch by itself: no padding before its prompt, its own image or none."""
    for row, images in enumerate(batch["image_rows"]):
        prompt = batch["prompt_mask"][row].bool()
        own = {name: batch[name][row : row + 1] for name in ("completion_ids", "completion_mask")}
        own |= {name: batch[name][row : row + 1, prompt] for name in ("prompt_ids", "prompt_mask")}
        if images:
            own["image_rows"] = [images]
            if "mm_token_type_ids" in batch:
                kept = torch.cat([prompt, torch.ones(batch["completion_ids"].shape[1], dtype=torch.bool)])
                own["mm_token_type_ids"] = batch["mm_token_type_ids"][row : row + 1, kept]
        yield own


def test_pairs_with_and_without_an_image_in_one_batch(
    tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """Whichever comes first, chosen by dynamic sampling or not; the log-probs are those of each prompt alone."""
    mixed = [replace(pair, images=()) if n % 3 == 0 else pair for n, pair in enumerate(tagged[:8])]
    for kind in ("off", "refill"):
        config = short_rl_config(
            tiny_checkpoint, advantage="grpo", preclip=None, group_size=2, dynamic_sampling=kind, both_orders=False
        )
        reward = TokenReward(lambda ids, n: float(n % 2), correct=lambda ids, n: float(n % 2))
        trainer = built(mixed, config, tmp_path / kind, reward=reward)
        rows = [trainer.train_dataset[n // 2] for n in range(8)]
        batch = trainer._generate_and_score_completions(rows)
        together = trainer._logprobs(trainer.model, RolloutBatch.from_trl(batch), 8)[0].detach()
        assert sorted({len(images.get("image_grid_thw", ())) for images in batch["image_rows"]}) == [0, 1]
        for row, own in enumerate(alone(batch)):
            length = int(batch["completion_mask"][row].sum())
            logprobs = trainer._logprobs(trainer.model, RolloutBatch.from_trl(own), 1)[0].detach()[0, :length]
            torch.testing.assert_close(together[row, :length], logprobs, atol=1e-4, rtol=1e-3)
