"""Instruments within a run: `python eval/rehearsals/probe.py FOLDER SECONDS COMMAND ...` runs `rewardlab COMMAND ...` and notes
in FOLDER what happens when.

``decodes.bin`` has a record for each picture that is decoded, by whichever process or thread; ``events-RANK.jsonl`` what a
process of training does, and the seconds for which its main thread was busy with data. SECONDS is JSON: `{}`, or what a card
takes, which then is stood in for (:mod:`eval.rehearsals.stand_ins`).
"""

from __future__ import annotations

import json
import os
import struct
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DECODES = "decodes.bin"
RECORD = struct.Struct("<ddd")  # when (Unix time), CPU seconds, and for which process of training


class DecodeCounter:
    """Appends a record for every picture that Pillow decodes. One short write in append mode is whole, whoever makes it, and
    children share the descriptor or open the file anew."""

    def __init__(self, folder: Path) -> None:
        self._rank = float(os.environ.get("RANK", "0"))  # workers have it of their process
        self._file = os.open(folder / DECODES, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def install(self) -> None:
        from PIL import ImageFile

        load = ImageFile.ImageFile.load

        @wraps(load)
        def counted(image: Any) -> Any:
            if not image.tile:  # decoded already
                return load(image)
            begun = time.thread_time()
            pixels = load(image)
            os.write(self._file, RECORD.pack(time.time(), time.thread_time() - begun, self._rank))
            return pixels

        ImageFile.ImageFile.load = counted  # type: ignore[assignment]


class Events:
    """Appends lines to ``events-RANK.jsonl``: what, when (Unix time), and numbers. Seconds on data are those of the main
    thread of this process, each once: a section within another is a part of it."""

    def __init__(self, folder: Path) -> None:
        self._file = (folder / f"events-{os.environ.get('RANK', '0')}.jsonl").open("a", encoding="utf-8", buffering=1)
        self._own, self._depth = os.getpid(), 0

    def add(self, name: str, **numbers: float) -> None:
        if os.getpid() == self._own:
            now = {"time": time.time(), "cpu_s": time.process_time(), "pid": self._own}
            self._file.write(json.dumps({"event": name, **now, **numbers}) + "\n")

    @contextmanager
    def data_section(self, name: str) -> Iterator[None]:
        if os.getpid() != self._own or threading.current_thread() is not threading.main_thread():
            yield
            return
        begun, self._depth = time.perf_counter(), self._depth + 1
        try:
            yield
        finally:
            self._depth -= 1
            if not self._depth and (seconds := time.perf_counter() - begun) > 1e-4:
                self.add("data", section=name, seconds=seconds)  # type: ignore[arg-type]

    def around(self, owner: Any, method: str, name: str) -> None:
        """Make a method of a class, or a function of a module, a section of data."""
        function = getattr(owner, method)

        @wraps(function)
        def timed(*args: Any, **kwargs: Any) -> Any:
            with self.data_section(name):
                return function(*args, **kwargs)

        setattr(owner, method, timed)


def count_padding(input_ids: Any, mask: Any, pad: int | None) -> int:
    """Return how many positions of a forward pass are padding: masked, or, without a mask of rows, the padding token."""
    if mask is not None and mask.dim() == 2:
        return int(mask.numel() - mask.sum())
    return 0 if pad is None else int((input_ids == pad).sum())


def anonymous_bytes() -> int:
    """Return the memory of this process that is no file's (Linux)."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("RssAnon")).split()[1])


def install_probes(events: Events) -> None:
    """Have trainers note batches, forward passes, samplings and seconds on data."""
    from concurrent.futures import Future

    import torch
    from PIL import ImageFile
    from torch.utils.data.dataloader import _BaseDataLoaderIter
    from transformers import ProcessorMixin, Trainer
    from transformers.models.qwen2_5_vl.modeling_qwen2_5_vl import Qwen2_5_VLModel
    from trl import GRPOTrainer, SFTTrainer

    from rewardlab.training.policy_gradient.trainer import PolicyTrainer
    from rewardlab.training.run import length_grouping
    from rewardlab.training.run.length_grouping import LengthGroupingMixin

    events.around(Trainer, "get_batch_samples", "batch")
    events.around(_BaseDataLoaderIter, "__next__", "batch")  # also ahead of an optimizer step, within another
    events.around(LengthGroupingMixin, "get_batch_samples", "batch")
    events.around(length_grouping, "join", "micro-batch")
    events.around(ProcessorMixin, "__call__", "processor")
    events.around(ImageFile.ImageFile, "load", "decode")
    events.around(Future, "result", "wait")
    for owner in (GRPOTrainer, PolicyTrainer):
        _note_calls(owner, "_generate_single_turn", events, "sampling", lambda self, ids, *rest: {"prompts": len(ids)})
    for owner in (GRPOTrainer, SFTTrainer):
        _note_calls(owner, "compute_loss", events, "training", lambda self, *rest: {"rows": self.args.train_batch_size})

    def padding(self: Any, input_ids: Any = None, attention_mask: Any = None, *rest: Any) -> dict[str, int] | None:
        if input_ids is None or not torch.is_grad_enabled():
            return None
        pad = self.config.get_text_config().pad_token_id
        return {"positions": input_ids.numel(), "padding": count_padding(input_ids, attention_mask, pad)}

    _note_calls(Qwen2_5_VLModel, "forward", events, "positions", padding)


def _note_calls(owner: Any, method: str, events: Events, name: str, numbers: Callable[..., dict[str, int] | None]) -> None:
    function = getattr(owner, method)

    @wraps(function)
    def noted(self: Any, *args: Any, **kwargs: Any) -> Any:
        keywords = {key: kwargs[key] for key in ("input_ids", "attention_mask") if key in kwargs}
        if (counted := numbers(self, *args, **keywords)) is not None:
            events.add(name, **counted)
        return function(self, *args, **kwargs)

    setattr(owner, method, noted)


def main() -> None:
    folder, seconds = Path(sys.argv[1]), json.loads(sys.argv[2])
    events = Events(folder)
    events.add("started")
    import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)

    if seconds:
        from eval.rehearsals.stand_ins import install

        install(seconds)
    install_probes(events)
    events.add("imported", bytes=anonymous_bytes())
    sys.argv = ["rewardlab", *sys.argv[3:]]
    if sys.argv[1].startswith("trl-"):
        from eval.rehearsals.trl_runs import main as run
    else:
        from rewardlab.cli import main as run
    run()


if __name__ in ("__main__", "__mp_main__"):  # children that are spawned import this file anew
    sys.path[0] = str(ROOT)  # in place of this folder
    DecodeCounter(Path(sys.argv[1])).install()
if __name__ == "__main__":
    main()
