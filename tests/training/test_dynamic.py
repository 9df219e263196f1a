"""Choosing what is trained on: groups with something to learn from, from a stream of prompts that a checkpoint resumes."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from threading import Barrier
from typing import Any

import pytest
import torch

from rewardlab.errors import DataError
from rewardlab.rewards.rollout import Rollout, Trajectory
from rewardlab.rl.groups import group_ids, group_means
from rewardlab.training.policy_gradient.rollouts.dynamic import Candidates, DynamicSampling, PassRates
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
        self.candidates = Candidates(self.sample_and_score, list)

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


def plan_of(prompts: list[Any], *, seed: int = 0, weighted: bool = False, tags: list[str] | None = None, **more: Any) -> Any:
    """Dynamic sampling of prompts, by oversampling unless ``refill``."""
    settings = {"group_size": GROUP, "refill": False, "max_rounds": 9} | more
    known = PassRates(tags or [""] * len(prompts))
    return DynamicSampling(PromptSource(prompts, seed=seed, weights=known.weights if weighted else None), known, **settings)


def groups_of(chosen: list[Any]) -> list[list[float]]:
    correct = [rollout.correct for rollout in chosen]
    return [correct[start : start + GROUP] for start in range(0, len(correct), GROUP)]


@pytest.mark.parametrize("refill", [True, False])
@pytest.mark.parametrize("rate", [0.02, 0.5, 0.97])
def test_no_decided_group_is_ever_returned(refill: bool, rate: float) -> None:
    """Batches fill either way, from the first round on, however few are undecided; a short round repeats those it found."""
    plan = plan_of(rows(*[rate] * 40), seed=1, refill=refill, max_rounds=50)
    for _ in range(20):
        chosen, metrics = plan.choose(candidates(2), 8 * GROUP)
        assert len(chosen) == 8 * GROUP
        assert all(0 < sum(group) < GROUP for group in groups_of(chosen))
        assert 0 <= metrics["sampling/short_frac"].value < 1


def test_what_has_no_reward_decides_nothing() -> None:
    """A comparison that could not be read is neither right nor wrong: the others of its group must differ among themselves."""
    plan = plan_of(rows(0, 0, 0), refill=True, max_rounds=1)
    marks = {"0": [1.0, 1.0, 1.0, None], "1": [1.0, 0.0, None, None], "2": [None] * 4}

    def score(rows: list[dict[str, Any]]) -> list[Rollout]:
        said = [marks[row["name"]][n % GROUP] for n, row in enumerate(rows)]
        return [Rollout(row, [], Trajectory([]), "", reward=m, correct=m or 0.0) for row, m in zip(rows, said, strict=True)]

    chosen, metrics = plan.choose(Candidates(score, list), 3 * GROUP)
    assert {rollout.row["name"] for rollout in chosen} == {"1"}
    assert metrics["sampling/mixed_frac"].value == pytest.approx(1 / 3)
    assert plan._pass_rates.rates.tolist() == pytest.approx([3.5 / 4, 1.5 / 3, 0.5])  # of those that have a reward


def test_refill_that_finds_too_few() -> None:
    """What was found is repeated, and counted; with nothing found there is nothing to train on, and it says so."""
    plan = plan_of(rows(0.5, *[1.0] * 15), refill=True, max_rounds=2)
    chosen, metrics = plan.choose(candidates(1), 8 * GROUP)
    assert all(0 < sum(group) < GROUP for group in groups_of(chosen))
    assert {rollout.row["name"] for rollout in chosen} == {"0"}
    assert metrics["sampling/short_frac"].value >= 6 / 8
    hopeless = plan_of(rows(*[1.0] * 8), refill=True, max_rounds=2)
    with pytest.raises(DataError, match="all correct or all wrong"):
        hopeless.choose(candidates(1), 4 * GROUP)


def test_oversampling_fills_a_batch_in_one_round() -> None:
    """Only the first batch is refilled; then one round each, of as many more as the share of decided groups asks for."""
    plan = plan_of(rows(*[0.75] * 200))
    policy, shorts = Policy(0), []
    for _ in range(60):
        chosen, metrics = plan.choose(policy.candidates, 16 * GROUP)
        assert len(chosen) == 16 * GROUP
        shorts.append(metrics["sampling/short_frac"].value)
        assert metrics["sampling/discarded_groups"].value >= 0
    decided = 0.75**4 + 0.25**4  # worked by hand: 0.3203, so 1.471 times the prompts are wanted
    assert metrics["sampling/oversampling"].value == pytest.approx(1 / (1 - decided), rel=0.15)
    assert policy.rounds[:2] == [16, 16]
    assert len(policy.rounds) == 61
    assert all(size == pytest.approx(16 * 1.471, rel=0.3) for size in policy.rounds[2:])
    assert sum(shorts) / 60 < 0.08  # of 16 groups one, where the draw was unlucky


def test_weights_move_to_the_middle_as_rates_become_known() -> None:
    """Of prompts that are right in 2, 50 and 98 %, all untagged: drawn alike at first, then the middle ones most; those learnt
    meanwhile come seldom, and no prompt never. The logged tiers are those of the rates."""
    plan = plan_of(rows(*[0.02] * 30, *[0.5] * 30, *[0.98] * 30), weighted=True)
    policy, drawn, logged = Policy(3), list[Counter[float]](), []
    sample = policy.sample_and_score

    def counted(batch: list[dict[str, Any]]) -> list[Rollout]:
        drawn[-1].update(row["p"] for row in batch[::GROUP])
        return sample(batch)

    for _ in range(40):
        drawn.append(Counter())
        logged.append(plan.choose(replace(policy.candidates, sample_and_score=counted), 12 * GROUP)[1])
    early, late = sum(drawn[:2], Counter()), sum(drawn[-15:], Counter())
    assert early[0.5] < 0.55 * early.total()
    assert late[0.5] > 0.7 * late.total()
    assert all(late[p] > 0 for p in (0.02, 0.98))
    rates = plan._pass_rates.rates
    assert (rates[:30].mean() < 0.1) & (rates[60:].mean() > 0.9)
    assert logged[0]["tier/hard"].value == 1.0  # 50 % each, as no tag says otherwise
    tiers = {name: logged[-1][f"tier/{name}"].value for name in ("very_hard", "hard", "medium", "easy")}
    assert sum(tiers.values()) == pytest.approx(1)
    assert tiers["very_hard"] == pytest.approx(float((rates < 0.25).float().mean()), abs=0.05)
    assert logged[-1]["tier/hard_drawn"].value + logged[-1]["tier/medium_drawn"].value > 0.6
    assert logged[-1]["sampling/mixed_frac"].value > logged[0]["sampling/mixed_frac"].value


def test_tags_decide_before_anything_is_sampled() -> None:
    """Weights 4 p (1 - p) of the tags' 1/2 and 1/5: of the first batch, unsolved pairs are 0.64 / 1.64."""
    plan = plan_of(rows(*[0.5] * 4000), weighted=True, tags=["2", "unsolved"] * 2000, max_rounds=1)
    policy = Policy(0)
    plan.choose(policy.candidates, 400 * GROUP)
    unsolved = plan._pass_rates._counts_P2[1::2].sum(1).ne(5).sum() / 400
    assert float(unsolved) == pytest.approx(0.64 / 1.64, abs=0.07)


def in_processes(number: int, work: Callable[[int, Callable[[list[Any]], list[Any]]], Any]) -> list[Any]:
    """Return what ``work(process, gather)`` returns in each of as many threads, which gather as processes do."""
    barrier, parts = Barrier(number), list[list[Any]]([[] for _ in range(number)])

    def gather(process: int) -> Callable[[list[Any]], list[Any]]:
        def of_all(items: list[Any]) -> list[Any]:
            parts[process] = items
            barrier.wait()
            joined = [item for part in parts for item in part]
            barrier.wait()
            return joined

        return of_all

    with ThreadPoolExecutor(number) as pool:
        return [done.result(20) for done in [pool.submit(work, n, gather(n)) for n in range(number)]]


@pytest.mark.parametrize(("refill", "weighted"), [(False, True), (False, False), (True, False)])
def test_the_same_on_any_number_of_processes(refill: bool, weighted: bool) -> None:
    """One, two and four: the same prompts drawn, groups chosen and rates kept, where a rollout's luck hangs on its place in the
    batch of all; each process ends with its share of whole groups, though one had nearly all the mixed ones."""
    prompts = rows(*[0.95] * 25, *[0.5] * 7)

    def work(process: int, gather: Any, number: int) -> Any:
        plan = plan_of(prompts, weighted=weighted, refill=refill)
        rounds = [0]

        def score(batch: list[dict[str, Any]]) -> list[Rollout]:
            rounds[0] += 1
            made = []
            for place, row in enumerate(batch, start=process * len(batch)):
                ok = float(random.Random(f"{rounds[0]} {place}").random() < row["p"])
                made.append(Rollout(row, [place], Trajectory([place]), "", reward=ok, correct=ok))
            return made

        chosen = [plan.choose(Candidates(score, gather, process, number), 8 // number * GROUP) for _ in range(6)]
        for batch, _ in chosen:
            assert len(batch) == 8 // number * GROUP
            assert all(0 < sum(group) < GROUP for group in groups_of(batch))
        return [batch for batch, _ in chosen], [metrics for _, metrics in chosen], plan.state_dict()

    def contents(batches: list[list[Rollout]]) -> list[Any]:
        return sorted((rollout.row["draw"], rollout.row["name"], rollout.token_ids) for batch in batches for rollout in batch)

    alone = in_processes(1, lambda process, gather: work(process, gather, 1))[0]
    for number in (2, 4):
        parts = in_processes(number, lambda process, gather, number=number: work(process, gather, number))  # type: ignore[misc]
        for n in range(6):
            assert contents([part[0][n] for part in parts]) == contents([alone[0][n]])
        for part in parts:
            assert part[1] == alone[1]
            assert part[2]["ratio"] == alone[2]["ratio"]
            assert torch.equal(part[2]["pass_rates"]["counts"], alone[2]["pass_rates"]["counts"])


def test_each_prompt_once_a_pass_and_each_process_its_own() -> None:
    """Every row in each pass, in another order; two processes share the rows out."""
    source = PromptSource(rows(*[0.5] * 10), seed=3)
    passes = [[row["name"] for _, row in source.take(10)] for _ in range(2)]
    assert [sorted(names, key=int) for names in passes] == [[str(n) for n in range(10)]] * 2
    assert passes[0] != passes[1]
    parts = [PromptSource(rows(*[0.5] * 10), seed=3, process=n, num_processes=2) for n in range(2)]
    shares = [{row["name"] for _, row in part.take(5)} for part in parts]
    assert shares[0] | shares[1] == {str(n) for n in range(10)}


@pytest.mark.parametrize("weighted", [False, True])
def test_a_plan_goes_on_where_it_stopped(weighted: bool) -> None:
    """With the same prompts, rates and factor as the one that was not stopped."""
    plan, resumed = (plan_of(rows(*[0.3, 0.8] * 10), seed=seed, weighted=weighted) for seed in (3, 4))
    plan.choose(candidates(0), 4 * GROUP)
    resumed.load_state_dicts([plan.state_dict()])
    whole, parts = ([plan.choose(policy.candidates, 4 * GROUP) for _ in range(5)] for policy, plan in
                    ((Policy(1), plan), (Policy(1), resumed)))  # fmt: skip
    assert whole == parts


def test_weighted_draws_take_no_prompt_twice_before_all() -> None:
    """A twentieth of the weight: drawn a twentieth as often; yet of four prompts five draws are all four, and one again."""
    source = PromptSource(rows(*[0.5] * 2), seed=0, weights=lambda: torch.tensor([0.05, 1.0]))
    counts = Counter(place for _ in range(4000) for place, _ in source.take(1))
    assert counts[0] / counts[1] == pytest.approx(0.05, abs=0.02)
    four = PromptSource(rows(*[0.5] * 4), seed=0, weights=lambda: torch.tensor([0.05, 1.0, 1.0, 1.0]))
    places = [place for place, _ in four.take(5)]
    assert sorted(places[:4]) == [0, 1, 2, 3]


@pytest.mark.parametrize("kind", ["oversample", pytest.param("refill", marks=pytest.mark.nightly)])
def test_a_run_on_undecided_groups(
    demo_pairs: Any, tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Through the real trainer: what it trains on is undecided, all candidates are in the metrics, and a killed run resumes."""
    pairs = [replace(pair, attempts="2") for pair in demo_pairs[0][:16]]
    changes: dict[str, Any] = {
        "advantage": "grpo",
        "preclip": None,
        "group_size": 2,
        "importance": {"mode": "token_truncate", "cap": 2.0},
    }
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
        means = group_means(correct, group_ids([str(n // 2) for n in range(8)], ["given"] * 8))
        assert bool(((means > 0) & (means < 1)).all())
        assert batch["advantages"].abs().sum(1).min() > 0.1
    lines = [json.loads(line) for line in (tmp_path / "whole" / "metrics.jsonl").read_text().splitlines()]
    assert any("sampling/used_frac" in line for line in lines)
    weights = [line["importance/mean"] for line in lines if "importance/mean" in line]
    assert weights
    assert weights == pytest.approx([1.0] * len(weights), abs=1e-3)  # the sampler is the trainer's own model
    with pytest.raises(KilledError):
        train_rl(pairs, config, tmp_path / "parts", reward=reward(), callbacks=[Kill()])
    parts = train_rl(pairs, config, tmp_path / "parts", reward=reward())
    resumed = [json.loads(line) for line in (tmp_path / "parts" / "metrics.jsonl").read_text().splitlines()]
    for line, other in zip(lines, resumed, strict=False):
        assert {k: v for k, v in line.items() if k.startswith(("tier/", "sampling/"))} == {
            k: v for k, v in other.items() if k.startswith(("tier/", "sampling/"))
        }
    torch.testing.assert_close(weights_of(whole), weights_of(parts), atol=1e-6, rtol=1e-5)
