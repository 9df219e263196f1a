"""Signs that a run goes wrong, read from its logs, and the response: warn, stop, or roll back; and why a run learnt nothing.

A sign must hold for ``patience`` logs in a row; a loss that is not finite is a sign at once. ``health.jsonl`` has one line per
event. All processes read the same logs and therefore act alike.
"""

from __future__ import annotations

import gc
import json
import math
import shutil
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from accelerate import PartialState
from transformers import TrainerCallback

from rewardlab.config import HealthConfig, SignsConfig, TrainConfig
from rewardlab.data.files import read_complete_lines
from rewardlab.errors import HealthError
from rewardlab.processes import is_main
from rewardlab.reporting.progress import log_line
from rewardlab.rewards.policy_signs import TRENDS, PolicySigns
from rewardlab.training.run.folder import HEALTH, METRICS, SAMPLES

Logs = Mapping[str, float]
EXPLAINED_WINDOW, BIAS_WINDOW = 5, 3  # rollout batches that are averaged: one alone varies by 0.03, and by 0.15 deviations
CRITIC_PATIENCE = 2  # how often in a row the mean must be a sign
BEGINNING = EXPLAINED_WINDOW + CRITIC_PATIENCE - 1  # rollout batches that a starved critic is looked for in, at least
# These warn under every policy. Both bounds were set by the runs in eval/results/watchdog_critics.md, and have seen no others:
# means of position bias were 1.41 deviations and more with a starved critic, up to 0.59 with a fitted one, up to 1.62 in PAG's
# dialogues; one fitted critic began at an explained variance of 0.04, close to the bound.
CRITIC_SIGNS = ("starved_critic", "advantage_by_position")
PATIENCE = {"not_finite": 1, "sampler": 2, **dict.fromkeys(TRENDS, 1), **dict.fromkeys(CRITIC_SIGNS, CRITIC_PATIENCE)}
MOST_UNCORRECTED = 0.5  # fraction of tokens that an importance correction caps or masks, or cannot correct
# Bounds of the relative gap. In the runs that set them (a small judge, seeds 10 to 13) a sampler in bfloat16 with the trainer's
# weights was off by 0.02 to 0.06, at most 2.3 times its best batch; with old (three batches) or wrong weights, by at least
# 0.62 in the first two batches.
STALE_FACTOR, STALE_FROM = 5.0, 0.2
NOT_OF_THE_RATE = {"unscored", "sampler"}  # signs that no lower learning rate cures


class Signs:
    """Return, by name, the sentence of each sign after a line of metrics, "" for none. Signs whose metrics the line lacks are
    left out: rollouts are logged once per rollout batch. ``bootstraps``: :attr:`Method.bootstraps`; ``limits``: those of a
    policy under a judge.
    """

    def __init__(self, config: HealthConfig, *, bootstraps: bool = False, limits: SignsConfig | None = None) -> None:
        self._config, self._bootstraps = config, bootstraps
        self._policy_signs = PolicySigns(limits) if limits else None
        self._first_lengths: list[float] = []
        self._window: deque[tuple[float, float]] = deque(maxlen=2 * config.window)
        self._explained: list[float] = []
        self._biases: deque[float] = deque(maxlen=BIAS_WINDOW)
        self._least_gap = math.inf

    def of(self, logs: Logs) -> dict[str, str]:
        c = self._config
        signs = {}
        if numbers := {name: logs[name] for name in ("loss", "grad_norm", "reward") if name in logs}:
            wrong = [f"{name} is {value}" for name, value in numbers.items() if not math.isfinite(value)]
            signs["not_finite"] = wrong[-1] if wrong else ""
        if (entropy := logs.get("entropy")) is not None and "reward" in logs:
            signs["entropy_collapse"] = _sentence(
                entropy < c.min_entropy, f"entropy {entropy:.4f} is under {c.min_entropy}: rollouts hardly differ any more"
            )
        if (invalid := logs.get("reward/invalid_frac")) is not None:
            signs["invalid"] = _sentence(
                invalid > c.max_invalid_frac,
                f"{invalid:.0%} of the rollouts have no verdict, more than {c.max_invalid_frac:.0%}",
            )
        if (unreadable := logs.get("judge/unreadable_frac")) is not None:
            signs["unreadable"] = _sentence(
                unreadable > c.max_invalid_frac,
                f"{unreadable:.0%} of the comparisons cannot be read, more than {c.max_invalid_frac:.0%}: they give no reward",
            )
        if (unscored := logs.get("reward/unscored_frac")) is not None:
            signs["unscored"] = _sentence(
                unscored > c.max_invalid_frac,
                f"{unscored:.0%} of the rollouts have no reward, more than {c.max_invalid_frac:.0%}, and train "
                "nothing: make the reward function return finite numbers (None, nan and inf are no reward)",
            )
        if "importance/gap" in logs:
            signs["sampler"] = self._sampler(logs)
        if (unclear := logs.get("verify/unclear_frac")) is not None:
            signs["unverified"] = _sentence(
                unclear > c.max_invalid_frac,
                f"{unclear:.0%} of the judgments have no verification that can be read, more than {c.max_invalid_frac:.0%}: "
                "was the judge taught to verify (`rewardlab sft --verify-votes`)?",
            )
        if (length := logs.get("completions/mean_length")) is not None:
            self._first_lengths = [*self._first_lengths, length][: c.window]
            usual = sum(self._first_lengths) / len(self._first_lengths)
            signs["length_runaway"] = _sentence(
                length > c.length_factor * usual, f"rollouts are {length:.0f} tokens long, at first they were {usual:.0f}"
            )
        if (first := logs.get("verdict/first_frac")) is not None:
            signs["one_position"] = _sentence(
                abs(first - 0.5) > c.max_position_bias,
                f"{first:.0%} of the verdicts name the response that is shown first",
            )
        policy_signs = self._policy_signs.of(logs) if self._policy_signs else {}
        return signs | policy_signs | self._critic(logs) | self._hacking(logs)

    def _sampler(self, logs: Logs) -> str:
        """Return the sentence of a sampler that has other weights than the trainer's, or samples otherwise."""
        gap, most = logs["importance/gap"], self._config.max_sampler_gap
        wrong = [f"log-probs of the sampler and the trainer differ by {gap:.3f} nats per token, more than {most:g}"] * (
            gap > most
        )
        for name, what in (
            ("importance/capped_frac", "have an importance ratio beyond its bounds"),
            ("importance/missing_frac", "have no log-prob of the sampler"),
        ):
            fraction = logs.get(name, 0.0)
            wrong += [f"{fraction:.0%} of the tokens {what}, more than {MOST_UNCORRECTED:.0%}"] * (fraction > MOST_UNCORRECTED)
        relative = logs.get("importance/relative_gap", 0.0)
        if not logs.get("rollouts/staleness"):  # else the weights are older on purpose
            self._least_gap = min(self._least_gap, relative)
            if relative > max(STALE_FROM, STALE_FACTOR * self._least_gap):
                wrong.append(
                    f"log-probs of the sampler and the trainer differ by {relative:.2f} times the mean of 1 - probability, "
                    f"was {self._least_gap:.2f}"
                )
        cure = ": does the engine load the weights of each update, and sample at the trainer's temperature and precision?"
        return _sentence(bool(wrong), "; ".join(wrong) + cure)

    def _critic(self, logs: Logs) -> dict[str, str]:
        """Return whether a critic explains too little of the returns (read at the beginning only: a judge that is nearly always
        right has little variance), or its error depends on the position."""
        c, signs = self._config, {}
        if not self._bootstraps:
            return {}
        if (explained := logs.get("value/explained_variance")) is not None:
            self._explained.append(explained)
            last = self._explained[-EXPLAINED_WINDOW:]
            mean = sum(last) / len(last)
            signs["starved_critic"] = _sentence(
                EXPLAINED_WINDOW <= len(self._explained) <= max(c.window, BEGINNING) and mean < c.min_explained_variance,
                f"the critic explains {mean:.2f} of the variance of fresh rollouts' returns, less than "
                f"{c.min_explained_variance:g}: it is not fitted (value_pretrain_steps), and with lambda below 1 its errors "
                "drive the policy",
            )
        if (bias := logs.get("advantage/position_bias")) is not None:
            self._biases.append(bias)
            mean = sum(self._biases) / len(self._biases)
            signs["advantage_by_position"] = _sentence(
                abs(mean) > c.max_advantage_bias,
                f"advantages at the end of rollouts are {mean:+.2f} deviations off those at the beginning, more than "
                f"{c.max_advantage_bias:g}: the critic's error depends on the position in a rollout; fit it for longer "
                "(value_pretrain_steps)",
            )
        return signs

    def _hacking(self, logs: Logs) -> dict[str, str]:
        """Return whether the reward rises while accuracy falls, over ``window`` logs against those before."""
        accuracy, reward = logs.get("reward/accuracy"), logs.get("reward")
        if accuracy is None or reward is None:
            return {}
        self._window.append((accuracy, reward))
        half = self._config.window
        if len(self._window) < 2 * half:
            return {}
        rows = list(self._window)
        (a0, r0), (a1, r1) = ([sum(row[k] for row in part) / half for k in (0, 1)] for part in (rows[:half], rows[half:]))
        message = f"reward went from {r0:.3f} to {r1:.3f} while accuracy fell from {a0:.1%} to {a1:.1%}"
        return {"reward_hacking": _sentence(r1 > r0 and a0 - a1 > self._config.hacking_drop, message)}


def _sentence(is_sign: bool, message: str) -> str:
    return message if is_sign else ""


class Alarms:
    """Signs that have held for ``patience`` of the lines that have their metrics, in a row; the critic's for
    :data:`CRITIC_PATIENCE`; once for numbers that are not finite and the signs of a policy, which are means."""

    def __init__(self, config: HealthConfig, *, bootstraps: bool = False, limits: SignsConfig | None = None) -> None:
        self._signs, self._patience = Signs(config, bootstraps=bootstraps, limits=limits), config.patience
        self._streaks: dict[str, list[int]] = {}  # the steps of each sign's last lines in a row

    def of(self, logs: Logs, step: int) -> dict[str, str]:
        """Return the signs whose time is up with this line, with their sentences."""
        if "loss" not in logs:
            return {}
        alarms = {}
        for name, message in self._signs.of(logs).items():
            streak = self._streaks[name] = [*self._streaks.get(name, []), step] if message else []
            if message and len(streak) == PATIENCE.get(name, self._patience):
                alarms[name] = message
        return alarms

    def began(self, alarms: Iterable[str]) -> int:
        """Return the step at which the first of these signs began to hold."""
        return min(self._streaks[name][0] for name in alarms)


class Watchdog(TrainerCallback):
    """Reads every log. Under the policies stop and roll_back it raises HealthError, after the event is on disk; the critic's
    signs only warn. A resumed run first reads the logs up to its checkpoint."""

    def __init__(self, config: HealthConfig, out: Path, *, bootstraps: bool = False, limits: SignsConfig | None = None) -> None:
        self._config, self._path, self._metrics = config, out / HEALTH, out / METRICS
        self._alarms = Alarms(config, bootstraps=bootstraps, limits=limits)

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        for row in read_complete_lines(self._metrics):
            if row["step"] <= state.global_step:
                self._alarms.of({name: float(value) for name, value in row.items()}, row["step"])

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        values = {name: value for name, value in (logs or {}).items() if value is not None}  # None: a mean of nothing
        alarms = self._alarms.of(values, state.global_step)
        if not alarms:
            return
        message = "; ".join(alarms.values())
        policy = "warn" if alarms.keys() <= set(CRITIC_SIGNS) else self._config.policy
        if is_main():
            if policy == "roll_back":  # before the event: killed between the two, the run sees the sign again
                builds_up = state.global_step - self._config.patience * args.logging_steps
                self._forget(min(builds_up, self._alarms.began(alarms) - args.logging_steps))
            append_event(self._path.parent, state.global_step, list(alarms), message, policy)
            log_line(f"step {state.global_step}: {message}")
        if policy != "warn":
            cure = "" if alarms.keys() <= NOT_OF_THE_RATE else "lower learning_rate, or "
            raise HealthError(
                f"step {state.global_step}: {message}. The checkpoints before it are in "
                f"{self._path.parent}; {cure}set `health: {{policy: warn}}` if this is expected"
            )

    def _forget(self, step: int) -> None:
        """Remove the checkpoints after ``step``: they were saved while the sign built up."""
        for path in self._path.parent.glob("checkpoint-*"):
            if int(path.name.rsplit("-", 1)[1]) > step:
                shutil.rmtree(path)


def append_event(out: Path, step: int, signs: Sequence[str], message: str, done: str) -> None:
    """Append to ``out/health.jsonl`` what was seen at ``step``, and what was done."""
    event = {"step": step, "signs": list(signs), "message": message, "done": done}
    with (out / HEALTH).open("a", encoding="utf-8") as file:
        file.write(json.dumps(event) + "\n")


def rollbacks(out: Path) -> list[int]:
    """Return the steps at which a run was taken back, oldest first."""
    return [event["step"] for event in read_complete_lines(out / HEALTH) if event["done"] == "roll_back"]


def refuse_ended(config: HealthConfig, out: Path) -> None:
    """Raise HealthError for a run that the watchdog ended for good: a scheduler that restarts jobs would resume it for ever."""
    events = read_complete_lines(out / HEALTH)
    stopped = bool(events) and events[-1]["done"] == "stop" and config.policy == "stop"
    if stopped or (config.policy == "roll_back" and len(rollbacks(out)) > config.max_rollbacks):
        raise HealthError(
            f"{out}: this run was ended at step {events[-1]['step']}: {events[-1]['message']}. To continue anyway, set "
            "`health: {policy: warn}`; otherwise start a new run in another --out, from "
            "one of its checkpoints or with a lower learning rate"
        )


def run_with_rollback(config: TrainConfig, out: Path, attempt: Callable[[], Path]) -> Path:
    """Return what ``attempt`` returns, tried again from an older checkpoint if the watchdog ends it and the policy is
    roll_back. Raise HealthError after ``max_rollbacks``, or under another policy."""
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


LEAST_ROWS = 3
FINISHED = "finished"  # what was done at the event: nothing, the run was over


def why_nothing_was_learnt(rows: Sequence[Mapping[str, Any]], max_invalid: float) -> dict[str, str]:
    """Return what held in all rows of a run's metrics that had it, sign -> sentence; {} if it may have learnt, or of fewer than
    :data:`LEAST_ROWS` rows. ``unscored``: no rollout had a reward; ``no_reward``: all rewards 0; ``equal_rewards``;
    ``no_gradient``; ``invalid``: beside another sign, a fraction of rollouts above ``max_invalid`` (0..1) had no verdict.
    """

    def always(name: str, test: Callable[[float], bool]) -> bool:
        values = [row[name] for row in rows if isinstance(row.get(name), int | float)]
        return bool(values) and all(map(test, values))

    is_zero: Callable[[float], bool] = lambda value: value == 0  # noqa: E731
    signs = {}
    if always("reward/unscored_frac", lambda value: value == 1):
        signs["unscored"] = "no rollout ever had a reward"
    elif always("reward", is_zero) and not any(row.get("reward_std") for row in rows):
        signs["no_reward"] = "every reward was 0"
    elif always("advantage/max_abs", is_zero) or (
        always("reward_std", is_zero) and len({row["reward"] for row in rows if row.get("reward") is not None}) == 1
    ):  # a critic's advantages are never all 0
        signs["equal_rewards"] = "no rollout ever earned more than another"
    # no gradient of the policy: a critic alone is fitted, or rollouts have no reward
    others = ("advantage/max_abs", "value/grad_norm", "reward/unscored_frac")
    if always("grad_norm", is_zero) and not any(row.get(name) for row in rows for name in others):
        signs["no_gradient"] = "every gradient was 0, so no step changed the weights"
    if signs and always("reward/invalid_frac", lambda value: value > max_invalid):
        signs["invalid"] = f"more than {max_invalid:.0%} of the rollouts had no verdict all along"
    return signs if sum("grad_norm" in row or "reward" in row for row in rows) >= LEAST_ROWS else {}


_CURES = {
    "unscored": "make the reward function return finite numbers: None, nan and inf are no reward",
    "no_reward": f"look at {SAMPLES}: does the model write verdicts in the format of `template`, within max_completion_length?",
    "equal_rewards": "take pairs that are neither too easy nor too hard for the model, or a higher temperature",
    "invalid": f"look at {SAMPLES}: does the model write verdicts in the format of `template`, within max_completion_length?",
    "no_gradient": "check learning_rate, max_grad_norm, and that something is left to learn of every row",
}


def record_outcome(out: Path, config: HealthConfig) -> str:
    """Return why the run in ``out`` learnt nothing, and append it to its ``health.jsonl``; "" if it may have learnt."""
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
