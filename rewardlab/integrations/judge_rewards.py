"""verl: pairs as rows of the Parquet file that its ``RLHFDataset`` (0.9.1) reads, and the rewards of a judge that is trained on
them. verl scores one rollout at a time: those of a pair wait here for its other order.

============  ======================================================================================
data_source   the pair's source, or "rewardlab"; verl's validation metrics go by it
prompt        one user turn of the template, ``<image>`` for each image
images        ``{"bytes": encoded file}`` in the order of their placeholders; none: an empty list
reward_model  ``{"style": "rule", "ground_truth": "first" or "second"}``: the position of the better response
extra_info    index, pair_id, question, order, preferred, criteria, and the format that reads the verdict: what
              :mod:`rewardlab.integrations.verl_judge_reward` rewards by
============  ======================================================================================

A file has its rows in the order of the set, the two orders of a pair one after the other.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from rewardlab.data.parquet import TableFile
from rewardlab.errors import DataError, EndpointError
from rewardlab.prompts import Template, build_messages
from rewardlab.prompts.sanitize import MARK
from rewardlab.rewards.consistency import EndpointConsistencyJudge
from rewardlab.rewards.judgment import JudgedCompletion, RewardParts, RewardTerm, compose, swap_agreement, winner_of
from rewardlab.rewards.scorer import JudgmentScorer
from rewardlab.types import BOTH_ORDERS, Order, PreferencePair, VerdictStatus, choice_of

IMAGE = "<image>"
GROUP_ROWS = 200  # of images, a row group is tens of megabytes
_PLACES = re.compile("<(?=(?:image|video|audio)>)")  # placeholders that verl replaces anywhere in a text
COLUMNS = {
    "data_source": pa.string(),
    "prompt": pa.list_(pa.struct({"role": pa.string(), "content": pa.string()})),
    "images": pa.list_(pa.struct({"bytes": pa.binary()})),
    "reward_model": pa.struct({"style": pa.string(), "ground_truth": pa.string()}),
    "extra_info": pa.struct(
        {
            "index": pa.int64(),
            "pair_id": pa.string(),
            "question": pa.string(),
            "order": pa.string(),
            "preferred": pa.int8(),
            "verdict_format": pa.string(),
            "criteria": pa.list_(pa.struct({"name": pa.string(), "weight": pa.float64(), "description": pa.string()})),
        }
    ),
}


@dataclass(frozen=True)
class VerlRowCounts:
    """How many rows a file has, and how many pairs were left out because they have no label."""

    num_rows: int
    num_unlabelled: int


def verl_row(pair: PreferencePair, order: Order, template: Template, *, index: int = 0) -> dict[str, Any]:
    """Return the row of a pair in one order. An ``<image>`` (``<video>``, ``<audio>``) that a text itself contains is broken by
    a zero-width space, as in sanitized prompts: verl would look for an image. Raise DataError for a pair without a label."""
    if pair.preferred is None:
        raise DataError(f"{pair.pair_id}: has no 'preferred'; a judge cannot be rewarded on an unlabelled pair")
    messages = build_messages(pair, order=order, template=template)
    return {
        "data_source": pair.source or "rewardlab",
        "prompt": [
            {
                "role": message.role,
                "content": "".join(_PLACES.sub(f"<{MARK}", p.text) if p.image is None else IMAGE for p in message.parts),
            }
            for message in messages
        ],
        "images": [{"bytes": image} for message in messages for image in message.images],
        "reward_model": {"style": "rule", "ground_truth": choice_of(pair.preferred, order).value},
        "extra_info": {
            "index": index,
            "pair_id": pair.pair_id,
            "question": pair.question,
            "order": order.value,
            "preferred": pair.preferred,
            "verdict_format": template.verdict_format,
            **({"criteria": list(map(asdict, pair.criteria))} if pair.criteria else {}),
        },
    }


def write_verl_rows(pairs: Iterable[PreferencePair], path: Path, template: Template, *, both_orders: bool) -> VerlRowCounts:
    """Write the labelled pairs, each in its own order or in both. Raise DataError if none has a label, OutputError."""
    table: TableFile | None = None
    num_rows = num_unlabelled = 0
    for pair in pairs:
        if pair.preferred is None:
            num_unlabelled += 1
            continue
        for order in BOTH_ORDERS if both_orders else (pair.order,):
            table = table or TableFile(path, COLUMNS, group_rows=GROUP_ROWS)
            table.add(verl_row(pair, order, template, index=num_rows))
            num_rows += 1
    if table is None:
        raise DataError(f"{path}: no pair has a label, so there is nothing to write ({num_unlabelled:,} pairs without one)")
    table.close()
    return VerlRowCounts(num_rows, num_unlabelled)


@dataclass(frozen=True)
class WaitingRollout:
    """A scored rollout that waits for those of its pair's other order."""

    rollout: JudgedCompletion
    part: RewardParts
    agreement: asyncio.Future[float]


class JudgeRewards:
    """Rewards by :func:`rewardlab.rewards.judgment.compose`, as ``rewardlab rl`` pays them, one rollout at a time.

    ``judge`` None: no consistency. With a term that compares orders, the ``num_samples`` rollouts of either order must all
    come within ``deadline_s``.
    """

    def __init__(
        self,
        judge: EndpointConsistencyJudge | None,
        terms: Sequence[RewardTerm],
        *,
        num_samples: int = 1,
        deadline_s: float = 600.0,
        judge_deadline_s: float = 40.0,
    ) -> None:
        self._judge, self._terms, self._num_samples, self._deadline_s = judge, terms, num_samples, deadline_s
        self._judge_deadline_s = judge_deadline_s
        self._scorers: dict[str, JudgmentScorer] = {}
        self._pairs: dict[str, list[WaitingRollout]] = {}
        self._check: asyncio.Future[None] | None = None

    async def reward(self, rollout: JudgedCompletion, pair_id: str, verdict_format: str) -> dict[str, float]:
        """Return ``score`` and its parts, all numbers. Raise EndpointError if a rollout could not be scored, if the
        consistency judge does not answer at the start or falls silent, and if the other order of a pair does not come."""
        await self._check_judge()
        scorer = self._scorers.get(verdict_format)
        if scorer is None:
            scorer = JudgmentScorer(verdict_format, self._judge, deadline_s=self._judge_deadline_s, opened=None)
            self._scorers[verdict_format] = scorer
        (part,) = await scorer.score([rollout])
        if self._judge is not None:
            self._judge.refuse_silence()
        if part.status == VerdictStatus.ERROR:
            raise EndpointError(f"{pair_id}: a rollout could not be scored; it gets no reward")
        if any(term.compares_orders for term in self._terms):
            waiting = WaitingRollout(rollout, part, asyncio.get_running_loop().create_future())
            part = replace(part, agreement=await self._agreement(waiting, pair_id))
        (part,) = compose([part], [rollout], self._terms)
        return {
            "score": part.total,
            "format": float(part.format),
            "correct": float(part.correct),
            "consistency": float(part.consistency),
            "consistency_unknown": float(part.correct and self._judge is not None and part.consistency == 0),
            "invalid": float(part.status != VerdictStatus.OK),
            **{term.name: part.scores[term.name] or 0.0 for term in self._terms if term.name not in ("format", "accuracy")},
        }

    async def _check_judge(self) -> None:
        if self._judge is None:
            return
        if self._check is None:
            self._check = asyncio.ensure_future(self._judge.check())
        try:
            await asyncio.shield(self._check)
        except EndpointError as error:
            self._check = None
            raise EndpointError(f"the consistency model does not answer: {error}") from error

    async def _agreement(self, entry: WaitingRollout, pair_id: str) -> float:
        waiting = self._pairs.setdefault(pair_id, [])
        waiting.append(entry)
        if len(waiting) == 2 * self._num_samples:
            del self._pairs[pair_id]
            self._settle(waiting, pair_id)
        try:
            async with asyncio.timeout(self._deadline_s):
                return await entry.agreement
        except TimeoutError as error:
            raise EndpointError(
                f"{pair_id}: {len(waiting)} of the {2 * self._num_samples} rollouts of its two orders came within "
                f"{self._deadline_s:g} s; both orders must be in one batch (`rewardlab data verl --both-orders`, an even "
                "batch, data.shuffle=False)"
            ) from error
        finally:
            if self._pairs.get(pair_id) is waiting:  # a rollout of this epoch must not be taken for one of the next
                waiting.remove(entry)
                if not waiting:
                    del self._pairs[pair_id]

    def _settle(self, waiting: list[WaitingRollout], pair_id: str) -> None:
        orders = [entry.rollout.order for entry in waiting]
        if any(orders.count(order) != self._num_samples for order in BOTH_ORDERS):
            names = ", ".join(sorted(orders))
            failure = EndpointError(f"{pair_id}: came as {names}, not {self._num_samples} times in each order")
            for entry in waiting:
                if not entry.agreement.done():
                    entry.agreement.set_exception(failure)
                    entry.agreement.exception()  # a cancelled caller does not fetch it
            return
        winners = [winner_of(entry.part, entry.rollout.preferred) for entry in waiting]
        for entry, agreement in zip(waiting, swap_agreement([pair_id] * len(waiting), orders, winners), strict=True):
            if not entry.agreement.done():
                entry.agreement.set_result(agreement)
