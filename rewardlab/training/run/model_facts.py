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
    """Return the models that a trainer has loaded, by what they are to it: of a DeepSpeed engine, its module."""
    models = {
        "model": trainer.model,
        "reference": getattr(trainer, "ref_model", None),
        CRITIC: getattr(trainer.model, CRITIC, None),
        "process reward": getattr(getattr(trainer, "_process_reward", None), "model", None),
    }
    return {name: getattr(model, "module", model) for name, model in models.items() if model is not None}


def record_models(out: Path, trainer: Any) -> None:
    """Write the attention and the type of weights of each model of a run into its ``run.json``, and log them; where a run goes
    on with others, those it had, too."""
    if not is_main():
        return
    models = models_of(trainer)
    facts = {
        "attention": {name: attention_of(model) for name, model in models.items()},
        "weights": {name: str(next(model.parameters()).dtype).removeprefix("torch.") for name, model in models.items()},
    }
    path = out / CONFIG
    record = json.loads(path.read_text(encoding="utf-8"))
    before = {name: record[name] for name in facts} if facts.keys() <= record.keys() else {}
    write_atomic(path, json.dumps({**record, **facts}, indent=1) + "\n")
    changed = f"; before: {_text(before)}, so numbers differ by rounding" if before and before != facts else ""
    log_line(f"{out}: {_text(facts)}{changed}")


def _text(facts: dict[str, dict[str, str]]) -> str:
    """Return the facts by the config's key; ``dtype`` is the type of ``final/``, not that of the weights that learn."""
    each = facts["attention"].items()
    return "; ".join(f"{name}: attn_implementation {attention}, weights {facts['weights'][name]}" for name, attention in each)
