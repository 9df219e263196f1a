"""A judge with a guarantee: a verdict or none, and the sentence where the guarantee is of something else."""

from __future__ import annotations

import asyncio
import math
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from rewardlab import AsyncJudge, ConfigError, SyncJudge
from rewardlab.config.judge import JudgeConfig
from rewardlab.errors import DataError
from rewardlab.judging.guarantee import Guarantee, judge_facts, read_guarantee
from rewardlab.judging.spec import DEMO_JUDGE, judge_weights_id
from rewardlab.metrics.guarantee import CertifiedThreshold
from rewardlab.types import Message, Outcome, Verdict, VerdictStatus
from tests.support.serving import judge_of

CERTIFIED = CertifiedThreshold(0.05, 0.9, 0.7, 300, 250, 4, 0.04)
Change = Callable[[Guarantee], Guarantee]


def wavers(prompt: tuple[Message, ...], draw: int) -> str:
    """For "good" in every draw, for "fair" against "bad" in two of three."""
    text = prompt[0].text
    best = "good" if "good" in text else "fair"
    first = text.find(best) < text.find("bad")
    return f"<answer>{1 if first == (best == 'good' or draw % 3 > 0) else 2}</answer>"


def with_guarantee(change: Change = lambda guarantee: guarantee) -> SyncJudge:
    engine = judge_of(wavers)
    return SyncJudge(engine, guarantee=change(Guarantee(CERTIFIED, judge_facts(engine.config, engine.identity), 3, {})))


def test_a_verdict_or_none() -> None:
    """Three votes of each order, as certified; a share of 2/3 is below the threshold of 0.7."""
    judge = with_guarantee()
    sure, unsure = (judge.compare("Which?", [answer, "bad"], error=0.05) for answer in ("good", "fair"))
    assert (sure.winner, sure.share_0, len(sure.votes)) == (0, 1.0, 6)
    assert (unsure.outcome, unsure.winner, unsure.share_0, unsure.share) == (Outcome.ABSTAINED, None, None, None)
    assert unsure.summary() == "abstained; 6 votes; both orders agree"
    assert judge.compare("Which?", ["fair", "bad"], votes=3).winner == 0
    assert judge.compare("Which?", ["good", "bad"], error=0.2).winner == 0
    assert asyncio.run(AsyncJudge(judge).compare("Which?", ["fair", "bad"], error=0.05)).outcome is Outcome.ABSTAINED


def test_a_judgment_that_lacks_votes_is_no_verdict() -> None:
    """Votes that failed at the endpoint, or were never sampled, are not those that were certified."""
    judge = with_guarantee()
    certified, whole = Guarantee(CERTIFIED, {}, 3, {}), judge.compare("Which?", ["good", "bad"], votes=3).judgment
    assert certified.decide(whole) == whole
    failed = replace(whole.votes[0], verdict=Verdict(None, VerdictStatus.ERROR))
    for votes in (whole.votes[1:], (failed, *whole.votes[1:])):
        assert certified.decide(replace(whole, votes=votes)).outcome is Outcome.ABSTAINED
    panel = [replace(vote, member=name) for name in "ab" for vote in whole.votes]
    assert certified.decide(replace(whole, votes=tuple(panel))).outcome is whole.outcome
    assert certified.decide(replace(whole, votes=tuple(panel[1:]))).outcome is Outcome.ABSTAINED
    silent = replace(whole, votes=whole.votes[:3])  # of one order
    assert certified.decide(silent).outcome is Outcome.NO_VALID_VOTE


def test_rewards_of_abstained_comparisons_are_none() -> None:
    judge = with_guarantee()
    assert judge.rewards("Which?", ["fair", "bad"], error=0.05) == [None, None]
    assert judge.rewards("Which?", ["good", "bad"], error=0.05) == [1.0, -1.0]
    assert asyncio.run(AsyncJudge(judge).rewards("Which?", ["fair", "bad"], error=0.05)) == [None, None]


@pytest.mark.parametrize(
    ("change", "call", "said"),
    [
        (lambda g: replace(g, judge={**g.judge, "judge": "other"}), {}, "is of another judge: its judge is 'other'"),
        (lambda g: replace(g, judge={**g.judge, "weights": "ab"}), {}, "its weights is 'ab', this one's ''"),
        (lambda g: replace(g, judge={**g.judge, "temperature": 0.5}), {}, r"its temperature is 0\.5"),
        (lambda g: replace(g, judge={}), {}, "is of another judge: its judge is None"),
        (lambda g: g, {"error": 5}, r"expected an error within 0\.\.0\.5 .* got 5"),
        (lambda g: g, {"error": math.nan}, "got nan"),
        (lambda g: g, {"error": 0.02}, r"0\.02 was requested, but 0\.05 was certified"),
        (lambda g: g, {"votes": 5}, "votes is 5, but the guarantee is of 3"),
        (lambda g: replace(g, certified=replace(CERTIFIED, threshold=None)), {}, "no threshold was certified"),
    ],
)
def test_no_guarantee_fits(change: Change, call: dict[str, float], said: str) -> None:
    judge = with_guarantee(change)
    for ask in (judge.compare, judge.rewards):
        with pytest.raises(ConfigError, match=said):
            ask("Which?", ["good", "bad"], **{"error": 0.05, **call})  # type: ignore[operator]


def test_without_a_guarantee() -> None:
    with pytest.raises(ConfigError, match=r"error=0\.05 needs a guarantee"):
        SyncJudge(judge_of(wavers)).compare("Which?", ["good", "bad"], error=0.05)


def test_a_file_is_read_back_or_refused(tmp_path: Path) -> None:
    guarantee = Guarantee(CERTIFIED, {"judge": "prob:"}, 8, {"benchmark": "pairs"})
    guarantee.write(tmp_path / "guarantee.json")
    assert read_guarantee(tmp_path) == guarantee
    text = (tmp_path / "guarantee.json").read_text()
    for old, new in (
        ('"threshold": 0.7', '"threshold": 0.1'),
        ('"error": 0.05', '"error": -1'),
        ('"error": 0.05', '"error": "0.05"'),
        ('"confidence": 0.9', '"confidence": null'),
        ('"votes": 8', '"votes": 0'),
        ('"error": 0.05', '"error": "0.05"'),
        ('"confidence": 0.9', '"confidence": 1.0'),
        ('"certified"', '"other"'),
        ("{", ""),
    ):
        (tmp_path / "changed.json").write_text(text.replace(old, new, 1))
        with pytest.raises(DataError, match="not a guarantee"):
            read_guarantee(tmp_path / "changed.json")


def test_a_checkpoint_is_known_by_its_weights(tmp_path: Path) -> None:
    """Wherever it is; other weights are other facts."""
    for name in ("one", "two"):
        shutil.copytree(DEMO_JUDGE, tmp_path / name)
    names = [f"prob:{tmp_path / name}" for name in ("one", "two")]
    facts = [judge_facts(JudgeConfig.of(name), {"weights": judge_weights_id(name)}) for name in names]
    assert facts[0] == facts[1]
    with (tmp_path / "two" / "model.safetensors").open("r+b") as file:
        file.seek(-1, 2)
        file.write(b"\x01")
    changed = judge_facts(JudgeConfig.of(names[1]), {"weights": judge_weights_id(names[1])})
    assert [name for name in changed if changed[name] != facts[0][name]] == ["weights"]
