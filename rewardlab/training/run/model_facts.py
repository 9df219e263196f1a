"""By which attention, and in which type, each model of a run computes: said in the log and kept in ``run.json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.models.attention import attention_of
from rewardlab.processes import is_main
from rewardlab.reporting.progress import log_line
from rewardlab.training.run.folder import CONFIG, CRITIC


def models_of(trainer: Any) -> dict[str, Any]:
    """Return the models that a trainer has loaded, by what they are to it."""
    models = {
        "model": trainer.model,
        "reference": getattr(trainer, "ref_model", None),
        CRITIC: getattr(trainer.model, CRITIC, None),
        "process reward": getattr(getattr(trainer, "_process_reward", None), "model", None),
    }
    return {name: model for name, model in models.items() if model is not None}


def record_models(out: Path, trainer: Any) -> None:
    """Write the attention and the type of weights of each model of a run into its ``run.json``, and log them."""
    if not is_main():
        return
    models = models_of(trainer)
    facts = {
        "attention": {name: attention_of(model) for name, model in models.items()},
        "weights": {name: str(next(model.parameters()).dtype).removeprefix("torch.") for name, model in models.items()},
    }
    path = out / CONFIG
    write_atomic(path, json.dumps({**json.loads(path.read_text(encoding="utf-8")), **facts}, indent=1) + "\n")
    each = [f"{name} {facts['attention'][name]} on {facts['weights'][name]}" for name in models]
    log_line(f"{out}: attention and weights: {', '.join(each)}")
