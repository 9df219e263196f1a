"""What TRL calls on each batch of rollouts: scores them, logs every part of the reward, keeps a few to read."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from rewardlab.metrics.running import Mean
from rewardlab.processes import is_main, num_processes
from rewardlab.rewards.judgment import RewardParts, winner_of
from rewardlab.rewards.scorer import EndpointConsistencyJudge, Rollout, RolloutScorer, as_completion, reward_metrics, unpack
from rewardlab.rewards.swap import swap_agreement
from rewardlab.rl.selection import overlong_penalty
from rewardlab.training.run.folder import SAMPLES
from rewardlab.types import Choice, VerdictStatus, choice_of

SAMPLES_PER_STEP = 4


class RewardFunction:
    """What TRL calls on each batch of rollouts: scores them, logs every part, keeps a few to read."""

    __name__ = "judge_reward"

    def __init__(
        self,
        scorer: RolloutScorer,
        judge: EndpointConsistencyJudge | None,
        ends: frozenset[int],
        out: Path,
        swap_weight: float = 0.0,
        overlong: tuple[int, int] | None = None,
    ) -> None:
        self._swap_weight, self._overlong = swap_weight, overlong
        self._scorer, self._judge, self._ends, self._path = scorer, judge, ends, out / SAMPLES
        self._right: list[float] = []
        self._read: list[bool] = []

    async def __call__(
        self,
        *,
        completions: list[Any],
        completion_ids: list[list[int]],
        log_metric: Any,
        trainer_state: Any,
        **columns: Any,
    ) -> list[float | None]:
        """One reward per rollout; None for one that is not finished (column ``unfinished``): it is scored when it is.

        A column ``turn`` names the turn that is scored, where rollouts have several: its metrics go under that name.
        """
        if "turn" in columns:
            plain_log, turn = log_metric, columns.pop("turn")[0]

            def log_metric(name: str, value: float) -> None:
                plain_log(f"{turn}/{name}", value)

        done = [not flag for flag in columns.get("unfinished", [False] * len(completions))]
        if not all(done):
            kept = [n for n, flag in enumerate(done) if flag]
            scored = iter(
                await self.score(
                    [completions[n] for n in kept],
                    [completion_ids[n] for n in kept],
                    {name: [column[n] for n in kept] for name, column in columns.items() if isinstance(column, list)},
                    log_metric,
                    trainer_state,
                )
            )
            right, read = iter(self._right), iter(self._read)
            self._right = [next(right) if flag else 0.0 for flag in done]
            self._read = [next(read) if flag else False for flag in done]
            return [next(scored) if flag else None for flag in done]
        return list(await self.score(completions, completion_ids, columns, log_metric, trainer_state))

    async def score(
        self,
        completions: list[Any],
        completion_ids: list[list[int]],
        columns: dict[str, Any],
        log_metric: Any,
        trainer_state: Any,
    ) -> list[float]:
        rollouts = []
        for n, (turns, ids) in enumerate(zip(completions, completion_ids, strict=True)):
            question, order, preferred = unpack(columns, n)
            rollouts.append(Rollout(as_completion(turns[0]["content"], ids, self._ends), question, order, preferred))
        before = self._counts()
        parts = await self._scorer.score(rollouts)
        if self._swap_weight:
            winners = [winner_of(part, rollout.preferred) for part, rollout in zip(parts, rollouts, strict=True)]
            agreements = swap_agreement(columns["pair_id"], columns["order"], winners)
            log_metric("reward/swap_agreement", sum(agreements) / max(1, len(agreements)))
            parts = [
                replace(part, total=part.total + self._swap_weight * agreement)
                for part, agreement in zip(parts, agreements, strict=True)
            ]
        if self._overlong:
            longest, margin = self._overlong
            lengths_N = torch.tensor([rollout.completion.num_tokens for rollout in rollouts])
            penalties = overlong_penalty(lengths_N, longest=longest, margin=margin).tolist()
            log_metric("reward/overlong", sum(penalties) / max(1, len(penalties)))
            parts = [replace(part, total=part.total + cost) for part, cost in zip(parts, penalties, strict=True)]
        firsts = [
            (choice_of(rollout.preferred, rollout.order) is Choice.FIRST) == part.right
            for part, rollout in zip(parts, rollouts, strict=True)
            if part.status == VerdictStatus.OK
        ]
        if firsts:
            log_metric("verdict/first_frac", Mean(sum(firsts) / len(firsts), len(firsts)))
        self._right = [float(part.right) for part in parts]
        self._read = [part.status == VerdictStatus.OK for part in parts]
        for name, value in reward_metrics(parts).items() if parts else ():  # of no rollouts there is nothing to tell
            log_metric(name, value)
        if self._judge:
            for name, count in self._counts().items():
                log_metric(f"consistency/{name}", float(count - before[name]) * num_processes())  # the mean is their sum
        self._keep(trainer_state.global_step, rollouts, parts, columns["pair_id"])
        return [part.total for part in parts]

    def right(self) -> list[float]:
        """1 for each right verdict of the rollouts that were scored last, else 0."""
        return self._right

    def read(self) -> list[bool]:
        """Whether a verdict was read of each rollout that was scored last."""
        return self._read

    def _counts(self) -> dict[str, int]:
        """How the questions about consistency have gone so far."""
        asked = self._judge.counts if self._judge else {}
        return {
            **{name: asked.get(name, 0) for name in ("asked", "cached", "failed", "unclear")},
            **{name: self._scorer.counts[name] for name in ("late", "broken")},
        }

    def _keep(self, step: int, rollouts: list[Rollout], parts: list[RewardParts], names: list[str]) -> None:
        if not is_main():
            return
        with self._path.open("a", encoding="utf-8", errors="backslashreplace") as file:
            for rollout, part, name in list(zip(rollouts, parts, names, strict=True))[:SAMPLES_PER_STEP]:
                row = {
                    "step": step,
                    "pair_id": name,
                    "order": rollout.order.value,
                    "text": rollout.completion.text,
                    "num_tokens": rollout.completion.num_tokens,
                    "status": part.status,
                    "format": part.format,
                    "right": part.right,
                    "consistency": part.consistency,
                    "reward": part.total,
                }
                file.write(json.dumps(row, ensure_ascii=False) + "\n")
