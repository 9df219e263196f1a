"""The settings of a benchmark run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark
from rewardlab.benchmarks.passes import CONTROLS
from rewardlab.benchmarks.recorded_orders import check_policy
from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.requirements import Requirement
from rewardlab.config.data import NO_BUDGET, NO_PRICES, Budget, Prices
from rewardlab.errors import ConfigError
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec
from rewardlab.models.checkpoints import load_template_for
from rewardlab.prompts import load_template, reading_format
from rewardlab.samplers.failures import MAX_FAILED
from rewardlab.samplers.request_options import NOTHING_SAID, RequestOptions

NO_ENGINES = ("baseline", "replay")  # judges that a benchmark takes beside those of engines


@dataclass(frozen=True)
class BenchSettings:
    """The settings of a run. ``controls`` are further passes of one greedy vote per order: greedy, blank, other.

    ``cluster``, ``allow_columns`` and ``allow_without_images`` are about pairs of one's own: what counts as one draw
    (:data:`rewardlab.benchmarks.pairs.clusters.CLUSTERS`, or a column), which columns may be there unread, whether questions
    may speak of an image that is not there. ``stop_error``: ask in turns, and stop where the majority of ``votes`` of each
    order is settled but for this probability.
    """

    benchmark: str
    data: Path
    judge: str
    images: Path | None = None
    votes: int | None = None
    orders: str = "auto"  # both; of a recording in one order, as recorded
    limit: int | None = None
    seed: int = 0
    template: str | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    stop_error: float | None = None
    max_tokens: int = 1024
    batch_size: int = 64
    engine_args: str = ""
    controls: tuple[str, ...] = ("blank",)
    api_key: str = "none"
    request: RequestOptions = NOTHING_SAID
    command: str = ""  # for the report
    max_failed: float = MAX_FAILED  # share of votes that may fail at the endpoint before the report is marked as failed
    prices: Prices = NO_PRICES
    budget: Budget = NO_BUDGET  # of an openai: judge, controls included
    cluster: str | None = None
    allow_columns: tuple[str, ...] = ()
    allow_without_images: bool = False
    cache: Path | None = None  # folder of answers of an openai: judge, over runs
    requirements: tuple[Requirement, ...] = ()  # checked against what the run will have, before anything is asked


def check_names(name: str, controls: Sequence[str], orders: str, template: str | None, judge: str) -> Benchmark:
    """Return the benchmark. Raise ConfigError for a name that nothing has, CheckpointError for a template that a checkpoint was
    not trained on."""
    benchmark = find_benchmark(name)
    if unknown := sorted(set(controls) - set(CONTROLS)):
        raise ConfigError(f"unknown controls {', '.join(unknown)}; expected {', '.join(CONTROLS)}")
    check_policy(orders)
    if template:
        spec = JudgeSpec.parse(judge, *NO_ENGINES, *WITHOUT_SAMPLER)
        if spec.engine == "replay":  # recorded answers are read, nothing is asked in words
            reading_format(template)
        elif spec.checkpoint:
            load_template_for(spec.checkpoint, template)
        else:
            load_template(template)
    return benchmark
