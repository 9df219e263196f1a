"""What graphics cards hold and compute: the one place from which the estimates of memory and time take it.

Memory, operations and bandwidth are NVIDIA's data sheets': bfloat16 without sparsity, of the SXM form where there are several.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

import torch

from rewardlab.errors import ConfigError

MAKERS_WORDS = {"NVIDIA", "GEFORCE", "HBM3", "HBM3E", "PCIE", "SXM", "SXM2", "SXM4", "SXM5", ""}
REACHED = 0.354  # of a card's operations, in training: Llama 3 has 38 to 43 % of H100s (arXiv 2407.21783, table 4)


@dataclass(frozen=True)
class GraphicsCard:
    """A card of ``memory_gib``; ``peak`` operations a second in bfloat16, and ``bandwidth`` bytes that it reads a second."""

    name: str
    memory_gib: float
    peak: float
    bandwidth: float

    @property
    def flops(self) -> float:
        """Return the operations a second that large products reach."""
        return REACHED * self.peak


CARDS = {
    card.name: card
    for card in (
        GraphicsCard("H100", 80, 989e12, 3.35e12),
        GraphicsCard("H200", 141, 989e12, 4.8e12),
        GraphicsCard("H800", 80, 989e12, 3.35e12),
        GraphicsCard("A100", 80, 312e12, 2.04e12),
        GraphicsCard("L40S", 48, 362e12, 0.864e12),
        GraphicsCard("RTX4090", 24, 165e12, 1.01e12),
        GraphicsCard("RTX3090", 24, 71e12, 0.936e12),
    )
}
TYPICAL = CARDS["H100"]  # where nobody says which


def card_named(name: str) -> GraphicsCard:
    """Return a card by its name, in any spelling, or as its driver has it: "NVIDIA A100-SXM4-80GB" is "A100". Raise
    ConfigError, also for one of its name with another memory: "A100 40GB", "RTX 4090 Laptop GPU"."""
    words = [word for word in re.split(r"[\s-]+", name.upper()) if word not in MAKERS_WORDS]
    joined = "".join(words)
    card = next((card for card in CARDS.values() if joined in (card.name, f"{card.name}{card.memory_gib:.0f}GB")), None)
    if card is None:
        raise ConfigError(f"--card {name}: not known; take one of {', '.join(CARDS)}, or --memory alone")
    return card


def local_card() -> GraphicsCard | None:
    """Return this machine's card; None without one, and for one that is not in the table."""
    try:
        return card_named(torch.cuda.get_device_name(0)) if torch.cuda.is_available() else None
    except ConfigError:
        return None
