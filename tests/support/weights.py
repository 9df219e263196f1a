"""The weights of a model as one vector."""

from __future__ import annotations

from pathlib import Path

import torch

from rewardlab.models.loading import load_model


def flat_weights(model: torch.nn.Module) -> torch.Tensor:
    return torch.cat([weight.detach().flatten() for weight in model.parameters()])


def weights_of(folder: Path) -> torch.Tensor:
    """Return those of the checkpoint in ``folder``."""
    return flat_weights(load_model(str(folder), device="cpu")[0])
