"""A gate between two runs of the same pairs: is the new one worse than the old one beyond noise?"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from difflib import get_close_matches

from rewardlab.benchmarks.arithmetic import problems
from rewardlab.benchmarks.comparison import Difference, Run, against, p_text, score_of
from rewardlab.benchmarks.official import check_protocols
from rewardlab.benchmarks.report_model import RowScore
from rewardlab.errors import ConfigError
from rewardlab.types import VerdictStatus

FAULTS = ("flipped", "invalid", "split")  # kinds of pairs of which fewer is better
INVALID_RATE = "invalid_rate"
_FORM = re.compile(r"([^\[\]]+)(?:\[(.+)\])?")


@dataclass(frozen=True)
class GateFigure:
    """What two runs are compared by: accuracy, the share of answers without a verdict, or that of pairs of a kind; ``group`` is
    "" for all pairs."""

    name: str
    group: str = ""

    @property
    def text(self) -> str:
        return f"{self.name}[{self.group}]" if self.group else self.name

    def value(self, row: RowScore) -> float:
        """Return what a row adds to the figure; more is better."""
        if self.name == "accuracy":
            return score_of(row)
        return -row.invalid if self.name == INVALID_RATE else -float(self.name in row.kinds)


@dataclass(frozen=True)
class GateVerdict:
    """Whether the new run passes by one figure, and a sentence that says why."""

    passes: bool
    sentence: str


def parse_figure(text: str) -> GateFigure:
    """Return the figure that a text names: ``accuracy``, ``flipped[GROUP]``. Raise ConfigError with the nearest known one."""
    parts, known = _FORM.fullmatch(text.strip()), ("accuracy", INVALID_RATE, *FAULTS)
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
    return [f"{run.name}: {sentence}" for sentence in [*sentences, *problems(run.report, run.rows)]]


def _of_figure(run: Run, figure: GateFigure) -> Run:
    rows = [row for row in run.rows if not figure.group or row.group == figure.group]
    if not rows:
        groups = sorted({row.group for row in run.rows})
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
    sign = 1 if figure.name == "accuracy" else -1
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
