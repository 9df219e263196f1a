"""A run that is killed right after a checkpoint."""

from __future__ import annotations

from typing import Any

from transformers import TrainerCallback


class KilledError(Exception):
    pass


class Kill(TrainerCallback):
    """Ends a run after the checkpoint of ``step``, or after its first one."""

    def __init__(self, step: int | None = None) -> None:
        self._step = step

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._step in (None, state.global_step):
            raise KilledError
