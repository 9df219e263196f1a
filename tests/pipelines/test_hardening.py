"""The hardening loop: one real round with the real commands; what is refused before it; the choice of policies."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.cli import main
from rewardlab.config import load_config, parse_overrides
from rewardlab.config.pipeline import HardenConfig
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError, RewardlabError
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.pipelines.hardening import (
    Round,
    add_answers,
    checkpoints_before_last,
    latest_as_good,
    run_loop,
    share_right,
    with_paths,
)
from tests.support.in_process import InProcess
from tests.support.shell import run_main

SMALL = "gradient_checkpointing: false, lr_scheduler: constant, max_steps: 2, save_steps: 1, batch_size: 4, micro_batch_size: 4"


def config_in(folder: Path, demo_pairs: Any, *keys: str) -> HardenConfig:
    """A small loop of the demonstration's judge, which is the policy, too; ``keys`` replace its own."""
    write_parquet(demo_pairs[0][:24], folder / "pairs.parquet")
    write_parquet(demo_pairs[0][24:34], folder / "held_out.parquet")
    (folder / "p.yaml").write_text(f"{{{SMALL}, rollout_batch_size: 4, group_size: 4, advantage: grpo}}")
    (folder / "j.yaml").write_text(f"{{{SMALL}, rollout_batch_size: 4, template: plain, consistency: {{weight: 0}}}}")
    files = {"data": "pairs.parquet", "held_out": "held_out.parquet", "policy_config": "p.yaml", "judge_config": "j.yaml"}
    given = {name: str(folder / file) for name, file in {**files, "judge_file": "judge.txt"}.items()}
    sizes = {"rounds": 1, "questions": 24, "least_reward": 0.0, "mix": 2.0, "max_tokens": 64, "judge_max_tokens": 64}
    models = {"policy": str(DEMO_JUDGE), "judge": str(DEMO_JUDGE)}
    return load_config(HardenConfig, "harden/loop", {**given, **sizes, **models, **parse_overrides(keys)})


POLICY_ANSWERS = {"questions": 100, "wrong": 0, "unknown": 0, "paid": 0, "reward": None}
ROUND = ["policy", "data", "data", "data", "data", "rl", "bench", "bench"]


@pytest.mark.nightly
@pytest.mark.timeout(300)
def test_a_round(demo_pairs: Any, tmp_path: Path) -> None:
    """Real commands on a real judge: stopped before the third, the same call runs what is left, and nothing twice. The moved
    folder is resumed where it is."""
    config, out, now = config_in(tmp_path, demo_pairs), tmp_path / "out", tmp_path / "moved"
    stopped, rest = InProcess(stop_before=2), InProcess()
    with pytest.raises(KeyboardInterrupt):
        run_loop(config, out, start=stopped)
    last = run_loop(config, out, start=rest)
    assert [line[0] for line in stopped.lines + rest.lines] == ROUND
    for line in rest.lines:
        places = [line[line.index(option) + 1] for option in ("--data", "--policy", "--out") if option in line]
        assert all((out / place).exists() for place in places), line
    asked = [line[line.index("--policy") + 1] for line in stopped.lines + rest.lines if line[0] == "data"]
    assert asked == [str(DEMO_JUDGE), *(f"round_0/policy/{name}" for name in ("checkpoint-1", "final", "final"))]

    negatives = read_pairs(out / "round_0" / "negatives" / "negatives.parquet")
    pairs = read_pairs(out / "round_0" / "pairs.parquet")
    assert last.negatives == len(negatives) > 0
    assert [pair.pair_id for pair in pairs[: len(negatives)]] == [pair.pair_id for pair in negatives]
    assert len(pairs) == 3 * len(negatives)  # mix=2
    assert list(last.answers) == [str(DEMO_JUDGE), "round_0/policy/checkpoint-1", "round_0/policy/final"]
    assert last.next_policy == latest_as_good(last.answers)
    low, high = last.difference or (1.0, 0.0)
    assert low <= (last.accuracy_after or 0) - (last.accuracy_before or 0) <= high
    assert last.accepted == (high >= 0)
    judge = out / last.next_judge
    assert (judge / "model.safetensors").exists()
    assert (tmp_path / "judge.txt").read_text() == f"prob:{judge}\n"
    row = json.loads((out / "rounds.jsonl").read_text())
    assert (row["negatives"], row["accepted"]) == (last.negatives, last.accepted)
    page = (out / "index.html").read_text()
    assert "1 round so far" in page
    assert page.count("data:image/svg+xml") == 2

    shutil.move(out, now)
    again = InProcess()
    assert run_loop(config, now, start=again) == Round(**row)
    assert again.lines == []
    assert (tmp_path / "judge.txt").read_text() == f"prob:{now / last.next_judge}\n"
    with pytest.raises(ConfigError, match=r"other settings \(truth\)"):
        run_loop(config_in(tmp_path, demo_pairs, "truth=rules"), now, start=again)
    (now / "round_0" / "round.json").write_text("{")
    with pytest.raises(RewardlabError, match=r"round\.json: the file is corrupt"):
        run_loop(config, now, start=again)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        (("truth=foo",), "expected exact, rules or judge:SPEC"),
        (("truth=judge:nope",), "nope"),
        (("truth=judge:prob:./NOT_THERE",), "no such folder"),
        (("truth=judge:openai:x@http://127.0.0.1:9/v1",), r"127\.0\.0\.1:9"),
        (("judge=prob:x",), "expected the folder alone, without prob:"),
        (("judge=nowhere",), "no such file or folder"),
        (("judge_config=stable_reinforc",), "did you mean"),
        (("policy_keys=[nonsense=1]",), "nonsense"),
        (("policy_keys=[model=x]",), "model is set twice"),
        (("judge_keys=[seed=1.5]",), "seed is set twice"),
        (("sft_config=tiny/sft", "sft_keys=[template=r1_reward]"), "so give both the same"),
        (("sft_config=tiny/sft", "sft_keys=[nonsense=1]"), "nonsense"),
        (("max_tokens=0",), "max_tokens"),
        (("launcher=no_such_program",), "cannot find the program"),
        (("held_out={pairs}",), "contains pairs of `data`"),
        (("held_out={open}",), "1 of 6 pairs have no label"),
        (("held_out={twice}",), "share a pair_id"),
        (("judge_file={folder}",), "is a folder"),
        (("stages.rl.run=rm -r x",), "expected a command line of rewardlab"),
    ],
)
def test_what_a_later_stage_would_refuse(demo_pairs: Any, tmp_path: Path, keys: tuple[str, ...], message: str) -> None:
    """Refused before a policy trains, and nothing is left behind."""
    pairs = demo_pairs[0][:6]
    write_parquet([*pairs[:5], replace(pairs[5], preferred=None)], tmp_path / "open.parquet")
    write_parquet([pairs[0], pairs[0]], tmp_path / "twice.parquet")
    places = {name: tmp_path / f"{name}.parquet" for name in ("pairs", "open", "twice")} | {"folder": tmp_path}
    run = InProcess()
    with pytest.raises(RewardlabError, match=message):
        run_loop(config_in(tmp_path, demo_pairs, *(key.format(**places) for key in keys)), tmp_path / "out", start=run)
    assert run.lines == []
    assert not (tmp_path / "out").exists()


def test_the_loop_is_one_process(demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a launcher the error says where that belongs."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(ConfigError, match=r"a launcher started 2; .*launcher='accelerate launch --num_processes 2'"):
        run_loop(config_in(tmp_path, demo_pairs), tmp_path / "out")


def test_a_mistyped_option_is_refused(demo_pairs: Any, tmp_path: Path) -> None:
    """By the command, before anything runs."""
    keys = config_in(tmp_path, demo_pairs)
    words = [f"data={keys.data}", f"held_out={keys.held_out}", f"policy={DEMO_JUDGE}", f"judge={DEMO_JUDGE}"]
    line = keys.stages["bench"].run.replace("--votes", "--vote")
    done = run_main(main, "harden", *words, f"stages.bench.run={line}", "--out", tmp_path / "out")
    assert (done.returncode, "No such option" in done.stderr) == (2, True)
    assert not (tmp_path / "out").exists()


def test_paths(demo_pairs: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """From any working directory they are the same; within the run they start at its folder; a link keeps its name, which says
    what kind of file it is; a hub id stays."""
    config = config_in(tmp_path, demo_pairs, "policy=org/model", "truth=judge:prob:out/teacher")
    (tmp_path / "out" / "teacher").mkdir(parents=True)
    (tmp_path / "pairs.parquet").rename(tmp_path / "0a1b")
    (tmp_path / "pairs.parquet").symlink_to("0a1b")
    monkeypatch.chdir(tmp_path)
    made = with_paths(config.model_copy(update={"data": "pairs.parquet"}), tmp_path / "out")
    assert (made.data, made.policy, made.truth) == (str(tmp_path / "pairs.parquet"), "org/model", "judge:prob:teacher")
    assert Path(made.judge_config).is_absolute()


def test_the_latest_as_good() -> None:
    """Of 100 answers a fraction near a half has a standard error of 5 points, a difference of two 7."""
    policies = {name: {**POLICY_ANSWERS, "right": right} for name, right in (("a", 40), ("b", 52), ("c", 46), ("d", 44))}
    assert latest_as_good(policies) == "c"
    assert latest_as_good({**policies, "e": {**POLICY_ANSWERS, "right": 60}}) == "e"
    assert latest_as_good({name: {**counts, "right": 0} for name, counts in policies.items()}) == "a"
    assert share_right({"questions": 1000, "right": 2}) == 0.002  # what is unknown is no success
    assert share_right({"questions": 0, "right": 0}) == 0.0


def test_answers_add_up() -> None:
    """And their rewards are weighted by how many were paid."""
    lucky, usual = (
        {"questions": 100, "right": 1, "wrong": 99, "unknown": 0, "paid": n, "reward": r} for n, r in ((1, 1.0), (99, 0.2))
    )
    both = {"questions": 200, "right": 2, "wrong": 198, "unknown": 0, "paid": 100, "reward": pytest.approx(0.208)}
    assert add_answers(lucky, usual) == both


def test_checkpoints_before_the_last(tmp_path: Path) -> None:
    """By their steps; that of the last step is the final one."""
    for step in (2, 10, 4):
        (tmp_path / f"checkpoint-{step}").mkdir()
    (tmp_path / "metrics.jsonl").write_text('{"step": 9}\n{"step": 10}\n')
    assert checkpoints_before_last(tmp_path) == ["checkpoint-2", "checkpoint-4"]
