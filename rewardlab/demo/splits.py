"""The splits of the demonstration: which pairs a picture may be drawn for."""

from __future__ import annotations

from enum import StrEnum


class Split(StrEnum):
    """No picture of one split is one of another's: ``VALIDATION`` is for choosing settings, ``TEST`` for reporting them.

    ``UNLIKE`` pairs differ from all others in their drawing, wording or shapes.
    """

    TRAIN = "train"
    TEST = "test"
    VALIDATION = "validation"
    UNLIKE = "unlike"
