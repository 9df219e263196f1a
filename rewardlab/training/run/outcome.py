"""Whether a run that got to its end learnt anything, as far as its logs tell; if not, why, in ``health.jsonl``."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardlab.config import HealthConfig
from rewardlab.data.files import read_complete_lines
from rewardlab.processes import is_main
from rewardlab.reporting.progress import log_line
from rewardlab.training.run.folder import HEALTH, METRICS, SAMPLES
from rewardlab.training.run.watchdog import append_event

LEAST_ROWS = 3
FINISHED = "finished"  # what was done at the event: nothing, the run was over


def why_nothing_was_learnt(rows: Sequence[Mapping[str, Any]], max_invalid: float) -> dict[str, str]:
    """Return what held in every row of a run's metrics that had it, sign -> sentence; {} where it may have learnt, and of fewer
    than :data:`LEAST_ROWS` rows: a row has the last step's gradient alone.

    ``no_reward``: every reward was 0; ``equal_rewards``: no rollout earned more than another; ``invalid``: a share of rollouts
    above ``max_invalid`` (0..1) had no verdict, beside another sign; ``no_gradient``: no step changed the weights.
    """

    def always(name: str, test: Callable[[float], bool]) -> bool:
        values = [row[name] for row in rows if isinstance(row.get(name), int | float)]
        return bool(values) and all(map(test, values))

    is_zero: Callable[[float], bool] = lambda value: value == 0  # noqa: E731
    signs = {}
    if always("reward", is_zero) and not any(row.get("reward_std") for row in rows):
        signs["no_reward"] = "every reward was 0"
    elif always("advantage/max_abs", is_zero) or (
        always("reward_std", is_zero) and len({row["reward"] for row in rows if row.get("reward") is not None}) == 1
    ):  # a critic's advantages are never all 0
        signs["equal_rewards"] = "no rollout ever earned more than another"
    others = ("advantage/max_abs", "value/grad_norm")  # while a critic alone is fitted, the policy has no gradient
    if always("grad_norm", is_zero) and not any(row.get(name) for row in rows for name in others):
        signs["no_gradient"] = "every gradient was 0, so no step changed the weights"
    if signs and always("reward/invalid_frac", lambda value: value > max_invalid):
        signs["invalid"] = f"more than {max_invalid:.0%} of the rollouts had no verdict all along"
    return signs if sum("grad_norm" in row or "reward" in row for row in rows) >= LEAST_ROWS else {}


_CURES = {
    "no_reward": f"look at {SAMPLES}: does the model write verdicts in the format of `template`, within max_completion_length?",
    "equal_rewards": "take pairs that are neither too easy nor too hard for the model, or a higher temperature",
    "invalid": f"look at {SAMPLES}: does the model write verdicts in the format of `template`, within max_completion_length?",
    "no_gradient": "check learning_rate, max_grad_norm, and that something is left to learn of every row",
}


def record_outcome(out: Path, config: HealthConfig) -> str:
    """Return why the run in ``out`` learnt nothing, in a sentence, and append it to its ``health.jsonl``; "" where it may have
    learnt."""
    rows = read_complete_lines(out / METRICS)
    signs = why_nothing_was_learnt(rows, config.max_invalid_frac)
    if not signs:
        return ""
    cures = "; ".join(dict.fromkeys(_CURES[name] for name in signs))
    message = f"nothing was learnt: {', and '.join(signs.values())}; {cures}"
    if is_main():
        append_event(out, rows[-1]["step"], list(signs), message, FINISHED)
        log_line(f"{out}: {message}")
    return message


def read_outcome(out: Path) -> str:
    """Return what :func:`record_outcome` wrote about the finished run in ``out``; "" where it wrote nothing."""
    events = read_complete_lines(out / HEALTH)
    return str(events[-1]["message"]) if events and events[-1]["done"] == FINISHED else ""
