"""What the doctor counts on a card, against figures worked out by hand and against peft's and torch's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForImageTextToText, Gemma3Config

from rewardlab.config import LoraConfig, PolicyConfig, RLConfig, SFTConfig, load_config
from rewardlab.health.memory import GIB, MemoryLine, Phase, counts, memory_lines, peak, setup_of
from rewardlab.health.plan import Plan, needs, plan_setup
from rewardlab.models.architectures import build_on_meta
from rewardlab.models.loading import freeze, load_model
from rewardlab.training.run.length_grouping import LengthGroupingMixin
from rewardlab.training.run.parallel import Launch
from tests.support import scaled_runs

CONFIGS = Path(__file__).parents[2] / "configs"
BASE = "Qwen/Qwen2.5-VL-7B-Instruct"
B, CRITIC = 8.292166656e9, 8.292166656e9 - 152064 * 3584  # weights of the policy, and of a critic, which has no head


def table(config: Any, launch: Launch, **more: Any) -> dict[tuple[str, Phase], float]:
    """Bytes by line and part of a step."""
    lines = memory_lines(setup_of(build_on_meta(BASE), config, launch, **more))
    return {(line.what, line.phase): line.size for line in lines}


def always(config: Any, launch: Launch) -> dict[str, float]:
    return {what: size for (what, phase), size in table(config, launch).items() if phase is Phase.ALWAYS}


def test_weights_gradients_and_moments() -> None:
    """4 bytes each for weights and gradients, 8 for moments; DeepSpeed's 16 are 2 for weights and for gradients, 12 for moments
    and float32 weights, of which ZeRO deals out all but, at stage 2, the first."""
    alone = table(SFTConfig(), Launch())
    assert alone["weights", Phase.ALWAYS] == 4 * B
    assert alone["optimizer", Phase.ALWAYS] == 8 * B
    assert alone["gradients", Phase.TRAINING] == 4 * B
    for stage, weights in ((2, 2.0), (3, 2 / 8)):
        dealt = always(SFTConfig(), Launch(8, stage))
        assert [dealt[what] / B for what in ("weights", "gradients", "optimizer")] == pytest.approx([weights, 2 / 8, 12 / 8])
    offloaded = always(SFTConfig(), Launch(8, 3, offload=True))
    assert {what for what, size in offloaded.items() if size} == {"weights", "pixels"}
    assert offloaded["weights"] == pytest.approx(2 * B / 8)


def test_gradients_of_one_pass_are_made_while_its_activations_are_freed() -> None:
    """With several micro-batches a step the gradients of the first are there during the second; with one the larger of both
    counts. On an H200, 3B shapes took 57.5 GiB in one micro-batch, and 63.4 GiB in eight."""
    several, one = (table(SFTConfig(batch_size=size, micro_batch_size=1), Launch()) for size in (2, 1))
    assert several["gradients", Phase.TRAINING] == one["gradients", Phase.UPDATE] == 4 * B
    freed = sum(one[what, Phase.TRAINING] for what in ("activations", "copies"))
    assert one["gradients", Phase.TRAINING] == max(0.0, 4 * B - freed) < 4 * B
    shared = table(SFTConfig(batch_size=8, micro_batch_size=8, micro_batch_tokens=4096), Launch())  # a micro-batch in parts
    assert shared["gradients", Phase.TRAINING] == 4 * B


def test_gradients_are_freed_before_sampling() -> None:
    """Of one process they are there only while it trains; the buckets of several stay."""
    one, several = table(RLConfig(), Launch()), table(RLConfig(), Launch(8))
    assert {phase for what, phase in one if what == "gradients"} == {Phase.TRAINING, Phase.UPDATE}
    assert several["gradient buckets", Phase.ALWAYS] == 4 * B
    assert ("gradient buckets", Phase.ALWAYS) not in one


def test_sampling_by_the_trainers_own_decoder() -> None:
    """Keys and values of 28 layers with 4 heads of 128, two bytes each; prompts once a group; policy and critic gathered."""
    config = RLConfig(max_completion_length=156, sampling_batch_size=8)
    lines = table(config, Launch(8, 3), prompt_tokens=100)
    assert lines["keys and values", Phase.SAMPLING] == 8 * 256 * 28 * 4 * 128 * 2 * 2
    assert lines["weights gathered", Phase.SAMPLING] == 2 * B
    one = lines["prompts read", Phase.SAMPLING]
    groups = RLConfig(max_completion_length=156, sampling_batch_size=8, group_size=4, advantage="grpo")
    assert table(groups, Launch(8, 3), prompt_tokens=100)["prompts read", Phase.SAMPLING] == one / 4
    grouped = table(groups, Launch(8, 3), prompt_tokens=100)
    assert grouped["keys and values", Phase.SAMPLING] == (2 * 100 + 8 * 156) * 28 * 4 * 128 * 2 * 2  # two prompts of four draws
    critic = table(RLConfig(advantage="gae"), Launch(8, 3))
    assert critic["weights gathered", Phase.SAMPLING] == 2 * (B + CRITIC)
    engine = {"kind": "colocate", "gpu_memory_utilization": 0.4}
    colocated = table(RLConfig(engine=engine), Launch(8, 3), card=80.0)
    assert colocated["vLLM", Phase.SAMPLING] == pytest.approx(32)
    assert ("keys and values", Phase.SAMPLING) not in colocated


def test_a_family_that_copies_prompts_keeps_them_all() -> None:
    """Gemma 3's own decoder reads a prompt once for each of its draws: eight rows of two prompts keep eight of them. Keys and
    values of 2 layers with one head of 8, two bytes each."""
    text = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "vocab_size": 64}
    text |= {"num_key_value_heads": 1, "head_dim": 8}
    vision = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2}
    with torch.device("meta"):
        gemma = AutoModelForImageTextToText.from_config(Gemma3Config(text_config=text, vision_config=vision))
    config = RLConfig(max_completion_length=156, sampling_batch_size=8, group_size=4, advantage="grpo")
    lines = memory_lines(setup_of(gemma, config, Launch(8, 3), prompt_tokens=100))
    kept = next(line.size for line in lines if line.what == "keys and values")
    assert kept == 8 * (100 + 156) * 2 * 1 * 8 * 2 * 2


def test_a_critic_reads_what_the_policy_reads() -> None:
    """Its activations are as many as the policy's, of the language model and of the pictures."""
    alone, critic = (table(RLConfig(advantage=name), Launch(8, 3)) for name in ("reinforce_pp", "gae"))
    for line in ("activations", "vision activations"):
        assert critic[line, Phase.TRAINING] == 2 * alone[line, Phase.TRAINING] > 0


def test_pixels_stay_for_the_whole_rollout_batch() -> None:
    """24.1 MB a picture of 1,003,520 pixels: 5,120 patches of 1,176 float32 numbers; twice while they are dealt out."""
    config = RLConfig(pixels={"max": 1_003_520})
    assert table(config, Launch(4, 3))["pixels", Phase.TRAINING] == 2 * 64 * 5120 * 1176 * 4
    half = RLConfig(pixels={"max": 501_760})
    assert table(half, Launch(4, 3))["pixels", Phase.TRAINING] == 64 * 5120 * 1176 * 4
    assert setup_of(build_on_meta(BASE), half, Launch()).prompt == 768 + 640


def test_a_supervised_steps_pixels_are_all_there() -> None:
    """64 pictures of a process's share of 256, in bfloat16, and those of one micro-batch again as it is put together."""
    config = SFTConfig(pixels={"max": 1_003_520})
    lines = table(config, Launch(4, 3))
    assert lines["pixels", Phase.ALWAYS] == 64 * 5120 * 1176 * 2
    assert lines["a micro-batch's pixels", Phase.TRAINING] == 4 * 5120 * 1176 * 2
    whole = table(config.model_copy(update={"micro_batch_size": 64}), Launch(4, 3))
    assert ("a micro-batch's pixels", Phase.TRAINING) not in whole


@pytest.mark.slow
def test_a_step_takes_all_its_micro_batches_at_once(
    tiny_checkpoint: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a real run: before the first one is computed, the pixels of all have been taken from the loader."""
    taken: list[tuple[int, int]] = []
    take = LengthGroupingMixin.get_batch_samples

    def counting(self: Any, batches: Iterator[Any], number: int, device: Any) -> Any:
        read: list[Any] = []
        result = take(self, (read.append(batch) or batch for batch in batches), number, device)  # type: ignore[func-returns-value]
        taken.append((number, sum("pixel_values" in batch for batch in read)))
        return result

    monkeypatch.setattr(LengthGroupingMixin, "get_batch_samples", counting)
    scaled_runs.run("sft", tiny_checkpoint, tmp_path / "run", max_steps=2)
    assert taken == [(2, 2), (2, 2)]


def test_the_headline_counts_a_critic() -> None:
    critic = next(needs(RLConfig(advantage="gae"), Plan(Launch(8, 3), 80)))
    assert critic.message.startswith("8.29 B weights and a critic's 7.75 B, 16.04 B are trained")
    alone = next(needs(RLConfig(), Plan(Launch(8, 3), 80)))
    assert alone.message.startswith("8.29 B weights, 8.29 B are trained")


def test_a_budget_of_tokens_bounds_activations() -> None:
    """A micro-batch is read in parts of so many tokens, or of one row where that is longer."""
    rows = table(SFTConfig(micro_batch_size=8, max_tokens=4096), Launch())["activations", Phase.TRAINING]
    for budget, share in ((16384, 1 / 2), (1000, 1 / 8), (10**6, 1)):
        config = SFTConfig(micro_batch_size=8, max_tokens=4096, micro_batch_tokens=budget)
        assert table(config, Launch())["activations", Phase.TRAINING] == pytest.approx(share * rows)


def test_models_beside_the_policy() -> None:
    """A reference of the KL term, a critic, a process reward model in bfloat16."""
    kl = always(RLConfig(kl="k3_loss", kl_coef=0.1), Launch(8, 3))
    assert kl["reference model"] == 2 * B / 8
    critic = always(RLConfig(advantage="gae"), Launch(8, 3))
    assert critic["critic's weights"] == 2 * CRITIC / 8
    assert critic["optimizer"] == pytest.approx(12 * (B + CRITIC) / 8)
    steps = always(RLConfig(process_reward="runs/prm/final"), Launch(8, 3))
    assert steps["process reward model"] == 2 * CRITIC


@pytest.mark.parametrize(
    ("judge", "line", "size"),
    [
        (f"prob:{BASE}", "judge's weights", 2 * B),
        ("prob:runs/rl/final", "judge's weights", 2 * B),  # not there yet: as large as the policy
        (f"hf:{BASE}", "judge's weights", 2 * B),
        ("rm:runs/rm/final", "reward model", 2 * CRITIC),
        (f"openai:{BASE}@http://judge:8000/v1", None, 0.0),
    ],
)
def test_judges_lie_whole_on_every_card(judge: str, line: str | None, size: float) -> None:
    with_judge, without = (always(PolicyConfig(judge=spec), Launch(8, 3)) for spec in (judge, "openai:m@http://judge:8000/v1"))
    assert {what: value for what, value in with_judge.items() if what not in without} == ({line: size} if line else {})


def test_a_judges_batch() -> None:
    """It keeps the keys and values of what it reads: text, a picture, two responses; and of what it writes."""
    config = PolicyConfig(judge_batch_size=16, judge_max_tokens=512)
    lines = table(config, Launch(8, 3))
    assert lines["judge's keys and values", Phase.REWARDS] == 16 * (768 + 1280 + 2 * 1024 + 512) * 28 * 4 * 128 * 2 * 2


def test_the_config_that_did_not_fit() -> None:
    """Pairwise-RL's policy half on 8 cards of 80 GB: by hand 90 to 106 GiB, with a judge of 64 at a time. As it ships, it fits
    under its own launch, and not under the other."""
    config = load_config(PolicyConfig, CONFIGS / "policy" / "pairwise_rl.yaml")
    as_it_was = config.model_copy(
        update={"judge_batch_size": 64, "sampling_batch_size": None, "pixels": None, "max_tokens": None}
    )
    _, needed = peak(memory_lines(setup_of(build_on_meta(BASE), as_it_was, Launch(8, 3))))
    assert 90 < needed / GIB < 106
    failed, fits = (next(needs(config, Plan(Launch(8, 3, offload), 80.0))).outcome for offload in (False, True))
    assert (failed, fits) == ("failed", "ok")


def test_the_cure_is_one() -> None:
    """What a failure names as the cure passes when it is followed."""
    config = RLConfig(micro_batch_size=8, max_tokens=16384, gradient_checkpointing=False)
    finding = next(needs(config, Plan(Launch(4, 3), 80.0)))
    assert finding.outcome == "failed"
    assert "may be planned: gradient_checkpointing=true micro_batch_size=" in finding.message
    keys = finding.message.split("planned: ")[1].split(" needs")[0].split()
    changes = {name: True if value == "true" else int(value) for name, value in (key.split("=") for key in keys)}
    cured = next(needs(config.model_copy(update=changes), Plan(Launch(4, 3), 80.0)))
    assert cured.outcome == "ok"
    one_card = next(needs(RLConfig(), Plan(Launch(), 80.0)))
    assert "configs/accelerate/zero3_offload.yaml on 2 cards" in one_card.message or "on 4 cards" in one_card.message


def test_a_judge_in_every_process_is_refused() -> None:
    finding = next(needs(PolicyConfig(judge="vllm:runs/rl/final"), Plan(Launch(8, 3), 80.0)))
    assert finding.outcome == "failed"
    assert "set judge: openai:runs/rl/final@http://HOST:PORT/v1" in finding.message


def test_other_judges_lie_beside_the_first() -> None:
    """Each with its weights; one that would start a vLLM is refused as the first is."""
    one = always(PolicyConfig(judge=f"prob:{BASE}"), Launch(8, 3))
    three = PolicyConfig(judge=f"prob:{BASE}", other_judges=["prob:runs/a", "openai:m@http://judge:8000/v1"])
    assert {what: size for what, size in always(three, Launch(8, 3)).items() if what not in one} == {
        "another judge's weights": 2 * B
    }
    # They judge in turn, so the batch of one is counted, though the first is elsewhere.
    beside = PolicyConfig(judge="openai:m@http://judge:8000/v1", other_judges=["prob:runs/a", "prob:runs/b"])
    alone = PolicyConfig(judge="prob:runs/a")
    first, second = (table(config, Launch(8, 3)) for config in (alone, beside))
    assert {key: size for key, size in second.items() if key not in first} == {("another judge's weights", Phase.ALWAYS): 2 * B}
    assert first["judge's keys and values", Phase.REWARDS] == second["judge's keys and values", Phase.REWARDS] > 0
    small = "prob:Qwen/Qwen2.5-VL-3B-Instruct"  # of two sizes it is the larger one's batch
    mixed = table(PolicyConfig(judge=small, other_judges=["prob:runs/a"]), Launch(8, 3))
    assert mixed["judge's keys and values", Phase.REWARDS] == first["judge's keys and values", Phase.REWARDS]
    signs = {"second_judge": "prob:runs/b"}
    second = table(PolicyConfig(judge="prob:runs/a", signs=signs), Launch(8, 3))  # type: ignore[arg-type]
    assert second["another judge's weights", Phase.ALWAYS] == 2 * B
    finding = next(needs(PolicyConfig(judge=f"prob:{BASE}", other_judges=["vllm:runs/b"]), Plan(Launch(8, 3), 80.0)))
    assert finding.outcome == "failed"
    assert "judge: vllm:runs/b would start vLLM" in finding.message


def test_where_the_judge_of_consistency_lies() -> None:
    """Beside the paper's run at vLLM's 0.4 it does not fit; at 0.3 it does; at another address it is none of ours."""
    config = load_config(RLConfig, CONFIGS / "rl" / "stable_reinforce_qwen2_5_vl_7b.yaml", {"model": BASE})
    plan = Plan(Launch(4, 3), 80.0)

    def outcome(**changes: Any) -> str | None:
        changed = config.model_copy(update=changes)
        return next((each.outcome for each in needs(changed, plan) if each.name == "consistency's card"), None)

    assert config.engine is not None
    assert outcome() == "look"
    assert outcome(engine=config.engine.model_copy(update={"gpu_memory_utilization": 0.3})) == "ok"
    elsewhere = config.consistency.model_copy(update={"base_url": "http://judge:8000/v1"})
    assert outcome(consistency=elsewhere) is None


def test_pictures_without_a_bound_are_looked_at() -> None:
    named = [finding.name for finding in needs(SFTConfig(), Plan())]
    bounded = [finding.name for finding in needs(SFTConfig(max_tokens=4096), Plan())]
    assert "pictures" in named
    assert "pictures" not in bounded


def test_the_highest_part_of_a_step() -> None:
    lines = [
        MemoryLine("a", 5, Phase.ALWAYS, ""),
        MemoryLine("b", 3, Phase.SAMPLING, ""),
        MemoryLine("c", 2, Phase.TRAINING, ""),
    ]
    assert peak(lines) == (Phase.SAMPLING, 8)


def test_frozen_parts_do_not_learn(tiny_checkpoint: Path) -> None:
    tiny = load_model(str(tiny_checkpoint), device="cpu")[0]
    total, learning = counts(tiny, SFTConfig(freeze=["vision", "merger"]))
    assert total - learning == freeze(tiny, ["vision", "merger"])


def test_adapters_are_counted_as_peft_makes_them(tiny_checkpoint: Path) -> None:
    import peft

    from rewardlab.models.loading import peft_config

    model = load_model(str(tiny_checkpoint), device="cpu")[0]
    config = SFTConfig(lora=LoraConfig(r=3), freeze=["merger"])
    total, learning = counts(model, config)
    adapted = peft.get_peft_model(model, peft_config(config.lora, model, config.freeze))
    assert learning == sum(weight.numel() for weight in adapted.parameters() if weight.requires_grad)
    assert total == sum(weight.numel() for weight in adapted.parameters())


def test_weights_in_four_bits() -> None:
    """QLoRA on 7B: the linear layers at half a byte and their scales, the rest in bfloat16; a few gigabytes, as on a card."""
    config = SFTConfig(model=BASE, lora=LoraConfig(quantize="nf4"), micro_batch_size=1, freeze=["vision", "merger"])
    setup = plan_setup(config, Plan())
    assert setup is not None
    lines = {line.what: line.size for line in memory_lines(setup) if line.phase is Phase.ALWAYS}
    linear = setup.shapes.linear
    assert 6.5e9 < linear < 7.3e9
    assert lines["weights below adapters"] == pytest.approx(linear * (0.5 + 1 / 64 + 4 / 16384) + 2 * (B - linear), rel=1e-3)
