"""Remote rewards of trainers: OpenRLHF's, in its versions, R1-Reward's, slime's, the same for one sample, and NeMo-Gym's.

``POST /get_reward`` and ``/get_reward_mllm``: ``{"query": [decoded prompt + response], "prompts": [...], "labels": [...]}``.
Samples of one prompt are compared with each other; OpenRLHF >= 0.9 sends them one by one, and they wait for their group. These
requests have no images: a label may be JSON with uploads, ``{"media": ["upload:ID"]}``, an ``anchor`` to compare with, and the
``criteria`` to judge by.

NeMo-Gym: the contract of a resources server, ``/seed_session``, ``/verify`` a rollout within its group, ``/aggregate_metrics``;
and the pairwise one, ``/compare`` a group of Responses-API objects.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Annotated, Any

from fastapi import APIRouter, Query
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field

from rewardlab.data.conversations import Content
from rewardlab.data.rows import criteria_of
from rewardlab.errors import DataError
from rewardlab.judging.group_rewards import JudgedMatch
from rewardlab.serving.conversations import (
    Sample,
    labeled_sample,
    read_conversation,
    read_item,
    references,
    split_sequence,
)
from rewardlab.serving.media import run_in_turn
from rewardlab.serving.schemas import MAX_CHARS, Items, JsonObject, example_config
from rewardlab.serving.service import JudgeService
from rewardlab.serving.strict_json import StrictJSONRoute


class GetRewardRequest(BaseModel):
    """``query`` are whole sequences with special tokens, ``prompts`` their beginnings."""

    model_config = example_config(
        {
            "query": ["What color is it? It is red.", "What color is it? It is blue."],
            "prompts": ["What color is it?"] * 2,
            "labels": ['{"media": ["upload:ID"]}'] * 2,
        }
    )
    query: Items[str]
    prompts: Items[str] | None = None
    labels: list[Any] | None = None


class GetRewardResponse(BaseModel):
    """``rewards`` in -1..1, ``scores`` the same in 0..1; numbers instead of one-element lists if ``flat``."""

    rewards: list[float] | float
    scores: list[float] | float
    extra_logs: dict[str, list[float]]


class MultimodalRewardResponse(BaseModel):
    rewards: list[float] | float


class SlimeRequest(BaseModel):
    """One sample, its prompt as text or messages; the answer is a bare number."""

    model_config = example_config(
        {"prompt": "What color is it?", "response": "It is red.", "label": {"media": ["upload:ID"], "anchor": "It is blue."}}
    )
    prompt: Annotated[str, Field(max_length=4 * MAX_CHARS)] | Items[JsonObject]
    response: str = Field(max_length=MAX_CHARS)
    label: Any = None


def _batch_samples(request: GetRewardRequest) -> list[Sample]:
    """Return the samples of a batch. Raise DataError for lists of different lengths, and for a sequence that cannot be
    split."""
    prompts, labels = request.prompts or [""] * len(request.query), request.labels or [None] * len(request.query)
    if not len(request.query) == len(prompts) == len(labels):
        raise DataError(
            f"{len(request.query)} queries, {len(prompts)} prompts and {len(labels)} labels; expected equal numbers"
        )
    rows = zip(request.query, prompts, labels, strict=True)
    return [labeled_sample(*split_sequence(query, prompt), label) for query, prompt, label in rows]


def openrlhf_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["OpenRLHF, R1-Reward, slime"], route_class=StrictJSONRoute)

    async def get_reward(request: GetRewardRequest, flat: bool) -> GetRewardResponse:
        samples = await run_in_turn(_batch_samples, request)
        members = await service.member_rewards(samples) if samples else []
        rewards = [member.value for member in members]
        named = [name for name in (members[0].components if members else {}) if all(name in m.components for m in members)]
        components = {f"judge_reward/{name}": [member.components[name] for member in members] for name in named}
        scores = [(reward + 1) / 2 for reward in rewards]  # 0..1, by which samples are filtered
        if flat and len(rewards) == 1:
            return GetRewardResponse(rewards=rewards[0], scores=scores[0], extra_logs={})
        return GetRewardResponse(rewards=rewards, scores=scores, extra_logs={"judge_reward": rewards} | components)

    @router.post("/get_reward")
    async def text(
        request: GetRewardRequest, flat: bool = Query(False, description="numbers instead of one-element lists")
    ) -> GetRewardResponse:
        """Return the rewards of sequences, in -1..1."""
        return await get_reward(request, flat)

    @router.post("/get_reward_mllm")
    async def multimodal(request: GetRewardRequest, flat: bool = Query(False)) -> MultimodalRewardResponse:
        """Return rewards alone, like R1-Reward's server."""
        return MultimodalRewardResponse(rewards=(await get_reward(request, flat)).rewards)

    @router.post("/slime", response_class=JSONResponse)
    async def slime(request: SlimeRequest) -> float:
        """Return the reward of one sample, as a bare number."""
        prompt = Content(request.prompt) if isinstance(request.prompt, str) else read_conversation(request.prompt)
        sample = labeled_sample(prompt.text, request.response, request.label, references(prompt))
        return (await service.sample_rewards([sample]))[0]

    return router


TASK_INDEX, ROLLOUT_INDEX = "_ng_task_index", "_ng_rollout_index"
MAX_NUMBER = 1e150  # larger numbers are no metrics, and their squares are infinite
MOST_NAMES = 1000  # of metrics; each has five statistics per task


def aggregate_metrics(rollouts: Sequence[JsonObject]) -> JsonObject:
    """Return ``group_level_metrics`` (by task, in order of its index), ``agent_metrics`` (over all rollouts) and
    ``key_metrics`` (the means of the latter). Every number of a rollout and of its response's usage has ``mean/NAME``,
    ``max/``, ``min/``, ``median/`` and ``std/`` (sample deviation; 0 for one). A rollout without a task belongs to task 0.

    Raise DataError for more than :data:`MOST_NAMES` names."""
    tasks: dict[int | str, list[dict[str, float]]] = {}
    for rollout in rollouts:
        index = rollout.get(TASK_INDEX)
        tasks.setdefault(index if isinstance(index, int | str) else 0, []).append(_numbers(rollout))
    overall = _described([numbers for group in tasks.values() for numbers in group])
    return {
        "group_level_metrics": [{TASK_INDEX: index, **_described(tasks[index])} for index in sorted(tasks, key=_place)],
        "agent_metrics": overall,
        "key_metrics": {name: value for name, value in overall.items() if name.startswith("mean/")},
    }


def _place(index: int | str) -> tuple[bool, int, str]:
    """Return the sort key of an index: numbers, also as texts, come before other texts."""
    is_number = isinstance(index, int) or (index.isdecimal() and len(index) < 20)
    return not is_number, int(index) if is_number else 0, str(index)


def _numbers(rollout: JsonObject) -> dict[str, float]:
    response = rollout.get("response")
    usage = response.get("usage") if isinstance(response, Mapping) else None
    items = {**rollout, **(usage if isinstance(usage, Mapping) else {})}.items()
    return {
        name: float(value)
        for name, value in items
        if isinstance(value, int | float) and name not in (TASK_INDEX, ROLLOUT_INDEX) and abs(value) < MAX_NUMBER
    }


def _described(rows: Sequence[Mapping[str, float]]) -> dict[str, float]:
    by_name: dict[str, list[float]] = {}
    for row in rows:  # a single pass, whatever the number of names
        for name, value in row.items():
            by_name.setdefault(name, []).append(value)
    if len(by_name) > MOST_NAMES:
        raise DataError(
            f"the rollouts have {len(by_name):,} distinct numeric fields; expected at most {MOST_NAMES:,}: leave some out"
        )
    metrics: dict[str, float] = {}
    for name, values in by_name.items():
        mean = statistics.fmean(values)
        metrics |= {
            f"mean/{name}": mean,
            f"max/{name}": max(values),
            f"min/{name}": min(values),
            f"median/{name}": statistics.median(values),
            f"std/{name}": math.sqrt(math.fsum((value - mean) ** 2 for value in values) / max(1, len(values) - 1)),
        }
    return metrics


_OUTPUTS = [{"output": [{"type": "message", "content": [{"type": "output_text", "text": text}]}]} for text in ("Red.", "Blue.")]


class CompareRequest(BaseModel):
    model_config = example_config(
        {"conversation_history": [{"role": "user", "content": "What color is it?"}], "response_objs": _OUTPUTS}
    )
    conversation_history: Items[JsonObject] = Field(min_length=1)
    response_objs: Items[JsonObject] = Field(min_length=1)
    principle: str | None = None


class VerifyRequest(BaseModel):
    model_config = example_config(
        {"responses_create_params": {"input": "What color is it?"}, "response": _OUTPUTS[0], "prompt_id": "1"},
        extra="allow",
        populate_by_name=True,
    )
    responses_create_params: JsonObject
    response: JsonObject
    principle: str | None = None
    criteria: Items[str | JsonObject] = []
    prompt_id: str | None = None
    task_index: int | str | None = Field(None, alias="_ng_task_index")
    rollout_index: int | str | None = Field(None, alias="_ng_rollout_index")


class Comparison(BaseModel):
    """One comparison on NeMo-Gym's scales: scores 1 to 5, ranking 1 (first much better) to 6; null if it failed."""

    response_i: int
    response_j: int
    judge_idx: int = 0
    score_1: float | None = None
    score_2: float | None = None
    ranking: int | None = None


class CompareResponse(BaseModel):
    rewards: list[float]
    comparison_results: list[Comparison]
    metrics: dict[str, float]


class AggregateRequest(BaseModel):
    """Answers of ``/verify``; fields may be missing."""

    model_config = example_config(
        {"verify_responses": [{"_ng_task_index": 0, "reward": 1.0}, {"_ng_task_index": 0, "reward": -1.0}]}
    )
    verify_responses: Items[JsonObject]


class AggregateResponse(BaseModel):
    group_level_metrics: list[JsonObject]
    agent_metrics: dict[str, float]
    key_metrics: dict[str, float]


def _output(response: JsonObject) -> Content:
    """Return what a Responses-API object says: messages, tool calls and their results, without reasoning; an empty content for
    a rollout of reasoning alone. Raise DataError for an output without items."""
    output = response.get("output")
    if not isinstance(output, list) or not output or not all(isinstance(item, dict) for item in output):
        raise DataError("a response has no output; expected a Responses API object with a list of items, such as a message")
    contents = [content for item in output if (content := read_item(item).content).text.strip()]
    return Content(
        "\n".join(content.text for content in contents),
        tuple(image for content in contents for image in content.images),
        tuple(video for content in contents for video in content.videos),
    )


def _with_principle(question: Content, principle: str | None) -> Content:
    return replace(question, text=f"{question.text}\n\nJudge by this principle: {principle}") if principle else question


def _comparison(match: JudgedMatch) -> Comparison:
    share = match.judgment.share_0 if match.judgment else None
    if share is None:
        return Comparison(response_i=match.first, response_j=match.second)
    scores = (1 + 4 * share, 5 - 4 * share)
    return Comparison(
        response_i=match.first,
        response_j=match.second,
        score_1=scores[0],
        score_2=scores[1],
        ranking=round(6 - 5 * share),
    )


def _compared(rewards: list[float], matches: Sequence[JudgedMatch]) -> CompareResponse:
    comparisons = [_comparison(match) for match in matches]
    scores = [score for row in comparisons for score in (row.score_1, row.score_2) if score is not None]
    metrics = {
        "mean_individual_score": statistics.fmean(scores),
        "std_individual_score": statistics.pstdev(scores),
        "tiebreak_usage_rate": 0.0,
        "num_failed": float(sum(row.ranking is None for row in comparisons)),
    }
    return CompareResponse(rewards=rewards, comparison_results=comparisons, metrics=metrics)


def nemo_gym_routes(service: JudgeService) -> APIRouter:
    router = APIRouter(tags=["NeMo-Gym"], route_class=StrictJSONRoute)

    @router.post("/seed_session")
    async def seed_session(body: JsonObject) -> JsonObject:
        """Return an empty object: rollouts have no state here."""
        return {}

    @router.post("/aggregate_metrics")
    async def aggregate(request: AggregateRequest) -> AggregateResponse:
        """Return statistics of the rollouts' metrics, for each task and over all."""
        return AggregateResponse(**await run_in_turn(aggregate_metrics, request.verify_responses))

    @router.get("/reverify_mode")
    async def reverify_mode() -> str:
        """Return ``unsupported``: a reward depends on the other rollouts of its group."""
        return "unsupported"

    @router.post("/compare")
    async def compare(request: CompareRequest) -> CompareResponse:
        """Return the rewards of a group, in -1..1; 503 if no comparison of a response could be judged. A failed comparison has
        null scores."""
        if len(request.response_objs) == 1:
            raise DataError("a single response cannot be compared; send two or more in response_objs")
        service.admit_groups([(len(request.response_objs), False)])
        question = _with_principle(read_conversation(request.conversation_history), request.principle)
        samples = [Sample.of(question, _output(response)) for response in request.response_objs]
        result = await service.compare_samples(samples)
        return await run_in_turn(_compared, service.all_rewards(result), result.matches)

    @router.post("/verify")
    async def verify(request: VerifyRequest) -> JsonObject:
        """Return the request with the rollout's reward when its group is complete; 408 if it does not complete in time.
        Rollouts of one prompt and principle, and of one ``_ng_task_index`` and ``prompt_id``, are a group; one that is sent
        again with its ``_ng_rollout_index`` is the same member. ``reward_components`` are the rewards by each criterion that
        the judge's checks name."""
        content = request.responses_create_params.get("input")
        messages = [{"role": "user", "content": content}] if isinstance(content, str) else content
        if not isinstance(messages, list):
            raise DataError("responses_create_params.input is neither a string nor a list of messages")
        question = _with_principle(read_conversation(messages), request.principle)
        # Several tasks may have the same text.
        scope = json.dumps([request.task_index, request.prompt_id])
        rollout = "" if request.rollout_index is None else f"rollout {request.rollout_index}"
        sample = Sample.of(question, _output(request.response), scope=scope, rollout=rollout)
        sample = replace(sample, criteria=criteria_of(request.criteria, "the request"))
        [reward] = await service.member_rewards([sample])
        components = {"reward_components": dict(reward.components)} if reward.components else {}
        return {**request.model_dump(by_alias=True, exclude_unset=True), "reward": reward.value, **components}

    return router
