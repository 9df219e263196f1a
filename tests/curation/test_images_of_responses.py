"""Images that stand within responses, pictures that differ a little, and one's own judgments in both orders."""

from __future__ import annotations

import io
import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from rewardlab.cli import app
from rewardlab.config import MatchConfig, SelfDistilConfig
from rewardlab.curation.decontaminate import BenchmarkPair, find_matches, num_steps
from rewardlab.curation.image_hashes import ImageLimits, PictureIndex, picture_of
from rewardlab.data.pairs import read_pairs
from rewardlab.distill.self_distill import select_judgments, self_distill
from rewardlab.judging.judge import GenerativeJudge
from rewardlab.prompts import build_messages, load_template
from rewardlab.samplers.base import SamplingParams
from rewardlab.samplers.scripted import ScriptedSampler
from rewardlab.types import (
    BOTH_ORDERS,
    IMAGE_MARK,
    Choice,
    Completion,
    FinishReason,
    Message,
    Order,
    PreferencePair,
    Verdict,
    VerdictStatus,
    Vote,
    choice_of,
)
from rewardlab.verdicts.parse import format_verdict, parse_verdict


def noise(seed: int, side: int = 64) -> bytes:
    """A picture like no other: blocks of 8 px."""
    blocks = np.random.default_rng(seed).integers(0, 255, (side // 8, side // 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    Image.fromarray(blocks).resize((side, side), Image.Resampling.BICUBIC).save(buffer, format="PNG")
    return buffer.getvalue()


@pytest.mark.parametrize(("changed", "near"), [(0, True), (8, True), (9, False), (16, False)])
def test_hashes_may_differ_in_eight_bits(changed: int, near: bool) -> None:
    """Of 64, by default; thumbnails and colours here are alike."""
    index: PictureIndex[str] = PictureIndex(ImageLimits(), crops=False)
    index.add(noise(0), "benchmark")
    picture = picture_of(noise(0))
    bits = np.unpackbits(picture.bits)
    bits[np.linspace(0, 63, changed, dtype=int)] ^= 1
    found = index.find(replace(picture, pixels=b"other", bits=np.packbits(bits)))
    assert bool(found) is near


def of_question(n: int, image: bytes) -> PreferencePair:
    return PreferencePair(f"q{n}", f"What is {n}?", ("a", f"b {n}"), 0, images=(image,))


def of_response(n: int, image: bytes) -> PreferencePair:
    responses = (f"Draw {n}.", IMAGE_MARK)
    return PreferencePair(f"r{n}", f"Which {n}?", responses, 0, response_images=((), (image,)))


@pytest.mark.parametrize("make", [(of_response, of_question), (of_question, of_response), (of_response, of_response)])
def test_images_within_responses_are_compared(make: Any) -> None:
    """In the training pair and in the benchmark's; each of the benchmark's is a step for the progress bar."""
    train, known = make
    benchmark, counted = [BenchmarkPair("b", n, known(n, noise(n))) for n in range(3)], list[int]()
    pairs = [train(7, noise(1)), train(8, noise(9))]
    found = find_matches(pairs, benchmark, MatchConfig(), counted.append)
    assert [(match.index, match.what, match.row) for match in found] == [(0, "image", 1)]
    assert sum(counted) == num_steps(pairs, benchmark) == 5


def test_a_build_keeps_a_question_about_another_image(tmp_path: Path) -> None:
    """Many ask the same of different pictures; the same picture is what a benchmark contains."""
    long = "Describe in two sentences what the two people in the foreground of this photograph are doing."
    rows = [{"q": long, "good": f"good {n}", "bad": f"bad {n}", "image": f"{n}.png"} for n in range(2)]
    for n in range(2):
        (tmp_path / f"{n}.png").write_bytes(noise(n))
    (tmp_path / "rows.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    bench = {"question": long, "responses": ["one", "two"], "preferred": 0, "images": ["1.png"]}
    (tmp_path / "bench.jsonl").write_text(json.dumps(bench) + "\n")
    (tmp_path / "m.yaml").write_text("name: m\nquestion: q\nchosen: good\nrejected: bad\nimages: [image]\n")
    options = ("--from", tmp_path / "rows.jsonl", "--against", f"pairs={tmp_path / 'bench.jsonl'}", "--out", tmp_path / "set")
    done = CliRunner().invoke(app, list(map(str, ("data", "build", tmp_path / "m.yaml", *options))))
    assert done.exit_code == 0, done.output
    assert [pair.images[0] for pair in read_pairs(tmp_path / "set")] == [noise(0)]
    (gone,) = [json.loads(line) for line in (tmp_path / "set" / "rejected.jsonl").read_text().splitlines()]
    assert (gone["kind"], gone["reason"]) == ("contaminated", "image of pairs")


def test_a_kept_judgment_keeps_its_order(demo_pairs: Any) -> None:
    """In which order the responses were shown is what its verdict means."""
    pair = demo_pairs[0][0]
    votes = []
    for n in range(8):
        order = BOTH_ORDERS[n % 2]
        choice = choice_of(pair.preferred, order)
        text = format_verdict(choice, f"{'abcdefgh'[n]} looked at it, {order.value}")
        votes.append(Vote(order, Verdict(choice, VerdictStatus.OK), Completion(text, FinishReason.STOP)))
    kept = select_judgments(pair, votes, SelfDistilConfig(samples=4, keep=8))
    assert {one.order for one in kept} == {Order.GIVEN, Order.SWAPPED}
    assert all(one.order.value in one.judgment for one in kept)


class SeedSampler(ScriptedSampler):
    """Right about each pair, and keeps the seeds that it is asked with."""

    def __init__(self, pairs: Sequence[PreferencePair]) -> None:
        template = load_template("plain")
        right = {
            build_messages(pair, order=order, template=template): choice_of(pair.preferred or 0, order)
            for pair in pairs
            for order in Order
        }
        words = ("one", "two", "three", "four")
        super().__init__(lambda prompt, draw: format_verdict(right[prompt], f"{words[draw]} {right[prompt].value}"))
        self.seeds: list[int] = []

    def sample(self, prompts: Sequence[tuple[Message, ...]], params: SamplingParams) -> list[list[Completion]]:
        if params.seed not in self.seeds:
            self.seeds.append(params.seed)
        return super().sample(prompts, params)


def test_each_batch_of_a_judges_own_is_drawn_by_other_luck(demo_pairs: Any, tmp_path: Path) -> None:
    """And a run that goes on draws what the whole run would have; each kept judgment names the preferred response."""
    pairs, rules = demo_pairs[0][:20], SelfDistilConfig(samples=4, keep=2)
    whole, cut = SeedSampler(pairs), SeedSampler(pairs)
    template = load_template("plain")
    self_distill(pairs, GenerativeJudge(whole, template), rules, tmp_path / "whole", batch=6)
    assert len(set(whole.seeds)) == 4
    kept = read_pairs(tmp_path / "whole" / "distilled.parquet")
    assert {pair.order for pair in kept} == set(Order)
    for pair in kept:
        choice: Choice | None = parse_verdict(pair.judgment, "think_answer").choice
        assert choice is choice_of(pair.preferred or 0, pair.order)
    lines = (tmp_path / "whole" / "journal.jsonl").read_text().splitlines(keepends=True)
    (tmp_path / "cut").mkdir()
    (tmp_path / "cut" / "journal.jsonl").write_text("".join(lines[:3]))
    self_distill(pairs, GenerativeJudge(cut, template), rules, tmp_path / "cut", batch=6)
    assert cut.seeds == whole.seeds[2:]
