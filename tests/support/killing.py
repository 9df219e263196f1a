"""A run that is killed right after a checkpoint."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any

import pytest
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


@contextmanager
def killed_after_a_save(trainer: Any) -> Iterator[None]:
    """The run within ends right after its first checkpoint is written, before anything is told of it."""
    whole = trainer._save_checkpoint

    def save(self: Any, *args: Any, **kwargs: Any) -> None:
        whole(self, *args, **kwargs)
        raise KilledError

    with pytest.MonkeyPatch.context() as patch, suppress(KilledError):
        patch.setattr(trainer, "_save_checkpoint", save)
        yield
        pytest.fail("nothing was saved")
