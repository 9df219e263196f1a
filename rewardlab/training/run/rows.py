"""Pairs as rows of a training set, as TRL takes them."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any

from datasets import List, Value

from rewardlab.prompts import Template, build_messages
from rewardlab.types import Order, PreferencePair

TURNS = List({"role": Value("string"), "content": Value("string")})


def chat_columns(pair: PreferencePair, order: Order, template: Template) -> dict[str, Any]:
    """Return the prompt as TRL takes it: text turns, and the images apart; TRL puts them first, as the template does."""
    messages = build_messages(pair, order=order, template=template)
    return {
        "prompt": [{"role": message.role, "content": message.text} for message in messages],
        "images": [{"bytes": image, "path": None} for message in messages for image in message.images],
    }


def data_fingerprint(pairs: Sequence[PreferencePair]) -> str:
    """Return a hash of what a training run reads of its pairs."""
    digest = hashlib.sha256()
    for p in pairs:
        digest.update(repr((p.pair_id, p.question, p.responses, p.preferred, p.attempts, p.order, p.judgment)).encode())
        for image in p.images:
            digest.update(hashlib.sha256(image).digest())
    return digest.hexdigest()[:16]
