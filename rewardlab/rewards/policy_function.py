"""The reward function of policies under a judge, and the anchors that responses must beat.

An anchor is the preferred response, the first policy's own answer, or the best of several of these. The order is that of
arXiv 2503.22230, from the reward that is hardest to exploit to the easiest: the truth, the best of N, one sample.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch

from rewardlab.config import PolicyConfig
from rewardlab.data.append_log import AppendLog
from rewardlab.data.pair_table import light_pairs, pair_facts, select_pairs
from rewardlab.errors import DataError
from rewardlab.metrics.running import Metric, Metrics
from rewardlab.models.loading import load_model, without_zero3_init
from rewardlab.processes import is_main
from rewardlab.prompts import Template, build_messages
from rewardlab.reporting.progress import bar
from rewardlab.rewards.pairwise import Anchors, PolicyReward, without_thinking
from rewardlab.rewards.policy_signs import KnownWordPairs, answer_metrics
from rewardlab.rewards.rollout import GatherObjects, Rollout, Scored
from rewardlab.rewards.scorer import as_completion
from rewardlab.rewards.verified import Rightness, VerifiedReward
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import FinishReason, Order, PreferencePair

SAMPLES_PER_STEP = 4
Observer = Callable[[Sequence[PreferencePair], Sequence[str], Sequence[bool], Sequence[float | None]], None]
"""Called with every batch: questions, answers, whether each was finished, rewards."""


class AnchoredReward:
    """Rewards each response by ``reward`` against its anchor; an answer that was cut off earns the least. ``anchors`` None: a
    response is compared with the other finished ones to its question. A response is correct if it beats its anchor (else the
    batch's mean), and parsed if it has a reward. ``gather`` joins the processes' rollouts: groups, least and mean may span
    them. ``known`` (bigrams of the set's answers) and ``rightness`` are for metrics only.
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


ANCHORS, CHUNK = "anchors.jsonl", 64
AnchorsById = dict[str, str | None]


def first_answers(
    pairs: Sequence[PreferencePair], config: PolicyConfig, template: Template, reward: PolicyReward | None
) -> Iterator[tuple[PreferencePair, str | None]]:
    """Yield ``config.model``'s answer before training, pair by pair: its greedy one (``start``) or the best of
    ``anchor_samples``; None if no answer was finished, or all were empty."""
    if not pairs:
        return
    best = config.anchor == "best"
    params = SamplingParams(
        config.anchor_samples if best else 1,
        config.temperature if best else 0.0,
        max_tokens=config.max_completion_length,
        seed=config.seed,
    )
    sampler = HFSampler(*load_model(config.model, attention=config.attn_implementation), batch_size=CHUNK)
    with bar("anchors", len(pairs)) as advance:
        for start in range(0, len(pairs), CHUNK):
            chunk = list(pairs[start : start + CHUNK])
            prompts = [build_messages(pair, order=Order.GIVEN, template=template) for pair in chunk]
            completions = sampler.sample(prompts, params)
            finished = [
                [answer.text for answer in row if answer.finish is FinishReason.STOP and answer.text] for row in completions
            ]
            answers = best_of(chunk, finished, reward) if best else [row[0] if row else None for row in finished]
            yield from zip(chunk, answers, strict=True)
            advance(len(chunk))


def best_of(
    pairs: Sequence[PreferencePair], candidates: Sequence[Sequence[str]], reward: PolicyReward | None
) -> list[str | None]:
    """Return each pair's best candidate; None without any. A judge decides by knock-out in the given order: a challenger wins
    if its reward against the current best exceeds parity. A scalar head decides by the highest score."""
    assert reward is not None
    if reward.parity is None:
        flat = [(n, text) for n, texts in enumerate(candidates) for text in texts]
        scores, _ = reward([pairs[n] for n, _ in flat], [text for _, text in flat], [()] * len(flat), 0)
        scored = [(n, text, score) for (n, text), score in zip(flat, scores, strict=True) if score is not None]
        tops = {n: text for n, text, _ in sorted(scored, key=lambda row: row[2])}  # the last one of a pair stays
        return [tops.get(n) for n in range(len(pairs))]
    standing = [texts[0] if texts else None for texts in candidates]
    for place in range(1, max(map(len, candidates), default=0)):
        rows = [n for n, texts in enumerate(candidates) if place < len(texts)]
        challengers = [candidates[n][place] for n in rows]
        scores, _ = reward([pairs[n] for n in rows], challengers, [(standing[n] or "",) for n in rows], 0)
        for n, text, score in zip(rows, challengers, scores, strict=True):
            if score is not None and score > reward.parity:
                standing[n] = text
    return standing


def anchors_of(
    pairs: Sequence[PreferencePair], config: PolicyConfig, template: Template, out: Path, reward: PolicyReward | None = None
) -> AnchorsById | None:
    """Return each question's anchor by pair_id; None if responses are compared with each other. The first policy's answers are
    made once and kept in ``out/anchors.jsonl`` as they come, so that a killed run resumes; a question without a finished answer
    has no anchor, and its rollouts are left out of the update. ``reward`` chooses the best of several. Raise DataError if the
    preferred response is needed and unknown.
    """
    if config.anchor == "group":
        return None
    if config.anchor == "preferred":
        ruled = reward.ruled(pairs) if isinstance(reward, VerifiedReward) else frozenset[str]()
        if any(facts.preferred is None and facts.pair_id not in ruled for facts in pair_facts(pairs)):
            raise DataError("a pair does not say which response is preferred; label it, or set anchor to start, best or group")
        return {
            pair.pair_id: None if pair.preferred is None else pair.responses[pair.preferred] for _, pair in light_pairs(pairs)
        }
    path, identity = out / ANCHORS, {"anchor": config.anchor, "samples": config.anchor_samples, "model": config.model}
    names = {facts.pair_id for facts in pair_facts(pairs)}
    if is_main() and not names <= _read_anchors(path).keys():
        with AppendLog(path, identity) as log, without_zero3_init():
            done = {row["pair_id"] for row in log.rows}
            todo = select_pairs(pairs, [number for number, facts in enumerate(pair_facts(pairs)) if facts.pair_id not in done])
            for pair, answer in first_answers(todo, config, template, reward):
                log.append({"pair_id": pair.pair_id, "answer": answer})
    while not names <= _read_anchors(path).keys():  # a barrier would time out
        time.sleep(2.0)
    return _read_anchors(path)


def _read_anchors(path: Path) -> AnchorsById:
    """Return what the file has, a torn last line aside."""
    lines = path.read_bytes().split(b"\n")[1:-1] if path.exists() else []
    return {row["pair_id"]: row["answer"] for row in map(json.loads, lines)}
