"""Preference files for other trainers: who is chosen, what is dropped and why, and that TRL's own trainers take the files."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest
from PIL import Image
from typer.testing import CliRunner

from rewardlab.benchmarks.base import Row
from rewardlab.benchmarks.browser import judgments_to_show
from rewardlab.benchmarks.comparison import against, read_run
from rewardlab.benchmarks.runner import run_bench
from rewardlab.benchmarks.settings import bench_settings
from rewardlab.cli import app
from rewardlab.data.candidates import candidates_hash, read_candidates
from rewardlab.data.files import data_hash
from rewardlab.data.images import encode_png
from rewardlab.data.judgments import JudgedPair, PreferenceRules, judge_of_votes, read_judged, write_preferences
from rewardlab.data.pairs import write_parquet
from rewardlab.data.votes import vote_row
from rewardlab.errors import ConfigError, DataError
from rewardlab.judging.spec import DEMO_JUDGE
from rewardlab.types import (
    Choice,
    Completion,
    FinishReason,
    Order,
    PreferencePair,
    Tie,
    Verdict,
    VerdictStatus,
    Vote,
    choice_of,
)

IMAGE = encode_png(Image.new("RGB", (56, 56), (9, 40, 200)))
# name -> winners of the votes in the given order, and in the swapped one; None: no verdict
VOTES: dict[str, tuple[list[int | None], list[int | None]]] = {
    "both": ([0], [0]),
    "split": ([0], [1]),
    "tie": ([0, 1], [1, 0]),
    "mostly": ([1, 1, 0], [1, 1, 1]),
    "silent": ([None], [None]),
    "half": ([1], [None]),
    "leaning": ([1, 1, 1], [0, 0, 1]),
}


def vote(order: Order, winner: int | None) -> Vote:
    choice: Choice | None = None if winner is None else choice_of(winner, order)
    status = VerdictStatus.OK if choice else VerdictStatus.NO_VERDICT
    return Vote(order, Verdict(choice, status), Completion("because", FinishReason.STOP, 3))


def votes_of(name: str) -> list[Vote]:
    given, swapped = VOTES[name]
    return [vote(Order.GIVEN, winner) for winner in given] + [vote(Order.SWAPPED, winner) for winner in swapped]


def pair(name: str, **fields: Any) -> PreferencePair:
    return PreferencePair(name, f"What of {name}?", (f"{name} zero", f"{name} one <think>"), 0, (IMAGE,), **fields)


@pytest.fixture
def run(tmp_path: Path) -> tuple[Path, Path]:
    """A run's log over a set, and the set; the last pair was never asked about."""
    data, log = tmp_path / "pairs.parquet", tmp_path / "run" / "votes.jsonl"
    write_parquet([pair(name) for name in [*VOTES, "later"]], data)
    rows = [{"pass": "votes", "row": n, "votes": [vote_row(v) for v in votes_of(name)]} for n, name in enumerate(VOTES)]
    wrong = {"pass": "blank", "row": 0, "votes": [vote_row(v) for v in votes_of("mostly")]}
    log.parent.mkdir()
    identity = {"identity": {"benchmark": "pairs", "data": data_hash(data)}}
    log.write_text("".join(json.dumps(row) + "\n" for row in [identity, wrong, *rows]))
    return log.parent, data


def invoke(*arguments: object) -> Any:
    return CliRunner().invoke(app, list(map(str, arguments)))


def test_only_what_both_orders_say(run: tuple[Path, Path], tmp_path: Path) -> None:
    """The winners by hand; each pair left out has its reason; the label plays no part."""
    out = tmp_path / "dpo.parquet"
    done = invoke("data", "dpo", run[0], "--data", run[1], "--out", out)
    assert done.exit_code == 0, done.output
    rows = pq.read_table(out).to_pylist()
    answers = [[row[name][0]["content"][0]["text"] for name in ("chosen", "rejected")] for row in rows]
    assert answers == [["both zero", "both one <think>"], ["mostly one <think>", "mostly zero"]]
    assert [(row["margin"], row["share"], row["swap_consistent"]) for row in rows] == [
        (1.0, 1.0, True),
        (pytest.approx(2 / 3), pytest.approx(5 / 6), True),
    ]
    assert rows[0]["prompt"] == [
        {"role": "user", "content": [{"type": "image", "text": None}, {"type": "text", "text": "What of both?"}]}
    ]
    assert rows[0]["images"] == [{"bytes": IMAGE, "path": None}]
    for reason in (
        "3 × the two orders do not name the same winner",
        "2 × no vote of an order names a response",
        "1 × not judged",
    ):
        assert reason in done.output
    assert "6 pairs left out" in done.output


def test_what_else_can_be_kept(run: tuple[Path, Path], tmp_path: Path) -> None:
    """Pairs on which the orders disagree, marked as such; only wide margins; nothing at all is an error and no file."""
    judged = list(read_judged(*run))
    counts = write_preferences(judged, tmp_path / "all.parquet", "kto", PreferenceRules(keep_inconsistent=True))
    rows = pq.read_table(tmp_path / "all.parquet").to_pylist()
    assert (counts.kept, counts.num_rows, len(rows), counts.dropped["a tie"]) == (3, 6, 6, 2)
    assert (
        counts.dropped["no vote of an order names a response"] == 2
    )  # of "half", too: one order alone names its place as well
    assert [(row["pair_id"], row["label"], row["swap_consistent"]) for row in rows[4:]] == [
        ("leaning", True, False),
        ("leaning", False, False),
    ]
    wide = write_preferences(judged, tmp_path / "wide.parquet", "dpo", PreferenceRules(min_margin=0.9))
    assert (wide.kept, wide.dropped["a margin below 0.9"]) == (1, 1)
    drawn = judge_of_votes(replace(pair("p"), response_images=((IMAGE,), ())), votes_of("both"))
    one_order = judge_of_votes(pair("q"), [vote(Order.GIVEN, 0)])
    with pytest.raises(DataError, match=r"1 × a response holds an image; 1 × judged in one order only"):
        write_preferences([drawn, one_order], tmp_path / "none.parquet", "dpo", PreferenceRules())
    assert not (tmp_path / "none.parquet").exists()


def panel_votes(**winners: list[int]) -> list[Vote]:
    """One member's winners, the same in both orders."""
    return [
        replace(vote(order, winner), member=member)
        for member, of_member in winners.items()
        for order in Order
        for winner in of_member
    ]


@pytest.mark.parametrize(("judge", "winner"), [("panel:a;b;c;", 1), ("pool:a;b;c;", 0)])
def test_a_panel_decides_by_its_members(judge: str, winner: int, tmp_path: Path) -> None:
    """Two members of three outvote the votes of the third; pooled, its many votes weigh as log-odds (of both orders 30.5 to
    0.5, against 2.5 to 0.5 twice)."""
    members = {"a": [0] * 15, "b": [1], "c": [1]}
    data, log = tmp_path / "pairs.parquet", tmp_path / "votes.jsonl"
    write_parquet([pair("p")], data)
    row = {"pass": "votes", "row": 0, "votes": [vote_row(v) for v in panel_votes(**members)]}
    identity = {"identity": {"benchmark": "pairs", "data": data_hash(data), "judge": judge}}
    log.write_text("".join(json.dumps(line) + "\n" for line in (identity, row)))
    (judged,) = read_judged(log, data)
    assert (judged.judgment.outcome.winner, judged.consistent) == (winner, True)


def test_the_page_takes_a_panel_at_its_word(tmp_path: Path) -> None:
    """Even by members is even, whatever the number of each one's votes."""
    row = {"pass": "votes", "row": 0, "votes": [vote_row(v) for v in panel_votes(a=[0, 0, 0], b=[1])]}
    identity = {"identity": {"benchmark": "pairs", "judge": "panel:a;b;"}}
    (tmp_path / "votes.jsonl").write_text("".join(json.dumps(line) + "\n" for line in (identity, row)))
    (tmp_path / "scores.jsonl").write_text(json.dumps({"row": 0, "kinds": ["right"]}) + "\n")
    (view,), _ = judgments_to_show([Row(0, pair("p"), "all", "p", {})], tmp_path)
    assert view.outcome == "even"


def test_votes_of_other_data(run: tuple[Path, Path], tmp_path: Path) -> None:
    """Of another file, of another benchmark, or no votes at all: one sentence."""
    other = tmp_path / "other.parquet"
    write_parquet([pair("x")], other)
    with pytest.raises(DataError, match="belong to another version"):
        list(read_judged(run[0], other))
    with pytest.raises(DataError, match=r"holds neither votes\.jsonl"):
        list(read_judged(tmp_path, run[1]))
    (tmp_path / "votes.jsonl").write_text("{}\n")
    with pytest.raises(DataError, match="not the log of a judge"):
        list(read_judged(tmp_path, run[1]))


def test_matches_of_a_ranking(tmp_path: Path) -> None:
    """The two responses of a match, whichever stood first, with the votes of all its turns."""
    data, folder = tmp_path / "candidates.jsonl", tmp_path / "rank"
    data.write_text(json.dumps({"id": "c", "question": "Which?", "responses": ["a", "b", "c"]}) + "\n")
    folder.mkdir()
    matches = [(0, 2, 0, "both"), (2, 0, 1, "mostly"), (1, 2, 0, "split")]
    lines: list[dict[str, Any]] = [{"identity": {"data": candidates_hash(read_candidates(data))}}]
    lines += [
        {"row": 0, "first": first, "second": second, "nth": nth, "votes": [vote_row(v) for v in votes_of(name)]}
        for first, second, nth, name in matches
    ]
    (folder / "matches.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (folder / "rankings.jsonl").write_text("{}\n")
    first, second = read_judged(folder, data)
    assert (first.pair.responses, first.pair.pair_id, first.consistent) == (("a", "c"), "c#0-2", True)
    assert (len(first.judgment.votes), first.judgment.share_0) == (8, pytest.approx((3 / 4 + 1) / 2))
    assert (second.pair.responses, second.consistent) == (("b", "c"), False)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["dpo", "kto"])
def test_trl_trains_on_the_file(kind: str, tiny_checkpoint: Path, finished_run: Path, tmp_path: Path) -> None:
    """One step of TRL's own trainer, a model that sees images, on what a trained judge decided."""
    import trl
    from datasets import load_dataset
    from transformers import AutoModelForImageTextToText, AutoProcessor
    from trl.data_utils import is_conversational, prepare_multimodal_messages

    data = finished_run / "demo" / "test.parquet"
    run_bench(
        bench_settings("pairs", data, f"hf:{finished_run / 'rl' / 'final'}", limit=12, max_tokens=8, controls=()),
        tmp_path / "run",
    )
    judged, out = read_judged(tmp_path / "run", data), tmp_path / f"{kind}.parquet"
    counts = write_preferences(judged, out, kind, PreferenceRules(keep_inconsistent=True))
    loaded = load_dataset("parquet", data_files=str(out), split="train", cache_dir=str(tmp_path / "cache"))
    assert len(loaded) == counts.num_rows
    row = loaded[0]
    assert is_conversational(row)
    (message,) = prepare_multimodal_messages(row["prompt"], images=row["images"])
    assert message["content"][0]["image"].size == row["images"][0].size
    config = {"dpo": trl.DPOConfig, "kto": trl.KTOConfig}[kind](
        output_dir=str(tmp_path / "out"),
        max_steps=1,
        per_device_train_batch_size=2,
        max_length=None,
        report_to="none",
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        disable_tqdm=True,
        save_strategy="no",
    )
    trainer = {"dpo": trl.DPOTrainer, "kto": trl.KTOTrainer}[kind](
        model=AutoModelForImageTextToText.from_pretrained(tiny_checkpoint),
        args=config,
        train_dataset=loaded,
        processing_class=AutoProcessor.from_pretrained(tiny_checkpoint),
    )
    assert trainer.train().training_loss > 0


def test_refused_before_and_after(run: tuple[Path, Path], tmp_path: Path) -> None:
    """An existing file, the data itself among them, stays; data that is not there is a sentence; nothing partial is left."""
    before = run[1].read_bytes()
    done = invoke("data", "dpo", run[0], "--data", run[1], "--out", run[1])
    assert (str(done.exception), run[1].read_bytes()) == (
        f"{run[1]}: already exists; choose another --out, or remove it",
        before,
    )
    with pytest.raises(DataError, match="no such file or folder"):
        list(read_judged(run[0], tmp_path / "pears.parquet"))

    def broken() -> Iterator[JudgedPair]:
        yield judge_of_votes(pair("p"), votes_of("both"))
        raise DataError("the next row is bad")

    with pytest.raises(DataError, match="next row"):
        write_preferences(broken(), tmp_path / "half.parquet", "dpo", PreferenceRules())
    assert not list(tmp_path.glob("half*"))


@pytest.mark.slow
def test_votes_of_other_images(tmp_path: Path) -> None:
    """The same lines over another folder of images are other data, for a judge that looks; nor are two such runs compared."""
    for name in ("red", "blue"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.png").write_bytes(encode_png(Image.new("RGB", (30, 20), name)))
    row = {"question": "Which?", "responses": ["a", "b"], "preferred": 0, "images": ["a.png"]}
    data, out = tmp_path / "pairs.jsonl", tmp_path / "run"
    data.write_text("".join(json.dumps({**row, "question": f"Which {n}?"}) + "\n" for n in range(3)))
    settings = bench_settings("pairs", data, f"hf:{DEMO_JUDGE}", images=tmp_path / "red", limit=2, controls=())
    run_bench(settings, out)
    assert len(list(read_judged(out, data, images=tmp_path / "red"))) == 3
    with pytest.raises(DataError, match="other images"):
        list(read_judged(out, data, images=tmp_path / "blue"))
    run_bench(replace(settings, images=tmp_path / "blue"), tmp_path / "other")
    with pytest.raises(ConfigError, match="judged different images"):
        against(read_run(out), read_run(tmp_path / "other"))


@pytest.mark.slow
def test_the_images_of_a_run_with_ties(tmp_path: Path) -> None:
    """A run records those of ties last; read by anybody, they are in the order of the file."""
    images = [encode_png(Image.new("RGB", (56, 56), (9, shade, 200))) for shade in range(4)]
    ties = [None, Tie.TIE, None, Tie.BOTH_BAD]
    pairs = [
        replace(pair(str(n)), images=(image,), tie=tie, preferred=None if tie else 0)
        for n, (image, tie) in enumerate(zip(images, ties, strict=True))
    ]
    write_parquet(pairs, tmp_path / "p.parquet")
    run_bench(bench_settings("pairs", tmp_path / "p.parquet", f"hf:{DEMO_JUDGE}", controls=()), tmp_path / "run")
    judged = list(read_judged(tmp_path / "run", tmp_path / "p.parquet"))
    assert [one.has_votes for one in judged] == [True, False, True, False]
    assert [PreferenceRules().reason_against(one) for one in judged][1::2] == ["people call it a tie"] * 2
