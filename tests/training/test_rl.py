"""What RL trains on, what its reward function hands to the trainer, and that a run learns and leaves its records."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.config import ConsistencyConfig, LoraConfig
from rewardlab.data.images import decode_image
from rewardlab.errors import CheckpointError, ConfigError, DataError, EndpointError, InputError, OutputError
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.judgment import RewardTerm
from rewardlab.rewards.rollout import Rollout, Scored, Trajectory
from rewardlab.rewards.scorer import JudgmentReward, JudgmentScorer
from rewardlab.samplers.hf import chat_of
from rewardlab.training.policy_gradient.rollouts.prompts import RolloutSampler
from rewardlab.training.rl import hard_pairs, rl_rows, train_rl
from rewardlab.training.run.resume import run_steps
from rewardlab.training.run.runner import count_steps
from rewardlab.types import Choice, Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict
from tests.support.configs import short_rl_config
from tests.support.rewards import TokenReward, reward_terms, values_of

PLAIN = load_template("plain")


def test_hard_pairs(tagged: list[PreferencePair]) -> None:
    """Tags 2, 3 and unsolved; easy ones by ratio, drawn by the seed; pairs without a label never."""
    hard = hard_pairs(tagged, short_rl_config())
    assert [p.attempts for p in hard].count("1") == 0
    assert len(hard) == 30
    mixed = hard_pairs(tagged, short_rl_config(easy_ratio=0.2))
    assert ([p.attempts for p in mixed].count("1"), len(mixed)) == (6, 36)
    assert mixed == hard_pairs(tagged, short_rl_config(easy_ratio=0.2))
    assert len(hard_pairs(tagged, short_rl_config(attempts=["unsolved"]))) == 10
    with pytest.raises(DataError, match="no pair says which response is preferred"):
        hard_pairs([replace(p, preferred=None) for p in tagged], short_rl_config())
    with pytest.raises(DataError, match=r"no pair has one of the tags attempts=\['2', '3', 'unsolved'\], only \['1'\]"):
        hard_pairs([replace(p, attempts="1") for p in tagged], short_rl_config())
    with pytest.raises(DataError, match="the pairs' attempts are 'banana', which is not a difficulty tag"):
        hard_pairs([replace(tagged[0], attempts="banana"), *tagged], short_rl_config())


def test_pairs_without_a_teacher(tagged: list[PreferencePair], monkeypatch: pytest.MonkeyPatch) -> None:
    """All labelled ones are trained on, and the log says so; with a tag anywhere, tags decide."""
    lines: list[str] = []
    monkeypatch.setattr("rewardlab.training.rl.log_line", lines.append)
    own = [replace(pair, attempts="", preferred=pair.preferred if n else None) for n, pair in enumerate(tagged)]
    assert hard_pairs(own, short_rl_config()) == own[1:]
    assert lines == ["these pairs have no difficulty tags: training on all 39 labelled ones"]
    assert hard_pairs([*own, replace(own[1], attempts="2")], short_rl_config()) == [replace(own[1], attempts="2")]
    assert len(lines) == 1


@pytest.mark.parametrize("changes", [{}, {"iterations": 2, "save_steps": 4}, {"group_size": 4, "epochs": 1.5}])
def test_steps_are_counted_as_a_run_takes_them(
    tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    """Ten prompts and rollout batches of eight: an epoch leaves out the last batch if it is not full."""
    config = short_rl_config(tiny_checkpoint, **{"max_steps": -1, "epochs": 2.0, "max_completion_length": 1} | changes)
    pairs = [replace(pair, attempts="2") for pair in tagged[:5]]
    train_rl(pairs, config, tmp_path, reward=TokenReward(lambda ids, n: float(n)))
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert count_steps(config, 10 * config.group_size * config.iterations) == steps[-1]


def test_rewards_that_are_none() -> None:
    """Nan and both infinities are no reward; a list of another length than the rollouts is an error with the numbers."""
    rollouts = [Rollout({}, [1], Trajectory([n]), "") for n in range(4)]
    rewards = [1.0, float("nan"), float("inf"), float("-inf")]
    attached = Scored(rewards, [1.0] * 4, [True] * 4).attach(rollouts)
    assert [rollout.reward for rollout in attached] == [1.0, None, None, None]
    with pytest.raises(InputError, match="returned 3 rewards for 4 rollouts; return one for each"):
        Scored(rewards[:3], [1.0] * 4, [True] * 4).attach(rollouts)


def test_a_disk_that_is_full_is_a_sentence(tmp_path: Path) -> None:
    """However much of the optimizer's file has been written."""

    class Trainer:
        is_deepspeed_enabled = False
        add_callback = remove_callback = staticmethod(lambda callback: None)

        def __init__(self, size: int) -> None:
            self.size = size

        def train(self, resume_from_checkpoint: str | None) -> None:
            torch.save({"exp_avg": torch.zeros(self.size)}, "/dev/full")

    for size in (10, 100_000):
        with pytest.raises(OutputError, match=r"a checkpoint cannot be written .*; free some space and run it again"):
            run_steps(Trainer(size), short_rl_config(), tmp_path, None)


def test_rows_show_each_pair_as_they_say(tagged: list[PreferencePair]) -> None:
    """In both orders or in the stored one: the row's order is the order of its prompt, the label is of the data side."""
    both = rl_rows(tagged, PLAIN, both_orders=True)
    stored = rl_rows(tagged, PLAIN, both_orders=False)
    assert (len(both), len(stored)) == (80, 40)
    by_name = {pair.pair_id: pair for pair in tagged}
    for row in [*both, *stored]:
        pair, order = by_name[row["pair_id"]], Order(row["order"])
        message = build_messages(pair, order=order, template=PLAIN)[0]
        assert row["prompt"] == chat_of([message])
        assert row["preferred"] == pair.preferred
        assert row["images"][0].tobytes() == decode_image(pair.images[0]).tobytes()
        first, _ = pair.shown(order)
        assert message.text.index(f"Response 1: {first}") < message.text.index("Response 2:")
    assert [row["order"] for row in stored] == [pair.order.value for pair in tagged]
    assert {row["order"] for row in both} == {"given", "swapped"}


def text_of(row: Any) -> str:
    return "".join(part.get("text", "") for part in row["prompt"][0]["content"])


def judgment_reward_of(terms: Sequence[RewardTerm], out: Path) -> JudgmentReward:
    scorer = JudgmentScorer("think_answer", None)
    return JudgmentReward(scorer, None, terms, ends=frozenset({7}), samples=out / "samples.jsonl")


def test_the_gold_verdict_earns_the_top_in_either_order(tagged: list[PreferencePair], tmp_path: Path) -> None:
    """Through the very rows and columns the trainer hands over; its opposite earns the format alone; a cut-off nothing."""
    rows = rl_rows(tagged[:6], PLAIN, both_orders=True)
    by_name = {pair.pair_id: pair for pair in tagged}
    gold = []
    for row in rows:
        pair = by_name[row["pair_id"]]
        shown_first = f"Response 1: {pair.responses[pair.preferred or 0]}" in text_of(row)
        gold.append(Choice.FIRST if shown_first else Choice.SECOND)
        assert gold[-1] is choice_of(pair.preferred or 0, Order(row["order"]))
    reward = judgment_reward_of(reward_terms(), tmp_path)

    def scored(verdicts: list[Choice], last_token: int) -> Scored:
        texts = [format_verdict(verdict, "x") for verdict in verdicts]
        rollouts = zip(rows, texts, strict=True)
        return reward([Rollout(row, [], Trajectory([1, 2, last_token]), text) for row, text in rollouts], 3)

    best = scored(gold, 7)
    assert best.rewards == [1.5] * 12
    assert values_of(best.metrics)["reward/accuracy"] == 1.0
    assert scored([v.swap() for v in gold], 7).rewards == [0.5] * 12
    truncated = scored(gold, 9)
    assert truncated.rewards == [0.0] * 12
    assert values_of(truncated.metrics)["verdict/truncated"] == 1.0
    kept = [json.loads(line) for line in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert [row["status"] for row in kept] == ["ok"] * 8 + ["truncated"] * 4
    assert {row["step"] for row in kept} == {3}


def test_no_run_begins_without_its_consistency_judge(
    tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path
) -> None:
    """The message names the address; nothing is written."""
    config = short_rl_config(tiny_checkpoint, consistency=ConsistencyConfig(base_url="http://127.0.0.1:9/v1"))
    with pytest.raises(EndpointError, match=r"127\.0\.0\.1:9/v1.*is the server running"):
        train_rl(tagged, config, tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_run_leaves_its_records(
    tagged: list[PreferencePair], tiny_checkpoint: Path, demo_server: Callable[..., str], tmp_path: Path
) -> None:
    """Config, metrics of every part, samples, a checkpoint with a card; another template is refused before that."""
    consistency = ConsistencyConfig(base_url=demo_server(), model="demo-checker")
    final = train_rl(tagged, short_rl_config(tiny_checkpoint, consistency=consistency), tmp_path / "run")
    card = json.loads((final / "rewardlab.json").read_text())
    assert (card["stage"], card["template_hash"]) == ("rl", PLAIN.hash)
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    names = set().union(*logged)
    assert {"reward", "reward/format", "reward/accuracy", "reward/invalid_frac", "verdict/truncated"} <= names
    assert {"advantage/outlier_frac", "loss/preclip_frac", "consistency/failed", "entropy", "grad_norm"} <= names
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert {"pair_id", "order", "text", "status", "reward"} <= set(samples[0])
    with pytest.raises(ConfigError, match="finished"):
        train_rl(tagged, short_rl_config(tiny_checkpoint), tmp_path / "run")
    with pytest.raises(CheckpointError, match="template"):
        train_rl(tagged, short_rl_config(final, template="r1_reward"), tmp_path / "other")
    assert not (tmp_path / "other").exists()


def test_lora_and_a_reference_model(tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Adapters with a KL term: the reference is the model without its adapter, from which it moves away."""
    config = short_rl_config(tiny_checkpoint, lora=LoraConfig(r=4), kl_coef=0.1, learning_rate=0.1, max_steps=6)
    final = train_rl(tagged, config, tmp_path / "run", reward=TokenReward(lambda ids, n: float(sum(ids) % 5)))
    assert (final / "adapter_config.json").exists()
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    drift = [float(row["kl/sampled_k1"]) for row in logged if "kl/sampled_k1" in row]
    assert abs(drift[0]) < 1e-4
    assert abs(drift[-1]) > 1e-3


def test_too_few_pairs_for_a_batch(tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Not an untrained checkpoint under a trained one's name."""
    with pytest.raises(DataError, match=r"60 rollouts, fewer than the 64 of one batch"):
        train_rl(tagged, short_rl_config(tiny_checkpoint, rollout_batch_size=64, save_steps=16), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_both_orders_of_a_pair_are_in_one_batch() -> None:
    """Neighbours, each as often as the group is large, the batch repeated; all pairs once a reading, in another order each."""
    sampler = RolloutSampler(10, batch=4, group_size=3, repeats=2, seed=0, orders_per_pair=2)
    first, second = list(sampler), list(sampler)
    assert len(first) == len(sampler) == 2 * 4 * 3 * 2
    assert first != second
    for start in range(0, len(first), 24):
        batch = first[start : start + 24]
        assert batch[:12] == batch[12:]
        assert [row for n, row in enumerate(batch[:12]) if n % 3 == 0] == sorted({*batch}, key=batch.index)
        assert {row ^ 1 for row in batch} == set(batch)
    assert list(RolloutSampler(10, batch=4, group_size=3, repeats=2, seed=0, orders_per_pair=2)) == first
    for num_rows, batch_size in ((9, 4), (10, 3)):
        with pytest.raises(ValueError, match="both orders"):
            RolloutSampler(num_rows, batch=batch_size, group_size=1, repeats=1, seed=0, orders_per_pair=2)


def test_a_run_with_the_swap_reward(tagged: list[PreferencePair], tiny_checkpoint: Path, tmp_path: Path) -> None:
    """Trains and logs it; without both orders it is refused."""
    train_rl(tagged, short_rl_config(tiny_checkpoint, swap_weight=0.5, advantage="grpo", group_size=2), tmp_path / "run")
    logged = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert "reward/swap_agreement" in set().union(*logged)
    samples = [json.loads(line) for line in (tmp_path / "run" / "samples.jsonl").read_text().splitlines()]
    assert [row["order"] for row in samples[:4]] == ["given", "given", "swapped", "swapped"]
    assert len({row["pair_id"] for row in samples[:4]}) == 1
    with pytest.raises(ValueError, match="both_orders"):
        short_rl_config(tiny_checkpoint, swap_weight=0.5, both_orders=False)
