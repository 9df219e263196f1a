"""Choosing what is trained on: groups with something to learn from, from a stream of prompts that a checkpoint resumes."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.errors import DataError
from rewardlab.rewards.rollout import Rollout, Trajectory
from rewardlab.rl.groups import group_ids, mixed_groups
from rewardlab.training.policy_gradient.rollouts.dynamic import Candidates, DynamicSampling
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import train_rl
from tests.support.configs import short_rl_config
from tests.support.killing import Kill, KilledError
from tests.support.rewards import TokenReward
from tests.support.weights import weights_of

GROUP = 4


class Policy:
    """In a trainer's place: rollouts that are correct with the probability their row names."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.rounds: list[int] = []
        self.candidates = Candidates(self.sample_and_score, lambda flag: flag, lambda value: value)

    def sample_and_score(self, rows: list[dict[str, Any]]) -> list[Rollout]:
        self.rounds.append(len(rows) // GROUP)
        luck = torch.rand(len(rows), generator=self._generator).tolist()
        correct = [float(draw < row["p"]) for row, draw in zip(rows, luck, strict=True)]
        return [
            Rollout(row, [], Trajectory([]), "", reward=row.get("pay", ok), correct=ok)
            for row, ok in zip(rows, correct, strict=True)
        ]


def candidates(seed: int) -> Candidates:
    return Policy(seed).candidates


def rows(*rates: float) -> list[dict[str, Any]]:
    return [{"name": str(n), "p": p} for n, p in enumerate(rates)]


def groups_of(chosen: list[Any]) -> list[list[float]]:
    correct = [rollout.correct for rollout in chosen]
    return [correct[start : start + GROUP] for start in range(0, len(correct), GROUP)]


@pytest.mark.parametrize("refill", [True, False])
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.97])
def test_no_decided_group_is_ever_returned(refill: bool, rate: float) -> None:
    """Batches fill either way, from the first round on, however few are undecided; a short round repeats those it found."""
    plan = DynamicSampling(PromptSource(rows(*[rate] * 40), seed=1), group_size=GROUP, refill=refill, max_rounds=50)
    for _ in range(20):
        chosen, metrics = plan.choose(candidates(2), 8 * GROUP)
        assert len(chosen) == 8 * GROUP
        assert all(0 < sum(group) < GROUP for group in groups_of(chosen))
        assert 0 <= metrics["sampling/short_frac"].value < 1


def test_what_has_no_reward_decides_nothing() -> None:
    """A comparison that could not be read is neither right nor wrong: the others of its group must differ among themselves."""
    plan = DynamicSampling(PromptSource([], seed=0), group_size=GROUP, refill=True, max_rounds=1)
    marks = {"a": [1.0, 1.0, 1.0, None], "b": [1.0, 0.0, None, None], "c": [None] * 4}
    groups = {
        name: [Rollout({"name": name}, [], Trajectory([]), "", reward=mark, correct=mark or 0.0) for mark in own]
        for name, own in marks.items()
    }
    plan._draw = lambda lent, number: list(groups.values())  # type: ignore[method-assign]
    chosen, metrics = plan.choose(candidates(0), GROUP)
    assert {rollout.row["name"] for rollout in chosen} == {"b"}
    assert metrics["sampling/mixed_frac"].value == pytest.approx(1 / 3)


@pytest.mark.parametrize("seed", range(20))
def test_refill_never_returns_a_decided_group(seed: int) -> None:
    """Nine rollouts in ten right: two groups in three are decided, and none of them is trained on."""
    plan = DynamicSampling(PromptSource(rows(*[0.9] * 40), seed=seed), group_size=GROUP, refill=True, max_rounds=20)
    policy = Policy(seed)
    chosen, metrics = plan.choose(policy.candidates, 8 * GROUP)
    assert len(chosen) == 8 * GROUP
    assert all(0 < sum(group) < GROUP for group in groups_of(chosen))
    assert all(len({rollout.row["name"] for rollout in chosen[n : n + GROUP]}) == 1 for n in range(0, len(chosen), GROUP))
    assert len(policy.rounds) > 1
    assert metrics["sampling/short_frac"].value == 0
    assert metrics["sampling/used_frac"].value == pytest.approx(8 / sum(policy.rounds))


def test_refill_that_finds_too_few() -> None:
    """What was found is repeated, and counted; with nothing found there is nothing to train on, and it says so."""
    plan = DynamicSampling(PromptSource(rows(0.5, *[1.0] * 15), seed=0), group_size=GROUP, refill=True, max_rounds=2)
    chosen, metrics = plan.choose(candidates(1), 8 * GROUP)
    assert all(0 < sum(group) < GROUP for group in groups_of(chosen))
    assert {rollout.row["name"] for rollout in chosen} == {"0"}
    assert metrics["sampling/short_frac"].value >= 6 / 8
    hopeless = DynamicSampling(PromptSource(rows(*[1.0] * 8), seed=0), group_size=GROUP, refill=True, max_rounds=2)
    with pytest.raises(DataError, match="all correct or all wrong"):
        hopeless.choose(candidates(1), 4 * GROUP)


def test_each_prompt_has_the_pass_rate_of_its_own_rollouts() -> None:
    """Drawn once: half of a rate is what it was, 0.5."""
    rates = (1.0, 0.0, 0.5, 1.0, 0.0, 0.5)
    source = PromptSource(rows(*rates), seed=1)
    DynamicSampling(source, group_size=GROUP, refill=True, max_rounds=1).choose(candidates(0), 6 * GROUP)
    learnt = source.state_dict()["pass_rates"]
    assert {n: learnt[n] for n, rate in enumerate(rates) if rate != 0.5} == {0: 0.75, 1: 0.25, 3: 0.75, 4: 0.25}


def test_oversampling_settles_at_one_round() -> None:
    """One round each time, of as many more as the share of decided groups asks for; right and wrong balanced within a group."""
    plan = DynamicSampling(PromptSource(rows(*[0.75] * 200), seed=0), group_size=GROUP, refill=False, max_rounds=9)
    policy, shorts = Policy(0), []
    for _ in range(60):
        chosen, metrics = plan.choose(policy.candidates, 16 * GROUP)
        assert len(chosen) == 16 * GROUP
        shorts.append(metrics["sampling/short_frac"].value)
    decided = 0.75**4 + 0.25**4  # worked by hand: 0.3203, so 1.471 times the prompts are wanted
    assert metrics["sampling/oversampling"].value == pytest.approx(1 / (1 - decided), rel=0.15)
    assert sum(shorts[30:]) / 30 < 0.5 * shorts[0]


def test_each_prompt_once_a_pass_and_each_process_its_own() -> None:
    """Every row in each pass, in another order; two processes share the rows out."""
    source = PromptSource(rows(*[0.5] * 10), seed=3)
    passes = [[row["name"] for _, row in source.take(10)] for _ in range(2)]
    assert [sorted(names, key=int) for names in passes] == [[str(n) for n in range(10)]] * 2
    assert passes[0] != passes[1]
    parts = [PromptSource(rows(*[0.5] * 10), seed=3, process=n, num_processes=2) for n in range(2)]
    shares = [{row["name"] for _, row in part.take(5)} for part in parts]
    assert shares[0] | shares[1] == {str(n) for n in range(10)}


def test_a_source_goes_on_where_it_stopped() -> None:
    source = PromptSource(rows(*[0.5] * 10), seed=3, weighted=True)
    source.take(7)
    source.update_pass_rate(2, 1.0)
    state = source.state_dict()
    resumed = PromptSource(rows(*[0.5] * 10), seed=4, weighted=True)
    resumed.load_state_dicts([state])
    assert [place for place, _ in source.take(25)] == [place for place, _ in resumed.take(25)]


def test_prompts_of_middling_difficulty_are_drawn_more() -> None:
    """Weights 4 p (1 - p) once the rates are known: one that is always right is drawn a twentieth as often as an even one."""
    source = PromptSource(rows(*[0.5] * 2), seed=0, weighted=True)
    for _ in range(30):
        source.update_pass_rate(0, 1.0)
    source.take(2)  # drawn by the weights before
    counts = Counter(place for place, _ in source.take(4000))
    assert counts[0] / counts[1] == pytest.approx(0.05, abs=0.02)


@pytest.mark.parametrize("kind", ["refill", "oversample"])
def test_a_run_on_undecided_groups(
    demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Through the real trainer: what it trains on is undecided, all candidates are in the metrics, and a killed run resumes."""
    pairs = [replace(pair, attempts="2") for pair in demo_pairs[0][:16]]
    changes: dict[str, Any] = {"advantage": "grpo", "preclip": None, "group_size": 2, "importance_cap": 2.0}
    changes |= {"dynamic_sampling": kind, "difficulty_weighted": True, "max_steps": 4, "max_completion_length": 6}
    config = short_rl_config(tiny_checkpoint, **changes)
    seen = []
    generate = PolicyTrainer._generate_and_score_completions

    def spy(self: Any, inputs: Any) -> Any:
        batch = generate(self, inputs)
        correct = torch.tensor([rollout.correct for rollout in self._current])
        assert torch.equal(correct, (batch["completion_ids"][:, 0] % 2).float())
        seen.append((correct, batch))
        return batch

    monkeypatch.setattr(PolicyTrainer, "_generate_and_score_completions", spy)

    def reward() -> TokenReward:
        return TokenReward(lambda ids, n: float(ids[0] % 2), correct=lambda ids, n: float(ids[0] % 2))

    whole = train_rl(pairs, config, tmp_path / "whole", reward=reward())
    for correct, batch in seen:
        assert bool(mixed_groups(correct, group_ids([str(n // 2) for n in range(8)], ["given"] * 8)).all())
        assert batch["advantages"].abs().sum(1).min() > 0.1
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert any("sampling/used_frac" in line for line in lines)
    weights = [line["importance/mean"] for line in lines if "importance/mean" in line]
    assert weights
    assert weights == pytest.approx([1.0] * len(weights), abs=1e-3)  # the sampler is the trainer's own model
    with pytest.raises(KilledError):
        train_rl(pairs, config, tmp_path / "parts", reward=reward(), callbacks=[Kill()])
    parts = train_rl(pairs, config, tmp_path / "parts", reward=reward())
    torch.testing.assert_close(weights_of(whole), weights_of(parts), atol=1e-6, rtol=1e-5)
