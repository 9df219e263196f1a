"""What decides the votes of a benchmark run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.passes import AnyJudge
from rewardlab.benchmarks.registry import benchmark_identity
from rewardlab.benchmarks.rows import images_hash
from rewardlab.benchmarks.settings import NO_ENGINES, BenchSettings
from rewardlab.data.files import data_hash
from rewardlab.judging.spec import WITHOUT_SAMPLER, JudgeSpec
from rewardlab.samplers.base import HF


@dataclass(frozen=True)
class RunIdentity:
    """What decides the votes of a run: the log of one run is never continued by another."""

    benchmark: str
    data: str
    images: str
    judge: str
    weights: str | None
    votes: int
    orders: str
    limit: int | None
    seed: int
    batch_size: int | None
    template: str | None
    temperature: float
    top_p: float
    stop_error: float | None
    max_tokens: int
    verdict_temperature: str | float = 1.0

    def to_dict(self) -> dict[str, object]:
        """Return what the first line of a log says; of a judge without a temperature of its verdicts nothing is said of it."""
        return {name: value for name, value in asdict(self).items() if (name, value) != ("verdict_temperature", 1.0)}


def run_identity(settings: BenchSettings, judge: AnyJudge, rows: Sequence[Row], num_votes: int) -> RunIdentity:
    """Return what decides the votes of a run of ``settings`` by ``judge`` on ``rows``."""
    query, of_judge = settings.judge, judge.identity
    spec = JudgeSpec.parse(query.judge, *NO_ENGINES, *WITHOUT_SAMPLER)
    parts = [str(of_judge.get("judge", query.judge)), query.engine_args, query.request_identity]
    return RunIdentity(
        benchmark=benchmark_identity(settings.benchmark),
        data=data_hash(settings.data),
        images=images_hash(rows),
        judge=" ".join(part for part in parts if part),
        weights=str(of_judge.get("weights", "")),
        votes=num_votes,
        orders=query.orders,
        limit=settings.limit,
        seed=settings.seed,
        batch_size=query.batch_size if spec.engine == HF else None,
        template=str(of_judge["template"]) if "template" in of_judge else query.template,
        temperature=query.temperature,
        top_p=query.top_p,
        stop_error=query.stop_error,
        max_tokens=query.max_tokens,
        verdict_temperature=of_judge.get("verdict_temperature", 1.0),
    )
