"""Finished runs, and one against another pair by pair: differences with intervals, and a gate on them."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from difflib import get_close_matches
from functools import lru_cache
from itertools import combinations
from pathlib import Path

from rewardlab.benchmarks.agreement import EPSILON, RatedPair, agreement_scores, check_labels
from rewardlab.benchmarks.arithmetic import problems
from rewardlab.benchmarks.base import REPORT, SCORES, VOTES
from rewardlab.benchmarks.report_model import SCORE_ANEW, Report, RowScore
from rewardlab.benchmarks.systems import SystemScores
from rewardlab.data.files import read_lines, write_atomic
from rewardlab.data.ratings import read_labels
from rewardlab.data.votes import TIES_PASS, vote_of
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.accuracy import LEAST_BOTH
from rewardlab.metrics.intervals import DifferenceEstimate, Interval, difference_interval, macro_interval, sign_flip_p
from rewardlab.reporting.progress import log_line
from rewardlab.samplers.base import SAMPLING_KEYS
from rewardlab.types import VerdictStatus, Vote


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values (0..1) adjusted by Holm (1979), in the order given: calling those below a level significant errs, once or
    more in all the comparisons, with at most that probability, however they depend on each other."""
    ranked = sorted(range(len(p_values)), key=lambda place: p_values[place])
    adjusted, least = [0.0] * len(p_values), 0.0
    for rank, place in enumerate(ranked):
        least = max(least, min(1.0, (len(p_values) - rank) * p_values[place]))
        adjusted[place] = least
    return adjusted


@dataclass(frozen=True)
class FigureDifferences:
    """What one run has more than another (-1..1), with 95 % intervals over prompts: of the ``macro`` average over groups, of
    ``swap_consistency``, of ``all_right``, the share of prompts whose every pair is right in both orders (Acc+), and of
    ``three_way``, the accuracy in three classes of a set with ties. One is None where a run has no such figure."""

    macro: DifferenceEstimate
    swap_consistency: DifferenceEstimate | None
    all_right: DifferenceEstimate | None
    three_way: DifferenceEstimate | None


def figure_differences(before: Sequence[RowScore], after: Sequence[RowScore], *, whole_prompts: bool) -> FigureDifferences:
    """Return the differences after - before of two scorings of the same rows, ties among them. ``whole_prompts``: prompts whose
    every pair is right are counted. Raise KeyError where ``after`` lacks a row."""
    others = {row.row: row for row in after}
    every = [(row, others[row.row]) for row in before]
    pairs = [(row, other) for row, other in every if row.preferred is not None]
    return FigureDifferences(
        _macro(pairs),
        _swap(pairs),
        _all_right(pairs) if whole_prompts else None,
        _three_way(every) if len(pairs) < len(every) else None,
    )


def _macro(pairs: Sequence[tuple[RowScore, RowScore]]) -> DifferenceEstimate:
    groups: dict[str, list[float]] = {}
    for row, other in pairs:
        groups.setdefault(row.group, []).append(other.score - row.score)
    means = [math.fsum(gaps) / len(gaps) for gaps in groups.values()]
    gaps, names, clusters = zip(*[(other.score - row.score, row.group, row.cluster) for row, other in pairs], strict=True)
    return DifferenceEstimate(math.fsum(means) / len(means), macro_interval(gaps, names, clusters, least=-1.0))


def _swap(pairs: Sequence[tuple[RowScore, RowScore]]) -> DifferenceEstimate | None:
    both = [(row, other) for row, other in pairs if row.alike is not None and other.alike is not None]
    if not both or len(both) < LEAST_BOTH * len(pairs):
        return None
    gaps = [float(bool(other.alike)) - bool(row.alike) for row, other in both]
    return _figure_difference(gaps, [row.cluster for row, _ in both])


def _all_right(pairs: Sequence[tuple[RowScore, RowScore]]) -> DifferenceEstimate:
    prompts: dict[str, list[tuple[float, float]]] = {}
    for row, other in pairs:
        prompts.setdefault(row.cluster, []).append((row.score, other.score))
    least = [map(min, zip(*scores, strict=True)) for scores in prompts.values()]
    return _figure_difference([float(after == 1) - (before == 1) for before, after in least], list(prompts))


def _three_way(pairs: Sequence[tuple[RowScore, RowScore]]) -> DifferenceEstimate:
    return _figure_difference([other.three_way - row.three_way for row, other in pairs], [row.cluster for row, _ in pairs])


def _figure_difference(gaps: Sequence[float], clusters: Sequence[str]) -> DifferenceEstimate:
    return DifferenceEstimate(math.fsum(gaps) / len(gaps), difference_interval(gaps, clusters))


def short_names(folders: Sequence[str]) -> list[str]:
    """Return a name of each folder: its last part, and as much before it as tells the folders apart."""
    paths = [Path(folder).parts for folder in folders]
    for depth in range(1, max(map(len, paths), default=0) + 1):
        names = ["/".join(parts[-depth:]) for parts in paths]
        if len(set(names)) == len(names):
            return names
    return list(folders)


@dataclass(frozen=True, eq=False)
class Run:
    """A finished run: its report, the score of each row with a better response, and those of ``ties``. ``images``: the hash of
    the images that the judge saw; "" where that cannot be compared, of a judge that does not look, and of videos, whose frames
    differ from judge to judge."""

    name: str
    report: Report
    rows: Sequence[RowScore]
    images: str = ""
    ties: Sequence[RowScore] = ()

    def values(self, value: Callable[[RowScore], float]) -> dict[int, float]:
        """Return a number of each row, by the row."""
        return {row.row: value(row) for row in self.rows}


@dataclass(frozen=True)
class Difference:
    """A run's accuracy less another's, with interval and p-value; numbers of rows on which it is ``better`` and ``worse``."""

    difference: float
    interval: Interval
    p_value: float
    better: int
    worse: int


def _row_score(line: str) -> RowScore:
    row = json.loads(line)
    if missing := [field.name for field in fields(RowScore) if field.name not in row]:
        raise ValueError(f"its {SCORES} lacks {', '.join(missing)}: {SCORE_ANEW}")
    kinds = row["kinds"]
    texts = isinstance(kinds, list) and all(isinstance(text, str) for text in (row["group"], row["cluster"], *kinds))
    shares = {name: row[name] for name in ("score", "invalid")}
    if not texts or type(row["row"]) is not int or not all(type(share) in (int, float) for share in shares.values()):
        raise ValueError(f"a line of {SCORES} has a wrong type of row, group, cluster, score, invalid or kinds: {line:.120}")
    for name, share in shares.items():
        if not 0 <= share <= 1:
            raise ValueError(f"row {row['row']} of {SCORES} has {name} {share}; expected 0 to 1")
    pair_id, preferred, alike, longer = (row[name] for name in ("pair_id", "preferred", "alike", "longer"))
    labels = (None,) if "tie" in kinds else (0, 1)
    if (
        not isinstance(pair_id, str)
        or preferred not in labels
        or alike not in (True, False, None)
        or longer not in (0, 1, None)
    ):
        raise ValueError(f"a line of {SCORES} has a wrong type of pair_id, preferred, alike or longer: {line:.120}")
    place = (row["row"], row["group"], row["cluster"])
    return RowScore(*place, row["score"], row["invalid"], tuple(kinds), pair_id, preferred, alike, longer)


def _twice(rows: Sequence[RowScore]) -> int | None:
    """The first row that is there twice, None without one."""
    seen = set[int]()
    return next((row.row for row in rows if row.row in seen or seen.add(row.row)), None)  # type: ignore[func-returns-value]


def read_run(folder: Path) -> Run:
    """Return the finished run in ``folder``. Raise DataError if there is none."""
    try:
        values = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        every = [_row_score(line) for line in read_lines(folder / SCORES)]
        rows, ties = ([row for row in every if (row.preferred is None) is is_tie] for is_tie in (False, True))
        if not rows:
            raise ValueError(f"its {SCORES} is empty; run the same command again")
        if (double := _twice(every)) is not None:
            raise ValueError(f"row {double} is in its {SCORES} twice")
        try:
            report = Report.from_json(values)
        except ValueError as error:
            raise ValueError(f"its {REPORT} {error}") from error
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if (folder / REPORT).exists() and not (folder / SCORES).exists():
            raise DataError(
                f"{folder}: has a {REPORT} and no {SCORES}; run the same command again, or score its votes with "
                f"--judge replay:{folder}/votes.jsonl"
            ) from error
        raise DataError(f"{folder}: holds no finished run of `rewardlab bench run` ({error})") from error
    return Run(str(folder), report, rows, _seen_images(folder, report), ties)


def logged_votes(path: Path) -> Iterator[tuple[int, list[Vote]]]:
    """Yield (row, votes) of every pair of a finished run, ties among them. Raise DataError for another file."""
    try:
        with path.open(encoding="utf-8", newline="\n") as lines:
            next(lines)
            for line in lines:
                entry = json.loads(line)
                if entry["pass"] in ("votes", TIES_PASS):
                    yield entry["row"], list(map(vote_of, entry["votes"]))
    except (OSError, ValueError, KeyError, TypeError, StopIteration) as error:
        raise DataError(f"{path}: not the votes of a run, or cut off ({type(error).__name__}: {str(error)[:100]})") from error


def read_plain_run(folder: Path) -> Run:
    """Return the finished run on pairs in ``folder``. Raise what :func:`read_run` and :func:`plain_run` raise."""
    return plain_run(read_run(folder))


def plain_run(run: Run) -> Run:
    """Return the run. Raise DataError for one that failed, ConfigError for one under attack or of several answers at once."""
    if run.report.failure:
        raise DataError(f"{run.name}: the run failed ({run.report.failure}); the same `bench run` command retries its votes")
    if run.report.robustness or run.report.listwise:
        raise ConfigError(f"{run.name}: a run under attack, or of several answers at once; expected a run on pairs")
    return run


def refuse_unlabelled(run: Run, labels: Path | None) -> None:
    """Raise ConfigError for other labels of a run with judged pairs without a label, which its scores do not have."""
    systems = run.report.systems
    if labels is not None and systems and systems.num_labelled < systems.num_pairs:
        raise ConfigError(
            f"{run.name}: has judged pairs without a label, too; leave --labels out for the labels of the run, or run its "
            f"`bench run` command again with --labels {labels}, which asks nothing again"
        )


def add_agreement(folder: Path, labels: Path | None, *, epsilon: float | None = None) -> Report:
    """Return the report of the finished run in ``folder`` with the agreement of its judge with people, and store it there.

    ``labels``: a file of ratings; None: the run's report has the agreement already. ``epsilon`` as in
    :func:`rewardlab.benchmarks.agreement.agreement_scores`; None: the report's, else :data:`EPSILON`. Raise DataError for a run
    or labels that cannot be read, and if no rating is of a judged pair, and what :func:`read_plain_run` and
    :func:`refuse_unlabelled` raise.
    """
    run = read_plain_run(folder)
    refuse_unlabelled(run, labels)
    if labels is None:
        if run.report.agreement is None:
            raise DataError(f"{folder}: its data has no ratings; give them with --labels FILE")
        if epsilon not in (None, run.report.agreement.epsilon):
            raise ConfigError(
                f"{folder}: its report has an epsilon of {run.report.agreement.epsilon:g}; another needs --labels FILE"
            )
        return run.report
    ratings, votes = read_labels(labels), dict(logged_votes(folder / VOTES))
    every = [*run.rows, *run.ties]
    for note in check_labels(ratings, [row.pair_id for row in every], str(labels)):
        log_line(note)
    if lost := [row.row for row in every if not votes.get(row.row)]:
        raise DataError(f"{folder}/{VOTES}: has no votes of row {lost[0]}, which {SCORES} has; restore it, or run it again")
    scores = agreement_scores(
        [RatedPair(row.row, row.group, row.cluster, votes[row.row], ratings.get(row.pair_id, ()), row.longer) for row in every],
        epsilon=EPSILON if epsilon is None else epsilon,
    )
    if scores is None:
        raise DataError(f"{labels}: every rating is skip; expected 0, 1, tie or both_bad")
    if (earlier := run.report.agreement) is not None:
        log_line(f"{folder}: replaces the agreement with {earlier.num_ratings:,} ratings that its report had")
    report = replace(run.report, agreement=scores)
    write_atomic(folder / REPORT, json.dumps(report.to_json(), indent=1, allow_nan=False) + "\n")
    return report


def _seen_images(folder: Path, report: Report) -> str:
    blind = report.judge.startswith(("replay:", "baseline:"))
    if blind or any(note.startswith("videos (") for note in report.notes) or not (folder / VOTES).is_file():
        return ""
    try:
        with (folder / VOTES).open(encoding="utf-8") as log:
            return str(json.loads(next(log, "{}")).get("identity", {}).get("images", ""))
    except (ValueError, AttributeError) as error:
        raise DataError(f"{folder / VOTES}: not the votes of a run ({error}); restore the file from a backup") from error


def score_of(row: RowScore) -> float:
    """Return what accuracy is the mean of."""
    return row.score


def against(base: Run, other: Run, value: Callable[[RowScore], float] = score_of) -> Difference:
    """Return the difference other - base in the mean of ``value`` (of accuracy), with its 95 % interval and p-value.

    Rows that share a prompt stay together, in the interval and in the test (sign flips, two-sided: how often so large a
    difference comes about where the two are exchangeable). Raise ConfigError if the runs are not of the same rows.
    """
    if (base.report.benchmark, base.report.data_sha256) != (other.report.benchmark, other.report.data_sha256):
        raise ConfigError(
            f"{base.name} and {other.name} are runs of different benchmarks or data files; compare runs of the same one"
        )
    if base.images and other.images and base.images != other.images:
        raise ConfigError(f"{base.name} and {other.name} judged different images; give the same --images for both")
    attacks = [run.report.robustness.attacks if run.report.robustness else "" for run in (base, other)]
    if attacks[0] != attacks[1]:
        raise ConfigError(
            f"{base.name} and {other.name} were run with different attacks; use the "
            "same --limit, --seed and families of attacks (a judge that "
            "sees no images, such as a baseline, skips image attacks: name the other families)"
        )
    before, after = base.values(value), other.values(value)
    num_before, num_after = (len(run.rows) + len(run.ties) for run in (base, other))
    if before.keys() != after.keys() or {row.row for row in base.ties} != {row.row for row in other.ties}:
        raise ConfigError(f"{base.name} judged {num_before:,} rows and {other.name} {num_after:,}; use the same --limit")
    gaps, clusters = [after[row.row] - before[row.row] for row in base.rows], [row.cluster for row in base.rows]
    return Difference(
        difference=sum(gaps) / len(gaps),
        interval=difference_interval(gaps, clusters),
        p_value=sign_flip_p(gaps, clusters),
        better=sum(gap > 0 for gap in gaps),
        worse=sum(gap < 0 for gap in gaps),
    )


def figures_against(base: Run, other: Run) -> FigureDifferences:
    """Return the differences other - base of the figures beside accuracy, of runs that :func:`against` compares."""
    whole_prompts = bool(base.report.scores.all_right and other.report.scores.all_right)
    return figure_differences([*base.rows, *base.ties], [*other.rows, *other.ties], whole_prompts=whole_prompts)


P_AND_INTERVAL = (
    "p is of sign flips, the interval of Student's t (CR2): close to 5 % one may exclude 0 and the other not; decide by p."
)


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


SIGNIFICANT = 0.05  # the level of the test that ranks are by


@dataclass(frozen=True)
class PairDifference:
    """The accuracy of run number ``other`` less that of run number ``base`` (-1..1), with its 95 % interval; ``p_holm`` is
    ``p_value`` adjusted for all pairs of runs."""

    base: int
    other: int
    difference: float
    interval: Interval
    p_value: float
    p_holm: float

    @property
    def better(self) -> int | None:
        """Return the number of the run that is better by the test at level 0.05, None if neither is."""
        if self.p_holm >= SIGNIFICANT:
            return None
        return self.other if self.difference > 0 else self.base


@lru_cache(maxsize=1)  # tables and ranks of one command need the same ones
def pair_differences(runs: tuple[Run, ...]) -> list[PairDifference]:
    """Return the differences of all pairs of the runs that did not fail. Raise ConfigError as :func:`against`."""
    whole = [n for n, run in enumerate(runs) if not run.report.failure]
    changes = {(n, m): against(runs[n], runs[m]) for n, m in combinations(whole, 2)}
    adjusted = holm([change.p_value for change in changes.values()])
    return [
        PairDifference(n, m, change.difference, change.interval, change.p_value, p_holm)
        for ((n, m), change), p_holm in zip(changes.items(), adjusted, strict=True)
    ]


def rank_interval(number: int, num_ranked: int, pairs: Sequence[PairDifference]) -> tuple[int, int]:
    """Return the 95 % interval of the rank of run ``number`` among ``num_ranked`` (1 is best): from one more than are better by
    the tests, to all but those that are worse (Mogstad, Romano, Shaikh and Wilhelm, doi:10.1093/restud/rdad006)."""
    decided = [pair for pair in pairs if number in (pair.base, pair.other) and pair.better is not None]
    num_worse = sum(pair.better == number for pair in decided)
    return 1 + len(decided) - num_worse, num_ranked - num_worse


@dataclass(frozen=True)
class AgainstFirst:
    """A run's accuracy less the first run's; ``p_holm`` is the p-value adjusted for all pairs of runs; ``figures`` are the
    differences of the other figures, ``groups`` those of accuracy within each group, of attacks within each family."""

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
    ``against_first`` is None of the first run, and where that one failed. ``rank`` as of :func:`rank_interval`, ``systems`` as
    in its report."""

    run: str
    judge: str
    failure: str
    accuracy: float | None
    interval: Interval | None
    invalid_rate: float | None
    swap_consistency: float | None
    position_bias: float | None
    rank: tuple[int, int] | None
    findings: tuple[str, ...]
    against_first: AgainstFirst | None
    systems: SystemScores | None = None


@dataclass(frozen=True)
class Comparison:
    """Runs of one benchmark in the order they were named. Accuracies, rates and differences are in 0..1, intervals 95 %, over
    prompts. ``pairs``: the differences of all pairs of ``runs``, by their numbers from 0. ``different_protocols``: a sentence
    for each run that was asked otherwise than the first."""

    benchmark: str
    num_pairs: int
    runs: tuple[ComparedRun, ...]
    pairs: tuple[PairDifference, ...]
    different_protocols: tuple[str, ...]


def compare_runs(runs: Sequence[Run], different_protocols: Sequence[str] = ()) -> Comparison:
    """Return the comparison of runs with the first of them, and of all pairs. Raise ConfigError as :func:`against`."""
    base = runs[0]
    changes = {n: against(base, run) for n, run in enumerate(runs[1:], start=1)}  # refuses other rows, failed or not
    pairs, num_ranked = pair_differences(tuple(runs)), sum(not run.report.failure for run in runs)
    adjusted = {pair.other: pair.p_holm for pair in pairs if pair.base == 0}
    return Comparison(
        benchmark=base.report.benchmark,
        num_pairs=base.report.scores.num_pairs,
        runs=tuple(
            _compared(
                run,
                rank_interval(n, num_ranked, pairs),
                _against_first(changes[n], adjusted[n], base, run) if n in adjusted else None,
            )
            for n, run in enumerate(runs)
        ),
        pairs=tuple(pairs),
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


def _compared(run: Run, rank: tuple[int, int], change: AgainstFirst | None) -> ComparedRun:
    report, scores = run.report, run.report.scores
    if report.failure:
        return ComparedRun(run.name, report.judge, report.failure, None, None, None, None, None, None, (), change)
    return ComparedRun(
        run=run.name,
        judge=report.judge,
        failure=report.failure,
        accuracy=scores.accuracy.micro,
        interval=scores.interval,
        invalid_rate=scores.invalid_rate,
        swap_consistency=scores.swap_consistency,
        position_bias=scores.position_bias,
        rank=rank,
        findings=report.findings,
        against_first=change,
        systems=report.systems,
    )


def differences_by_group(base: Run, other: Run) -> dict[str, DifferenceEstimate]:
    """Return by group the difference other - base of accuracy, of runs that :func:`against` compares."""
    after = _scores(other)
    return {group: _difference(rows, after) for group, rows in _by_group(base).items()}


def _by_group(run: Run) -> dict[str, list[RowScore]]:
    groups: dict[str, list[RowScore]] = {}
    for row in run.rows:
        groups.setdefault(row.group, []).append(row)
    return groups


def _scores(run: Run) -> dict[int, float]:
    return {row.row: row.score for row in run.rows}


def _difference(before: Sequence[RowScore], after: Mapping[int, float]) -> DifferenceEstimate:
    gaps = [after[row.row] - row.score for row in before]
    return DifferenceEstimate(sum(gaps) / len(gaps), difference_interval(gaps, [row.cluster for row in before]))


PROTOCOL = ("orders", "votes", "stop_error", *SAMPLING_KEYS)


SAMPLING = SAMPLING_KEYS  # that a replay of texts, or a served judge, does not name


def protocol_differences(old: Run, new: Run, *, unknown_differs: bool = True) -> list[str]:
    """Return a phrase for each part of the protocol that differs, as "votes (1 and 3)"; another template is another judge.

    ``unknown_differs`` False: sampling that one of the two does not name is no difference.
    """
    values = {name: (getattr(old.report, name), getattr(new.report, name)) for name in PROTOCOL}
    return [
        f"{name.replace('_', ' ')} ({before} and {after})"
        for name, (before, after) in values.items()
        if before != after and (unknown_differs or name not in SAMPLING or None not in (before, after))
    ]


def check_protocols(old: Run, new: Run) -> None:
    """Raise ConfigError where the two were not asked alike; another template is another judge, and no difference here."""
    if differ := protocol_differences(old, new):
        raise ConfigError(
            f"{old.name} and {new.name} have different protocols: they differ in "
            f"{', '.join(differ)}; run both with the same settings"
        )


def protocol_sentences(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each run that was asked otherwise than the first; baselines, which nothing is asked of, are not."""
    sentences = []
    for run in runs[1:]:
        judges = (runs[0].report.judge, run.report.judge)
        differ = protocol_differences(runs[0], run, unknown_differs=False)
        if differ and not any(judge.startswith("baseline:") for judge in judges):
            sentences.append(f"{run.name} used another protocol than {runs[0].name}: they differ in {', '.join(differ)}")
    return sentences


FAULTS = ("flipped", "invalid", "split")  # kinds of pairs of which fewer is better
INVALID_RATE, THREE_WAY = "invalid_rate", "three_way"
_FORM = re.compile(r"([^\[\]]+)(?:\[(.+)\])?")


@dataclass(frozen=True)
class GateFigure:
    """What two runs are compared by: accuracy, that in three classes, the share of answers without a verdict, or that of pairs
    of a kind; ``group`` is "" for all pairs."""

    name: str
    group: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}[{self.group}]" if self.group else self.name

    def value(self, row: RowScore) -> float:
        """Return what a row adds to the figure; more is better."""
        if self.name == "accuracy":
            return score_of(row)
        if self.name == THREE_WAY:
            return row.three_way
        return -row.invalid if self.name == INVALID_RATE else -float(self.name in row.kinds)


@dataclass(frozen=True)
class GateVerdict:
    """Whether the new run passes by one figure, and a sentence that says why."""

    passes: bool
    sentence: str


def parse_figure(text: str) -> GateFigure:
    """Return the figure that a text names: ``accuracy``, ``flipped[GROUP]``. Raise ConfigError with the nearest known one."""
    parts, known = _FORM.fullmatch(text.strip()), ("accuracy", THREE_WAY, INVALID_RATE, *FAULTS)
    if parts is None or parts[1] not in known:
        near = get_close_matches(parts[1] if parts else text, known, n=1)
        hint = (
            f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(known)}, or one of a group: accuracy[GROUP]"
        )
        raise ConfigError(f"--figure {text}: unknown metric; {hint}")
    return GateFigure(parts[1], parts[2] or "")


def faults_of(run: Run) -> list[str]:
    """Return one sentence for everything that makes a run no evidence: votes that failed, no verdict at all, false sums."""
    statuses, scores = run.report.scores.statuses, run.report.scores
    failed = sum(statuses.get(status.value, 0) for status in (VerdictStatus.ERROR, VerdictStatus.TIMEOUT))
    sentences = []
    if failed:
        sentences.append(f"{failed:,} of {scores.num_votes_total:,} votes failed; the same `bench run` retries them")
    if run.report.failure:
        sentences.append(f"the run failed: {run.report.failure}")
    if scores.pairs_without_valid_vote == scores.num_pairs:
        sentences.append("not one pair has a readable verdict")
    return [f"{run.name}: {sentence}" for sentence in [*sentences, *problems(run.report, run.rows, run.ties)]]


def _of_figure(run: Run, figure: GateFigure) -> Run:
    if figure.name == THREE_WAY and not run.ties:
        raise ConfigError(f"--figure {figure.text}: {run.name} has no ties; expected accuracy")
    every = [*run.rows, *run.ties] if figure.name == THREE_WAY else run.rows
    rows = [row for row in every if not figure.group or row.group == figure.group]
    if not rows:
        groups = sorted({row.group for row in every})
        near = get_close_matches(figure.group, groups, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(groups)}"
        raise ConfigError(f"--figure {figure.text}: {run.name} has no group {figure.group!r}; {hint}")
    return replace(run, rows=rows)


def gate_runs(old: Run, new: Run, figure: GateFigure, *, margin: float = 0.0, proves: bool = False) -> GateVerdict:
    """Return whether ``new`` passes beside ``old`` by a figure, from the paired 95 % interval of their difference.

    It fails where it is worse by more than ``margin`` (a share) beyond noise: the whole interval lies below ``-margin``.
    ``proves`` turns the burden round (non-inferiority): it passes only where the whole interval lies above ``-margin``.
    Raise ConfigError if the runs are not of the same benchmark, data, rows and protocol.
    """
    change = against(_of_figure(old, figure), _of_figure(new, figure), figure.value)
    check_protocols(old, new)
    low, high = change.interval
    passes = low >= -margin if proves else high >= -margin
    return GateVerdict(passes, _sentence(figure, change, margin, passes=passes, proves=proves))


def _sentence(figure: GateFigure, change: Difference, margin: float, *, passes: bool, proves: bool) -> str:
    sign = 1 if figure.name in ("accuracy", THREE_WAY) else -1
    low, high = sorted(100 * sign * bound for bound in change.interval)
    change_text = (
        f"{figure.text}: {100 * sign * change.difference:+.1f} points [{low:+.1f}, {high:+.1f}], p {p_text(change.p_value)}"
    )
    by = f"worse by more than {100 * margin:g} points" if margin else "worse"
    if proves:
        return f"{change_text}: {'shown not to be' if passes else 'not shown not to be'} {by}"
    if not passes:
        return f"{change_text}: {by}, beyond noise"
    least = change.interval[0]
    if least > 0:
        return f"{change_text}: better, beyond noise"
    return f"{change_text}: not {by} beyond noise; a loss of up to {max(0.0, -100 * least):.1f} points is not ruled out"
