"""What lies on the trainer's cards beside the trainer: the judge of a policy, a reward model, a process reward model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch

from rewardlab.config import PolicyConfig, RLConfig
from rewardlab.health.memory import MemoryLine, Phase, Setup, kv_bytes
from rewardlab.health.shapes import Shapes, shapes_of
from rewardlab.judging.spec import JudgeSpec
from rewardlab.models.architectures import build_on_meta, config_of
from rewardlab.samplers.base import HF, VLLM

SCORING_BYTES = 2.0  # a weight of a reward model or process reward model: on a card they are read in bfloat16
VLLM_SHARE = 0.9  # of a card, that vLLM takes where nothing is said


@dataclass(frozen=True)
class Reader:
    """A model that reads rollouts without learning: its shapes, bytes a weight, and how it is called in a table."""

    shapes: Shapes
    weight_bytes: float
    how: str


def judge_beside(path: str, setup: Setup, *, weight_bytes: float | None = None) -> Reader:
    """Return the model at ``path``; one that is not there yet is taken to be as large as the policy, in bfloat16.

    ``weight_bytes``: in what it is loaded, by default what its checkpoint has.
    """
    model = build_on_meta(path)
    if model is None:
        return Reader(setup.shapes, weight_bytes or 2.0, "not there yet: as large as the policy")
    dtype = getattr(config_of(path), "dtype", None)
    stored = float(dtype.itemsize) if isinstance(dtype, torch.dtype) else 2.0
    return Reader(shapes_of(model), weight_bytes or stored, path)


def beside_lines(setup: Setup) -> list[MemoryLine]:
    """Return what judges and reward models lay on each card."""
    config = setup.config
    if isinstance(config, PolicyConfig):
        spec = JudgeSpec.parse(config.judge, "rm")
        if spec.engine == "rm":
            return _scalar(setup, config, judge_beside(spec.target, setup, weight_bytes=SCORING_BYTES))
        judges = [spec, *map(JudgeSpec.parse, config.loaded_judges[1:])]
        local = _judges(setup, config, [judge_beside(judge.target, setup) for judge in judges if judge.engine == HF])
        if spec.engine == VLLM:
            how = f"vLLM takes {VLLM_SHARE:g} of a card by itself, in every process"
            return [MemoryLine("judge", VLLM_SHARE * setup.card, Phase.ALWAYS, how), *local]
        return local
    if isinstance(config, RLConfig) and config.process_reward:
        return _steps(setup, judge_beside(config.process_reward, setup, weight_bytes=SCORING_BYTES))
    return []


def _whole(what: str, reader: Reader, *, head: bool) -> MemoryLine:
    number = reader.shapes.total - (0 if head else reader.shapes.head)
    how = f"{number / 1e9:.2f} B weights x {reader.weight_bytes:g} B, whole on every card; {reader.how}"
    return MemoryLine(what, number * reader.weight_bytes, Phase.ALWAYS, how)


def _judges(setup: Setup, config: PolicyConfig, readers: Sequence[Reader]) -> list[MemoryLine]:
    """Return the weights of judges, and what one batch of judgments needs of the one that needs most: they judge in turn."""
    if not readers:
        return []
    lines = [_judge(setup, config, reader) for reader in readers]
    most = max(lines, key=lambda of_one: sum(line.size for line in of_one[1:]))
    more = [replace(of_one[0], what="another judge's weights") for of_one in lines[1:]]
    return [lines[0][0], *most[1:], *more]


def _judge(setup: Setup, config: PolicyConfig, reader: Reader) -> list[MemoryLine]:
    """Return a judge's weights, and what one batch of judgments needs: it sees a picture, two responses, and writes."""
    rows = min(config.judge_batch_size, 2 * config.judge_votes * setup.rollouts)
    prompt = setup.prompt + 2 * setup.answer
    length, wide = prompt + config.judge_max_tokens, reader.weight_bytes > 2
    cache = rows * length * kv_bytes(reader.shapes) * (2 if wide else 1)
    read = rows * prompt * reader.shapes.language.reading(wide)
    return [
        _whole("judge's weights", reader, head=True),
        MemoryLine("judge's keys and values", cache, Phase.REWARDS, f"judge_batch_size {rows} x {length:,} tokens"),
        MemoryLine("judge's prompts read", read, Phase.REWARDS, f"one layer of {rows} prompts of {prompt:,} tokens"),
    ]


def _scalar(setup: Setup, config: PolicyConfig, reader: Reader) -> list[MemoryLine]:
    rows, length = min(config.judge_batch_size, 2 * setup.rollouts), setup.prompt + setup.answer
    read = rows * length * reader.shapes.language.reading(False)
    return [
        _whole("reward model", reader, head=False),
        MemoryLine("its responses read", read, Phase.REWARDS, f"one layer of {rows} responses of {length:,} tokens"),
    ]


def _steps(setup: Setup, reader: Reader) -> list[MemoryLine]:
    rows, length = setup.config.micro_batch_size, setup.prompt + setup.answer
    read = rows * length * reader.shapes.language.reading(False)
    return [
        _whole("process reward model", reader, head=False),
        MemoryLine("its rollouts read", read, Phase.REWARDS, f"one layer of {rows} rollouts of {length:,} tokens"),
    ]
