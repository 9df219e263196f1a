"""What a run of the loop keeps in its folder: its plan and its rounds, whose paths hold wherever the folder is moved to."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.errors import ConfigError, DataError
from rewardlab.reporting.progress import log_line
from rewardlab.training.harden_plan import HardenPlan
from rewardlab.training.run.folder import CONFIG

PLAN, RECORD = "plan.json", "round.json"
# More rounds may be added, a stage that fails may be given other keys (it guards its own folder), and other cards may go on.
FREE = ("rounds", "policy_keys", "sft_keys", "judge_keys", "launcher")
HERE = "./"  # before what starts at the folder of the run: no id of a hub begins so
ADAPTER = "adapter_config.json"  # names the model below an adapter


@dataclass
class Round:
    """What came of a round; shares are in 0..1. ``accepted``: its new judge serves from now on, None where none was trained.

    ``before`` counts the answers to held-out questions of the policy that the round began with (``policy.json`` of `rewardlab
    data negatives`), those of the round that it was chosen in included; ``checkpoints`` those of the round's checkpoints, the
    last one last. The next round begins with ``next_policy``, whose answers are ``best``. Models are absolute paths or hub ids.
    """

    number: int
    judge: str
    policy: str
    before: dict[str, Any] = field(default_factory=dict)
    checkpoints: dict[str, dict[str, Any]] = field(default_factory=dict)
    best: dict[str, Any] = field(default_factory=dict)
    next_policy: str = ""
    negatives: int = 0
    accepted: bool | None = None
    accuracy_before: float | None = None
    accuracy_after: float | None = None
    difference: tuple[float, float] | None = None
    policy_means: dict[str, float] = field(default_factory=dict)
    next_judge: str = ""


def stored(record: Mapping[str, Any], out: Path) -> dict[str, Any]:
    """Return a plan or a round as its file has it: a path within ``out`` is ``./PATH``, from there on."""

    def start_at_out(value: Any) -> Any:
        is_within = isinstance(value, str) and Path(value).is_absolute() and Path(value).is_relative_to(out)
        return f"{HERE}{Path(value).relative_to(out)}" if is_within else value

    return {name: start_at_out(value) for name, value in record.items()}


def read_record(path: Path) -> dict[str, Any]:
    """Return what the loop or a stage has written. Raise DataError where it is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict):
        raise DataError(f"{path}: damaged; restore it, or delete it: what is finished beside it is not done again")
    return record


def write_round(result: Round, out: Path) -> None:
    """Write the record of a round, which is finished then."""
    path = out / f"round_{result.number}" / RECORD
    write_atomic(path, json.dumps(stored(asdict(result), out), indent=1) + "\n")


def read_round(out: Path, number: int) -> Round | None:
    """Return a finished round, with the paths that its models have now; None for one that is not finished."""
    path = out / f"round_{number}" / RECORD
    if not path.exists():
        return None
    record = read_record(path)
    within = {name: str(out / value) for name, value in record.items() if isinstance(value, str) and value.startswith(HERE)}
    return Round(**{**record, **within})


def keep_plan(plan: HardenPlan, out: Path) -> None:
    """Write the plan of a run whose paths are absolute, or compare it with the one that ``out`` was begun with; follow a folder
    that was moved meanwhile. Raise ConfigError where the settings are others."""
    path = out / PLAN
    settings = {name: value for name, value in stored(asdict(plan), out).items() if name not in FREE}
    before = read_record(path) if path.exists() else settings
    if changed := ", ".join(name for name in settings if settings[name] != before.get(name)):
        raise ConfigError(f"{out}: was begun with other settings ({changed}); choose another --out, or give the same ones")
    place = before.get("out")
    if place and place != str(out):
        log_line(f"{out}: was {place} before")
        _follow_move(out, place)
    if place != str(out):
        write_atomic(path, json.dumps({"out": str(out), **settings}, indent=1) + "\n")


def _follow_move(out: Path, before: str) -> None:
    """Have what stages have written name the place where ``out`` is now. An interrupted stage goes on only with the names that
    it began with, in its config or in the first line of its log, and an adapter is read by that of the model below it."""
    names = "|".join(re.escape(_quoted(before, ensure_ascii=ascii)) for ascii in (True, False))
    known = re.compile(rf"(?<![\w./-])(?:{names})(?=/)")  # in prob:FOLDER, too; but not in the middle of another path
    for path in out.rglob("*"):
        is_log = path.suffix == ".jsonl"
        if not (is_log or path.name in (CONFIG, ADAPTER)):
            continue
        with path.open(encoding="utf-8", newline="\n") as file:
            head = file.readline() if is_log else file.read()
            moved = known.sub(lambda _: _quoted(str(out)), head)
            if moved != head:
                write_atomic(path, moved + file.read())


def _quoted(path: str, *, ensure_ascii: bool = True) -> str:
    """Return a path as JSON has it within quotes."""
    return json.dumps(path, ensure_ascii=ensure_ascii)[1:-1]
