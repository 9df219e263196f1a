"""A leaderboard for a terminal, as wide as that is, and as CSV for a program."""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Sequence

from rewardlab.benchmarks.comparison import (
    BY_FAMILY,
    FAULTS,
    NOTES,
    OTHER_FIGURES,
    FigureDifferences,
    Run,
    against,
    failures_of,
    family_table,
    figures_against,
    figures_table,
    leaderboard,
    leaderboard_title,
    short_names,
)
from rewardlab.metrics.multiplicity import holm

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
    """Return the lines of a table whose columns stand under each other, the first of them wrapped to what the others leave."""
    sizes = [max(len(cells[n]) for cells in (columns, *rows)) for n in range(len(columns))]
    rest = width - sum(sizes[1:]) - len(GAP) * (len(columns) - 1)
    sizes[0] = min(sizes[0], max(LEAST_NAME, min(MOST_NAME, rest)))
    lines = []
    for cells in (columns, *rows):
        name, *more = textwrap.wrap(cells[0], sizes[0]) or [""]
        others = [cell.rjust(size) for cell, size in zip(cells[1:], sizes[1:], strict=True)]
        lines.append(GAP.join([name.ljust(sizes[0]), *others]).rstrip())
        lines += more
        if cells is columns:
            lines.append("─" * (sum(sizes) + len(GAP) * (len(sizes) - 1)))
    return lines


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
    table = aligned_table(columns, rows, width)
    if max(map(len, table)) > width:
        table = listed_rows(columns, rows, width)
    return [*textwrap.wrap(f"{OTHER_FIGURES}, {columns[0]}:", width), *table, ""] if rows else []


def _families(runs: Sequence[Run], width: int) -> list[str]:
    """The paired differences by family of attacks, and an empty line; nothing of runs that are under none."""
    columns, rows = family_table(runs)
    if not rows:
        return []
    table = aligned_table(columns, rows, width)
    return [f"{BY_FAMILY}:", *(table if max(map(len, table)) <= width else listed_rows(columns, rows, width)), ""]


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
