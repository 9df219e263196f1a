"""Choosing pairs by a judge's own votes."""

from __future__ import annotations

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from scipy.stats import spearmanr
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.data.files import data_hash
from rewardlab.data.pairs import read_pairs, write_parquet
from rewardlab.data.votes import StoredVote, read_votes
from rewardlab.distill.selection import Difficulty, agreement, parse_plan, select
from rewardlab.errors import ConfigError, DataError
from rewardlab.types import BOTH_ORDERS, Choice, choice_of


def cast(pair: Any, row: int, right: int, of: int) -> list[StoredVote]:
    """``right`` of ``of`` votes right in each order, the rest wrong."""
    votes = []
    for order in BOTH_ORDERS:
        better = choice_of(pair.preferred, order)
        votes += [StoredVote(row, order, better if n < right else better.swap(), "") for n in range(of)]
    return votes


def test_the_lowest_within_each_domain(demo_pairs: Any) -> None:
    """Two domains of five, one much harder: the same share of each; shifting one domain's scores changes nothing."""
    pairs = [replace(pair, source="ab"[n // 5], category="") for n, pair in enumerate(demo_pairs[0][:10])]
    rights = [4, 3, 2, 4, 4, 10, 9, 8, 10, 10]
    votes = [vote for row, right in enumerate(rights) for vote in cast(pairs[row], row, right, 10)]
    chosen = select(pairs, votes, "hardest:0.2")
    assert chosen.chosen == [2, 7]
    assert chosen.difficulties[7].student_rate == 0.8
    assert select(pairs, votes, "hardest:0").chosen == []
    assert select(pairs, votes, "hardest:1").chosen == list(range(10))


def test_always_wrong_is_suspect_not_hard(demo_pairs: Any) -> None:
    """Wrong four times of four in both orders: to be labelled again. Wrong in one order only is position bias, and hard."""
    pairs = [replace(pair, source="", category="") for pair in demo_pairs[0][:4]]
    one_sided = [replace_choice(vote, Choice.FIRST) for vote in cast(pairs[1], 1, 0, 4)]
    votes = [*cast(pairs[0], 0, 0, 4), *one_sided, *cast(pairs[2], 2, 4, 4), *cast(pairs[3], 3, 0, 3)]
    chosen = select(pairs, votes, "hardest:1")
    assert (chosen.suspects, chosen.chosen) == ([0], [1, 2, 3])


def replace_choice(vote: StoredVote, choice: Choice) -> StoredVote:
    return StoredVote(vote.row, vote.order, choice, vote.text)


def test_a_vote_without_a_verdict_is_not_right(demo_pairs: Any) -> None:
    pairs = [demo_pairs[0][0]]
    votes = [StoredVote(0, order, None, "") for order in BOTH_ORDERS for _ in range(4)]
    chosen = select(pairs, votes, "hardest:1")
    assert chosen.difficulties[0].student_rate == 0.0
    assert (chosen.chosen, chosen.suspects) == ([0], [])  # nor is it a word against the label


def test_other_files_are_refused(demo_pairs: Any, tmp_path: Path) -> None:
    with pytest.raises(DataError, match="this is another file"):
        select(demo_pairs[0][:1], cast(demo_pairs[0][3], 3, 1, 2), "hardest:0.5")
    with pytest.raises(DataError, match="bench run pairs"):
        select(demo_pairs[0][:1], [], "hardest:0.5")
    (tmp_path / "x.jsonl").write_text('{"a": 1}\n')
    with pytest.raises(DataError, match=r"votes\.jsonl"):
        list(read_votes(tmp_path / "x.jsonl"))


def test_the_command(demo_pairs: Any, tmp_path: Path) -> None:
    """From the votes of a real bench run on disk to two files of pairs."""
    pairs = demo_pairs[0][:4]
    write_parquet(pairs, tmp_path / "pairs.parquet")
    votes = [vote for row, right in enumerate((0, 1, 2, 4)) for vote in cast(pairs[row], row, right, 4)]
    rows: dict[int, list[Any]] = {}
    for vote in votes:
        rows.setdefault(vote.row, []).append({"order": vote.order, "choice": vote.choice, "text": "t"})

    def write(data: str) -> None:
        head = {"identity": {"data": data}}
        lines = [head, *({"pass": "votes", "row": row, "votes": of_row} for row, of_row in rows.items())]
        (tmp_path / "votes.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))

    command = ["select", "--data", str(tmp_path / "pairs.parquet"), "--votes", str(tmp_path / "votes.jsonl")]
    options = [*command, "--plan", "hardest:0.34", "--out", str(tmp_path / "out")]
    write("that of another file")
    refused = CliRunner().invoke(app, options)
    assert refused.exit_code != 0
    assert "its votes are not on the pairs of" in str(refused.exception)
    write(data_hash(tmp_path / "pairs.parquet"))
    done = CliRunner().invoke(app, options)
    assert done.exit_code == 0, done.output
    assert [pair.pair_id for pair in read_pairs(tmp_path / "out" / "hard.parquet")] == [pairs[1].pair_id]
    assert [pair.pair_id for pair in read_pairs(tmp_path / "out" / "suspects.parquet")] == [pairs[0].pair_id]


def of(rate: float | None = None, attempts: int | None = None, **fields: Any) -> Difficulty:
    return Difficulty(attempts, student_rate=rate, **fields)


def test_tiers_and_plans() -> None:
    """Worked by hand: ten pairs of known rates, one of them a suspect; every plan's choice."""
    known = [of(rate) for rate in (1.0, 0.9, 0.8, 0.6, 0.5, 0.25, 0.2, 0.0)] + [of(0.0, suspect=True), of(None, attempts=2)]
    tiers = ["easy", "easy", "medium", "medium", "hard", "hard", "very_hard", "very_hard", "very_hard", "medium"]
    assert [one.tier for one in known] == tiers
    names = ["x"] * 10

    def chosen(plan: str, seed: int = 0) -> list[int]:
        return parse_plan(plan)(known, names, seed)

    assert chosen("all") == [0, 1, 2, 3, 4, 5, 6, 7, 9]
    assert chosen("attempts>=2") == [9]
    assert chosen("tiers:hard, medium") == [2, 3, 4, 5, 9]
    assert chosen("hardest:0.25") == [6, 7]
    mixed = chosen("mix:easy=0.5,hard=0.5")
    assert mixed == [0, 1, 4, 5]
    assert len(chosen("mix:easy=0.25,medium=0.75")) == 4  # three medium ones allow four in all
    drawn = [n for seed in range(300) for n in chosen("rlcs:0.25", seed)]
    assert len(drawn) == 600
    assert drawn.count(4) > 3 * drawn.count(0)  # 4 p (1 - p): 1 against 0.05
    for bad in ("hardest", "hardest:2", "tiers:tough", "mix:easy=0.5", "attempts>=9", "best"):
        with pytest.raises(ConfigError, match="plan"):
            parse_plan(bad)


def test_measures_that_agree_and_that_do_not() -> None:
    """Two measures in the same order, one against both; the interval holds scipy's own coefficient."""
    known = [Difficulty(1 + n % 4, 1 - (n % 4) / 4, (n % 4) / 4) for n in range(40)]
    found = agreement(known)
    assert found["attempts / teacher_share"]["spearman"] == pytest.approx(1)
    assert found["attempts / student_rate"]["spearman"] == pytest.approx(-1)
    assert agreement([Difficulty(1)] * 9)["attempts / teacher_share"] == {"pairs": 0, "spearman": None, "interval": None}
    dice = random.Random(0)
    noisy = [Difficulty(dice.randint(1, 4), dice.random()) for _ in range(200)]
    one = agreement(noisy)["attempts / teacher_share"]
    rho = spearmanr([d.attempts for d in noisy], [1 - (d.teacher_share or 0) for d in noisy]).statistic
    assert one["spearman"] == pytest.approx(rho)
    low, high = one["interval"]
    assert low < rho < high
    assert high - low == pytest.approx(2 * 1.96 / 197**0.5, abs=0.02)


def test_by_the_teacher_alone(demo_pairs: Any) -> None:
    """Without votes: attempts as the paper, tiers by the teacher's share; a plan that needs votes says so."""
    tags = ("1", "2", "3", "unsolved")
    pairs = [replace(pair, attempts=tag) for pair, tag in zip(demo_pairs[0][:4], tags, strict=True)]
    found = select(pairs, None, "attempts>=2")
    assert found.chosen == [1, 2, 3]
    report = found.report("attempts>=2")
    assert report["before"]["attempts"] == {"1": 1, "2": 1, "3": 1, "unsolved": 1, "not asked": 0}
    assert report["after"]["tier"] == {"easy": 0, "medium": 1, "hard": 1, "very_hard": 1, "unknown": 0}
    shared = [replace(pair, teacher_share=share) for pair, share in zip(pairs, (0.1, 0.5, 0.7, 1.0), strict=True)]
    assert select(shared, None, "tiers:very_hard,hard").chosen == [0, 1]
    with pytest.raises(DataError, match="--votes"):
        select(pairs, None, "hardest:0.1")
    with pytest.raises(DataError, match="rewardlab distill"):
        select(demo_pairs[0][:4], None, "attempts>=2")
