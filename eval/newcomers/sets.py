"""The same pairs in the forms that people have them in: JSON lines, CSV, saved datasets; right, misnamed and incomplete."""

from __future__ import annotations

import csv
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rewardlab.demo.pairs import make_pairs
from rewardlab.types import PreferencePair

TASKS = ("color", "shape", "where", "count", "exists")  # what `eyes` can read; no question speaks of a picture
PICTURES = "pictures"
NUM_LOST = 3


def newcomers_pairs(num: int, seed: int = 0) -> list[PreferencePair]:
    """Return ``num`` pairs of the demonstration, each with a picture of its own."""
    pairs, _ = make_pairs(4 * num + 20, seed=seed, held_out=True)
    return [pair for pair in pairs if pair.pair_id.rpartition("-")[2] in TASKS][:num]


def write_pictures(pairs: Sequence[PreferencePair], folder: Path) -> list[str]:
    """Write each pair's picture into ``folder`` and return the names of the files."""
    folder.mkdir(parents=True, exist_ok=True)
    names = [f"{number:03}.png" for number in range(len(pairs))]
    for name, pair in zip(names, pairs, strict=True):
        (folder / name).write_bytes(pair.images[0])
    return names


def _row(pair: PreferencePair, **fields: Any) -> dict[str, Any]:
    return {"question": pair.question, "responses": list(pair.responses), "preferred": pair.preferred, **fields}


def _chosen(pair: PreferencePair) -> dict[str, str]:
    better = pair.preferred or 0
    return {"chosen": pair.responses[better], "rejected": pair.responses[1 - better]}


def _lines(path: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


def _table(path: Path, rows: Sequence[dict[str, Any]], delimiter: str = ",") -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, list(rows[0]), delimiter=delimiter)
        writer.writeheader()
        writer.writerows(rows)
    return path


def json_lines(pairs: Sequence[PreferencePair], folder: Path) -> Path:
    names = write_pictures(pairs, folder / PICTURES)
    rows = [_row(pair, images=[f"{PICTURES}/{name}"]) for name, pair in zip(names, pairs, strict=True)]
    return _lines(folder / "pairs.jsonl", rows)


def chosen_rejected(pairs: Sequence[PreferencePair], folder: Path) -> Path:
    names = write_pictures(pairs, folder / PICTURES)
    rows = [
        {"id": name[:3], "image": f"{PICTURES}/{name}", "prompt": pair.question, **_chosen(pair)}
        for name, pair in zip(names, pairs, strict=True)
    ]
    return _lines(folder / "pairs.jsonl", rows)


def comma_separated(pairs: Sequence[PreferencePair], folder: Path) -> Path:
    names = write_pictures(pairs, folder / PICTURES)
    rows = [
        {
            "image": f"{PICTURES}/{name}",
            "question": pair.question,
            "response_a": pair.responses[0],
            "response_b": pair.responses[1],
            "winner": "AB"[pair.preferred or 0],
        }
        for name, pair in zip(names, pairs, strict=True)
    ]
    return _table(folder / "pairs.csv", rows)


def csv_chosen(pairs: Sequence[PreferencePair], folder: Path) -> Path:
    names = write_pictures(pairs, folder / PICTURES)
    rows = [
        {"image": f"{PICTURES}/{name}", "question": pair.question, **_chosen(pair)}
        for name, pair in zip(names, pairs, strict=True)
    ]
    return _table(folder / "pairs.csv", rows)


def saved_dataset(pairs: Sequence[PreferencePair], folder: Path) -> Path:
    """What ``Dataset.save_to_disk`` writes, the pictures within."""
    from datasets import Dataset, Features, Image, Value, disable_progress_bars

    disable_progress_bars()
    names = write_pictures(pairs, folder / PICTURES)
    columns = {
        "image": [str(folder / PICTURES / name) for name in names],
        "prompt": [pair.question for pair in pairs],
        "chosen": [_chosen(pair)["chosen"] for pair in pairs],
        "rejected": [_chosen(pair)["rejected"] for pair in pairs],
    }
    text = Value("string")
    features = Features({"image": Image(), "prompt": text, "chosen": text, "rejected": text})
    read = Dataset.from_dict(columns, features=features).map(lambda row: row, features=features)
    read.save_to_disk(str(folder / "saved"))
    return folder / "saved"


def misnamed(column: str) -> Callable[[Sequence[PreferencePair], Path], Path]:
    """Return a form of JSON lines whose picture is in ``column``, a path and no list."""

    def write(pairs: Sequence[PreferencePair], folder: Path) -> Path:
        names = write_pictures(pairs, folder / PICTURES)
        rows = [_row(pair, **{column: f"{PICTURES}/{name}"}) for name, pair in zip(names, pairs, strict=True)]
        return _lines(folder / "pairs.jsonl", rows)

    return write


def with_another_column(pairs: Sequence[PreferencePair], folder: Path) -> Path:
    names = write_pictures(pairs, folder / PICTURES)
    rows = [_row(pair, images=[f"{PICTURES}/{name}"], annotator="mb") for name, pair in zip(names, pairs, strict=True)]
    return _lines(folder / "pairs.jsonl", rows)


def elsewhere(pairs: Sequence[PreferencePair], folder: Path) -> Path:
    """Rows name pictures that stand in another folder than the file."""
    names = write_pictures(pairs, folder / PICTURES)
    rows = [_row(pair, images=[name]) for name, pair in zip(names, pairs, strict=True)]
    return _lines(folder / "pairs.jsonl", rows)


def lost_pictures(pairs: Sequence[PreferencePair], folder: Path) -> Path:
    """As JSON lines, the files of three pictures not there (``kept`` has them)."""
    path = json_lines(pairs, folder)
    (folder / "kept").mkdir()
    for picture in sorted((folder / PICTURES).iterdir())[5 : 5 + NUM_LOST]:
        picture.rename(folder / "kept" / picture.name)
    return path


@dataclass(frozen=True)
class Form:
    """A form of a set; ``write(pairs, folder)`` returns the path to hand to ``--data``."""

    name: str
    write: Callable[[Sequence[PreferencePair], Path], Path]


FORMS = {
    form.name: form
    for form in (
        Form("JSON lines", json_lines),
        Form("JSON lines, chosen and rejected", chosen_rejected),
        Form("CSV, response_a, response_b, winner", comma_separated),
        Form("CSV, chosen and rejected", csv_chosen),
        Form("saved dataset, chosen and rejected", saved_dataset),
        Form("JSON lines, image for images", misnamed("image")),
        Form("JSON lines, pictures in a column scan", misnamed("scan")),
        Form("JSON lines, a column annotator", with_another_column),
        Form("JSON lines, pictures in another folder", elsewhere),
        Form("JSON lines, three pictures lost", lost_pictures),
    )
}
