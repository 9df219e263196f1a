"""Completing a given beginning of an answer: as if the model had just written it itself, images and both orders included."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler, token_texts
from rewardlab.types import BOTH_ORDERS, Completion

PLAIN = load_template("plain")
CUTS = (0, 1, 3, 7, 11, 15)


@pytest.fixture(scope="module")
def sampler(tiny_checkpoint: Path) -> HFSampler:
    return HFSampler.load(tiny_checkpoint, batch_size=32, device="cpu")


@pytest.fixture(scope="module")
def prompts(demo_pairs: Any) -> list[Any]:
    """Three pairs in both orders, one of them without its image."""
    pairs = [*demo_pairs[0][:2], replace(demo_pairs[0][2], images=())]
    return [build_messages(pair, order=order, template=PLAIN) for pair in pairs for order in BOTH_ORDERS]


def tokens(completions: list[list[Completion]]) -> list[tuple[int, ...]]:
    return [row[0].token_ids for row in completions]


def test_the_rest_of_a_greedy_answer(sampler: HFSampler, prompts: list[Any]) -> None:
    """Cut anywhere, each row of the batch elsewhere, the rest is what was there, with its log-probs; a foreign beginning is not
    ignored."""
    params = SamplingParams(temperature=0, max_tokens=20)
    whole = [row[0] for row in sampler.sample(prompts, params)]
    prefixes = [completion.token_ids[:cut] for completion, cut in zip(whole, CUTS, strict=True)]
    rest = [row[0] for row in sampler.sample(prompts, params, prefixes)]
    plain = [sampler.encode([prompt])["input_ids"].shape[1] for prompt in prompts]
    for all_of_it, end, cut, width in zip(whole, rest, CUTS, plain, strict=True):
        left = len(all_of_it.token_ids) - cut
        assert end.token_ids[:left] == all_of_it.token_ids[cut:]
        torch.testing.assert_close(torch.tensor(end.logprobs[:left]), torch.tensor(all_of_it.logprobs[cut:]), atol=1e-4, rtol=0)
        assert end.num_prompt_tokens == width + cut
    other = sampler.sample(prompts, params, [(*prefix[:-1], 5) for prefix in prefixes])
    assert tokens(other) != [completion.token_ids for completion in rest]


def test_an_empty_beginning_is_none(sampler: HFSampler, prompts: list[Any]) -> None:
    """The same draws from the same seed."""
    params = SamplingParams(num_samples=3, max_tokens=6, seed=4)
    assert sampler.sample(prompts, params, [()] * len(prompts)) == sampler.sample(prompts, params)


def test_rows_do_not_meet(sampler: HFSampler, prompts: list[Any]) -> None:
    """In one batch as in batches of one; several draws of one beginning share it."""
    params = SamplingParams(temperature=0, max_tokens=8)
    prefixes = [tuple(range(20, 20 + cut)) for cut in CUTS]
    alone = [sampler.sample([prompt], params, [prefix])[0] for prompt, prefix in zip(prompts, prefixes, strict=True)]
    assert tokens(sampler.sample(prompts, params, prefixes)) == tokens(alone)
    twice = sampler.sample(prompts, replace(params, num_samples=2), prefixes)
    assert [row[0].token_ids for row in twice] == [row[1].token_ids for row in twice] == tokens(alone)


def test_nothing_comes_after_the_end(sampler: HFSampler, prompts: list[Any]) -> None:
    with pytest.raises(ValueError, match="prefix 1 holds an end token"):
        sampler.sample(prompts[:2], SamplingParams(), [(5,), (5, min(sampler._ends))])


def test_texts_of_tokens(sampler: HFSampler, prompts: list[Any]) -> None:
    """Joined they are the text, for what an untrained model writes (bytes that are no characters) and for characters of
    several tokens, the last of which holds them; special tokens hold nothing."""
    tokenizer = sampler.processor.tokenizer
    for row in sampler.sample(prompts, SamplingParams(num_samples=8, temperature=3.0, max_tokens=40)):
        for completion in row:
            pieces = token_texts(tokenizer, completion.token_ids)
            assert "".join(pieces) == completion.text
            assert len(pieces) == len(completion.token_ids)
    ids = [*tokenizer.encode("é.", add_special_tokens=False), min(sampler._ends)]
    pieces = token_texts(tokenizer, ids)
    assert pieces == [""] * (len(ids) - 3) + ["é", ".", ""]
    assert token_texts(tokenizer, []) == []
