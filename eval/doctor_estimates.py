"""The doctor's memory estimate against torch's own tracker, on fake tensors.

    python eval/doctor_estimates.py [--model Qwen/Qwen2.5-VL-3B-Instruct ...] [--layers 6] [--tokens 4096] [--processes 4]

One micro-batch runs forward and backward, the optimizer steps, and another micro-batch follows, at the real shapes, with a
picture through the vision tower, under ``torch.distributed._tools.mem_tracker.MemTracker``. The model's own layers run;
embedding and vision are joined by hand, because positions need real numbers. Both sides leave out the output head.

With adapters (LoRA) the base weights are bfloat16: QLoRA's four bits need CUDA kernels. ``--processes`` adds one process of
that many under FSDP2, with torch's fake process group. There the optimizer does not step and both sides leave out its moments,
because the tracker counts those of sharded weights as if they were whole. Prints the peak, the estimate and the error for each
model and precision.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

# isort: split
import numpy as np
import torch
from peft import get_peft_model
from torch import distributed, nn
from torch._subclasses import FakeTensorMode
from torch.distributed._tools.fsdp2_mem_tracker import FSDPMemTracker
from torch.distributed._tools.mem_tracker import MemTracker
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.testing._internal.distributed.fake_pg import FakeStore
from transformers import AutoModelForImageTextToText

from rewardlab.config import SFTConfig
from rewardlab.health.memory import GIB, Phase, peak, setup_of, trainer_lines
from rewardlab.models.architectures import ARCHITECTURES
from rewardlab.models.loading import peft_config
from rewardlab.training.run.parallel import Launch

HEADER = """| model | weights | checkpointing | tokens | tracker, GiB | estimate, GiB | off by |
|---|---|---|---|---|---|---|"""
NOT_RUN = ("head's gradient", "live weights", "step's buffers")  # of the output head and of DeepSpeed


@dataclass(frozen=True)
class Case:
    """``autocast``: float32 weights under bfloat16 autocast, as on one card; else bfloat16 weights, as DeepSpeed has them.
    ``lora``: adapters in float32 over bfloat16 weights, under autocast. ``processes``: of FSDP2, if more than one."""

    autocast: bool
    checkpointing: bool
    rows: int
    tokens: int
    pixels: int
    lora: bool = False
    processes: int = 1

    @property
    def config(self) -> SFTConfig:
        return SFTConfig(
            batch_size=2 * self.rows * self.processes,  # two micro-batches a step
            micro_batch_size=self.rows,
            max_tokens=None,
            gradient_checkpointing=self.checkpointing,
            pixels={"min": 1, "max": self.pixels},  # type: ignore[arg-type]
            lora={} if self.lora else None,  # type: ignore[arg-type]
        )

    @property
    def kind(self) -> str:
        if self.processes > 1:
            return f"FSDP2, one of {self.processes}"
        return "LoRA" if self.lora else "float32, autocast" if self.autocast else "bfloat16"


def tracked_peak(config: Any, case: Case) -> float:
    """Return the peak bytes of two micro-batches with a step of AdamW between them."""
    config._attn_implementation = "sdpa"
    if case.processes > 1:
        return _sharded_peak(config, case)
    dtype = torch.float32 if case.autocast and not case.lora else torch.bfloat16
    context: Callable[[], AbstractContextManager[Any]] = (
        (lambda: torch.autocast("cpu", torch.bfloat16)) if case.autocast else nullcontext
    )
    with torch.device("meta"):
        base = AutoModelForImageTextToText.from_config(config, dtype=dtype).train()
        model = get_peft_model(base, peft_config(case.config.lora, base, [])) if case.lora else base
    with FakeTensorMode(allow_non_fake_inputs=True):
        _fill(model)
        if case.checkpointing:
            base.activation_checkpointing_enable()
            base.enable_input_require_grads()
        learning = [weight for weight in model.parameters() if weight.requires_grad]
        optimizer = torch.optim.AdamW(learning, foreach=False)
        tracker = MemTracker()
        for weight in model.parameters():
            if not weight.requires_grad:  # the tracker would put a hook on gradients that there are none of
                no_hook = SimpleNamespace(remove=lambda: None)
                tracker._param_to_grad_hook_handles[weight] = (no_hook, no_hook)
        tracker.track_external(model, optimizer)
        with tracker:
            for step in range(2):  # the second pass finds gradients and moments, as a step's second micro-batch does
                with context():
                    loss = _forward(base, case)
                loss.backward()
                tracker.reset_mod_stats()
                if step == 0:
                    optimizer.step()
        [snapshot] = tracker.get_tracker_snapshot("peak").values()
    return float(snapshot["Total"])


def _fill(model: Any) -> None:
    """Replace each weight on the meta device by a fake tensor, one for tied weights, which `to` cannot do."""
    made: dict[int, nn.Parameter] = {}
    for module in model.modules():
        for name, weight in module._parameters.items():
            if weight is not None:
                filled = nn.Parameter(torch.empty(weight.shape, dtype=weight.dtype), requires_grad=weight.requires_grad)
                module._parameters[name] = made.setdefault(id(weight), filled)
        for name, buffer in module._buffers.items():
            if buffer is not None:
                module._buffers[name] = torch.empty(buffer.shape, dtype=buffer.dtype)


def _sharded_peak(config: Any, case: Case) -> float:
    """Return the peak bytes of two micro-batches on one process of FSDP2, sharded as by accelerate: layer by layer, float32
    weights and gradients, bfloat16 compute."""
    distributed.init_process_group("fake", rank=0, world_size=case.processes, store=FakeStore())
    try:
        mesh, precision = init_device_mesh("cpu", (case.processes,)), MixedPrecisionPolicy(torch.bfloat16, torch.float32)
        with FakeTensorMode(allow_non_fake_inputs=True):
            model = AutoModelForImageTextToText.from_config(config, dtype=torch.float32).train()
            if case.checkpointing:
                model.activation_checkpointing_enable()
            for layer in (*model.model.visual.blocks, *model.model.language_model.layers, model):
                fully_shard(layer, mesh=mesh, mp_policy=precision)
            model.forward = lambda: _forward(model, case)
            tracker = FSDPMemTracker(model)
            with tracker:
                for _ in range(2):
                    model().backward()
                    tracker.reset_mod_stats()
            [snapshot] = tracker.get_tracker_snapshot("peak").values()
        return float(snapshot["Total"])
    finally:
        distributed.destroy_process_group()


def _forward(model: Any, case: Case) -> torch.Tensor:
    """Return a loss of the last hidden states: pictures through the vision tower, then text and pictures through the rest."""
    vision, language = model.model.visual, model.model.language_model
    patch = vision.config.patch_size
    patches = case.pixels // patch**2 * case.rows
    pixels = torch.empty(patches, 3 * vision.config.temporal_patch_size * patch**2)
    hidden = vision.patch_embed(pixels)
    angles = torch.empty(patches, vision.config.hidden_size // vision.config.num_heads)
    whole = np.arange(0, patches + 1, patches // case.rows)
    for block in vision.blocks:  # windows would be as much memory in more calls
        hidden = block(hidden, cu_seqlens=whole, position_embeddings=(angles.cos(), angles.sin()))
    seen = vision.merger(hidden)
    for merger in getattr(vision, "deepstack_merger_list", ()):  # of Qwen3-VL, whose layers are given them too
        seen = seen + merger(hidden)
    text = model.get_input_embeddings()(torch.zeros(case.rows * case.tokens - len(seen), dtype=torch.long))
    inputs = torch.cat([seen.to(text.dtype), text]).view(case.rows, case.tokens, -1)
    loss: torch.Tensor = language(inputs_embeds=inputs, use_cache=False).last_hidden_state.float().sum()
    return loss


def estimated_peak(model: Any, case: Case) -> float:
    """Return the doctor's estimate for the same case, without the parts that do not run here."""
    zero = 3 if case.processes > 1 else 0 if case.autocast else 2
    setup = setup_of(model, case.config, Launch(case.processes, zero), prompt_tokens=case.tokens - 1024)
    if case.processes > 1:
        lines = [line for line in trainer_lines(setup) if line.what not in ("head's gradient", "step's buffers")]
        without = 8.0 * setup.learning + 4.0 * setup.shapes.head  # moments, and the gradient of the head
        return peak(lines)[1] - without / case.processes
    setup = replace(setup, learning=setup.learning - (0 if case.lora else setup.shapes.head))
    lines = [line for line in trainer_lines(setup) if line.what not in NOT_RUN and line.what != "buckets"]
    if not case.autocast:  # AdamW on bfloat16 weights has bfloat16 moments, and no float32 weights beside them
        lines = [line for line in lines if line.what != "optimizer"]
        return peak(lines)[1] + 4.0 * setup.learning
    assert {line.phase for line in lines} <= {Phase.ALWAYS, Phase.TRAINING, Phase.UPDATE}
    return peak(lines)[1]


def architecture(name: str, layers: int | None) -> Any:
    """Return the configuration of a known model with ``layers`` layers in each tower (None: its own)."""
    config = ARCHITECTURES[name]()
    if layers is not None:
        config.text_config.num_hidden_layers = config.vision_config.depth = layers
        config.text_config.layer_types = ["full_attention"] * layers
    return config


def compare(name: str, cases: Sequence[Case], layers: int | None = None) -> Iterator[str]:
    """Yield a line of Markdown for each case: the tracker's peak and the doctor's estimate."""
    with torch.device("meta"):
        model = AutoModelForImageTextToText.from_config(architecture(name, layers))
    size = f"{name.removeprefix('Qwen/')}, {layers or 'all'} layers"
    for case in cases:
        case = replace(case, pixels=640 * (model.config.vision_config.patch_size * 2) ** 2)
        tracked, estimate = tracked_peak(architecture(name, layers), case) / GIB, estimated_peak(model, case) / GIB
        way = "yes" if case.checkpointing else "no"
        off = f"{100 * (estimate / tracked - 1):+.1f} %"
        yield f"| {size} | {case.kind} | {way} | {case.rows} x {case.tokens:,} | {tracked:.2f} | {estimate:.2f} | {off} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", nargs="+", default=list(ARCHITECTURES))
    parser.add_argument("--tokens", type=int, nargs="+", default=[2432, 4096])
    parser.add_argument("--rows", type=int, default=2)
    parser.add_argument("--layers", type=int, help="of both towers, at their real widths; by default all")
    parser.add_argument("--processes", type=int, default=1, help="of FSDP2, beside the cases of one process")
    options = parser.parse_args()
    cases = []
    for tokens in options.tokens:
        sizes = (options.rows, tokens, 0)
        cases += [Case(*way, *sizes) for way in ((True, True), (False, True), (False, False))]
        cases += [Case(True, checkpointing, *sizes, lora=True) for checkpointing in (True, False)]
        if options.processes > 1:
            cases.append(Case(False, True, *sizes, processes=options.processes))
    print(HEADER)
    for name in options.model:
        for line in compare(name, cases, options.layers):
            print(line, flush=True)


if __name__ == "__main__":
    main()
