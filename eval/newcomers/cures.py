"""What a newcomer does next, by the words of the command that just ended: no source, no manual, nothing but the sentence.

A cure needs its words in the output. Where none of them is there the newcomer is at a loss, and the trial has failed.
"""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from eval.newcomers.server import KEY, MODEL
from eval.newcomers.sets import PICTURES


@dataclass
class Attempt:
    """What the newcomer has at hand: a folder with the set, the judge's address, and what was learnt so far."""

    folder: Path
    data: Path
    model: str
    address: str
    start_server: Callable[[], None]
    judge: str = ""  # in place of model and address
    flags: dict[str, str] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    out: str = "runs/bench"


@dataclass(frozen=True)
class Cure:
    """``words`` must be in the output; ``apply`` makes use of them and returns whether it could."""

    name: str
    words: re.Pattern[str]
    apply: Callable[[Attempt, re.Match[str]], bool]


def _rename(attempt: Attempt, match: re.Match[str]) -> bool:
    rows = [json.loads(line) for line in attempt.data.read_text(encoding="utf-8").splitlines()]
    if not all(match[1] in row for row in rows):
        return False
    renamed = [{("images" if name == match[1] else name): value for name, value in row.items()} for row in rows]
    lines = [json.dumps({**row, "images": [row["images"]]}) + "\n" for row in renamed]
    attempt.data.write_text("".join(lines), encoding="utf-8")
    return True


def _allow(attempt: Attempt, match: re.Match[str]) -> bool:
    attempt.flags["--allow-columns"] = ",".join(filter(None, (attempt.flags.get("--allow-columns"), match[1])))
    return True


def _point_to_pictures(attempt: Attempt, match: re.Match[str]) -> bool:
    if "--images" in attempt.flags or not (attempt.folder / PICTURES / Path(match[1]).name).exists():
        return False
    attempt.flags["--images"] = PICTURES
    return True


def _bring_back(attempt: Attempt, match: re.Match[str]) -> bool:
    kept = attempt.folder / "kept" / Path(match[1]).name
    if not kept.exists():
        return False
    shutil.copytree(kept.parent, attempt.folder / PICTURES, dirs_exist_ok=True)
    return True


def _give_key(attempt: Attempt, match: re.Match[str]) -> bool:
    attempt.environment[match[1]] = KEY
    return True


def _name_model(attempt: Attempt, match: re.Match[str]) -> bool:
    attempt.model = MODEL
    return match[1] == MODEL


def _give_effort(attempt: Attempt, match: re.Match[str]) -> bool:
    attempt.flags[match[2]] = match[1]
    return True


def _start(attempt: Attempt, match: re.Match[str]) -> bool:
    attempt.start_server()
    return True


def _read_anew(attempt: Attempt, match: re.Match[str]) -> bool:
    attempt.judge, attempt.flags["--template"], attempt.out = match[1], match[2], "runs/again"
    return True


def _cure(name: str, words: str, apply: Callable[[Attempt, re.Match[str]], bool]) -> Cure:
    return Cure(name, re.compile(words, re.DOTALL), apply)


CURES = (
    _cure("column renamed", r"the column '(\w+)' is not read; did you mean 'images', a list\?", _rename),
    _cure("column passed over", r"pass over it by --allow-columns (\w+)", _allow),
    _cure("folder of pictures named", r"image 0, (\S+): cannot be read .*? check --images", _point_to_pictures),
    _cure("lost pictures brought back", r"image 0, (\S+): cannot be read .*? and the file name", _bring_back),
    _cure("key given", r"Incorrect API key .*?(OPENAI_API_KEY)", _give_key),
    _cure("model named", r"This server has `(\w+)`.*?--judge openai:MODEL@URL", _name_model),
    _cure("effort given", r"'reasoning_effort': '(\w+)'.*?(--reasoning-effort)", _give_effort),
    _cure("server started again", r"no connection.*?run the same command again", _start),
    _cure("recorded answers read anew", r"--judge (replay:\S+) --template (\w+)", _read_anew),
)


def cure_by(output: str, attempt: Attempt) -> str:
    """Apply the first cure that the output names, and return its name; "" where it names none that helps."""
    plain = re.sub(r"\s+", " ", output)
    for cure in CURES:
        match = cure.words.search(plain)
        if match is not None and cure.apply(attempt, match):
            return cure.name
    return ""
