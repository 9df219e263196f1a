"""A judge that is trained against the policy that it trains: rounds of both, each stage a command in a process of its own.

A round: the policy learns under the judge; its answers that are wrong and paid become hard negatives; the judge learns them
beside pairs of the set; if it is not worse on held-out pairs it takes the old one's place, in a running server too. The policy
goes on under it from its latest checkpoint that is as good as the best, which may be the one that the round began with, or an
earlier one. Every stage goes on after a kill, and so does the loop.
"""

from __future__ import annotations

import json
import math
import random
import shlex
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rewardlab.config import RLConfig
from rewardlab.data.files import lock_folder, read_complete_lines, write_atomic
from rewardlab.data.pair_table import pair_facts
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError, RewardlabError
from rewardlab.processes import end_with_parent
from rewardlab.reporting.curves import Limit
from rewardlab.reporting.hardening_page import hardening_page
from rewardlab.reporting.progress import log_line
from rewardlab.rewards.policy_signs.trends import bounds_of_signs
from rewardlab.training.harden_plan import HardenPlan, check_plan, config_of_stage, policy_config
from rewardlab.training.policy_answers import add_answers, latest_as_good
from rewardlab.training.run.folder import CONFIG, FINAL, METRICS, is_finished
from rewardlab.training.run.inputs import pairs_of

PLAN, ROUNDS, PAGE, RECORD = "plan.json", "rounds.jsonl", "index.html", "round.json"
NEGATIVES, POLICY, JUDGMENTS = "negatives.parquet", "policy.json", "distilled.parquet"  # as the stages name them
SAMPLES = 8  # judgments of a pair in each order, of which a right one is kept for SFT
MEANS = ("reward", "answers/right", "answers/overpaid", "answers/novelty", "judge/order_agreement", "judge/blank_gap")
DONE, FINDING = 0, 1  # exit statuses of a command that did its work; of one whose result is not good
COARSE = 0.03  # half an interval of a difference of accuracies above which the gate is said to see little
LAST = 5  # lines of metrics whose mean is told of a round


@dataclass
class Round:
    """What came of a round; shares are in 0..1. ``accepted``: its new judge serves from now on, None where none was trained.

    ``before`` counts the answers to held-out questions of the policy that the round began with (``policy.json`` of `rewardlab
    data negatives`), those of the round that it was chosen in included; ``checkpoints`` those of the round's checkpoints, the
    last one last. The next round begins with ``next_policy``, whose answers are ``best``.
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


def harden_judge(plan: HardenPlan, out: Path) -> Round:
    """Run the loop in ``out``, or go on with it; return the last round, with the judge and the policy that it ends with.

    Raise ConfigError where ``out`` holds another run, DataError for a set without what is needed, RewardlabError where a stage
    fails: its own sentence stands above it.
    """
    lock_folder(out)
    check_plan(plan)  # first: a plan that is refused leaves nothing that the mended one would have to match
    _refuse_other(plan, out)
    if (out / f"round_{plan.rounds}" / RECORD).exists():
        raise ConfigError(f"{out}: has more than {plan.rounds} rounds already; give as many --rounds as there are, or more")
    judge, policy, result = plan.judge, plan.policy, None
    for number in range(plan.rounds):
        result = _finished_round(out, number)
        if result is None:
            _publish(plan, judge)  # that of the last finished round, where the loop goes on
            result = _run_round(plan, out, number, judge, policy)
            _write_page(plan, out)
        judge, policy = result.next_judge, result.next_policy
    last, page = out / f"round_{plan.rounds - 1}" / RECORD, out / PAGE
    if not page.exists() or page.stat().st_mtime_ns < last.stat().st_mtime_ns:  # a kill came between the two
        _write_page(plan, out)
    _publish(plan, judge)
    assert result is not None
    return result


def _keys(of_loop: dict[str, Any], given: Sequence[str]) -> list[str]:
    """Return KEY=VALUE of a stage: those of the loop, but for what the user gives."""
    named = {text.partition("=")[0] for text in given}
    return [*(f"{name}={value}" for name, value in of_loop.items() if name not in named), *given]


def _refuse_other(plan: HardenPlan, out: Path) -> None:
    # More rounds may be added, and a stage that fails may be given other keys: it guards its own folder.
    free = {"rounds": 0, "policy_keys": [], "sft_keys": [], "judge_keys": []}
    path, text = out / PLAN, json.dumps({**asdict(plan), **free}, indent=1) + "\n"
    if not path.exists():
        write_atomic(path, text)
    elif path.read_text(encoding="utf-8") != text:
        before, now = _read(path), json.loads(text)
        changed = ", ".join(name for name in now if now[name] != before.get(name))
        raise ConfigError(f"{out}: was begun with other settings ({changed}); choose another --out, or give the same ones")


def _finished_round(out: Path, number: int) -> Round | None:
    path = out / f"round_{number}" / RECORD
    return Round(**_read(path)) if path.exists() else None


def _read(path: Path) -> dict[str, Any]:
    """Return what the loop or a stage has written. Raise DataError where it is damaged."""
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        record = None
    if not isinstance(record, dict):
        raise DataError(f"{path}: damaged; restore it, or delete it: what is finished beside it is not done again")
    return record


def _run_round(plan: HardenPlan, out: Path, number: int, judge: str, policy: str) -> Round:
    folder, seed = out / f"round_{number}", plan.seed + number
    log_line(f"round {number}: the policy learns under {judge}")
    trained = folder / "policy"
    if not is_finished(trained):
        words = ["policy", "--data", plan.data, "--config", plan.policy_config, "--model", policy, "--judge", f"prob:{judge}"]
        of_loop: dict[str, Any] = {
            "save_steps": _save_steps(plan, judge),
            "save_total_limit": plan.checkpoints + 1,
            "max_completion_length": plan.max_tokens,
            "judge_max_tokens": plan.judge_max_tokens,
            "seed": seed,
            "health.policy": "warn",
            **({"signs.truth": plan.truth} if plan.truth in ("exact", "rules") else {}),
        }
        _command(*words, "--out", trained, *_keys(of_loop, plan.policy_keys))
    result = Round(number, judge, str(trained / FINAL), policy_means=_last_means(trained / METRICS), next_judge=judge)
    _compare_policies(plan, out, folder, policy, result)
    result.negatives = _negatives(plan, folder, judge, trained / FINAL, seed)
    candidate = _train_judge(plan, out, folder, judge, seed) if result.negatives else None
    if candidate:
        _compare(plan, folder, judge, candidate, result)
        result.next_judge = str(candidate) if result.accepted else judge
    else:
        why = "too few wrong answers were paid for one batch of training" if result.negatives else "no wrong answer was paid"
        log_line(f"round {number}: {why}; the judge stays as it is")
    write_atomic(folder / RECORD, json.dumps(asdict(result), indent=1) + "\n")
    return result


def _save_steps(plan: HardenPlan, judge: str) -> int:
    """Return the steps between two checkpoints of a policy, so that it has about as many as the plan says; where epochs decide,
    by the questions that the set has."""
    config = policy_config(plan)
    steps = config.max_steps
    if steps <= 0:
        questions = sum(facts.preferred is not None for facts in pair_facts(pairs_of(plan.data, config.frames, judge)))
        steps = math.ceil(config.epochs * questions * config.group_size / config.batch_size)
    period = config.steps_of_rollouts  # a checkpoint is whole where a batch of rollouts is
    return period * max(1, math.ceil(steps / plan.checkpoints / period))


def _compare_policies(plan: HardenPlan, out: Path, folder: Path, before: str, result: Round) -> None:
    """Ask each checkpoint of the round's policy, and the one that the round began with, the held-out questions. The next round
    begins with the latest of them, and of those that earlier rounds began with, that is as good as the best
    (:func:`latest_as_good`).

    The one that this round began with is asked again, and all that it has answered so far counts."""
    seed = plan.seed + result.number
    earlier = [row for n in range(result.number) if (row := _finished_round(out, n))]
    folder_of_start = folder / "held_out" / "before" if earlier else out / "start_policy"
    first = _ask_policy(plan, plan.held_out, result.judge, before, folder_of_start, seed, least_reward=0.0)
    answers, begun_with = dict[str, dict[str, Any]](), plan.policy  # by policy, oldest first, all that is known of each
    for row in earlier:
        answers[begun_with], begun_with = row.before, row.next_policy
        answers[begun_with] = row.best
    result.before = answers[before] = add_answers(answers[before], first) if earlier else first
    trained = Path(result.policy).parent
    for path in [*_earlier_checkpoints(trained), trained / FINAL]:
        out_of = folder / "held_out" / path.name
        answers[str(path)] = result.checkpoints[path.name] = _ask_policy(
            plan, plan.held_out, result.judge, str(path), out_of, seed, least_reward=0.0
        )
    result.next_policy = latest_as_good(answers)
    result.best = answers[result.next_policy]
    log_line(f"round {result.number}: the next round begins with {result.next_policy}")


def _earlier_checkpoints(trained: Path) -> list[Path]:
    """Return the checkpoints of a policy before its last step, oldest first."""
    last = max((row["step"] for row in read_complete_lines(trained / METRICS)), default=0)
    steps = {path: int(path.name.rpartition("-")[2]) for path in trained.glob("checkpoint-*")}
    return sorted((path for path, step in steps.items() if step < last), key=steps.__getitem__)


def _ask_policy(
    plan: HardenPlan, data: str, judge: str, policy: str, out: Path, seed: int, *, least_reward: float
) -> dict[str, Any]:
    """Sample answers of a policy to questions of ``data``, have the judge pay them, and make negatives of what is wrong and
    paid; return the counts of right and wrong ones."""
    if not ((out / "done").exists() and (out / POLICY).exists()):
        config = policy_config(plan)
        words = ["data", "negatives", data, "--policy", policy, "--judge", f"prob:{judge}", "--truth", plan.truth]
        sizes = ["--number", plan.number, "--least-reward", least_reward, "--max-tokens", plan.max_tokens]
        like = ["--template", config.template, "--contract", config.contract, "--frames", config.frames]
        like += ["--temperature", config.temperature]
        _command(
            *(*words, *sizes, *like, "--judge-max-tokens", plan.judge_max_tokens, "--seed", seed, "--out", out),
            allowed=(DONE, FINDING),
        )
        write_atomic(out / "done", "")
    return _read(out / POLICY)


def _negatives(plan: HardenPlan, folder: Path, judge: str, policy: Path, seed: int) -> int:
    """Make the round's negatives; return how many."""
    out, config = folder / "negatives", policy_config(plan)
    _ask_policy(plan, plan.data, judge, str(policy), out, seed, least_reward=plan.least_reward)
    path = out / NEGATIVES
    return len(pairs_of(path, config.frames, judge)) if path.exists() else 0


def _train_judge(plan: HardenPlan, out: Path, folder: Path, judge: str, seed: int) -> Path | None:
    """Train the judge on the negatives of all rounds so far, beside labelled pairs of the set; return None where they are too
    few for one batch of rollouts."""
    from rewardlab.training.rl import hard_pairs

    data, trained = folder / "data.parquet", folder / "judge"
    config = config_of_stage(RLConfig, plan.judge_config, plan.judge_keys)
    if not data.exists():
        made = [out / f"round_{n}" / "negatives" / NEGATIVES for n in range(int(folder.name.rpartition("_")[2]) + 1)]
        tables = [pairs_of(path, config.frames, judge) for path in made if path.exists()]
        # An answer that the policy gave in several rounds is one negative.
        negatives = {facts.pair_id: (table, n) for table in tables for n, facts in enumerate(pair_facts(table))}
        pairs = pairs_of(plan.data, config.frames, judge)
        labelled = [n for n, facts in enumerate(pair_facts(pairs)) if facts.preferred is not None]
        number = min(len(labelled), math.ceil(plan.mix * len(negatives)))
        if number < 1 and plan.mix:
            raise DataError(f"{plan.data}: has no labelled pair to train the judge on beside its negatives; label some of it")
        chosen = sorted(random.Random(f"harden {seed}").sample(labelled, number))
        places = [*negatives.values(), *((pairs, n) for n in chosen)]
        write_parquet((table[n] for table, n in places), data)  # one at a time: they may have large pictures
    if not is_finished(trained):
        taught = pairs_of(data, config.frames, judge)
        prompts = len(hard_pairs(taught, config)) * (2 if config.both_orders else 1)
        if prompts * config.group_size < config.rollout_batch_size:
            return None
        start = _teach(plan, folder, data, judge, seed) if plan.sft_config else judge
        words = ["rl", "--data", data, "--config", plan.judge_config, "--model", start, "--out", trained]
        _command(*words, *_keys({"seed": seed, "health.policy": "warn"}, plan.judge_keys))
    return trained / FINAL


def _teach(plan: HardenPlan, folder: Path, data: Path, judge: str, seed: int) -> str:
    """Teach the judge its own right judgments of the round's pairs by SFT; return its folder. It is asked often: of a pair that
    it mostly gets wrong, the seldom right judgment is what it lacks."""
    judgments, trained = folder / "judgments", folder / "sft"
    if not (judgments / JUDGMENTS).exists():
        words = ["self-distil", "--data", data, "--judge", f"hf:{judge}", "--samples", SAMPLES, "--alpha", 1]
        _command(*words, "--max-tokens", plan.judge_max_tokens, "--seed", seed, "--out", judgments)
    if not is_finished(trained):
        words = ["sft", "--data", judgments / JUDGMENTS, "--config", plan.sft_config, "--model", judge, "--out", trained]
        _command(*words, *_keys({"seed": seed}, plan.sft_keys))
    return str(trained / FINAL)


def _compare(plan: HardenPlan, folder: Path, judge: str, candidate: Path, result: Round) -> None:
    """Benchmark both judges on held-out pairs, and accept the new one unless it is worse beyond noise."""
    folders = [folder / "bench_before", folder / "bench_after"]
    for out, path in zip(folders, (judge, candidate), strict=True):
        if not (out / "report.json").exists():
            words = ["bench", "run", "pairs", "--data", plan.held_out, "--judge", f"hf:{path}", "--temperature", 0]
            _command(*words, "--votes", 1, "--max-tokens", plan.judge_max_tokens, "--out", out, allowed=(DONE, FINDING))
    before, after = json.loads(_command("bench", "compare", *folders, "--json", is_read=True))["runs"]
    result.accuracy_before, result.accuracy_after = before["accuracy"], after["accuracy"]
    against = after["against_first"]
    result.difference = None if against is None else tuple(against["interval"])
    result.accepted = against is not None and against["interval"][1] >= 0
    if against is not None and (seen := (against["interval"][1] - against["interval"][0]) / 2) > COARSE:
        log_line(f"{plan.held_out}: too few pairs to see a loss of accuracy below some {100 * seen:.0f} points")
    sentence = "takes its place" if result.accepted else "is worse on held-out pairs; the old one stays"
    log_line(f"round {result.number}: the new judge {sentence}")


def _publish(plan: HardenPlan, judge: str) -> None:
    """Name the judge in the file that a server follows."""
    if plan.judge_file:
        path, name = Path(plan.judge_file), f"prob:{Path(judge).resolve()}\n"
        if path.is_dir():
            raise ConfigError(f"--judge-file {path}: is a folder; name a file")
        if not path.exists() or path.read_bytes() != name.encode():
            write_atomic(path, name)


def _command(*words: Any, allowed: Sequence[int] = (DONE,), is_read: bool = False) -> str:
    """Run a command of `rewardlab` in a process that ends with this one; return what it prints where that ``is_read``, else "".
    Raise RewardlabError where it fails."""
    line = [str(word) for word in words]
    log_line(f"$ rewardlab {shlex.join(line)}")
    done = subprocess.run(
        [sys.executable, "-m", "rewardlab.cli", *line],
        check=False,
        preexec_fn=end_with_parent,
        stdout=subprocess.PIPE if is_read else None,
        text=True,
    )
    if done.returncode not in allowed:
        raise RewardlabError(
            f"`rewardlab {line[0]}` ended with status {done.returncode}: see above; run the same command again to go on"
        )
    return done.stdout or ""


def _last_means(path: Path) -> dict[str, float]:
    rows = read_complete_lines(path)
    values = {name: [row[name] for row in rows if row.get(name) is not None][-LAST:] for name in MEANS}
    return {name: sum(some) / len(some) for name, some in values.items() if some}


def _write_page(plan: HardenPlan, out: Path) -> None:
    """Write the page of all rounds so far, and their records as lines of one file."""
    rounds, metrics, ends = list[dict[str, Any]](), list[dict[str, Any]](), list[int]()
    limits = dict[str, list[Limit]]()
    for number in range(plan.rounds):
        result = _finished_round(out, number)
        if result is None:
            break
        rounds.append(asdict(result))
        run, before = out / f"round_{number}" / "policy", ends[-1] if ends else 0
        rows = [{**row, "step": before + row["step"]} for row in read_complete_lines(run / METRICS)]
        metrics += rows
        ends.append(max((row["step"] for row in rows), default=before))
        if rows and (run / CONFIG).exists():
            for name, value in bounds_of_signs(rows, _read(run / CONFIG)["config"]["signs"]).items():
                limits.setdefault(name, []).append(Limit(min(row["step"] for row in rows), ends[-1], value))
    write_atomic(out / ROUNDS, "".join(json.dumps(row) + "\n" for row in rounds))
    write_atomic(out / PAGE, hardening_page(out.name, asdict(plan), rounds, metrics, ends=ends, limits=limits))
