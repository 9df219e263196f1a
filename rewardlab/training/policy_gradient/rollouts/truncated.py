"""Truncated rollouts (T-PPO, arXiv 2506.15050): a rollout grows by a window of tokens per step and is continued in the next
one.

The policy is trained on each window at once, with EGAE's advantages where the rollout is not finished; the critic on whole
rollouts only, once their reward is known. So no step waits for the longest rollout, every sampled token is trained on once
by the policy, and once by the critic; but for the last tokens of an unfinished window (``tail``), whose advantages are made of
next to nothing but the critic's value at the cut: the policy is never trained on these.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rewardlab.metrics.running import Metric
from rewardlab.models.families import Fields, select_fields
from rewardlab.rewards.rollout import Rollout, Row, Trajectory
from rewardlab.training.policy_gradient.rollouts.prompts import PromptSource
from rewardlab.training.policy_gradient.rollouts.sampling import Collected, Sampling, Score, State, as_metrics


class TruncatedRollouts:
    """Rollouts that grow by ``window`` tokens a step; unfinished ones precede new prompts of ``source``. The last ``tail``
    tokens of an unfinished window are not trained on."""

    continues_rollouts = True

    def __init__(self, source: PromptSource, window: int, tail: int = 0) -> None:
        self._source, self._tail = source, tail
        self.max_new_tokens: int | None = window
        self._unfinished: list[tuple[int, list[int]]] = []  # (place of the prompt, tokens so far), oldest first
        self._places: list[int] = []
        self._prefixes: list[list[int]] = []

    def choose_rows(self, rows: list[Row]) -> list[Row]:
        size = len(rows)
        continued, self._unfinished = self._unfinished[:size], self._unfinished[size:]
        fresh = self._source.take(size - len(continued))
        self._places = [place for place, _ in continued] + [place for place, _ in fresh]
        self._prefixes = [tokens for _, tokens in continued] + [[] for _ in fresh]
        return [self._source.row(place) for place, _ in continued] + [row for _, row in fresh]

    def complete(self, prompt_ids: list[list[int]], images: Any, fields: Fields, sampling: Sampling) -> list[Trajectory]:
        so_far = [prompt + prefix for prompt, prefix in zip(prompt_ids, self._prefixes, strict=True)]
        grown = select_fields(fields, images, list(range(len(so_far))), [len(ids) for ids in so_far])
        windows, logprobs = sampling.sample(so_far, images, grown, range(len(so_far)))
        completions = []
        for n, (prefix, window) in enumerate(zip(self._prefixes, windows, strict=True)):
            tokens = prefix + window
            finished = tokens[-1] in sampling.ends or len(tokens) >= sampling.max_completion_length
            drawn = None if logprobs is None else [0.0] * len(prefix) + logprobs[n]
            until = None if finished else len(tokens) - self._tail
            completions.append(Trajectory(tokens, drawn, trained_from=len(prefix), trained_until=until, finished=finished))
        return completions

    def collect(self, rollouts: list[Rollout], score: Score) -> Collected:
        finished = [rollout for rollout in rollouts if rollout.trajectory.finished]
        scored = score(finished)
        attached = iter(scored.attach(finished))
        out = [next(attached) if rollout.trajectory.finished else rollout for rollout in rollouts]
        self._unfinished += [
            (place, rollout.token_ids)
            for place, rollout in zip(self._places, rollouts, strict=True)
            if not rollout.trajectory.finished
        ]
        size = len(rollouts)
        shares = {
            "truncated/unfinished_frac": 1 - len(finished) / size,
            "truncated/continued_frac": sum(rollout.trajectory.trained_from > 0 for rollout in rollouts) / size,
            "truncated/passes": self._source.passes,
        }
        return Collected(out, as_metrics(scored.metrics) | {name: Metric(value) for name, value in shares.items()})

    def state_dict(self) -> State:
        unfinished = [(self._source.number(place), tokens) for place, tokens in self._unfinished]
        return {"unfinished": unfinished, "source": self._source.state_dict()}

    def load_state_dicts(self, states: Sequence[State]) -> None:
        rollouts = [(self._source.place(number), tokens) for state in states for number, tokens in state["unfinished"]]
        self._unfinished = [(place, tokens) for place, tokens in rollouts if place is not None]
        self._source.load_state_dicts([state["source"] for state in states])
