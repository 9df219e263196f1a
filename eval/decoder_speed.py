"""How much faster is the own decoder than transformers' batched `generate`? `python -m eval.decoder_speed`, by hand.

The packaged judge samples judgments of held-out pairs in both orders, K of each prompt, on one thread: once by the own decoder,
once by `generate(num_return_sequences=K)`, in turns. CPU seconds for each token, medians; the first turn warms up. Pictures are
decoded and processed in both. Results: eval/results/decoder_speed.json and .md.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import torch

from eval.scripts import positive, run_script
from rewardlab.data.files import write_atomic
from rewardlab.demo.pairs import make_pairs
from rewardlab.models.checkpoints import commit, versions
from rewardlab.prompts import build_messages, load_template
from rewardlab.reporting.tables import markdown_table
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.hf import HFSampler
from rewardlab.types import BOTH_ORDERS

ROOT = Path(__file__).parents[1]
JUDGE = ROOT / "rewardlab" / "demo" / "judge"
MAX_TOKENS = 64


def compare(sampler: HFSampler, prompts: list[Any], draws: int, turns: int) -> dict[str, Any]:
    """Return microseconds of CPU time for each token by both, and their ratio turn by turn."""
    pad = sampler.processor.tokenizer.pad_token_id

    def by_decoder() -> int:
        rows = sampler.sample(prompts, SamplingParams(draws, max_tokens=MAX_TOKENS, seed=1))
        return sum(completion.num_tokens for row in rows for completion in row)

    def by_generate() -> int:
        inputs = sampler.encode(prompts)
        with torch.inference_mode():
            made = sampler.model.generate(**inputs, do_sample=True, max_new_tokens=MAX_TOKENS, num_return_sequences=draws)
        return int((made[:, inputs["input_ids"].shape[1] :] != pad).sum())

    calls: dict[str, Callable[[], int]] = {"decoder": by_decoder, "generate": by_generate}
    spent: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(turns + 1):
        for name, call in calls.items():
            began = time.process_time()
            tokens = call()
            spent[name].append(1e6 * (time.process_time() - began) / tokens)
    ratios = [theirs / ours for ours, theirs in zip(spent["decoder"][1:], spent["generate"][1:], strict=True)]
    return {
        "draws": draws,
        **{name: statistics.median(values[1:]) for name, values in spent.items()},
        "ratio": statistics.median(ratios),
        "ratios": ratios,
    }


def markdown(results: dict[str, Any]) -> str:
    rows = [
        (
            str(row["draws"]),
            f"{row['decoder']:.0f}",
            f"{row['generate']:.0f}",
            f"{row['ratio']:.2f} ({min(row['ratios']):.2f} to {max(row['ratios']):.2f})",
        )
        for row in results["rows"]
    ]
    lines = [
        "# The own decoder beside batched generate",
        "",
        f"- `python -m eval.decoder_speed`, commit {results['commit']}; torch {results['versions']['torch']}, "
        f"transformers {results['versions']['transformers']}.",
        f"- The packaged judge, {results['pairs']} held-out pairs in both orders, at most {MAX_TOKENS} tokens, one thread,",
        f"  {results['turns']} turns in one run. In brackets the least and the largest ratio of a turn.",
        "",
        *markdown_table(("draws of a prompt", "decoder, CPU µs a token", "generate, CPU µs a token", "ratio"), rows),
    ]
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--pairs", type=positive, default=32)
    parser.add_argument("--draws", default="1,4,16", help="of a prompt, comma-separated")
    parser.add_argument("--turns", type=positive, default=5)
    parser.add_argument("--results", type=Path, default=ROOT / "eval" / "results")
    options = parser.parse_args()
    torch.set_num_threads(1)
    template = load_template("plain")
    pairs = make_pairs(options.pairs, seed=0, held_out=True)[0]
    prompts = [build_messages(pair, order=order, template=template) for pair in pairs for order in BOTH_ORDERS]
    counts = [int(count) for count in options.draws.split(",")]
    sampler = HFSampler.load(JUDGE, device="cpu", batch_size=len(prompts) * max(counts))
    results: dict[str, Any] = {
        "commit": commit(),
        "versions": versions(),
        "pairs": len(pairs),
        "turns": options.turns,
        "rows": [],
    }
    for count in counts:
        results["rows"].append(compare(sampler, prompts, count, options.turns))
        print(results["rows"][-1], flush=True)
    write_atomic(options.results / "decoder_speed.json", json.dumps(results, indent=1) + "\n")
    write_atomic(options.results / "decoder_speed.md", markdown(results))


if __name__ == "__main__":
    run_script(main)
