"""What a check of a planned run says, and the numbers it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Outcome = Literal["ok", "look", "failed"]


@dataclass(frozen=True)
class Finding:
    """The result of one check: ``look`` is no failure, but for somebody to decide. ``details`` are lines below the message."""

    name: str
    outcome: Outcome
    message: str
    details: tuple[str, ...] = ()
