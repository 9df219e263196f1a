"""What each scorer prints on a file of outputs."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rewardlab.benchmarks.mm_rlhf import official as mm_rlhf
from rewardlab.benchmarks.mmrb2 import official as mmrb2
from rewardlab.benchmarks.mmrb2.loader import files_of, pairs_of
from rewardlab.benchmarks.multimodal_rewardbench import official as multimodal_rewardbench
from rewardlab.benchmarks.rewardbench2 import official as rewardbench2
from rewardlab.benchmarks.vl_rewardbench import official as vl_rewardbench
from rewardlab.data.files import read_lines
from rewardlab.errors import ConfigError, DataError


def _vl_rewardbench(rows: list[Any]) -> list[str]:
    if rows and isinstance(rows[0], dict) and "0" in rows[0]:  # one column named 0, as pandas writes a list of objects
        rows = [row["0"] for row in rows]
    told = []
    for at_k in vl_rewardbench.score(rows):
        told += at_k.lines()
        if at_k.overall is None:  # an exception ends the scorer
            break
    return told


SCORERS: dict[str, Callable[[list[Any]], list[str]]] = {
    "vl_rewardbench": _vl_rewardbench,
    "multimodal_rewardbench": lambda rows: multimodal_rewardbench.lines(multimodal_rewardbench.score(rows)),
    "mm_rlhf": lambda rows: mm_rlhf.lines(mm_rlhf.score(rows)),
    "rewardbench2": rewardbench2.printed,
    "rewardbench2_ties": lambda rows: rewardbench2.lines({}, rewardbench2.ties(rows)),
}


def printed(benchmark: str, outputs: Path, data: Path | None = None) -> list[str]:
    """The lines. Raises ConfigError for a benchmark without a scorer, DataError for a file of another shape."""
    if benchmark not in (*SCORERS, "mmrb2"):
        raise ConfigError(f"no official scorer of {benchmark!r} is here; expected {', '.join((*SCORERS, 'mmrb2'))}")
    if not outputs.is_file():
        raise DataError(f"{outputs}: no such file of outputs")
    try:
        if benchmark != "mmrb2":
            if not (rows := [json.loads(line) for line in read_lines(outputs) if line.strip()]):
                raise DataError(f"{outputs}: holds no outputs")
            return SCORERS[benchmark](rows)
        if data is None:
            raise ConfigError("mmrb2 is scored against its labels: name the task's benchmark file with --data")
        found, told = json.loads(outputs.read_text(encoding="utf-8")), []
        for path, start in files_of(data):  # one task's file, or the folder of all
            told += mmrb2.score(pairs_of(path), found, mmrb2.TASKS[start]).lines()
        return told
    except DataError:
        raise
    except (OSError, ValueError, KeyError, TypeError, AttributeError, IndexError) as error:
        why = f"a row lacks {error}" if isinstance(error, KeyError) else str(error)
        raise DataError(f"{outputs}: not the outputs of {benchmark} ({why}); see `rewardlab bench official --help`") from error
