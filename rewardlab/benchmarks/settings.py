"""The settings of a benchmark run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Benchmark
from rewardlab.benchmarks.passes import CONTROLS
from rewardlab.benchmarks.prepare import prepared_data
from rewardlab.benchmarks.registry import VARIANTS, find_benchmark, split_variant
from rewardlab.benchmarks.report_model import NO_COST, Cost
from rewardlab.benchmarks.requirements import Requirement
from rewardlab.config.data import NO_BUDGET, NO_PRICES, Budget, Prices
from rewardlab.config.judge import JUDGE_KEYS, JudgeConfig
from rewardlab.errors import ConfigError
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec, check_keys, effective_keys, judge_config
from rewardlab.models.checkpoints import load_template_for
from rewardlab.prompts import load_template, reading_format
from rewardlab.samplers.failures import MAX_FAILED

NO_ENGINES = ("baseline", "replay")  # judges that a benchmark takes beside those of engines


@dataclass(frozen=True, kw_only=True)
class BenchSettings:
    """A run: which judge, on which rows, with which ``controls`` (further passes of one greedy vote per order: greedy, blank,
    other).

    ``cluster``, ``allow_columns`` and ``allow_without_images`` concern pairs of one's own: what counts as one draw
    (:data:`rewardlab.benchmarks.pairs.CLUSTERS`, or a column), which columns may be there unread, whether questions
    may speak of an image that is not there. ``labels``: a file of people's ratings (:mod:`rewardlab.data.ratings`).
    """

    benchmark: str
    data: Path
    judge: JudgeConfig
    images: Path | None = None
    limit: int | None = None
    seed: int = 0
    controls: tuple[str, ...] = ("blank",)
    api_key: str = ""  # of an openai: judge; "": what the variable that the judge names holds
    command: str = ""  # for the report
    max_failed: float = MAX_FAILED  # fraction of votes that may fail at the endpoint before the report is marked as failed
    prices: Prices = NO_PRICES
    budget: Budget = NO_BUDGET  # of an openai: judge, controls included
    spent: Cost = NO_COST  # of the budget, by other runs
    cluster: str | None = None
    allow_columns: tuple[str, ...] = ()
    allow_without_images: bool = False
    labels: Path | None = None
    requirements: tuple[Requirement, ...] = ()  # checked against what the run will have, before anything is asked


def bench_settings(benchmark: str, data: str | Path | None, judge: str | JudgeConfig, **values: Any) -> BenchSettings:
    """Return the settings of a run. ``data`` None: the files that `bench prepare` has fetched. ``values``: fields of
    :class:`BenchSettings`, and keys of the judge. Raise ConfigError."""
    keys = {name: values.pop(name) for name in JUDGE_KEYS if name in values}
    place = prepared_data(split_variant(benchmark)[0]) if data is None else Path(data)
    return BenchSettings(benchmark=benchmark, data=place, judge=judge_config(judge, keys), **values)


def variant_judge(judge: JudgeConfig, variant: str) -> JudgeConfig:
    """Return the judge with the defaults of a benchmark's variant for keys that it has and that are not set."""
    defaults = VARIANTS[variant].judge_keys
    unset = defaults.keys() & effective_keys(judge.judge) - judge.model_fields_set
    return judge_config(judge, {name: defaults[name] for name in unset})


def check_names(name: str, controls: Sequence[str], judge: JudgeConfig) -> Benchmark:
    """Return the benchmark. Raise ConfigError for a name that nothing has and for a key that the judge or a run does not use,
    CheckpointError for a template that a checkpoint was not trained on."""
    benchmark = find_benchmark(name)
    if unknown := sorted(set(controls) - set(CONTROLS)):
        raise ConfigError(f"unknown controls {', '.join(unknown)}; expected {', '.join(CONTROLS)}")
    spec, template = JudgeSpec.parse(judge.judge, *NO_ENGINES, *WITHOUT_SAMPLER), judge.template
    check_keys(judge)
    if judge.policy is not None:
        raise ConfigError(f"policy={judge.policy} is for endpoints; a benchmark reports every way to count votes: leave it out")
    if template:
        if spec.engine == "replay":  # recorded answers are read, nothing is asked in words
            reading_format(template)
        elif spec.checkpoint:
            load_template_for(spec.checkpoint, template)
        else:
            load_template(template)
    return benchmark
