"""Comparisons on one device: the packaged judge in two precisions, and two ways to sample."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import torch

from rewardlab.data.images import decode_image
from rewardlab.data.pairs import read_pairs
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.loading import load_model
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import Order

JUDGE = Path(__file__).parents[1] / "rewardlab" / "demo" / "judge"


def compare_judges(device: str, num_pairs: int) -> dict[str, Any]:
    """Return how the packaged judge in bfloat16 on ``device`` differs from float32 on the CPU."""
    pairs = make_pairs(num_pairs, seed=0, held_out=True)[0]
    prompts = [build_messages(pair, order=Order.GIVEN, template=load_template("plain")) for pair in pairs]
    greedy = SamplingParams(1, 0.0, max_tokens=64)
    drawn, losses, gradients = [], [], []
    for where, dtype in (("cpu", "float32"), (device, "bfloat16")):
        model, processor = load_model(str(JUDGE), device=where, dtype=dtype)
        drawn.append([row[0] for row in HFSampler(model, processor, batch_size=64).sample(prompts, greedy)])
        chats = [
            [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt[0].text}]}]
            for prompt in prompts[:8]
        ]
        texts = [
            processor.apply_chat_template(chat, add_generation_prompt=True) + drawn[0][n].text for n, chat in enumerate(chats)
        ]
        inputs = processor(
            text=texts, images=[decode_image(pair.images[0]) for pair in pairs[:8]], padding=True, return_tensors="pt"
        )
        inputs = {name: value.to(where) for name, value in inputs.items()}
        labels = inputs["input_ids"].masked_fill(inputs["attention_mask"] == 0, -100)
        loss = model(**inputs, labels=labels).loss
        loss.backward()
        losses.append(loss.item())
        gradients.append(torch.cat([p.grad.float().flatten().cpu() for p in model.parameters() if p.grad is not None]))
    same = [(a, b) for a, b in zip(*drawn, strict=True) if a.token_ids == b.token_ids]
    gaps = [abs(p - q) for a, b in same for p, q in zip(a.logprobs, b.logprobs, strict=True)]
    cosine = torch.nn.functional.cosine_similarity(gradients[0], gradients[1], dim=0)
    return {
        "device": device,
        "greedy_texts_equal": len(same) / len(pairs),
        "logprob_gap_mean": statistics.fmean(gaps) if gaps else None,
        "logprob_gap_max": max(gaps, default=None),
        "loss": losses,
        "gradient_cosine": float(cosine),
        "gradient_norms": [float(gradient.norm()) for gradient in gradients],
    }


def decoder_beside_generate(
    checkpoint: Path, data: Path, device: str, *, number: int, max_tokens: int, num_pairs: int, turns: int
) -> dict[str, float]:
    """Return tokens a second of the decoder and of ``generate`` for ``number`` draws of each prompt, of the same prompts and
    pictures in turns, and their ratio: medians, the first turn left out."""
    model, processor = load_model(str(checkpoint), device=device, dtype="bfloat16" if device == "cuda" else "float32")
    pairs = read_pairs(data)[:num_pairs]
    template = load_template("plain")
    prompts = [build_messages(pair, order=Order.GIVEN, template=template) for pair in pairs]
    chats = [[{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": prompt[0].text}]}] for prompt in prompts]
    texts = [processor.apply_chat_template(chat, add_generation_prompt=True) for chat in chats]
    sampler = HFSampler(model, processor, batch_size=len(pairs) * number)

    def by_decoder() -> int:
        rows = sampler.sample(prompts, SamplingParams(number, max_tokens=max_tokens))
        return sum(completion.num_tokens for row in rows for completion in row)

    def by_generate() -> int:
        images = [decode_image(pair.images[0]) for pair in pairs]
        inputs = processor(text=texts, images=images, padding=True, return_tensors="pt")
        inputs = {name: value.to(device) for name, value in inputs.items()}
        with torch.inference_mode():
            made = model.generate(**inputs, do_sample=True, max_new_tokens=max_tokens, num_return_sequences=number)
        return int((made[:, inputs["input_ids"].shape[1] :] != processor.tokenizer.pad_token_id).sum())  # to their ends

    seconds: dict[str, list[float]] = {"decoder": [], "generate": []}
    calls: dict[str, Callable[[], int]] = {"decoder": by_decoder, "generate": by_generate}
    for _ in range(turns):
        for name, call in calls.items():
            began = time.perf_counter()
            tokens = call()  # its last tokens are read on the CPU: the card has finished
            seconds[name].append((time.perf_counter() - began) / tokens)
    rates = {name: 1 / statistics.median(values[1:]) for name, values in seconds.items()}  # the first warms up
    return {**rates, "ratio": rates["decoder"] / rates["generate"]}
