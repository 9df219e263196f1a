"""What `bench compare` says of finished runs, as numbers for a program."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from rewardlab.benchmarks.comparison import Difference, Run, against, figures_against
from rewardlab.benchmarks.differences import FigureDifferences
from rewardlab.benchmarks.group_differences import differences_by_group
from rewardlab.metrics.intervals import DifferenceEstimate, Interval
from rewardlab.metrics.multiplicity import holm


@dataclass(frozen=True)
class AgainstFirst:
    """A run's accuracy less the first run's; ``p_holm`` is the p-value adjusted for the number of comparisons; ``figures`` are
    the differences of the other figures, ``groups`` those of accuracy within each group, of attacks within each family."""

    difference: float
    interval: Interval
    p_value: float
    p_holm: float
    better: int
    worse: int
    figures: FigureDifferences
    groups: Mapping[str, DifferenceEstimate]


@dataclass(frozen=True)
class ComparedRun:
    """A finished run; of one that failed every figure is None and there are no ``findings``, for they are not its judge's.
    ``against_first`` is None of the first run, and where that one failed."""

    run: str
    judge: str
    failure: str
    accuracy: float | None
    interval: Interval | None
    invalid_rate: float | None
    swap_consistency: float | None
    position_bias: float | None
    findings: tuple[str, ...]
    against_first: AgainstFirst | None


@dataclass(frozen=True)
class Comparison:
    """Runs of one benchmark in the order they were named. Accuracies, rates and differences are in 0..1, intervals 95 %, over
    prompts. ``different_protocols``: a sentence for each run that was asked otherwise than the first."""

    benchmark: str
    num_pairs: int
    runs: tuple[ComparedRun, ...]
    different_protocols: tuple[str, ...]


def compare_runs(runs: Sequence[Run], different_protocols: Sequence[str] = ()) -> Comparison:
    """Return the comparison of runs with the first of them. Raise ConfigError as :func:`comparison.against`."""
    base = runs[0]
    changes = {n: against(base, run) for n, run in enumerate(runs[1:], start=1)}  # refuses other rows, failed or not
    whole = [n for n in changes if not (base.report.failure or runs[n].report.failure)]
    adjusted = dict(zip(whole, holm([changes[n].p_value for n in whole]), strict=True))
    return Comparison(
        benchmark=base.report.benchmark,
        num_pairs=base.report.scores.num_pairs,
        runs=tuple(
            _compared(run, _against_first(changes[n], adjusted[n], base, run) if n in adjusted else None)
            for n, run in enumerate(runs)
        ),
        different_protocols=tuple(different_protocols),
    )


def _against_first(change: Difference, p_holm: float, base: Run, run: Run) -> AgainstFirst:
    return AgainstFirst(
        difference=change.difference,
        interval=change.interval,
        p_value=change.p_value,
        p_holm=p_holm,
        better=change.better,
        worse=change.worse,
        figures=figures_against(base, run),
        groups=differences_by_group(base, run),
    )


def _compared(run: Run, change: AgainstFirst | None) -> ComparedRun:
    report, scores = run.report, run.report.scores
    if report.failure:
        return ComparedRun(run.name, report.judge, report.failure, None, None, None, None, None, (), change)
    return ComparedRun(
        run=run.name,
        judge=report.judge,
        failure=report.failure,
        accuracy=scores.accuracy.micro,
        interval=scores.interval,
        invalid_rate=scores.invalid_rate,
        swap_consistency=scores.swap_consistency,
        position_bias=scores.position_bias,
        findings=report.findings,
        against_first=change,
    )
