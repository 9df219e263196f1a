"""OpenEnv (0.3 and on): a rubric that has the judge compare an answer with one to beat.

    from rewardlab.integrations.openenv import PairwiseRubric, ScoredAnswer

    rubric = PairwiseRubric(
        lambda action, observation: ScoredAnswer(observation.question, action.text, anchor=observation.reference),
        criteria=[{"name": "accuracy", "weight": 2}, {"name": "style"}],
    )

``await rubric(action, observation)`` is a score of 0..1, 0.5 for a tie. Each criterion is a rubric below it,
``rubric.criteria["accuracy"]``, whose ``last_score`` is what the judge's checks of it came to. Rewards of a whole group of
rollouts need no answer to beat: :class:`rewardlab.integrations.client.RewardClient`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from openenv.core.rubrics import Rubric, RubricDict

from rewardlab.errors import EndpointError
from rewardlab.integrations.client import RewardClient, image_urls


@dataclass(frozen=True)
class ScoredAnswer:
    """An answer, what it answers, and the one to beat. ``images`` in any form of
    :func:`rewardlab.integrations.client.image_url`."""

    question: str
    text: str
    anchor: str
    images: tuple[Any, ...] = ()


class CriterionRubric(Rubric):
    """The score by one criterion, 0..1, of the latest answer; the :class:`PairwiseRubric` above it sets it."""

    def forward(self, action: Any, observation: Any) -> float:
        if self.last_score is None:
            raise EndpointError("the judge has named no check of this criterion yet")
        return float(self.last_score)


class PairwiseRubric(Rubric):
    """``read`` returns the answer of an action and an observation. ``criteria``: names, or mappings with ``name``, ``weight``
    and ``description``. ``url`` and ``options`` are those of a :class:`RewardClient`. Raise EndpointError for an answer that
    cannot be judged: a failure is never a score."""

    def __init__(
        self,
        read: Callable[[Any, Any], ScoredAnswer],
        *,
        criteria: Sequence[str | Mapping[str, Any]] = (),
        url: str = "",
        **options: Any,
    ) -> None:
        super().__init__()
        self._read, self._client, self._sent = read, RewardClient(url, **options), list(criteria)
        names = [
            (each if isinstance(each, str) else str(each["name"])).strip() for each in criteria
        ]  # as the server names them
        self.criteria = RubricDict({name: CriterionRubric() for name in names})

    async def forward(self, action: Any, observation: Any) -> float:
        answer, client = self._read(action, observation), self._client
        for child in self.criteria.children():
            child.last_score = None  # a failure leaves none
        [images] = await image_urls([answer.images])
        body = {"question": answer.question, "responses": [answer.text], "images": list(images), "strategy": "anchor"}
        more = {"anchor": answer.anchor, "criteria": self._sent}
        judged = await client.post("/v1/rewards", body | more | client.options) or {}
        reward = (judged.get("rewards") or [None])[0]
        if reward is None:
            raise EndpointError(f"{client.url}: no reward for an answer; see the log")
        for name, child in self.criteria.named_children():
            [part] = judged.get("components", {}).get(name) or [None]
            child.last_score = None if part is None else (part + 1) / 2
        return (float(reward) + 1) / 2
