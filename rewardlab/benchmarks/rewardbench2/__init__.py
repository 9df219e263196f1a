"""RewardBench 2 (arXiv 2506.01937)."""

from __future__ import annotations

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, OfficialScorer
from rewardlab.benchmarks.rewardbench2.loader import load_rewardbench2
from rewardlab.benchmarks.rewardbench2.official import subset_lines, text_lines, ties

BENCHMARK = Benchmark(
    name="rewardbench2",
    load=load_rewardbench2,
    whole_prompts=True,
    num_prompts=1865,
    files=BenchmarkFiles(repo="allenai/reward-bench-2", media="there is none: text only"),
    scorers={
        "rewardbench2": OfficialScorer(
            lambda rows, data: text_lines(rows), "the official.jsonl of `bench run rewardbench2:choice`"
        ),
        "rewardbench2_ties": OfficialScorer(
            lambda rows, data: subset_lines({}, ties(rows)), "JSON lines with id, num_correct, scores"
        ),
    },
)
