"""The reward of a policy under a judge: the probability that its response beats another (Pairwise-RL, arXiv 2504.04950).

The judge compares in both orders. One that gives probabilities combines them by log-odds, one that votes by the mean of its
fractions. A comparison that cannot be read in both orders, or with fewer than half of its votes valid, gives no reward: its
rollout is left out of the update and counted. :class:`ScalarReward` is the pointwise reward to compare with: the number that a
scalar reward model gives a response alone.

Shapes: ``N`` responses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from rewardlab.errors import CheckpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.models.checkpoints import template_for
from rewardlab.models.loading import load_processor, this_device
from rewardlab.models.value_model import WEIGHTS, LikelihoodModel, ValueModel
from rewardlab.prompts import Template, build_messages
from rewardlab.rewards.policy_signs import AnswerComparison, JudgeChecks, orders_agree, share_in_both_orders
from rewardlab.samplers.failures import FailureStreak
from rewardlab.samplers.hf import encode, encode_replies
from rewardlab.types import BOTH_ORDERS, Message, PreferencePair

Anchors = Sequence[Sequence[str]]  # what each response is compared with: none where it has no anchor
LOGIT_REWARD_LIMIT = 4.0

# Phi of the policy's side: what winning with probability p is worth. The gradient of `probability` in the margin is
# p (1 - p): .25 at parity and .018 at margin 4, so that an anchor far too strong or too weak teaches nothing;
# `logit` keeps its slope up to +-4.
REWARDS: dict[str, Callable[[Tensor], Tensor]] = {
    "probability": lambda margins_N: margins_N.sigmoid(),
    "centered": lambda margins_N: torch.tanh(margins_N / 2) / 2,
    "logit": lambda margins_N: margins_N.clamp(-LOGIT_REWARD_LIMIT, LOGIT_REWARD_LIMIT),
    "binary": lambda margins_N: (margins_N > 0).to(margins_N.dtype),
}


LEAST = {"probability": 0.0, "centered": -0.5, "logit": -LOGIT_REWARD_LIMIT, "binary": 0.0}  # a certain loss
PARITY = {"probability": 0.5, "centered": 0.0, "logit": 0.0, "binary": 0.5}  # above it, a response has beaten its anchor


def rewards_of(margins_N: Tensor, phi: str = "probability") -> tuple[Tensor, dict[str, float]]:
    """Return ([N] rewards, metrics) of winning margins. ``probability`` is p, ``centered`` p - 1/2, ``logit`` the margin within
    +-4, ``binary`` 1 for p > 1/2. Raise ValueError for an unreadable margin (nan)."""
    if margins_N.isnan().any():
        raise ValueError("an unreadable comparison has no reward; leave its rollout out")
    beyond = (margins_N.abs() > LOGIT_REWARD_LIMIT).double().mean().item() if phi == "logit" else 0.0
    return REWARDS[phi](margins_N), {"reward/clipped_frac": beyond, "reward/win_rate": margins_N.sigmoid().mean().item()}


def without_thinking(response: str) -> str:
    """Return the text after the last ``</think>``, which a judge of responses is shown; "" if thinking was never closed."""
    _, closed, after = response.rpartition("</think>")
    if "<think>" in after:
        return ""
    return after.strip() if closed else response


class PolicyReward(Protocol):
    """Rewards responses to questions. ``least`` is the worst response's reward, ``parity`` that of a response as good as its
    anchor; None if the rewards have no such value."""

    least: float | None
    parity: float | None

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        """Return [N] rewards, None for a response that could not be compared, and metrics.

        ``questions`` give question and images; ``anchors`` are the texts that each response is compared with, one or several,
        or none where it has none. ``step`` is that of training: it seeds what is drawn.
        """
        ...


class PairwiseReward:
    """Asks a judge whether a response beats its anchor; ``phi`` maps the probability to the reward. Thinking is removed from
    both. Equal answers are even and an empty answer loses, without a query; an empty anchor names no opponent. Against several
    anchors a response earns the mean. ``checks`` are queried about the comparisons and only reported. A call raises
    EndpointError if request after request has failed.
    """

    def __init__(
        self,
        judge: GenerativeJudge,
        *,
        num_votes: int = 1,
        phi: str = "probability",
        seed: int = 0,
        checks: JudgeChecks | None = None,
    ) -> None:
        self.judge, self._num_votes, self._phi, self._seed, self._checks = judge, num_votes, phi, seed, checks
        self._failures = FailureStreak(judge.name)
        self.num_failed = 0  # requests so far
        self.least: float | None = LEAST[phi]
        self.parity: float | None = PARITY[phi]

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        answers = [without_thinking(response) for response in responses]
        comparisons = [(n, without_thinking(other)) for n, others in enumerate(anchors) for other in others]
        wins, made, agree = self._probabilities([(questions[n], answers[n], other) for n, other in comparisons], step)
        readable: dict[int, list[float]] = {}
        for (n, _), p in zip(comparisons, wins, strict=True):
            if p is not None:
                readable.setdefault(n, []).append(p)
        mean = torch.tensor([sum(shares) / len(shares) for shares in readable.values()], dtype=torch.float64)
        rewards: list[float | None] = [None] * len(questions)
        metrics: Metrics = {"judge/unreadable_frac": Metric(sum(p is None for p in wins) / max(1, len(wins)), len(wins))}
        if readable:
            values, reward_metrics = rewards_of(torch.logit(mean, eps=1e-4), self._phi)
            metrics = {**metrics, **{name: Metric(value, len(readable)) for name, value in reward_metrics.items()}}
            for n, reward in zip(readable, values.tolist(), strict=True):
                rewards[n] = reward
        metrics = {**metrics, "judge/order_agreement": Metric(sum(agree) / max(1, len(agree)), len(agree))}
        return rewards, {**metrics, **self._checks(made, step)} if self._checks else metrics

    def _probabilities(
        self, comparisons: Sequence[tuple[PreferencePair, str, str]], step: int
    ) -> tuple[list[float | None], list[AnswerComparison], list[bool]]:
        """Return the probability that the first text beats the second, the comparisons, and whether the orders of each agree
        where that is known; each distinct pair is judged once."""
        shares: dict[tuple[str, str, str], float | None] = {}
        todo: dict[tuple[str, str, str], PreferencePair] = {}
        for question, first, second in comparisons:
            key = (question.pair_id, first, second)
            if not first or not second:
                shares[key] = None if first else 0.0
            elif first == second:
                shares[key] = 0.5
            elif (question.pair_id, second, first) not in todo:
                todo[key] = replace(question, responses=(first, second), preferred=None)
        orders = [BOTH_ORDERS] * len(todo)
        judgments = self.judge.compare_many(
            list(todo.values()), orders=orders, num_votes=self._num_votes, seed=self._seed + step
        )
        for completion in (vote.completion for judgment in judgments for vote in judgment.votes):
            self.num_failed += completion.failed
            self._failures.take(completion)
        made = []
        for (name, first, second), judgment in zip(todo, judgments, strict=True):
            share = share_in_both_orders(judgment)
            made.append(AnswerComparison(todo[name, first, second], share))
            shares[name, first, second] = share
            shares[name, second, first] = None if share is None else 1 - share
        agree = [same for judgment in judgments if (same := orders_agree(judgment)) is not None]
        return [shares[question.pair_id, first, second] for question, first, second in comparisons], made, agree


class LeastReward:
    """Gives the least reward of several judges (worst-case optimization, arXiv 2310.02743). All ``rewards`` are on one scale; a
    response that one of them cannot compare has none. Metrics are the first judge's without those of its rewards;
    ``judge/unreadable_frac`` covers all judges, and ``judge/spread`` is the distance between them.
    """

    def __init__(self, rewards: Sequence[PairwiseReward]) -> None:
        if not rewards or len({(reward.least, reward.parity) for reward in rewards}) != 1:
            raise ValueError("expected one or more rewards on one scale")
        self.rewards = tuple(rewards)
        self.least, self.parity = rewards[0].least, rewards[0].parity

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        results = [reward(questions, responses, anchors, step) for reward in self.rewards]
        paid: list[float | None] = []
        spreads = []
        for scores in zip(*(scores for scores, _ in results), strict=True):
            known = [score for score in scores if score is not None]
            paid.append(min(known) if len(known) == len(scores) else None)
            spreads += [max(known) - min(known)] if len(known) == len(scores) else []
        shares = [share for _, each in results if isinstance(share := each["judge/unreadable_frac"], Metric)]
        compared = sum(share.weight for share in shares)
        unreadable = sum(share.value * share.weight for share in shares)
        metrics: Metrics = {"judge/unreadable_frac": Metric(unreadable / max(1, compared), compared)}
        if spreads:
            metrics = {**metrics, "judge/spread": Metric(sum(spreads) / len(spreads), len(spreads))}
        of_pay = ("reward/win_rate", "reward/clipped_frac")  # of what the first alone would have paid
        return paid, {**{name: value for name, value in results[0][1].items() if name not in of_pay}, **metrics}


def single_response_prompt(pair: PreferencePair, response: int, template: Template) -> tuple[Message, ...]:
    """Return the prompt that shows response 0 or 1 alone: a template of one response fills in the first of an order."""
    return build_messages(pair, order=BOTH_ORDERS[response], template=template)


def open_scorer(folder: Path) -> tuple[ValueModel | LikelihoodModel, Any, Template]:
    """Return a reward model of single responses, its processor and its template. Raise CheckpointError for another folder, and
    for one that was trained with another template."""
    template = template_for(folder, None)
    if not template.is_reply and not (folder / WEIGHTS).exists():
        raise CheckpointError(
            f"{folder}: not a reward model of single responses ({WEIGHTS} is missing); expected the output of `rewardlab rm`"
        )
    kind = LikelihoodModel if template.is_reply else ValueModel
    return kind.for_scoring(folder, this_device()), load_processor(str(folder)), template


@torch.inference_mode()
def score_responses(
    model: ValueModel | LikelihoodModel,
    processor: Any,
    pairs: Sequence[PreferencePair],
    template: Template,
    *,
    batch_size: int = 64,
) -> Tensor:
    """Return [B, 2], the number of either response. sigmoid(r_0 - r_1) is the probability that response 0 is the better one."""
    device, scores = next(model.parameters()).device, [torch.empty(0)]
    at_once = max(1, batch_size // 2)
    for start in range(0, len(pairs), at_once):
        some = pairs[start : start + at_once]
        prompts = [single_response_prompt(pair, response, template) for pair in some for response in (0, 1)]
        inputs = (encode_replies if template.is_reply else encode)(processor, prompts)
        scores.append(model.eval()(**{name: values.to(device) for name, values in inputs.items()})[:, -1].cpu())
    return torch.cat(scores).view(-1, 2)


class ScalarReward:
    """Pays the number that a Bradley-Terry head gives a response seen alone; anchors are not looked at."""

    least: float | None = None
    parity: float | None = None

    def __init__(self, folder: Path, *, batch_size: int = 64) -> None:
        self._model, self._processor, self._template = open_scorer(folder)
        self._batch_size = batch_size

    def __call__(
        self, questions: Sequence[PreferencePair], responses: Sequence[str], anchors: Anchors, step: int
    ) -> tuple[list[float | None], Metrics]:
        if not responses:  # all were cut off
            return [], {}
        answers = [without_thinking(response) for response in responses]
        pairs = [replace(question, responses=(answer, answer)) for question, answer in zip(questions, answers, strict=True)]
        scores = score_responses(self._model, self._processor, pairs, self._template, batch_size=self._batch_size)[:, 0]
        return [float(value) for value in scores], {}
