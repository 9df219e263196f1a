"""A user's own labelled pairs."""

from __future__ import annotations

from rewardlab.benchmarks.base import Benchmark
from rewardlab.benchmarks.pairs.loader import load_labelled_pairs

BENCHMARK = Benchmark(name="pairs", load=load_labelled_pairs)
