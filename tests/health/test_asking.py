"""What asking a teacher, or the judges of a suite, is said to cost before anything is asked."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner

from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.config import DistillConfig
from rewardlab.config.data import Budget
from rewardlab.data.pairs import write_parquet
from rewardlab.errors import ConfigError, DataError
from rewardlab.health.asking import AT_ONCE, JUDGMENT_TOKENS, benchmark_load, prompt_tokens, teacher_findings
from rewardlab.models.checkpoints import CARD
from rewardlab.prompts import load_template
from rewardlab.types import PreferencePair
from tests.support.images import png

QUESTION, TEXTS = "What is it? " * 40, ("It is red. " * 20, "It is blue. " * 20)
PAIRS = [PreferencePair(f"p{n}", QUESTION, TEXTS, 0, (png((560, 280)),)) for n in range(100)]


@pytest.fixture
def run() -> Callable[..., str]:
    def call(*words: str) -> str:
        result = CliRunner().invoke(app, ["doctor", *words], env={"COLUMNS": "400"})
        assert result.exit_code == 0, result.output
        return result.output

    return call


def test_a_prompt_is_its_text_and_its_picture() -> None:
    """Four bytes a token, and a token for each 28 x 28 px; the template's words are counted, too."""
    number, source = prompt_tokens(PAIRS, load_template("plain"), "gpt-4o")
    of_text = sum(map(len, (QUESTION, *TEXTS))) / 4
    assert of_text + 200 < number < of_text + 200 + 150
    assert "pictures as Qwen/Qwen2.5-VL-7B-Instruct reads them" in source
    assert "pictures" not in prompt_tokens(PAIRS, load_template("plain"), "Qwen/Qwen2.5-VL-3B-Instruct")[1]


@pytest.mark.parametrize(
    ("keys", "requests"), [({}, 118), ({"votes": 4}, 400), ({"max_attempts": 1}, 100)], ids=["attempts", "votes", "one"]
)
def test_a_teacher(keys: dict[str, int], requests: int) -> None:
    """1 + .15 + .0225 attempts of a pair; the price is the config's, and hours go down with requests at a time."""
    config = DistillConfig.model_validate({"prices": {"prompt": 2.5, "completion": 10.0}, "concurrency": 1, **keys})
    [finding] = teacher_findings(config, PAIRS)
    prompt = prompt_tokens(PAIRS, load_template(config.template), config.model)[0]
    usd = float(finding.message.split("about ")[1].split(" US")[0])
    assert f"{requests:,} requests" in finding.message
    assert usd == pytest.approx(requests * (prompt * 2.5 + JUDGMENT_TOKENS * 10) / 1e6, abs=0.01)
    assert f"{requests * JUDGMENT_TOKENS / 40 / 3600:.1f} h at 40 tokens" in finding.message or " min at 40" in finding.message
    limited = config.model_copy(update={"max_tokens": 100, "budget": Budget.model_validate({"usd": 0.01})})
    assert "and 100 of answer, about" in (short := next(teacher_findings(limited, PAIRS)).message)
    assert "more than its budget of 0.01" in short
    own = config.model_copy(update={"prices": DistillConfig.model_validate({}).prices})
    assert "the config has no prices" in next(teacher_findings(own, PAIRS)).message


def test_by_the_command(run: Callable[..., str], tmp_path: Path) -> None:
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    assert "--data PAIRS says what their judgments would cost" in run("distill/gpt_4o")
    assert "118 requests" in run("distill/gpt_4o", "--data", str(tmp_path / "pairs.parquet"))
    assert "answered within a day" in run("distill/gpt_4o_batch", "--data", str(tmp_path / "pairs.parquet"))
    suite = tmp_path / "suite.yaml"
    suite.write_text(
        "title: Ours\nbenchmarks:\n  - {benchmark: pairs, data: pairs.parquet, votes: 4, controls: [blank], max_tokens: 512}\n"
    )
    assert "--data FOLDER" in run(str(suite))
    told = run(
        str(suite), "--data", str(tmp_path), "--model", "Qwen/Qwen2.5-VL-7B-Instruct", "--card", "H100", "--price", "2.5"
    )
    assert "1,000 requests" in told  # 100 pairs in two orders, four votes and a control
    assert "8.29 B weights on one H100" in told
    assert "US dollars" in told
    assert "an H100 is assumed" in run(str(suite), "--data", str(tmp_path))
    assert "is not known; --model names" in run(str(suite), "--data", str(tmp_path), "--model", "some/where")


@pytest.mark.parametrize(
    ("words", "flags"),
    [
        (("distill/gpt_4o", "--card", "H100", "--price", "2"), "--card, --price"),
        (("SUITE", "--memory", "80", "--processes", "2"), "--processes, --memory"),
        (("accelerate/zero3", "model=x"), "KEY=VALUE"),
        (("tiny/demo", "--model", "x"), "--model"),
        (("distill/gpt_4o", "--images", "x"), "--images"),
        (("tiny/steps", "--price", "0"), "--price"),
    ],
)
def test_no_flag_is_ignored(words: tuple[str, ...], flags: str, tmp_path: Path) -> None:
    suite = tmp_path / "suite.yaml"
    suite.write_text("title: Ours\nbenchmarks:\n  - {benchmark: pairs, data: pairs.parquet}\n")
    result = CliRunner().invoke(app, ["doctor", *(str(suite) if word == "SUITE" else word for word in words)])
    assert result.exit_code != 0
    assert str(result.exception).startswith(f"{flags}: changes nothing for"), result.exception


def test_a_judge_that_is_not_there_yet(run: Callable[..., str]) -> None:
    missing = run("policy/pairwise_rl", "judge=prob:./NOT_THERE", "--dry-run")
    assert "look   judge: ./NOT_THERE: no such folder" in missing


def test_a_benchmark_is_asked_in_its_orders(tmp_path: Path) -> None:
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    settings = bench_settings("pairs", tmp_path / "pairs.parquet", "hf:x", orders="random", votes=3, controls=())
    assert benchmark_load(settings, "Qwen/Qwen2.5-VL-7B-Instruct").requests == 300
    assert AT_ONCE == 256


def test_what_would_be_refused_is_no_estimate(run: Callable[..., str], tmp_path: Path) -> None:
    """As the stage and the benchmark refuse it; controls that are never asked do not count."""
    config = DistillConfig.model_validate({})
    with pytest.raises(DataError, match="have no label"):
        next(teacher_findings(config, [replace(PAIRS[0], preferred=None)]))
    with pytest.raises(DataError, match="share a pair_id"):
        next(teacher_findings(config, [PAIRS[0], PAIRS[0]]))
    blind = [replace(pair, images=()) for pair in PAIRS]
    write_parquet(blind, tmp_path / "blind.parquet")
    settings = bench_settings("pairs", tmp_path / "blind.parquet", "hf:x", votes=1, controls=("blank", "other", "greedy"))
    assert benchmark_load(settings, "Qwen/Qwen2.5-VL-7B-Instruct").requests == 400  # greedy alone
    write_parquet([replace(pair, question="What is in the image?") for pair in blind], tmp_path / "asks.parquet")
    with pytest.raises(DataError, match="speaks of an image"):
        benchmark_load(replace(settings, data=tmp_path / "asks.parquet"), "Qwen/Qwen2.5-VL-7B-Instruct")
    with pytest.raises(ConfigError, match="is for recordings"):
        benchmark_load(replace(settings, orders="recorded"), "Qwen/Qwen2.5-VL-7B-Instruct")
    suite = tmp_path / "suite.yaml"
    suite.write_text("title: Ours\nbenchmarks: [{benchmark: pairs, data: blind.parquet}]\n")
    result = CliRunner().invoke(app, ["doctor", str(suite), "nonsense=3", "--data", str(tmp_path)])
    assert result.exit_code == 1
    assert "nonsense" in result.output


def test_a_judge_is_asked_in_its_own_words(tiny_checkpoint: Path, tmp_path: Path) -> None:
    """A checkpoint's template, not the default one."""
    shutil.copytree(tiny_checkpoint, tmp_path / "judge")
    (tmp_path / "judge" / CARD).write_text(json.dumps({"template": "plain", "template_hash": load_template("plain").hash}))
    write_parquet(PAIRS, tmp_path / "pairs.parquet")
    settings = bench_settings("pairs", tmp_path / "pairs.parquet", "hf:x", votes=1, controls=())
    default, own = (benchmark_load(settings, str(tmp_path / name)).prompt for name in ("nothing", "judge"))
    assert own == benchmark_load(replace(settings, template="plain"), str(tmp_path / "nothing")).prompt
    assert own < default - 50
