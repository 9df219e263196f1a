"""The most that a teacher's judgments can cost, and options of the doctor without effect."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import DistillConfig
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import DataError
from rewardlab.health.doctor import distillation_cost
from rewardlab.prompts import build_messages, load_template
from rewardlab.types import PreferencePair
from tests.support.images import png

QUESTION, TEXTS = "What is it? " * 40, ("It is red. " * 20, "It is blue. " * 20)
PAIRS = [PreferencePair(f"p{n}", QUESTION, TEXTS, 0, (png((560, 280)),)) for n in range(100)]


def config_of(**keys: Any) -> DistillConfig:
    return DistillConfig.model_validate({"prices": {"prompt": 2.5, "completion": 10.0}, "template": "plain", **keys})


@pytest.mark.parametrize(("keys", "requests"), [({}, 300), ({"votes": 4}, 400), ({"max_attempts": 1}, 100)])
def test_a_bound_by_hand(keys: dict[str, int], requests: int) -> None:
    """All attempts or votes; prompts of four bytes a token and a token for each 28 x 28 px; answers of ``max_tokens``."""
    prompt = build_messages(PAIRS[0], order=PAIRS[0].order, template=load_template("plain"))
    text = "".join(part.text for message in prompt for part in message.parts if part.image is None)
    tokens = round(len(text.encode()) / 4) + 200
    finding = distillation_cost(config_of(**keys, max_tokens=500), PAIRS)
    assert f"at most {requests:,} requests of {tokens:,} tokens" in finding.message
    assert f"{requests * (tokens * 2.5 + 500 * 10) / 1e6:,.2f} US dollars" in finding.message
    assert finding.outcome == "ok"


def test_budgets_and_prices() -> None:
    exceeded = distillation_cost(config_of(budget={"usd": 0.01}), PAIRS)
    assert exceeded.outcome == "look"
    assert exceeded.message.endswith("more than its budget of 0.01")
    assert "the config has no prices" in distillation_cost(config_of(prices={}), PAIRS).message


def test_pairs_that_the_stage_refuses() -> None:
    with pytest.raises(DataError, match="have no label"):
        distillation_cost(config_of(), [replace(PAIRS[0], preferred=None)])
    with pytest.raises(DataError, match="share a pair_id"):
        distillation_cost(config_of(), [PAIRS[0], PAIRS[0]])


def test_the_command(tmp_path: Path) -> None:
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    data = ("--data", str(tmp_path / "pairs.parquet"))
    for words, expected in (((), "--data PAIRS gives the most"), (data, "at most 300 requests")):
        done = CliRunner().invoke(app, ["doctor", "distill/gpt_4o", *words])
        assert done.exit_code == 0
        assert expected in done.output


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (("distill/gpt_4o", "--memory", "80"), "--memory"),
        (("SUITE", "--memory", "80", "--processes", "2"), "--processes, --memory"),
        (("SUITE", "--data", "."), "--data"),
        (("accelerate/zero3", "model=x"), "KEY=VALUE"),
        (("distill/gpt_4o", "--images", "x"), "--images"),
        (("recipes/example", "--host-memory", "2"), "--host-memory"),
    ],
)
def test_no_option_is_ignored(words: tuple[str, ...], flags: str, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("title: Ours\nbenchmarks:\n  - {benchmark: pairs, data: pairs.parquet}\n")
    result = CliRunner().invoke(app, ["doctor", *(str(suite) if word == "SUITE" else word for word in words)])
    assert result.exit_code != 0
    assert str(result.exception).startswith(f"{flags}: no effect on"), result.exception


def test_a_suite_is_checked_by_its_keys(tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("title: Ours\nbenchmarks: [{benchmark: pairs, data: blind.parquet}]\n")
    assert "ok     config: a suite, Ours: benchmarks pairs" in CliRunner().invoke(app, ["doctor", str(suite)]).output
    result = CliRunner().invoke(app, ["doctor", str(suite), "nonsense=3"])
    assert result.exit_code == 1
    assert "nonsense" in result.output


def test_a_judge_that_does_not_exist_yet() -> None:
    result = CliRunner().invoke(app, ["doctor", "policy/pairwise_rl", "judge=prob:./NOT_THERE", "--dry-run"])
    assert "look   judge: ./NOT_THERE: no such folder" in result.output
