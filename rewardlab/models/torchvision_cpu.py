"""Make a CUDA build of torchvision importable beside a CPU build of torch.

PyPI has CUDA builds of torchvision only. With a CPU torch their compiled operators do not load, and ``import torchvision``
(hence transformers' Qwen-VL processors, peft, qwen_vl_utils) fails on the missing schema of ``torchvision::nms``. Declaring the
schemas is enough: no judge calls these operators.

``import rewardlab`` installs a finder that declares them when torchvision is first imported. It loads neither torch nor
torchvision, and does nothing for a torch with CUDA.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from types import ModuleType
from typing import Any

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


class DeclareOperators(MetaPathFinder):
    """Finder that declares the operators when torchvision is imported; the next finder does the search."""

    library: Any = None  # torch drops the schemas when the Library object is collected

    def find_spec(self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None) -> None:
        if fullname != "torchvision" or self.library is not None:
            return
        import torch

        if torch.version.cuda is not None:
            return
        self.library = torch.library.Library("torchvision", "FRAGMENT")
        for schema in _SCHEMAS:
            try:
                self.library.define(schema)
            except RuntimeError:  # a torchvision whose extension did load has declared it already
                continue


def install() -> None:
    """Install the finder, once."""
    if not any(isinstance(finder, DeclareOperators) for finder in sys.meta_path):
        sys.meta_path.insert(0, DeclareOperators())


install()
