"""VideoRewardBench (arXiv 2509.00484)."""

from __future__ import annotations

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles
from rewardlab.benchmarks.media import NUM_FRAMES
from rewardlab.benchmarks.videorewardbench.loader import load_videorewardbench

BENCHMARK = Benchmark(
    name="videorewardbench",
    load=load_videorewardbench,
    load_videos=load_videorewardbench,
    frames=NUM_FRAMES,
    sizes={
        "long-form perception": 283,
        "short-form perception": 413,
        "knowledge": 238,
        "reasoning": 278,
        "safety": 351,
    },
    origins=(
        *("VCGBench-Diverse", "MVBench", "VideoHallucer", "MMWorld", "MMVU", "Video-MMMU"),
        *("Video-MME", "MMBench-Video", "VSI-Bench", "Video-SafetyBench"),
    ),
    files=BenchmarkFiles(repo="Dragonriser/VideoRewardBench", media="videos are in the same dataset of the Hub"),
)
