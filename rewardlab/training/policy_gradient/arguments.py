"""TRL's arguments, as this package's trainer takes them. What tells one method from another is ``config/method.py``."""

from __future__ import annotations

from dataclasses import dataclass

from trl import GRPOConfig


@dataclass
class PolicyArguments(GRPOConfig):
    """GRPOConfig that allows one sample per prompt: TRL refuses it because of its group baseline, which is not used here."""

    num_generations: int = 8

    def __post_init__(self) -> None:
        group_size = self.num_generations
        if group_size == 1:
            self.num_generations = 2
        super().__post_init__()
        self.num_generations = group_size
