"""Multimodal RewardBench (arXiv 2502.14191)."""

from __future__ import annotations

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer
from rewardlab.benchmarks.multimodal_rewardbench.loader import load_multimodal_rewardbench
from rewardlab.benchmarks.multimodal_rewardbench.official import output_lines, outputs_of_votes, score_outputs

BENCHMARK = Benchmark(
    name="multimodal_rewardbench",
    load=load_multimodal_rewardbench,
    origins=(
        "NoCaps",
        "VisIT-Bench",
        "MMMU-Pro",
        "MathVista",
        "EMMA",
        "Image2Struct",
        "RealWorldQA",
        "MMBench",
        "SEED-Bench",
        "PAIRS",
    ),
    files=BenchmarkFiles(
        repo="MMRB/Multimodal-RewardBench",
        media="inside the Hub's copy, or built by scripts/ of facebookresearch/multimodal_rewardbench",
    ),
    scorers={
        "multimodal_rewardbench": OfficialScorer(
            lambda rows, data: output_lines(score_outputs(rows)), "JSON lines with ID, Label, Meta, output"
        )
    },
    export=Export(outputs_of_votes, lambda rows, records: output_lines(score_outputs(records))),
)
