"""README.md of a checkpoint folder: which base it was trained from, how it must be prompted, and what made it."""

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
    "rl": "a judge that compares two responses, trained by reinforcement learning on labelled pairs",
    "rm": "a scalar reward model",
    "prm": "a process reward model",
}
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


def is_hub_id(name: str) -> bool:
    """Return whether ``name`` is OWNER/NAME of the Hub and no folder here."""
    return bool(_HUB_ID.fullmatch(name)) and not name.startswith(".") and not Path(name).exists()


def base_model_of(folder: Path) -> str:
    """Return the hub id of the model that a checkpoint's training began with, through the checkpoints between; "" if one of
    them is not here."""
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
            *(["llm-as-a-judge"] if stage in ("sft", "rl") else []),
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
    card = read_card(folder) or {}
    base = base_model_of(folder)
    kind = STAGES.get(card.get("stage", ""), "a checkpoint for judging responses")
    lines = [f"# {repo or 'A checkpoint of rewardlab'}", "", f"This is {kind}{f', trained from {base}' if base else ''}.", ""]
    if card.get("stage") in ("sft", "rl"):
        template = "" if "template_text" in card else f" template={card.get('template')}"  # one's own words are in the card
        judge = f"rewardlab judge --judge hf:{repo or 'FOLDER'}{template}"
        lines += ["```bash", f'{judge} --image picture.jpg --question "..." --first "..." --second "..."', "```", ""]
    lines += ["## Accuracy", "", *(results or ["Not measured yet: no benchmark report came with this checkpoint."]), ""]
    return "\n".join([*lines, "## What made it", "", *markdown_table(("", ""), _origin(card))])


def _origin(card: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return (name, value) of what the checkpoint's own card records."""
    if not card:
        return [("record", "none: the folder has no rewardlab.json")]
    rows = [("stage", str(card.get("stage", "–")))]
    rows.append(("prompt template", f"`{card.get('template')}`, hash `{card.get('template_hash')}`: ask in these words only"))
    rows += [(name, f"`{card[name]}`") for name in ("base", "command", "commit") if card.get(name)]
    if fitted := card.get(VERDICT_TEMPERATURE):
        rows.append(
            (
                "temperature of verdict probabilities",
                f"{fitted['tau']:.4g}, fitted on {fitted['pairs']:,} pairs of {fitted['benchmark']}, {fitted['rationales']} "
                "votes in each order; `prob:` uses it, `prob@1:` does not",
            )
        )
    versions = ", ".join(f"{package} {version}" for package, version in card.get("versions", {}).items())
    return [*rows, ("versions", versions or "–")]


def write_model_card(folder: Path) -> None:
    """Write ``README.md`` of a checkpoint that was just saved, in place of a library's empty one."""
    write_atomic(folder / README, render_card(model_front_matter(folder), model_card_body(folder)))
