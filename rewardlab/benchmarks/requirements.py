"""What the figures of a run must be: ``accuracy>=0.7``, checked before anything is asked and met or not when all is scored.

A requirement is ``FIGURE>=NUMBER`` or ``FIGURE<=NUMBER``. FIGURE is one of :data:`FIGURES`; of a group it is
``accuracy[GROUP]``, and ``.low`` or ``.high`` behind it is the bound of its 95 % interval instead of the estimate. NUMBER is a
share (``0.7``, or ``70%``), or a plain number where the figure is no share.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

from rewardlab.benchmarks.report_model import CountedEstimate, JudgeScores, Report, RequirementResult
from rewardlab.benchmarks.robustness.model import JudgmentShare, Robustness
from rewardlab.data.attacks.families import Kind
from rewardlab.errors import ConfigError
from rewardlab.metrics.intervals import AccuracyEstimate, DifferenceEstimate, Interval
from rewardlab.reporting.tables import percent

_FORM = re.compile(r"\s*([^\s\[\]<>=.]+)(?:\[(.+)\])?(?:\.([^\s\[\]<>=.]+))?\s*(>=|<=)\s*([^\s%]+)\s*(%?)\s*")


@dataclass(frozen=True)
class Reading:
    """The value of a figure in a report; None where the run has none, for ``why``, where more than that can be said.
    ``interval`` where the report has one."""

    value: float | None
    interval: Interval | None = None
    why: str = ""


@dataclass(frozen=True)
class Figure:
    """A figure that can be required: what it is in words, how it is read, and of what kind it is."""

    words: str
    read: Callable[[Report], Reading]
    has_interval: bool = False
    is_share: bool = True


def _estimate(cell: AccuracyEstimate | CountedEstimate | None) -> Reading:
    return Reading(None) if cell is None else Reading(cell.accuracy, cell.interval)


def _size(bias: float | None, interval: Interval | None = None) -> Reading:
    """A bias by its size: a bound on its signed value would let pass whatever leans the other way. An interval that holds 0
    begins there."""
    if bias is None or interval is None:
        return Reading(None if bias is None else abs(bias))
    low, high = interval
    least = 0.0 if low <= 0 <= high else min(abs(low), abs(high))
    return Reading(abs(bias), (least, max(abs(low), abs(high))))


def _control(name: str) -> Callable[[Report], Reading]:
    def read(report: Report) -> Reading:
        control: JudgeScores | None = report.controls.get(name)
        return Reading(None) if control is None else Reading(control.accuracy.micro, control.interval)

    return read


MOST_WITHOUT = 0.1  # of judgments
# Figures that a judge without verdicts would pass, and the kinds of families that they are of.
FROM_VERDICTS = {"right_unseen": (Kind.UNSEEN,), "insertions_over_harmless": (Kind.INSERTION, Kind.HARMLESS)}


def _without_verdict(robustness: Robustness, kinds: Collection[str]) -> float:
    """Return the share of judgments without a verdict in the held-out families of these kinds; 0 where there are none."""
    families = [each for each in robustness.families.values() if each.kind in kinds and not each.in_training]
    judgments = sum(family.named.n for family in families)
    return sum(family.invalid_rate * family.named.n for family in families) / max(1, judgments)


def _attacked(name: str) -> Callable[[Report], Reading]:
    def read(report: Report) -> Reading:
        cell: JudgmentShare | DifferenceEstimate | None = (
            getattr(report.robustness.held_out, name) if report.robustness else None
        )
        if (
            name in FROM_VERDICTS
            and report.robustness
            and _without_verdict(report.robustness, FROM_VERDICTS[name]) > MOST_WITHOUT
        ):
            return Reading(None, why=f"more than {percent(MOST_WITHOUT, 0)} % of its judgments have no verdict")
        if isinstance(cell, DifferenceEstimate):
            return Reading(cell.difference, cell.interval)
        return Reading(None) if cell is None else Reading(cell.share, cell.interval)

    return read


# In them a judgment without a verdict counts against the judge, but for those of FROM_VERDICTS.
ROBUSTNESS_FIGURES = {
    "good_unnamed": "judgments that do not name the good answer over a degenerate one",
    "wrong_unnamed": "judgments that do not name an honest wrong answer over a degenerate one",
    "lost_by_insertions": "right judgments that are wrong, or none, for a text in an answer",
    "lost_by_harmless": "right judgments that are wrong, or none, for a harmless text in an answer",
    "insertions_over_harmless": "how much more often attacks cost a right judgment than harmless texts",
    "lost_by_edits": "right judgments that are wrong, or none, for a harmless edit of the picture",
    "lost_by_captions": "right judgments that are wrong, or none, for words under the picture",
    "right_unseen": "right judgments without the picture",
}
CONTROL_FIGURES = {f"{name}_accuracy": name for name in ("greedy", "blank", "other")}
FIGURES: Mapping[str, Figure] = {
    "accuracy": Figure(
        "micro average over the pairs", lambda r: Reading(r.scores.accuracy.micro, r.scores.interval), has_interval=True
    ),
    "macro_accuracy": Figure(
        "mean over the groups", lambda r: Reading(r.scores.accuracy.macro, r.scores.macro_interval), has_interval=True
    ),
    "decision": Figure("each pair decided once, by both orders", lambda r: _estimate(r.scores.decision), has_interval=True),
    "all_right": Figure("prompts whose every pair is right", lambda r: _estimate(r.scores.all_right), has_interval=True),
    "invalid_rate": Figure(
        "answers without a verdict", lambda r: Reading(r.scores.invalid_rate, r.scores.invalid_interval), has_interval=True
    ),
    "undecided_rate": Figure(
        "trials without more than half of the votes asked for a response", lambda r: Reading(r.scores.undecided_rate)
    ),
    "swap_consistency": Figure(
        "pairs of which both orders name one winner",
        lambda r: Reading(r.scores.swap_consistency, r.scores.swap_interval),
        has_interval=True,
    ),
    "position_bias": Figure(
        "share of first less one half, by its size",
        lambda r: _size(r.scores.position_bias, r.scores.position_interval),
        has_interval=True,
    ),
    "length_bias": Figure(
        "named longer less labelled longer, by its size",
        lambda r: _size(r.scores.length_bias, r.scores.length_interval),
        has_interval=True,
    ),
    **{
        figure: Figure(f"accuracy of the control {name}", _control(name), has_interval=True)
        for figure, name in CONTROL_FIGURES.items()
    },
    **{
        name: Figure(f"{words}, in families that are held out", _attacked(name), has_interval=True)
        for name, words in ROBUSTNESS_FIGURES.items()
    },
    "num_pairs": Figure("pairs judged", lambda r: Reading(r.scores.num_pairs), is_share=False),
    "tokens_per_vote": Figure("mean length of an answer", lambda r: Reading(r.scores.tokens_per_vote), is_share=False),
}
GROUP_FIGURES = ("accuracy", "invalid_rate", "position_bias")
BOTH_ORDERS_FIGURES = ("decision", "swap_consistency")


@dataclass(frozen=True)
class Requirement:
    """A bound on a figure: ``group`` is "" for the whole run, ``side`` is "low", "high" or "" for the estimate."""

    text: str
    figure: str
    group: str
    side: str
    is_least: bool
    bound: float


def parse_requirement(text: str) -> Requirement:
    """Return what a text such as ``accuracy.low>=0.7`` requires. Raise ConfigError, with the nearest figure that is known."""
    parts = _FORM.fullmatch(text)
    if parts is None:
        raise ConfigError(
            f"{text!r}: expected METRIC>=NUMBER or METRIC<=NUMBER, such as 'accuracy>=0.7' or 'accuracy.low>=0.6'"
        )
    name, group, side, sign, number, is_percent = (part or "" for part in parts.groups())
    _check_figure(text, name, group, side)
    return Requirement(text, name, group, side, sign == ">=", _bound(text, FIGURES[name], number, bool(is_percent)))


def _check_figure(text: str, name: str, group: str, side: str) -> None:
    if name not in FIGURES:
        near = get_close_matches(name, FIGURES, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(FIGURES)}"
        raise ConfigError(f"{text!r}: unknown metric {name!r}; {hint}")
    if group and name not in GROUP_FIGURES:
        raise ConfigError(f"{text!r}: a report has no {name} of a group; expected one of {', '.join(GROUP_FIGURES)}")
    if side and side not in ("low", "high"):
        raise ConfigError(f"{text!r}: expected .low or .high, the bounds of an interval, instead of .{side}")
    if side and not FIGURES[name].has_interval:
        known = ", ".join(other for other, figure in FIGURES.items() if figure.has_interval)
        raise ConfigError(f"{text!r}: reports have no interval for {name}; expected one of {known}")
    if side and group and name == "invalid_rate":
        raise ConfigError(f"{text!r}: reports have no interval for a group's {name}; require {name}.{side}, of the whole run")


def _bound(text: str, figure: Figure, number: str, is_percent: bool) -> float:
    try:
        bound = float(number) / (100 if is_percent else 1)
    except ValueError:
        bound = math.nan
    if figure.is_share and not 0 <= bound <= 1:
        raise ConfigError(f"{text!r}: expected a fraction from 0 to 1, such as 0.7 or 70%")
    if not figure.is_share and (is_percent or not 0 <= bound < math.inf):
        raise ConfigError(f"{text!r}: expected a number >= 0; this metric is not a fraction")
    return bound


def check_possible(
    requirements: Sequence[Requirement],
    *,
    controls: Sequence[str],
    orders: str,
    groups: Sequence[str],
    whole_prompts: bool,
    measured: Collection[str] | None = None,
) -> None:
    """Raise ConfigError for a requirement that a run of these settings has no figure for, before anything is asked.
    ``measured``: the figures that a run of `rewardlab bench run NAME:attacked` has; None of another run."""
    for one in requirements:
        if one.group and one.group not in groups:
            near = get_close_matches(one.group, groups, n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"expected one of {', '.join(sorted(set(groups)))}"
            raise ConfigError(f"{one.text!r}: the data has no group {one.group!r}; {hint}")
        if one.figure in BOTH_ORDERS_FIGURES and orders != "both":
            raise ConfigError(f"{one.text!r}: needs both orders of each pair; leave out orders={orders}")
        if (control := CONTROL_FIGURES.get(one.figure)) and control not in controls:
            raise ConfigError(f"{one.text!r}: needs --controls {','.join([*controls, control])}")
        if one.figure in ROBUSTNESS_FIGURES and measured is None:
            raise ConfigError(f"{one.text!r}: is a metric of attacked runs; require it of NAME:attacked")
        if one.figure in ROBUSTNESS_FIGURES and one.figure not in (measured or ()):
            raise ConfigError(f"{one.text!r}: none of these families is held out and of this kind; leave out --attacks")
        if one.figure == "all_right" and not whole_prompts:
            raise ConfigError(f"{one.text!r}: this benchmark does not count prompts with all pairs right; require accuracy")


def read_figure(report: Report, requirement: Requirement) -> Reading:
    """Return the reading that a requirement is about; without a value where the run has none."""
    if not requirement.group:
        return FIGURES[requirement.figure].read(report)
    cell = report.scores.groups.get(requirement.group)
    if cell is None:
        return Reading(None)
    if requirement.figure == "accuracy":
        return Reading(cell.accuracy, cell.interval)
    return (
        Reading(cell.invalid_rate)
        if requirement.figure == "invalid_rate"
        else _size(cell.position_bias, cell.position_interval)
    )


def check_report(report: Report, requirement: Requirement) -> RequirementResult:
    """Return whether a report meets a requirement. A figure without a value, or that is no number, meets none; nor does one of
    a run that failed."""
    is_met, sentence = _check(report, requirement)
    if report.failure:
        is_met, sentence = False, f"{requirement.text}: not met, for the run failed"
    return RequirementResult(requirement.text, is_met, sentence)


def _check(report: Report, requirement: Requirement) -> tuple[bool, str]:
    reading, figure = read_figure(report, requirement), FIGURES[requirement.figure]
    name = f"{requirement.figure}[{requirement.group}]" if requirement.group else requirement.figure
    required = f"the {_number(requirement.bound, figure)} required"
    if reading.value is None:
        why = f" ({reading.why})" if reading.why else ""
        return False, f"{name} has no value in this run{why}, for {required}"
    if requirement.side and reading.interval is None:
        return False, f"{name} has no interval in this run, for {required}"
    value, part = reading.value, "it"
    sentence = f"{name} is {_number(value, figure)}"
    if reading.interval is not None:
        sentence += f" [{percent(reading.interval[0])}, {percent(reading.interval[1])}]"
        part = {"low": "its lower bound", "high": "its upper bound"}.get(requirement.side, "the estimate")
        value = {"low": reading.interval[0], "high": reading.interval[1]}.get(requirement.side, value)
    rounding = 1e-9  # of sums: a macro average of 0.7 may be 0.69999999999999996
    is_met = value >= requirement.bound - rounding if requirement.is_least else value <= requirement.bound + rounding
    verb = {(True, True): "reaches", (False, True): "stays within"}.get((requirement.is_least, is_met))
    return is_met, f"{sentence}: {part} {verb or ('is below' if requirement.is_least else 'is above')} {required}"


def _number(value: float, figure: Figure) -> str:
    return f"{100 * value:.2f} %" if figure.is_share else f"{value:,.6g}"
