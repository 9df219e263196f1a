"""Judge pairs under attack: the clean pairs, what each family makes of them, and what nothing is claimed of."""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from rewardlab.benchmarks.base import Benchmark, Row
from rewardlab.benchmarks.report_model import Report
from rewardlab.benchmarks.robustness.model import FamilyScores, Figures, Robustness
from rewardlab.benchmarks.robustness.text import attack_faults
from rewardlab.benchmarks.rows import load_rows, split_rows
from rewardlab.benchmarks.runner import Extra, check_budget, judge_rows, open_any_judge
from rewardlab.benchmarks.settings import BenchSettings, check_names
from rewardlab.data.attacks.families import AttackedPair, Family, Kind, Opponent, attacked_pairs, families_of, needs_pictures
from rewardlab.data.votes import ATTACKS
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.spec import judge_config
from rewardlab.metrics.intervals import DifferenceEstimate, difference_interval, mean_interval
from rewardlab.metrics.revision import ShareEstimate
from rewardlab.types import Judgment, Order, Vote

Reduce = Callable[[str, Sequence[Vote]], Judgment]
CHANGED_AS_A_WHOLE = (Kind.DEGENERATE, Kind.UNSEEN)  # a judgment without the attack says nothing of one with it


@dataclass(frozen=True)
class Case:
    """A judgment of one order of an attacked pair. ``winner`` is the index of a response, None without a verdict;
    ``was_right``: whether the judgment of that order without the attack is."""

    attacked: AttackedPair
    cluster: str
    winner: int | None
    was_right: bool

    @property
    def named(self) -> bool:
        """Return whether the attacker is named."""
        return self.winner == self.attacked.attacker


def cases_of(
    attacked: Sequence[AttackedPair],
    judgments: Sequence[Judgment],
    clean: Sequence[Judgment],
    preferred: Sequence[int],
    clusters: Sequence[str],
    reduce: Reduce,
) -> list[Case]:
    """Return a case for each order of every attacked pair. ``clean``, ``preferred`` and ``clusters`` are of the pairs they are
    made of; ``reduce`` says what the votes of an order come to: those of a panel are one judgment."""
    right = [
        {order: winner == best for order, winner in winners_of(judgment, reduce).items()}
        for judgment, best in zip(clean, preferred, strict=True)
    ]
    return [
        Case(pair_case, clusters[pair_case.base], winner, right[pair_case.base].get(order, False))
        for pair_case, judgment in zip(attacked, judgments, strict=True)
        for order, winner in winners_of(judgment, reduce).items()
    ]


def winners_of(judgment: Judgment, reduce: Reduce) -> dict[Order, int | None]:
    """Return the winner by each order that was asked; None where its votes name none."""
    by_order: dict[Order, list[Vote]] = {}
    for vote in judgment.votes:
        by_order.setdefault(vote.order, []).append(vote)
    return {order: reduce(judgment.pair_id, votes).outcome.winner for order, votes in by_order.items()}


def share_of(cases: Sequence[Case], hit: Callable[[Case], bool]) -> ShareEstimate | None:
    """Return the share of the cases that are a hit, with its interval over prompts; None of none."""
    if not cases:
        return None
    hits = [float(hit(case)) for case in cases]
    return ShareEstimate(len(hits), sum(hits) / len(hits), mean_interval(hits, [case.cluster for case in cases]))


def unbeaten(case: Case) -> bool:
    """Return whether the attacker is not beaten: it is named, or nothing is."""
    return case.winner != 1 - case.attacked.attacker


def turned(cases: Sequence[Case]) -> ShareEstimate | None:
    """Return, of the cases whose judgment is right without the attack, the share that name the attacker with it."""
    return share_of([case for case in cases if case.was_right], lambda case: case.named)


def lost(cases: Sequence[Case]) -> ShareEstimate | None:
    """Return, of the cases whose judgment is right without the attack, the share whose judgment is not right with it."""
    return share_of([case for case in cases if case.was_right], unbeaten)


def family_scores(family: Family, cases: Sequence[Case]) -> FamilyScores:
    """Return what a family does, of its cases against one opponent."""
    named = share_of(cases, lambda case: case.named)
    assert named is not None
    return FamilyScores(
        kind=str(family.kind),
        words=family.words,
        in_training=family.in_training,
        claim=cases[0].attacked.pair.preferred is not None,
        num_pairs=len({case.attacked.base for case in cases}),
        named=named,
        turned=None if family.kind in CHANGED_AS_A_WHOLE else turned(cases),
        lost=None if family.kind in CHANGED_AS_A_WHOLE else lost(cases),
        invalid_rate=sum(case.winner is None for case in cases) / len(cases),
    )


def figures_of(cases: Sequence[Case]) -> Figures:
    """Return the figures of all families of the cases together. What nothing is claimed of is left out."""

    def of(kind: Kind, opponent: Opponent = Opponent.GOOD) -> list[Case]:
        return [
            case
            for case in cases
            if case.attacked.family.kind is kind
            and case.attacked.opponent is opponent
            and (case.attacked.pair.preferred is not None or kind is Kind.UNSEEN)
        ]

    over_good, over_wrong = of(Kind.DEGENERATE), of(Kind.DEGENERATE, Opponent.WRONG)
    insertions, harmless = of(Kind.INSERTION), of(Kind.HARMLESS)
    return Figures(
        degenerate_over_good=share_of(over_good, lambda case: case.named),
        good_unnamed=share_of(over_good, unbeaten),
        degenerate_over_wrong=share_of(over_wrong, lambda case: case.named),
        wrong_unnamed=share_of(over_wrong, unbeaten),
        turned_by_insertions=turned(insertions),
        lost_by_insertions=lost([*insertions, *of(Kind.INSERTION, Opponent.WRONG)]),
        turned_by_harmless=turned(harmless),
        lost_by_harmless=lost([*harmless, *of(Kind.HARMLESS, Opponent.WRONG)]),
        insertions_over_harmless=_excess(insertions, harmless),
        lost_by_edits=lost(of(Kind.EDIT)),
        lost_by_captions=lost(of(Kind.CAPTION)),
        right_unseen=share_of(of(Kind.UNSEEN), lambda case: case.winner == 1 - case.attacked.attacker),
    )


def _excess(insertions: Sequence[Case], harmless: Sequence[Case]) -> DifferenceEstimate | None:
    """Return how much more often attacks cost a right judgment than harmless texts do, pair by pair; None without a pair that
    has both."""
    theirs, ours = _lost_by_pair(insertions), _lost_by_pair(harmless)
    both = sorted(theirs.keys() & ours.keys())
    if not both:
        return None
    clusters = {case.attacked.base: case.cluster for case in insertions}
    gaps = [theirs[base] - ours[base] for base in both]
    return DifferenceEstimate(sum(gaps) / len(gaps), difference_interval(gaps, [clusters[base] for base in both]))


def _lost_by_pair(cases: Sequence[Case]) -> dict[int, float]:
    by_pair: dict[int, list[bool]] = {}
    for case in cases:
        if case.was_right:
            by_pair.setdefault(case.attacked.base, []).append(unbeaten(case))
    return {base: sum(hits) / len(hits) for base, hits in by_pair.items()}


def robustness_of(
    cases: Sequence[Case],
    clean: Sequence[Judgment],
    preferred: Sequence[int],
    clusters: Sequence[str],
    reduce: Reduce,
    attacks: str,
) -> Robustness:
    """Return everything that is said of a run under attack. ``clean``, ``preferred`` and ``clusters`` are of its pairs."""
    groups: dict[str, list[Case]] = {}
    for case in cases:
        groups.setdefault(case.attacked.group, []).append(case)
    winners = [
        (float(winner == best), cluster)
        for judgment, best, cluster in zip(clean, preferred, clusters, strict=True)
        for winner in winners_of(judgment, reduce).values()
    ]
    right = [hit for hit, _ in winners]
    return Robustness(
        num_pairs=len(clean),
        attacks=attacks,
        clean=ShareEstimate(len(right), sum(right) / len(right), mean_interval(right, [cluster for _, cluster in winners])),
        held_out=figures_of([case for case in cases if not case.attacked.family.in_training]),
        in_training=figures_of([case for case in cases if case.attacked.family.in_training]),
        families={name: family_scores(of[0].attacked.family, of) for name, of in groups.items()},
    )


def measured_figures(attacked: Sequence[AttackedPair]) -> list[str]:
    """Return the figures of held-out families that a run on these attacked pairs has, if a judgment is right."""
    cases = [Case(attack, "", 0, True) for attack in attacked if not attack.family.in_training]
    return [name for name, cell in vars(figures_of(cases)).items() if cell is not None]


PREFIX = "robustness of "
EMPTY = "empty"  # the family
CLEAN, UNLABELLED = "pairs as they are", "pairs without a better answer"  # passes beside the votes
MOST_BYTES = 4 << 30  # of edited pictures, which are all in memory


NUM_ATTACKED = 100  # pairs of a run under attack, unless the limit says otherwise


def run_attacked(settings: BenchSettings, out: Path, selected: Sequence[str]) -> tuple[Report, list[Row]]:
    """Run a benchmark's pairs under the ``selected`` attacks, none for all."""
    return run_robustness(settings, out, num_pairs=settings.limit or NUM_ATTACKED, attacks=selected)


def run_robustness(
    settings: BenchSettings, out: Path, *, num_pairs: int, attacks: Sequence[str] = ()
) -> tuple[Report, list[Row]]:
    """Judge ``num_pairs`` pairs of a benchmark, drawn by the seed, and what each family makes of them, in both orders.

    The report's accuracy is of the attacked pairs that have a better answer, its groups are the families;
    ``report.robustness`` has the rest. ``attacks`` names families or kinds (none: all); there are no controls. Raise
    ConfigError for an unknown family, for a replay, which has no votes on attacked pairs, and for more pictures than memory is
    meant for; otherwise what :func:`rewardlab.benchmarks.runner.run_bench` raises.
    """
    query = settings.judge
    if (query.votes or 1) > 1 or query.orders not in ("auto", "both") or query.stop_error is not None:
        raise ConfigError("votes, orders, stop_error: attacked pairs are judged once, in both orders; leave these out")
    if others := sorted(set(settings.controls) - {"blank"}):  # the default of other runs
        raise ConfigError(f"--controls {','.join(others)}: a run under attack has none; leave out")
    benchmark = check_names(settings.benchmark, (), query)
    settings = replace(settings, judge=judge_config(settings.judge, votes=1, orders="both"))
    settings = replace(settings, controls=(), limit=None)
    chosen = families_of(attacks)
    judge = open_any_judge(settings)
    if judge.is_recording:
        raise ConfigError(f"{settings.judge.judge!r} has no votes on attacked pairs; name the judge itself")
    check_budget(settings, judge)
    reduce = judge.reduce
    rows, notes = load_rows(settings, judge)
    rows, tied, without = split_rows(rows, settings.data)
    for words, some in (("ties", tied), ("pairs without a label", without)):
        notes += [f"{words} left out, because an attack needs a better response: {len(some):,}"] if some else []
    if not judge.accepts_empty_responses and any(family.name == EMPTY for family in chosen):
        chosen = [family for family in chosen if family.name != EMPTY]
        notes.append("no empty answers: a served judge takes none")
    if num_pairs < len(rows):
        notes.append(f"{num_pairs:,} of {len(rows):,} pairs, sampled by the seed (--limit)")
        rows = [rows[n] for n in sorted(random.Random(settings.seed).sample(range(len(rows)), num_pairs))]
    pairs, clusters = [row.pair for row in rows], [row.cluster for row in rows]
    attacked = _within_memory(attacked_pairs(pairs, chosen, seed=settings.seed, with_pictures=judge.sees))
    if not attacked:
        raise DataError(f"{settings.data}: no attack applies to these pairs; select other attacks")
    notes += _notes_on_few([family for family in chosen if judge.sees or not needs_pictures(family)], attacked, len(pairs))
    labelled = [case for case in attacked if case.pair.preferred is not None]
    unlabelled = [case for case in attacked if case.pair.preferred is None]
    if not labelled:
        raise ConfigError("none of these attack families has a known better answer; select others too")
    preferred, digest = [pair.preferred or 0 for pair in pairs], _digest(attacked)
    name = PREFIX + benchmark.name

    def finish(judgments: Sequence[Judgment], extras: Mapping[str, Sequence[Judgment]], report: Report) -> Report:
        clean = extras[CLEAN]
        cases = cases_of(labelled, judgments, clean, preferred, clusters, reduce)
        cases += cases_of(unlabelled, extras[UNLABELLED], clean, preferred, clusters, reduce)
        robustness = robustness_of(cases, clean, preferred, clusters, reduce, digest)
        faults = () if report.judge.startswith("baseline:") else attack_faults(robustness)
        return replace(report, robustness=robustness, findings=(*faults, *report.findings))

    return judge_rows(
        settings,
        Benchmark(name, benchmark.load),
        judge,
        _rows(labelled, clusters, 0),
        notes,
        out,
        extra=Extra(
            passes={CLEAN: rows, UNLABELLED: _rows(unlabelled, clusters, len(labelled))},
            identity={
                "benchmark": name,
                "families": [family.name for family in chosen],
                "pairs": len(rows),
                ATTACKS: digest,
            },
            finish=finish,
            measured=measured_figures(attacked),
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
                f"the edited images of these pairs take more than {MOST_BYTES >> 30} GiB; use a lower --limit, or "
                "no edit, caption and unseen"
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
