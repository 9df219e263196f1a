"""The stability study to read: tables in Markdown, one plot, and the summary as JSON. Numbers; what they mean is left open."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("Agg")
from matplotlib import pyplot as plt

from eval.studies.plans import write_files
from eval.studies.stability import ARMS, COLLAPSE
from eval.studies.summary import BASES

NAME = "stability"
COLOURS = ("#7fa7c9", "#1f4e79", "#c0504d", "#7f6084", "#4f8f4f")


def _percent(value: float | None, digits: int = 1) -> str:
    return "–" if value is None else f"{100 * value:.{digits}f}"


def _with(value: float | None, interval: list[float] | None) -> str:
    if interval is None:
        return _percent(value)
    return f"{_percent(value)} [{_percent(interval[0])}, {_percent(interval[1])}]"


def _points(difference: dict[str, Any]) -> str:
    if difference["interval"] is None:
        return f"{100 * difference['difference']:+.1f}"
    low, high = difference["interval"]
    return f"{100 * difference['difference']:+.1f} [{100 * low:+.1f}, {100 * high:+.1f}]"


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    return ["| " + " | ".join(head) + " |", "|" + "---|" * len(head), *("| " + " | ".join(row) + " |" for row in rows)]


def _outcome(arm: str, cell: dict[str, Any]) -> list[str]:
    low, high = cell["collapse_interval"]
    note = f", {cell['non_finite']} non-finite" if cell["non_finite"] else ""
    return [
        ARMS[arm].title,
        f"{cell['collapsed']} of {cell['num_seeds']} [{_percent(low, 0)}, {_percent(high, 0)}]{note}",
        _with(cell["accuracy"], cell["accuracy_interval"]),
        _with(cell["invalid"], cell["invalid_interval"]),
        " ".join(_percent(value, 0) for value in cell["right_of_rollouts"]),
    ]


def _mechanics(arm: str, cell: dict[str, Any]) -> list[str]:
    norm, treated = cell["grad_norm"], ARMS[arm].method.get("outliers", "delete")
    treated = {"raw_mean_filter": "delete", "grpo": ""}.get(arm, treated)
    return [
        ARMS[arm].title,
        "–" if norm is None else f"{norm['median']:.2f} / {norm['p99']:.2f} / {norm['max']:.3g}",
        _percent(cell["preclip_frac"], 3),
        _percent(cell["clip_frac"]),
        {"delete": "deleted", "clip": "clipped", "keep": "kept", "": "–"}[treated],
        _percent(cell["first_outlier_frac_negative"]),
        f"{_percent(cell['outlier_frac_negative'])} / {_percent(cell['outlier_frac_positive'])}",
        "–" if cell["last_entropy"] is None else f"{cell['last_entropy']:.3f}",
    ]


def _comparison(arm: str, difference: dict[str, Any]) -> list[str]:
    return [
        ARMS[arm].title,
        _points(difference),
        f"{difference['only_this_collapsed']} / {difference['only_the_other_collapsed']}",
        f"{difference['identical']} of {difference['num_seeds']}",
    ]


def _overview(summary: dict[str, Any]) -> list[str]:
    """Final accuracy, and how many seeds collapsed where any did: an arm a row, a rate a column."""
    rates = [f"{rate:g}" for rate in summary["learning_rates"]]
    rows = []
    for arm, cells in summary["cells"].items():
        row_cells = [cells.get(rate) for rate in rates]
        rows.append([ARMS[arm].title, *(_short(cell) if cell else "–" for cell in row_cells)])
    return _table(["final accuracy; collapsed", *(f"rate {rate}" for rate in rates)], rows)


def _short(cell: dict[str, Any]) -> str:
    fell = f"; {cell['collapsed']} of {cell['num_seeds']}" if cell["collapsed"] else ""
    return _with(cell["accuracy"], cell["accuracy_interval"]) + fell


def _facts(summary: dict[str, Any]) -> list[str]:
    settings, start, right = summary["identity"]["settings"], summary["start"], summary["right_at_start"]
    steps = settings["rollout_batch_size"] // settings["batch_size"] * settings["iterations"]
    pairs, minutes = settings["num_test"], summary["minutes"]
    return [
        f"commit {', '.join(summary['commits'])}; judge {summary['identity']['judge']}; seeds "
        f"{', '.join(map(str, summary['seeds']))}; {summary['num_trials']} trials.",
        f"Start: the quickstart's judge after RL; {_percent(start['accuracy'])} % of {start['num_votes']:,} sampled answers on "
        f"{pairs} held-out pairs in both orders are right, {_percent(start['invalid'])} % have no verdict (counted as wrong).",
        f"A trial: {settings['rollout_batches']} batches of {settings['rollout_batch_size']} rollouts, {steps} optimizer steps "
        f"of {settings['batch_size']} on each; {_percent(right['mean'])} % of the rollouts of the first batch are right "
        f"({_percent(right['lowest'])} to {_percent(right['highest'])} over trials).",
        f"Collapse: a final accuracy more than {100 * COLLAPSE:.0f} points below the start, or weights or probabilities that "
        "are no numbers (then no answer can be read: 0 right, all invalid).",
        f"Final accuracy: {2 * pairs * settings['num_votes']} sampled answers, the same pairs for every trial.",
        "Intervals are 95 %: Student's t over seeds for accuracies, invalid shares and paired differences (they tell of the "
        "randomness of training on these held-out pairs, not of other pairs), Wilson's for collapse. They are not corrected "
        "for their number: of twenty paired differences that are nothing, one shows an interval without 0.",
        f"Time: {minutes['by_cpu_seconds']} minutes by CPU seconds on {summary['num_workers']} cores, "
        f"{minutes['by_the_clock']} by the clock.",
    ]


def markdown(summary: dict[str, Any]) -> str:
    """The whole study in tables; percent unless named otherwise."""
    lines = ["# Does StableReinforce still matter when the actor sees?", ""]
    lines += [f"- {fact}" for fact in _facts(summary)] + ["", *_overview(summary)]
    lines += ["", f"![Accuracy and collapse by arm and rate]({NAME}.png)"]
    for rate in (f"{rate:g}" for rate in summary["learning_rates"]):
        cells = {arm: rates[rate] for arm, rates in summary["cells"].items() if rate in rates}
        lines += ["", f"## Learning rate {rate}", ""]
        lines += _table(
            ["arm", "collapsed", "final accuracy", "invalid", "right of rollouts, by batch"],
            [_outcome(arm, cell) for arm, cell in cells.items()],
        )
        head = ["arm", "gradient norm: median / 99th / max", "tokens pre-clipped", "tokens PPO-clipped", "outliers are"]
        head += ["outliers < 0, first batch", "all batches: < 0 / > 0", "last entropy"]
        lines += ["", *_table(head, [_mechanics(arm, cell) for arm, cell in cells.items()])]
        for base in BASES:
            comparisons = {arm: r[rate] for arm, r in summary.get(f"against_{base}", {}).items() if rate in r and arm != base}
            rows = [_comparison(arm, pair) for arm, pair in comparisons.items() if pair["num_seeds"]]
            head = [f"against {ARMS[base].title}, by seed", "final accuracy, points"]
            head += ["collapsed: only this / only the other", "the same run, loss by loss"]
            lines += ["", *_table(head, rows)] if rows else []
    return "\n".join(lines) + "\n"


def draw(summary: dict[str, Any], path: Path) -> None:
    """Final accuracy with its interval, and the share of collapsed seeds, by arm and learning rate."""
    arms, rates = list(summary["cells"]), [f"{rate:g}" for rate in summary["learning_rates"]]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 0.55 * len(arms) + 1.6), sharey=True, width_ratios=(3, 2))
    for n, rate in enumerate(rates):
        shift, colour = 0.22 * (n - (len(rates) - 1) / 2), COLOURS[n % len(COLOURS)]
        for place, arm in enumerate(arms):
            cell = summary["cells"][arm].get(rate)
            if cell is None:
                continue
            low, high = cell["accuracy_interval"] or (cell["accuracy"],) * 2
            left.plot([100 * low, 100 * high], [place + shift] * 2, color=colour, lw=2)
            left.plot(100 * cell["accuracy"], place + shift, "o", color=colour, ms=5)
            right.barh(place + shift, 100 * cell["collapse_rate"], 0.2, color=colour)
        left.plot([], [], "o-", color=colour, label=f"rate {rate}")
    start = 100 * summary["start"]["accuracy"]
    left.axvline(start, color="#888", ls="--", lw=1, label="start")
    left.axvline(start - 100 * COLLAPSE, color="#888", ls=":", lw=1, label="below: collapsed")
    left.set(yticks=range(len(arms)), yticklabels=[ARMS[arm].title for arm in arms], xlim=(0, 100))
    left.set_xlabel("final accuracy, % (95 % interval over seeds)")
    right.set(xlabel="seeds collapsed, %", xlim=(0, 100))
    left.invert_yaxis()
    left.legend(frameon=False, fontsize=8, loc="lower left")
    figure.savefig(path, dpi=110, bbox_inches="tight")
    plt.close(figure)


def write_report(summary: dict[str, Any], out: Path) -> Path:
    """Write the three files of the report to ``out``; return the first."""
    return write_files(NAME, summary, out, markdown=markdown, draw=draw)
