"""A user's own labelled pairs."""

from __future__ import annotations

from rewardlab.benchmarks.base import Benchmark
from rewardlab.benchmarks.pairs.loader import load_labelled_pairs
from rewardlab.data.rows import FRAMES

BENCHMARK = Benchmark(name="pairs", load=load_labelled_pairs, load_videos=load_labelled_pairs, frames=FRAMES)
