"""Draws that share their prompt's keys and values are the draws that have a copy each."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from rewardlab.errors import CheckpointError
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers import decode, shared_prompt
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.decode import Draws, draw, draw_uniforms, pick
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.kv_cache import GrowingLayer
from rewardlab.samplers.shared_prompt import Layout, PromptCache
from rewardlab.types import Order
from tests.support import scaled_runs
from tests.support.recorded_graph import record_graphs

COUNTS = (1, 5, 2, 4)


def drawn(sampler: HFSampler, *, only: int = 4, repeated: bool = False, **changes: Any) -> Draws:
    """Twelve draws of four prompts, left-padded, with one image, none, and three; or of the first ``only``; or of one prompt
    four times."""
    pairs = [scaled_runs.mixed()[0]] * 4 if repeated else scaled_runs.mixed()[:only]
    prompts = [build_messages(pair, order=Order.GIVEN, template=load_template("plain")) for pair in pairs]
    values: dict[str, Any] = {
        "num_draws": COUNTS,
        "max_tokens": 70,
        "temperature": 1.0,
        "top_p": 0.9,
        "ends": frozenset(range(0, 500, 20)),  # draws end at different steps: rows and whole prompts leave the batch
        "uniforms": draw_uniforms((0,), range(sum(COUNTS)), 70),
    }
    return draw(sampler.model, sampler.encode(prompts), **values | changes)


@pytest.mark.parametrize("name", ["qwen2_5_vl", "qwen3_vl"])
def test_draws_as_with_copies(name: str, checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    sampler = HFSampler.load(checkpoint_of(name), device="cpu")
    layers: list[Any] = []
    attend = shared_prompt.attend

    def seen(module: Any, query: Any, key: Any, *args: Any, **kwargs: Any) -> Any:
        layers.append(getattr(key, "after_prompts", None))
        return attend(module, query, key, *args, **kwargs)

    monkeypatch.setitem(shared_prompt.AttentionInterface._global_mapping, shared_prompt.NAME, seen)
    config = sampler.model.config.get_text_config()
    before = config._attn_implementation
    shared = drawn(sampler)
    assert config._attn_implementation == before
    assert all(layer is not None for layer in layers)
    assert len(layers[-1].keys) < len(COUNTS)  # a prompt whose draws have all ended is let go
    monkeypatch.setattr(shared_prompt, "FAMILIES", ())
    steps = len(layers)
    copied = drawn(sampler)
    assert len(layers) == steps
    assert len({len(tokens) for tokens in shared.tokens}) > 3
    assert shared.tokens == copied.tokens
    for a, b in zip(shared.logprobs, copied.logprobs, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), atol=2e-5, rtol=1e-5)


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize(
    ("dtype", "key_bias", "size", "error"),
    [
        (torch.float32, 0.0, 1.0, 1e-5),
        (torch.bfloat16, 0.0, 1.0, 0.02),
        (torch.bfloat16, 100.0, 1.0, 0.03),  # as of Qwen2.5: scores of 16 bits would be off by a half
        (torch.float16, 0.0, 100.0, 0.01),  # 3,000 of them added up are beyond float16
    ],
)
def test_attention_of_uneven_draws(dtype: torch.dtype, key_bias: float, size: float, error: float, autocast: bool) -> None:
    """Against softmax attention in float64, draw by draw: two heads of keys for four of queries, padding on the left."""
    generator = torch.Generator().manual_seed(0)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator)

    prompt_R, tokens = torch.tensor([0, 0, 1, 2, 2, 2]), 3000
    mask_PT = torch.ones(3, tokens, dtype=torch.long)
    mask_PT[1, :1000] = 0
    keys, values = normal(3, 2, tokens, 8), size * normal(3, 2, tokens, 8).abs()
    new_keys, new_values, queries = normal(6, 2, 4, 8), size * normal(6, 2, 4, 8).abs(), normal(6, 4, 1, 8)
    queries[..., 0] += 1
    keys[..., 0] += key_bias
    new_keys[..., 0] += key_bias
    keys, values, new_keys, new_values, queries = (x.to(dtype) for x in (keys, values, new_keys, new_values, queries))
    prompts = PromptCache(keys, values, mask_PT == 0, Layout.of(prompt_R, 3))
    new_keys.after_prompts = prompts  # type: ignore[attr-defined]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        output = shared_prompt.attend(None, queries, new_keys, new_values, None)[0][:, 0].double()
    for row, prompt in enumerate(prompt_R.tolist()):
        shown = mask_PT[prompt] == 1
        for head in range(4):
            k = torch.cat([keys[prompt, head // 2][shown], new_keys[row, head // 2]]).double()
            v = torch.cat([values[prompt, head // 2][shown], new_values[row, head // 2]]).double()
            expected = (k @ queries[row, head, 0].double() / 8**0.5).softmax(0) @ v
            torch.testing.assert_close(output[row, head], expected, rtol=error, atol=error * size)


@pytest.mark.parametrize("counts", [(2, 3, 1, 0), (2, 0, 3, 1), (0, 2, 2, 2), (4, 0, 0, 0), (1, 1, 1, 1), (12, 1, 1, 1)])
def test_any_number_of_draws(counts: tuple[int, ...], checkpoint_of: Callable[[str], Path]) -> None:
    """Also none of a prompt, and so many of one that each has a copy: a draw is what it is among others."""
    sampler, uniforms = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu"), draw_uniforms((0,), range(sum(COUNTS)), 70)
    starts, place = [sum(COUNTS[:n]) for n in range(4)], []
    for start, wanted, there in zip(starts, counts, COUNTS, strict=True):
        place += [start + n % there for n in range(wanted)]
    whole, some = drawn(sampler), drawn(sampler, num_draws=counts, uniforms=uniforms[place])
    assert some.tokens == [whole.tokens[n] for n in place]


@pytest.mark.parametrize(
    ("name", "counts"),
    [
        ("qwen2_5_vl", COUNTS),
        ("qwen2_5_vl", (12, 1, 1, 1)),
        pytest.param("qwen2_5_vl", (3, 3, 3, 3), marks=pytest.mark.nightly),
        pytest.param("qwen2_5_vl", (1, 1, 1, 1), marks=pytest.mark.nightly),
        ("qwen3_vl", COUNTS),
    ],
)
def test_steps_of_fixed_shapes(
    name: str, counts: tuple[int, ...], checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A step that is recorded once and repeated, until its buffers are full or draws leave, samples the same."""
    sampler = HFSampler.load(checkpoint_of(name), device="cpu")
    changes: dict[str, Any] = {"num_draws": counts, "max_tokens": 200, "ends": frozenset({20, 40})}
    changes["uniforms"] = draw_uniforms((0,), range(sum(counts)), 200)
    plain = drawn(sampler, **changes)
    graphs = record_graphs(monkeypatch)
    fixed = drawn(sampler, **changes)
    assert sum(graph.replays for graph in graphs) == max(map(len, plain.tokens)) - 2  # the first is not recorded
    assert 1 < len(graphs) < 8
    assert fixed.tokens == plain.tokens
    for a, b in zip(fixed.logprobs, plain.logprobs, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), atol=2e-5, rtol=1e-5)


def test_room_for_the_tokens_of_a_draw(checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers of copies of long prompts have room for the tokens that may come, not for as many as the prompt has."""
    rooms: list[int] = []
    fix = GrowingLayer.fix
    monkeypatch.setattr(GrowingLayer, "fix", lambda layer, place, room: rooms.append(room) or fix(layer, place, room))
    record_graphs(monkeypatch)
    changes: dict[str, Any] = {"num_draws": (1, 1, 1, 1), "max_tokens": 8, "uniforms": draw_uniforms((0,), range(4), 8)}
    drawn(HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu"), **changes, ends=frozenset())
    assert rooms
    assert max(rooms) <= 8


def test_autocast_rounds_weights_once(checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Float32 weights that train are turned into 16 bits once for all tokens, not anew for each."""
    model = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu").model.requires_grad_(True)
    weights = {id(weight) for weight in model.parameters()}
    graphs = record_graphs(monkeypatch)
    with torch.autocast("cpu", torch.bfloat16):
        drawn(HFSampler(model, HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu").processor))
    names = ("to", "_to_copy")
    rounded = [args[0] for function, args, *_ in graphs[0].operations if function.overloadpacket.__name__ in names]
    assert rounded
    assert not [value for value in rounded if id(value) in weights]


aten = torch.ops.aten
WAITS = (aten.item.default, aten.is_nonzero.default, aten.nonzero.default, aten._local_scalar_dense.default, aten.equal.default)


class Waits(TorchDispatchMode):
    """Counts the operations for which a program waits for a card: numbers that it reads, sizes that depend on numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.count += func in WAITS
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("draws", [COUNTS, 1])
@pytest.mark.parametrize("never_ends", [False, True])
def test_draws_do_not_depend_on_how_often_the_decoder_looks(
    never_ends: bool, draws: Any, checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Texts are equal, whether it looks after each token or after eight which rows have ended. Rows that leave the batch apart,
    it waits for a card once in eight tokens; one draw of each prompt does where the prompts are of one length."""
    sampler = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu")
    changes: dict[str, Any] = {"ends": frozenset()} if never_ends else {}
    changes |= {"num_draws": draws} | ({} if draws == COUNTS else {"only": 1} if never_ends else {"repeated": True})
    expected = drawn(sampler, **changes)
    with Waits() as few:
        drawn(sampler, **changes | {"max_tokens": 1})  # what is waited for before the first token
    monkeypatch.setattr(decode, "steps_per_wait", lambda device: 8)
    with Waits() as waits:
        found = drawn(sampler, **changes)
    assert found.tokens == expected.tokens
    for a, b in zip(found.logprobs, expected.logprobs, strict=True):
        torch.testing.assert_close(torch.tensor(a), torch.tensor(b), atol=2e-5, rtol=1e-5)
    if never_ends:
        assert {len(tokens) for tokens in found.tokens} == {70}
        assert waits.count - few.count == 70 // 8
    else:
        assert len({len(tokens) for tokens in found.tokens}) > 1


def test_a_gpu_s_scores_are_those_of_a_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """The product that a GPU makes of 16-bit factors, its result of 32 bits, made here by the same call."""
    generator = torch.Generator().manual_seed(0)
    queries, keys = (torch.randn(3, 2, n, 8, generator=generator).bfloat16() for n in (4, 50))

    def bmm(a: torch.Tensor, b: torch.Tensor, *, out_dtype: torch.dtype) -> torch.Tensor:
        assert (a.dtype, b.dtype, a.ndim, b.ndim) == (torch.bfloat16, torch.bfloat16, 3, 3)
        return a.to(out_dtype) @ b.to(out_dtype)

    expected = shared_prompt._scores(queries, keys[:, :, :40], 0.3)
    monkeypatch.setattr(torch, "bmm", bmm)
    monkeypatch.setattr(shared_prompt, "is_on_gpu", lambda values: True)
    found = shared_prompt._scores(queries, keys[:, :, :40], 0.3)  # of a buffer with room to spare
    torch.testing.assert_close(found, expected)
    assert found.shape == (3, 2, 4, 40)


def test_nothing_stays_of_what_was_drawn(checkpoint_of: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    """Keys and values go with the call, and do not wait for the collector of cycles."""
    sampler = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu")
    layers: list[weakref.ref[Any]] = []
    make = shared_prompt.SharedPromptLayer

    def noted(prompts: PromptCache) -> Any:
        layer = make(prompts)
        layers.append(weakref.ref(layer))
        return layer

    monkeypatch.setattr(shared_prompt, "SharedPromptLayer", noted)
    gc.disable()
    try:
        drawn(sampler)
        assert layers
        assert all(layer() is None for layer in layers)
    finally:
        gc.enable()


def test_an_error_leaves_the_model_as_it_was(checkpoint_of: Callable[[str], Path]) -> None:
    sampler = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu")
    config = sampler.model.config.get_text_config()
    before = config._attn_implementation
    whole = drawn(sampler)
    with pytest.raises(IndexError):
        drawn(sampler, uniforms=draw_uniforms((0,), range(sum(COUNTS)), 2), ends=frozenset())
    assert config._attn_implementation == before
    assert drawn(sampler) == whole


def test_threads_that_share_a_model(checkpoint_of: Callable[[str], Path]) -> None:
    """Each draws what it draws alone."""
    sampler = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu")
    alone = [drawn(sampler), drawn(sampler, num_draws=(1, 2, 1, 1), uniforms=draw_uniforms((1,), range(5), 70))]
    with ThreadPoolExecutor(2) as pool:
        first = [pool.submit(drawn, sampler) for _ in range(3)]
        second = [
            pool.submit(drawn, sampler, num_draws=(1, 2, 1, 1), uniforms=draw_uniforms((1,), range(5), 70)) for _ in range(3)
        ]
        assert all(future.result() == alone[0] for future in first)
        assert all(future.result() == alone[1] for future in second)


@pytest.mark.parametrize("bad", [torch.nan, torch.inf, -torch.inf])
def test_scores_that_are_no_numbers(bad: float) -> None:
    """Any token of the vocabulary; the other rows' are as ever."""
    scores_RV, uniforms_R = torch.zeros(2, 101), torch.tensor([0.5, 0.5], dtype=torch.float64)
    alone = pick(scores_RV[:1], uniforms_R[:1])
    scores_RV[1] = bad
    picked = pick(scores_RV, uniforms_R)
    assert picked[0] == alone[0]
    assert 0 <= picked[1] < 101


def test_a_judge_that_has_diverged(checkpoint_of: Callable[[str], Path]) -> None:
    """Says nothing that would be counted. A policy's log-probs say it to the watchdog."""
    sampler = HFSampler.load(checkpoint_of("qwen2_5_vl"), device="cpu")
    with torch.no_grad():
        sampler.model.get_input_embeddings().weight.fill_(torch.nan)
    assert all(math.isnan(value) for row in drawn(sampler).logprobs for value in row)
    prompt = build_messages(scaled_runs.pairs()[0], order=Order.GIVEN, template=load_template("plain"))
    with pytest.raises(CheckpointError, match="are not finite"):
        sampler.sample([prompt], SamplingParams(2, max_tokens=4))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 596, 152_064])
def test_picks_are_those_of_one_cumulation(size: int) -> None:
    """Against the plain inversion in float64, with tokens of no probability among the others."""
    generator = torch.Generator().manual_seed(size)
    scores_RV = 3 * torch.randn(64, size, generator=generator)
    scores_RV[torch.rand(64, size, generator=generator) < 0.3] = -torch.inf
    scores_RV[:, 0] = 1.0
    uniforms_R = torch.rand(64, generator=generator, dtype=torch.float64)
    cumulated_RV = scores_RV.double().softmax(-1).cumsum(-1)
    expected = torch.searchsorted(cumulated_RV, uniforms_R[:, None] * cumulated_RV[:, -1:], right=True)[:, 0]
    found = pick(scores_RV, uniforms_R)
    assert (found == expected).float().mean() > 0.95  # float32 weights: a number next to a boundary falls on either side
    reached = cumulated_RV.gather(1, found[:, None])[:, 0]
    torch.testing.assert_close(reached, cumulated_RV.gather(1, expected[:, None])[:, 0], atol=1e-5, rtol=0)


@pytest.mark.parametrize("number", [0.0, 0.5, 1 - 2**-53])
def test_no_number_picks_what_cannot_be(number: float) -> None:
    """The first and the last tokens have no probability, and whole blocks have none."""
    scores_RV = torch.full((2000, 1000), -torch.inf)
    scores_RV[:, 100:992] = torch.randn(2000, 892, generator=torch.Generator().manual_seed(0))  # 992 begins a block
    scores_RV[:, 300:500] = -torch.inf
    found = pick(scores_RV, torch.full((2000,), number, dtype=torch.float64))
    assert scores_RV.gather(1, found[:, None]).isfinite().all()


def test_a_block_whose_two_sums_differ() -> None:
    """One after the other the small weights are lost in float64, all together they are not."""
    scores_RV = torch.full((1, 1000), -torch.inf)
    scores_RV[:, :32] = -36.84  # 0.9 of half the last digit of 1
    scores_RV[:, 0] = 0.0
    assert pick(scores_RV, torch.tensor([1 - 2**-53], dtype=torch.float64)).item() < 32
