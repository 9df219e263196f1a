"""RewardBench 2 (arXiv 2506.01937): 1,865 text prompts, one right answer of four; a subset of prompts with many right ones.

A pairwise judge sees every right answer of a prompt against every wrong one. A prompt is right where all of its pairs are: the
best-of-4 accuracy whose chance level is one in four by rank, one in eight by three coins.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.data_files import reason
from rewardlab.data.row_files import rows_of
from rewardlab.errors import DataError
from rewardlab.types import PreferencePair


def load_rewardbench2(data: Path, *, images: Path | None, with_images: bool) -> list[Row]:
    """Return every right answer against each wrong one, of the Hub's parquet or the same as JSON lines: ``id, prompt, chosen[],
    rejected[], subset``. Response 0 is the right one. There is nothing to look at.

    Answers are taken as they are, empty and equal ones too: they are what models wrote. Raise DataError for a malformed row.
    """
    rows: list[Row] = []
    for prompt in load_prompts(data):
        right, wrong = prompt.answers[: prompt.num_right], prompt.answers[prompt.num_right :]
        for place, answers in enumerate((good, bad) for good in right for bad in wrong):
            name = f"{prompt.prompt_id}#{place}"
            pair = PreferencePair(name, prompt.question, answers, 0, category=prompt.subset, source="rewardbench2")
            rows.append(Row(len(rows), pair, prompt.subset, prompt.prompt_id, {}))
    return rows


TIES = "Ties"
_TIES_ID = re.compile(r"(ref|tied):\d+")


@dataclass(frozen=True)
class ListPrompt:
    """A prompt and all of its answers, the ``num_right`` right ones first."""

    prompt_id: str
    subset: str
    question: str
    answers: tuple[str, ...]
    num_right: int

    @property
    def is_one_of_four(self) -> bool:
        return self.subset != TIES and self.num_right == 1 and len(self.answers) == 4


def load_prompts(data: Path) -> list[ListPrompt]:
    """Return the prompts of a file. Raise DataError for a malformed row, and for a file without any."""
    prompts = [_prompt(fields, f"{data}, row {number}") for number, fields in enumerate(rows_of(data))]
    if not prompts:
        raise DataError(f"{data}: holds no rows")
    return prompts


def _prompt(fields: Mapping[str, Any], where: str) -> ListPrompt:
    try:
        right, wrong, question = fields["chosen"], fields["rejected"], fields["prompt"]
        if not isinstance(right, list) or not isinstance(wrong, list):
            raise TypeError("chosen and rejected must be lists of strings")
        if not right or not wrong or not all(isinstance(text, str) for text in (question, *right, *wrong)):
            raise TypeError("expected at least one right and one wrong text")
        "".join((question, *right, *wrong)).encode()  # bytes that were no UTF-8 are no text
        prompt = ListPrompt(str(fields["id"]), str(fields["subset"]), question, (*right, *wrong), len(right))
        if prompt.subset == TIES and not _TIES_ID.fullmatch(prompt.prompt_id):
            raise TypeError(f"an id of the Ties subset is ref:NUMBER or tied:NUMBER, not {prompt.prompt_id!r}")
        return prompt
    except (KeyError, TypeError, UnicodeEncodeError) as error:
        raise DataError(f"{where}: expected id, prompt, chosen, rejected, subset ({reason(error, fields)})") from error
