"""Comparisons on one device: two precisions, two ways to the log-probabilities of tokens, two ways to sample."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from trl.trainer.utils import add_fused_lm_head

from eval.gpu_speed import PLAIN, SHAPES, make_model, never_end, noisy_pairs
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.families import IMAGE_FIELDS, IMAGE_ROWS, vision_token_ids
from rewardlab.models.loading import load_model
from rewardlab.prompts import build_messages
from rewardlab.samplers import decode
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler, encode
from rewardlab.training.policy_gradient.batch import completion_logprobs
from rewardlab.types import Order, PreferencePair

JUDGE = Path(__file__).parents[1] / "rewardlab" / "demo" / "judge"


def compare_judges(device: str, num_pairs: int) -> dict[str, Any]:
    """Return how the packaged judge on ``device``, in bfloat16 and in float32, differs from float32 on the CPU.

    ``most_different``: the weights that have the largest part of the squared difference of the bfloat16 gradient, with it."""
    pairs = make_pairs(num_pairs, seed=0, held_out=True)[0]
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in pairs]
    greedy = SamplingParams(1, 0.0, max_tokens=64)
    drawn, losses, gradients = [], [], []
    for where, dtype in (("cpu", "float32"), (device, "bfloat16"), (device, "float32")):
        model, processor = load_model(str(JUDGE), device=where, dtype=dtype)
        drawn.append([row[0] for row in HFSampler(model, processor, batch_size=64).sample(prompts, greedy)])
        loss, gradient = _learn(model, processor, prompts[:8], [completion.text for completion in drawn[0][:8]])
        losses.append(loss)
        gradients.append(gradient)
    same = [(a, b) for a, b in zip(*drawn[:2], strict=True) if a.token_ids == b.token_ids]
    gaps = [abs(p - q) for a, b in same for p, q in zip(a.logprobs, b.logprobs, strict=True)]
    whole = [torch.cat(list(gradient.values())) for gradient in gradients]
    cosines = [float(torch.nn.functional.cosine_similarity(whole[0], other, dim=0)) for other in whole[1:]]
    parts = {name: float((gradients[0][name] - gradients[1][name]).square().sum()) for name in gradients[0]}
    most = sorted(parts, key=lambda name: -parts[name])[:6]
    return {
        "device": device,
        "greedy_texts_equal": len(same) / len(pairs),
        "logprob_gap_mean": statistics.fmean(gaps) if gaps else None,
        "logprob_gap_max": max(gaps, default=None),
        "loss_ratio": losses[1] / losses[0],
        "float32_loss_ratio": losses[2] / losses[0],
        "gradient_cosine": cosines[0],
        "float32_gradient_cosine": cosines[1],
        "gradient_norms": [float(gradient.norm()) for gradient in whole],
        "most_different": {name: round(parts[name] / sum(parts.values()), 3) for name in most},
    }


def _learn(model: Any, processor: Any, prompts: Sequence[Any], texts: Sequence[str]) -> tuple[float, dict[str, Tensor]]:
    """Return the loss of padded rows, and its gradient on the CPU by the name of the weight."""
    inputs = {name: value.to(model.device) for name, value in encode(processor, prompts, texts).items()}
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    loss = model(**inputs, labels=labels).loss
    loss.backward()
    return loss.item(), {name: p.grad.float().flatten().cpu() for name, p in model.named_parameters() if p.grad is not None}


def compare_kernels(device: str) -> dict[str, Any]:
    """Return the cosine of the packaged judge's gradient in bfloat16 to that in float32, by SDPA's kernel; ``default``: those
    that training uses."""
    pairs = make_pairs(8, seed=0, held_out=True)[0]
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in pairs]
    texts = [f"<think>{pair.question}</think><answer>1</answer>" for pair in pairs]

    def gradient(dtype: str, kernels: Sequence[SDPBackend] = ()) -> Tensor:
        model, processor = load_model(str(JUDGE), device=device, dtype=dtype)
        with sdpa_kernel([*kernels]) if kernels else nullcontext():
            return torch.cat(list(_learn(model, processor, prompts, texts)[1].values()))

    exact = gradient("float32")
    cosines = {"default": _cosine(exact, gradient("bfloat16"))}
    for kernel in KERNELS[torch.device(device).type]:
        cosines[kernel.name.lower()] = _cosine(exact, gradient("bfloat16", [kernel]))
    return cosines


KERNELS = {
    "cpu": (SDPBackend.MATH, SDPBackend.FLASH_ATTENTION),
    "cuda": (SDPBackend.MATH, SDPBackend.EFFICIENT_ATTENTION, SDPBackend.CUDNN_ATTENTION),
}


def _autocast(device: str, dtype: torch.dtype) -> Callable[[], Any]:
    return partial(torch.autocast, device, torch.bfloat16, enabled=dtype == torch.bfloat16)


def _gradients(model: Any, loss: Tensor) -> Tensor:
    model.zero_grad(set_to_none=True)
    loss.backward()
    return torch.cat([p.grad.float().flatten() for p in model.parameters() if p.grad is not None])


def _cosine(a: Tensor, b: Tensor) -> float:
    return float(torch.nn.functional.cosine_similarity(a.double(), b.double(), dim=0))


def compare_types(device: str, shape: str) -> dict[str, Any]:
    """Return how a model of ``shape`` under bfloat16 autocast differs from float32, both on ``device``: log-probabilities of
    given tokens behind a picture, and the gradient of their mean."""
    model, processor = make_model(SHAPES[shape], 224, device)
    sampler = HFSampler(model, processor)
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in noisy_pairs(4, 224, 8)]
    inputs = {name: value.to(device) for name, value in sampler.encode(prompts).items()}
    labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
    logprobs, gradients = [], []
    for dtype in (torch.float32, torch.bfloat16):
        with _autocast(device, dtype)():
            logits = model(**inputs).logits
        values = logits[:, :-1].float().log_softmax(-1)
        shown = labels[:, 1:] != -100
        logprobs.append(values.gather(2, labels[:, 1:, None].clamp(min=0))[..., 0][shown])
        gradients.append(_gradients(model, -logprobs[-1].mean()))
    gaps = (logprobs[0] - logprobs[1]).detach().abs()
    return {
        "weights": sum(weight.numel() for weight in model.parameters()),
        "logprob_gap_mean": float(gaps.mean()),
        "logprob_gap_max": float(gaps.max()),
        "gradient_cosine": _cosine(*gradients),
    }


def fused_head_beside_logits(device: str, shape: str) -> dict[str, Any]:
    """Return how far the log-probabilities by which RL trains (TRL's fused head, other kernels on a card than on a CPU) are
    from ``log_softmax`` of plain logits, and their gradients: float32 and bfloat16. One row of four has no completion."""
    model, _ = make_model(SHAPES[shape], 112, device)
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    generator, width = torch.Generator().manual_seed(0), 16
    ids = torch.randint(300, 800, (4, 48), generator=generator).to(device)
    mask = torch.ones_like(ids)
    mask[1, -5:], mask[3, -width:] = 0, 0
    shares = torch.rand(4, width, generator=generator).to(device) * mask[:, -width:]
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        autocast = _autocast(device, dtype)
        fused_NT, entropies_NT = completion_logprobs(model, ids, mask, {}, width, passes=[[0, 1, 2, 3]], autocast=autocast)
        by_fused = _gradients(model, (fused_NT * shares).sum())
        with autocast():
            logits = model(input_ids=ids, attention_mask=mask).logits
        plain = logits[:, -width - 1 : -1].float().log_softmax(-1)
        plain_NT = plain.gather(2, ids[:, -width:, None])[..., 0] * mask[:, -width:]
        by_logits = _gradients(model, (plain_NT * shares).sum())
        assert entropies_NT is not None
        exact_NT = -(plain.exp() * plain).sum(-1) * mask[:, -width:]
        name = str(dtype).removeprefix("torch.")
        found[f"{name}_logprob_gap_max"] = float((fused_NT - plain_NT).detach().abs().max())
        found[f"{name}_entropy_gap_max"] = float((entropies_NT - exact_NT).detach().abs().max())
        found[f"{name}_gradient_cosine"] = _cosine(by_fused, by_logits)
    return found


def decoder_beside_trainer(device: str, shape: str) -> dict[str, Any]:
    """Return how far the log-probabilities of sampled tokens are from those that training computes of them, and whether texts
    depend on how often the decoder waits for the card and on whether its steps keep their shapes, which a card replays: in
    float32 and under bfloat16 autocast, four draws of each prompt."""
    model, processor = make_model(SHAPES[shape], 224, device)
    never_end(model)
    model.eval()
    add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    sampler = HFSampler(model, processor)
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in noisy_pairs(3, 224, 8)]
    inputs = {name: value.to(device) for name, value in sampler.encode(prompts).items()}
    length, draws_each, kept = 80, 4, (decode.steps_per_wait, decode.has_fixed_steps)
    uniforms = decode.draw_uniforms((0,), range(len(prompts) * draws_each), length).to(device)
    options: dict[str, Any] = {"num_draws": draws_each, "max_tokens": length, "temperature": 1.0, "top_p": 1.0}
    options |= {"ends": frozenset({0}), "suppress": vision_token_ids(model.config), "uniforms": uniforms}
    found: dict[str, Any] = {}
    for dtype in (torch.float32, torch.bfloat16):
        autocast, texts = _autocast(device, dtype), []
        try:
            for steps, is_fixed in ((1, False), (8, False), (8, device == "cuda")):
                decode.steps_per_wait = lambda device, steps=steps: steps  # type: ignore[assignment,misc]
                decode.has_fixed_steps = lambda model, is_fixed=is_fixed: is_fixed  # type: ignore[assignment,misc]
                with autocast():
                    texts.append(decode.draw(model, inputs, **options))
        finally:
            decode.steps_per_wait, decode.has_fixed_steps = kept
        gaps: list[float] = []
        for row in range(len(prompts)):
            fields = sampler.encode([prompts[row]])
            prompt = fields.pop("input_ids").to(device)
            fields.pop("attention_mask")
            drawn = texts[2].tokens[row * draws_each]
            ids = torch.cat([prompt, torch.tensor([drawn], device=device)], 1)
            images: dict[str, Any] = {IMAGE_ROWS: [{name: fields[name].to(device) for name in IMAGE_FIELDS if name in fields}]}
            images["mm_token_type_ids"] = torch.cat([fields["mm_token_type_ids"].to(device), ids.new_zeros(1, len(drawn))], 1)
            with torch.no_grad():
                everywhere = torch.ones_like(ids)
                trained, _ = completion_logprobs(model, ids, everywhere, images, len(drawn), passes=[[0]], autocast=autocast)
            sampled = torch.tensor(texts[2].logprobs[row * draws_each], device=device)
            gaps += (trained[0] - sampled).abs().tolist()
        name = str(dtype).removeprefix("torch.")
        found[f"{name}_gap_mean"], found[f"{name}_gap_max"] = statistics.fmean(gaps), max(gaps)
        found[f"{name}_same_texts"] = texts[0].tokens == texts[1].tokens
        same = [a == b for a, b in zip(texts[1].tokens, texts[2].tokens, strict=True)]
        found[f"{name}_same_texts_of_fixed_steps"] = sum(same) / len(same)
    return found


def decoder_beside_generate(
    model: Any, processor: Any, pairs: Sequence[PreferencePair], device: str, *, number: int, max_tokens: int, turns: int
) -> dict[str, float]:
    """Return tokens a second of the decoder and of ``generate`` for ``number`` draws of each prompt, of the same prompts and
    pictures in turns, and their ratio: medians, the first turn left out. Rows end at ``max_tokens``. ``step_ms``: of one
    more token of all rows, in the decoder."""
    prompts = [build_messages(pair, order=Order.GIVEN, template=PLAIN) for pair in pairs]
    sampler = HFSampler(model, processor, batch_size=len(pairs) * number)

    def by_decoder() -> int:
        rows = sampler.sample(prompts, SamplingParams(number, max_tokens=max_tokens))
        return sum(completion.num_tokens for row in rows for completion in row)

    def by_generate() -> int:
        inputs = encode(processor, prompts)
        inputs = {name: value.to(device) for name, value in inputs.items()}
        with torch.inference_mode():
            made = model.generate(**inputs, do_sample=True, max_new_tokens=max_tokens, num_return_sequences=number)
        return int((made[:, inputs["input_ids"].shape[1] :] != processor.tokenizer.pad_token_id).sum())  # to their ends

    seconds: dict[str, list[float]] = {"decoder": [], "generate": []}
    calls: dict[str, Callable[[], int]] = {"decoder": by_decoder, "generate": by_generate}
    for _ in range(turns + 1):
        for name, call in calls.items():
            began = time.perf_counter()
            tokens = call()  # its last tokens are read on the CPU: the card has finished
            seconds[name].append((time.perf_counter() - began) / tokens)
    rates = {name: 1 / statistics.median(values[1:]) for name, values in seconds.items()}  # the first warms up
    began = time.perf_counter()
    sampler.sample(prompts, SamplingParams(number, max_tokens=max_tokens // 2))
    half_s, whole_s = time.perf_counter() - began, number * len(pairs) * max_tokens / rates["decoder"]
    step_ms = 1000 * (whole_s - half_s) / (max_tokens - max_tokens // 2)
    return {**rates, "ratio": rates["decoder"] / rates["generate"], "step_ms": step_ms}
