"""The rehearsal of a run of the paper's size: what it makes, how it counts, and a small one from end to end."""

from __future__ import annotations

import io
import json
import random
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from PIL import Image
from transformers import AutoTokenizer

from eval import rehearsal
from eval.rehearsals.data import PLANS, check_room, make_model, make_pairs, make_set
from eval.rehearsals.figures import LIMITS, figures, limits, table
from eval.rehearsals.pictures import make_pool, with_jpeg_note, with_png_note
from eval.rehearsals.probe import count_padding
from eval.rehearsals.runs import Case, Observation
from eval.rehearsals.stand_ins import draw_judgment
from eval.rehearsals.texts import VOCABULARY, Prose
from rewardlab.config import RLConfig
from rewardlab.data.pairs import read_pairs
from rewardlab.errors import OutputError
from rewardlab.training.rl import hard_pairs
from rewardlab.types import choice_of
from rewardlab.verdicts.parse import parse_verdict
from tests.support.shell import run_main

SMALL = ((64, 48),)
PLAN = replace(PLANS["sft"], num_pairs=30, pair_kb=20, png_share=0.5)


@pytest.mark.parametrize(("kind", "note"), [("JPEG", with_jpeg_note), ("PNG", with_png_note)])
def test_a_note_changes_the_file_and_not_the_picture(kind: str, note: object) -> None:
    buffer = io.BytesIO()
    Image.effect_mandelbrot((40, 30), (-2, -1, 1, 1), 50).save(buffer, format=kind)
    plain = buffer.getvalue()
    files = {note(plain, f"row {number}") for number in range(3)}  # type: ignore[operator]
    assert len(files | {plain}) == 4
    assert len({Image.open(io.BytesIO(data)).tobytes() for data in files | {plain}}) == 1


def test_a_set_is_what_its_plan_says(tmp_path: Path) -> None:
    """Ten shards; all pairs hard and with a judgment that names the better response; the first tenth again, without a copy."""
    folder = make_set(PLAN, tmp_path, sizes=SMALL)
    pairs = read_pairs(folder)
    assert len(list(folder.glob("*.parquet"))) == 10
    assert len(pairs) == len({pair.pair_id for pair in pairs}) == len({pair.images for pair in pairs}) == PLAN.num_pairs
    assert {data[:4] for pair in pairs for data in pair.images} == {b"\xff\xd8\xff\xfe", b"\x89PNG"}
    assert len(hard_pairs(pairs, RLConfig())) == PLAN.num_pairs
    for pair in pairs:
        assert parse_verdict(pair.judgment, "think_answer").choice is choice_of(pair.preferred or 0, pair.order)
    assert [pair.pair_id for pair in read_pairs(tmp_path / "tenth")] == [pair.pair_id for pair in pairs[:3]]
    assert (tmp_path / "tenth" / "part-00000.parquet").samefile(folder / "part-00000.parquet")


def test_lines_hold_the_same_pairs(tmp_path: Path) -> None:
    path = make_set(PLAN, tmp_path, lines=True, sizes=SMALL)
    pool = make_pool(96, 12, png_share=PLAN.png_share, quality=PLAN.quality, seed=len(PLAN.name), sizes=SMALL)
    assert read_pairs(path) == list(make_pairs(PLAN, pool, Prose()))


def test_a_full_disk_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(OutputError, match=r"are free; name another disk by --folder"):
        check_room(tmp_path, 10**16)
    done = run_main(rehearsal.main, "--scale", "1e6", "--folder", str(tmp_path / "runs"))
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert list((tmp_path / "runs").iterdir()) == []


def test_padding_is_counted_by_the_mask_or_by_the_token() -> None:
    ids = torch.tensor([[5, 6, 7], [5, 0, 0]])
    assert count_padding(ids, torch.tensor([[1, 1, 1], [1, 0, 0]]), 0) == 2
    assert count_padding(ids, None, 0) == 2  # packed rows have no mask
    assert count_padding(ids, None, None) == 0


def event(name: str, time: float, **numbers: object) -> dict[str, object]:
    return {"event": name, "time": time, "cpu_s": time / 2, "pid": 1, **numbers}


def test_figures_worked_by_hand(tmp_path: Path) -> None:
    """Three rollout batches of 4 begin at 10, 20 and 30 s; from 20 s on 5 pictures are decoded, 2 of 10 s are data's."""
    events = [event("imported", 1, bytes=2**30)]
    for start in (10.0, 20.0, 30.0):
        events += [event("sampling", start, prompts=4), event("positions", start + 1, positions=100, padding=8)]
        events += [event("data", start + 3, seconds=2.0, section="batch"), event("training", start + 4, rows=2)]
    decodes = [(at, 0.004, 0.0) for at in (5.0, 12.0, 21.0, 22.0, 23.0, 24.0, 30.0, 31.0)]
    case = Case("rl", (), tmp_path)
    seen = Observation(4.0, 40.0, 0, "", [events], decodes, {0: 3 * 2**30}, False)
    found = figures(case, seen, model_bytes=2**29)
    expected = {"start_up_s": 6.0, "above_model_gib": 1.5, "rows": 4, "decodes_per_row": 5 / 4, "data_share": 0.2}
    assert {name: found[name] for name in expected} == expected
    assert found["padding"] == pytest.approx(0.08)
    assert found["decode_ms"] == pytest.approx(4.0)


def test_a_limit_that_nothing_shows_does_not_hold() -> None:
    run = dict.fromkeys(LIMITS, 0.05) | {"run": "rl", "ours": True, "paced": False, "outcome": "well", "padding": 0.3}
    theirs = dict.fromkeys(LIMITS, 1e9) | {"run": "trl", "ours": False, "paced": False, "outcome": "died"}
    held = {row["figure"]: row["holds"] for row in limits([run, theirs])}
    assert held == {
        "start_up_s": True,
        "above_model_gib": True,
        "decodes_per_row": True,
        "data_share": False,  # of no paced run
        "padding": False,
    }
    assert "| trl |" in table([run, theirs | {"padding": None}])


COUNTING = """
import io, multiprocessing
from concurrent.futures import ThreadPoolExecutor
from PIL import Image
buffer = io.BytesIO()
Image.new("RGB", (32, 32), "red").save(buffer, format="PNG")
def decode(number):
    image = Image.open(io.BytesIO(buffer.getvalue()))
    image.size
    image.load()
    image.convert("L")
if __name__ == "__main__":
    decode(0)
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(decode, range(10)))
    with multiprocessing.get_context("fork").Pool(2) as pool:
        pool.map(decode, range(20))
"""


def test_decodes_are_counted_once_wherever_they_happen(tmp_path: Path) -> None:
    """In the main thread, in threads and in forked processes; opening a file for its size is none."""
    code = "from pathlib import Path\nfrom eval.rehearsals.probe import DecodeCounter\n"
    code += f"DecodeCounter(Path({str(tmp_path)!r})).install()\n" + COUNTING
    subprocess.run([sys.executable, "-c", code], check=True, cwd=rehearsal.ROOT)
    assert (tmp_path / "decodes.bin").stat().st_size == (1 + 10 + 20) * 24


@pytest.mark.slow
def test_the_model_has_qwens_vocabulary(tmp_path: Path) -> None:
    """152,064 entries, special tokens at the end, text that comes back, and judgments of about 600 tokens in the format."""
    tokenizer = AutoTokenizer.from_pretrained(make_model(tmp_path))
    assert len(tokenizer) == VOCABULARY
    assert tokenizer.convert_tokens_to_ids("<|im_end|>") > 152_000
    text = Prose().sentences[0]
    assert tokenizer.decode(tokenizer.encode(text)) == text
    drawn = [draw_judgment(random.Random(seed), tokenizer, 1024) for seed in range(50)]
    assert 550 < sum(map(len, drawn)) / 50 < 680
    assert all(parse_verdict(tokenizer.decode(tokens[:-1]), "think_answer").choice for tokens in drawn)


@pytest.mark.slow
def test_a_small_rehearsal(tmp_path: Path) -> None:
    """Two processes, killed and gone on with: the same numbers again, each picture decoded once, nothing left behind."""
    options = ["--scale", "0.01", "--side", "112", "--folder", str(tmp_path / "runs"), "--out", str(tmp_path)]
    done = run_main(rehearsal.main, "--stages", "rl", "--runs", "paced", "resumed", *options)
    assert done.returncode == 0, done.stderr
    killed, resumed = json.loads((tmp_path / "rehearsal.json").read_text())["runs"]
    assert killed["outcome"] == "killed"
    assert (resumed["outcome"], resumed["steps"], resumed["repeats"]) == ("well", 6, True)
    assert resumed["processes"] == 2
    assert 0.95 < resumed["decodes_per_row"] <= LIMITS["decodes_per_row"]
    assert resumed["padding"] < 0.2  # 0.3 where rows are as wide as the longest of their batch
    assert resumed["checkpoint_mb"] > 100  # 152,064 entries
    assert list((tmp_path / "runs").iterdir()) == []
