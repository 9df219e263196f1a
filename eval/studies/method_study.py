"""The method study from its plan to its report: rates first, on validation pairs, then the table."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from eval.studies.method_plan import plan_text
from eval.studies.method_report import write_report
from eval.studies.method_summary import summarize
from eval.studies.method_trials import MethodContext
from eval.studies.methods import ARMS, MethodTrial, check_arms, choose_rates, study_plan, validation_plan
from eval.studies.runner import keep, open_study, read_records, run_rest
from rewardlab.errors import ConfigError, RewardlabError


def refuse_other_recipes(context: MethodContext, records: Sequence[Mapping[str, Any]]) -> None:
    """Raise ConfigError, naming what differs, where a record is of another recipe than the arm has now."""
    for record in records:
        if record["arm"] not in ARMS:
            raise ConfigError(f"{record['name']}: there is no arm {record['arm']}; remove its lines from the records")
        trial = MethodTrial(record["arm"], record["learning_rate"], record["seed"])
        facts = context.facts(trial)
        ours, theirs = _flat(facts), _flat({name: record.get(name) for name in facts})
        if ours != theirs:
            names = sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))
            shown = ", ".join(f"{name} ({theirs.get(name)} there, {ours.get(name)} here)" for name in names)
            raise ConfigError(
                f"trial {record['name']} was run with another recipe: {shown}. Remove the arm's lines from the records and its "
                "files from the study's folder to run it again"
            )


def _flat(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return the config's keys beside the other facts."""
    return {**facts["config"], **{name: value for name, value in facts.items() if name != "config"}}


def run_study(
    opener: Callable[[], MethodContext],
    out: Path,
    records: Path,
    arms: Sequence[str],
    *,
    num_seeds: int,
    workers: int,
    end: float = math.inf,
    show: Callable[[str], None] = lambda text: None,
) -> Path:
    """Run what is not done, beginning no trial after ``end`` (of :func:`time.monotonic`), and return the path of the report.

    Raise ConfigError for an unknown arm, and where ``out`` or ``records`` hold another study; RewardlabError where a trial
    failed, after all others.
    """
    check_arms(arms)
    context = opener()
    start = open_study(context, out, records)
    refuse_other_recipes(context, read_records(out))
    settings = context.settings
    keep(records, out)
    show(plan_text(arms, read_records(out), start, settings, num_seeds=num_seeds, workers=workers))
    options: dict[str, Any] = {"workers": workers, "records": records, "end": end}
    failures: list[str] = []

    def attempt(trials: Sequence[MethodTrial]) -> None:
        try:
            run_rest(opener, start, trials, out, **options)
        except RewardlabError as error:  # of some trials: the arms that they are not of go on
            failures.append(str(error))

    try:
        attempt(validation_plan(arms, settings))
        attempt(study_plan(choose_rates(read_records(out), arms, settings.rates), num_seeds))
    finally:
        report = records.with_suffix(".md")
        if finished := read_records(out):
            write_report(summarize(finished, start, workers), report)
    show(plan_text(arms, read_records(out), start, settings, num_seeds=num_seeds, workers=workers))
    if failures:
        raise RewardlabError("; ".join(failures))
    return report
