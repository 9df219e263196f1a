"""The study of self-verification in small: its starts, PAG and RL without verification, and the page that it writes."""

from __future__ import annotations

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from eval.self_verification import ARMS, Context, Settings, markdown, summarize
from eval.studies.plans import plan
from eval.studies.runner import read_records, run_trials
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.types import choice_of
from rewardlab.verdicts.parse import format_verdict

SMALL = Settings(
    num_votes=2,
    start_steps=2,
    value_pretrain_steps=2,
    rl_steps=2,
    rollout_batch_size=8,
    batch_size=4,
    max_tokens=16,
    num_test=3,
)


def test_all_arms_in_small(finished_run: Path, tmp_path: Path) -> None:
    """Each arm leaves its votes; without verification nothing is revised, and the page has a row but no section for it."""
    run = tmp_path / "run"
    shutil.copytree(finished_run / "rl", run / "sft")
    shutil.copytree(finished_run / "demo", run / "demo")
    pairs = [
        replace(
            pair,
            judgment=format_verdict(choice_of(pair.preferred or 0, pair.order), f"{pair.responses[pair.preferred or 0]} fits"),
            attempts="2",
        )
        for pair in read_pairs(finished_run / "distill" / "distilled.parquet")
    ]
    write_parquet(pairs, run / "distill" / "distilled.parquet")
    out = tmp_path / "out"
    start = run_trials(partial(Context, run, SMALL, out), plan(ARMS, list(ARMS), (0,)), out, workers=1)
    records = {record["arm"]: record for record in read_records(out)}
    assert records.keys() == ARMS.keys()
    assert {arm: len(record["votes"]) for arm, record in records.items()} == dict.fromkeys(ARMS, 6)
    assert all(not revised and first == last for _, first, _, revised, last in records["unverified"]["votes"])
    assert {arm for arm, record in records.items() if record["metrics"]} == {"pag", "unverified"}
    text = markdown(summarize(start, list(records.values())), list(records.values()), "the command")
    titles = [line for line in text.splitlines() if line.startswith("## ")]
    assert titles == [f"## {title}" for arm, title in ARMS.items() if arm != "unverified"]
    assert all(f"| {title} |" in text for title in ARMS.values())


def test_the_page_by_hand() -> None:
    """Of four judgments one right one is lost and two wrong ones are mended: 50 % first, 75 % last."""

    def record(arm: str, **more: Any) -> dict[str, Any]:
        votes = [["a", True, True, False, True], ["b", True, False, True, False]]
        votes += [["c", False, False, True, True], ["d", False, False, True, True]]
        return {"arm": arm, "seed": 0, "votes": votes, "metrics": [], "cpu_s": 1.0, "commit": "abc"} | more

    records = [record("taught"), record("unverified", votes=[[name, True, None, False, True] for name in "abcd"])]
    summary = summarize({"accuracy": 0.5, "on_train": 0.75}, records)
    assert summary["arms"]["taught"]["scores"]["net_gain"]["difference"] == pytest.approx(0.25)
    text = markdown(summary, records, "the command")
    row = next(line for line in text.splitlines() if line.startswith(f"| {ARMS['taught']}"))
    assert row.split("|")[2].strip().startswith("50.0")
    assert row.split("|")[3].strip().startswith("75.0")
    assert row.endswith("| 75.0 | 0.0 |")
    assert "Revising gains **+25.0 points" in text
    assert f"| {ARMS['unverified']} | 100.0" in text
