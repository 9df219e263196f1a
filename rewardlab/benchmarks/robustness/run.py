"""Judge pairs under attack: the clean pairs, what each family makes of them, and what nothing is claimed of."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark, Row
from rewardlab.benchmarks.registry import find_benchmark
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.robustness.scores import cases_of, measured_figures, robustness_of
from rewardlab.benchmarks.rows import load_rows
from rewardlab.benchmarks.runner import Extra, judge_rows, open_any_judge
from rewardlab.benchmarks.settings import BenchSettings
from rewardlab.data.attacks.families import AttackedPair, Family, attacked_pairs, families_of, needs_pictures
from rewardlab.data.votes import ATTACKS
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.judge import ModelJudge
from rewardlab.judging.spec import judge_config
from rewardlab.types import Judgment
from rewardlab.verdicts.votes import reduce_votes

PREFIX = "robustness of "
EMPTY = "empty"  # the family
CLEAN, UNLABELLED = "pairs as they are", "pairs without a better answer"  # passes beside the votes
MOST_BYTES = 4 << 30  # of edited pictures, which are all in memory


def run_robustness(
    settings: BenchSettings, out: Path, *, num_pairs: int, families: Sequence[str] = ()
) -> tuple[Report, list[Row]]:
    """Judge ``num_pairs`` pairs of a benchmark, drawn by the seed, and what each family makes of them, in both orders.

    The report's accuracy is of the attacked pairs that have a better answer, its groups are the families;
    ``report.robustness`` has the rest. ``settings`` have one vote, no controls and no limit. Raise ConfigError for an unknown
    family, for a replay, which has no votes on attacked pairs, and for more pictures than memory is meant for; otherwise what
    :func:`rewardlab.benchmarks.runner.run_bench` raises.
    """
    query = settings.judge
    if (query.votes or 1) > 1 or query.orders not in ("auto", "both") or query.stop_error is not None:
        raise ConfigError("votes, orders, stop_error: pairs under attack are judged once, in both orders; leave out")
    settings = replace(settings, judge=judge_config(settings.judge, votes=1, orders="both"))
    chosen, reduce = families_of(families), reduce_votes
    judge = open_any_judge(settings)
    if judge.is_recording:
        raise ConfigError(f"{settings.judge.judge!r} has no votes on attacked pairs; name the judge itself")
    if isinstance(judge, ModelJudge):
        reduce = judge.reduce
    rows, notes = load_rows(settings, judge)
    if not judge.accepts_empty_responses and any(family.name == EMPTY for family in chosen):
        chosen = [family for family in chosen if family.name != EMPTY]
        notes.append("no empty answers: a served judge takes none")
    if num_pairs < len(rows):
        notes.append(f"{num_pairs:,} of {len(rows):,} pairs, drawn by the seed (--pairs)")
        rows = [rows[n] for n in sorted(random.Random(settings.seed).sample(range(len(rows)), num_pairs))]
    pairs, clusters = [row.pair for row in rows], [row.cluster for row in rows]
    attacked = _within_memory(attacked_pairs(pairs, chosen, seed=settings.seed, with_pictures=judge.sees))
    if not attacked:
        raise DataError(f"{settings.data}: no family makes anything of these pairs; name other --families")
    notes += _notes_on_few([family for family in chosen if judge.sees or not needs_pictures(family)], attacked, len(pairs))
    labelled = [case for case in attacked if case.pair.preferred is not None]
    others = [case for case in attacked if case.pair.preferred is None]
    if not labelled:
        raise ConfigError("of none of these families a better answer is known; name others beside them with --families")
    preferred, attacks = [pair.preferred or 0 for pair in pairs], _digest(attacked)
    benchmark = find_benchmark(settings.benchmark)
    name = PREFIX + benchmark.name

    def finish(judgments: Sequence[Judgment], extras: Mapping[str, Sequence[Judgment]], report: Report) -> Report:
        clean = extras[CLEAN]
        cases = cases_of(labelled, judgments, clean, preferred, clusters, reduce)
        cases += cases_of(others, extras[UNLABELLED], clean, preferred, clusters, reduce)
        return replace(report, robustness=robustness_of(cases, clean, preferred, clusters, reduce, attacks))

    return judge_rows(
        settings,
        Benchmark(name, benchmark.load),
        judge,
        _rows(labelled, clusters, 0),
        notes,
        out,
        extra=Extra(
            passes={CLEAN: rows, UNLABELLED: _rows(others, clusters, len(labelled))},
            identity={
                "benchmark": name,
                "families": [family.name for family in chosen],
                "pairs": len(rows),
                ATTACKS: attacks,
            },
            figures=measured_figures(attacked),
            finish=finish,
        ),
    )


def _notes_on_few(families: Sequence[Family], attacked: Sequence[AttackedPair], num_pairs: int) -> list[str]:
    """Name the families that attack fewer than half of the pairs: their texts do not fit these answers, or may be one."""
    bases: dict[str, set[int]] = {family.name: set() for family in families}
    for case in attacked:
        bases[case.family.name].add(case.base)
    few = [f"{name} ({len(some):,})" for name, some in bases.items() if 2 * len(some) < num_pairs]
    return [f"families that could attack fewer than half of the {num_pairs:,} pairs: {', '.join(few)}"] if few else []


def _within_memory(attacked: Iterable[AttackedPair]) -> list[AttackedPair]:
    """Return all attacked pairs. Raise ConfigError where their own pictures take more than :data:`MOST_BYTES`."""
    all_pairs, seen, num_bytes = list[AttackedPair](), set[int](), 0
    for case in attacked:
        for image in case.pair.images:
            if id(image) not in seen:
                seen.add(id(image))
                num_bytes += len(image)
        if num_bytes > MOST_BYTES:
            raise ConfigError(
                f"the edited pictures of these pairs take more than {MOST_BYTES >> 30} GiB; take fewer --pairs, or --families "
                "without edit, caption and unseen"
            )
        all_pairs.append(case)
    return all_pairs


def _digest(attacked: Sequence[AttackedPair]) -> str:
    """Return a hash of every attacked pair's texts: another catalogue of attacks is another run."""
    digest = hashlib.sha256()
    for case in attacked:
        digest.update(repr((case.pair.pair_id, case.pair.responses, case.pair.preferred)).encode(errors="replace"))
    return digest.hexdigest()[:16]


def _rows(attacked: Sequence[AttackedPair], clusters: Sequence[str], first: int) -> list[Row]:
    return [
        Row(
            first + number,
            case.pair,
            case.group,
            clusters[case.base],
            {"kind": str(case.family.kind), "families": "for training" if case.family.in_training else "held out"},
        )
        for number, case in enumerate(attacked)
    ]
