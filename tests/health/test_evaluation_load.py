"""What the doctor counts for judging held-out pairs while training: memory, rounds, time; by hand and against a real plan."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from rewardlab.config import RLConfig, RMConfig, SFTConfig
from rewardlab.health.cards import CARDS
from rewardlab.health.decoding import decoding_load, decoding_time
from rewardlab.health.evaluation import HeldOutData
from rewardlab.health.memory import Phase, Setup, setup_of
from rewardlab.health.plan import DataFacts, Plan, memory_lines, needs
from rewardlab.health.speed import step_seconds
from rewardlab.health.step_time import evaluation_seconds
from rewardlab.health.units import hours_text
from rewardlab.models.architectures import build_on_meta
from rewardlab.prompts import load_template
from rewardlab.training.run.evaluation import plan_evaluation
from rewardlab.training.run.parallel import Launch
from tests.support import scaled_runs

BASE = "Qwen/Qwen2.5-VL-7B-Instruct"
B, KV = 8.292166656e9, 28 * 4 * 128 * 2 * 2
HELD_OUT = {"fraction": 0.02, "num_pairs": 128, "every_steps": 100}


def setup(config: Any, launch: Launch) -> Setup:
    return setup_of(build_on_meta(BASE), config, launch, card=80 * 2**30)


def lines(config: Any, launch: Launch) -> dict[str, float]:
    """Bytes of each thing that is there while held-out pairs are judged, and only then."""
    return {line.what: line.size for line in memory_lines(setup(config, launch)) if line.phase is Phase.EVALUATION}


def test_nothing_is_counted_where_nothing_is_evaluated() -> None:
    assert not lines(SFTConfig(), Launch(4, 3))
    assert "evaluation" not in {each.name for each in needs(SFTConfig(), Plan(Launch(4, 3)))}


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
    with_engine = lines(RLConfig(evaluation=HELD_OUT, engine={"kind": "colocate"}, importance_cap=2.0), Launch(8, 3))
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


@pytest.mark.parametrize("processes", [1, 3])
@pytest.mark.parametrize("changes", [{}, {"blank_images": False}, {"batch_size": 6}, {"batch_size": 64}])
def test_rounds_as_training_plans_them(processes: int, changes: dict[str, Any], tiny_checkpoint: Path) -> None:
    """As many tasks, of as many pairs, as :func:`plan_evaluation` makes."""
    config = SFTConfig(model=str(tiny_checkpoint), template="plain", evaluation={"fraction": 0.5, "num_pairs": 32, **changes})
    plan = plan_evaluation(scaled_runs.pairs(), config, load_template("plain"))
    load = setup_of(build_on_meta(str(tiny_checkpoint)), config, Launch(processes)).evaluation
    assert plan is not None
    assert load is not None
    assert load.rounds == math.ceil(len(plan.tasks) / processes)
    assert load.rows == 2 * max(len(task.pairs) for task in plan.tasks)


def test_grey_pictures_of_those_that_have_any() -> None:
    """Pairs without a picture are not judged again."""
    seen = setup(SFTConfig(evaluation=HELD_OUT), Launch()).lengths
    for share, rounds in ((1.0, 8), (0.1, 5), (0.0, 4)):
        held_out = HeldOutData(128, replace(seen, with_pictures=share))
        load = setup_of(build_on_meta(BASE), SFTConfig(evaluation=HELD_OUT), Launch(), held_out=held_out).evaluation
        assert load is not None
        assert load.rounds == rounds


def test_seconds_by_hand() -> None:
    """128 pairs by 32, seen and grey: 8 tasks on 4 cards are two rounds of 1,024 steps of 28 ms, and the prompts' reading."""
    one = setup(SFTConfig(evaluation=HELD_OUT), Launch(4, 3))
    reading = 2 * B * 2 * (64 * 2048 - 32 * 1280) / (0.354 * 989e12)
    assert evaluation_seconds(one, CARDS["H100"]) == pytest.approx(2 * 1024 * 0.028 + reading, rel=1e-3)


def test_the_share_of_the_time() -> None:
    """A line that says it; below 3 % at the paper's sizes, and a cure where it is much."""
    plan = Plan(Launch(4, 3), card=CARDS["H100"], model=BASE)
    for stage in (SFTConfig, RLConfig):
        config = stage(evaluation=HELD_OUT)
        finding = next(each for each in needs(config, plan) if each.name == "evaluation")
        one = setup(config, plan.launch)
        seconds, step = evaluation_seconds(one, CARDS["H100"]), step_seconds(one, CARDS["H100"])
        share = 100 * seconds / (seconds + 100 * step)
        assert share < 3
        assert f"{share:.1f} % of the time" in finding.message
        assert "128 pairs in both orders, and again with grey pictures, every 100 steps" in finding.message
        assert finding.outcome == "ok"
    every_ten = SFTConfig(evaluation=HELD_OUT | {"every_steps": 10})
    often = next(each for each in needs(every_ten, plan) if each.name == "evaluation")
    assert often.outcome == "look"
    assert "raise evaluation.every_steps" in often.message
    short = next(each for each in needs(config, plan, DataFacts(steps=60)) if each.name == "evaluation")
    assert "2 times in 60 steps" in short.message  # at the start and at the end, however rarely between
    assert short.message.endswith("; lower evaluation.num_pairs, or set evaluation.blank_images to false")


def test_hours_and_money_by_hand() -> None:
    """Steps, and the evaluations at the start, the end and between, on four cards; nothing where steps are not known."""
    plan, steps = Plan(Launch(4, 3), card=CARDS["H100"], model=BASE, price=2.5), 1000
    for config in (SFTConfig(), SFTConfig(evaluation=HELD_OUT), RLConfig()):
        finding = next(each for each in needs(config, plan, DataFacts(steps=steps)) if each.name == "time")
        one = setup(config, plan.launch)
        step = step_seconds(one, CARDS["H100"])
        seconds = steps * step + (11 * evaluation_seconds(one, CARDS["H100"]) if config.evaluation.every_steps == 100 else 0)
        hours = seconds / 3600
        assert f"1,000 steps of {step:,.3g} s on 4 cards: {hours_text(seconds)}, {4 * hours:,.3g} card-hours" in finding.message
        assert f"on an H100, {4 * hours * 2.5:,.2f} US dollars; estimated from shapes" in finding.message
    assert not [each for each in needs(SFTConfig(), plan) if each.name == "time"]
    free = next(each for each in needs(RLConfig(), replace(plan, price=None), DataFacts(steps=9000)) if each.name == "time")
    assert "--price says what they cost" in free.message


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(20, "under a minute"), (90, "about 2 min"), (3600, "about 1.0 h"), (36_000, "about 10 h"), (4_000_000, "about 1,111 h")],
)
def test_hours(seconds: float, text: str) -> None:
    assert hours_text(seconds) == text


def test_the_cure_of_an_evaluation() -> None:
    """QLoRA on 24 GB learns, and cannot judge 64 prompts of long answers side by side: fewer at once can."""
    lora = {"r": 16, "quantize": "nf4"}
    held_out = HELD_OUT | {"max_tokens": 4096}
    config = SFTConfig(lora=lora, micro_batch_size=1, pixels={"max": 501_760}, max_tokens=4096, evaluation=held_out)
    plan = Plan(Launch(), 24, BASE)
    finding = next(needs(config, plan))
    assert finding.outcome == "failed"
    assert "while held-out pairs are judged" in finding.message
    assert "evaluation.batch_size=" in finding.message
    rows = int(finding.message.split("evaluation.batch_size=")[1].split()[0])
    cured = config.model_copy(update={"evaluation": config.evaluation.model_copy(update={"batch_size": rows})})
    assert next(needs(cured, plan)).outcome == "ok"


def test_what_is_drawn_ahead_takes_no_time_of_its_own() -> None:
    """But for the longer of drawing and training."""
    engines = ({"kind": "serve", "devices": "7", "ahead": ahead} for ahead in (0, 1))
    setups = [setup_of(build_on_meta(BASE), RLConfig(engine=engine, importance_cap=2.0), Launch(8, 3)) for engine in engines]
    load = decoding_load(setups[0], CARDS["H100"])
    assert load is not None
    split, batches = decoding_time(load), 256 / 128
    none, one = (step_seconds(setup, CARDS["H100"]) for setup in setups)
    assert none == pytest.approx((split.engine_s + split.training_s) / batches)
    assert one == pytest.approx(max(split.engine_s, split.training_s) / batches)
