"""Decoding equals transformers' own, log-probs are the model's, and the OpenAI client fails closed."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from rewardlab.config.judge import RequestConfig
from rewardlab.data.images import encode_png
from rewardlab.demo.server import Faults
from rewardlab.errors import CheckpointError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.models.families import vision_token_ids
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams, prompt_seed
from rewardlab.samplers.chat_endpoint import ChatEndpoint, ask_any
from rewardlab.samplers.decode import Draws, HotToken, draw, draw_uniforms, next_token_logits, read_logits
from rewardlab.samplers.hf import HFSampler
from rewardlab.samplers.openai_api import OpenAISampler
from rewardlab.samplers.openai_batch import BatchClient
from rewardlab.samplers.shared_prefix import split_prefixes
from rewardlab.types import Completion, FinishReason, Message, Order, Part
from tests.support.servers import running

PLAIN = load_template("plain")


@pytest.fixture(scope="module")
def sampler(tiny_checkpoint: Path) -> HFSampler:
    return HFSampler.load(tiny_checkpoint, batch_size=32, device="cpu")


@pytest.fixture(scope="module")
def prompts(demo_pairs: Any) -> list[Any]:
    """Six prompts of different length: with one image, with two of different size, and one without any."""
    pairs = list(demo_pairs[0][:6])
    from PIL import Image

    wide = encode_png(Image.new("RGB", (112, 56), (10, 200, 90)))
    pairs[2] = replace(pairs[2], images=(*pairs[2].images, wide))
    pairs[4] = replace(pairs[4], images=())
    return [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in pairs]


def test_greedy_equals_generate(sampler: HFSampler, prompts: list[Any]) -> None:
    """Token for token, one prompt at a time by ``generate()``, images of two sizes and none in our batch."""
    ours = [row[0] for row in sampler.sample(prompts, SamplingParams(temperature=0, max_tokens=24))]
    for prompt, completion in zip(prompts, ours, strict=True):
        inputs = sampler.encode([prompt])
        theirs = sampler.model.generate(
            **inputs, do_sample=False, max_new_tokens=24, suppress_tokens=vision_token_ids(sampler.model.config)
        )[0, inputs["input_ids"].shape[1] :].tolist()
        assert list(completion.token_ids) == theirs[: len(completion.token_ids)]
        assert len(completion.token_ids) == len(theirs)
        assert completion.num_prompt_tokens == inputs["input_ids"].shape[1]


def test_logprobs_equal_a_plain_forward(sampler: HFSampler, prompts: list[Any]) -> None:
    """Log-probabilities of sampled tokens, at temperature 1 and 0.7, several draws of each prompt."""
    for temperature in (1.0, 0.7):
        rows = sampler.sample(prompts, SamplingParams(num_samples=3, temperature=temperature, max_tokens=12, seed=5))
        for prompt, completions in zip(prompts, rows, strict=True):
            inputs = sampler.encode([prompt])
            for completion in completions:
                assert completion.num_prompt_tokens == inputs["input_ids"].shape[1]
                ids = torch.tensor([completion.token_ids])
                extended = inputs | {"input_ids": torch.cat([inputs["input_ids"], ids], 1)}
                extended["attention_mask"] = torch.ones_like(extended["input_ids"])
                if "mm_token_type_ids" in inputs:
                    extended["mm_token_type_ids"] = torch.cat([inputs["mm_token_type_ids"], torch.zeros_like(ids)], 1)
                with torch.no_grad():
                    logits = sampler.model(**extended).logits[0, -ids.shape[1] - 1 : -1] / temperature
                expected = logits.log_softmax(-1).gather(1, ids.T)[:, 0]
                torch.testing.assert_close(torch.tensor(completion.logprobs), expected, atol=1e-4, rtol=0)


def test_text_alone_after_images(sampler: HFSampler, prompts: list[Any], demo_pairs: Any) -> None:
    """A batch without any image, of unequal lengths, right after one with images: each row as if it were alone."""
    sampler.sample(prompts[:2], SamplingParams(temperature=0, max_tokens=4))
    texts = [replace(pair, images=()) for pair in demo_pairs[0][:3]]
    plain = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in texts]
    assert len({int(sampler.encode([prompt])["input_ids"].shape[1]) for prompt in plain}) > 1
    together = [row[0] for row in sampler.sample(plain, SamplingParams(temperature=0, max_tokens=12))]
    for prompt, completion in zip(plain, together, strict=True):
        inputs = sampler.encode([prompt])
        suppressed = vision_token_ids(sampler.model.config)
        theirs = sampler.model.generate(**inputs, do_sample=False, max_new_tokens=12, suppress_tokens=suppressed)
        assert list(completion.token_ids) == theirs[0, inputs["input_ids"].shape[1] :].tolist()


def test_an_adapter_around_the_model_changes_nothing(sampler: HFSampler, prompts: list[Any]) -> None:
    """peft starts adapters at zero: the same draws with the same log-probs, M-RoPE positions included."""
    import copy

    import peft

    adapted = peft.get_peft_model(copy.deepcopy(sampler.model), peft.LoraConfig(target_modules="all-linear")).eval()
    params = SamplingParams(num_samples=2, max_tokens=8, seed=3)
    wrapped = HFSampler(adapted, sampler.processor, batch_size=32).sample(prompts, params)
    for ours, theirs in zip(sampler.sample(prompts, params), wrapped, strict=True):
        for a, b in zip(ours, theirs, strict=True):
            assert a.token_ids == b.token_ids
            torch.testing.assert_close(torch.tensor(a.logprobs), torch.tensor(b.logprobs), atol=1e-4, rtol=0)


def test_no_step_is_spent_on_finished_rows(sampler: HFSampler, prompts: list[Any]) -> None:
    """Where a fifth of the vocabulary ends a row: as many forwards as the longest draw has tokens, on shrinking batches."""
    widths = []
    hook = sampler.model.register_forward_hook(lambda _, args, kwargs, out: widths.append(len(out.logits)), with_kwargs=True)
    try:
        inputs = sampler.encode(prompts)
        ends = frozenset(range(0, sampler.model.config.get_text_config().vocab_size, 5))
        draws = draw(
            sampler.model, inputs, num_draws=16, max_tokens=200, temperature=1.0, top_p=1.0, ends=ends,
            generator=torch.Generator().manual_seed(0),
        )  # fmt: skip
    finally:
        hook.remove()
    lengths = [len(tokens) for tokens in draws.tokens]
    assert len(widths) == max(lengths) < 200
    assert all(tokens[-1] in ends and not ends & set(tokens[:-1]) for tokens in draws.tokens)
    assert sum(widths[1:]) < 1.5 * sum(lengths)


def test_draws_follow_the_distribution(sampler: HFSampler, prompts: list[Any]) -> None:
    """2,000 first tokens against the model's own probabilities, by a chi-square over the ten likeliest."""
    inputs = sampler.encode(prompts[:1])
    draws = draw(sampler.model, inputs, num_draws=2000, max_tokens=1, temperature=0.5, top_p=1.0, ends=frozenset({0}))
    counts = Counter(tokens[0] for tokens in draws.tokens)
    with torch.no_grad():
        probabilities = (sampler.model(**inputs).logits[0, -1] / 0.5).softmax(-1)
    top = probabilities.topk(10)
    expected = [*(2000 * top.values).tolist(), 2000 * (1 - top.values.sum().item())]
    found = [counts[token] for token in top.indices.tolist()]
    found.append(2000 - sum(found))
    chi_square = sum((f - e) ** 2 / e for f, e in zip(found, expected, strict=True))
    assert chi_square < 29.6  # 99.9 % of chi-square with 10 degrees of freedom


def test_seeds(sampler: HFSampler, prompts: list[Any]) -> None:
    """The same seed draws the same, another does not, and the draws of one prompt differ."""
    one, two, other = (sampler.sample(prompts, SamplingParams(4, max_tokens=8, seed=seed)) for seed in (1, 1, 2))
    assert one == two != other
    assert len({completion.text for completion in one[0]}) > 1


def test_top_p_and_suppression() -> None:
    """Worked by hand: 0.5, 0.3, 0.15, 0.05."""
    logits = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()

    def kept(top_p: float, *suppress: int) -> list[bool]:
        suppressed = torch.tensor(suppress) if suppress else None
        return next_token_logits(logits, 1.0, top_p, suppressed).isfinite()[0].tolist()

    assert kept(1.0) == [True] * 4
    assert kept(0.5) == [True, False, False, False]
    assert kept(0.51) == [True, True, False, False]
    assert kept(0.96) == [True] * 4
    assert kept(1.0, 0, 3) == [False, True, True, False]


def hot_draws(sampler: HFSampler, prompts: list[Any], hot: HotToken | None, **changes: Any) -> Draws:
    values: dict[str, Any] = {"num_draws": 200, "max_tokens": 3, "temperature": 1.0, "top_p": 1.0, "ends": sampler._ends}
    generator = torch.Generator().manual_seed(0)
    return draw(sampler.model, sampler.encode(prompts[:1]), hot=hot, generator=generator, **(values | changes))


def test_a_hot_token_at_the_usual_temperature_is_plain_sampling(sampler: HFSampler, prompts: list[Any]) -> None:
    """FIRE at temperature 1 over the whole vocabulary: the same draws."""
    assert hot_draws(sampler, prompts, HotToken(1.0, top_k=10**9)) == hot_draws(sampler, prompts, None)


@pytest.mark.parametrize("position", [0, 1])
def test_a_hot_token_is_hot_alone(sampler: HFSampler, prompts: list[Any], position: int) -> None:
    """Spread over all of the top k at its place; before and after it everything is as greedy as asked; its log-prob is the
    policy's own, not that of the hot draw."""
    hot = HotToken(1e6, top_k=4, position=position)
    draws = hot_draws(sampler, prompts, hot, temperature=0.0)
    counts = Counter(tokens[position] for tokens in draws.tokens)
    assert len(counts) == 4
    assert min(counts.values()) > 25
    greedy = hot_draws(sampler, prompts, None, temperature=0.0, num_draws=1)
    assert {tuple(tokens[:position]) for tokens in draws.tokens} == {tuple(greedy.tokens[0][:position])}
    for token in counts:
        after = {tuple(tokens[position + 1 :]) for tokens in draws.tokens if tokens[position] == token}
        assert len(after) == 1
    likeliest = max(zip(draws.logprobs, draws.tokens, strict=True), key=lambda row: row[0][position])
    assert likeliest[1][position] == greedy.tokens[0][position]
    assert likeliest[0][position] == pytest.approx(greedy.logprobs[0][position], abs=1e-5)


def test_a_hot_token_needs_sense() -> None:
    """A temperature of 0 is not hot."""
    with pytest.raises(ValueError, match="hot token"):
        HotToken(0.0)


def test_more_draws_than_fit_at_once(sampler: HFSampler, prompts: list[Any]) -> None:
    """Are drawn in several turns, none wider than ``batch_size``."""
    narrow, widths = HFSampler(sampler.model, sampler.processor, batch_size=4), []
    hook = sampler.model.register_forward_hook(lambda _, args, out: widths.append(len(out.logits)))
    rows = narrow.sample(prompts[:2], SamplingParams(num_samples=10, max_tokens=3))
    hook.remove()
    assert [len(row) for row in rows] == [10, 10]
    assert max(widths) == 4


def test_a_cut_off_draw_says_so(sampler: HFSampler, prompts: list[Any]) -> None:
    """LENGTH where no end token was drawn; after an end token nothing follows."""
    completions = [c for row in sampler.sample(prompts, SamplingParams(20, temperature=3.0, max_tokens=60)) for c in row]
    assert {c.finish for c in completions} == {FinishReason.STOP, FinishReason.LENGTH}
    ends = sampler._ends
    for completion in completions:
        assert (completion.token_ids[-1] in ends) == (completion.finish is FinishReason.STOP)
        assert not ends & set(completion.token_ids[:-1])
        assert len(completion.token_ids) == len(completion.logprobs) == completion.num_tokens
        assert not set(completion.token_ids) & set(vision_token_ids(sampler.model.config))


def test_the_image_is_looked_at(sampler: HFSampler, demo_pairs: Any) -> None:
    """The same words about another picture get other log-probs."""
    pair = demo_pairs[0][0]
    other = replace(pair, images=demo_pairs[0][1].images)
    rows = [sampler.encode([build_messages(p, order=Order.GIVEN, template=PLAIN)]) for p in (pair, other)]
    assert torch.equal(rows[0]["input_ids"], rows[1]["input_ids"])
    with torch.no_grad():
        a, b = (sampler.model(**row).logits[0, -1] for row in rows)
    assert (a - b).abs().max() > 1e-4


@pytest.mark.parametrize("size", [(56, 56), (100, 75), (70, 40), (640, 480)])
def test_images_reach_the_model_as_by_qwens_own_utilities(sampler: HFSampler, size: tuple[int, int]) -> None:
    """The same patches, up to the resampling of two libraries, as qwen_vl_utils prepares."""
    import numpy as np
    from PIL import Image
    from qwen_vl_utils import process_vision_info

    noise = np.random.default_rng(0).integers(0, 255, (8, 8, 3), dtype=np.uint8)
    image = Image.fromarray(noise).resize(size, Image.Resampling.BICUBIC)
    ours = sampler.encode([(Message("user", (Part(image=encode_png(image)), Part(text="What?"))),)])
    chat = [{"role": "user", "content": [{"type": "image", "image": image}, {"type": "text", "text": "What?"}]}]
    images, _ = process_vision_info(chat)
    text = sampler.processor.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    theirs = sampler.processor(text=[text], images=images, return_tensors="pt")
    assert torch.equal(ours["image_grid_thw"], theirs["image_grid_thw"])
    assert torch.equal(ours["input_ids"], theirs["input_ids"])
    assert (ours["pixel_values"] - theirs["pixel_values"]).abs().mean() < 0.03


def pairs_of_orders(demo_pairs: Any) -> tuple[list[Any], list[int]]:
    """Prompts in both orders: of one image, of two, of none, of an image shared by three pairs; and their groups."""
    from PIL import Image

    wide = encode_png(Image.new("RGB", (112, 56), (10, 200, 90)))
    a, b, c, d, e, f = demo_pairs[0][:6]
    pairs = [
        a,
        replace(b, images=(*b.images, wide)),
        replace(c, images=()),
        d,
        replace(e, images=d.images),
        replace(f, images=d.images),
    ]
    made = [build_messages(pair, order=order, template=PLAIN) for pair in pairs for order in Order]
    return made, [0, 0, 1, 1, 2, 2, 3, 3, 3, 3, 3, 3]


@pytest.mark.parametrize("num", [1, 3])
def test_sharing_what_prompts_begin_with_changes_nothing(sampler: HFSampler, demo_pairs: Any, num: int) -> None:
    """Greedy tokens and log-probs are those of prompts that are read one by one, and fewer image patches are looked at."""
    asked, groups = pairs_of_orders(demo_pairs)
    inputs = sampler.encode(asked)
    ends = frozenset(sampler._ends)
    options: dict[str, Any] = {"num_draws": num, "max_tokens": 12, "temperature": 0, "top_p": 1.0, "ends": ends}
    apart, shared = (draw(sampler.model, inputs, **options, groups=own) for own in (None, groups))
    assert shared.tokens == apart.tokens
    for ours, theirs in zip(shared.logprobs, apart.logprobs, strict=True):
        assert ours == pytest.approx(theirs, abs=1e-4)
    parts = split_prefixes(inputs, groups, sampler.model.config.image_token_id)
    assert parts is not None
    assert len(parts.prefix["input_ids"]) == 4
    assert len(parts.prefix["image_grid_thw"]) == 4  # one, two, none and one image
    assert len(parts.prefix["pixel_values"]) < len(inputs["pixel_values"]) / 2
    assert torch.equal(read_logits(sampler.model, inputs).argmax(1), read_logits(sampler.model, inputs, groups).argmax(1))


def test_a_step_makes_its_tensors_beside_its_inputs(sampler: HFSampler, demo_pairs: Any) -> None:
    """With a default device that holds no numbers. Without images: transformers makes the indices of its vision tower on it."""
    pairs = [replace(pair, images=()) for pair in demo_pairs[0][:2]]
    inputs = sampler.encode([build_messages(pair, order=order, template=PLAIN) for pair in pairs for order in Order])
    uniforms = draw_uniforms((1,), range(8), 12)

    def drawn() -> Draws:
        settings: dict[str, Any] = {"num_draws": 2, "max_tokens": 12, "temperature": 1.0, "top_p": 0.9, "suppress": [3]}
        return draw(
            sampler.model, inputs, **settings, ends=frozenset({0}), uniforms=uniforms, groups=[0, 0, 1, 1], hot=HotToken(2)
        )

    expected = drawn()
    with torch.device("meta"):
        assert drawn() == expected


def test_what_cannot_be_shared_is_not(sampler: HFSampler, demo_pairs: Any) -> None:
    """Prompts that all differ; rows of a group that differ before their last image; images in a form that is not known."""
    asked = pairs_of_orders(demo_pairs)[0]
    token = sampler.model.config.image_token_id
    inputs = sampler.encode(asked[:2])
    assert split_prefixes(inputs, [0, 1], token) is None
    assert split_prefixes({**inputs, "pixel_attention_mask": torch.ones(2, 3, 3)}, [0, 0], token) is None
    assert split_prefixes({name: value for name, value in inputs.items() if name != "image_grid_thw"}, [0, 0], token) is None
    late = [
        (Message("user", (Part(text=text), Part(image=demo_pairs[0][0].images[0]))),) for text in ("The first one", "A second")
    ]
    assert split_prefixes(sampler.encode(late), [0, 0], token) is None
    beside = split_prefixes(sampler.encode([*late, *asked[2:4], *asked[:2]]), [0, 0, 1, 1, 2, 2], token)
    assert beside is not None
    assert beside.group.tolist() == [0, 1, 2, 2, 3, 3]  # a group that cannot does not keep others from it


def test_prefixes_are_shared_where_fewer_positions_are_read() -> None:
    """Sixteen rows, two of which share five tokens of a hundred: what follows would be as long as the rows, for all."""
    ids = torch.arange(1600).reshape(16, 100)
    ids[1, :5] = ids[0, :5]
    inputs = {"input_ids": ids, "attention_mask": torch.ones_like(ids)}
    assert split_prefixes(inputs, [0, 0, *range(1, 15)], None) is None
    ids[1:, :50] = ids[0, :50]
    parts = split_prefixes(inputs, [0] * 16, None)
    assert parts is not None
    assert (parts.prefix["input_ids"].shape, parts.rest_ids.shape) == ((1, 50), (16, 50))


def test_a_folder_that_is_no_model(tmp_path: Path) -> None:
    """A sentence, not a traceback of another library."""
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        HFSampler.load(tmp_path)


@pytest.mark.parametrize(("many", "asked"), [(False, 30), (True, 5)])
def test_seeds_that_are_asked_with(
    demo_pairs: Any, demo_server: Callable[..., str], monkeypatch: pytest.MonkeyPatch, many: bool, asked: int
) -> None:
    """No two requests have the same: prompts of one seed would share their luck."""
    seeds = []

    async def noted(endpoints: Any, prompt: Any, body: dict[str, Any]) -> Any:
        seeds.append(body["seed"])
        return await ask_any(endpoints, prompt, body)

    monkeypatch.setattr("rewardlab.samplers.openai_api.ask_any", noted)
    prompts = [build_messages(pair, order=Order.SWAPPED, template=PLAIN) for pair in demo_pairs[0][:5]]
    OpenAISampler(demo_server(), "demo-teacher", many=many).sample(prompts, SamplingParams(num_samples=6, seed=1))
    assert len(seeds) == len(set(seeds)) == asked


def test_openai_sampler_over_http(demo_pairs: Any, demo_server: Callable[..., str]) -> None:
    """Images travel; every draw has a seed of its own; usage is kept."""
    sampler = OpenAISampler(demo_server(), "demo-teacher")
    prompts = [build_messages(pair, order=Order.SWAPPED, template=PLAIN) for pair in demo_pairs[0][:5]]
    rows = sampler.sample(prompts, SamplingParams(num_samples=6, seed=1))
    assert [len(row) for row in rows] == [6] * 5
    assert all(c.finish is FinishReason.STOP and c.num_tokens > 0 and c.text.startswith("<think>") for row in rows for c in row)
    assert any(len({c.text for c in row}) > 1 for row in rows)
    assert rows == sampler.sample(prompts, SamplingParams(num_samples=6, seed=1))


def test_every_prompt_has_a_seed_of_its_own() -> None:
    """A prompt's draws are set by what it says and shows, whoever stands beside it; draw n of it has the n-th after that."""

    def prompt(text: str, image: bytes = b"") -> tuple[Message, ...]:
        return (Message("user", (Part(text=text), *([Part(image=image)] if image else []))),)

    asked = [prompt("a"), prompt("b"), prompt("a", b"x"), prompt("a", b"y"), prompt("\ud800")]
    seeds = [prompt_seed(3, one) for one in asked]
    assert len(set(seeds)) == 5
    assert all(3 <= seed < 2**30 + 3 for seed in seeds)
    assert prompt_seed(3, prompt("a")) == seeds[0]
    assert prompt_seed(4, prompt("a")) == seeds[0] + 1


@pytest.mark.parametrize(
    ("faults", "finish", "error"),
    [
        (Faults(broken=1.0), FinishReason.ERROR, "HTTP 500"),
        (Faults(too_many=1.0), FinishReason.ERROR, "HTTP 429"),
        (Faults(garbage=1.0), FinishReason.ERROR, "garbled"),
        (Faults(hang=1.0, hang_s=4.0), FinishReason.TIMEOUT, "no answer within 2 s"),
    ],
)
def test_a_failing_endpoint_is_a_status(
    demo_pairs: Any, demo_server: Callable[..., str], faults: Faults, finish: FinishReason, error: str
) -> None:
    """Never a text and never an exception."""
    # On a busy machine an error, too, takes seconds to arrive: only the hanging endpoint is given a short deadline.
    sampler = OpenAISampler(
        demo_server(faults), "demo-teacher", request=RequestConfig.model_validate({"deadline_s": 2 if faults.hang else 60})
    )
    prompt = build_messages(demo_pairs[0][0], order=Order.GIVEN, template=PLAIN)
    completion = sampler.sample([prompt], SamplingParams())[0][0]
    assert (completion.text, completion.finish) == ("", finish)
    assert error in completion.error


def answered(message: dict[str, Any], reason: str | None = "stop", usage: dict[str, Any] | None = None) -> Completion:
    """What the client makes of one answer of a server."""
    body = {
        "id": "x",
        "object": "chat.completion",
        "created": 0,
        "model": "m",
        "choices": [{"index": 0, "finish_reason": reason, "message": {"role": "assistant", **message}}],
        "usage": usage,
    }

    async def chat(request: Request) -> Response:
        return Response(json.dumps(body), media_type="application/json")

    with running(Starlette(routes=[Route("/v1/chat/completions", chat, methods=["POST"])])) as url:
        prompt = (Message("user", (Part(text="q"),)),)
        return OpenAISampler(f"{url}/v1", "m").sample([prompt], SamplingParams())[0][0]


def test_odd_answers_of_servers() -> None:
    """Reasoning under either name goes back into the text; what is no text, or not whole, is an error."""
    for name in ("reasoning", "reasoning_content"):
        whole = answered({"content": "<answer>1</answer>", name: "why"})
        assert (whole.text, whole.finish) == ("<think>why</think><answer>1</answer>", FinishReason.STOP)
    assert answered({"content": "a"}, "length").finish is FinishReason.LENGTH
    assert answered({"content": "a"}, None).finish is FinishReason.STOP
    assert answered({"content": "a"}, "content_filter").finish is FinishReason.ERROR
    assert answered({"content": [{"type": "text", "text": "a"}]}).finish is FinishReason.ERROR
    assert answered({"content": None}).finish is FinishReason.ERROR
    assert answered({"content": None, "reasoning": "why"}).text == "<think>why</think>"  # it ended, without a verdict
    assert answered({"content": "a"}, usage={"prompt_tokens": 3, "completion_tokens": None, "total_tokens": 3}).num_tokens == 0
    assert answered({"content": "\ud83d"}).text == "?"


def test_clients_take_an_empty_key() -> None:
    """As an endpoint without keys does."""
    assert ChatEndpoint("http://127.0.0.1:9/v1", "m", api_key="")._client.api_key == "none"
    assert BatchClient("http://127.0.0.1:9/v1", api_key="")._client.api_key == "none"


def test_all_draws_in_one_request_are_no_stream(demo_server: Any) -> None:
    """A judge over `vllm serve`, which makes all draws of a prompt in one request, is asked in calls: single requests would
    have other seeds, and would pass by what its ``sample`` does to prompts."""
    alone, together = (OpenAISampler(demo_server(), "demo-teacher", many=many) for many in (False, True))
    assert GenerativeJudge(alone, PLAIN).is_streaming
    judge = GenerativeJudge(together, PLAIN)
    assert not judge.is_streaming
    assert not judge.is_metered
    with pytest.raises(NotImplementedError, match="one request"):
        together.sample_each(iter([]), SamplingParams())
