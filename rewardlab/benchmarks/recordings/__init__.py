"""Recordings in the forms of other tools, as ``--judge replay:FILE`` takes them."""

from __future__ import annotations

# form -> the benchmark whose rows it has samples of; how each is read stands in ``readers``
FORMS = {
    "vl_rewardbench": "vl_rewardbench",
    "lmms_eval": "vl_rewardbench",
    "vlmevalkit": "vl_rewardbench",
    "ixc": "vl_rewardbench",
    "multimodal_rewardbench": "multimodal_rewardbench",
    "mm_rlhf": "mm_rlhf",
    "mmrb2": "mmrb2",
    "outcomes": "pairs",
}
