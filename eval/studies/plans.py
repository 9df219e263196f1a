"""Shared parts of studies of arms and seeds: a trial, the plan of all trials, and the three files of a report."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError


@dataclass(frozen=True, order=True)
class Trial:
    """One training run. Ordered by seed first, so that a study that was stopped has whole seeds."""

    seed: int
    arm: str

    @property
    def name(self) -> str:
        return f"{self.arm}-{self.seed}"


def plan(known: Collection[str], arms: Sequence[str], seeds: Sequence[int]) -> list[Trial]:
    """Return every arm with every seed, seed by seed. Raise ConfigError for an arm that is not ``known``, or an empty plan."""
    if unknown := [arm for arm in arms if arm not in known]:
        raise ConfigError(f"unknown arm {', '.join(map(repr, unknown))}; expected some of {', '.join(known)}")
    trials = [Trial(seed, arm) for seed in seeds for arm in dict.fromkeys(arms)]
    if not trials:
        raise ConfigError("a study needs at least one arm and one seed")
    return trials


def refuse_other_arms(records: Sequence[Mapping[str, Any]], arms: Mapping[str, Any]) -> None:
    """Raise ConfigError where a record was run with other changes (``"changes"``) than its arm, a dataclass, has now."""
    for record in records:
        if record["arm"] not in arms:
            raise ConfigError(f"{record['name']}: there is no arm {record['arm']}; remove its lines from the records")
        if record.get("changes") != changes_of(arms[record["arm"]]):
            raise ConfigError(
                f"{record['name']}: was run with other settings of its arm ({record.get('changes')}); remove its lines from "
                "the records and its files from the study's folder to run it again"
            )


def changes_of(arm: Any) -> dict[str, Any]:
    """Return what makes an arm, a dataclass, but for its title, as JSON reads it again."""
    return {name: value for name, value in json.loads(json.dumps(asdict(arm))).items() if name != "title"}


def write_files(
    name: str,
    summary: dict[str, Any],
    out: Path,
    *,
    markdown: Callable[[dict[str, Any]], str],
    draw: Callable[[dict[str, Any], Path], None],
) -> Path:
    """Write ``name.md``, ``.json`` and ``.png`` into ``out``; return the first."""
    out.mkdir(parents=True, exist_ok=True)
    draw(summary, out / f"{name}.png")
    write_atomic(out / f"{name}.json", json.dumps(summary, indent=1) + "\n")
    write_atomic(out / f"{name}.md", markdown(summary))
    return out / f"{name}.md"
