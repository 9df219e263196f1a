"""The policy study: what counts as right, the plan, the report's arithmetic, and every arm in small."""

from __future__ import annotations

import json
import shutil
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eval.studies.policy import ARMS, Settings, policy_config
from eval.studies.policy_report import draw, markdown, summarize
from eval.studies.policy_trials import MANY_WORDED, Curves, PolicyContext, is_right
from eval.studies.study import Trial, plan, read_records, run_trials
from eval.studies.tables import write_report
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.errors import ConfigError
from rewardlab.types import PreferencePair

SMALL = Settings(
    steps=2,
    rollout_batch_size=8,
    group=4,
    max_tokens=8,
    judge_tokens=16,
    start_steps=2,
    scalar_steps=2,
    likelihood_steps=2,
    value_steps=2,
    num_test=4,
    test_every=1,
)


@pytest.mark.parametrize(
    ("answer", "right"),
    [("It is red.", True), (" It is red ", True), ("<think>blue</think>It is red.", True), ("It is blue.", False), ("", False)],
)
def test_what_is_right(answer: str, right: bool) -> None:
    """The preferred response, with or without its full stop; thinking is not the answer."""
    assert is_right(answer, PreferencePair("p", "q", ("It is blue.", "It is red."), 1)) is right


def test_only_the_pay_differs() -> None:
    """Configs of all arms are one but for the anchor and the KL term."""
    configs = {arm: policy_config(Trial(0, arm), Settings(), model=Path("m")) for arm in ARMS if not ARMS[arm].ppo}
    changes = {"anchor": "group", "kl_coef": 0.0, "kl": "k1_reward"}
    assert len({config.model_copy(update=changes).model_dump_json() for config in configs.values()}) == 1
    assert {config.anchor for config in configs.values()} == {"preferred", "start", "best", "group"}
    held = [arm for arm, config in configs.items() if config.kl_coef]
    assert held[:5] == ["right_answer_kl", "right_answer_kl_1", "first_policy_kl", "best_of_four_kl", "truth_kl"]
    assert all(configs[arm].kl == "k2_loss" for arm in held)  # a term of the loss, which the policy cannot trade for reward


def test_pairwise_rls_own_method() -> None:
    """PPO as the recipe has it, with a critic that is fitted first, paid and sized like the arm beside it."""
    arms = ("right_answer_kl", "right_answer_kl_ppo")
    other, ppo = (policy_config(Trial(0, arm), Settings(), model=Path("m")) for arm in arms)
    assert (ppo.advantage, ppo.group_size, ppo.average, ppo.value_pretrain_steps) == ("gae", 1, "token", 100)
    same = ("kl_coef", "kl", "anchor", "learning_rate", "max_steps", "rollout_batch_size", "max_completion_length")
    assert [getattr(other, name) for name in same] == [getattr(ppo, name) for name in same]


def test_what_was_paid_beside_what_was_true() -> None:
    """Worked by hand: a cut-off answer is not right whatever it says; one that was not paid counts in what was true only."""
    curves, pair = Curves(), PreferencePair("p", "q", ("yes", "no"), 0)
    curves([pair] * 5, ["yes", "no", "no", "yes", "yes"], [True, True, True, True, False], [0.0, 1.0, 0.5, None, 0.0])
    curves([pair] * 2, ["no", "no"], [True, True], [None, None])
    assert curves.true == [0.4, 0.0]
    assert curves.paid == [0.375, None]
    assert (curves.paid_for_right, curves.paid_for_wrong) == ([0.0, None], [0.5, None])
    assert curves.unreadable == 3


def record(arm: str, seed: int, accuracy: float) -> dict[str, Any]:
    curves = {"paid": [0.1, 0.5], "true": [0.4, accuracy], "paid_for_right": [0.6, None], "paid_for_wrong": [0.2, 0.3]}
    times = {"cpu_s": 6.0, "wall_s": 12.0}
    return {
        "arm": arm,
        "seed": seed,
        "accuracy": accuracy,
        "greedy_accuracy": 0.9,
        "unreadable": 1,
        "curves": curves,
        **times,
    } | {
        "commit": "abc",
        "answers": [],
    }


def test_the_report(tmp_path: Path) -> None:
    """Ten points better than the scalar head on both seeds; right answers were paid 0.4 more than wrong ones."""
    rows = [record(arm, seed, base + 0.1 * seed) for arm, base in (("scalar", 0.5), ("right_answer", 0.6)) for seed in range(2)]
    start = {"identity": {"settings": asdict(Settings()), "judge": "j"}, "cpu_s": 6.0, "wall_s": 6.0}
    start |= {"accuracy": 0.4, "greedy_accuracy": 0.5, "num_questions": 4}
    summary = summarize(rows, start, 2)
    row = summary["table"]["right_answer"]
    assert row["against"] == {"mean": pytest.approx(0.1), "interval": pytest.approx([0.1, 0.1])}
    assert row["separation"]["mean"] == pytest.approx(0.4)
    assert row["curves"]["true"] == [0.4, pytest.approx(0.65)]
    assert row["unreadable"] == 2
    perfect = record("truth", 0, 1.0)
    perfect["curves"] = {**perfect["curves"], "paid_for_wrong": [None, None]}
    assert summarize([perfect], start, 2)["table"]["truth"]["separation"] is None  # not 0: nothing was there to tell apart
    write_report("policy", summary, tmp_path, markdown=markdown, draw=draw)
    assert "| judge, against the right answer | 65.0 [" in (tmp_path / "policy.md").read_text()
    assert (tmp_path / "policy.png").stat().st_size > 5000
    assert markdown(json.loads((tmp_path / "policy.json").read_text())) == (tmp_path / "policy.md").read_text()


def test_every_arm_in_small(finished_run: Path, tiny_checkpoint: Path, demo_pairs: Any, tmp_path: Path) -> None:
    """From an untaught base model: start, both reward models and all rewards, through the trainers users get."""
    run = tmp_path / "run"
    for stage in ("sft", "rl"):
        shutil.copytree(finished_run / "rl", run / stage)
    shutil.copytree(tiny_checkpoint, run / "demo" / "base")
    pairs = [pair for pair in demo_pairs[0] if pair.question != MANY_WORDED]
    write_parquet([replace(pair, judgment="") for pair in pairs[:64]], run / "demo" / "train.parquet")
    write_parquet(read_pairs(finished_run / "demo" / "test.parquet"), run / "demo" / "test.parquet")
    opener = partial(PolicyContext, run, SMALL, tmp_path / "out", (run / "rl" / "final", run / "sft" / "final"))
    start = run_trials(opener, plan(ARMS, tuple(ARMS), (0,)), tmp_path / "out", workers=1)
    records = {row["arm"]: row for row in read_records(tmp_path / "out")}
    assert set(records) == set(ARMS)
    assert all(0 <= row["accuracy"] <= 1 for row in records.values())
    assert {len(row["signs"]["answers/novelty"]) for row in records.values()} == {SMALL.steps}
    assert all([step for step, _ in row["held_out"]] == [0, 1, 2] for row in records.values())
    assert (tmp_path / "out" / "anchors" / "start" / "anchors.jsonl").exists()
    assert "Bradley-Terry" in markdown(summarize(list(records.values()), start, 1))
    with pytest.raises(ConfigError, match="finished quickstart"):
        PolicyContext(tmp_path / "none", SMALL, tmp_path / "out")
