"""Ties are never trained as a side: no stage takes them, whatever else they carry, and the log counts them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import DistillConfig, FilterConfig, RLConfig, SelfDistilConfig
from rewardlab.curation.quality import filter_set
from rewardlab.data.pair_table import PairTable
from rewardlab.data.pairs import read_pairs, write_jsonl, write_parquet
from rewardlab.distill.pipeline import distill, survey
from rewardlab.distill.self_distill import self_distill
from rewardlab.errors import DataError
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.training.reward_model import labelled
from rewardlab.training.rl import hard_pairs
from rewardlab.training.run.inputs import count_ties
from rewardlab.training.sft import sft_dialogues
from rewardlab.types import BOTH_ORDERS, PreferencePair, Tie, choice_of
from rewardlab.verdicts.parse import format_verdict

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


def test_ties_are_counted(pairs: list[PreferencePair], capsys: pytest.CaptureFixture[str]) -> None:
    """Where every stage that learns from labels begins; a set without any says nothing."""
    count_ties(pairs)
    assert "3 of 10 pairs are ties, which are not trained on" in capsys.readouterr().err
    count_ties([pair for pair in pairs if pair.tie is None])
    assert "ties" not in capsys.readouterr().err


COMMANDS = {
    "sft": "sft --data {data} --out {out} --model demo template=plain",
    "sft of verdicts": "sft --data {data} --out {out} --model demo template=verdict",
    "rl": "rl --data {data} --out {out} --model demo template=plain",
    "rm": "rm --data {data} --out {out} --model demo",
    "distill": "distill --data {data} --out {out} model=m base_url=http://127.0.0.1:9/v1",
    "self-distil": "self-distil --data {data} --out {out} --judge hf:{demo}",
    "steps": "steps --data {data} --out {out} --judge hf:{demo}",
    "negatives": "data negatives {data} --out {out} --policy {demo} --judge hf:{demo} --truth exact",
    "filter": "data filter {data} --out {out}",
}


@pytest.mark.parametrize("name", COMMANDS)
def test_a_command_on_ties_alone(name: str, pairs: list[PreferencePair], tmp_path: Path) -> None:
    """One sentence, and nothing is written."""
    write_parquet([pairs[n] for n in KINDS], tmp_path / "ties.parquet")
    command = COMMANDS[name].format(data=tmp_path / "ties.parquet", out=tmp_path / "out", demo=DEMO_JUDGE)
    with pytest.raises(DataError, match=r"^all 3 pairs are ties; training needs pairs with a better response$"):
        CliRunner().invoke(app, command.split(), catch_exceptions=False)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("stage", ["sft", "rl", "rm", "distill"])
def test_the_doctor_says_that_all_are_ties(stage: str, pairs: list[PreferencePair], tmp_path: Path) -> None:
    write_parquet([pairs[n] for n in KINDS], tmp_path / "ties.parquet")
    keys = ["base_url=http://127.0.0.1:9/v1"] if stage == "distill" else ["model=demo"]
    config = {"sft": "tiny/sft", "rl": "tiny/rl", "rm": "rm/qwen2_5_vl_7b", "distill": "tiny/distill"}[stage]
    done = CliRunner().invoke(app, ["doctor", config, *keys, "--data", str(tmp_path / "ties.parquet"), "--dry-run"])
    assert done.exit_code == 1
    assert "all 3 pairs are ties; training needs pairs with a better response" in " ".join(done.output.split())


def test_a_teacher_is_not_asked_about_ties(
    pairs: list[PreferencePair], demo_server: Callable[..., str], tmp_path: Path
) -> None:
    """The labelled pairs of a set with ties are distilled, and the set is known again without its ties."""
    config = DistillConfig(model="demo-teacher", base_url=demo_server(), template="plain", max_tokens=128)
    statistics = distill(pairs, config, tmp_path / "out")
    assert (statistics["num_pairs_asked_about"], statistics["num_failed_pairs"]) == (7, 0)
    kept = {pair.pair_id for pair in PairTable(tmp_path / "out" / "distilled.parquet")}
    assert kept <= {f"pair-{n}" for n in range(10) if n not in KINDS}
    assert survey(pairs) == survey([pair for pair in pairs if pair.tie is None])


def test_judgments_of_ties_are_not_counted_as_kept(pairs: list[PreferencePair], tmp_path: Path) -> None:
    """The filter keeps ties among the pairs; SFT learns from the other judgments."""
    long = "<think>" + "The first response names the colour that the image shows. " * 3 + "</think><answer>1</answer>"
    write_parquet([replace(pair, judgment=long) for pair in pairs], tmp_path / "p.parquet")
    report = filter_set(tmp_path / "p.parquet", FilterConfig(), tmp_path / "out")
    assert (report["num_pairs"], report["num_pairs_kept"]) == (10, 10 - sum(report["reasons"].values()))
    assert report["num_judgments"] == 7


def test_ties_are_no_unlabelled_pairs(pairs: list[PreferencePair], tmp_path: Path) -> None:
    """`data validate` and `data stats` name them."""
    write_parquet(pairs, tmp_path / "p.parquet")
    said = CliRunner().invoke(app, ["data", "validate", str(tmp_path / "p.parquet")]).output
    assert "10 good (3 ties: for a benchmark, not to train on), 0 bad" in said
    CliRunner().invoke(app, ["data", "stats", str(tmp_path / "p.parquet"), "--out", str(tmp_path / "stats")])
    labels = json.loads((tmp_path / "stats" / "stats.json").read_text())["preferred"]
    assert (labels["tie"], labels["both_bad"]) == (2, 1)


def test_a_judge_is_not_sampled_on_ties(pairs: list[PreferencePair], tmp_path: Path) -> None:
    """A judge that is right on the labelled pairs and gives no verdict on others, which is no tie."""

    def answer(prompt: Any, n: int) -> str:
        for pair in pairs:
            for order in BOTH_ORDERS:
                if pair.preferred is not None and prompt == build_messages(pair, order=order, template=JUDGED):
                    return format_verdict(choice_of(pair.preferred, order), f"looked {n}")
        return "nothing"

    judge = GenerativeJudge(ScriptedSampler(answer), JUDGED)
    statistics = self_distill(pairs, judge, SelfDistilConfig(samples=4), tmp_path / "out")
    assert (statistics["num_pairs"], statistics["num_pairs_kept"], statistics["num_votes"]) == (7, 7, 56)
    assert all(pair.tie is None for pair in read_pairs(tmp_path / "out" / "distilled.parquet"))
