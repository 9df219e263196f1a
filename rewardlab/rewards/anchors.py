"""What a policy's responses must beat: the preferred response, the first policy's own, or the best of several of its own.

In the order of how hard the reward then is to exploit (arXiv 2503.22230): the truth, the best of N, one sample.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from rewardlab.config import PolicyConfig
from rewardlab.data.append_log import AppendLog
from rewardlab.data.pair_table import light_pairs, pair_facts, select_pairs
from rewardlab.errors import DataError
from rewardlab.models.loading import load_model, without_zero3_init
from rewardlab.processes import is_main
from rewardlab.prompts import Template, build_messages
from rewardlab.reporting.progress import bar
from rewardlab.rewards.pairwise import PolicyReward
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import FinishReason, Order, PreferencePair

ANCHORS, CHUNK = "anchors.jsonl", 64
AnchorsById = dict[str, str | None]


def first_answers(
    pairs: Sequence[PreferencePair], config: PolicyConfig, template: Template, reward: PolicyReward | None
) -> Iterator[tuple[PreferencePair, str | None]]:
    """Return what ``config.model`` answers before training, pair by pair; None where no answer was finished, or all were empty.

    Its greedy answer (``start``), or the best of ``anchor_samples`` sampled ones (``best``).
    """
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
    """Return the candidate that remains of each pair's; None where there is none.

    Under a judge, by knock-out in the order they come: the next one takes the place if it is paid more than parity against the
    one that stands (one comparison fewer than candidates). Under a scalar head, the highest score.
    """
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
    """Return what each question's responses must beat, by pair_id; None where they are compared with each other.

    The first policy's own answers are made once, for all questions, and kept in ``out/anchors.jsonl`` as they come, so that a
    killed run goes on; a question it did not finish answering has no anchor, and its rollouts are left out of the update.
    ``reward`` chooses the best of several. Raise DataError where the preferred response is asked for and unknown.
    """
    if config.anchor == "group":
        return None
    if config.anchor == "preferred":
        if any(facts.preferred is None for facts in pair_facts(pairs)):
            raise DataError("a pair does not say which response is preferred; label it, or set anchor to start, best or group")
        return {pair.pair_id: pair.responses[pair.preferred or 0] for _, pair in light_pairs(pairs)}
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
