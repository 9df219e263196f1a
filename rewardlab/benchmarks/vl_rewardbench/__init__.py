"""VL-RewardBench (arXiv 2411.17451)."""

from __future__ import annotations

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer
from rewardlab.benchmarks.vl_rewardbench.loader import GROUPINGS, is_vl_rewardbench_row, load_vl_rewardbench
from rewardlab.benchmarks.vl_rewardbench.official import draws_of_votes, lines_of_draws, lines_of_export

BENCHMARK = Benchmark(
    name="vl_rewardbench",
    load=load_vl_rewardbench,
    sizes=GROUPINGS["official"],
    origins=("RLAIF-V", "RLHF-V", "POVID", "WildVision", "VLFeedback", "MathVerse", "MMMU-Pro"),
    groupings=GROUPINGS,
    files=BenchmarkFiles(
        repo="MMInstruction/VL-RewardBench",
        sha256={"vl_rewardbench.jsonl": "17588bca00bf24d11d62cccbd3ab9e1327f08351d40a53d77370039861e02ec1"},
        media="the Hub's parquet has its images inside",
    ),
    is_row=is_vl_rewardbench_row,
    scorers={"vl_rewardbench": OfficialScorer(lines_of_draws, "the JSON lines of its inference.py", skips_null=True)},
    export=Export(draws_of_votes, lines_of_export),
)
