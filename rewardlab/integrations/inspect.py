"""Inspect (inspect_ai): a scorer that compares a task's answers by a judge, and people's ratings of a log.

    from rewardlab.integrations.inspect import judge_scorer

    task = Task(dataset, scorer=judge_scorer("http://localhost:8000", votes=3))

Installed packages find it by name, too: ``inspect score LOG --scorer rewardlab/judge_scorer -S judge=demo``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from inspect_ai.log import read_eval_log
from inspect_ai.model import ContentImage
from inspect_ai.scorer import Score, Scorer, Target, mean, scorer, stderr
from inspect_ai.solver import TaskState

from rewardlab.benchmarks.inspect_log import PAIR_ID
from rewardlab.data.ratings import SKIP, rating_of, tie_of
from rewardlab.errors import ConfigError, DataError, EndpointError, MediaError
from rewardlab.judging.api import open_async_judge
from rewardlab.reporting.tables import RESPONSE_LETTERS
from rewardlab.types import Outcome, Rating

VALUES = {Outcome.RESPONSE_0: 1.0, Outcome.TIE: 0.5, Outcome.RESPONSE_1: 0.0}
# People's values; ties are those of ratings.tie_of.
CHOICES: dict[str | None, int | str] = {**dict(zip(RESPONSE_LETTERS, range(2), strict=True)), SKIP: SKIP}


@scorer(metrics=[mean(), stderr()])  # type: ignore[untyped-decorator]
def judge_scorer(judge: str, other: str = "", votes: int | None = None, error: float | None = None, **options: Any) -> Scorer:
    """Compare the model's answer with another in both orders: 1 if the judge prefers it, 0 if it prefers the other, 0.5 for a
    tie. Without such an outcome (no majority, no readable verdict, abstained, a judge or an answer that failed) the sample has
    no score, and ``reason`` says why.

    ``judge`` and ``options``: those of :func:`rewardlab.open_judge`. ``other``: the field of the sample's metadata with the
    other answer; "": the target. ``votes`` of each order, and ``error``, as of :meth:`rewardlab.SyncJudge.compare`. Raise
    ConfigError for a judge that cannot be opened, and for a sample without the other answer.
    """
    opened = open_async_judge(judge, **options)

    async def score(state: TaskState, target: Target) -> Score:
        answer, against = state.output.completion, state.metadata.get(other) if other else target.text
        if not isinstance(against, str) or not against:
            raise ConfigError(
                f"sample {state.sample_id}: has no {f'metadata {other!r}' if other else 'target'} to compare with"
            )
        messages = [] if isinstance(state.input, str) else state.input
        content = [part for message in messages if message.role == "user" for part in message.content]
        images = [part.image for part in content if isinstance(part, ContentImage)]
        try:
            result = await opened.compare(state.input_text, [answer, against], images=images, votes=votes, error=error)
        except (EndpointError, DataError, MediaError) as failure:
            return Score.unscored(reason="failed", answer=answer, explanation=str(failure))
        facts = {"share": result.share_0, "swap_consistent": result.swap_consistent, "invalid": dict(result.invalid)}
        fields: dict[str, Any] = {"answer": answer, "explanation": result.summary(), "metadata": facts}
        if (value := VALUES.get(result.outcome)) is None:
            return Score.unscored(reason="failed" if result.failed else result.outcome.value, **fields)
        return Score(value=value, **fields)

    return score


def ratings_of_log(log: str | Path, names: Sequence[str] = ("precomputed_scores",)) -> list[tuple[str, Rating]]:
    """Return people's ratings of an Inspect log as (pair id, rating), for :func:`rewardlab.data.ratings.write_ratings`.

    ``names`` are the scores that people gave, by ``precomputed_scores``: "A" (the first response of the pair), "B", a tie
    ("tie", "both bad") or "skip"; or a value for each rater, by name. The rater of a single value is the score's metadata
    ``rater``, else its name. The pair is the sample's metadata ``pair_id``, which `bench export` writes, else its id. Raise
    DataError for another value, and for a log without ratings.
    """
    ratings = []
    for sample in read_eval_log(str(log)).samples or ():
        pair_id = str(sample.metadata.get(PAIR_ID, sample.id))
        for name, score in (sample.scores or {}).items():
            if name not in names:
                continue
            value = score.value
            single = (score.metadata or {}).get("rater", name)
            for rater, given in value.items() if isinstance(value, dict) else [(single, value)]:
                if given is None or (isinstance(given, float) and math.isnan(given)):
                    continue  # nobody rated it
                text = given if isinstance(given, str) else None
                choice = CHOICES[text] if text in CHOICES else tie_of(text)
                if choice is None:
                    raise DataError(f"{log}: sample {sample.id}, {name} of {rater}: {given!r}; expected A, B, a tie or skip")
                record = {"rater": rater, "choice": choice, "reason": score.explanation or ""}
                ratings.append((pair_id, rating_of(record, f"{log}, sample {sample.id}")))
    if not ratings:
        raise DataError(f"{log}: has no ratings by {', '.join(names)}; name the scores that people gave")
    return ratings
