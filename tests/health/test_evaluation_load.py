"""The memory of judging held-out pairs while training, by hand and against a real plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import RLConfig, RMConfig, SFTConfig
from rewardlab.health.memory import Phase, memory_lines, setup_of
from rewardlab.health.plan import Plan, needs
from rewardlab.models.architectures import build_on_meta
from rewardlab.prompts import load_template
from rewardlab.training.run.evaluation import plan_evaluation
from rewardlab.training.run.parallel import Launch
from tests.support import scaled_runs

BASE = "Qwen/Qwen2.5-VL-7B-Instruct"
B, KV = 8.292166656e9, 28 * 4 * 128 * 2 * 2
HELD_OUT = {"fraction": 0.02, "num_pairs": 128, "every_steps": 100}


def lines(config: Any, launch: Launch) -> dict[str, float]:
    """Bytes of each line of the evaluation phase."""
    setup = setup_of(build_on_meta(BASE), config, launch, card=80 * 2**30)
    return {line.what: line.size for line in memory_lines(setup) if line.phase is Phase.EVALUATION}


def test_nothing_is_counted_where_nothing_is_evaluated() -> None:
    assert not lines(SFTConfig(), Launch(4, 3))


def test_64_judgments_side_by_side() -> None:
    """Prompts of 768 tokens behind a picture of 1,280 that both orders share, answers of 1,024; weights whole under ZeRO-3."""
    counted = lines(SFTConfig(evaluation=HELD_OUT), Launch(4, 3))
    assert counted["keys and values"] == 64 * (768 + 1280 + 1024) * KV
    assert counted["weights gathered"] == 2 * B
    assert counted["pixels"] == 64 * 5120 * 1176 * 4
    per_token = 6 * 18944 + 6 * 3584
    assert counted["prompts read"] == max(32 * 2048, 64 * 768) * per_token
    assert counted["next tokens"] == 16 * 64 * 152064
    assert "weights gathered" not in lines(SFTConfig(evaluation=HELD_OUT), Launch(4, 2))
    few = lines(SFTConfig(evaluation=HELD_OUT | {"num_pairs": 5, "max_tokens": 100, "batch_size": 64}), Launch(4, 3))
    assert few["keys and values"] == 10 * (2048 + 100) * KV


def test_what_is_there_beside_it() -> None:
    """Of RL the pixels of the rollouts at hand, and vLLM asleep; ``sampling_batch_size`` bounds judgments, too."""
    counted = lines(RLConfig(evaluation=HELD_OUT, sampling_batch_size=8, max_completion_length=512), Launch(8, 3))
    assert counted["keys and values"] == 8 * (2048 + 512) * KV
    with_engine = lines(RLConfig(evaluation=HELD_OUT, engine={"kind": "colocate"}), Launch(8, 3))
    assert with_engine["vLLM asleep"] == 2 * 2**30
    assert counted["pixels of rollouts"] == 32 * 5120 * 1176 * 4
    alone = lines(SFTConfig(evaluation=HELD_OUT), Launch())
    assert "copies" in alone  # of float32 weights, which autocast makes to answer with


def test_judges_that_write_nothing() -> None:
    """Of probabilities the keys and values of prompts are kept; a scalar head keeps none, and has no logits."""
    classifier = lines(SFTConfig(template="verdict", evaluation=HELD_OUT), Launch(4, 3))
    assert classifier["keys and values"] == 64 * 2048 * KV
    scalar = lines(RMConfig(evaluation=HELD_OUT), Launch(4, 3))
    assert set(scalar) == {"prompts read", "pixels", "weights gathered"}


@pytest.mark.parametrize("changes", [{}, {"batch_size": 6}, {"batch_size": 64}])
def test_rows_as_training_plans_them(changes: dict[str, Any], tiny_checkpoint: Path) -> None:
    """As many at once as :func:`plan_evaluation` makes."""
    config = SFTConfig(model=str(tiny_checkpoint), template="plain", evaluation={"fraction": 0.5, "num_pairs": 32, **changes})
    plan = plan_evaluation(scaled_runs.pairs(), config, load_template("plain"))
    load = setup_of(build_on_meta(str(tiny_checkpoint)), config, Launch()).evaluation
    assert plan is not None
    assert load is not None
    assert load.rows == 2 * max(len(task.pairs) for task in plan.tasks)


def test_the_cure_of_an_evaluation() -> None:
    """QLoRA on 24 GB learns, and cannot judge 64 prompts of long answers side by side: fewer at once can."""
    lora = {"r": 16, "quantize": "nf4"}
    held_out = HELD_OUT | {"max_tokens": 4096}
    config = SFTConfig(model=BASE, lora=lora, micro_batch_size=1, pixels={"max": 501_760}, max_tokens=4096, evaluation=held_out)
    plan = Plan(Launch(), 24)
    finding = next(needs(config, plan))
    assert finding.outcome == "failed"
    assert "while held-out pairs are judged" in finding.message
    assert "evaluation.batch_size=" in finding.message
    rows = int(finding.message.split("evaluation.batch_size=")[1].split()[0])
    cured = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"batch_size": rows})})
    assert next(needs(cured, plan)).outcome == "ok"
