"""Conditions on a report: a path into ``report.json`` and a bound, such as ``accuracy.micro>=0.7`` or ``interval.low>=65%``.

Parts of a path are joined by dots; ``low`` and ``high`` are the ends of an interval, and a bias is compared by its absolute
value. What a run cannot have is refused before anything is queried. A value that is absent meets no condition.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, is_dataclass
from difflib import get_close_matches
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

from rewardlab.benchmarks.report_model import Calibration, Confidence, Report, RequirementResult, Scores
from rewardlab.benchmarks.robustness.model import Robustness
from rewardlab.data.attacks.families import Kind
from rewardlab.errors import ConfigError
from rewardlab.metrics.intervals import Interval
from rewardlab.reporting.tables import percent

_FORM = re.compile(r"\s*(.+?)\s*(>=|<=)\s*([^\s%<>=]+)\s*(%?)\s*")
ENDS = {"low": 0, "high": 1}  # of an interval
NO_FRACTIONS = ("tokens_per_vote", "seconds_per_vote", "temperature", "samples", "tokens", "usd")  # other floats are
BOTH_ORDERS_ONLY = ("decision", "swap_consistency", "swap_interval")
MOST_WITHOUT = 0.1  # of judgments
# Metrics of runs under attack that a judge without verdicts would pass, and the kinds of families that they are of.
FROM_VERDICTS = {
    "right_unseen": (Kind.UNSEEN,),
    "insertions_over_harmless": (Kind.INSERTION, Kind.HARMLESS),
    "degenerate_over_good": (Kind.DEGENERATE,),
    "degenerate_over_wrong": (Kind.DEGENERATE,),
    "turned_by_insertions": (Kind.INSERTION,),
    "turned_by_harmless": (Kind.HARMLESS,),
}


@dataclass(frozen=True)
class Requirement:
    """A bound on the number at a ``path`` of ``report.json``; ``is_fraction``: it is one, shown in percent."""

    text: str
    path: str
    is_least: bool
    bound: float
    is_fraction: bool

    @property
    def parts(self) -> list[str]:
        return self.path.split(".")


def parse_requirement(text: str) -> Requirement:
    """Return what a text such as ``interval.low>=0.7`` requires. Raise ConfigError, with the names that a report has there."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise ConfigError(
            f"{text!r}: expected PATH>=NUMBER or PATH<=NUMBER, such as 'accuracy.micro>=0.7' or 'interval.low>=0.6'"
        )
    path, sign, number, is_percent = form.groups()
    is_fraction = _number_kind(Report, path.split("."), text) is float and path.split(".")[-1] not in NO_FRACTIONS
    try:
        bound = float(number) / (100 if is_percent else 1)
    except ValueError:
        bound = math.nan
    if is_fraction and not -1 <= bound <= 1:
        raise ConfigError(f"{text!r}: expected a fraction up to 1, such as 0.7 or 70%")
    if not is_fraction and (is_percent or not 0 <= bound < math.inf):
        raise ConfigError(f"{text!r}: expected a number >= 0; this metric is not a fraction")
    return Requirement(text, path, sign == ">=", bound, is_fraction)


def _members(kind: Any) -> dict[str, Any]:
    """Return the kinds of a record's fields as ``report.json`` has them: scores and calibration stand beside the others."""
    inner = {Report: ("scores", Scores), Confidence: ("calibration", Calibration)}.get(kind)
    hints = get_type_hints(kind) | (get_type_hints(inner[1]) if inner else {})
    return {name: hint for name, hint in hints.items() if not inner or name != inner[0]}


def _number_kind(kind: Any, parts: Sequence[str], text: str) -> type:
    """Return int or float, the kind of the number that a path leads to. Raise ConfigError if a report has none there."""
    kind = next((inner for inner in get_args(kind) if inner is not NoneType), kind) if NoneType in get_args(kind) else kind
    if kind in (int, float) and not parts:
        return int if kind is int else float
    if get_origin(kind) is tuple and parts and (parts[0].isdecimal() or (kind == Interval and parts[0] in ENDS)):
        return _number_kind(get_args(kind)[0], parts[1:], text)
    if isinstance(get_origin(kind), type) and issubclass(get_origin(kind), Mapping) and parts:
        faults = []
        for size in range(1, len(parts) + 1):  # a name may have dots
            try:
                return _number_kind(get_args(kind)[1], parts[size:], text)
            except ConfigError as fault:
                faults.append(fault)
        raise faults[0]
    names = list(_members(kind)) if is_dataclass(kind) else list(ENDS) if kind == Interval else []
    if parts and parts[0] in names and is_dataclass(kind):
        return _number_kind(_members(kind)[parts[0]], parts[1:], text)
    if not names:
        raise ConfigError(f"{text!r}: the path does not lead to a number of report.json")
    if not parts:
        raise ConfigError(f"{text!r}: the path ends before a number; add one of {', '.join(names)}")
    near = get_close_matches(parts[0], names, n=3)
    raise ConfigError(f"{text!r}: report.json has no {parts[0]!r} there; {_hint(near, names)}")


def _hint(near: Sequence[str], names: Collection[str]) -> str:
    return f"did you mean {' or '.join(map(repr, near))}?" if near else f"expected one of {', '.join(sorted(names))}"


NAMED = {"groups": "group", "systems.win_rates": "system"}  # what the names below a path are of
ABSENT = {
    "ties": "this run judges no ties",
    "agreement": "needs people's ratings of these pairs; give them with --labels FILE",
    "systems": "needs pairs that name the two systems of their responses",
}


def check_possible(
    requirements: Sequence[Requirement],
    *,
    controls: Sequence[str],
    orders: str,
    names: Mapping[str, Collection[str]],
    whole_prompts: bool,
    absent: Collection[str] = (),
    measured: Collection[str] | None = None,
) -> None:
    """Raise ConfigError for a requirement that a run of these settings has no value for, before anything is queried.
    ``names``: those that the data has at a path, by the path; ``absent``: parts of the report that the data has nothing for;
    ``measured``: the metrics of held-out families that a run of NAME:attacked has; None of another run."""
    for one in requirements:
        top, *rest = one.parts
        name = rest[0] if rest else ""
        if top in absent:
            raise ConfigError(f"{one.text!r}: {ABSENT[top]}")
        for path, known in names.items():
            if one.path.startswith(f"{path}.") and not any(one.path.startswith(f"{path}.{each}.") for each in known):
                unknown = one.parts[path.count(".") + 1]
                hint = _hint(get_close_matches(unknown, known, n=1), set(known))
                raise ConfigError(f"{one.text!r}: the data has no {NAMED[path]} {unknown!r}; {hint}")
        if (top in BOTH_ORDERS_ONLY or one.path.startswith("ties.disagreement.")) and orders != "both":
            raise ConfigError(f"{one.text!r}: needs both orders of each pair; leave orders={orders} out")
        if top == "controls" and name not in controls:
            raise ConfigError(f"{one.text!r}: needs --controls {','.join([*controls, name])}")
        if top == "robustness" and measured is None:
            raise ConfigError(f"{one.text!r}: is a metric of attacked runs; require it of NAME:attacked")
        if top == "robustness" and name == "held_out" and rest[1] not in (measured or ()):
            raise ConfigError(f"{one.text!r}: none of these families is held out and of this kind; select more attacks")
        if top == "all_right" and not whole_prompts:
            raise ConfigError(f"{one.text!r}: this benchmark does not count prompts with all pairs right")


def check_report(report: Report, requirement: Requirement) -> RequirementResult:
    """Return whether a report meets a requirement. An absent value meets none, and a failed run meets nothing."""
    if report.failure:
        return RequirementResult(requirement.text, False, f"{requirement.text}: not met, for the run failed")
    values = report.to_json()
    value, required = _value(values, requirement.parts), f"the {_number(requirement.bound, requirement)} required"
    if report.robustness and (why := _without_verdicts(report.robustness, requirement.parts)):
        return RequirementResult(
            requirement.text, False, f"{requirement.path} has no value in this run ({why}), for {required}"
        )
    if not isinstance(value, int | float) or isinstance(value, bool) or math.isnan(value):
        near = get_close_matches(requirement.path, [path for path, _ in report_numbers(values)], n=3)
        others = f"; near it: {', '.join(near)}" if near else ""
        return RequirementResult(
            requirement.text, False, f"{requirement.path} has no value in this run, for {required}{others}"
        )
    if requirement.path.removesuffix(".difference").endswith("_bias"):
        # A bound on the signed value would let pass what leans the other way.
        value = abs(value)
    rounding = 1e-9  # of sums: a macro average of 0.7 may be 0.69999999999999996
    is_least, bound = requirement.is_least, requirement.bound
    is_met = value >= bound - rounding if is_least else value <= bound + rounding
    verb = ("reaches" if is_least else "stays within") if is_met else ("is below" if is_least else "is above")
    return RequirementResult(
        requirement.text, is_met, f"{requirement.path} is {_number(value, requirement)}: it {verb} {required}"
    )


def _value(node: Any, parts: Sequence[str]) -> Any:
    """Return what stands at a path of a JSON value; None if nothing does."""
    if not parts:
        return node
    if isinstance(node, Mapping):
        for size in range(len(parts), 0, -1):
            if (name := ".".join(parts[:size])) in node:
                return _value(node[name], parts[size:])
    if isinstance(node, list):
        place = ENDS.get(parts[0], int(parts[0]) if parts[0].isdecimal() else len(node))
        return _value(node[place], parts[1:]) if place < len(node) else None
    return None


def report_numbers(values: Any, before: str = "") -> Iterator[tuple[str, float]]:
    """Yield (path, number) of every number in the values of a ``report.json``, those of intervals as ``.low`` and ``.high``."""
    if isinstance(values, Mapping):
        inner = list(values.items())
    elif isinstance(values, list):
        is_interval = len(values) == len(ENDS) and all(isinstance(value, float) for value in values)
        inner = list(zip(ENDS if is_interval else map(str, range(len(values))), values, strict=True))
    else:
        if isinstance(values, int | float) and not isinstance(values, bool):
            yield before, values
        return
    for name, value in inner:
        yield from report_numbers(value, f"{before}.{name}" if before else name)


def _without_verdicts(robustness: Robustness, parts: Sequence[str]) -> str:
    """Return why a metric that counts no missing verdict has no value: too many judgments have none; "" otherwise."""
    held_out = parts[:2] == ["robustness", "held_out"]
    of_kinds = held_out or parts[:2] == ["robustness", "in_training"]
    families = [
        family
        for name, family in robustness.families.items()
        if (of_kinds and family.kind in FROM_VERDICTS.get(parts[2], ()) and family.in_training != held_out)
        or (parts[:3] == ["robustness", "families", name] and parts[3] in ("named", "turned"))
    ]
    judgments = sum(family.named.n for family in families)
    if sum(family.invalid_rate * family.named.n for family in families) <= MOST_WITHOUT * judgments:
        return ""
    return f"more than {percent(MOST_WITHOUT, 0)} % of its judgments have no verdict"


def _number(value: float, requirement: Requirement) -> str:
    return f"{100 * value:.2f} %" if requirement.is_fraction else f"{value:,.6g}"
