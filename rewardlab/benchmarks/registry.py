"""The benchmarks there are: the package's own, those of installed packages, and those of a Python file given by its path."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
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


# Forms of recordings that `bench import` reads, and the benchmark whose rows each has samples of.
FORMS = {
    "vl_rewardbench": "vl_rewardbench",
    "lmms_eval": "vl_rewardbench",
    "vlmevalkit": "vl_rewardbench",
    "ixc": "vl_rewardbench",
    "multimodal_rewardbench": "multimodal_rewardbench",
    "mm_rlhf": "mm_rlhf",
    "mmrb2": "mmrb2",
    "outcomes": "pairs",
    "every_eval_ever": "pairs",
}
EXPORTS = ("inspect", "every_eval_ever")  # forms that `bench export` writes


@dataclass(frozen=True)
class Variant:
    """A run that is derived of a benchmark, NAME:VARIANT: ``run`` names its function, ``judge_keys`` are defaults of the
    judge's keys in it, and ``of`` is the only benchmark that has it ("": all have)."""

    run: str
    judge_keys: Mapping[str, object]
    of: str = ""


_AT_LENGTH = {"temperature": 0.0, "max_tokens": 2048}
VARIANTS = {
    "attacked": Variant("rewardlab.benchmarks.robustness.run:run_attacked", {"temperature": 0.0}),  # its pairs under attack
    "choice": Variant("rewardlab.benchmarks.rewardbench2.listwise:run_choice", _AT_LENGTH, "rewardbench2"),  # of four answers
    "ratings": Variant("rewardlab.benchmarks.rewardbench2.listwise:run_ratings", _AT_LENGTH, "rewardbench2"),  # of each answer
}


def split_variant(name: str) -> tuple[str, str, tuple[str, ...]]:
    """Return the benchmark, the variant ("" without) and its selection, of NAME, NAME:VARIANT or NAME:attacked=FAMILY,... Raise
    ConfigError for an unknown variant."""
    base, colon, rest = name.rpartition(":")
    if not colon or Path(name).suffix == ".py":
        return name, "", ()
    variant, _, selected = rest.partition("=")
    if variant not in VARIANTS:
        raise ConfigError(f"unknown variant {variant!r} of {base}; expected NAME:attacked, rewardbench2:choice or :ratings")
    if VARIANTS[variant].of not in ("", base):
        raise ConfigError(f"{name}: {variant} is a protocol of {VARIANTS[variant].of}; {base} has only pairs")
    return base, variant, tuple(filter(None, selected.split(",")))


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
