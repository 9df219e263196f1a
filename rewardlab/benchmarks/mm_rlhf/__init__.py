"""MM-RLHF-RewardBench (arXiv 2502.10391)."""

from __future__ import annotations

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer
from rewardlab.benchmarks.media import NUM_FRAMES
from rewardlab.benchmarks.mm_rlhf.loader import is_mm_rlhf_row, load_mm_rlhf
from rewardlab.benchmarks.mm_rlhf.official import reward_lines, rewards_of_votes, score_rewards

BENCHMARK = Benchmark(
    name="mm_rlhf",
    load=load_mm_rlhf,
    load_videos=load_mm_rlhf,
    frames=NUM_FRAMES,
    sizes={"mcq": 42, "long": 37, "short": 34, "safety": 32, "video": 25},
    whole_prompts=True,
    num_prompts=46,
    origins=("MM-RLHF",),
    files=BenchmarkFiles(
        urls={
            "mm_reward_bench.jsonl": "https://raw.githubusercontent.com/yfzhang114/r1_reward/main/inference/"
            "MM-RLHF-Reward/mm_reward_bench.jsonl"
        },
        sha256={"mm_reward_bench.jsonl": "6d7b3589750b8837b54291b601220cdb000593a17b8bb1b81de298e5ebe772b9"},
        media="images, and folders of video frames, come with the release of Kwai-YuanQi/MM-RLHF",
    ),
    is_row=is_mm_rlhf_row,
    scorers={
        "mm_rlhf": OfficialScorer(
            lambda rows, data: reward_lines(score_rewards(rows)), "JSON lines with id, image or video, rewards"
        )
    },
    export=Export(rewards_of_votes, lambda rows, records: reward_lines(score_rewards(records))),
)
