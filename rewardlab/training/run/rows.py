"""A pair as the trainers take it."""

from __future__ import annotations

from typing import Any

from rewardlab.prompts import Template, build_messages
from rewardlab.types import Order, PreferencePair


def chat_columns(pair: PreferencePair, order: Order, template: Template) -> dict[str, Any]:
    """The prompt as TRL takes it: text turns, and the images apart; TRL puts them first, as the template does."""
    messages = build_messages(pair, order=order, template=template)
    return {
        "prompt": [{"role": message.role, "content": message.text} for message in messages],
        "images": [{"bytes": image, "path": None} for message in messages for image in message.images],
    }
