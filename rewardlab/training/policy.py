"""Training a policy on a judge's word: its answers to questions about images, paid by the chance of beating an anchor."""

from __future__ import annotations

import atexit
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from datasets import Dataset, Features, Image, List, Value

from rewardlab.config import PolicyConfig
from rewardlab.errors import DataError
from rewardlab.judging.engines import open_judge
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.families import end_token_ids
from rewardlab.processes import is_main
from rewardlab.prompts import Template, load_template
from rewardlab.rewards.anchors import AnchorsById, anchors_of
from rewardlab.rewards.pairwise import PairwiseReward, PolicyReward, ScalarReward
from rewardlab.rewards.scorer import as_completion
from rewardlab.rewards.verifiable.extraction import Contract
from rewardlab.rewards.verifiable.mathematics import MathVerifier, all_verifiers
from rewardlab.rewards.verified import VerifiedReward
from rewardlab.training.policy_gradient.build import make_trainer, train
from rewardlab.training.policy_gradient.trainer import PolicyGradientTrainer
from rewardlab.training.run.folder import SAMPLES
from rewardlab.training.run.preflight import fitting
from rewardlab.training.run.rows import chat_columns
from rewardlab.training.sft import TURNS, data_fingerprint
from rewardlab.types import FinishReason, Order, PreferencePair

SAMPLES_PER_STEP = 4
Watch = Callable[[Sequence[PreferencePair], Sequence[str], Sequence[bool], Sequence[float | None]], None]
"""Told of every batch: questions, answers, whether each was finished, rewards."""


def open_reward(config: PolicyConfig, pairs: Sequence[PreferencePair]) -> PolicyReward:
    """What pays. Raises ConfigError and CheckpointError for a judge that cannot be opened, EndpointError for one that is away,
    DataError for pairs that nothing can pay."""
    spec = JudgeSpec.parse(config.judge, "rm")
    if spec.engine == "rm":
        return ScalarReward(Path(spec.target), batch_size=config.judge_batch_size)
    judge = open_judge(config.judge, max_tokens=config.judge_max_tokens, batch_size=config.judge_batch_size)
    judge.check()
    pairwise = PairwiseReward(judge, num_votes=config.judge_votes, phi=config.phi, seed=config.seed)
    if not config.verified:
        return pairwise
    math = MathVerifier()
    atexit.register(math.close)
    verified = VerifiedReward(all_verifiers(math), pairwise, contract=Contract(config.contract), thinking=config.thinking)
    verified.check(pairs)
    return verified


def policy_rows(pairs: Sequence[PreferencePair], template: Template) -> Dataset:
    """One row per question; ``order`` is there because a prompt is named by pair and order, and is always the same."""
    rows = [{**chat_columns(pair, Order.GIVEN, template), "pair_id": pair.pair_id, "order": "given"} for pair in pairs]
    text = Value("string")
    features = Features({"prompt": TURNS, "images": List(Image()), "pair_id": text, "order": text})
    return Dataset.from_list(rows, features=features)


class PolicyRewardFunction:
    """What TRL calls on each batch of rollouts. An answer that was cut off pays the least there is, whatever it says."""

    __name__ = "policy_reward"

    def __init__(
        self,
        reward: PolicyReward,
        pairs: Sequence[PreferencePair],
        anchors: AnchorsById | None,
        ends: frozenset[int],
        out: Path,
        watch: Watch | None = None,
    ) -> None:
        self._reward, self._anchors, self._ends, self._path = reward, anchors, ends, out / SAMPLES
        self._watch = watch
        self._pairs = {pair.pair_id: pair for pair in pairs}
        self._right: list[float] = []
        self._read: list[bool] = []

    def __call__(
        self,
        *,
        completions: list[Any],
        completion_ids: list[list[int]],
        pair_id: list[str],
        log_metric: Any,
        trainer_state: Any,
        **_: Any,
    ) -> list[float | None]:
        texts = [turns[0]["content"] for turns in completions]
        drawn = [as_completion(text, ids, self._ends) for text, ids in zip(texts, completion_ids, strict=True)]
        whole = [n for n, one in enumerate(drawn) if one.finish is FinishReason.STOP]
        anchors = None if self._anchors is None else [self._anchors[pair_id[n]] for n in whole]
        asked = [self._pairs[name] for name in pair_id]
        step = trainer_state.global_step
        paid, metrics = self._reward([asked[n] for n in whole], [texts[n] for n in whole], anchors, step)
        read = [reward for reward in paid if reward is not None]
        least = self._reward.least if self._reward.least is not None else min(read, default=None)
        parity = self._reward.parity if self._reward.parity is not None else sum(read) / max(1, len(read))
        rewards: list[float | None] = [least] * len(drawn)
        for n, reward in zip(whole, paid, strict=True):
            rewards[n] = reward
        metrics |= {"policy/cut_off_frac": 1 - len(whole) / max(1, len(drawn))}
        for name, value in metrics.items():
            log_metric(name, value)
        self._right = [float(reward is not None and reward > parity) for reward in rewards]
        self._read = [reward is not None for reward in rewards]
        if self._watch:
            self._watch(asked, texts, [one.finish is FinishReason.STOP for one in drawn], rewards)
        self._keep(step, pair_id, texts, rewards)
        return rewards

    def right(self) -> list[float]:
        """1 for each response that beat its anchor (the batch's mean where there is none), else 0."""
        return self._right

    def read(self) -> list[bool]:
        """Whether each response that was scored last has a reward."""
        return self._read

    def _keep(self, step: int, names: list[str], texts: list[str], rewards: list[float | None]) -> None:
        if not is_main():
            return
        with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            for name, text, reward in list(zip(names, texts, rewards, strict=True))[:SAMPLES_PER_STEP]:
                anchor = None if self._anchors is None else self._anchors[name]
                row = {"step": step, "pair_id": name, "text": text, "anchor": anchor, "reward": reward}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def build_trainer(
    rows: Dataset,
    pairs: Sequence[PreferencePair],
    reward: PolicyReward,
    anchors: AnchorsById | None,
    config: PolicyConfig,
    model: Any,
    processor: Any,
    out: Path,
    watch: Watch | None = None,
    **more: Any,
) -> PolicyGradientTrainer:
    """The trainer with its reward, ready to run; ``watch`` is told of every batch, ``more`` goes to the trainer as it is."""
    function = PolicyRewardFunction(reward, pairs, anchors, end_token_ids(model), out, watch)
    trainer = make_trainer(rows, config, model, processor, function, out, None, {}, **more)
    trainer.right_of_last_batch, trainer.read_of_last_batch = function.right, function.read
    return trainer


def train_policy(pairs: Sequence[PreferencePair], config: PolicyConfig, out: Path) -> Path:
    """Run (or resume) a policy's training; returns the final checkpoint folder.

    Raises DataError where anchors are missing, ConfigError and CheckpointError for a judge that cannot be opened, ConfigError
    for a finished or different run in ``out``.
    """
    if len({pair.pair_id for pair in pairs}) < len(pairs):
        raise DataError("two pairs have the same pair_id; each question needs one of its own, for its anchor is kept by it")
    template, reward = load_template(config.template), open_reward(config, pairs)
    asked = fitting(pairs, config, template, out, room=config.max_completion_length)
    rows = policy_rows(asked, template)

    def build(**told: Any) -> PolicyGradientTrainer:  # once the folder is known to be this run's
        return build_trainer(rows, asked, reward, anchors_of(asked, config, template, out, reward), **told)

    return train(build, config, out, data_fingerprint(pairs), template, stage="policy", num_rows=len(rows))
