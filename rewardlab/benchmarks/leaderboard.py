"""Finished runs as tables, pages and figures: a leaderboard of some, a list of all in a folder, files for a paper."""

from __future__ import annotations

import csv
import io
import math
import os
import re
import textwrap
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from rewardlab.benchmarks.base import REPORT, SCORES
from rewardlab.benchmarks.comparison import (
    P_AND_INTERVAL,
    FigureDifferences,
    Run,
    _by_group,
    _difference,
    _scores,
    against,
    figures_against,
    p_text,
    pair_differences,
    rank_interval,
    read_run,
    short_names,
)
from rewardlab.benchmarks.figures import leaderboard_figure, report_figures
from rewardlab.benchmarks.findings import key_phrase
from rewardlab.benchmarks.report import SYSTEMS, macro_text, win_rate_rows
from rewardlab.benchmarks.report_model import Report, RowScore, has_majorities, judge_name
from rewardlab.benchmarks.requirements import report_numbers
from rewardlab.data.attacks.families import Kind
from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError, DataError
from rewardlab.metrics.intervals import DifferenceEstimate, Interval
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import SUFFIXES, save_figure
from rewardlab.reporting.tables import markdown_table, percent, signed, with_interval

THREE_CLASSES = "three classes"
# Columns of the paired differences beside accuracy, by the field of FigureDifferences.
DIFFERENCES = {
    "macro": "macro",
    "swap_consistency": "swap consistency",
    "all_right": "Acc+",
    "three_way": THREE_CLASSES,
}


def figures_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per run but the first): what each has more of the figures beside accuracy. No rows
    of runs that failed; a figure that no run has is no column. Runs are in the order that they were named in."""
    base, names = runs[0], short_names([run.name for run in runs])
    table = []
    for run, name in zip(runs[1:], names[1:], strict=True):
        if not (run.report.failure or base.report.failure):
            changes = figures_against(base, run)
            table.append((name, {words: _with_ends(getattr(changes, field)) for field, words in DIFFERENCES.items()}))
    columns = [column for column in DIFFERENCES.values() if any(cells[column] != "–" for _, cells in table)]
    return [f"against {names[0]}", *columns], [[name, *(cells[column] for column in columns)] for name, cells in table]


def _with_ends(change: DifferenceEstimate | None) -> str:
    return "–" if change is None else f"{signed(change.difference)} [{', '.join(map(signed, change.interval))}]"


def leaderboard(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per run): best accuracy first, the comparison being with the run named first; then
    the runs that failed, without figures, and the baselines, which any run of the same rows has. Runs are named by as much of
    their folders as tells them apart."""
    pairs, num_ranked = pair_differences(tuple(runs)), sum(not run.report.failure for run in runs)
    adjusted = {pair.other: p_text(pair.p_holm) for pair in pairs if pair.base == 0}
    ranked = ranked_places(runs)
    names = dict(zip([run.name for run in runs], short_names([run.name for run in runs]), strict=True))
    table = [
        _run_cells(runs[n], runs[0], names, adjusted.get(n, ""), "{}–{}".format(*rank_interval(n, num_ranked, pairs)))
        for n in ranked
    ]
    for name, baseline in runs[0].report.baselines.items():
        prompts = baseline.all_right
        cells = {"judge": f"baseline: {name}", "accuracy": with_interval(baseline.micro, baseline.interval)}
        cells |= {"macro": percent(baseline.macro)}
        table.append(cells | {"Acc+": with_interval(prompts.accuracy, prompts.interval) if prompts else ""})
    wanted = {
        "Acc+": any(run.report.scores.all_right for run in runs),
        THREE_CLASSES: any(run.report.ties for run in runs),
        HOLM: len(runs) > 2,
        RANK: num_ranked > 2,
        ONE_VOTE: any(has_majorities(run.report) for run in runs),
    }
    columns = [name for name in table[0] if wanted.get(name, True)]
    return columns, [[row.get(name, "") for name in columns] for row in table]


def ranked_places(runs: Sequence[Run]) -> list[int]:
    """Return the places of the runs, the best accuracy first and failed ones last."""
    return sorted(range(len(runs)), key=lambda n: math.inf if runs[n].report.failure else -runs[n].report.scores.accuracy.micro)


def pairs_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per pair of runs): the difference in accuracy, the better run first. No rows for
    fewer than three runs, where the leaderboard has them."""
    names, places = short_names([run.name for run in runs]), {n: place for place, n in enumerate(ranked_places(runs))}
    rows = []
    for pair in pair_differences(tuple(runs)) if len(runs) > 2 else []:
        better, worse = sorted((pair.base, pair.other), key=lambda n: places[n])
        low, high = pair.interval if better == pair.other else (-pair.interval[1], -pair.interval[0])
        change = _with_ends(DifferenceEstimate(abs(pair.difference), (low, high)))
        rows.append(
            (
                places[better],
                places[worse],
                [f"{names[better]} less {names[worse]}", change, *map(p_text, (pair.p_value, pair.p_holm))],
            )
        )
    return ["runs", "difference", "p", HOLM], [cells for *_, cells in sorted(rows)]


def _run_cells(run: Run, base: Run, names: Mapping[str, str], p_holm: str, rank: str) -> dict[str, str]:
    """The cells of a run by column; the differences come early, where a narrow screen shows them."""
    report, scores = run.report, run.report.scores
    failed = bool(report.failure)
    change = None if run is base else against(base, run)  # refuses other rows, failed or not
    change = None if failed or base.report.failure else change
    others = metric_cells(report)
    return {
        "judge": f"{names[run.name]} ({judge_name(report.judge)})",
        "accuracy": FAILED_RUN if failed else with_interval(scores.accuracy.micro, scores.interval),
        f"against {names[base.name]}": _with_ends(DifferenceEstimate(change.difference, change.interval)) if change else "",
        "p": p_text(change.p_value) if change else "",
        HOLM: p_holm,
        RANK: "–" if failed else rank,
        **({**dict.fromkeys(others, "–"), VOTE_PLAN: others[VOTE_PLAN]} if failed else others),
    }


def metric_cells(report: Report) -> dict[str, str]:
    """The cells beside accuracy and differences, by column: figures of the judge, but for :data:`VOTE_PLAN`."""
    scores = report.scores
    bias, blank, prompts, decided = scores.position_bias, report.controls.get("blank"), scores.all_right, scores.decision
    three_way = report.ties.three_way if report.ties else None
    until = "" if report.stop_error is None else f", until {100 * report.stop_error:g} %"
    return {
        "both orders": with_interval(decided.accuracy, decided.interval) if decided else "–",
        "Acc+": with_interval(prompts.accuracy, prompts.interval) if prompts else "–",
        THREE_CLASSES: with_interval(three_way.accuracy, three_way.interval) if three_way else "–",
        "macro": macro_text(scores),
        ONE_VOTE: with_interval(scores.one_vote.accuracy, scores.one_vote.interval),
        "text-only": "–" if blank is None else with_interval(blank.accuracy.micro, blank.interval),
        "invalid, %": _with_known(percent(scores.invalid_rate, 2), scores.invalid_interval),
        "swap consistency": _with_known(percent(scores.swap_consistency), scores.swap_interval),
        "position bias": _with_known(signed(bias), scores.position_interval),
        VOTE_PLAN: f"{report.votes} × {report.orders}{until}",
        TOKENS: "–" if scores.tokens_per_vote is None else f"{scores.tokens_per_vote:.0f}",
        FAULTS: "; ".join(map(key_phrase, report.findings)) or "–",
    }


def _with_known(number: str, interval: Interval | None) -> str:
    return number if interval is None else f"{number} [{', '.join(map(percent, interval))}]"


RANK, TOKENS = "rank", "tokens a vote"
FAILED_RUN, HOLM, VOTE_PLAN, ONE_VOTE, FAULTS = "failed", "p (Holm)", "votes", "one vote", "what is wrong"  # the last column


ALL_PAIRS = "Differences of all pairs of judges, in points"
OTHER_FIGURES = "Paired differences of the other metrics, in points"
OF_SYSTEMS = "Win rates of systems (corrected: if the labelled pairs are a random sample)"


def failures_of(runs: Sequence[Run]) -> list[str]:
    """Return a sentence for each run that failed."""
    return [f"{run.name} failed: {run.report.failure}" for run in runs if run.report.failure]


NOTES = (
    "Accuracies and differences are of the rewardlab protocol (each order a trial, decided by more than half of the votes "
    "asked; failures count as wrong), intervals 95 %, over prompts. Both orders: each pair decided once, by all its votes "
    "(one vote an order: right in both), or by their probabilities. "
    "Macro: mean over the groups. Acc+: prompts whose every pair is right in both orders. "
    "Three classes: accuracy over all pairs with tie as a class; accuracy leaves ties out. "
    "Text-only: the same judge with blank images, one greedy vote; compare it with the accuracy of one vote. "
    "p: two-sided sign-flip test over prompts; p (Holm): adjusted for all pairs of judges. Rank: 95 % interval, from one more "
    "than the judges that are better by p (Holm) to all but those that are worse. "
) + P_AND_INTERVAL


def leaderboard_title(runs: Sequence[Run]) -> str:
    """Return the benchmark, the number of judges and of pairs."""
    first = runs[0].report
    return f"{first.benchmark}: {len(runs)} judge{'s' if len(runs) > 1 else ''} on {first.scores.num_pairs:,} pairs"


def leaderboard_markdown(runs: Sequence[Run]) -> str:
    """Return the leaderboard as Markdown. Raise ConfigError if the runs are not of one benchmark and data file."""

    tables = [*markdown_table(*leaderboard(runs)), ""]
    for title, columns, rows in further_tables(runs):
        tables += [f"{title}:", "", *markdown_table(columns, rows), ""]
    commands = [f"- {run.name}: {run.report.command or '–'} (commit {run.report.commit[:12]})" for run in runs]
    failures = [f"**{sentence}**" for sentence in failures_of(runs)]
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
    visible = [n for n, column in enumerate(columns) if column not in (FAULTS, VOTE_PLAN, TOKENS)]  # these are in `plans`
    whole = [run for run in runs if not run.report.failure]
    names = short_names([run.name for run in whole])
    reports = {name: run.report for name, run in zip(names, whole, strict=True)}
    widths = (WIDE, 8.0) if whole else ()  # inches: of a phone, of a desk
    plots = [figure_uri(leaderboard_figure(reports, width=width)) for width in widths]
    facts = {
        "tables": further_tables(runs),
        "notes": NOTES,
        "plans": [(run, metric_cells(run.report)) for run in runs],
        "plots": plots,
        "failures": failures_of(runs),
    }
    return (
        page_environment("rewardlab.benchmarks")
        .get_template("leaderboard.html")
        .render(
            title=leaderboard_title(runs),
            columns=[columns[n] for n in visible],
            rows=[[row[n] for n in visible] for row in rows],
            wrong=wrong,
            **facts,
        )
    )


def systems_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (column names, a row of cells per system and run): win rates by judge, by labels and corrected, the systems in the
    order of the first run. Runs that failed have no row."""
    named = [(name, run.report.systems) for name, run in _named(runs) if run.report.systems and not run.report.failure]
    rows = [
        [system, name, *cells]
        for system in dict.fromkeys(system for _, systems in named for system in systems.win_rates)
        for name, systems in named
        if system in systems.win_rates
        for _, *cells in win_rate_rows({system: systems.win_rates[system]})
    ]
    return [SYSTEMS[0], "run", *SYSTEMS[1:]], rows


def further_tables(runs: Sequence[Run]) -> list[tuple[str, list[str], list[list[str]]]]:
    """Return (title, column names, rows) of each table below the leaderboard that has rows."""
    tables = {ALL_PAIRS: pairs_table, OTHER_FIGURES: figures_table, BY_FAMILY: family_table, OF_SYSTEMS: systems_table}
    made = [(title, *table(runs)) for title, table in tables.items()]
    return [(title, columns, rows) for title, columns, rows in made if rows]


BY_FAMILY = "Paired differences by family of attacks: right judgments, in points"


# Held-out families together, with the sign of `good_unnamed` and `wrong_unnamed` turned: more is better.
TOGETHER = {
    "": "the good answer named over a degenerate one",
    "_against_wrong": "an honest wrong one named over a degenerate one",
}


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
    *("p", "p_holm", "rank_low", "rank_high", "invalid_rate", "swap_consistency", "position_bias"),
    *(f"{figure}_difference{end}" for figure in DIFFERENCES for end in ("", "_low", "_high")),
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
    named = _named(runs)
    names = dict(zip([f"{name} ({judge_name(run.report.judge)})" for name, run in named], named, strict=True))
    short_rows = [[names[row[0]][0] if row[0] in names else row[0], *row[1:]] for row in rows]
    wrong = columns.index(LAST[-1])
    lines = [*textwrap.wrap(leaderboard_title(runs), width), ""]
    if width < LEAST_TABLE:
        places = list(range(len(columns)))
        lines += listed_rows(columns[:wrong], [row[:wrong] for row in short_rows], width)
    else:
        places = fitting_columns(columns, short_rows, width)
        lines += aligned_table([columns[n] for n in places], [[row[n] for n in places] for row in short_rows], width)
    lines.append("")
    for title, of_table, cells in further_tables(runs):
        lines += [*textwrap.wrap(f"{title}:", width), *aligned_table(of_table, cells, width), ""]
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
    pairs, num_ranked = pair_differences(tuple(runs)), sum(not run.report.failure for run in runs)
    adjusted = {pair.other: pair.p_holm for pair in pairs if pair.base == 0 and len(runs) > 2}
    text = io.StringIO()
    table = csv.writer(text, lineterminator="\n")
    table.writerow(CSV_COLUMNS)
    for n, (run, change) in enumerate(zip(runs, changes, strict=True)):
        report, scores = run.report, run.report.scores
        rank: tuple[object, ...] = ("", "") if report.failure else rank_interval(n, num_ranked, pairs)
        accuracy: tuple[object, ...] = (scores.accuracy.micro, *scores.interval)
        others: tuple[object, ...] = (scores.invalid_rate, scores.swap_consistency, scores.position_bias)
        if report.failure:
            accuracy = others = ("",) * 3
        difference: tuple[object, ...] = ("",) * 5
        if change is not None:
            difference = (change.difference, *change.interval, change.p_value, adjusted.get(n, ""))
        figures = _figure_cells(None if change is None else figures_against(runs[0], run))
        cells = (scores.num_pairs, *accuracy, *difference, *rank, *others, *figures)
        table.writerow([run.name, report.judge, report.failure, *cells])
    return text.getvalue()


def _figure_cells(figures: FigureDifferences | None) -> list[object]:
    changes = [getattr(figures, field, None) for field in DIFFERENCES]
    cells = [("",) * 3 if change is None else (change.difference, *change.interval) for change in changes]
    return [value for triple in cells for value in triple]


TABLES = (".csv", ".tex", ".md")
TABLE_COLUMNS = ("run", "benchmark", "judge", "failure", "path", "value")
_LATEX = {"\\": r"\textbackslash{}", "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "–": "--"}
_LATEX |= {letter: f"\\{letter}" for letter in "&%$#_{}"}


def write_figures(runs: Sequence[Run], out: Path, formats: Sequence[str]) -> list[Path]:
    """Write each figure of each run to ``out/RUN-FIGURE.FORMAT`` (one run: ``out/FIGURE.FORMAT``), and of several their
    accuracies side by side; returns the files. Raise ConfigError for a format other than svg, pdf and png."""
    if unknown := [name for name in formats if f".{name}" not in SUFFIXES]:
        raise ConfigError(f"unknown format {', '.join(unknown)}; expected {', '.join(suffix[1:] for suffix in SUFFIXES)}")
    out.mkdir(parents=True, exist_ok=True)
    names, written = _names(runs), list[Path]()
    prefixes = [f"{re.sub(r'[^A-Za-z0-9._]+', '-', name).strip('-')}-" for name in names]
    if len(set(prefixes)) < len(runs):
        prefixes = [f"{number}-{prefix}" for number, prefix in enumerate(prefixes, 1)]
    for run, prefix in zip(runs, prefixes if len(runs) > 1 else [""], strict=True):
        for one in report_figures(run.report):
            for suffix in formats:
                written.append(out / f"{prefix}{one.name}.{suffix}")
                save_figure(one.figure, written[-1])
    if len(runs) > 1 and len({run.report.data_sha256 for run in runs}) == 1:
        figure = leaderboard_figure({name: run.report for run, name in zip(runs, names, strict=True)})
        for suffix in formats:
            written.append(out / f"judges.{suffix}")
            save_figure(figure, written[-1])
    return written


def _names(runs: Sequence[Run]) -> list[str]:
    return short_names([run.name for run in runs])


def write_table(runs: Sequence[Run], out: Path) -> None:
    """Write the runs to a file of one of :data:`TABLES`. Raise ConfigError for another."""
    texts = {".csv": csv_text, ".tex": latex_text, ".md": markdown_text}
    if out.suffix not in texts:
        raise ConfigError(f"--out {out}: expected a file that ends in {', '.join(TABLES)}")
    out.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(out, texts[out.suffix](runs))


def csv_text(runs: Sequence[Run]) -> str:
    """Return every number of the runs' reports, one a line, with its path in ``report.json``; fractions in 0..1, to the last
    digit."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(TABLE_COLUMNS)
    for run, name in zip(runs, _names(runs), strict=True):
        report = run.report
        for path, value in report_numbers(report.to_json()):
            writer.writerow([name, report.benchmark, report.judge, report.failure, path, value])
    return text.getvalue()


def main_table(runs: Sequence[Run]) -> tuple[list[str], list[list[str]]]:
    """Return (columns, a row of cells per run) as papers have them: groups, overall, macro, and what stands beside them."""
    groups = list(dict.fromkeys(name for run in runs for name in run.report.scores.groups))
    groups = groups if len(groups) > 1 else []
    columns = ["judge", "n", *groups, "overall [95 %]", "macro", "invalid", "swap consistency", "position bias"]
    rows = []
    for run, name in zip(runs, _names(runs), strict=True):
        scores, bias = run.report.scores, run.report.scores.position_bias
        cells = [percent(scores.groups[group].accuracy) if group in scores.groups else "–" for group in groups]
        cells += [with_interval(scores.accuracy.micro, scores.interval), percent(scores.accuracy.macro)]
        cells += [percent(scores.invalid_rate), percent(scores.swap_consistency)]
        cells += [signed(bias)]
        if run.report.failure:
            cells = ["failed"] * len(cells)
        rows.append([name, f"{scores.num_pairs:,}", *cells])
    return columns, rows


def markdown_text(runs: Sequence[Run]) -> str:
    """Return :func:`main_table` as Markdown."""
    return "\n".join(markdown_table(*main_table(runs))) + "\n"


def latex_text(runs: Sequence[Run]) -> str:
    """Return :func:`main_table` as a ``tabular`` of the package booktabs, with how to read it in comments."""
    return _latex_table(*main_table(runs), LATEX_PROTOCOL, runs)


def leaderboard_latex(runs: Sequence[Run]) -> str:
    """Return the columns :data:`PAPER_COLUMNS` of :func:`leaderboard` as a ``tabular``, and those of all pairs as another."""
    columns, rows = leaderboard(runs)
    places = [n for n, column in enumerate(columns) if column in PAPER_COLUMNS or column.startswith("against ")]
    cells = [[row[n] for n in places] for row in rows]
    pair_columns, pairs = pairs_table(runs)
    text = _latex_table([columns[n] for n in places], cells, NOTES, runs)
    return text + ("\n" + _latex_table(pair_columns, pairs, f"{ALL_PAIRS}.", ()) if pairs else "")


PAPER_COLUMNS = (
    "judge",
    "accuracy",
    "both orders",
    "p",
    HOLM,
    RANK,
    "macro",
    "invalid, %",
    "swap consistency",
    "position bias",
)
LATEX_PROTOCOL = (
    "Percent; each order shown is a trial, decided by more than half of the votes asked; an undecided one is wrong."
)


def _latex_table(columns: Sequence[str], rows: Sequence[Sequence[str]], note: str, runs: Sequence[Run]) -> str:
    lines = [" & ".join(map(latex_escape, row)) + r" \\" for row in [columns, *rows]]
    comments = [
        f"% {name}: {run.report.command or '–'} (commit {run.report.commit[:12]}, {run.report.scores.num_clusters:,} prompts)"
        for run, name in zip(runs, _names(runs), strict=True)
    ]
    comments = [" ".join(comment.split()) for comment in comments]
    return "\n".join(
        [
            f"% {note}",
            *comments,
            f"\\begin{{tabular}}{{l{'r' * (len(columns) - 1)}}}",
            r"\toprule",
            lines[0],
            r"\midrule",
            *lines[1:],
            r"\bottomrule",
            r"\end{tabular}",
            "",
        ]
    )


def latex_escape(text: str) -> str:
    """Return text as LaTeX shows it: its special characters escaped."""
    return "".join(_LATEX.get(letter, letter) for letter in text)


INDEX_NAME = "index.html"
INDEX_COLUMNS = ("run", "benchmark", "judge", "accuracy", "pairs", "written", "what is wrong")


def find_runs(folder: Path) -> tuple[list[Run], list[str]]:
    """Return the runs in ``folder`` and below, by their place, and a sentence for each that cannot be read.

    Raise DataError where there is no run at all.
    """
    runs, faults = list[Run](), list[str]()
    places = sorted(path.parent for path in folder.rglob(REPORT) if (path.parent / SCORES).exists())
    for place in places:
        try:
            runs.append(read_run(place))
        except DataError as error:
            faults.append(str(error))
    if not runs:
        raise DataError(
            f"{folder}: no finished run of `rewardlab bench run` in it or below; {'; '.join(faults) or 'give another'}"
        )
    return runs, faults


def write_index(folder: Path) -> tuple[Path, list[str]]:
    """Write ``folder/index.html``; returns it and the sentences of :func:`find_runs`. Raise as that does."""
    runs, faults = find_runs(folder)
    lines = []
    for run in runs:
        place, report, scores = Path(run.name), run.report, run.report.scores
        written = datetime.fromtimestamp((place / REPORT).stat().st_mtime, UTC)
        wrong = f"FAILED: {report.failure}" if report.failure else "; ".join(map(key_phrase, report.findings)) or "–"
        cells = (
            report.benchmark,
            judge_name(report.judge),
            "failed" if report.failure else with_interval(scores.accuracy.micro, scores.interval),
            f"{report.scores.num_pairs:,}",
            f"{written:%Y-%m-%d %H:%M} UTC",
            wrong,
        )
        page = place / "report.html"
        link = os.path.relpath(page, folder) if page.exists() else ""
        lines.append((os.path.relpath(place, folder), link, cells))
    text = (
        page_environment("rewardlab.benchmarks")
        .get_template("index.html")
        .render(title=f"{len(runs)} runs in {folder.resolve().name}", columns=INDEX_COLUMNS, lines=lines, faults=faults)
    )
    write_atomic(folder / INDEX_NAME, text)
    return folder / INDEX_NAME, faults
