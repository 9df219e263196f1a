"""Make a CUDA build of torchvision importable beside a CPU build of torch.

The package index carries CUDA builds of torchvision only. Beside a CPU torch their compiled operators cannot load, and
``import torchvision`` (hence transformers' Qwen-VL processors, peft, qwen_vl_utils) dies on the missing schema of
``torchvision::nms``. Declaring the schemas is enough: no judge calls those operators, and every transform is Python.
Import this module before any of them. It does nothing where torch has CUDA or torchvision is not installed.
"""

import importlib.util

import torch

_SCHEMAS = (
    "nms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
    "qnms(Tensor dets, Tensor scores, float iou_threshold) -> Tensor",
)


def _declare_missing_operators() -> torch.library.Library | None:
    if torch.version.cuda is not None or importlib.util.find_spec("torchvision") is None:
        return None
    library = torch.library.Library("torchvision", "FRAGMENT")
    for schema in _SCHEMAS:
        try:
            library.define(schema)
        except RuntimeError:  # a torchvision whose extension did load has declared it already
            continue
    return library


# torch drops the schemas when the Library object is collected, so the module keeps it.
_LIBRARY = _declare_missing_operators()
