"""Controlled experiments on the training methods: one file per question, run by ``python -m eval.studies``."""

import rewardlab  # noqa: F401  (before transformers, see rewardlab/models/torchvision_cpu.py)
