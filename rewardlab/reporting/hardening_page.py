"""The rounds of a judge that is hardened against its policy, on one page: score beside truth, and each round's numbers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rewardlab.metrics.intervals import wilson_interval
from rewardlab.reporting.pages import page_environment
from rewardlab.reporting.plots import Limit
from rewardlab.reporting.run_page import Record, breakable, ends_of, metric_figure

SHOWN = {
    "reward": "what the policy is paid",
    "answers/right": "right answers",
    "answers/overpaid": "paid more than right",
    "answers/novelty": "word pairs that no answer of the set has",
    "answers/new_winners": "answers with a new word pair that are paid well",
    "answers/repetition": "repeated word triples",
    "judge/canaries": "the judge's accuracy on labelled pairs",
    "judge/spread": "how far several judges are apart",
    "judge/order_agreement": "both orders name one answer",
    "judge/blank_gap": "what a blank picture changes",
}


COLUMNS = (
    "round",
    "right at its start, %",
    "right at its end, %",
    "mean reward",
    "next round begins at, %",
    "negatives",
    "old judge, %",
    "new judge, %",
    "difference, points",
    "new one taken",
)


def hardening_page(
    name: str,
    plan: Record,
    rounds: Sequence[Record],
    metrics: Sequence[Record],
    *,
    ends: Sequence[int],
    limits: Mapping[str, Sequence[Limit]],
) -> str:
    """Return one self-contained HTML page. ``metrics`` are those of the policy over all rounds, steps counted on; ``ends`` the
    last step of each round, ``limits`` of metrics those of each round."""
    values = {key: [(row["step"], row[key]) for row in metrics if row.get(key) is not None] for key in SHOWN}
    figures = (
        metric_figure(key, values[key], ends_of(metrics), words, limits.get(key, ()), ends[:-1]) for key, words in SHOWN.items()
    )
    drawn = [figure for figure in figures if figure is not None]
    template = page_environment().get_template("hardening_page.html")
    starts = [plan["policy"], *(row["next_policy"] for row in rounds)]
    rows = [_cells(row, start) for row, start in zip(rounds, starts, strict=False)]
    more = {"metrics": drawn, "limits": limits, "breakable": breakable}
    return template.render(name=name, plan=plan, rounds=rounds, columns=COLUMNS, rows=rows, **more)


def _cells(row: Record, start: str) -> list[str]:
    """Return the cells of a round that began with the policy ``start``."""
    last, difference = row["checkpoints"]["final"], row["difference"]
    judges = [f"{100 * value:.1f}" if value is not None else "–" for value in (row["accuracy_before"], row["accuracy_after"])]
    return [
        str(row["number"]),
        _right(row["before"]),
        _right(last),
        f"{last['reward']:.3f}" if last["reward"] is not None else "–",
        _right(row["best"]) + (" (the start's)" if row["next_policy"] == start else ""),
        f"{row['negatives']:,}",
        *judges,
        f"{100 * difference[0]:+.1f} to {100 * difference[1]:+.1f}" if difference else "–",
        {None: "none was trained", True: "yes", False: "no, it is worse"}[row["accepted"]],
    ]


def _right(counts: Record) -> str:
    """Return the share of answers that are known to be right, in percent with its interval, and how many are not known."""
    if not (total := counts["questions"]):
        return "–"
    low, high = wilson_interval(counts["right"], total)
    unknown = f", {counts['unknown']:,} not known" if counts["unknown"] else ""
    return f"{100 * counts['right'] / total:.1f} [{100 * low:.1f}, {100 * high:.1f}]{unknown}"
