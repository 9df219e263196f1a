"""README.md of a checkpoint folder: its base, how to prompt it, and how it was made."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rewardlab.data.files import write_atomic
from rewardlab.models.checkpoints import VERDICT_TEMPERATURE, read_card
from rewardlab.reporting.cards import README, render_card
from rewardlab.reporting.tables import markdown_table

STAGES = {
    "sft": "a judge that compares two responses, fine-tuned on a teacher's judgments",
    "dpo": "a judge that compares two responses, trained to prefer right judgments to wrong ones",
    "rl": "a judge that compares two responses, trained by reinforcement learning on labelled pairs",
    "rm": "a scalar reward model",
    "prm": "a process reward model",
}
JUDGES = ("sft", "dpo", "rl")
BODY = """# {title}

This is {kind}{origin}.

{usage}## Accuracy

{results}

## What made it

{record}"""
USAGE = """```bash
rewardlab judge --judge hf:{judge}{template} --image picture.jpg --question "..." --first "..." --second "..."
```

"""
TEMPERATURE = (
    "{tau:.4g}, fitted on {pairs:,} pairs of {benchmark}, {rationales} votes in each order; `prob:` uses it, `prob@1:` does not"
)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_id(name: str) -> bool:
    """Return whether ``name`` is OWNER/NAME of the Hub and no local folder."""
    return bool(_HUB_ID.fullmatch(name)) and not name.startswith(".") and not Path(name).exists()


def base_model_of(folder: Path) -> str:
    """Return the hub id of the model that a checkpoint was trained from, through intermediate checkpoints; "" if one of them is
    missing."""
    seen: set[Path] = set()
    while folder.is_dir() and folder.resolve() not in seen:
        seen.add(folder.resolve())
        base = str((read_card(folder) or {}).get("base") or adapter_base(folder) or "")
        if not base or is_hub_id(base):
            return base
        folder = Path(base)
    return ""


def adapter_base(folder: Path) -> str | None:
    """Return the model that an adapter is added to, None for a whole checkpoint."""
    path = folder / "adapter_config.json"
    return str(json.loads(path.read_text(encoding="utf-8"))["base_model_name_or_path"]) if path.exists() else None


def model_front_matter(folder: Path, **given: Any) -> dict[str, Any]:
    """Return the front matter of a checkpoint's card; a ``given`` value that is not empty wins."""
    is_adapter = adapter_base(folder) is not None
    stage = (read_card(folder) or {}).get("stage", "")
    front = {
        "license": None,
        "base_model": base_model_of(folder),
        "base_model_relation": "adapter" if is_adapter else "finetune",
        "library_name": "peft" if is_adapter else "transformers",
        "pipeline_tag": "image-text-to-text",
        "tags": [
            "rewardlab",
            "reward-model",
            *(["llm-as-a-judge"] if stage in JUDGES else []),
            *([stage] if stage else []),
        ],
        "datasets": [],
    }
    front |= {name: value for name, value in given.items() if value}
    if not front["base_model"]:
        del front["base_model_relation"]
    return front


def model_card_body(folder: Path, repo: str | None = None, results: Sequence[str] = ()) -> str:
    """Return the card's text, Markdown; ``repo`` is where it is published, ``results`` are lines on its accuracy."""
    card, base = read_card(folder) or {}, base_model_of(folder)
    stage = card.get("stage", "")
    template = "" if "template_text" in card else f" template={card.get('template')}"  # custom words are in the card
    return BODY.format(
        title=repo or "A checkpoint of rewardlab",
        kind=STAGES.get(stage, "a checkpoint for judging responses"),
        origin=f", trained from {base}" if base else "",
        usage=USAGE.format(judge=repo or "FOLDER", template=template) if stage in JUDGES else "",
        results="\n".join(results) or "Not measured yet: no benchmark report came with this checkpoint.",
        record="\n".join(markdown_table(("", ""), _record(card))),
    )


def _record(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, value) of what the checkpoint's own card records."""
    if not card:
        return [("record", "none: the folder has no rewardlab.json")]
    fitted, averaged = card.get(VERDICT_TEMPERATURE), card.get("averaged", [])
    versions = ", ".join(f"{package} {version}" for package, version in card.get("versions", {}).items())
    return [
        ("stage", str(card.get("stage", "–"))),
        ("prompt template", f"`{card.get('template')}`, hash `{card.get('template_hash')}`: ask in these words only"),
        *((name, f"`{card[name]}`") for name in ("base", "command", "commit") if card.get(name)),
        *([("mean of the weights of", ", ".join(f"`{part['folder']}`" for part in averaged))] if averaged else []),
        *([("temperature of verdict probabilities", TEMPERATURE.format(**fitted))] if fitted else []),
        ("versions", versions or "–"),
    ]


def write_model_card(folder: Path) -> None:
    """Write ``README.md`` of a saved checkpoint over a library's empty one."""
    write_atomic(folder / README, render_card(model_front_matter(folder), model_card_body(folder)))
