"""Signs that a run goes wrong, read from what it logs, and what is then done: told, ended, or taken back.

Each sign must hold for ``patience`` logs in a row, but for a loss that is no number: one is enough. What was seen and done is
in ``health.jsonl``, one line an event. Every process reads the same logs, and so does the same.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from rewardlab.config import HealthConfig, TrainConfig
from rewardlab.data.files import read_complete_lines
from rewardlab.errors import HealthError
from rewardlab.processes import is_main
from rewardlab.reporting.progress import log_line
from rewardlab.training.run.folder import HEALTH, METRICS

Logs = Mapping[str, float]


class Signs:
    """What one line of metrics, after those before it, is a sign of: name -> a sentence with the numbers."""

    def __init__(self, config: HealthConfig) -> None:
        self._config = config
        self._first_lengths: list[float] = []
        self._window: deque[tuple[float, float]] = deque(maxlen=2 * config.window)

    def of(self, logs: Logs) -> dict[str, str]:
        c = self._config
        signs = {}
        for name in ("loss", "grad_norm", "reward"):
            if name in logs and not math.isfinite(logs[name]):
                signs["not_finite"] = f"{name} is {logs[name]}"
        if (entropy := logs.get("entropy")) is not None and "reward" in logs and entropy < c.min_entropy:
            signs["entropy_collapse"] = f"entropy {entropy:.4f} is under {c.min_entropy}: rollouts hardly differ any more"
        if (invalid := logs.get("reward/invalid_frac")) is not None and invalid > c.max_invalid_frac:
            signs["invalid"] = f"{invalid:.0%} of the rollouts have no verdict, more than {c.max_invalid_frac:.0%}"
        if (length := logs.get("completions/mean_length")) is not None:
            self._first_lengths = [*self._first_lengths, length][: c.window]
            usual = sum(self._first_lengths) / len(self._first_lengths)
            if length > c.length_factor * usual:
                signs["length_runaway"] = f"rollouts are {length:.0f} tokens long, at first they were {usual:.0f}"
        if (first := logs.get("verdict/first_frac")) is not None and abs(first - 0.5) > c.max_position_bias:
            signs["one_position"] = f"{first:.0%} of the verdicts name the response that is shown first"
        return signs | self._hacking(logs)

    def _hacking(self, logs: Logs) -> dict[str, str]:
        """Return whether what is paid besides accuracy goes up while accuracy goes down: over ``window`` logs against those
        before."""
        accuracy, reward = logs.get("reward/accuracy"), logs.get("reward")
        if accuracy is None or reward is None:
            return {}
        self._window.append((accuracy, reward))
        half = self._config.window
        if len(self._window) < 2 * half:
            return {}
        rows = list(self._window)
        (a0, r0), (a1, r1) = ([sum(row[k] for row in part) / half for k in (0, 1)] for part in (rows[:half], rows[half:]))
        if r1 > r0 and a0 - a1 > self._config.hacking_drop:
            return {"reward_hacking": f"reward went from {r0:.3f} to {r1:.3f} while accuracy fell from {a0:.1%} to {a1:.1%}"}
        return {}


class Watchdog(TrainerCallback):
    """Reads every log. Under the policies stop and roll_back it raises HealthError, after the event is on disk.

    A resumed run first reads what was logged up to its checkpoint, so that it knows what was usual.
    """

    def __init__(self, config: HealthConfig, out: Path) -> None:
        self._config, self._path = config, out / HEALTH
        self._signs = Signs(config)
        self._streaks: dict[str, int] = {}
        self._metrics = out / METRICS

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for row in read_complete_lines(self._metrics):
            if row["step"] <= state.global_step:
                self._alarms({name: float(value) for name, value in row.items()})

    def _alarms(self, logs: Logs) -> dict[str, str]:
        """Return the signs that have been there for long enough, with their sentences."""
        if "loss" not in logs:
            return {}
        seen = self._signs.of(logs)
        self._streaks = {name: self._streaks.get(name, 0) + 1 for name in seen}
        patience = self._config.patience
        return {name: message for name, message in seen.items() if name == "not_finite" or self._streaks[name] == patience}

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        values = {name: value for name, value in (logs or {}).items() if value is not None}  # None: a mean of nothing
        alarms = self._alarms(values)
        if not alarms:
            return
        message = "; ".join(alarms.values())
        if is_main():
            if self._config.policy == "roll_back":  # before the event: killed between the two, the run sees the sign again
                self._forget(state.global_step - self._config.patience * args.logging_steps)
            event = {"step": state.global_step, "signs": list(alarms), "message": message, "done": self._config.policy}
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(event) + "\n")
            log_line(f"step {state.global_step}: {message}")
        if self._config.policy != "warn":
            raise HealthError(
                f"step {state.global_step}: {message}. The checkpoints before it are in "
                f"{self._path.parent}; lower learning_rate, or set `health: {{policy: warn}}` if this is as it should be"
            )

    def _forget(self, step: int) -> None:
        """Remove the checkpoints after ``step``: they were saved while the sign built up."""
        for path in self._path.parent.glob("checkpoint-*"):
            if int(path.name.rsplit("-", 1)[1]) > step:
                shutil.rmtree(path)


def rollbacks(out: Path) -> list[int]:
    """Return the steps at which a run was taken back, oldest first."""
    return [event["step"] for event in read_complete_lines(out / HEALTH) if event["done"] == "roll_back"]


def refuse_ended(config: HealthConfig, out: Path) -> None:
    """Raise HealthError for a run that the watchdog ended for good: whoever starts jobs again would go on with it for ever."""
    events = read_complete_lines(out / HEALTH)
    stopped = bool(events) and events[-1]["done"] == "stop" and config.policy == "stop"
    if stopped or (config.policy == "roll_back" and len(rollbacks(out)) > config.max_rollbacks):
        raise HealthError(
            f"{out}: this run was ended at step {events[-1]['step']}: {events[-1]['message']}. To go on all the same, set "
            "`health: {policy: warn}`; else begin anew in another --out, from one of its checkpoints or with a lower rate"
        )


def run_with_rollback(config: TrainConfig, out: Path, attempt: Callable[[], Path]) -> Path:
    """Return what ``attempt`` returns, tried again from an older checkpoint where the watchdog ends it and the policy is
    roll_back.

    Raise HealthError where it was taken back ``max_rollbacks`` times already, or ended before.
    """
    refuse_ended(config.health, out)
    while True:
        try:
            return attempt()
        except HealthError:
            if config.health.policy != "roll_back":
                raise
            PartialState().wait_for_everyone()  # the event is on disk
            times = len(rollbacks(out))
            if not 0 < times <= config.health.max_rollbacks:  # none: what ended is a part of the run in a folder of its own
                raise
            PartialState().wait_for_everyone()  # all have read it
        gc.collect()  # the model of the attempt that failed


class HalveLearningRate(TrainerCallback):
    """Halves every learning rate ``times`` times, whatever a checkpoint had: once for each time the run was taken back."""

    def __init__(self, times: int, learning_rate: float) -> None:
        self._rate = learning_rate / 2**times

    def on_train_begin(
        self, args: Any, state: Any, control: Any, optimizer: Any = None, lr_scheduler: Any = None, **kwargs: Any
    ) -> None:
        scale = self._rate / max(lr_scheduler.base_lrs)
        lr_scheduler.base_lrs = [rate * scale for rate in lr_scheduler.base_lrs]
        for group in optimizer.param_groups:
            group["lr"] *= scale
            if "initial_lr" in group:
                group["initial_lr"] *= scale
