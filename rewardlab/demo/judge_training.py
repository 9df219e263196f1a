"""The judge that travels with the package: trained by the quickstart's stages, each on one thread, and saved in half precision.

On one thread every sum is taken in one order: the same versions on the same kind of CPU give the same weights, bit for bit.
"""

from __future__ import annotations

from pathlib import Path

from rewardlab.demo.pipeline import open_pipeline, remote_models, training_stages


def train_judge(out: Path, configs: str | Path, seed: int) -> Path:
    """Run every training stage that ``out`` does not hold; return the folder of the judge, in full precision."""
    run = open_pipeline(out, configs, seed, threads=1)
    with remote_models(run) as url:
        stages = training_stages(run, url)
        run.run(stages.base, stages.distill)
        run.run(stages.sft)
        run.run(stages.rl)
    return out / "rl" / "final"
