"""What a policy is paid under a judge: the probability that its response beats another (Pairwise-RL, arXiv 2504.04950).

Both orders are asked and combined by log-odds. A comparison that cannot be read pays nothing and costs nothing: its rollout is
left out of the update, and counted. ``ScalarReward`` is the pointwise reward it is compared with.

Shapes: ``N`` responses.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import rewardlab.torchvision_cpu  # noqa: F401  (before transformers)

# isort: split
import torch

from rewardlab.checkpoints import template_for
from rewardlab.judge import GenerativeJudge
from rewardlab.rl.pairwise import LEAST, PARITY, rewards_of, without_thinking
from rewardlab.samplers.hf import load_processor
from rewardlab.training.bradley_terry import score
from rewardlab.training.value_model import ValueModel
from rewardlab.types import BOTH_ORDERS, PreferencePair

Metrics = dict[str, float]


class PolicyReward(Protocol):
    """Pays responses to questions; ``anchors`` are what each is compared with, where anything is.

    ``least`` is what the worst response earns and ``parity`` what one earns that is as good as its anchor; None where rewards
    have no such place.
    """

    least: float | None
    parity: float | None

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Sequence[str] | None
    ) -> tuple[list[float | None], Metrics]:
        """[N] rewards, None where a comparison could not be read, and metrics. ``questions`` give question and images."""
        ...


class PairwiseReward:
    """Asks a judge whether a response beats its anchor; ``phi`` says what winning with probability p is worth.

    Thinking is stripped from the response: it is the answer that is judged. Equal texts are even without asking. Without
    anchors the responses of each question (same ``pair_id``) are compared with each other: the reward is the mean over all
    others of the group.
    """

    def __init__(self, judge: GenerativeJudge, *, num_votes: int = 1, phi: str = "prob", seed: int = 0) -> None:
        self._judge, self._num_votes, self._phi, self._seed = judge, num_votes, phi, seed
        self.least: float | None = LEAST[phi]
        self.parity: float | None = PARITY[phi]
        self._calls = 0

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Sequence[str] | None
    ) -> tuple[list[float | None], Metrics]:
        shown = [without_thinking(response) for response in responses]
        if anchors is not None:
            rows = [
                (n, question, answer, anchor)
                for n, (question, answer, anchor) in enumerate(zip(questions, shown, anchors, strict=True))
            ]
        else:
            ids = [question.pair_id for question in questions]
            rows = [
                (n, questions[n], shown[n], shown[m])
                for n in range(len(ids))
                for m in range(len(ids))
                if m != n and ids[m] == ids[n]
            ]
        wins = self._probabilities([(question, answer, other) for _, question, answer, other in rows])
        margins: list[list[float]] = [[] for _ in questions]
        for (n, *_), p in zip(rows, wins, strict=True):
            if p is not None:
                margins[n].append(p)
        read = [n for n, own in enumerate(margins) if own]
        mean = torch.tensor([sum(margins[n]) / len(margins[n]) for n in read], dtype=torch.float64)
        paid, metrics = rewards_of(torch.logit(mean, eps=1e-4), self._phi)
        rewards: list[float | None] = [None] * len(questions)
        for n, reward in zip(read, paid.tolist(), strict=True):
            rewards[n] = reward
        return rewards, {**metrics, "judge/unreadable_frac": sum(p is None for p in wins) / max(1, len(wins))}

    @staticmethod
    def _others(n: int, questions: Sequence[PreferencePair], shown: Sequence[str], anchors: Sequence[str] | None) -> list[str]:
        """What response ``n`` is compared with."""
        if anchors is not None:
            return [anchors[n]]
        mine = questions[n].pair_id
        return [shown[m] for m, question in enumerate(questions) if m != n and question.pair_id == mine]

    def _probabilities(self, asked: Sequence[tuple[PreferencePair, str, str]]) -> list[float | None]:
        """That the first text beats the second, each distinct comparison asked once and in both orders; 1/2 for equal texts."""
        known: dict[tuple[str, str, str], float | None] = {}
        todo: dict[tuple[str, str, str], PreferencePair] = {}
        for question, first, second in asked:
            key = (question.pair_id, first, second)
            if first == second:
                known[key] = 0.5
            elif not first or not second:
                known[key] = 0.0 if second else 1.0  # nothing was answered: there is nothing to ask a judge about
            elif (question.pair_id, second, first) not in todo:
                todo[key] = replace(question, responses=(first, second), preferred=None)
        self._calls += 1
        cast = self._judge.compare_many(
            list(todo.values()), orders=[BOTH_ORDERS] * len(todo), num_votes=self._num_votes, seed=self._seed + self._calls
        )
        for (name, first, second), judgment in zip(todo, cast, strict=True):
            known[name, first, second] = judgment.share_0
            known[name, second, first] = None if judgment.share_0 is None else 1 - judgment.share_0
        return [known[question.pair_id, first, second] for question, first, second in asked]


class ScalarReward:
    """The number a Bradley-Terry head gives a response seen alone; anchors are not looked at."""

    least: float | None = None
    parity: float | None = None

    def __init__(self, folder: Path, *, batch_size: int = 64) -> None:
        self._template = template_for(folder, None)
        device = "cuda" if torch.cuda.is_available() else "cpu"
        self._model, self._processor = ValueModel.from_pretrained(str(folder)).to(device), load_processor(str(folder))
        self._batch_size = batch_size

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Sequence[str] | None
    ) -> tuple[list[float | None], Metrics]:
        if not responses:  # all were cut off
            return [], {}
        shown = [without_thinking(response) for response in responses]
        pairs = [replace(question, responses=(answer, answer)) for question, answer in zip(questions, shown, strict=True)]
        scores = score(self._model, self._processor, pairs, self._template, batch_size=self._batch_size)[:, 0]
        return [float(value) for value in scores], {"reward/scalar_std": float(scores.std(correction=0))}
