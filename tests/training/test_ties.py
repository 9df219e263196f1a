"""Ties are never trained as a side: no stage takes them, whatever else they carry, and the log counts them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import RLConfig
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import write_jsonl, write_parquet
from rewardlab.errors import DataError
from rewardlab.prompts import load_template
from rewardlab.training.reward_model import labelled
from rewardlab.training.rl import hard_pairs
from rewardlab.training.run.inputs import leave_out_unreadable
from rewardlab.training.sft import sft_dialogues
from rewardlab.types import PreferencePair, Tie

JUDGED, VERDICT = load_template("plain"), load_template("verdict")
KINDS = {1: Tie.TIE, 4: Tie.BOTH_BAD, 7: Tie.TIE}


@pytest.fixture(scope="module")
def pairs(demo_pairs: Any) -> list[PreferencePair]:
    """Ten pairs with a judgment and a tag of difficulty, three of which are ties all the same."""
    made = [
        replace(pair, pair_id=f"pair-{n}", judgment="<think>t</think><answer>1</answer>", attempts="2")
        for n, pair in enumerate(demo_pairs[0][:10])
    ]
    return [replace(pair, preferred=None, tie=KINDS[n]) if n in KINDS else pair for n, pair in enumerate(made)]


def sft(pairs: Any) -> set[str]:
    return {pairs[dialogue.number].pair_id for dialogue in sft_dialogues(pairs, JUDGED)}


def sft_of_verdicts(pairs: Any) -> set[str]:
    return {pairs[dialogue.number].pair_id for dialogue in sft_dialogues(pairs, VERDICT)}


def rl(pairs: Any) -> set[str]:
    return {pair.pair_id for pair in hard_pairs(pairs, RLConfig(model="m"))}


def rm(pairs: Any) -> set[str]:
    return {pair.pair_id for pair in labelled(pairs)}


STAGES: dict[str, Callable[[Any], set[str]]] = {"sft": sft, "sft of verdicts": sft_of_verdicts, "rl": rl, "rm": rm}


@pytest.mark.parametrize("form", ["list", "jsonl", "parquet"])
@pytest.mark.parametrize("stage", STAGES)
def test_a_tie_is_not_trained_on(stage: str, form: str, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """In memory and in files; of ties alone nothing can be learnt."""
    given: Any = pairs
    if form != "list":
        path = tmp_path / f"p.{form}"
        (write_jsonl if form == "jsonl" else write_parquet)(pairs, path)
        given = PairTable(path)
    assert STAGES[stage](given) == {f"pair-{n}" for n in range(10) if n not in KINDS}
    with pytest.raises(DataError, match="no pair"):
        STAGES[stage]([pairs[n] for n in KINDS])


def test_ties_are_counted(pairs: list[PreferencePair], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Where every stage begins; a set without any says nothing."""
    leave_out_unreadable(pairs, tmp_path / "some")
    assert "3 of 10 pairs are ties, which are not trained on" in capsys.readouterr().err
    leave_out_unreadable([pair for pair in pairs if pair.tie is None], tmp_path / "none")
    assert "ties" not in capsys.readouterr().err
