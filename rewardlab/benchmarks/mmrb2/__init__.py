"""Multimodal RewardBench 2 (arXiv 2512.16899)."""

from __future__ import annotations

from rewardlab.benchmarks.base import Benchmark, BenchmarkFiles, Export, OfficialScorer
from rewardlab.benchmarks.mmrb2.loader import TASKS, load_mmrb2
from rewardlab.benchmarks.mmrb2.official import lines_of_predictions, predictions_of_votes, task_lines

_FOLDER = "https://raw.githubusercontent.com/facebookresearch/MMRB2/main/benchmark"

BENCHMARK = Benchmark(
    name="mmrb2",
    load=load_mmrb2,
    sizes=dict.fromkeys(TASKS, 1000),
    first_preferred={"t2i": 532, "edit": 555, "interleaved": 575, "reasoning": 475},
    origins=(
        "EvalMuse",
        "OneIG-Bench",
        "R2I-Bench",
        "WISE",
        "RealUnify",
        "Emu-Edit",
        "DreamBench",
        "RISEBench",
        "ISG-Bench",
        "BLINK",
        "MuirBench",
        "VStar",
    ),
    files=BenchmarkFiles(
        urls={f"{task}_response_only.json": f"{_FOLDER}/{task}_response_only.json" for task in TASKS},
        sha256={
            "t2i_response_only.json": "b07eb7010934f475ea6e9195f9113c94911b99140b41ba59f9839771df714d8f",
            "edit_response_only.json": "c4c500c75742be4cafe0e48a6a27ee22089125f599baf970ccf783932cab416b",
            "interleaved_response_only.json": "8f71e0d699814715dc271bd83ee75eabedea3e9c420cb11dc98e4f7c591fa6f1",
            "reasoning_response_only.json": "f709e7cb72780c76ace483f38571f60f00ec2b5822f2ef91288915eb0ada732b",
        },
        media="prompts and images are added by build_from_hf.py of facebookresearch/MMRB2; give its output to bench run",
    ),
    scorers={"mmrb2": OfficialScorer(lines_of_predictions, "its predictions.json, and --data", is_object=True)},
    export=Export(predictions_of_votes, task_lines),
)
