"""The trainer equals ``rl/reference.py``, sees the image, makes its tensors beside their inputs, and resumes the same run."""

from __future__ import annotations

import json
import random
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, TrainerCallback

from rewardlab.config import LoraConfig, Method, RLConfig, load_yaml
from rewardlab.models.families import IMAGE_ROWS, image_fields_of_rows
from rewardlab.models.loading import load_model
from rewardlab.prompts import build_messages, load_template
from rewardlab.rewards.judgment import swap_agreement
from rewardlab.rl import reference
from rewardlab.rl.groups import group_ids
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.decode import draw_uniforms
from rewardlab.samplers.hf import HFSampler
from rewardlab.training.policy_gradient import trainer as trainer_module
from rewardlab.training.policy_gradient.batch import RolloutBatch
from rewardlab.training.policy_gradient.trainer import PolicyTrainer
from rewardlab.training.rl import build_trainer, rl_rows, train_rl
from rewardlab.types import Order
from tests.support.configs import short_rl_config
from tests.support.killing import Kill, KilledError
from tests.support.rewards import TokenReward
from tests.support.weights import flat_weights, weights_of

PLAIN = load_template("plain")
ROOT = Path(__file__).parents[2]


def config_for(checkpoint: Path, **changes: Any) -> RLConfig:
    values: dict[str, Any] = {
        "learning_rate": 0.5,
        "lr_scheduler": "constant",
        "iterations": 2,
        "max_steps": 4,
        "save_steps": 4,
        "max_completion_length": 10,
    }
    if changes.get("advantage") == "gae":
        values["value_learning_rate"] = 0.02  # its gradients are large: with more, float noise grows from step to step
    return short_rl_config(checkpoint, **(values | changes))


def pseudo_reward() -> TokenReward:
    """Rewards that differ, from nothing but the tokens."""
    return TokenReward(lambda ids, n: float(sum(ids) % 7), correct=lambda ids, n: is_right(torch.tensor(ids)))


class Recorder:
    """Keeps what the trainer was given and what it did, step by step."""

    def __init__(self, trainer: Any, noise: float, patch: pytest.MonkeyPatch) -> None:
        self.inputs: list[dict[str, Any]] = []
        self.losses: list[float] = []
        self.gradients: list[torch.Tensor] = []
        generate, compute, add = trainer._generate_and_score_completions, trainer._compute_loss, trainer._add_advantages

        def generate_and_keep(rows: Any) -> Any:
            batch = generate(rows)
            rewards = trainer._rewards_G1[:, 0]
            batch["kept_rewards"] = rewards.nan_to_num() if trainer._rollouts.continues_rollouts else rewards
            whole = trainer._parts.read_rows(rows)
            names = [row["pair_id"] for row in whole]
            batch["kept_groups"] = group_ids(names, [row["order"] for row in whole])
            key = (trainer.args.seed, 0, trainer.state.global_step, trainer_module.COVARIANCE)
            batch["kept_uniforms"] = draw_uniforms(key, range(len(names)), batch["completion_ids"].size(1))
            batch["kept_pairs"] = group_ids(names, [""] * len(names))
            return batch

        def add_and_drift(batch: RolloutBatch, rollouts: Any) -> RolloutBatch:
            if noise:  # as if the sampling policy were far away: some ratios beyond any bound
                drift = torch.Generator().manual_seed(1)
                old = batch.old_logprobs_NT
                batch = replace(batch, old_logprobs_NT=old + noise * torch.randn(old.shape, generator=drift))
            if trainer._method.importance:  # as if an engine had sampled, which leaves out a log-prob here and there
                drift = torch.Generator().manual_seed(2)
                sampled = batch.sampling_logprobs_NT
                sampled += 0.5 * torch.randn(sampled.shape, generator=drift)
                sampled[::2, 1] = torch.nan
            return add(batch, rollouts)

        def compute_and_keep(model: Any, inputs: dict[str, Any]) -> Any:
            loss = compute(model, inputs)
            self.inputs.append(inputs)
            self.losses.append(loss.item())
            return loss

        patch.setattr(trainer, "_generate_and_score_completions", generate_and_keep)
        patch.setattr(trainer, "_compute_loss", compute_and_keep)
        patch.setattr(trainer, "_add_advantages", add_and_drift)
        recorder = self

        class Gradients(TrainerCallback):
            def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                recorder.gradients.append(flat_gradient(trainer.model))

        trainer.add_callback(Gradients())


def flat_gradient(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).clone()


def whole(inputs: dict[str, Any]) -> dict[str, torch.Tensor]:
    """Prompts and completions as a model takes them, images included."""
    return {
        "input_ids": torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], 1),
        "attention_mask": torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], 1),
        "mm_token_type_ids": inputs["mm_token_type_ids"],
        **image_fields_of_rows(inputs, range(len(inputs["prompt_ids"]))),
    }


def plain_values(critic: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """What the critic says before each token of the completions."""
    return critic(**whole(inputs))[:, -inputs["completion_ids"].shape[1] - 1 : -1]


def plain_distributions(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Log-probs of all tokens before each token of the completions, by a plain forward pass with images."""
    return model(**whole(inputs)).logits[:, -inputs["completion_ids"].shape[1] - 1 : -1].float().log_softmax(-1)


def plain_logprobs(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    """Log-probs of the completions."""
    return plain_distributions(model, inputs).gather(2, inputs["completion_ids"][..., None])[..., 0]


def plain_entropies(model: Any, inputs: dict[str, Any]) -> torch.Tensor:
    logprobs = plain_distributions(model, inputs)
    return -(logprobs.exp() * logprobs).sum(-1)


def beside_inputs(function: Any) -> Any:
    """Have a function make its tensors beside its inputs: one that it makes anywhere else is on a device without numbers."""

    def guarded(*args: Any, **kwargs: Any) -> Any:
        with torch.device("meta"):
            return function(*args, **kwargs)

    return guarded


@pytest.fixture
def make_trainer(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    for name in ("sampled_kl", "compute_advantages", "count_tokens", "policy_loss", "value_loss"):
        monkeypatch.setattr(trainer_module, name, beside_inputs(getattr(trainer_module, name)))

    def make(reward: TokenReward | None = None, *, kl_coef_of: Any = None, **changes: Any) -> Any:
        config = config_for(tiny_checkpoint, **changes)
        model, processor = load_model(str(tiny_checkpoint), device="cpu")
        rows = rl_rows(demo_pairs[0][:16], PLAIN, both_orders=True)
        tmp_path.mkdir(exist_ok=True)
        trl = {"optim": "sgd"}  # Adam turns float noise in vanishing gradients into full steps
        more = {"reward": reward or pseudo_reward(), "trl": trl, "kl_coef_of": kl_coef_of}
        return build_trainer(rows, config, model, processor, PLAIN, tmp_path, **more)

    return make


def is_right(ids: torch.Tensor) -> float:
    """A pretended verdict, from nothing but the tokens."""
    return float(ids.sum() % 3 == 0)


FILES = sorted((ROOT / "configs" / "rl").glob("*.yaml"))
RECIPES = {
    path.stem: load_yaml(path) for path in FILES if not path.stem.startswith("stable_reinforce_")
}  # those are of hardware
METHOD = set(Method.model_fields) - {"max_completion_length", "window", "window_tail"}  # windows have a test of their own
PAPER = load_yaml(ROOT / "configs" / "rl" / "stable_reinforce_qwen2_5_vl_7b.yaml")
CASES: dict[str, tuple[float, dict[str, Any]]] = {  # name: (drift of the sampling policy, differences from the defaults)
    **{name: (0.3, {key: value for key, value in recipe.items() if key in METHOD}) for name, recipe in RECIPES.items()},
    # Their KL in the reward is taken before the drift is made up.
    **{name: (0.0, {k: v for k, v in RECIPES[name].items() if k in METHOD}) for name in ("reinforce_pp", "ppo", "rloo")},
    "near": (0.0, {}),
    "far": (4.0, {}),
    "kl in the reward": (0.0, {"kl_coef": 0.2}),
    "k2 in the loss": (0.3, {"advantage": "reinforce_pp_baseline", "group_size": 4, "kl": "k2_loss", "kl_coef": 0.3}),
    "clipped outliers": (0.3, {"outliers": "clip", "outlier_sigma": 0.7}),
    "rollouts alike": (0.3, {"whiten_by": "sequence", "outliers": "clip", "outlier_sigma": 0.7, "max_completion_length": 12}),
    "gspo": (0.3, {"objective": "gspo", "preclip": None}),
    "cispo": (0.3, {"objective": "cispo", "preclip": None, "average": "token"}),
    "sapo": (0.3, {"objective": "sapo", "preclip": None, "sapo_temperatures": (1.0, 2.0)}),
    "gmpo": (0.3, {"objective": "gmpo", "preclip": None, "clip_low": 0.4}),
    "corrected kl": (0.3, {"advantage": "grpo", "group_size": 4, "kl": "k3_corrected", "kl_coef": 0.3}),
    "tokens of high entropy": (0.3, {"top_entropy": 0.5}),
    "an entropy bonus": (0.3, {"entropy": {"coef": 0.5}, "mask_truncated": True, "max_completion_length": 12}),
    "entropy to keep": (0.3, {"entropy": {"target": 6.21, "step": 0.3}}),
    "clip-cov": (0.3, {"covariance": {"fraction": 0.1, "low": 0.1}}),
    "kl-cov": (0.3, {"covariance": {"kind": "kl", "fraction": 0.2, "coef": 0.5}, "preclip": None, "average": "token"}),
    "truncated rollouts": (0.3, {"mask_truncated": True, "max_completion_length": 12}),
    "importance of tokens": (0.1, {"importance": {"mode": "token_mask"}}),
    "geometric importance, and a veto": (
        0.1,
        {"importance": {"mode": "geometric_mask", "cap": 1.25, "floor": 0.8, "veto": 0.2}, "average": "token", "kl_coef": 0.2},
    ),
    "dual clip": (3.0, {"dual_clip": 2.0, "preclip": None, "average": "token"}),
    "likelihood": (0.3, {"positive_nll": 0.5}),
    "the paper's, with its engine": (
        0.1,
        {key: value for key, value in PAPER.items() if key in METHOD} | {"importance": {"mode": "sequence_mask"}},
    ),
    "an engine and whole responses": (
        0.1,
        {
            "advantage": "rloo",
            "group_size": 4,
            "objective": "response_clip",
            "preclip": None,
            "importance": {"mode": "sequence_truncate", "cap": 1.5},
        },
    ),
    "both orders in a batch": (0.3, {"advantage": "grpo", "group_size": 4, "swap_weight": 0.5}),
    "a hot token": (0.3, {"hot_token": {"position": 2}}),
    "a hot token before a critic": (0.3, {"advantage": "gae", "outliers": "keep", "hot_token": {"position": 0}}),
}


@pytest.mark.parametrize("case", CASES)
def test_trainer_equals_reference(make_trainer: Any, tiny_checkpoint: Path, case: str) -> None:
    """Loss, gradient and weights over two minibatches and two epochs, for every recipe and every part of a method."""
    noise, changes = CASES[case]
    if changes.get("group_size", 1) > 1:
        changes = changes | {"group_size": 4}
    trainer = make_trainer(**changes)
    if changes.get("mask_truncated"):  # many tokens that end a rollout, for some that end
        trainer.eos_token_ids = [*trainer.eos_token_ids, *range(0, 10_000, 12)]
    record = compare(trainer, config_for(tiny_checkpoint, **changes), noise, num_batches=1)
    if changes.get("mask_truncated") or changes.get("importance", {}).get("mode", "").endswith("_mask"):
        left_out = [half["completion_mask"] * (1 - half["loss_mask"]) for half in record.inputs[:2]]
        assert any(part.any() for part in left_out)
        assert not all(part.all() for part in left_out)
    if case == "entropy to keep":
        coefs = [step["loss/entropy_coef"] for step in trainer.state.log_history if "loss/entropy_coef" in step]
        assert coefs[0] == 0 < max(coefs)
        assert trainer._rollout_state()["entropy"]["coef"] >= 0
    if case == "both orders in a batch":  # of one pair: two groups, with two baselines
        counts = [
            torch.cat([half[name] for half in record.inputs[:2]]).bincount().tolist() for name in ("kept_groups", "kept_pairs")
        ]
        assert counts == [[4, 4], [8]]


BY_ROUTE: dict[str, dict[str, Any]] = {
    "in the reward": {},
    "in the reward, with a critic": {"advantage": "gae", "outliers": "keep"},
    "in the reward of a response": {"advantage": "rloo", "group_size": 4, "objective": "response_clip", "preclip": None},
    "in the loss": {"advantage": "grpo", "group_size": 4, "kl": "k3_loss"},
}


@pytest.mark.parametrize("where", BY_ROUTE)
def test_kl_by_route_equals_the_reference(make_trainer: Any, tiny_checkpoint: Path, where: str) -> None:
    """Each second prompt without a KL divergence, the others with it: the coefficient goes with the rollout to its step."""
    coefs: dict[tuple[str, str], float] = {}

    def coef_of(row: dict[str, Any]) -> float:
        return coefs.setdefault((row["pair_id"], row["order"]), 0.4 * (len(coefs) % 2))

    changes = {**BY_ROUTE[where], "kl_coef": 0.4}
    trainer = make_trainer(kl_coef_of=coef_of, **changes)
    record = compare(trainer, config_for(tiny_checkpoint, **changes), 0.0, num_batches=1)
    assert {round(coef, 3) for half in record.inputs for coef in half["kl_coefs"].tolist()} == {0.0, 0.4}


UNSCORED: dict[str, dict[str, Any]] = {
    "whitened": {},
    "kl in the reward": {"kl_coef": 0.2},
    "with a critic": {"advantage": "gae", "outliers": "keep"},
    "grpo": {"advantage": "grpo", "group_size": 4},
    "rloo": {"advantage": "rloo", "group_size": 4, "objective": "response_clip", "preclip": None, "kl_coef": 0.1},
    "with a baseline": {"advantage": "reinforce_pp_baseline", "group_size": 4},
}


@pytest.mark.parametrize("name", UNSCORED)
def test_unscored_rollouts_equal_the_reference(make_trainer: Any, tiny_checkpoint: Path, name: str) -> None:
    """Two rollouts of eight without a reward: nothing is learnt from them, and they are no part of any mean."""
    reward = TokenReward(lambda ids, n: None if n in (1, 6) else float(sum(ids) % 7))
    trainer = make_trainer(reward=reward, **UNSCORED[name])
    record = compare(trainer, config_for(tiny_checkpoint, **UNSCORED[name]), 0.0, num_batches=1)
    assert sum(int((~half["loss_mask"].any(1)).sum()) for half in record.inputs[:2]) == 2


def test_the_swap_reward_equals_the_reference() -> None:
    """Of pairs in both orders, in one order alone, and without a verdict, drawn at random."""
    dice = random.Random(0)
    for _ in range(50):
        pairs, orders = [dice.choice("abc") for _ in range(12)], [dice.choice(("given", "swapped")) for _ in range(12)]
        winners = [dice.choice((0, 1, None)) for _ in range(12)]
        theirs = [reference.agreement_with_the_other_order(pairs, orders, winners, n) for n in range(12)]
        assert swap_agreement(pairs, orders, winners) == theirs


@pytest.mark.parametrize("case", ["vapo", "dr_grpo", "k2 in the loss", "likelihood"])
def test_parts_of_a_micro_batch_equal_reference(
    make_trainer: Any, tiny_checkpoint: Path, case: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its passes go forward and backward one after the other: the same loss and gradient as in one piece."""
    noise, changes = CASES[case]
    changes = changes | {"micro_batch_tokens": 200} | ({"group_size": 4} if changes.get("group_size", 1) > 1 else {})
    trainer, rows = make_trainer(**changes), []
    read = trainer._pass_loss

    def count(model: Any, batch: RolloutBatch, *rest: Any) -> Any:
        rows.append(len(batch.completion_ids_NT))
        return read(model, batch, *rest)

    monkeypatch.setattr(trainer, "_pass_loss", count)
    compare(trainer, config_for(tiny_checkpoint, **changes), noise, num_batches=1)
    assert len(rows) > 4
    assert sum(rows) == 4 * 4


def test_windowed_trainer_equals_reference(make_trainer: Any, tiny_checkpoint: Path) -> None:
    """T-PPO over two rollout batches: the second continues what the first left unfinished."""
    changes = {key: value for key, value in RECIPES["t_ppo"].items() if key in METHOD}
    changes |= {"group_size": 1, "seed": 8, "window": 9, "max_completion_length": 18, "max_steps": 8}
    changes |= {"length_alpha": 2.5, "window_tail": 3}  # lambda is above its floor from 9 tokens on: half a window more matters
    trainer = make_trainer(**changes)
    record = compare(trainer, config_for(tiny_checkpoint, **changes), 0.0, num_batches=2)
    first, second = record.inputs[:2], record.inputs[4:6]
    finished = torch.cat([half["value_mask"].sum(1) > 0 for half in first])
    assert finished.any()
    assert not finished.all()
    assert any(((half["loss_mask"] != half["completion_mask"]).any(1)).any() for half in second)


@pytest.mark.parametrize("alpha", [None, 6.0])
def test_multi_turn_trainer_equals_reference(
    make_trainer: Any, tiny_checkpoint: Path, monkeypatch: pytest.MonkeyPatch, alpha: float | None
) -> None:
    """PAG over dialogues of one, two and three turns, whose tokens are given; also with a lambda by the length of each turn."""
    changes = {key: value for key, value in RECIPES["pag"].items() if key in METHOD} | {
        "self_verify": True,
        "length_alpha": alpha,
    }
    trainer = make_trainer(**changes)
    tokenizer, end, dice = trainer._tokenizer, trainer.eos_token_ids[0], torch.Generator().manual_seed(0)
    phrases = {row: tokenizer(("The judgment is wrong", "The judgment is correct")[row % 2])["input_ids"] for row in range(8)}

    def scripted(self: Any, prompt_ids: Any, images: Any, fields: Any, places: Any) -> Any:
        rows = [n for n in range(8) if goes(n)]
        assert len(rows) == len(prompt_ids) == len(images)
        said = []
        for n in rows:
            words = torch.randint(5, 200, (3 + n % 3,), generator=dice).tolist()
            said.append([*(phrases[n] if turn[0] == 1 else words), *([] if n == 5 and turn[0] == 0 else [end])])
        turn[0] += 1
        return said, None

    def goes(n: int) -> bool:
        return turn[0] == 0 or (n != 5 and (turn[0] == 1 or n % 2 == 0))

    turn = [0]
    monkeypatch.setattr(PolicyTrainer, "_sample_decoder", scripted)
    record = compare(trainer, config_for(tiny_checkpoint, **changes), 0.3, num_batches=1)
    turns = torch.cat([half["turns"] for half in record.inputs[:2]])
    assert sorted(turns.max(1).values.tolist()) == [1, 2, 2, 2, 3, 3, 3, 3]
    assert all(bool(((half["loss_mask"] > 0) == (half["turns"] > 0)).all()) for half in record.inputs)


def compare(trainer: Any, config: RLConfig, noise: float, num_batches: int) -> Recorder:
    """Train, do the same by the reference, and hold the two together."""
    method, checkpoint = config, config.model
    with torch.no_grad():
        if method.kl_coef:  # a reference that differs from the policy, or k1 would be 0
            for number, weight in enumerate(trainer.ref_model.parameters()):
                weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
        if method.advantage == "gae":  # a critic that says something, or its gradient would stop at the head
            weight = trainer.critic.head.weight
            weight.copy_(0.3 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    policy = AutoModelForImageTextToText.from_pretrained(checkpoint, dtype=torch.float32)
    before = flat_weights(policy).clone()
    critic = deepcopy(trainer.critic) if method.advantage == "gae" else None
    with pytest.MonkeyPatch.context() as patch:
        record = Recorder(trainer, noise, patch)
        trainer.train()

    groups = [{"params": policy.parameters(), "lr": config.learning_rate}]
    if critic is not None:
        groups.append({"params": critic.parameters(), "lr": trainer.value_learning_rate})
    gradients: list[torch.Tensor] = []

    class Keep(torch.optim.SGD):
        def step(self, closure: Any = None) -> None:  # type: ignore[override]
            gradients.append(torch.cat([flat_gradient(model) for model in (policy, critic) if model is not None]))
            super().step(closure)

    optimizer, losses = Keep(groups), []
    for number in range(num_batches):
        halves, again = record.inputs[4 * number : 4 * number + 2], record.inputs[4 * number + 2 : 4 * number + 4]
        assert all(torch.equal(a["completion_ids"], b["completion_ids"]) for a, b in zip(halves, again, strict=True))
        losses += reference_step(trainer, policy, critic, halves, optimizer, method, noise)
    assert len(record.losses) == len(losses) == 4 * num_batches
    assert max(abs(loss) for loss in losses) > 1e-3
    torch.testing.assert_close(torch.tensor(record.losses), torch.tensor(losses), atol=1e-5, rtol=1e-4)
    for ours, theirs in zip(gradients, record.gradients, strict=True):
        assert ours.abs().max() > 1e-4
        assert (ours - theirs).norm() < 1e-5 * ours.norm()
    assert (before - flat_weights(policy)).abs().max() > 1e-3
    trained = torch.cat([flat_weights(model) for model in (policy, critic) if model is not None])
    torch.testing.assert_close(flat_weights(trainer.model), trained, atol=5e-5, rtol=1e-3)
    if method.preclip is not None:
        clamped = [step["loss/preclip_frac"] for step in trainer.state.log_history if "loss/preclip_frac" in step]
        assert (max(clamped) > 0) == (noise > 1)
    return record


def reference_step(
    trainer: Any, policy: Any, critic: Any, halves: list[Any], optimizer: Any, method: Method, noise: float
) -> list[float]:
    """The reference's step on the rollouts that the trainer drew."""
    with torch.no_grad():
        own_old = torch.cat([plain_logprobs(policy, half) for half in halves])
        own_ref = torch.cat([plain_logprobs(trainer.ref_model, half) for half in halves]) if method.kl_coef else None
        values = torch.cat([plain_values(critic, half) for half in halves]) if critic is not None else None
        entropies = torch.cat([plain_entropies(policy, half) for half in halves])
    ends = torch.tensor(sorted(trainer.eos_token_ids))
    mask = torch.cat([half["completion_mask"] for half in halves])
    trl_old = torch.cat([half["old_per_token_logps"] for half in halves])
    if not noise:
        torch.testing.assert_close(trl_old * mask, own_old * mask, atol=1e-4, rtol=1e-4)
    completions = torch.cat([half["completion_ids"] * half["completion_mask"] for half in halves])
    finished = torch.cat([half["value_mask"].sum(1) > 0 for half in halves]) if critic is not None else torch.ones(len(mask))
    rollouts = reference.Rollouts(
        mask,
        torch.cat([half["kept_rewards"] for half in halves]),
        trl_old,
        own_ref,
        torch.cat([half["kept_groups"] for half in halves]).tolist(),
        torch.tensor([is_right(ids) for ids in completions]) * finished,
        values,
        finished,
        torch.cat([half["loss_mask"] for half in halves]) if trainer._rollouts.continues_rollouts else None,
        *(torch.cat([half[name] for half in halves]) for name in ("turns", "turn_rewards") if name in halves[0]),
        sampled_logprobs_NT=torch.cat([half["sampling_per_token_logps"] for half in halves]) if method.importance else None,
        hot_position=hot.position if (hot := trainer._sampling.hot_token) else None,
        kl_coefs_N=torch.cat([half["kl_coefs"] for half in halves]) if "kl_coefs" in halves[0] else None,
        entropies_NT=entropies,
        uniforms_NT=torch.cat([half["kept_uniforms"] for half in halves]),
        left_out_NT=torch.stack([mask[n] * (row[mask[n].sum() - 1] not in ends) for n, row in enumerate(completions)])
        if method.mask_truncated
        else None,
    )
    if method.positive_nll and finished.all():
        assert 0 < rollouts.correct_N.sum() < 8

    def half_of(rows: torch.Tensor) -> Any:
        return halves[0] if rows[0] == 0 else halves[1]

    return reference.step(
        policy,
        lambda rows: plain_logprobs(policy, half_of(rows)),
        rollouts,
        optimizer,
        [[torch.arange(0, 4), torch.arange(4, 8)]] * 2,
        method,
        critic=critic,
        values=None if critic is None else lambda rows: plain_values(critic, half_of(rows)),
        entropies=lambda rows: plain_entropies(policy, half_of(rows)),
    )


def test_kl_without_a_second_look(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no update lies between sampling and training, the KL of the sampler's log-probs is that of a forward pass."""
    trainer = make_trainer(kl_coef=0.2, batch_size=8, iterations=1, max_steps=1, save_steps=1)
    with torch.no_grad():
        for number, weight in enumerate(trainer.ref_model.parameters()):
            weight.add_(0.02 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(number)))
    kept: dict[str, torch.Tensor] = {}
    old_logprobs = trainer._old_logprobs

    def both(batch: RolloutBatch, rollouts: Any) -> torch.Tensor:
        assert batch.old_logprobs_NT is None
        drawn = old_logprobs(batch, rollouts)
        kept["sampler"] = (drawn - batch.ref_logprobs_NT) * batch.completion_mask_NT
        with torch.no_grad():
            forward = trainer._logprobs(trainer.model, batch, 8)[0] - batch.ref_logprobs_NT
        kept["forward"] = forward * batch.completion_mask_NT
        return drawn

    monkeypatch.setattr(trainer, "_old_logprobs", both)
    trainer.train()
    assert kept["forward"].abs().max() > 0.01
    torch.testing.assert_close(kept["sampler"], kept["forward"], atol=1e-4, rtol=0)


def test_no_dropout_between_sampling_and_training(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """Of adapters that have one, too, which a config of RL refuses: sampled, old and trained log-probs are of one policy."""
    with pytest.raises(ValueError, match=r"lora.dropout 0.1: .*set lora.dropout to 0"):
        config_for(tiny_checkpoint, lora={"r": 4, "dropout": 0.1})
    config = config_for(tiny_checkpoint, importance={"mode": "token_truncate"}).model_copy(
        update={"lora": LoraConfig(r=4, dropout=0.1)}
    )
    model, processor = load_model(str(tiny_checkpoint), device="cpu")
    rows = rl_rows(demo_pairs[0][:16], PLAIN, both_orders=True)
    trainer = build_trainer(rows, config, model, processor, PLAIN, tmp_path, reward=pseudo_reward())
    with torch.no_grad():
        for name, weight in trainer.model.named_parameters():
            if "lora_B" in name:  # 0 in a new adapter, whose dropout drops nothing yet
                weight.copy_(0.05 * torch.randn(weight.shape, generator=torch.Generator().manual_seed(0)))
    batch = one_batch(trainer)
    assert trainer.model.training
    logprobs, _ = trainer._logprobs(trainer.model, RolloutBatch.from_trl(batch))
    mask = batch["loss_mask"]
    for old in ("old_per_token_logps", "sampling_per_token_logps"):
        assert ((logprobs - batch[old]).abs() * mask).sum() / mask.sum() < 1e-5
    assert any(isinstance(module, torch.nn.Dropout) for module in trainer.model.modules())


@pytest.mark.nightly
def test_accumulation_changes_nothing(make_trainer: Any) -> None:
    """Two micro-batches of two rollouts give the weights of one of four."""
    trained = []
    for micro_batch_size in (4, 2):
        trainer = make_trainer(micro_batch_size=micro_batch_size)
        start = flat_weights(trainer.model).clone()
        trainer.train()
        trained.append(flat_weights(trainer.model))
    assert (trained[0] - start).abs().max() > 1e-3
    torch.testing.assert_close(trained[0], trained[1], atol=5e-5, rtol=1e-3)


def one_batch(trainer: Any) -> dict[str, Any]:
    trainer.model.train()
    pytest.MonkeyPatch().setattr(trainer, "current_gradient_accumulation_steps", 1, raising=False)  # as its loop does
    return dict(trainer._prepare_inputs(next(iter(trainer.get_train_dataloader()))))


def test_policy_sees_the_image(make_trainer: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Another image, other training log-probs; and every weight of the vision tower gets a gradient."""
    trainer = make_trainer()
    batch = one_batch(trainer)
    seen: list[torch.Tensor] = []
    original = trainer._get_per_token_logps_and_entropies

    def spy(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append(result[0].detach().clone())
        return result

    monkeypatch.setattr(trainer, "_get_per_token_logps_and_entropies", spy)
    loss = trainer._compute_loss(trainer.model, batch)
    loss.backward()
    others = [row | {"pixel_values": row["pixel_values"] + 0.5} for row in batch[IMAGE_ROWS]]
    trainer._compute_loss(trainer.model, {**batch, IMAGE_ROWS: others})
    mask = batch["completion_mask"]
    assert ((seen[0] - seen[1]).abs() * mask).max() > 1e-4
    blind = [name for name, p in trainer.model.model.visual.named_parameters() if p.grad is None or not p.grad.any()]
    assert blind == []


def test_trainer_logprobs_equal_the_samplers(make_trainer: Any, demo_pairs: Any, tiny_checkpoint: Path) -> None:
    """What the sampler says it drew with is what the trainer computes for the same tokens, M-RoPE included."""
    trainer = make_trainer()
    sampler = HFSampler(trainer.model, trainer.processing_class)
    prompts = [build_messages(pair, order=Order.SWAPPED, template=PLAIN) for pair in demo_pairs[0][:6]]
    drawn = [row[0] for row in sampler.sample(prompts, SamplingParams(max_tokens=10, seed=3))]
    encoded = sampler.encode(prompts)
    width = max(len(completion.token_ids) for completion in drawn)
    ids = torch.tensor([[*c.token_ids, *[0] * (width - len(c.token_ids))] for c in drawn])
    mask = torch.tensor([[1] * len(c.token_ids) + [0] * (width - len(c.token_ids)) for c in drawn])
    types = encoded["mm_token_type_ids"]
    logprobs, _, _ = trainer._get_per_token_logps_and_entropies(
        trainer.model,
        torch.cat([encoded["input_ids"], ids], 1),
        torch.cat([encoded["attention_mask"], mask], 1),
        width,
        pixel_values=encoded["pixel_values"],
        image_grid_thw=encoded["image_grid_thw"],
        num_images=[1] * len(drawn),
        mm_token_type_ids=torch.cat([types, torch.zeros_like(ids)], 1),
    )
    for row, completion in enumerate(drawn):
        own = torch.tensor(completion.logprobs)
        torch.testing.assert_close(logprobs[row, : len(own)], own, atol=1e-4, rtol=0)


def test_trainer_and_sampler_prompt_alike(make_trainer: Any, demo_pairs: Any) -> None:
    """The tokens TRL prompts with are the tokens the sampler prompts with, images first."""
    trainer = make_trainer()
    pair = demo_pairs[0][0]
    row = rl_rows([pair], PLAIN, both_orders=False)[0]
    images = row.pop("images")
    from trl.data_utils import prepare_multimodal_messages

    prompt = prepare_multimodal_messages(row["prompt"], images=images)
    ids, _, _ = trainer._tokenize_prompts([prompt])
    sampler = HFSampler(trainer.model, trainer.processing_class)
    own = sampler.encode([build_messages(pair, order=pair.order, template=PLAIN)])["input_ids"][0].tolist()
    assert list(ids[0]) == own


def test_cut_off_rollouts_keep_their_last_token(make_trainer: Any, demo_pairs: Any, tmp_path: Path) -> None:
    """An untrained judge never stops within 10 tokens: no end token is written into it."""
    trainer = make_trainer(format_weight=0.5)
    ends = set(trainer.eos_token_ids)
    batch = one_batch(trainer)
    lengths = batch["completion_mask"].sum(1)
    cut = lengths == 10
    assert cut.any()
    last = batch["completion_ids"][cut, 9]
    assert not any(token in ends for token in last.tolist())
    assert batch["completion_mask"][cut].sum() == 10 * cut.sum()


def test_cut_off_rollouts_earn_nothing(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """By the judge's own reward: each is counted as truncated, and paid 0 although a form is paid for."""
    config = config_for(tiny_checkpoint, format_weight=0.5, max_steps=1, iterations=1)
    train_rl([replace(pair, attempts="2") for pair in demo_pairs[0][:16]], config, tmp_path)
    line = json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])
    samples = [json.loads(row) for row in (tmp_path / "samples.jsonl").read_text().splitlines()]
    assert {row["status"] for row in samples} == {"truncated"}
    assert {row["reward"] for row in samples} == {0.0}
    assert line["reward"] == 0.0


def test_resume_after_a_kill_continues_the_same_run(tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """Stopped after the first of two rollout batches and started again: the weights of the uninterrupted run."""
    pairs = [replace(pair, attempts="2") for pair in demo_pairs[0][:16]]
    config = config_for(tiny_checkpoint, iterations=1, save_steps=2, learning_rate=1e-2)
    whole = train_rl(pairs, config, tmp_path / "whole", reward=pseudo_reward())
    with pytest.raises(KilledError):
        train_rl(pairs, config, tmp_path / "parts", reward=pseudo_reward(), callbacks=[Kill()])
    parts = train_rl(pairs, config, tmp_path / "parts", reward=pseudo_reward())
    start, a, b = (weights_of(folder) for folder in (tiny_checkpoint, whole, parts))
    assert (a - start).abs().max() > 1e-3
    torch.testing.assert_close(a, b, atol=1e-6, rtol=1e-5)
