"""VLFeedback (arXiv 2410.09421): four answers to an instruction, each rated by GPT-4V on three aspects, 1 to 5, as text.

``id, prompt, image, completions``: a list of ``{"annotations", "model", "response"}``, or, as ``datasets`` loads it, one
mapping of lists. ``annotations`` has ``Helpfulness``, ``Ethical Considerations``, ``Visual Faithfulness``, each with a
``Rating``. As the authors do it: every two answers are a pair, the higher mean of the three ratings wins, equal means are ties
and dropped, and so are answers with a rating that is no number. 80,258 rows. ``id`` repeats 29,073 times, and images in the
archive are named by it: a row that brings no image of its own cannot be trusted to find it there, and is bad. GPT-4V's citation
marks are cut.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any

from rewardlab.data.recipes import Dropped, Recipe, SourceFolder, clean_text, make_pairs_by_score
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair

ASPECTS = ("Helpfulness", "Ethical Considerations", "Visual Faithfulness")
_CITATION = re.compile(r"【\d+†[^】]*】")


def completions_of(value: Any) -> list[Mapping[str, Any]]:
    """Return a list of completions, however it was loaded."""
    if isinstance(value, Mapping):
        return [dict(zip(value, each, strict=True)) for each in zip(*value.values(), strict=True)]
    return list(value)


def rating(completion: Mapping[str, Any]) -> float | None:
    """Return the mean over the three aspects; None where one of them is no number."""
    try:
        mean = sum(float(completion["annotations"][aspect]["Rating"]) for aspect in ASPECTS) / len(ASPECTS)
    except (ValueError, TypeError):
        return None
    return mean if math.isfinite(mean) else None


def convert(row: Mapping[str, Any], source: SourceFolder) -> Iterator[PreferencePair | Dropped]:
    """Yield up to six pairs."""
    if not row.get("image"):
        raise DataError(
            f"'image' is missing, and 'id' {row.get('id')!r} does not name one surely: ids repeat; use its parquet files"
        )
    question, images = clean_text(row["prompt"], "prompt"), source.images(row["image"], "image")
    answers = completions_of(row["completions"])
    scored = [(_CITATION.sub("", clean_text(completion["response"], "response")), rating(completion)) for completion in answers]
    yield from make_pairs_by_score(question, scored, images)


RECIPE = Recipe("vlfeedback", "https://huggingface.co/datasets/MMInstruction/VLFeedback", "", 80_258, convert)
