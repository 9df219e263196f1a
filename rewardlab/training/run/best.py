"""The weights of the best evaluation, in ``OUT/best``: whole or absent, and those of the history a run goes on from.

A run that is killed goes on from its last checkpoint, and what was best after that is forgotten. So the best weights as of that
checkpoint stay, in a folder beside, until the next checkpoint is whole.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from rewardlab.models.checkpoints import CARD, read_card
from rewardlab.prompts import Template
from rewardlab.training.run.folder import CRITIC, write_partial

BEST, PREVIOUS = "best", "best.previous"


def best_step(folder: Path) -> int | None:
    """Return the step whose weights ``folder`` holds; None where there is no such folder."""
    card = read_card(folder) if (folder / CARD).exists() else None
    return None if card is None else int(card["step"])


def save_best(out: Path, trainer: Any, processor: Any, *, step: int, template: Template, stage: str, **facts: Any) -> None:
    """Save the weights as they are at ``step`` into ``out/best``, with processor and card; what was there stays
    beside, where the last checkpoint knows it as the best."""
    best, previous = out / BEST, out / PREVIOUS
    if trainer.accelerator.is_main_process:
        _remove(best.with_name(f"{BEST}.partial"))
    trainer.accelerator.wait_for_everyone()
    partial = write_partial(best, trainer, processor, template=template, stage=stage, step=step, **facts)
    if trainer.accelerator.is_main_process:
        _remove(partial / CRITIC)  # a part of the run, not of the judge
        if best.exists() and not previous.exists():
            best.rename(previous)
        _remove(best)
        partial.rename(best)
    trainer.accelerator.wait_for_everyone()


def forget_previous(out: Path) -> None:
    """Remove what was the best as of an older checkpoint: a newer one is whole."""
    _remove(out / PREVIOUS)


def restore_best(out: Path, step: int) -> None:
    """Have ``out/best`` be what it was at the checkpoint of ``step``, which a run goes on from."""
    best, previous = out / BEST, out / PREVIOUS
    _remove(best.with_name(f"{BEST}.partial"))
    for folder in (best, previous):
        if folder.exists() and (of_step := best_step(folder)) is not None and of_step > step:
            _remove(folder)
    if previous.exists():
        if best.exists():
            _remove(previous)
        else:
            previous.rename(best)


def _remove(folder: Path) -> None:
    """Remove a folder; killed within, it leaves none that could be taken for a whole one."""
    if folder.exists():
        doomed = folder.with_name(f".{folder.name}.removed")
        shutil.rmtree(doomed, ignore_errors=True)
        folder.rename(doomed)
        shutil.rmtree(doomed)
