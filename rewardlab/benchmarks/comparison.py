"""Several runs side by side: a leaderboard with intervals, and each run against the first, pair by pair."""

from __future__ import annotations

import csv
import io
import json
import math
import textwrap
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rewardlab.benchmarks.base import REPORT, SCORES, VOTES
from rewardlab.benchmarks.findings import key_phrase
from rewardlab.benchmarks.report import macro_text
from rewardlab.benchmarks.report_model import SCORE_ANEW, Report, RowScore, has_majorities
from rewardlab.data.attacks.families import Kind
from rewardlab.data.files import read_lines
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.accuracy import LEAST_BOTH
from rewardlab.metrics.intervals import DifferenceEstimate, Interval, difference_interval, macro_interval, sign_flip_p
from rewardlab.metrics.multiplicity import holm
from rewardlab.reporting.tables import markdown_table, percent, signed, with_interval


@dataclass(frozen=True)
class FigureDifferences:
    """What one run has more than another (-1..1), with 95 % intervals over prompts: of the ``macro`` average over groups, of
    ``swap_consistency``, and of ``all_right``, the share of prompts whose every pair is right in both orders (Acc+). One is
    None where a run has no such figure."""

    macro: DifferenceEstimate
    swap_consistency: DifferenceEstimate | None
    all_right: DifferenceEstimate | None


def figure_differences(before: Sequence[RowScore], after: Sequence[RowScore], *, whole_prompts: bool) -> FigureDifferences:
    """Return the differences after - before of two scorings of the same rows. ``whole_prompts``: prompts whose every pair is
    right are counted. Raise KeyError where ``after`` lacks a row."""
    others = {row.row: row for row in after}
    pairs = [(row, others[row.row]) for row in before]
    return FigureDifferences(_macro(pairs), _swap(pairs), _all_right(pairs) if whole_prompts else None)


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


@dataclass(frozen=True)
class Run:
    """A finished run: its report, and the score of each row. ``images``: the hash of the images that the judge saw; "" where
    that cannot be compared, of a judge that does not look, and of videos, whose frames differ from judge to judge."""

    name: str
    report: Report
    rows: Sequence[RowScore]
    images: str = ""

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
    pair_id, preferred, alike = row["pair_id"], row["preferred"], row["alike"]
    if not isinstance(pair_id, str) or preferred not in (0, 1) or alike not in (True, False, None):
        raise ValueError(f"a line of {SCORES} has a wrong type of pair_id, preferred or alike: {line:.120}")
    place = (row["row"], row["group"], row["cluster"])
    return RowScore(*place, row["score"], row["invalid"], tuple(kinds), pair_id, preferred, alike)


def _twice(rows: Sequence[RowScore]) -> int | None:
    """The first row that is there twice, None without one."""
    seen = set[int]()
    return next((row.row for row in rows if row.row in seen or seen.add(row.row)), None)  # type: ignore[func-returns-value]


def read_run(folder: Path) -> Run:
    """Return the finished run in ``folder``. Raise DataError if there is none."""
    try:
        values = json.loads((folder / REPORT).read_text(encoding="utf-8"))
        rows = [_row_score(line) for line in read_lines(folder / SCORES)]
        if not rows:
            raise ValueError(f"its {SCORES} is empty; run the same command again")
        if (double := _twice(rows)) is not None:
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
    return Run(str(folder), report, rows, _seen_images(folder, report))


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
            "same --limit, --seed and --attacks (a judge that "
            "sees no images, such as a baseline, skips image attacks: name the other families)"
        )
    before, after = base.values(value), other.values(value)
    if before.keys() != after.keys():
        raise ConfigError(f"{base.name} judged {len(before):,} rows and {other.name} {len(after):,}; use the same --limit")
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
    return figure_differences(base.rows, other.rows, whole_prompts=whole_prompts)


def figures_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per run but the first): what each has more of the figures beside accuracy. No rows
    of runs that failed; a figure that no run has is no column. Runs are in the order that they were named in."""
    base, names = runs[0], short_names([run.name for run in runs])
    table = []
    for run, name in zip(runs[1:], names[1:], strict=True):
        if not (run.report.failure or base.report.failure):
            changes = figures_against(base, run)
            cells = {"macro": changes.macro, "swap consistency": changes.swap_consistency, "Acc+": changes.all_right}
            table.append((name, {column: _with_ends(change) for column, change in cells.items()}))
    columns = [column for column in ("macro", "swap consistency", "Acc+") if any(cells[column] != "–" for _, cells in table)]
    return [f"against {names[0]}", *columns], [[name, *(cells[column] for column in columns)] for name, cells in table]


def _with_ends(change: DifferenceEstimate | None) -> str:
    return "–" if change is None else f"{signed(change.difference)} [{', '.join(map(signed, change.interval))}]"


def leaderboard(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per run): best accuracy first, the comparison being with the run named first; then
    the runs that failed, without figures, and the baselines, which any run of the same rows has. Runs are named by as much of
    their folders as tells them apart."""
    ranked = sorted(runs, key=lambda run: math.inf if run.report.failure else -run.report.scores.accuracy.micro)
    names = dict(zip([run.name for run in runs], short_names([run.name for run in runs]), strict=True))
    table = [_run_cells(run, runs[0], names) for run in ranked]
    if len(runs) > 2:
        table = _with_holm(table, ranked, runs[0])
    for name, baseline in runs[0].report.baselines.items():
        prompts = baseline.all_right
        cells = {"judge": f"baseline: {name}", "accuracy": with_interval(baseline.micro, baseline.interval)}
        cells |= {"macro": percent(baseline.macro)}
        table.append(cells | {"Acc+": with_interval(prompts.accuracy, prompts.interval) if prompts else ""})
    wanted = {
        "Acc+": any(run.report.scores.all_right for run in runs),
        ONE_VOTE: any(has_majorities(run.report) for run in runs),
    }
    columns = [name for name in table[0] if wanted.get(name, True)]
    return columns, [[row.get(name, "") for name in columns] for row in table]


def _with_holm(table: Sequence[dict[str, str]], ranked: Sequence[Run], base: Run) -> list[dict[str, str]]:
    """Put p-values adjusted for the number of comparisons beside the single ones."""
    places = [place for place, cells in enumerate(table) if cells["p"]]
    adjusted = dict(zip(places, holm([against(base, ranked[place]).p_value for place in places]), strict=True))
    rows = []
    for place, cells in enumerate(table):
        holms = p_text(adjusted[place]) if place in adjusted else ""
        rows.append(
            {key: value for name, cell in cells.items() for key, value in ((name, cell), (HOLM, holms))[: 1 + (name == "p")]}
        )
    return rows


def _run_cells(run: Run, base: Run, names: Mapping[str, str]) -> dict[str, str]:
    """The cells of a run by column; the differences come early, where a narrow screen shows them."""
    report, scores = run.report, run.report.scores
    failed = bool(report.failure)
    change = None if run is base else against(base, run)  # refuses other rows, failed or not
    change = None if failed or base.report.failure else change
    others = _other_cells(report)
    return {
        "judge": f"{names[run.name]} ({report.judge})",
        "accuracy": FAILED_RUN if failed else with_interval(scores.accuracy.micro, scores.interval),
        f"against {names[base.name]}": _with_ends(DifferenceEstimate(change.difference, change.interval)) if change else "",
        "p": p_text(change.p_value) if change else "",
        **({**dict.fromkeys(others, "–"), VOTE_PLAN: others[VOTE_PLAN]} if failed else others),
    }


def _other_cells(report: Report) -> dict[str, str]:
    """The cells beside accuracy and differences, by column: figures of the judge, but for :data:`VOTE_PLAN`."""
    scores = report.scores
    bias, blank, prompts, decided = scores.position_bias, report.controls.get("blank"), scores.all_right, scores.decision
    until = "" if report.stop_error is None else f", until {100 * report.stop_error:g} %"
    return {
        "both orders": with_interval(decided.accuracy, decided.interval) if decided else "–",
        "Acc+": with_interval(prompts.accuracy, prompts.interval) if prompts else "–",
        "macro": macro_text(scores),
        ONE_VOTE: with_interval(scores.one_vote.accuracy, scores.one_vote.interval),
        "text-only": "–" if blank is None else with_interval(blank.accuracy.micro, blank.interval),
        "invalid, %": f"{100 * scores.invalid_rate:.2f}",
        "swap consistency": percent(scores.swap_consistency),
        "position bias": signed(bias),
        VOTE_PLAN: f"{report.votes} × {report.orders}{until}",
        "tokens a vote": "–" if scores.tokens_per_vote is None else f"{scores.tokens_per_vote:.0f}",
        FAULTS: "; ".join(map(key_phrase, report.findings)) or "–",
    }


FAILED_RUN, HOLM, VOTE_PLAN, ONE_VOTE, FAULTS = "failed", "p (Holm)", "votes", "one vote", "what is wrong"  # the last column
OTHER_FIGURES = "Paired differences of the other metrics, in points"


def failures_of(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each run that failed."""
    return [f"{run.name} failed: {run.report.failure}" for run in runs if run.report.failure]


def p_text(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


NOTES = (
    "Accuracies and differences are of the rewardlab protocol (each order a trial, decided by more than half of the votes "
    "asked; failures count as wrong), intervals 95 %, over prompts. Both orders: each pair decided once, by all its votes, or "
    "by their probabilities. "
    "Macro: mean over the groups. Acc+: prompts whose every pair is right in both orders. "
    "Text-only: the same judge with blank images, one greedy vote; compare it with the accuracy of one vote. "
    "p: two-sided sign-flip test over prompts; p (Holm): adjusted for the number of judges compared with the first."
)


def leaderboard_title(runs: Sequence[Run]) -> str:
    """Return the benchmark, the number of judges and of pairs."""
    first = runs[0].report
    return f"{first.benchmark}: {len(runs)} judge{'s' if len(runs) > 1 else ''} on {first.scores.num_pairs:,} pairs"


def leaderboard_markdown(runs: Sequence[Run]) -> str:
    """Return the leaderboard as Markdown. Raise ConfigError if the runs are not of one benchmark and data file."""

    columns, rows = leaderboard(runs)
    figures, changes = figures_table(runs)
    family_columns, families = family_table(runs)
    others = [f"{OTHER_FIGURES}:", "", *markdown_table(figures, changes), ""] if changes else []
    by_family = [f"{BY_FAMILY}:", "", *markdown_table(family_columns, families), ""] if families else []
    commands = [f"- {run.name}: {run.report.command or '–'} (commit {run.report.commit[:12]})" for run in runs]
    failures = [f"**{sentence}**" for sentence in failures_of(runs)]
    tables = [*markdown_table(columns, rows), "", *others, *by_family]
    return "\n".join([f"# {leaderboard_title(runs)}", "", *tables, *failures, NOTES, "", *commands]) + "\n"


def _with_stacked_p(columns: Sequence[str], rows: Sequence[Sequence[str]]) -> tuple[list[str], list[list[str]]]:
    """Put both p-values of a comparison into one column: a page is not wide enough for more."""
    if HOLM not in columns:
        return list(columns), [list(row) for row in rows]
    place = columns.index(HOLM)
    stacked = [
        [*row[: place - 1], f"{row[place - 1]} [{row[place]}]" if row[place] else row[place - 1], *row[place + 1 :]]
        for row in rows
    ]
    return [*columns[: place - 1], f"p [{HOLM.removeprefix('p ').strip('()')}]", *columns[place + 1 :]], stacked


def leaderboard_html(runs: Sequence[Run]) -> str:
    """Return the leaderboard as one self-contained page, with the intervals drawn. Raise as :func:`leaderboard_markdown`."""
    from rewardlab.benchmarks.figures import leaderboard_figure
    from rewardlab.reporting.pages import page_environment
    from rewardlab.reporting.plots import WIDE, figure_uri

    columns, rows = _with_stacked_p(*leaderboard(runs))
    # Sentences stand below the table: a screen is not wide enough for a column of them beside the figures.
    faults = columns.index(FAULTS)
    wrong = [(row[0], row[faults]) for row in rows if row[faults] not in ("", "–")]
    whole = [run for run in runs if not run.report.failure]
    names = short_names([run.name for run in whole])
    reports = {name: run.report for name, run in zip(names, whole, strict=True)}
    widths = (WIDE, 8.0) if whole else ()  # inches: of a phone, of a desk
    plots = [figure_uri(leaderboard_figure(reports, width=width)) for width in widths]
    figures, changes = figures_table(runs)
    family_columns, families = family_table(runs)
    facts = {
        "by_family": BY_FAMILY,
        "family_columns": family_columns,
        "families": families,
        "notes": NOTES,
        "runs": runs,
        "figures": figures,
        "changes": changes,
        "of_figures": OTHER_FIGURES,
        "plots": plots,
        "failures": failures_of(runs),
    }
    return (
        page_environment("rewardlab.benchmarks")
        .get_template("leaderboard.html")
        .render(
            title=leaderboard_title(runs), columns=columns[:faults], rows=[row[:faults] for row in rows], wrong=wrong, **facts
        )
    )


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


BY_FAMILY = "Paired differences by family of attacks: right judgments, in points"
# Held-out families together, with the sign of `good_unnamed` and `wrong_unnamed` turned: more is better.
TOGETHER = {
    "": "the good answer named over a degenerate one",
    "_against_wrong": "an honest wrong one named over a degenerate one",
}


def differences_by_group(base: Run, other: Run) -> dict[str, DifferenceEstimate]:
    """Return by group the difference other - base of accuracy, of runs that :func:`comparison.against` compares."""
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


def family_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per family) of runs under attack: the first run's share of right judgments, and what
    each other run has more; the held-out families of degenerate answers together come first. No rows of other runs, and none
    where one failed."""
    base, robustness = runs[0], runs[0].report.robustness
    if robustness is None or len(runs) < 2 or any(run.report.failure for run in runs):
        return [], []
    names, groups = short_names([run.name for run in runs]), _by_group(base)
    families = {name: family for name, family in robustness.families.items() if name in groups}
    sets: dict[str, list[RowScore]] = {}
    for ending, words in TOGETHER.items():
        held_out = [name for name, each in families.items() if each.kind == Kind.DEGENERATE and not each.in_training]
        rows = [row for name in held_out if name.endswith("_against_wrong") == bool(ending) for row in groups[name]]
        sets |= {f"held out: {words}": rows} if rows else {}
    sets |= {name.replace("_", " "): groups[name] for name in families}
    others = [_scores(run) for run in runs[1:]]
    cells = [[words, _share(rows), *(_cell(rows, after) for after in others)] for words, rows in sets.items()]
    return ["family", names[0], *(f"{name} less {names[0]}" for name in names[1:])], cells


def _share(rows: Sequence[RowScore]) -> str:
    return percent(sum(row.score for row in rows) / len(rows))


def _cell(before: Sequence[RowScore], after: Mapping[int, float]) -> str:
    change = _difference(before, after)
    return f"{signed(change.difference)} [{', '.join(map(signed, change.interval))}]"


LEAST_NAME, MOST_NAME = 14, 40  # letters of the column of names
GAP, AGAINST = "  ", "against the first"
LEAST_TABLE = 72  # letters of a line from which a table is readable; on narrower ones each row is a list of its cells
LAST = ("macro", FAULTS)  # columns that a terminal shows last: the one can be had elsewhere, the other is sentences
CSV_COLUMNS = (
    *("run", "judge", "failure", "pairs", "accuracy", "low", "high", "difference", "difference_low", "difference_high"),
    *("p", "p_holm", "invalid_rate", "swap_consistency", "position_bias"),
    *(f"{figure}_difference{end}" for figure in ("macro", "swap_consistency", "all_right") for end in ("", "_low", "_high")),
)


def fitting_columns(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[int]:
    """Return the places of the columns that fit into ``width`` letters beside the first, which needs :data:`LEAST_NAME`.

    As many as can be had in their order, those of :data:`LAST` last. Two are always there.
    """
    wanted = sorted(range(1, len(columns)), key=lambda n: columns[n] in LAST)
    left, places = width - LEAST_NAME, [0]
    for n in wanted:
        need = max(len(cells[n]) for cells in (columns, *rows)) + len(GAP)
        if columns[n] == LAST[-1] or (need > left and len(places) > 1):
            continue
        places.append(n)
        left -= need
    return sorted(places)


def aligned_table(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return the lines of a table whose first column is wrapped to the width that the others leave; lists of cells if these
    leave too little."""
    first, *others = [max(len(cells[n]) for cells in (columns, *rows)) for n in range(len(columns))]
    if min(first, LEAST_NAME) + sum(others) + len(GAP) * len(others) > width:
        return listed_rows(columns, rows, width)
    table = Table(box=box.SIMPLE_HEAD, show_edge=False, pad_edge=False, padding=(0, len(GAP) - 1, 0, 0))
    table.add_column(columns[0], min_width=min(first, LEAST_NAME), max_width=MOST_NAME, overflow="fold")
    for column in columns[1:]:
        table.add_column(column, no_wrap=True, justify="right")
    for row in rows:
        table.add_row(*map(escape, row))
    console = Console(width=width, file=io.StringIO(), color_system=None, emoji=False, highlight=False)
    console.print(table)
    return [line.rstrip() for line in console.file.getvalue().splitlines()]  # type: ignore[attr-defined]


def listed_rows(columns: Sequence[str], rows: Sequence[Sequence[str]], width: int) -> list[str]:
    """Return lines of at most ``width`` letters: each row's name, and below it a line for each of its cells."""
    lines = list[str]()
    for name, *cells in rows:
        lines += textwrap.wrap(name, width)
        for column, cell in zip(columns[1:], cells, strict=True):
            lines += textwrap.wrap(f"{column}: {cell}", width, initial_indent="  ", subsequent_indent="    ") if cell else []
    return lines


def leaderboard_text(runs: Sequence[Run], width: int) -> str:
    """Return the leaderboard in lines of at most ``width`` letters (40 and more). Names are as short as tells the runs apart,
    columns that do not fit are named; below :data:`LEAST_TABLE` letters rows are lists. Raise ConfigError if the runs are not
    of one benchmark and data file."""
    columns, rows = leaderboard(runs)
    columns = [AGAINST if column.startswith("against ") else column for column in columns]
    names = dict(zip([f"{name} ({run.report.judge})" for name, run in _named(runs)], _named(runs), strict=True))
    short_rows = [[names[row[0]][0] if row[0] in names else row[0], *row[1:]] for row in rows]
    wrong = columns.index(LAST[-1])
    lines = [*textwrap.wrap(leaderboard_title(runs), width), ""]
    if width < LEAST_TABLE:
        places = list(range(len(columns)))
        lines += listed_rows(columns[:wrong], [row[:wrong] for row in short_rows], width)
    else:
        places = fitting_columns(columns, short_rows, width)
        lines += aligned_table([columns[n] for n in places], [[row[n] for n in places] for row in short_rows], width)
    lines += ["", *_other_figures(runs, width), *_families(runs, width)]
    for row, short in zip(rows, short_rows, strict=True):
        if row[0] in names:
            first = ", the first" if names[row[0]][1] is runs[0] else ""
            faults = "" if row[wrong] in ("", "–") else f" What is wrong: {row[wrong]}."
            lines += _wrapped(f"{short[0]}: {names[row[0]][1].report.judge}, {names[row[0]][1].name}{first}.{faults}", width)
    if missing := [column for n, column in enumerate(columns) if n not in places and n != wrong]:
        lines += _wrapped(f"Not shown for want of width: {', '.join(missing)}; --out leaderboard.md has all.", width)
    for sentence in failures_of(runs):
        lines += _wrapped(sentence, width)
    return "\n".join([*lines, "", *textwrap.wrap(NOTES, width)]) + "\n"


def _other_figures(runs: Sequence[Run], width: int) -> list[str]:
    """The paired differences of the figures beside accuracy, and an empty line; nothing where no runs are compared."""
    columns, rows = figures_table(runs)
    title = textwrap.wrap(f"{OTHER_FIGURES}, {columns[0]}:", width)
    return [*title, *aligned_table(columns, rows, width), ""] if rows else []


def _families(runs: Sequence[Run], width: int) -> list[str]:
    """The paired differences by family of attacks, and an empty line; nothing of runs that are under none."""
    columns, rows = family_table(runs)
    return [f"{BY_FAMILY}:", *aligned_table(columns, rows, width), ""] if rows else []


def _named(runs: Sequence[Run]) -> list[tuple[str, Run]]:
    return list(zip(short_names([run.name for run in runs]), runs, strict=True))


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, initial_indent="- ", subsequent_indent="  ")


def leaderboard_csv(runs: Sequence[Run]) -> str:
    """Return a line for each run, the first named first, in numbers: shares in 0..1, an empty cell where there is none, as of
    every figure of a run that failed."""
    changes = [
        None if run is runs[0] or run.report.failure or runs[0].report.failure else against(runs[0], run) for run in runs
    ]
    p_values = [change.p_value for change in changes if change is not None]
    adjusted = iter(holm(p_values) if len(runs) > 2 else [])
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for run, change in zip(runs, changes, strict=True):
        report, scores = run.report, run.report.scores
        accuracy: tuple[object, ...] = (scores.accuracy.micro, *scores.interval)
        others: tuple[object, ...] = (scores.invalid_rate, scores.swap_consistency, scores.position_bias)
        if report.failure:
            accuracy = others = ("",) * 3
        difference: tuple[object, ...] = ("",) * 5
        if change is not None:
            difference = (change.difference, *change.interval, change.p_value, next(adjusted, ""))
        figures = _figure_cells(None if change is None else figures_against(runs[0], run))
        table.writerow([run.name, report.judge, report.failure, scores.num_pairs, *accuracy, *difference, *others, *figures])
    return text.getvalue()


def _figure_cells(figures: FigureDifferences | None) -> list[object]:
    changes = () if figures is None else (figures.macro, figures.swap_consistency, figures.all_right)
    cells = [("",) * 3 if change is None else (change.difference, *change.interval) for change in changes or (None,) * 3]
    return [value for triple in cells for value in triple]
