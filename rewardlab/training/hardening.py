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
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rewardlab.config import RLConfig
from rewardlab.data.files import lock_folder, read_complete_lines, write_atomic
from rewardlab.data.pair_table import pair_facts
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError, RewardlabError
from rewardlab.processes import end_with_parent, num_processes
from rewardlab.reporting.hardening_page import hardening_page
from rewardlab.reporting.plots import Limit
from rewardlab.reporting.progress import log_line
from rewardlab.rewards.policy_signs import bounds_of_signs
from rewardlab.training.harden_plan import (
    HardenPlan,
    check_plan,
    config_of_stage,
    keys_of_policy,
    keys_of_rl,
    keys_of_sft,
    launcher_words,
    policy_config,
    with_absolute_paths,
)
from rewardlab.training.harden_record import RECORD, Round, keep_plan, read_record, read_round, stored, write_round
from rewardlab.training.policy_answers import add_answers, latest_as_good
from rewardlab.training.run.folder import CONFIG, FINAL, METRICS, is_finished
from rewardlab.training.run.inputs import pairs_of

ROUNDS, PAGE = "rounds.jsonl", "index.html"
NEGATIVES, POLICY, JUDGMENTS = "negatives.parquet", "policy.json", "distilled.parquet"  # as the stages name them
SAMPLES = 8  # judgments of a pair in each order, of which a right one is kept for SFT
MEANS = ("reward", "answers/right", "answers/overpaid", "answers/novelty", "judge/order_agreement", "judge/blank_gap")
DONE, FINDING = 0, 1  # exit statuses of a command that did its work; of one whose result is not good
COARSE = 0.03  # half an interval of a difference of accuracies above which the gate is said to see little
LAST = 5  # lines of metrics whose mean is told of a round


def harden_judge(plan: HardenPlan, out: Path) -> Round:
    """Run the loop in ``out``, or go on with it; return the last round, with the judge and the policy that it ends with.

    Raise ConfigError where ``out`` holds another run and for one of several processes, DataError for a set without what is
    needed, RewardlabError where a stage fails: its own sentence stands above it.
    """
    if (several := num_processes()) > 1:
        raise ConfigError(
            f"`rewardlab harden` is one process, and here a launcher has started {several} of it; start it without one, and "
            f"give the launcher to its training stages: --launcher 'accelerate launch --num_processes {several}'"
        )
    plan, out = with_absolute_paths(plan), out.resolve()
    lock_folder(out)
    check_plan(plan)  # first: a plan that is refused leaves nothing that the mended one would have to match
    keep_plan(plan, out)
    if (out / f"round_{plan.rounds}" / RECORD).exists():
        raise ConfigError(f"{out}: has more than {plan.rounds} rounds already; give as many --rounds as there are, or more")
    judge, policy, result = plan.judge, plan.policy, None
    for number in range(plan.rounds):
        result = read_round(out, number)
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


def _run_round(plan: HardenPlan, out: Path, number: int, judge: str, policy: str) -> Round:
    folder, seed = out / f"round_{number}", plan.seed + number
    log_line(f"round {number}: the policy learns under {judge}")
    trained = folder / "policy"
    if not is_finished(trained):
        words = ["policy", "--data", plan.data, "--config", plan.policy_config, "--model", policy, "--judge", f"prob:{judge}"]
        _command(*words, "--out", trained, *keys_of_policy(plan, seed), launcher=launcher_words(plan))
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
    write_round(result, out)
    return result


def _compare_policies(plan: HardenPlan, out: Path, folder: Path, before: str, result: Round) -> None:
    """Ask each checkpoint of the round's policy, and the one that the round began with, the held-out questions. The next round
    begins with the latest of them, and of those that earlier rounds began with, that is as good as the best
    (:func:`latest_as_good`).

    The one that this round began with is asked again, and all that it has answered so far counts."""
    seed = plan.seed + result.number
    earlier = [row for n in range(result.number) if (row := read_round(out, n))]
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
    return read_record(out / POLICY)


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
        _command(*words, *keys_of_rl(plan, seed), launcher=launcher_words(plan))
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
        _command(*words, *keys_of_sft(plan, seed), launcher=launcher_words(plan))
    return str(trained / FINAL)


def _compare(plan: HardenPlan, folder: Path, judge: str, candidate: Path, result: Round) -> None:
    """Benchmark both judges on held-out pairs, and accept the new one unless it is worse beyond noise."""
    folders = [folder / "bench_before", folder / "bench_after"]
    for out, path in zip(folders, (judge, candidate), strict=True):
        if not (out / "report.json").exists():
            words = ["bench", "run", "pairs", "--data", plan.held_out, "--judge", f"hf:{path}", "--temperature", 0]
            _command(*words, "--votes", 1, "--max-tokens", plan.judge_max_tokens, "--out", out, allowed=(DONE, FINDING))
    runs = json.loads(_command("bench", "compare", *folders, "--json", is_read=True))["runs"]
    for out, run in zip(folders, runs, strict=True):
        if run["failure"]:  # neither judge is worse for it
            raise RewardlabError(f"{out}: the benchmark failed ({run['failure']}); delete it and run the same command again")
    before, after = runs
    result.accuracy_before, result.accuracy_after = before["accuracy"], after["accuracy"]
    low, high = result.difference = tuple(after["against_first"]["interval"])
    result.accepted = high >= 0
    if (seen := (high - low) / 2) > COARSE:
        log_line(f"{plan.held_out}: too few pairs to see a loss of accuracy below some {100 * seen:.0f} points")
    sentence = "takes its place" if result.accepted else "is worse on held-out pairs; the old one stays"
    log_line(f"round {result.number}: the new judge {sentence}")


def _publish(plan: HardenPlan, judge: str) -> None:
    """Name the judge in the file that a server follows. Raise ConfigError for a judge that is no folder."""
    if plan.judge_file:
        path, name = Path(plan.judge_file), f"prob:{judge}\n"
        if not Path(judge).is_dir():
            raise ConfigError(f"--judge-file {path}: the judge {judge} is no folder here; restore it, or leave the file out")
        if not path.exists() or path.read_bytes() != name.encode():
            write_atomic(path, name)


def _command(*words: Any, allowed: Sequence[int] = (DONE,), is_read: bool = False, launcher: Sequence[str] = ()) -> str:
    """Run a command of `rewardlab` in a process that ends with this one, or in those of a ``launcher``; return what it prints
    where that ``is_read``, else "". Raise RewardlabError where it fails."""
    line = [str(word) for word in words]
    log_line(f"$ {shlex.join([*launcher, '-m', 'rewardlab.cli'] if launcher else ['rewardlab'])} {shlex.join(line)}")
    process = subprocess.Popen(
        [*(launcher or [sys.executable]), "-m", "rewardlab.cli", *line],
        preexec_fn=end_with_parent,
        stdout=subprocess.PIPE if is_read else None,
        text=True,
    )
    try:
        printed, _ = process.communicate()
    except BaseException:  # such as Ctrl-C
        process.terminate()  # a launcher that is killed would leave its processes
        process.wait()
        raise
    if process.returncode not in allowed:
        raise RewardlabError(
            f"`rewardlab {line[0]}` ended with status {process.returncode}: see above; run the same command again to go on"
        )
    return printed or ""


def _last_means(path: Path) -> dict[str, float]:
    rows = read_complete_lines(path)
    # What was no number is logged as a text.
    values = {name: [row[name] for row in rows if isinstance(row.get(name), int | float)][-LAST:] for name in MEANS}
    return {name: sum(some) / len(some) for name, some in values.items() if some}


def _write_page(plan: HardenPlan, out: Path) -> None:
    """Write the page of all rounds so far, and their records as lines of one file."""
    rounds, metrics, ends = list[dict[str, Any]](), list[dict[str, Any]](), list[int]()
    limits = dict[str, list[Limit]]()
    for number in range(plan.rounds):
        result = read_round(out, number)
        if result is None:
            break
        rounds.append(stored(asdict(result), out))
        run, before = out / f"round_{number}" / "policy", ends[-1] if ends else 0
        rows = [{**row, "step": before + row["step"]} for row in read_complete_lines(run / METRICS)]
        metrics += rows
        ends.append(max((row["step"] for row in rows), default=before))
        if rows and (run / CONFIG).exists():
            for name, value in bounds_of_signs(rows, read_record(run / CONFIG)["config"]["signs"]).items():
                limits.setdefault(name, []).append(Limit(min(row["step"] for row in rows), ends[-1], value))
    write_atomic(out / ROUNDS, "".join(json.dumps(row) + "\n" for row in rounds))
    write_atomic(out / PAGE, hardening_page(out.name, stored(asdict(plan), out), rounds, metrics, ends=ends, limits=limits))
