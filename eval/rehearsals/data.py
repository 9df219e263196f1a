"""Pairs of the paper's number and real shapes, by the package's own writer, and a small model of a real vocabulary."""

from __future__ import annotations

import os
import random
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from eval.rehearsals.pictures import PicturePool, make_pool
from eval.rehearsals.texts import VOCABULARY, Prose, pad_vocabulary
from rewardlab.data.pairs import write_jsonl, write_shards
from rewardlab.errors import OutputError
from rewardlab.reporting.progress import bar
from rewardlab.types import Order, PreferencePair, choice_of
from rewardlab.verdicts.parse import format_verdict

TENTHS = 10  # shards of a set; the first is the tenth of it that a run is compared with


@dataclass(frozen=True)
class DataPlan:
    """A set to make: how many pairs, and what a picture weighs (``pair_kb``: kB a row, for the room on disk)."""

    name: str
    num_pairs: int
    quality: int
    png_share: float
    pair_kb: float
    has_judgments: bool

    @property
    def num_bytes(self) -> int:
        return round(self.num_pairs * self.pair_kb * 1000)


# Pairs: arXiv 2505.02835, section 4.
PLANS = {
    "rl": DataPlan("rl", 17_261, quality=75, png_share=0.08, pair_kb=370, has_judgments=False),
    "sft": DataPlan("sft", 200_000, quality=45, png_share=0.01, pair_kb=140, has_judgments=True),
}
WORDS = {"question": (35, 0.8), "response": (220, 0.6), "judgment": (365, 0.2)}  # median, and sigma of its logarithm
MOST_WORDS = 900  # of one response


def make_pairs(plan: DataPlan, pool: PicturePool, prose: Prose, *, seed: int = 0) -> Iterator[PreferencePair]:
    """Yield the pairs of a plan: 1,000 to 1,600 tokens of question and responses as a rule, one picture, all hard."""

    def words(dice: random.Random, kind: str) -> float:
        median, sigma = WORDS[kind]
        return min(MOST_WORDS, median * dice.lognormvariate(0, sigma))

    for number in range(plan.num_pairs):
        dice = random.Random(f"{seed} {plan.name} {number}")
        preferred, order = dice.randrange(2), dice.choice(list(Order))
        judgment = ""
        if plan.has_judgments:
            judgment = format_verdict(choice_of(preferred, order), prose.text(dice, words(dice, "judgment")))
        yield PreferencePair(
            pair_id=f"{plan.name}-{number:06d}",
            question=prose.text(dice, words(dice, "question")),
            responses=(f"A. {prose.text(dice, words(dice, 'response'))}", f"B. {prose.text(dice, words(dice, 'response'))}"),
            preferred=preferred,
            images=(pool.pick(dice, f"{plan.name} {number}"),),
            attempts=dice.choice(("2", "3", "unsolved")),
            order=order,
            judgment=judgment,
        )


def check_room(folder: Path, num_bytes: int) -> None:
    """Raise OutputError where the disk of ``folder`` has less than ``num_bytes`` and a tenth free."""
    folder.mkdir(parents=True, exist_ok=True)
    free, need = shutil.disk_usage(folder).free, num_bytes * 1.1
    if free < need:
        raise OutputError(
            f"{folder}: {need / 1e9:.1f} GB are needed and {free / 1e9:.1f} GB are free; name another disk by --folder, or "
            "make fewer pairs by --scale"
        )


def make_set(plan: DataPlan, folder: Path, *, lines: bool = False, sizes: tuple[tuple[int, int], ...] | None = None) -> Path:
    """Write a set of ten shards to ``folder/all``, and its first again, as a second name of the same file, to ``folder/tenth``;
    or with ``lines`` one file of JSON lines with its pictures beside it. Return the folder of all, or the file.

    Raise OutputError where the disk has not the room.
    """
    check_room(folder, plan.num_bytes)
    options = {} if sizes is None else {"sizes": sizes}
    pool = make_pool(96, 12, png_share=plan.png_share, quality=plan.quality, seed=len(plan.name), **options)
    pairs = make_pairs(plan, pool, Prose())
    if lines:
        write_jsonl(pairs, folder / "lines" / "pairs.jsonl")
        return folder / "lines" / "pairs.jsonl"
    with bar(f"{plan.name} pairs", plan.num_pairs) as advance:
        rows = -(-plan.num_pairs // TENTHS)
        for shard in write_shards(pairs, folder / "all", rows_per_shard=rows):
            advance(rows)
            if shard.name == "part-00000.parquet":
                (folder / "tenth").mkdir()
                os.link(shard, folder / "tenth" / shard.name)
    return folder / "all"


def make_model(folder: Path, *, hidden: int = 64, layers: int = 2) -> Path:
    """Save a Qwen2.5-VL of random weights with 152,064 entries in its vocabulary; return its folder."""
    from transformers import AutoTokenizer

    from rewardlab.demo.base_model import build_model, build_processor, save_model, train_tokenizer

    tokenizer = train_tokenizer(Prose().corpus(), 4_000)
    tokenizer.save_pretrained(folder)
    pad_vocabulary(folder / "tokenizer.json")
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert len(tokenizer) == VOCABULARY, len(tokenizer)
    save_model(folder, build_model(tokenizer, hidden=hidden, layers=layers, seed=0), build_processor(tokenizer))
    return folder
