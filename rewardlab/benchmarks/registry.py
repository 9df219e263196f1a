"""The benchmarks there are: the package's own, those of installed packages, and those of a Python file given by its path."""

from __future__ import annotations

import importlib.util
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark
from rewardlab.data.files import sha256_of
from rewardlab.errors import ConfigError

GROUP = "rewardlab.benchmarks"  # of entry points: name = "package.module:BENCHMARK"

# One folder of this package each, whose ``BENCHMARK`` bears the folder's name.
PACKAGED = (
    "vl_rewardbench",
    "mm_rlhf",
    "multimodal_rewardbench",
    "mmrb2",
    "videorewardbench",
    "rewardbench2",
    "pairs",
)


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of this name, or of a Python file with a module-level ``BENCHMARK``. Raise ConfigError."""
    if name in PACKAGED:
        benchmark: Benchmark = import_module(f"rewardlab.benchmarks.{name}").BENCHMARK
        return benchmark
    if name.endswith(".py"):
        return _from_file(Path(name))
    installed = entry_points(group=GROUP)
    if name in installed.names:
        return _checked(installed[name].load(), f"the entry point {name} of {GROUP}")
    names = ", ".join([*PACKAGED, *sorted(installed.names)])
    raise ConfigError(f"unknown benchmark {name!r}; expected one of {names}, or a Python file with a BENCHMARK")


def packaged_benchmarks() -> list[Benchmark]:
    """Return the package's own benchmarks."""
    return [find_benchmark(name) for name in PACKAGED]


def benchmark_identity(name: str) -> str:
    """Return what a run writes down of its benchmark: the name, and of a file also its hash, for its loader may change."""
    benchmark = find_benchmark(name)
    return f"{benchmark.name} {sha256_of(Path(name))[:16]}" if name.endswith(".py") else benchmark.name


def _from_file(path: Path) -> Benchmark:
    if not path.is_file():
        raise ConfigError(f"{path}: no such file; expected a Python file with a module-level BENCHMARK")
    spec = importlib.util.spec_from_file_location(f"rewardlab_benchmark_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # whatever a foreign file raises, in a sentence
        raise ConfigError(f"{path}: could not be loaded ({type(error).__name__}: {error})") from error
    return _checked(getattr(module, "BENCHMARK", None), str(path))


def _checked(benchmark: object, where: str) -> Benchmark:
    if not isinstance(benchmark, Benchmark):
        raise ConfigError(f"{where}: has no BENCHMARK; expected BENCHMARK = Benchmark(name=..., load=...) at its top level")
    return benchmark
