"""The reward function of policies under a judge: rollouts in, rewards against their anchors out, a few of them kept to read."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path

import torch

from rewardlab.data.pair_table import pair_facts
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.processes import is_main
from rewardlab.rewards.anchors import AnchorsById
from rewardlab.rewards.pairwise import Anchors, PolicyReward, without_thinking
from rewardlab.rewards.policy_signs.answers import KnownWordPairs, answer_metrics
from rewardlab.rewards.policy_signs.truth import Rightness
from rewardlab.rewards.rollout import GatherObjects, Rollout, Scored
from rewardlab.rewards.scorer import as_completion
from rewardlab.types import FinishReason, PreferencePair

SAMPLES_PER_STEP = 4
Observer = Callable[[Sequence[PreferencePair], Sequence[str], Sequence[bool], Sequence[float | None]], None]
"""Called with every batch: questions, answers, whether each was finished, rewards."""


class AnchoredReward:
    """Pays each response what ``reward`` says of it against its anchor. An answer that was cut off earns the least there is.

    ``anchors`` None: a response is compared with the other finished ones to its question. A response is correct where it beat
    its anchor (the batch's mean where there is none), and parsed where it has a reward. ``gather`` joins what the processes of
    a run have: others of a group, and the least and the mean of a batch, may be on another one. ``known`` are the word pairs of
    answers that are no news; ``rightness`` says of an answer whether it is right, where that is known: both only for what is
    reported.
    """

    __name__ = "policy_reward"

    def __init__(
        self,
        reward: PolicyReward,
        pairs: Sequence[PreferencePair],
        anchors: AnchorsById | None,
        *,
        ends: frozenset[int],
        samples: Path,
        observer: Observer | None = None,
        gather: GatherObjects = list,
        known: KnownWordPairs | None = None,
        rightness: Rightness | None = None,
    ) -> None:
        self._gather, self._known, self._rightness = gather, known, rightness
        self._reward, self._anchors, self._ends, self._path = reward, anchors, ends, samples
        self._observer = observer
        self._pairs = pairs
        self._numbers = {facts.pair_id: number for number, facts in enumerate(pair_facts(pairs))}

    def __call__(self, rollouts: Sequence[Rollout], step: int) -> Scored:
        names, texts = [rollout.row["pair_id"] for rollout in rollouts], [rollout.text for rollout in rollouts]
        by_name = {name: self._pairs[self._numbers[name]] for name in dict.fromkeys(names)}  # each is read once
        pairs = [by_name[name] for name in names]
        finished = [
            as_completion(rollout.text, rollout.token_ids, self._ends).finish is FinishReason.STOP for rollout in rollouts
        ]
        rows = [n for n, flag in enumerate(finished) if flag]
        anchors = self._anchors_of([names[n] for n in rows], [texts[n] for n in rows])
        scores, reported = self._reward([pairs[n] for n in rows], [texts[n] for n in rows], anchors, step)
        least, parity = self._reward.least, self._reward.parity
        if least is None or parity is None:
            scored = self._gather([score for score in scores if score is not None])
            least = min(scored, default=None) if least is None else least
            parity = sum(scored) / max(1, len(scored)) if parity is None else parity
            if scored:
                reported = {**reported, "reward/scalar_std": float(torch.tensor(scored).std(correction=0))}
        rewards: list[float | None] = [least] * len(rollouts)
        for n, score in zip(rows, scores, strict=True):
            rewards[n] = score
        if self._observer:
            self._observer(pairs, texts, finished, rewards)
        self._keep_samples(step, names, texts, rewards)
        return Scored(
            rewards=rewards,
            correct=[float(reward is not None and reward > parity) for reward in rewards],
            parsed=[reward is not None for reward in rewards],
            metrics={
                **reported,
                **self._answer_metrics(pairs, texts, finished, rewards),
                "policy/truncated_frac": Metric(1 - len(rows) / max(1, len(rollouts))),
            },
        )

    def _answer_metrics(
        self,
        pairs: Sequence[PreferencePair],
        texts: Sequence[str],
        finished: Sequence[bool],
        rewards: Sequence[float | None],
    ) -> Metrics:
        """Return what the answers of all processes look like, and how many of those whose truth is known are right."""
        answers = [without_thinking(text) for text in texts]
        known = [self._rightness(pair, text) if self._rightness else None for pair, text in zip(pairs, answers, strict=True)]
        right = [None if ok is None else ok and done for ok, done in zip(known, finished, strict=True)]
        names = [pair.pair_id for pair in pairs]
        every = self._gather(list(zip(names, answers, rewards, right, finished, strict=True)))
        whole = [row[:3] for row in every if row[4]]  # an answer that was cut off says nothing of what is written
        measures: dict[str, float | None] = {"answers/right": _mean([float(ok) for _, _, _, ok, _ in every if ok is not None])}
        least = self._reward.least
        if least in (0.0, -0.5):  # paid in 0..1, as rightness is, or a half less
            paid = [(reward - least, ok) for _, _, reward, ok, _ in every if None not in (reward, ok)]
            measures["answers/overpaid"] = _mean([reward - ok for reward, ok in paid])
        values = {name: value for name, value in measures.items() if value is not None} | answer_metrics(whole, self._known)
        return {name: Metric(value) for name, value in values.items()}

    def _anchors_of(self, names: Sequence[str], texts: Sequence[str]) -> Anchors:
        """Return what each of these responses is compared with: its question's anchor, or the other responses to it."""
        if self._anchors is not None:
            return [() if (anchor := self._anchors[name]) is None else (anchor,) for name in names]
        groups: dict[str, list[str]] = {}
        for name, text in self._gather(list(zip(names, texts, strict=True))):
            groups.setdefault(name, []).append(text)
        return [_without_one(groups[name], text) for name, text in zip(names, texts, strict=True)]

    def _keep_samples(self, step: int, names: list[str], texts: list[str], rewards: list[float | None]) -> None:
        if not is_main():
            return
        with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            for name, text, reward in list(zip(names, texts, rewards, strict=True))[:SAMPLES_PER_STEP]:
                anchor = None if self._anchors is None else self._anchors[name]
                row = {"step": step, "pair_id": name, "text": text, "anchor": anchor, "reward": reward}
                file.write(json.dumps(row, ensure_ascii=False) + "\n")


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _without_one(texts: Sequence[str], text: str) -> list[str]:
    """Return the texts less one that is equal to ``text``."""
    place = texts.index(text)
    return [*texts[:place], *texts[place + 1 :]]
