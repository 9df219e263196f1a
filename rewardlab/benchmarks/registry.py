"""The benchmarks there are: the package's own, those of installed packages, and those of a Python file given by its path."""

from __future__ import annotations

from difflib import get_close_matches
from importlib import import_module
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
    "genai_bench",
    "editreward_bench",
    "editscore_bench",
    "videogen_rewardbench",
    "omni_rewardbench",
    "pairs",
)


# Runs that are derived of a benchmark, as NAME:VARIANT, and the defaults of the judge's keys in them.
VARIANTS: dict[str, dict[str, object]] = {
    "attacked": {"temperature": 0.0},  # of any benchmark: its pairs under attack
    "choice": {"temperature": 0.0, "max_tokens": 2048},  # of rewardbench2: one of four answers at once
    "ratings": {"temperature": 0.0, "max_tokens": 2048},  # of rewardbench2: every answer rated alone
}
LISTWISE = ("choice", "ratings")


def split_variant(name: str) -> tuple[str, str]:
    """Return the benchmark and the variant of NAME or NAME:VARIANT ("" without). Raise ConfigError for an unknown variant."""
    base, colon, variant = name.rpartition(":")
    if not colon or Path(name).suffix == ".py":
        return name, ""
    if variant not in VARIANTS:
        raise ConfigError(f"unknown variant {variant!r} of {base}; expected NAME:attacked, rewardbench2:choice or :ratings")
    if variant in LISTWISE and base != "rewardbench2":
        raise ConfigError(f"{name}: {variant} is a protocol of rewardbench2, and {base} has pairs alone")
    return base, variant


def find_benchmark(name: str) -> Benchmark:
    """Return the benchmark of this name, or of a Python file with a module-level ``BENCHMARK``. Raise ConfigError."""
    if name in PACKAGED:
        benchmark: Benchmark = import_module(f"rewardlab.benchmarks.{name}").BENCHMARK
        return benchmark
    from rewardlab.extensions import extension_names, load_extension

    extension = load_extension(name, Benchmark, attribute="BENCHMARK", group=GROUP)
    if extension is not None:
        return extension
    known = [*PACKAGED, *extension_names(GROUP)]
    near = get_close_matches(name.lower().replace("-", "_").replace(" ", "_"), known, n=1)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise ConfigError(
        f"unknown benchmark {name!r}{hint}; expected one of {', '.join(known)}, or a Python file with a BENCHMARK"
    )


def packaged_benchmarks() -> list[Benchmark]:
    """Return the package's own benchmarks."""
    return [find_benchmark(name) for name in PACKAGED]


def benchmark_identity(name: str) -> str:
    """Return what a run writes down of its benchmark: the name, and of a file also its hash, for its loader may change."""
    benchmark = find_benchmark(name)
    return f"{benchmark.name} {sha256_of(Path(name))[:16]}" if name.endswith(".py") else benchmark.name
